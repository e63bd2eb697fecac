//go:build cgo

/* Each function makes the contexts that it needs current, works, and takes them back: one crossing from Go, on whatever
 * thread. shim.h has the contract. */
#define _GNU_SOURCE
#include "shim.h"
#include "inside.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tc_driver cu;

static pid_t loaded_in;

/* What a device has of ours; made at its first use, and kept as long as the process. */
#define DEVICES_MAX 128
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	tc_context context;
	tc_stream copies;
} devices[DEVICES_MAX];

/* The path comes from the environment of C, which Python's os.environ changes too. It is the process's library: two
 * engines cannot differ in it, so it is no setting of an engine. Programs with more rights than their user ignore it. */
int tc_load(char *why, size_t bytes) {
	const char *path = secure_getenv("TENT_LIBCUDA");
	if (!path || !*path)
		path = "libcuda.so.1";
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(why, bytes, "%s", dlerror());
		return -1;
	}
	size_t used = 0;
#define WANT(name, arguments)                                                                                \
	if (!(cu.name = (int(*) arguments)dlsym(library, #name)) && used + sizeof #name + 1 < bytes)         \
		used += (size_t)snprintf(why + used, bytes - used, "%s%s", used ? " " : "", #name);
#define FIND(name, arguments) cu.name = (int(*) arguments)dlsym(library, #name);
	TC_SYMBOLS(WANT, FIND)
	loaded_in = getpid();
	return used ? -2 : 0; /* the library stays: a driver cannot be unloaded */
}

/* A process that was forked has the library and not the driver's threads: no call may reach it. */
int forked(void) { return loaded_in != getpid(); }

tc_result tc_init(int *version, int *count) {
	if (forked())
		return ended(TC_FORKED, "cuInit");
	tc_result r = CALL(cuDriverGetVersion, version);
	if (!r.code)
		r = CALL(cuInit, 0);
	if (!r.code)
		r = CALL(cuDeviceGetCount, count);
	if (*count > DEVICES_MAX)
		*count = DEVICES_MAX;
	return r;
}

const char *tc_words(int code, const char **name) {
	const char *text = NULL;
	*name = NULL;
	cu.cuGetErrorName(code, name);
	cu.cuGetErrorString(code, &text);
	return text;
}

/* A thread that captures a graph in the mode GLOBAL would make allocations and events of others fail: RELAXED is 2. */
static tc_result push(tc_context context, thread_state *before) {
	if (forked())
		return ended(TC_FORKED, "cuCtxPushCurrent_v2");
	tc_result r = CALL(cuCtxPushCurrent_v2, context);
	if (r.code)
		return r;
	before->mode = 2;
	if (cu.cuThreadExchangeStreamCaptureMode)
		cu.cuThreadExchangeStreamCaptureMode(&before->mode);
	return r;
}

void pop(thread_state *before) {
	tc_context ours;
	if (cu.cuThreadExchangeStreamCaptureMode)
		cu.cuThreadExchangeStreamCaptureMode(&before->mode);
	cu.cuCtxPopCurrent_v2(&ours);
}

/* The primary context is the one that frameworks use. It costs hundreds of megabytes of a device that nobody uses yet,
 * so it is retained when a call about the device comes, and not before. */
tc_result enter(int device, thread_state *before) {
	if (forked())
		return ended(TC_FORKED, "cuDevicePrimaryCtxRetain");
	tc_result r = ended(TC_OK, "");
	pthread_mutex_lock(&lock);
	if (!devices[device].context) {
		int handle;
		r = CALL(cuDeviceGet, &handle, device);
		if (!r.code)
			r = CALL(cuDevicePrimaryCtxRetain, &devices[device].context, handle);
	}
	pthread_mutex_unlock(&lock);
	return r.code ? r : push(devices[device].context, before);
}

/* Our stream for copies of a device, which waits for no stream of the program (CU_STREAM_NON_BLOCKING is 1). Its context
 * is current. */
static tc_result copies_of(int device, tc_stream *stream) {
	tc_result r = ended(TC_OK, "");
	pthread_mutex_lock(&lock);
	if (!devices[device].copies)
		r = CALL(cuStreamCreate, &devices[device].copies, 1);
	*stream = devices[device].copies;
	pthread_mutex_unlock(&lock);
	return r;
}

tc_result tc_describe(int device, char *name, char *pci, size_t bytes, unsigned char *uuid) {
	if (forked())
		return ended(TC_FORKED, "cuDeviceGet");
	int handle;
	tc_result r = CALL(cuDeviceGet, &handle, device);
	if (!r.code)
		r = CALL(cuDeviceGetName, name, (int)bytes, handle);
	if (!r.code)
		r = CALL(cuDeviceGetPCIBusId, pci, (int)bytes, handle);
	if (!r.code && cu.cuDeviceGetUuid_v2) /* that of a MIG instance, not of the whole GPU */
		r = CALL(cuDeviceGetUuid_v2, uuid, handle);
	else if (!r.code && cu.cuDeviceGetUuid)
		r = CALL(cuDeviceGetUuid, uuid, handle);
	return r;
}

tc_result tc_locate(uint64_t address, tc_place *place) {
	if (forked())
		return ended(TC_FORKED, "cuPointerGetAttributes");
	tc_context context = NULL;
	unsigned char managed = 0;
	memset(place, 0, sizeof *place);
	place->device = -1;
	int which[] = {2, 9, 8, 1, 7}; /* memory type, device, managed, context, buffer id */
	void *into[] = {&place->type, &place->device, &managed, &context, &place->allocation};
	tc_result r = CALL(cuPointerGetAttributes, 5, which, into, address);
	if (r.code == TC_INVALID_VALUE) { /* none of the driver's */
		place->type = 0;
		return ended(TC_OK, "");
	}
	if (r.code || place->type != 2)
		return r;
	place->managed = managed;
	if (place->device < 0 || place->device >= DEVICES_MAX)
		return ended(TC_INVALID_VALUE, "cuPointerGetAttributes");
	thread_state before; /* memory of the VMM has no context of its own */
	r = context ? push(context, &before) : enter(place->device, &before);
	if (r.code)
		return r;
	size_t bytes = 0;
	r = CALL(cuMemGetAddressRange_v2, &place->base, &bytes, address);
	place->bytes = bytes;
	pop(&before);
	return r;
}

tc_result tc_allocate(int device, uint64_t bytes, uint64_t *address) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	tc_stream stream;
	r = copies_of(device, &stream);
	if (!r.code && !(r = CALL(cuMemAlloc_v2, address, bytes)).code) {
		r = CALL(cuMemsetD8Async, *address, 0, bytes, stream);
		if (!r.code)
			r = CALL(cuStreamSynchronize, stream);
		if (r.code)
			cu.cuMemFree_v2(*address);
	}
	pop(&before);
	return r;
}

tc_result tc_free(int device, uint64_t address) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	r = CALL(cuMemFree_v2, address);
	pop(&before);
	return r;
}

/* Never cuMemcpy: it waits for the streams of the program. */
tc_result tc_copy(int device, uint64_t to, uint64_t from, uint64_t bytes) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	tc_stream stream;
	r = copies_of(device, &stream);
	if (!r.code)
		r = CALL(cuMemcpyAsync, to, from, bytes, stream);
	if (!r.code)
		r = CALL(cuStreamSynchronize, stream);
	pop(&before);
	return r;
}

/* Two generations of the batch call, or a loop without either. CU_MEMCPY_SRC_ACCESS_ORDER_STREAM is 1. After a failure
 * of a batch some of it may be queued. */
static tc_result queue(tc_stream stream, uint64_t *to, uint64_t *from, uint64_t *bytes, size_t count) {
	tc_order order = {.order = 1};
	size_t first = 0, failed;
	if (count > 1 && cu.cuMemcpyBatchAsync_v2)
		return CALL(cuMemcpyBatchAsync_v2, to, from, bytes, count, &order, &first, 1, stream);
	if (count > 1 && cu.cuMemcpyBatchAsync)
		return CALL(cuMemcpyBatchAsync, to, from, bytes, count, &order, &first, 1, &failed, stream);
	tc_result r = ended(TC_OK, "");
	for (size_t i = 0; i < count && !r.code; i++)
		r = CALL(cuMemcpyAsync, to[i], from[i], bytes[i], stream);
	return r;
}

tc_result tc_copies(int device, uint64_t *to, uint64_t *from, uint64_t *bytes, size_t count) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	tc_stream stream;
	r = copies_of(device, &stream);
	if (!r.code) {
		r = queue(stream, to, from, bytes, count);
		tc_result after = CALL(cuStreamSynchronize, stream); /* after a failure, too: nothing may land later */
		if (!r.code)
			r = after;
	}
	pop(&before);
	return r;
}

/* CU_MEMHOSTALLOC_PORTABLE is 1: pinned for every device. */
tc_result tc_pin(int device, uint64_t bytes, uint64_t *address) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	void *at = NULL;
	r = CALL(cuMemHostAlloc, &at, bytes, 1);
	*address = (uint64_t)at;
	pop(&before);
	return r;
}

tc_result tc_unpin(int device, uint64_t address) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	r = CALL(cuMemFreeHost, (void *)address);
	pop(&before);
	return r;
}

tc_result tc_export(int device, uint64_t address, uint64_t bytes, int *fd) {
	if (!cu.cuMemGetHandleForAddressRange) /* CUDA 11.7 has it */
		return ended(TC_NOT_SUPPORTED, "cuMemGetHandleForAddressRange");
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	r = CALL(cuMemGetHandleForAddressRange, fd, address, bytes, 1, 0);
	pop(&before);
	return r;
}

/* Records an event behind the work that is in a stream now. CU_EVENT_DISABLE_TIMING is 2. */
static tc_result record(tc_context context, tc_stream stream, tc_gate *gate) {
	thread_state before;
	tc_result r = push(context, &before);
	if (r.code)
		return r;
	int capturing = 0;
	tc_event event = NULL;
	if (cu.cuStreamIsCapturing)
		r = CALL(cuStreamIsCapturing, stream, &capturing);
	if (!r.code && capturing)
		r = ended(TC_CAPTURING, "cuStreamIsCapturing");
	if (!r.code && !(r = CALL(cuEventCreate, &event, 2)).code) {
		r = CALL(cuEventRecord, event, stream);
		if (r.code)
			cu.cuEventDestroy_v2(event);
	}
	pop(&before);
	if (!r.code) {
		gate->of[gate->count].context = context;
		gate->of[gate->count++].event = event;
	}
	return r;
}

/* The default streams (0, 1 and 2) belong to the thread's current context. A thread without one means those of all
 * devices that are in use. */
static tc_result record_default(uint64_t stream, tc_gate *gate) {
	tc_context current = NULL;
	tc_result r = CALL(cuCtxGetCurrent, &current);
	if (r.code || current)
		return r.code ? r : record(current, (tc_stream)stream, gate);
	int count = 0;
	r = CALL(cuDeviceGetCount, &count);
	for (int i = 0; i < count && i < DEVICES_MAX && !r.code; i++) {
		int handle, active = 0;
		unsigned flags;
		r = CALL(cuDeviceGet, &handle, i);
		if (!r.code)
			r = CALL(cuDevicePrimaryCtxGetState, handle, &flags, &active);
		thread_state before;
		if (!r.code && active && !(r = enter(i, &before)).code) {
			pop(&before);
			r = record(devices[i].context, (tc_stream)stream, gate);
		}
	}
	return r;
}

tc_result tc_record(uint64_t stream, tc_gate **gate) {
	if (forked())
		return ended(TC_FORKED, "cuEventRecord");
	tc_gate *g = calloc(1, sizeof *g + DEVICES_MAX * sizeof *g->of);
	if (!g)
		return ended(TC_NO_MEMORY, "calloc");
	tc_result r;
	if (stream <= 2) {
		r = record_default(stream, g);
	} else {
		tc_context context = NULL;
		r = CALL(cuStreamGetCtx, (tc_stream)stream, &context);
		if (!r.code)
			r = record(context, (tc_stream)stream, g);
	}
	if (r.code) {
		tc_forget(g);
		return r;
	}
	*gate = g;
	return r;
}

tc_result tc_passed(tc_gate *gate, int *passed) {
	*passed = 0;
	while (gate->count) {
		tc_event event = gate->of[gate->count - 1].event;
		thread_state before;
		tc_result r = push(gate->of[gate->count - 1].context, &before);
		if (r.code)
			return r;
		r = CALL(cuEventQuery, event);
		if (!r.code)
			cu.cuEventDestroy_v2(event);
		pop(&before);
		if (r.code == TC_NOT_READY)
			return ended(TC_OK, "");
		if (r.code)
			return r;
		gate->count--;
	}
	*passed = 1;
	return ended(TC_OK, "");
}

void tc_forget(tc_gate *gate) {
	if (!forked())
		while (gate->count)
			cu.cuEventDestroy_v2(gate->of[--gate->count].event);
	free(gate);
}

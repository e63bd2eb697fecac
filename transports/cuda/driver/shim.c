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

struct tc_driver cu;
int device_count;

static int child; /* this process was forked from the one that loaded the driver */

/* What a device has of ours; made at its first use, and kept as long as the process. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	tc_context context;
	tc_stream copies, lanes[TC_LANES];
} devices[DEVICES_MAX];

/* Every fork of libc calls this. getpid would do too; it is a system call, and a slice has four of these questions. */
static void in_child(void) { child = 1; }

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
	if (pthread_atfork(NULL, NULL, in_child))
		return snprintf(why, bytes, "pthread_atfork: no memory"), -1;
	return used ? -2 : 0; /* the library stays: a driver cannot be unloaded */
}

/* A process that was forked has the library and not the driver's threads: no call may reach it. */
int forked(void) { return child; }

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
	device_count = *count;
	return r;
}

const char *tc_words(int code, const char **name) {
	const char *text = NULL;
	*name = NULL;
	cu.cuGetErrorName(code, name);
	cu.cuGetErrorString(code, &text);
	return text;
}

/* A thread that captures a graph in the mode GLOBAL would make allocations and events of others fail. */
tc_result push(tc_context context, thread_state *before) {
	if (forked())
		return ended(TC_FORKED, "cuCtxPushCurrent_v2");
	tc_result r = CALL(cuCtxPushCurrent_v2, context);
	if (r.code)
		return r;
	before->mode = TC_STREAM_CAPTURE_MODE_RELAXED;
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
tc_result context_of(int device, tc_context *context) {
	if (forked())
		return ended(TC_FORKED, "cuDevicePrimaryCtxRetain");
	tc_result r = ended(TC_OK, "");
	if ((*context = __atomic_load_n(&devices[device].context, __ATOMIC_ACQUIRE)))
		return r;
	pthread_mutex_lock(&lock);
	if (!devices[device].context) {
		int handle;
		tc_context made = NULL;
		r = CALL(cuDeviceGet, &handle, device);
		if (!r.code)
			r = CALL(cuDevicePrimaryCtxRetain, &made, handle);
		__atomic_store_n(&devices[device].context, made, __ATOMIC_RELEASE);
	}
	*context = devices[device].context;
	pthread_mutex_unlock(&lock);
	return r;
}

tc_result enter(int device, thread_state *before) {
	tc_context context;
	tc_result r = context_of(device, &context);
	return r.code ? r : push(context, before);
}

tc_visit tc_enter_device(int device) {
	thread_state before = {0};
	tc_result r = enter(device, &before);
	return (tc_visit){r, before.mode};
}

void tc_leave_device(int mode) {
	thread_state before = {mode};
	pop(&before);
}

/* A stream of ours. Its context is current. */
static tc_result stream_of(tc_stream *kept, tc_stream *stream) {
	tc_result r = ended(TC_OK, "");
	if ((*stream = __atomic_load_n(kept, __ATOMIC_ACQUIRE)))
		return r;
	pthread_mutex_lock(&lock);
	if (!*kept) {
		tc_stream made = NULL;
		r = CALL(cuStreamCreate, &made, TC_STREAM_NON_BLOCKING);
		__atomic_store_n(kept, made, __ATOMIC_RELEASE);
	}
	*stream = *kept;
	pthread_mutex_unlock(&lock);
	return r;
}

tc_result copies_of(int device, tc_stream *stream) { return stream_of(&devices[device].copies, stream); }

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
	memset(place, 0, sizeof *place);
	place->device = -1;
	int which[] = {TC_POINTER_ATTRIBUTE_MEMORY_TYPE,      TC_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		       TC_POINTER_ATTRIBUTE_IS_MANAGED,       TC_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		       TC_POINTER_ATTRIBUTE_CONTEXT,          TC_POINTER_ATTRIBUTE_BUFFER_ID,
		       TC_POINTER_ATTRIBUTE_RANGE_START_ADDR, TC_POINTER_ATTRIBUTE_RANGE_SIZE};
	void *into[] = {&place->type, &place->device,     &place->managed, &place->legacy,
	                &context,     &place->allocation, &place->base,    &place->bytes};
	tc_result r = CALL(cuPointerGetAttributes, sizeof which / sizeof *which, which, into, address);
	if (r.code == TC_INVALID_VALUE) { /* none of the driver's */
		place->type = 0;
		return ended(TC_OK, "");
	}
	if (r.code || place->type != TC_MEMORYTYPE_DEVICE)
		return r;
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

tc_result zero(int device, uint64_t address, uint64_t bytes) {
	tc_stream stream;
	tc_result r = copies_of(device, &stream);
	if (!r.code)
		r = CALL(cuMemsetD8Async, address, 0, bytes, stream);
	return r.code ? r : CALL(cuStreamSynchronize, stream);
}

tc_result tc_allocate(int device, uint64_t bytes, uint64_t *address) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	if (!(r = CALL(cuMemAlloc_v2, address, bytes)).code && (r = zero(device, *address, bytes)).code)
		cu.cuMemFree_v2(*address);
	pop(&before);
	return r;
}

tc_result tc_free(int device, uint64_t address) {
	VISIT(device, CALL(cuMemFree_v2, address));
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

/* Two generations of the batch call, or a loop without either. After a failure of a batch some of it may be
 * queued. */
static tc_result queue(tc_stream stream, uint64_t *to, uint64_t *from, uint64_t *bytes, size_t count) {
	tc_order order = {.order = TC_MEMCPY_SRC_ACCESS_ORDER_STREAM};
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

static void note(tc_flight *flight, tc_result r) { flight->code = r.code, flight->call = (uint64_t)r.call; }

/* Queues the copies of one slice; its device's context is current. After a failure, too, nothing may land later. */
static tc_result post(tc_copies *c, uint64_t *to, uint64_t *from, uint64_t *bytes) {
	tc_stream stream;
	tc_result r = stream_of(&devices[c->device].lanes[c->lane], &stream);
	if (r.code)
		return r;
	tc_context context = devices[c->device].context;
	tc_event event = NULL;
	to += c->first, from += c->first, bytes += c->first;
	r = gathers(c, to, from, bytes) ? gather(c->device, stream, to, from, bytes, c->count)
	                                : queue(stream, to, from, bytes, c->count);
	if (!r.code)
		r = record(context, stream, &event);
	if (r.code)
		cu.cuStreamSynchronize(stream);
	else
		c->flight = (tc_flight){(uint64_t)context, (uint64_t)stream, (uint64_t)event, 0, 0};
	return r;
}

/* Neighbours of one device share a visit to its context; most often that is the whole burst. */
void tc_post(tc_copies *list, size_t count, uint64_t *to, uint64_t *from, uint64_t *bytes) {
	for (size_t i = 0; i < count;) {
		thread_state before;
		int device = list[i].device;
		tc_result r = enter(device, &before);
		if (r.code) {
			note(&list[i++].flight, r);
			continue;
		}
		for (; i < count && list[i].device == device; i++)
			note(&list[i].flight, post(&list[i], to, from, bytes));
		pop(&before);
	}
}

tc_result tc_finish(tc_flight *flight) {
	thread_state before;
	tc_context context = (tc_context)flight->context;
	tc_event event = (tc_event)flight->event;
	tc_result r = push(context, &before);
	if (r.code)
		return r;
	r = CALL(cuEventSynchronize, event);
	pop(&before);
	give_event(context, event);
	return r;
}

/* Where the question fails, the driver is asked once more in the way that waits: bytes may still be on their way. */
static tc_result end_of(tc_context context, tc_event event) {
	tc_result r = CALL(cuEventQuery, event);
	if (r.code == TC_NOT_READY)
		return r;
	if (r.code)
		r = CALL(cuEventSynchronize, event);
	give_event(context, event);
	return r;
}

tc_result tc_end(const tc_flight *flight) { return ended(flight->code, (const char *)flight->call); }

/* A stream works in order: behind one that is under way in it, the next one of the list is, too. */
static int behind(const tc_flight *one, const tc_flight *next) {
	return one->code == TC_NOT_READY && one->stream == next->stream;
}

void tc_ended(tc_flight *list, size_t count) {
	for (size_t i = 0; i < count;) {
		thread_state before;
		tc_context context = (tc_context)list[i].context;
		tc_result r = push(context, &before);
		if (r.code) {
			note(&list[i++], r);
			continue;
		}
		for (; i < count && list[i].context == (uint64_t)context; i++) /* most often all are of one device */
			if (i > 0 && behind(&list[i - 1], &list[i]))
				note(&list[i], ended(TC_NOT_READY, ""));
			else
				note(&list[i], end_of(context, (tc_event)list[i].event));
		pop(&before);
	}
}

tc_result tc_pin(int device, uint64_t bytes, uint64_t *address) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	void *at = NULL;
	r = CALL(cuMemHostAlloc, &at, bytes, TC_MEMHOSTALLOC_PORTABLE);
	*address = (uint64_t)at;
	pop(&before);
	return r;
}

tc_result tc_unpin(int device, uint64_t address) {
	VISIT(device, CALL(cuMemFreeHost, (void *)address));
}

int tc_in_use(int device) {
	int handle, active = 0;
	unsigned flags;
	return !forked() && !cu.cuDeviceGet(&handle, device) && !cu.cuDevicePrimaryCtxGetState(handle, &flags, &active) && active;
}

/* So it is under WSL 2. */
int tc_elsewhere(void) {
	int handle, same = 1;
	for (int device = 0; device < device_count && same && cu.cuDeviceGetAttribute; device++)
		if (!cu.cuDeviceGet(&handle, device))
			cu.cuDeviceGetAttribute(&same, TC_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, handle);
	return !same;
}

tc_result tc_keep(int device, uint64_t address, uint64_t bytes) {
	if (!cu.cuMemHostRegister_v2 || !cu.cuMemHostUnregister)
		return ended(TC_NOT_SUPPORTED, "cuMemHostRegister_v2");
	VISIT(device, tc_elsewhere() ? ended(TC_ELSEWHERE, "cuDeviceGetAttribute")
	                             : CALL(cuMemHostRegister_v2, (void *)address, bytes, TC_MEMHOSTREGISTER_PORTABLE));
}

tc_result tc_unkeep(int device, uint64_t address) {
	VISIT(device, CALL(cuMemHostUnregister, (void *)address));
}

tc_result tc_export(int device, uint64_t address, uint64_t bytes, int *fd) {
	NEED(cuMemGetHandleForAddressRange); /* CUDA 11.7 has it */
	VISIT(device, CALL(cuMemGetHandleForAddressRange, fd, address, bytes, TC_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
}

/* A driver before CUDA 11.3 knows neither attribute. */
int tc_landing(int device) {
	int handle, ordering, options;
	if (!cu.cuDeviceGetAttribute || cu.cuDeviceGet(&handle, device) ||
	    cu.cuDeviceGetAttribute(&ordering, TC_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, handle) ||
	    cu.cuDeviceGetAttribute(&options, TC_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, handle))
		return TC_LATE;
	if (ordering >= TC_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
		return TC_SEEN;
	return options & TC_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST && cu.cuFlushGPUDirectRDMAWrites ? TC_FLUSHED : TC_LATE;
}

tc_result tc_flush(int device) {
	VISIT(device, CALL(cuFlushGPUDirectRDMAWrites, TC_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
	                   TC_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
}

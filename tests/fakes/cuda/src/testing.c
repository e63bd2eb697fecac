/* For tests alone: memory and streams as a framework in the same process makes them, and a brake for the streams. */
#include "fake.h"

#include <string.h>
#include <time.h>

extern int cuCtxPushCurrent_v2(struct context *), cuCtxPopCurrent_v2(struct context **);
extern int cuThreadExchangeStreamCaptureMode(int *);
extern int cuDevicePrimaryCtxRetain(struct context **, int), cuDevicePrimaryCtxRelease_v2(int);
extern int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
extern int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
extern int cuStreamCreate(struct stream **, unsigned), cuStreamDestroy_v2(struct stream *);
extern int cuEventCreate(struct event **, unsigned), cuEventDestroy_v2(struct event *), cuEventQuery(struct event *);
extern int cuEventRecord(struct event *, void *), cuMemcpyAsync(uint64_t, uint64_t, size_t, void *);
extern int cuMemCreate(struct physical **, size_t, const void *, uint64_t), cuMemRelease(struct physical *);
extern int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, uint64_t), cuMemAddressFree(uint64_t, size_t);
extern int cuMemMap(uint64_t, size_t, size_t, struct physical *, uint64_t), cuMemUnmap(uint64_t, size_t);
extern int cuMemSetAccess(uint64_t, size_t, const void *, size_t);

static long flushes[DEVICES_MAX];

/* Waits for the bytes of NICs, which the emulated ones of tests/fakes/verbs keep: it counts for the device. */
API int cuFlushGPUDirectRDMAWrites(int target, int scope) {
	struct context *current;
	int result = fake_enter_current("cuFlushGPUDirectRDMAWrites", &current);
	if (result)
		return result;
	if (target != 0 || (scope != 100 && scope != 200))
		return fake_leave(INVALID_VALUE);
	if (!fake_setting("FLUSH", 1))
		return fake_leave(NOT_SUPPORTED);
	flushes[current->device]++;
	return fake_leave(OK);
}

API uint64_t fakecuda_flushes(int device) { return (uint64_t)flushes[device]; }

/* Holds all work of all streams back, or lets it go on. */
API void fakecuda_hold(int on) {
	pthread_mutex_lock(&fake_lock);
	fake_hold(on);
	pthread_mutex_unlock(&fake_lock);
}

API void fakecuda_forgive(void) {
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < fake_devices; i++)
		fake_contexts[i].poisoned = OK;
	pthread_mutex_unlock(&fake_lock);
}

/* Makes a device's context current on this thread, as torch does; -1 ends that. */
API int fakecuda_enter(int device) {
	struct context *c;
	if (device < 0) {
		int result = cuCtxPopCurrent_v2(&c);
		return result ? result : cuDevicePrimaryCtxRelease_v2(c->device);
	}
	int result = cuDevicePrimaryCtxRetain(&c, device);
	return result ? result : cuCtxPushCurrent_v2(c);
}

API uint64_t fakecuda_stream(void) {
	struct stream *s;
	return cuStreamCreate(&s, 1) ? 0 : (uint64_t)s;
}

API int fakecuda_end_stream(uint64_t s) { return cuStreamDestroy_v2((struct stream *)s); }

/* Queues a piece of work: it sets bytes of a device. */
API int fakecuda_work(uint64_t address, int byte, uint64_t bytes, uint64_t stream) {
	return cuMemsetD8Async(address, (unsigned char)byte, bytes, (void *)stream);
}

/* Makes a stream seem to be captured into a graph. */
API int fakecuda_capture(uint64_t stream, int on) {
	struct stream *s = (struct stream *)stream;
	pthread_mutex_lock(&fake_lock);
	fake_captures += on - s->capturing;
	s->capturing = on;
	return fake_leave(OK);
}

API uint64_t fakecuda_pinned(uint64_t bytes) {
	void *p;
	return cuMemHostAlloc(&p, bytes, 1) ? 0 : (uint64_t)p;
}

API int fakecuda_unpin(uint64_t address) { return cuMemFreeHost((void *)address); }

/* A library on a thread of the program makes its context current around its calls, and leaves the mode of captures. */
static int visit(struct context *c, int *mode) {
	*mode = 2;
	return cuCtxPushCurrent_v2(c) || cuThreadExchangeStreamCaptureMode(mode);
}

static int leave(int *mode) {
	struct context *c;
	return cuThreadExchangeStreamCaptureMode(mode) || cuCtxPopCurrent_v2(&c);
}

/* The time of calls in C: a copy, an event behind it, and the question about it, over and over. With foreign the loop
 * does so as a library on a thread of the program. In ns; 0 on failure. */
API uint64_t fakecuda_loop(uint64_t to, uint64_t from, uint64_t bytes, uint64_t count, int foreign) {
	struct stream *stream;
	struct event *event;
	struct timespec begin, end;
	int mode, result = fakecuda_enter(0);
	struct context *c = &fake_contexts[0];
	if (result || cuStreamCreate(&stream, 1) || cuEventCreate(&event, 2))
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (uint64_t i = 0; i < count && !result; i++) {
		result = foreign && visit(c, &mode);
		if (!result && !(result = cuMemcpyAsync(to, from, bytes, stream)))
			result = cuEventRecord(event, stream);
		if (foreign && !result)
			result = leave(&mode) || visit(c, &mode);
		if (!result)
			while ((result = cuEventQuery(event)) == NOT_READY)
				;
		if (foreign && !result)
			result = leave(&mode);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	if (cuEventDestroy_v2(event) || cuStreamDestroy_v2(stream) || fakecuda_enter(-1) || result)
		return 0;
	return (uint64_t)(end.tv_sec - begin.tv_sec) * 1000000000u + (uint64_t)(end.tv_nsec - begin.tv_nsec);
}

/* Chunks of the VMM side by side, each 2 MiB: an expandable segment of PyTorch. 0 on failure. */
API uint64_t fakecuda_chunks(int device, int chunks, int types) {
	struct { int type, types, place, id; void *security; char flags[8]; } p = {1, types, 1, device, NULL, {0}};
	struct { int place, id, flags; } access = {1, device, 3};
	uint64_t address;
	if (cuMemAddressReserve(&address, (size_t)chunks * GRANULARITY, 0, 0, 0))
		return 0;
	for (int i = 0; i < chunks; i++) {
		struct physical *handle;
		if (cuMemCreate(&handle, GRANULARITY, &p, 0))
			return 0;
		if (cuMemMap(address + (uint64_t)i * GRANULARITY, GRANULARITY, 0, handle, 0) || cuMemRelease(handle))
			return 0;
	}
	return cuMemSetAccess(address, (size_t)chunks * GRANULARITY, &access, 1) ? 0 : address;
}

API int fakecuda_free_chunks(uint64_t address, int chunks) {
	int result = cuMemUnmap(address, (size_t)chunks * GRANULARITY);
	return result ? result : cuMemAddressFree(address, (size_t)chunks * GRANULARITY);
}

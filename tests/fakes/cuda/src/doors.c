/* For tests alone: memory and streams as a framework in the same process makes them. These doors make public calls of the
 * driver and no others, so ../real/doors.c has them over a real one, too. */
#include "doors.h"

#include <stddef.h>
#include <time.h>

extern int cuInit(unsigned), cuDeviceGetCount(int *);
extern int cuCtxPushCurrent_v2(void *), cuCtxPopCurrent_v2(void **), cuCtxGetCurrent(void **), cuCtxGetDevice(int *);
extern int cuThreadExchangeStreamCaptureMode(int *);
extern int cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
extern int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
extern int cuMemAllocManaged(uint64_t *, size_t, unsigned), cuMemFree_v2(uint64_t);
extern int cuMemAllocAsync(uint64_t *, size_t, void *), cuStreamSynchronize(void *);
extern int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
extern int cuStreamCreate(void **, unsigned), cuStreamDestroy_v2(void *);
extern int cuStreamGetCtx(void *, void **);
extern int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuGraphDestroy(void *);
extern int cuEventCreate(void **, unsigned), cuEventDestroy_v2(void *), cuEventQuery(void *);
extern int cuEventRecord(void *, void *), cuMemcpyAsync(uint64_t, uint64_t, size_t, void *);
extern int cuMemCreate(void **, size_t, const void *, uint64_t), cuMemRelease(void *);
extern int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, uint64_t), cuMemAddressFree(uint64_t, size_t);
extern int cuMemMap(uint64_t, size_t, size_t, void *, uint64_t), cuMemUnmap(uint64_t, size_t);
extern int cuMemSetAccess(uint64_t, size_t, const void *, size_t);

#define CHUNK (2UL << 20)
#define NOT_READY 600

/* 0 where there is no driver or no device. */
API int fakecuda_devices(void) {
	int count;
	return cuInit(0) || cuDeviceGetCount(&count) ? 0 : count;
}

/* Makes a device's context current on this thread, as torch does; -1 ends that. */
API int fakecuda_enter(int device) {
	void *c;
	if (device < 0) {
		int own, result = cuCtxGetDevice(&own);
		if (!result)
			result = cuCtxPopCurrent_v2(&c);
		return result ? result : cuDevicePrimaryCtxRelease_v2(own);
	}
	int result = cuDevicePrimaryCtxRetain(&c, device);
	return result ? result : cuCtxPushCurrent_v2(c);
}

/* The depth of this thread's stack of contexts: takes all of them, and puts them back. */
API uint64_t fakecuda_depth(void) {
	enum { MOST = 64 };
	void *taken[MOST];
	uint64_t n = 0;
	while (n < MOST && !cuCtxGetCurrent(&taken[n]) && taken[n] && !cuCtxPopCurrent_v2(&taken[n]))
		n++;
	for (uint64_t i = n; i-- > 0;)
		if (cuCtxPushCurrent_v2(taken[i]))
			return ~0UL;
	return n;
}

API uint64_t fakecuda_stream(void) {
	void *s;
	return cuStreamCreate(&s, 1) ? 0 : (uint64_t)s;
}

/* It works behind the default stream, and that behind it. */
API uint64_t fakecuda_blocking_stream(void) {
	void *s;
	return cuStreamCreate(&s, 0) ? 0 : (uint64_t)s;
}

API int fakecuda_end_stream(uint64_t s) { return cuStreamDestroy_v2((void *)s); }

/* Queues a piece of work: it sets bytes of a device. */
API int fakecuda_work(uint64_t address, int byte, uint64_t bytes, uint64_t stream) {
	return cuMemsetD8Async(address, (unsigned char)byte, bytes, (void *)stream);
}

/* Begins to capture a stream into a graph in the mode GLOBAL, or ends that on the same thread, and drops the graph. */
API int fakecuda_capture(uint64_t stream, int on) {
	void *context, *popped, *graph = NULL, *s = (void *)stream;
	int result = cuStreamGetCtx(s, &context);
	if (!result)
		result = cuCtxPushCurrent_v2(context);
	if (result)
		return result;
	result = on ? cuStreamBeginCapture_v2(s, 0) : cuStreamEndCapture(s, &graph);
	if (graph)
		cuGraphDestroy(graph);
	cuCtxPopCurrent_v2(&popped);
	return result;
}

API uint64_t fakecuda_pinned(uint64_t bytes) {
	void *p;
	return cuMemHostAlloc(&p, bytes, 1) ? 0 : (uint64_t)p;
}

API uint64_t fakecuda_managed(uint64_t bytes) {
	uint64_t at;
	return cuMemAllocManaged(&at, bytes, 1) ? 0 : at;
}

API uint64_t fakecuda_pooled(uint64_t bytes) {
	uint64_t at;
	return cuMemAllocAsync(&at, bytes, NULL) || cuStreamSynchronize(NULL) ? 0 : at;
}

API int fakecuda_free(uint64_t address) { return cuMemFree_v2(address); }

API int fakecuda_unpin(uint64_t address) { return cuMemFreeHost((void *)address); }

/* A library on a thread of the program makes its context current around its calls, and leaves the mode of captures. */
static int visit(void *c, int *mode) {
	*mode = 2;
	return cuCtxPushCurrent_v2(c) || cuThreadExchangeStreamCaptureMode(mode);
}

static int leave(int *mode) {
	void *c;
	return cuThreadExchangeStreamCaptureMode(mode) || cuCtxPopCurrent_v2(&c);
}

/* The time of calls in C: a copy, an event behind it, and the question about it, over and over. With foreign the loop
 * does so as a library on a thread of the program. In ns; 0 on failure. */
API uint64_t fakecuda_loop(uint64_t to, uint64_t from, uint64_t bytes, uint64_t count, int foreign) {
	void *stream, *event, *c;
	struct timespec begin, end;
	int mode, result = fakecuda_enter(0);
	if (result || cuCtxGetCurrent(&c) || cuStreamCreate(&stream, 1) || cuEventCreate(&event, 2))
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
	if (cuMemAddressReserve(&address, (size_t)chunks * CHUNK, 0, 0, 0))
		return 0;
	for (int i = 0; i < chunks; i++) {
		void *handle;
		if (cuMemCreate(&handle, CHUNK, &p, 0))
			return 0;
		if (cuMemMap(address + (uint64_t)i * CHUNK, CHUNK, 0, handle, 0) || cuMemRelease(handle))
			return 0;
	}
	return cuMemSetAccess(address, (size_t)chunks * CHUNK, &access, 1) ? 0 : address;
}

API int fakecuda_free_chunks(uint64_t address, int chunks) {
	int result = cuMemUnmap(address, (size_t)chunks * CHUNK);
	return result ? result : cuMemAddressFree(address, (size_t)chunks * CHUNK);
}

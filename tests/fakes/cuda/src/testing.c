/* For tests alone: memory and streams as a framework in the same process makes them, and a brake for the streams. */
#include "fake.h"

#include <string.h>

extern int cuCtxPushCurrent_v2(struct context *), cuCtxPopCurrent_v2(struct context **);
extern int cuDevicePrimaryCtxRetain(struct context **, int), cuDevicePrimaryCtxRelease_v2(int);
extern int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
extern int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
extern int cuStreamCreate(struct stream **, unsigned), cuStreamDestroy_v2(struct stream *);
extern int cuMemCreate(struct physical **, size_t, const void *, uint64_t), cuMemRelease(struct physical *);
extern int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, uint64_t), cuMemAddressFree(uint64_t, size_t);
extern int cuMemMap(uint64_t, size_t, size_t, struct physical *, uint64_t), cuMemUnmap(uint64_t, size_t);
extern int cuMemSetAccess(uint64_t, size_t, const void *, size_t);

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
	((struct stream *)stream)->capturing = on;
	return OK;
}

API uint64_t fakecuda_pinned(uint64_t bytes) {
	void *p;
	return cuMemHostAlloc(&p, bytes, 1) ? 0 : (uint64_t)p;
}

API int fakecuda_unpin(uint64_t address) { return cuMemFreeHost((void *)address); }

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

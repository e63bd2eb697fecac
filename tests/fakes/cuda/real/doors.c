/* Doors of the emulated driver over a real one: programs of tests run over both. Built beside ../src/doors.c, and linked
 * with an empty libcuda.so.1, it names the machine's driver as its dependency. So dlsym finds the driver's calls
 * through it, and TENT_LIBCUDA can name it. It has no doors that hold work back, make calls fail, or count. */
#include "../src/doors.h"

#include <pthread.h>
#include <stddef.h>

extern int cuPointerGetAttribute(void *, int, uint64_t);
extern int cuDevicePrimaryCtxRetain(void **, int), cuCtxPushCurrent_v2(void *), cuCtxPopCurrent_v2(void **);
extern int cuThreadExchangeStreamCaptureMode(int *);
extern int cuStreamCreate(void **, unsigned), cuStreamSynchronize(void *);
extern int cuMemcpyAsync(uint64_t, uint64_t, size_t, void *);

enum { INVALID_VALUE = 1, DEVICES_MAX = 64, MEMORY_TYPE = 2, ORDINAL = 9, DEVICE_MEMORY = 2, RELAXED = 2 };

/* A context and a stream of each device, for peek alone. They are kept: an end of the last use would end the memory. */
static struct { void *context, *stream; } own[DEVICES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int prepare(int device) {
	void *popped;
	int result = 0;
	pthread_mutex_lock(&lock);
	if (!own[device].context)
		result = cuDevicePrimaryCtxRetain(&own[device].context, device);
	if (!result && !own[device].stream && !(result = cuCtxPushCurrent_v2(own[device].context))) {
		result = cuStreamCreate(&own[device].stream, 1);
		cuCtxPopCurrent_v2(&popped);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

static int copied(void *host, uint64_t address, uint64_t bytes, int store, int device) {
	void *popped, *stream = own[device].stream;
	int result = cuCtxPushCurrent_v2(own[device].context);
	if (result)
		return result;
	result = cuMemcpyAsync(store ? address : (uint64_t)host, store ? (uint64_t)host : address, bytes, stream);
	int end = cuStreamSynchronize(stream); /* also behind a call that failed: nothing lands later */
	cuCtxPopCurrent_v2(&popped);
	return result ? result : end;
}

/* Bytes of any memory of a device, on a stream that waits for no other; so work that is under way is not awaited. A
 * capture of the program does not forbid it. 0 on success. */
API int fakecuda_peek(void *host, uint64_t address, uint64_t bytes, int store) {
	unsigned kind = 0;
	int device = -1, mode = RELAXED;
	if (cuPointerGetAttribute(&kind, MEMORY_TYPE, address) || kind != DEVICE_MEMORY ||
	    cuPointerGetAttribute(&device, ORDINAL, address) || device < 0 || device >= DEVICES_MAX)
		return INVALID_VALUE;
	int result = cuThreadExchangeStreamCaptureMode(&mode);
	if (result)
		return result;
	if (!(result = prepare(device)))
		result = copied(host, address, bytes, store, device);
	cuThreadExchangeStreamCaptureMode(&mode);
	return result;
}

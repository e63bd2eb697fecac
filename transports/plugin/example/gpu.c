/*
 * GPUs of AMD, by libamdhip64; with -DTENT_CUDA those of NVIDIA, by libcudart. HIP has the calls of CUDA's runtime under
 * another name, so this is one path for both. The library is opened when tent creates the plug-in, and never linked:
 * TENT_LIBAMDHIP64 and TENT_LIBCUDART name another one. ROCm 6 or newer, since older ones number kinds of memory otherwise.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tent_device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TENT_CUDA
#define PREFIX "cuda"
#define KIND "cuda"
#define LIBRARY "libcudart.so.12"
#define VARIABLE "TENT_LIBCUDART"
#define CLASS "CUDA, by its runtime"
#define RANGE "cuMemGetAddressRange_v2" /* of the driver, which the runtime has opened */
#else
#define PREFIX "hip"
#define KIND "rocm"
#define LIBRARY "libamdhip64.so.6"
#define VARIABLE "TENT_LIBAMDHIP64"
#define CLASS "ROCm, by HIP"
#define RANGE "hipMemGetAddressRange"
#endif

enum { OF_DEVICE = 2, MANAGED = 3, FIND_OUT = 4 }; /* kinds of memory, and the copy that looks for them itself */
enum { NON_BLOCKING = 1, DEVICES_MAX = 64 };

typedef struct { int kind, device; char more[120]; } attributes; /* longer than those of any version */

static struct gpu {
	int (*GetDeviceCount)(int *);
	int (*GetDevice)(int *);
	int (*SetDevice)(int);
	int (*Malloc)(void **, size_t);
	int (*Free)(void *);
	int (*StreamCreateWithFlags)(void **, unsigned);
	int (*MemcpyAsync)(void *, const void *, size_t, int, void *);
	int (*StreamSynchronize)(void *);
	int (*DeviceGetPCIBusId)(char *, int, int);
	int (*PointerGetAttributes)(attributes *, const void *);
	int (*GetLastError)(void);
	int (*range)(uintptr_t *base, size_t *, uintptr_t);
} gpu;

/* symbol stores an address of a function where a pointer to one lies: ISO C has no cast for it. */
static int symbol(void *library, void *into, const char *name) {
	void *at = dlsym(library, name);
	memcpy(into, &at, sizeof at);
	return at != NULL;
}

static void *create(void) {
	const char *path = getenv(VARIABLE);
	void *library = dlopen(path && *path ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
	int found = library != NULL;
#define CALL(name) found = found && symbol(library, &gpu.name, PREFIX #name);
	CALL(GetDeviceCount) CALL(GetDevice) CALL(SetDevice) CALL(Malloc) CALL(Free)
	CALL(StreamCreateWithFlags) CALL(MemcpyAsync) CALL(StreamSynchronize) CALL(DeviceGetPCIBusId)
	CALL(PointerGetAttributes) CALL(GetLastError)
#undef CALL
	found = found && (symbol(library, &gpu.range, RANGE) || symbol(RTLD_DEFAULT, &gpu.range, RANGE));
	return found ? &gpu : NULL;
}

static int destroy(void *plugin) { return plugin != &gpu; }

/* failed forgets a call's error, which the runtime would give to the program's next look. */
static int failed(int r) {
	if (r) gpu.GetLastError();
	return r;
}

static int count(void *plugin) {
	int n = 0;
	(void)plugin;
	return failed(gpu.GetDeviceCount(&n)) ? 0 : n;
}

static int bus(void *plugin, int device, char *text, size_t n) {
	(void)plugin;
	return failed(gpu.DeviceGetPCIBusId(text, (int)n, device));
}

/* enter makes a device the thread's current one, and returns the one before it; -1 where it cannot. leave goes back.
 * SetDevice gives a device a context, which takes memory of it, so it is not called where it would change nothing. */
static int enter(int device) {
	int before = -1;
	if (failed(gpu.GetDevice(&before))) return -1;
	return before != device && failed(gpu.SetDevice(device)) ? -1 : before;
}

static void leave(int device, int before) {
	if (before != device) failed(gpu.SetDevice(before));
}

static int allocate(void *plugin, void **address, size_t n, const char *location) {
	int device = -1;
	(void)plugin;
	if (sscanf(location, KIND ":%d", &device) != 1) return -1;
	int before = enter(device);
	if (before < 0) return -1;
	int r = failed(gpu.Malloc(address, n));
	leave(device, before);
	return r;
}

static int release(void *plugin, void *address, size_t n) {
	(void)plugin, (void)n;
	return failed(gpu.Free(address));
}

/* device_of returns the device of an address, -1 for memory of the host. */
static int device_of(const void *address) {
	attributes a;
	memset(&a, 0, sizeof a);
	if (failed(gpu.PointerGetAttributes(&a, address)) || (a.kind != OF_DEVICE && a.kind != MANAGED)) return -1;
	return a.device;
}

/* stream returns that of a device which is current, NULL on a failure. It is made at its first use, and stays. */
static void *stream(int device) {
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static void *streams[DEVICES_MAX];
	pthread_mutex_lock(&mutex);
	if (!streams[device] && failed(gpu.StreamCreateWithFlags(&streams[device], NON_BLOCKING))) streams[device] = NULL;
	void *s = streams[device];
	pthread_mutex_unlock(&mutex);
	return s;
}

/* copy waits for a stream of its own. Memcpy would wait for streams of the program, and may return before the bytes
 * are on a device. */
static int copy(void *plugin, void *to, void *from, size_t n) {
	int device = device_of(to);
	(void)plugin;
	if (device < 0) device = device_of(from);
	if (device < 0) return memcpy(to, from, n), 0;
	int before = device < DEVICES_MAX ? enter(device) : -1;
	if (before < 0) return -1;
	void *s = stream(device);
	int r = !s || failed(gpu.MemcpyAsync(to, from, n, FIND_OUT, s)) || failed(gpu.StreamSynchronize(s));
	leave(device, before);
	return r;
}

/* locate walks over the allocations of a range from its start; memory of the host ends it. */
static int locate(void *plugin, void *address, size_t n, location_t *parts, size_t room) {
	uintptr_t at = (uintptr_t)address, end = at + n;
	size_t found = 0;
	(void)plugin;
	for (; at < end; found++) {
		uintptr_t base = 0;
		size_t bytes = 0;
		int device = device_of((void *)at);
		if (device < 0) break;
		if (found == room || failed(gpu.range(&base, &bytes, at)) || base + bytes <= at) return -1;
		uintptr_t stop = base + bytes < end ? base + bytes : end;
		parts[found].start = (void *)at, parts[found].length = stop - at;
		snprintf(parts[found].location, sizeof parts->location, KIND ":%d", device);
		at = stop;
	}
	return (int)found;
}

#ifdef __cplusplus
extern "C"
#endif
int tent_register_device_plugin(device_plugin_t *out) {
	static const device_plugin_t table = {CLASS, create, destroy, allocate, release, copy, locate, count, bus};
	*out = table;
	return 0;
}

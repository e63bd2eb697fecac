/*
 * libamdhip64 without hardware; with -DTENT_CUDA libcudart. Its memory cannot be touched by the processor. The current
 * device is a thread's own, and an error stays until GetLastError, as with the real ones.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define tent_register_device_plugin memory_of_the_host
#include "../example/memory.c"
#undef tent_register_device_plugin

#ifdef TENT_CUDA
#define NAME(name) cuda##name
#define RANGE cuMemGetAddressRange_v2
#else
#define NAME(name) hip##name
#define RANGE hipMemGetAddressRange
#endif

static __thread int current, last;

static int ended(int r) {
	if (r) last = r;
	return r;
}

int NAME(GetLastError)(void);
int NAME(GetDeviceCount)(int *n);
int NAME(GetDevice)(int *device);
int NAME(SetDevice)(int device);
int NAME(Malloc)(void **address, size_t n);
int NAME(Free)(void *address);
int NAME(Memcpy)(void *to, const void *from, size_t n, int kind);
int NAME(DeviceGetPCIBusId)(char *text, int n, int device);
int NAME(PointerGetAttributes)(int *attributes, const void *address);
int RANGE(uintptr_t *base, size_t *n, uintptr_t address);

int NAME(GetLastError)(void) {
	int r = last;
	last = 0;
	return r;
}
int NAME(GetDeviceCount)(int *n) { return *n = DEVICES, 0; }
int NAME(GetDevice)(int *device) { return *device = current, 0; }
int NAME(SetDevice)(int device) {
	if (device < 0 || device >= DEVICES) return ended(101);
	return current = device, 0;
}
int NAME(Malloc)(void **address, size_t n) {
	char location[16];
	snprintf(location, sizeof location, "tpu:%d", current);
	return ended(allocate(&mutex, address, n, location) ? 2 : 0);
}
int NAME(Free)(void *address) {
	pthread_mutex_lock(&mutex);
	block *b = of((char *)address);
	size_t n = b ? b->size : 0;
	pthread_mutex_unlock(&mutex);
	return ended(release(&mutex, address, n) ? 1 : 0);
}
int NAME(Memcpy)(void *to, const void *from, size_t n, int kind) {
	return ended(kind != 4 || copy(&mutex, to, (void *)from, n) ? 1 : 0);
}
int NAME(DeviceGetPCIBusId)(char *text, int n, int device) {
	return ended(bus(&mutex, device, text, (size_t)n) ? 101 : 0);
}
int NAME(PointerGetAttributes)(int *attributes, const void *address) {
	pthread_mutex_lock(&mutex);
	block *b = of((const char *)address);
	attributes[0] = b ? 2 : 0;
	attributes[1] = b ? b->device : -2;
	pthread_mutex_unlock(&mutex);
	return 0;
}
int RANGE(uintptr_t *base, size_t *n, uintptr_t address) {
	pthread_mutex_lock(&mutex);
	block *b = of((const char *)address);
	if (b) *base = (uintptr_t)b->address, *n = b->size;
	pthread_mutex_unlock(&mutex);
	return ended(b ? 0 : 1);
}

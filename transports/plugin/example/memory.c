/*
 * Memory of the host as a device, "tpu:0" and "tpu:1": for programs that are tried without an accelerator. Each
 * allocation is address space that the processor cannot touch, as a device's is; the bytes are in a file of memory, and
 * memcpy_sync reaches them there.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tent_device.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DEVICES = 2 };

typedef struct block {
	struct block *next;
	char *address, *bytes; /* as programs see it, and where its bytes are */
	size_t size;
	int device;
} block;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;

static void *create(void) { return &mutex; }
static int destroy(void *plugin) { return plugin != &mutex; }
static int count(void *plugin) { return plugin ? DEVICES : 0; }

static int bus(void *plugin, int device, char *text, size_t n) {
	if (!plugin || device < 0 || device >= DEVICES) return -1;
	return snprintf(text, n, "0000:%02x:00.0", 0xf0 + device) >= (int)n;
}

static int allocate(void *plugin, void **address, size_t n, const char *location) {
	block *b = (block *)calloc(1, sizeof *b);
	if (!plugin || !b || n == 0 || n > SIZE_MAX / 2 || sscanf(location, "tpu:%d", &b->device) != 1 ||
	    b->device < 0 || b->device >= DEVICES) {
		free(b);
		return -1;
	}
	b->size = n;
	b->address = (char *)mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	b->bytes = (char *)mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->address == MAP_FAILED || b->bytes == MAP_FAILED) {
		if (b->address != MAP_FAILED) munmap(b->address, n);
		free(b);
		return -1;
	}
	pthread_mutex_lock(&mutex);
	b->next = blocks, blocks = b;
	pthread_mutex_unlock(&mutex);
	*address = b->address;
	return 0;
}

static int release(void *plugin, void *address, size_t n) {
	int found = -1;
	(void)plugin;
	pthread_mutex_lock(&mutex);
	for (block **at = &blocks; *at; at = &(*at)->next)
		if ((*at)->address == address && (*at)->size == n) {
			block *b = *at;
			*at = b->next;
			munmap(b->address, n);
			munmap(b->bytes, n);
			free(b);
			found = 0;
			break;
		}
	pthread_mutex_unlock(&mutex);
	return found;
}

static block *of(const char *address) {
	block *b = blocks;
	while (b && (address < b->address || address >= b->address + b->size)) b = b->next;
	return b;
}

/* resolve returns the bytes of n bytes at an address, which is the host's or a device's; NULL beyond an allocation. */
static char *resolve(void *address, size_t n) {
	block *b = of((char *)address);
	if (!b) return (char *)address;
	size_t at = (size_t)((char *)address - b->address);
	return n <= b->size - at ? b->bytes + at : NULL;
}

static int copy(void *plugin, void *to, void *from, size_t n) {
	(void)plugin;
	pthread_mutex_lock(&mutex);
	char *t = resolve(to, n), *f = resolve(from, n);
	if (t && f) memcpy(t, f, n);
	pthread_mutex_unlock(&mutex);
	return t && f ? 0 : -1;
}

static int locate(void *plugin, void *address, size_t n, location_t *parts, size_t room) {
	char *from = (char *)address, *end = from + n;
	int found = 0;
	(void)plugin;
	pthread_mutex_lock(&mutex);
	for (block *b = blocks; b; b = b->next) {
		char *first = b->address > from ? b->address : from, *last = b->address + b->size;
		if (last > end) last = end;
		if (first >= last) continue;
		if ((size_t)found == room) {
			found = -1;
			break;
		}
		parts[found].start = first, parts[found].length = (size_t)(last - first);
		snprintf(parts[found++].location, sizeof parts->location, "tpu:%d", b->device);
	}
	pthread_mutex_unlock(&mutex);
	return found;
}

#ifdef __cplusplus
extern "C"
#endif
int tent_register_device_plugin(device_plugin_t *out) {
	static const device_plugin_t table = {"TPU, of memory of the host", create, destroy, allocate, release, copy, locate,
	                                      count, bus};
	*out = table;
	return 0;
}

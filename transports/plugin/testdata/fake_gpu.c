/*
 * libamdhip64 without hardware; with -DTENT_CUDA libcudart. Its memory cannot be touched by the processor, and is not
 * zeroed. The current device is a thread's own, an error stays until GetLastError, and a copy in a stream is done when
 * somebody has waited for the stream, as with the real ones. It has no Memcpy: that may return before bytes are on a
 * device (CUDA runtime API, API synchronization behavior), and waits for streams of the program.
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
int NAME(StreamCreateWithFlags)(void **stream, unsigned flags);
int NAME(MemcpyAsync)(void *to, const void *from, size_t n, int kind, void *stream);
int NAME(StreamSynchronize)(void *stream);
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
	if (allocate(&mutex, address, n, location)) return ended(2);
	memset(of((char *)*address)->bytes, 0xc3, n);
	return 0;
}
int NAME(Free)(void *address) {
	pthread_mutex_lock(&mutex);
	block *b = of((char *)address);
	size_t n = b ? b->size : 0;
	pthread_mutex_unlock(&mutex);
	return ended(release(&mutex, address, n) ? 1 : 0);
}

/* A stream, and the copies in it that nobody has waited for. */
typedef struct queued {
	struct queued *next;
	void *to, *from;
	size_t n;
} queued;
typedef struct {
	pthread_mutex_t mutex;
	queued *first, **last;
} stream;

int NAME(StreamCreateWithFlags)(void **into, unsigned flags) {
	if (flags != 1) return ended(1);
	stream *s = (stream *)calloc(1, sizeof *s);
	pthread_mutex_init(&s->mutex, NULL);
	s->last = &s->first;
	return *into = s, 0;
}
int NAME(MemcpyAsync)(void *to, const void *from, size_t n, int kind, void *in) {
	stream *s = (stream *)in;
	queued *q = (queued *)calloc(1, sizeof *q);
	if (!s || kind != 4) return free(q), ended(1); /* the default stream is the program's */
	q->to = to, q->from = (void *)from, q->n = n;
	pthread_mutex_lock(&s->mutex);
	*s->last = q, s->last = &q->next;
	pthread_mutex_unlock(&s->mutex);
	return 0;
}
int NAME(StreamSynchronize)(void *in) {
	stream *s = (stream *)in;
	int bad = s == NULL;
	if (bad) return ended(1);
	pthread_mutex_lock(&s->mutex);
	for (queued *q = s->first, *next; q; q = next) {
		next = q->next;
		bad |= copy(&mutex, q->to, q->from, q->n) != 0;
		free(q);
	}
	s->first = NULL, s->last = &s->first;
	pthread_mutex_unlock(&s->mutex);
	return ended(bad);
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

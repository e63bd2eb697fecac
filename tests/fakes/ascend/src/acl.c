/* An emulated libascendcl.so for tests: no NPU, no CANN. ../doc.go has its rules and their sources.
 *
 * One mutex guards all tables. Bytes of a device lie in a memfd with two mappings: the program sees address space that
 * no processor can touch (PROT_NONE), and the copies of the library read and write the shadow. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define DEVICES_MAX 8
#define PAGE (2UL << 20) /* of addresses of devices */

/* Results, by the vendor's numbers. */
enum {
	OK = 0, INVALID_PARAM = 100000, UNINITIALIZED = 100001, REPEATED = 100002, INVALID_PARAM_RT = 107000,
	INVALID_DEVICE = 107001, CONTEXT_NULL = 107002, OUT_OF_MEMORY = 207001
};

enum { HOST = 0, DEVICE = 1, UNREGISTERED = 2 };

struct range {
	uint64_t start, size;
	int kind, device;
	char *shadow; /* of memory of a device */
	struct range *next;
};

struct context {
	int device;
};

static struct stats {
	int64_t allocations, pinned, copies, calls;
} stats;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static struct context contexts[DEVICES_MAX];
static int devices, started, child;
static __thread struct context *current;
static __thread char report[128]; /* of the latest failure of the thread */

static struct {
	char function[64];
	long nth;
	int result;
} faults[16];

static long setting(const char *name, long otherwise) {
	char key[64];
	snprintf(key, sizeof key, "TENT_FAKEACL_%s", name);
	const char *text = getenv(key);
	return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static void in_child(void) { child = 1; }

static int leave(int result) {
	pthread_mutex_unlock(&lock);
	return result;
}

static int refuse(int result, const char *why) {
	snprintf(report, sizeof report, "%s", why);
	return leave(result);
}

/* Takes the lock; on an error it is not held. */
static int enter(const char *function) {
	pthread_mutex_lock(&lock);
	stats.calls++;
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		if (faults[i].nth && !strcmp(faults[i].function, function) && --faults[i].nth == 0)
			return refuse(faults[i].result, "a failure of the test");
	return started && !child ? OK : refuse(UNINITIALIZED, "aclInit was not called in this process");
}

static int enter_context(const char *function) {
	int result = enter(function);
	if (!result && !current)
		return refuse(CONTEXT_NULL, "the thread has no context");
	return result;
}

API int aclInit(const char *config) {
	pthread_mutex_lock(&lock);
	if (config || child)
		return refuse(INVALID_PARAM, "no configuration is emulated");
	if (started)
		return refuse(REPEATED, "it was initialised before");
	devices = (int)setting("DEVICES", 2);
	devices = devices > DEVICES_MAX ? DEVICES_MAX : devices;
	for (int i = 0; i < devices; i++)
		contexts[i].device = i;
	started = !pthread_atfork(NULL, NULL, in_child);
	return leave(OK);
}

API const char *aclGetRecentErrMsg(void) { return *report ? report : NULL; }
API const char *aclrtGetSocName(void) { return "Emulated910"; }

API int aclrtGetDeviceCount(uint32_t *count) {
	int result = enter("aclrtGetDeviceCount");
	if (result)
		return result;
	*count = (uint32_t)devices;
	return leave(OK);
}

API int aclrtSetDevice(int device) {
	int result = enter("aclrtSetDevice");
	if (result)
		return result;
	if (device < 0 || device >= devices)
		return refuse(INVALID_DEVICE, "there is no such device");
	current = &contexts[device];
	return leave(OK);
}

API int aclrtGetDevice(int *device) {
	int result = enter_context("aclrtGetDevice");
	if (result)
		return result;
	*device = current->device;
	return leave(OK);
}

API int aclrtGetCurrentContext(struct context **context) {
	int result = enter_context("aclrtGetCurrentContext");
	if (result)
		return result;
	*context = current;
	return leave(OK);
}

API int aclrtSetCurrentContext(struct context *context) { /* no call takes a thread's context away */
	int result = enter("aclrtSetCurrentContext");
	if (result)
		return result;
	if (!context)
		return refuse(INVALID_PARAM, "the context is NULL");
	current = context;
	return leave(OK);
}

API int aclrtDeviceGetPCIBusId(int device, char *text, size_t length) {
	int result = enter("aclrtDeviceGetPCIBusId");
	if (result)
		return result;
	if (device < 0 || device >= devices)
		return refuse(INVALID_DEVICE, "there is no such device");
	snprintf(text, length, "FACE:%02X:00.0", device + 0x5a);
	return leave(OK);
}

static uint64_t rounded(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

static struct range *find(uint64_t address) {
	for (struct range *r = ranges; r; r = r->next)
		if (address >= r->start && address < r->start + r->size)
			return r;
	return NULL;
}

static struct range *add(uint64_t start, uint64_t size, int kind) {
	struct range *r = calloc(1, sizeof *r);
	*r = (struct range){start, size, kind, current->device, NULL, ranges};
	ranges = r;
	return r;
}

static int take(uint64_t start, int kind, uint64_t *size) {
	for (struct range **at = &ranges; *at; at = &(*at)->next)
		if ((*at)->start == start && (*at)->kind == kind) {
			struct range *r = *at;
			*at = r->next;
			*size = r->size;
			if (r->shadow)
				munmap(r->shadow, rounded(r->size, PAGE));
			free(r);
			return 1;
		}
	return 0;
}

/* Memory of a device is not zeroed. */
API int aclrtMalloc(void **address, size_t size, int policy) {
	int result = enter_context("aclrtMalloc");
	if (result)
		return result;
	if (!size || policy < 0 || policy > 8)
		return refuse(INVALID_PARAM, "no bytes, or no such policy");
	if (size > (size_t)setting("BYTES", 1L << 32))
		return refuse(OUT_OF_MEMORY, "the device has less memory");
	uint64_t whole = rounded(size, PAGE);
	char *space = mmap(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int fd = memfd_create("fakeacl", MFD_CLOEXEC);
	char *shadow = MAP_FAILED;
	if (fd >= 0 && !ftruncate(fd, (off_t)whole))
		shadow = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (space == MAP_FAILED || shadow == MAP_FAILED)
		return refuse(OUT_OF_MEMORY, "the host has no memory for it");
	uint64_t start = rounded((uint64_t)space, PAGE);
	if (start > (uint64_t)space)
		munmap(space, start - (uint64_t)space);
	munmap((void *)(start + whole), (uint64_t)space + PAGE - start);
	memset(shadow, 0xc3, size);
	add(start, size, DEVICE)->shadow = shadow;
	stats.allocations++;
	*address = (void *)start;
	return leave(OK);
}

API int aclrtFree(void *address) {
	uint64_t size;
	int result = enter_context("aclrtFree");
	if (result)
		return result;
	if (!take((uint64_t)address, DEVICE, &size))
		return refuse(INVALID_PARAM_RT, "no allocation begins there");
	munmap(address, rounded(size, PAGE));
	stats.allocations--;
	return leave(OK);
}

API int aclrtMallocHost(void **address, size_t size) {
	int result = enter_context("aclrtMallocHost");
	if (result)
		return result;
	void *at = mmap(NULL, rounded(size, 4096), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return refuse(OUT_OF_MEMORY, "the host has no memory for it");
	add((uint64_t)at, size, HOST);
	stats.pinned++;
	*address = at;
	return leave(OK);
}

API int aclrtFreeHost(void *address) {
	uint64_t size;
	int result = enter_context("aclrtFreeHost");
	if (result)
		return result;
	if (!take((uint64_t)address, HOST, &size))
		return refuse(INVALID_PARAM_RT, "no pinned memory begins there");
	munmap(address, rounded(size, 4096));
	stats.pinned--;
	return leave(OK);
}

/* The bytes behind an address, NULL where a range leaves its allocation. device: -1 for memory of the host. */
static char *reach(uint64_t address, uint64_t bytes, int *device) {
	struct range *r = find(address);
	*device = -1;
	if (!r || r->kind == HOST)
		return (char *)address;
	if (bytes > r->start + r->size - address)
		return NULL;
	*device = r->device;
	return r->shadow + (address - r->start);
}

/* The kind has to be as the memories are: HOST_TO_HOST 0, HOST_TO_DEVICE 1, DEVICE_TO_HOST 2, DEVICE_TO_DEVICE 3. */
API int aclrtMemcpy(void *to, size_t most, const void *from, size_t bytes, int kind) {
	int result = enter_context("aclrtMemcpy"), into, outof;
	if (result)
		return result;
	char *a = reach((uint64_t)to, bytes, &into), *b = reach((uint64_t)from, bytes, &outof);
	if (!a || !b || bytes > most)
		return refuse(INVALID_PARAM_RT, "the range leaves its allocation");
	if (kind != (into >= 0 ? 1 : 0) + (outof >= 0 ? 2 : 0))
		return refuse(INVALID_PARAM_RT, "the kind of the copy is not that of the memories");
	if (into >= 0 && outof >= 0 && into != outof)
		return refuse(INVALID_PARAM_RT, "peer access between the devices is not enabled");
	memcpy(a, b, bytes);
	stats.copies++;
	return leave(OK);
}

API int aclrtMemset(void *address, size_t most, int value, size_t bytes) {
	int result = enter_context("aclrtMemset"), device;
	if (result)
		return result;
	char *at = reach((uint64_t)address, bytes, &device);
	if (!at || bytes > most)
		return refuse(INVALID_PARAM_RT, "the range leaves its allocation");
	memset(at, value, bytes);
	return leave(OK);
}

API int aclrtPointerGetAttributes(const void *address, void *into) {
	int result = enter_context("aclrtPointerGetAttributes");
	if (result)
		return result;
	struct range *r = find((uint64_t)address);
	uint32_t words[7] = {r ? (uint32_t)r->device : 0, r ? (uint32_t)r->kind : UNREGISTERED, r ? (uint32_t)PAGE : 0};
	memcpy(into, words, sizeof words);
	return leave(OK);
}

API int aclrtMemGetAddressRange(const void *address, void **base, size_t *size) {
	int result = enter_context("aclrtMemGetAddressRange");
	if (result)
		return result;
	struct range *r = find((uint64_t)address);
	if (!r || r->kind != DEVICE)
		return refuse(INVALID_PARAM_RT, "no memory of a device");
	*base = (void *)r->start;
	*size = r->size;
	return leave(OK);
}

/* For tests, and for the emulated HIXL beside. The nth call of a function from now on gives an error. */
API void fakeacl_inject(const char *function, long nth, int result) {
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		if (!faults[i].nth) {
			snprintf(faults[i].function, sizeof faults[i].function, "%s", function);
			faults[i].nth = nth, faults[i].result = result;
			break;
		}
	pthread_mutex_unlock(&lock);
}

API void fakeacl_stats(struct stats *into) {
	pthread_mutex_lock(&lock);
	*into = stats;
	pthread_mutex_unlock(&lock);
}

/* Makes a device current on this thread, as torch_npu does. */
API int fakeacl_enter(int device) {
	int result = aclInit(NULL);
	return result && result != REPEATED ? result : aclrtSetDevice(device);
}

/* The device of this thread, -1 without a context. */
API int fakeacl_current(void) { return current ? current->device : -1; }

/* Copies bytes out of whatever memory, or into it, without a context: as a device's own engines do. 0 on success. */
API int fakeacl_peek(void *into, uint64_t address, uint64_t bytes, int store) {
	int device;
	pthread_mutex_lock(&lock);
	char *at = reach(address, bytes, &device);
	if (at)
		memcpy(store ? at : into, store ? into : at, bytes);
	return leave(at ? OK : INVALID_PARAM_RT);
}

/* 0 for memory of a device, 1 for pinned memory of the host, as HIXL counts them; -1 for all else. */
API int fakeacl_kind(uint64_t address, uint64_t bytes, int *device) {
	pthread_mutex_lock(&lock);
	struct range *r = find(address);
	int kind = !r || bytes > r->start + r->size - address ? -1 : r->kind == DEVICE ? 0 : 1;
	*device = kind < 0 ? -1 : r->device;
	return leave(kind);
}

/* The address under which the process itself reaches bytes. */
API uint64_t fakeacl_bytes(uint64_t address) {
	int device;
	pthread_mutex_lock(&lock);
	uint64_t at = (uint64_t)reach(address, 1, &device);
	leave(OK);
	return at;
}

API uint64_t fakeacl_pinned(uint64_t bytes) {
	void *at = NULL;
	struct context *own = current;
	current = &contexts[0];
	int result = aclrtMallocHost(&at, bytes);
	current = own;
	return result ? 0 : (uint64_t)at;
}

API int fakeacl_unpin(uint64_t at) {
	struct context *own = current;
	current = &contexts[0];
	int result = aclrtFreeHost((void *)at);
	current = own;
	return result;
}

/* Each function makes the context that it needs current, works, and restores the thread's own: one crossing from Go, on
 * whatever thread. shim.h has the contract. */
#define _GNU_SOURCE
#include "inside.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TA_DECLARE(name, arguments) int(*name) arguments;
static struct {
	TA_SYMBOLS(TA_DECLARE, TA_DECLARE)
	const char *(*product)(void);
	const char *(*report)(void);
} acl;

static int child; /* this process was forked from the one that loaded the library */

#define DEVICES_MAX 128
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ta_context contexts[DEVICES_MAX];

static void in_child(void) { child = 1; }

/* The library's report of a failure; it belongs to the thread and ends with the next call. */
static ta_result ended(int code, const char *call) {
	ta_result r = {code, call, ""};
	const char *text = code > 0 && code != TA_NO_CONTEXT && acl.report ? acl.report() : NULL;
	if (text)
		snprintf(r.text, sizeof r.text, "%s", text);
	return r;
}
#define CALL(name, ...) ended(acl.name(__VA_ARGS__), #name)

static ta_result fine(void) { return (ta_result){TA_OK, "", ""}; }

/* The library of the toolkit whose script was sourced, or of the one that is named. */
static void *opened(char *why, size_t bytes) {
	const char *path = secure_getenv("TENT_LIBASCENDCL"), *home = secure_getenv("ASCEND_HOME_PATH");
	void *library = dlopen(path && *path ? path : "libascendcl.so", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		snprintf(why, bytes, "%s", dlerror());
	if (!library && !(path && *path) && home && *home) {
		char full[4096];
		snprintf(full, sizeof full, "%s/lib64/libascendcl.so", home);
		if (!(library = dlopen(full, RTLD_NOW | RTLD_LOCAL)))
			snprintf(why, bytes, "%s", dlerror());
	}
	return library;
}

int ta_load(char *why, size_t bytes) {
	void *library = opened(why, bytes);
	if (!library)
		return -1;
	size_t used = 0;
#define WANT(name, arguments)                                                                                \
	if (!(acl.name = (int(*) arguments)dlsym(library, #name)) && used + sizeof #name + 1 < bytes)        \
		used += (size_t)snprintf(why + used, bytes - used, "%s%s", used ? " " : "", #name);
#define FIND(name, arguments) acl.name = (int(*) arguments)dlsym(library, #name);
	TA_SYMBOLS(WANT, FIND)
	acl.product = (const char *(*)(void))dlsym(library, "aclrtGetSocName");
	acl.report = (const char *(*)(void))dlsym(library, "aclGetRecentErrMsg");
	if (pthread_atfork(NULL, NULL, in_child))
		return snprintf(why, bytes, "pthread_atfork: no memory"), -1;
	return used ? -2 : 0; /* the library stays: it cannot be unloaded */
}

/* A framework may have initialised the library, or may do so later: a second time is no failure. */
ta_result ta_init(uint32_t *count) {
	if (child)
		return ended(TA_FORKED, "aclInit");
	ta_result r = CALL(aclInit, NULL);
	if (!r.code || r.code == TA_REPEATED)
		r = CALL(aclrtGetDeviceCount, count);
	if (*count > DEVICES_MAX)
		*count = DEVICES_MAX;
	return r;
}

/* The context that aclrtSetDevice makes current. It runs on threads of ours, or on one whose context is restored. */
static ta_result context_of(int device, ta_context *context) {
	if ((*context = __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE)))
		return fine();
	pthread_mutex_lock(&lock);
	ta_result r = fine();
	if (!contexts[device]) {
		ta_context made = NULL;
		r = CALL(aclrtSetDevice, device);
		if (!r.code)
			r = CALL(aclrtGetCurrentContext, &made);
		__atomic_store_n(&contexts[device], r.code ? NULL : made, __ATOMIC_RELEASE);
	}
	*context = contexts[device];
	pthread_mutex_unlock(&lock);
	return r;
}

static ta_result enter(int device) {
	ta_context context;
	ta_result r = context_of(device, &context);
	return r.code ? r : CALL(aclrtSetCurrentContext, context);
}

/* Carries work out with a device's context. */
static ta_result within(ta_result (*run)(ta_work *), ta_work *w) {
	ta_context own = NULL;
	if (child)
		return ended(TA_FORKED, "aclrtSetCurrentContext");
	if (acl.aclrtGetCurrentContext(&own) || !own)
		return ta_elsewhere(run, w);
	ta_result r = run(w);
	acl.aclrtSetCurrentContext(own);
	return r;
}

ta_result ta_adopt(int device) { return child ? ended(TA_FORKED, "aclrtSetCurrentContext") : enter(device); }

int ta_current(void) {
	int device = -1;
	return child || acl.aclrtGetDevice(&device) ? -1 : device;
}

const char *ta_product(void) {
	const char *text = acl.product && !child ? acl.product() : NULL;
	return text ? text : "";
}

ta_result ta_describe(int device, char *pci, size_t bytes) {
	*pci = 0;
	if (child)
		return ended(TA_FORKED, "aclrtDeviceGetPCIBusId");
	return acl.aclrtDeviceGetPCIBusId ? CALL(aclrtDeviceGetPCIBusId, device, pci, bytes) : fine();
}

/* A device that has a context of ours already, or the first: a context costs memory of its device. */
static int anyone(void) {
	for (int i = 0; i < DEVICES_MAX; i++)
		if (__atomic_load_n(&contexts[i], __ATOMIC_ACQUIRE))
			return i;
	return 0;
}

/* What is behind an address. The thread's context is as good as any other; without one the library may need some. */
static ta_result attributes(uint64_t address, ta_place *place) {
	ta_attributes found = {{0, TA_UNREGISTERED}, 0, {0}};
	ta_result r = CALL(aclrtPointerGetAttributes, (void *)address, &found);
	if (r.code == TA_NO_CONTEXT && !(r = enter(anyone())).code)
		r = CALL(aclrtPointerGetAttributes, (void *)address, &found);
	place->type = found.location.type;
	place->device = place->type == TA_DEVICE || place->type == TA_MANAGED ? (int)found.location.id : -1;
	return r;
}

static ta_result locate(ta_work *w) {
	ta_place *place = w->place;
	ta_result r = attributes(w->from, place);
	if (r.code || place->device < 0 || !acl.aclrtMemGetAddressRange)
		return r;
	void *base = NULL;
	size_t bytes = 0;
	if (!acl.aclrtMemGetAddressRange((void *)w->from, &base, &bytes)) /* some memory has none */
		place->base = (uint64_t)base, place->bytes = bytes;
	return r;
}

ta_result ta_locate(uint64_t address, ta_place *place) {
	memset(place, 0, sizeof *place);
	ta_work w = {.from = address, .place = place};
	return within(locate, &w);
}

/* Copies of blocks of zeroes, for libraries that cannot fill. */
static ta_result clear(uint64_t address, uint64_t bytes) {
	if (acl.aclrtMemset)
		return CALL(aclrtMemset, (void *)address, bytes, 0, bytes);
	enum { BLOCK = 1 << 20 };
	void *zeroes = calloc(1, BLOCK);
	ta_result r = fine();
	for (uint64_t at = 0; zeroes && at < bytes && !r.code; at += BLOCK) {
		uint64_t some = bytes - at < BLOCK ? bytes - at : BLOCK;
		r = CALL(aclrtMemcpy, (void *)(address + at), some, zeroes, some, 1);
	}
	free(zeroes);
	return zeroes ? r : ended(TA_NO_THREAD, "calloc");
}

/* Huge pages alone can cross HCCS (ACL_MEM_MALLOC_HUGE_ONLY is 1). */
static ta_result allocate(ta_work *w) {
	void *at = NULL;
	ta_result r = enter(w->device);
	if (!r.code)
		r = CALL(aclrtMalloc, &at, w->bytes, 1);
	if (r.code)
		return r;
	*w->address = (uint64_t)at;
	r = clear((uint64_t)at, w->bytes);
	if (r.code)
		acl.aclrtFree(at);
	return r;
}

ta_result ta_allocate(int device, uint64_t bytes, uint64_t *address) {
	ta_work w = {.device = device, .bytes = bytes, .address = address};
	return within(allocate, &w);
}

static ta_result release(ta_work *w) {
	ta_result r = enter(w->device);
	return r.code ? r : CALL(aclrtFree, (void *)w->to);
}

ta_result ta_free(int device, uint64_t address) {
	ta_work w = {.device = device, .to = address};
	return within(release, &w);
}

/* The kinds are ACL_MEMCPY_HOST_TO_DEVICE 1, DEVICE_TO_HOST 2, DEVICE_TO_DEVICE 3. The library copies between devices
 * where somebody has enabled that, and only there. */
static ta_result copy(ta_work *w) {
	ta_place to, from;
	ta_result r = attributes(w->to, &to);
	if (!r.code)
		r = attributes(w->from, &from);
	if (r.code)
		return r;
	w->device = to.device >= 0 ? to.device : from.device;
	if (w->device < 0)
		return ended(TA_HOSTS, "aclrtMemcpy");
	if (to.device >= 0 && from.device >= 0 && to.device != from.device)
		return ended(TA_DEVICES, "aclrtMemcpy");
	int kind = (to.device >= 0 ? 1 : 0) + (from.device >= 0 ? 2 : 0);
	r = enter(w->device);
	return r.code ? r : CALL(aclrtMemcpy, (void *)w->to, w->bytes, (void *)w->from, w->bytes, kind);
}

ta_result ta_copy(uint64_t to, uint64_t from, uint64_t bytes, int *device) {
	ta_work w = {.device = -1, .to = to, .from = from, .bytes = bytes};
	ta_result r = within(copy, &w);
	*device = w.device;
	return r;
}

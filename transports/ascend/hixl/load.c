/* Opens the vendor's libraries and the shim over them, and passes calls on. */
#define _GNU_SOURCE
#include "load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define SYMBOLS(X)                                                                                           \
	X(const char *, report, (void))                                                                      \
	X(uint32_t, create, (const char *, const char *const *, tent_ascend **))                             \
	X(void, destroy, (tent_ascend *))                                                                    \
	X(uint32_t, register, (tent_ascend *, uint64_t, uint64_t, int, uint64_t *))                          \
	X(uint32_t, deregister, (tent_ascend *, uint64_t))                                                   \
	X(uint32_t, connect, (tent_ascend *, const char *, int32_t))                                         \
	X(uint32_t, disconnect, (tent_ascend *, const char *, int32_t))                                      \
	X(uint32_t, transfer, (tent_ascend *, const char *, int, const tent_ascend_range *, size_t, uint64_t *)) \
	X(void, status, (tent_ascend *, tent_ascend_ask *, size_t))

#define DECLARE(type, name, arguments) type(*name##_) arguments;
static struct { SYMBOLS(DECLARE) } shim;

/* A library by its variable in the environment of C, or by its name. Programs with more rights than their user ignore
 * the variable. */
static void *opened(const char *variable, const char *name, int mode, char *why, size_t bytes) {
	const char *path = secure_getenv(variable);
	void *library = dlopen(path && *path ? path : name, RTLD_NOW | mode);
	if (!library)
		snprintf(why, bytes, "%s", dlerror());
	return library;
}

/* The shim finds the symbols of HIXL in the libraries that are open globally: the order counts. All of them stay. */
int load_hixl(char *why, size_t bytes) {
	if (!opened("TENT_LIBMETADEF", "libmetadef.so", RTLD_GLOBAL, why, bytes) ||
	    !opened("TENT_LIBHIXL", "libcann_hixl.so", RTLD_GLOBAL, why, bytes))
		return -1;
	void *library = opened("TENT_LIBASCEND", "libtent_ascend.so", RTLD_LOCAL, why, bytes);
	if (!library)
		return -1;
	int (*abi)(void) = (int (*)(void))dlsym(library, "tent_ascend_abi");
	if (!abi || abi() != TENT_ASCEND_ABI)
		return snprintf(why, bytes, "libtent_ascend.so is of interface %d, and this is %d: compile it again",
		                abi ? abi() : 0, TENT_ASCEND_ABI),
		       -1;
#define FIND(type, name, arguments)                                                                          \
	if (!(shim.name##_ = (type(*) arguments)dlsym(library, "tent_ascend_" #name)))                       \
		return snprintf(why, bytes, "libtent_ascend.so lacks tent_ascend_" #name), -1;
	SYMBOLS(FIND)
	return 0;
}

#define ENGINE ((tent_ascend *)engine)

const char *hixl_report(void) { return shim.report_(); }

uint32_t hixl_create(const char *local, const char *const *options, uint64_t *engine) {
	tent_ascend *made = NULL;
	uint32_t code = shim.create_(local, options, &made);
	*engine = (uint64_t)made;
	return code;
}

void hixl_destroy(uint64_t engine) { shim.destroy_(ENGINE); }

uint32_t hixl_register(uint64_t engine, uint64_t address, uint64_t bytes, int host, uint64_t *handle) {
	return shim.register_(ENGINE, address, bytes, host, handle);
}

uint32_t hixl_deregister(uint64_t engine, uint64_t handle) { return shim.deregister_(ENGINE, handle); }

uint32_t hixl_connect(uint64_t engine, const char *peer, int32_t milliseconds) {
	return shim.connect_(ENGINE, peer, milliseconds);
}

uint32_t hixl_disconnect(uint64_t engine, const char *peer, int32_t milliseconds) {
	return shim.disconnect_(ENGINE, peer, milliseconds);
}

uint32_t hixl_transfer(uint64_t engine, const char *peer, int write, const void *ranges, size_t count,
                       uint64_t *request) {
	return shim.transfer_(ENGINE, peer, write, ranges, count, request);
}

void hixl_status(uint64_t engine, void *list, size_t count) { shim.status_(ENGINE, list, count); }

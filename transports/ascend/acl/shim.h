/* The part of the ACL runtime that tent calls, in declarations of our own: no header of the vendor is needed. Layouts
 * are those of CANN 8.1 to 9.1, on x86-64 and aarch64. */
#ifndef TENT_ACL_SHIM_H
#define TENT_ACL_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef void *ta_context;

/* aclrtMemLocation and aclrtPtrAttributes: the number of the device comes before the kind of the place. */
typedef struct {
	uint32_t id;
	int type;
} ta_location;
_Static_assert(sizeof(ta_location) == 8 && offsetof(ta_location, type) == 4, "aclrtMemLocation");
typedef struct {
	ta_location location;
	uint32_t page, reserved[4];
} ta_attributes;
_Static_assert(sizeof(ta_attributes) == 28 && offsetof(ta_attributes, reserved) == 12, "aclrtPtrAttributes");

_Static_assert(sizeof(int) == 4 && sizeof(size_t) == 8 && sizeof(void *) == 8, "an LP64 system: Linux, 64 bits");

/* X(kind, name, arguments): every function returns an aclError, an int. Without a NEEDED one the library is no use. */
#define TA_SYMBOLS(NEEDED, OPTIONAL)                                                                         \
	NEEDED(aclInit, (const char *config))                                                                \
	NEEDED(aclrtGetDeviceCount, (uint32_t *count))                                                       \
	NEEDED(aclrtSetDevice, (int device))                                                                 \
	NEEDED(aclrtGetDevice, (int *device))                                                                \
	NEEDED(aclrtGetCurrentContext, (ta_context * context))                                               \
	NEEDED(aclrtSetCurrentContext, (ta_context context))                                                 \
	NEEDED(aclrtMalloc, (void **address, size_t bytes, int policy))                                      \
	NEEDED(aclrtFree, (void *address))                                                                   \
	NEEDED(aclrtMemcpy, (void *to, size_t most, const void *from, size_t bytes, int kind))               \
	NEEDED(aclrtPointerGetAttributes, (const void *address, ta_attributes *into))                        \
	OPTIONAL(aclrtMemset, (void *address, size_t most, int value, size_t bytes))                         \
	OPTIONAL(aclrtMemGetAddressRange, (const void *address, void **base, size_t *bytes))                 \
	OPTIONAL(aclrtDeviceGetPCIBusId, (int device, char *text, size_t bytes))

/* Results of the library that the shim knows by itself. */
enum { TA_OK = 0, TA_REPEATED = 100002, TA_NO_CONTEXT = 107002 };

/* Kinds of a place. */
enum { TA_HOST = 0, TA_DEVICE = 1, TA_UNREGISTERED = 2, TA_MANAGED = 3 };

/* Of our own: no aclError is negative. */
enum { TA_FORKED = -1, TA_NO_THREAD = -2, TA_HOSTS = -3, TA_DEVICES = -4 };

/* The end of a call: the code, and the function of the library that returned it. The text is its own report of the
 * latest failure on the thread that worked. */
typedef struct {
	int code;
	const char *call;
	char text[160];
} ta_result;

/* Where an address is; device is -1 for memory of the host. base and bytes are 0 where the library does not tell the
 * allocation. */
typedef struct {
	int type, device;
	uint64_t base, bytes;
} ta_place;

/* All may be called from any thread, and leave its current context as it was. */
int ta_load(char *why, size_t bytes); /* once a process; 0, -1 and the reason, or -2 and the missing symbols */
ta_result ta_init(uint32_t *count);
ta_result ta_describe(int device, char *pci, size_t bytes);
const char *ta_product(void); /* of all devices, "" where the library does not tell */
int ta_current(void); /* the device of the calling thread, -1 if it has none */
ta_result ta_locate(uint64_t address, ta_place *place);
ta_result ta_allocate(int device, uint64_t bytes, uint64_t *address);
ta_result ta_free(int device, uint64_t address);
/* The copy is that of *device. TA_HOSTS, TA_DEVICES: none was made, for both ends are the host's, or of two devices. */
ta_result ta_copy(uint64_t to, uint64_t from, uint64_t bytes, int *device);
ta_result ta_adopt(int device); /* makes its context current on the calling thread, for good */

#endif

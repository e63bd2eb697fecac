/*
 * A kind of devices for tent as a shared library: it finds the device of an address, gives memory and copies it. The
 * layout is that of Mooncake's device plug-ins, which tent loads as they are. docs/design/transport-in-c.md says how.
 *
 * A plug-in exports tent_register_device_plugin(), which fills the table and returns 0. Calls come from any thread and
 * may block; each leaves the calling thread's current device as it was. Functions return 0, or another number when they
 * fail, where nothing else is said.
 */
#ifndef TENT_DEVICE_H
#define TENT_DEVICE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENT_DEVICE_ABI_VERSION 1
#define TENT_LOCATIONS_MAX 64 /* parts that one query_location may return */

/* A part of a range, and the device that has it: "rocm:1", with a 0 byte at its end. */
typedef struct {
	void *start;
	size_t length;
	char location[32];
} location_t;

typedef struct {
	const char *class_name; /* begins with the kind of memory: cuda, rocm, npu or tpu, in any case */
	void *(*create_plugin)(void); /* NULL: it cannot work here */
	int (*destroy_plugin)(void *plugin);
	int (*alloc)(void *plugin, void **address, size_t bytes, const char *location);
	int (*free)(void *plugin, void *address, size_t bytes);
	/* Between the host and devices of the plug-in. It waits for no stream of the program, and returns when the bytes are
	 * there. */
	int (*memcpy_sync)(void *plugin, void *to, void *from, size_t bytes);
	/* Parts of a range that are of its devices: their number, 0 for none, below 0 when it cannot say. */
	int (*query_location)(void *plugin, void *address, size_t bytes, location_t *parts, size_t room);
	int (*get_device_count)(void *plugin);
	int (*get_device_pci_bus_id)(void *plugin, int device, char *text, size_t bytes); /* "0000:3b:00.0" */
} device_plugin_t;

/* Exported as "tent_register_device_plugin". */
typedef int (*tent_register_device_plugin_fn)(device_plugin_t *);
/* May be exported as "tent_device_plugin_abi_version"; without it the version is 1. */
typedef int (*tent_device_plugin_abi_version_fn)(void);

#ifdef __cplusplus
}
#endif
#endif

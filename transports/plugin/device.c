/* Registers device plug-ins, and calls the functions of their tables. */
#define _GNU_SOURCE
#include "port.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(device_plugin_t) == 72 && sizeof(location_t) == 48, "the layout is that of programs out there");

int td_register(void *library, device_plugin_t *out, void **plugin, char *why, size_t size) {
	tent_register_device_plugin_fn entry =
		(tent_register_device_plugin_fn)dlsym(library, "tent_register_device_plugin");
	if (!entry)
		return 0;
	tent_device_plugin_abi_version_fn version =
		(tent_device_plugin_abi_version_fn)dlsym(library, "tent_device_plugin_abi_version");
	int n = version ? version() : 1, r;
	memset(out, 0, sizeof *out);
	if (n != TENT_DEVICE_ABI_VERSION)
		snprintf(why, size, "its devices are of version %d of the interface, and this is %d", n,
		         TENT_DEVICE_ABI_VERSION);
	else if ((r = entry(out)))
		snprintf(why, size, "tent_register_device_plugin returned %d", r);
	else if (!out->class_name || !out->create_plugin || !out->alloc || !out->free || !out->memcpy_sync ||
	         !out->query_location || !out->get_device_count)
		snprintf(why, size, "its table of devices has a function or a name that is NULL");
	else if (!(*plugin = out->create_plugin()))
		snprintf(why, size, "create_plugin returned NULL: its devices cannot work here");
	else
		return 1;
	return -1;
}

int td_count(const device_plugin_t *t, void *plugin) { return t->get_device_count(plugin); }

int td_bus(const device_plugin_t *t, void *plugin, int device, char *text, size_t n) {
	return t->get_device_pci_bus_id ? t->get_device_pci_bus_id(plugin, device, text, n) : -1;
}

int td_allocate(const device_plugin_t *t, void *plugin, uintptr_t *address, size_t n, const char *location) {
	void *at = NULL;
	int r = t->alloc(plugin, &at, n, location);
	*address = (uintptr_t)at;
	return r;
}

int td_free(const device_plugin_t *t, void *plugin, uintptr_t address, size_t n) {
	return t->free(plugin, (void *)address, n);
}

int td_copy(const device_plugin_t *t, void *plugin, uintptr_t to, uintptr_t from, size_t n) {
	return t->memcpy_sync(plugin, (void *)to, (void *)from, n);
}

int td_locate(const device_plugin_t *t, void *plugin, uintptr_t address, size_t n, location_t *parts) {
	return t->query_location(plugin, (void *)address, n, parts, TENT_LOCATIONS_MAX);
}

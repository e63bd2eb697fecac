/* The device of example/memory.c, and one breach of its contract. The name of the file chooses it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define tent_register_device_plugin register_memory
#include "../example/memory.c"
#undef tent_register_device_plugin

#include <dlfcn.h>

static char abuse[64];

static int is(const char *name) { return !strcmp(abuse, name); }

static int bad_count(void *plugin) {
	return is("no-devices") ? 0 : is("many-devices") ? 1000 : is("broken-count") ? -7 : count(plugin);
}

static int bad_allocate(void *plugin, void **address, size_t n, const char *location) {
	if (is("no-memory")) return 2;
	if (is("empty-memory")) return 0;
	return allocate(plugin, address, n, location);
}

static int bad_copy(void *plugin, void *to, void *from, size_t n) {
	return is("no-copy") ? 700 : copy(plugin, to, from, n);
}

static void *no_create(void) { return NULL; }

static int bad_locate(void *plugin, void *address, size_t n, location_t *parts, size_t room) {
	int found = locate(plugin, address, n, parts, room);
	if (is("cannot-say")) return -1;
	if (is("65-locations")) return 65;
	if (found < 1) return found;
	if (is("no-end")) memset(parts[0].location, 'x', sizeof parts->location);
	if (is("other-kind")) strcpy(parts[0].location, "cuda:0");
	if (is("no-kind")) strcpy(parts[0].location, "\033[2J");
	if (is("beyond")) parts[0].length = ~(size_t)0;
	if (is("overlap")) parts[found] = parts[0], found++;
	if (is("host-too")) {
		parts[found] = parts[0];
		strcpy(parts[found++].location, "cpu:0");
	}
	return found;
}

#ifdef __cplusplus
extern "C" {
#endif
int tent_device_plugin_abi_version(void) { return is("other-version") ? 2 : 1; }

int tent_register_device_plugin(device_plugin_t *out) {
	int r = register_memory(out);
	out->query_location = bad_locate, out->get_device_count = bad_count, out->alloc = bad_allocate;
	out->memcpy_sync = bad_copy;
	if (is("refuses")) return -1;
	if (is("no-function")) out->free = NULL;
	if (is("no-class")) out->class_name = NULL;
	if (is("odd-class")) out->class_name = "toaster";
	if (is("no-create")) out->create_plugin = no_create;
	return r;
}
#ifdef __cplusplus
}
#endif

__attribute__((constructor)) static void name_it(void) {
	Dl_info self;
	int (*entry)(device_plugin_t *) = tent_register_device_plugin;
	void *here;
	memcpy(&here, &entry, sizeof here);
	if (!dladdr(here, &self)) return;
	const char *name = strrchr(self.dli_fname, '/');
	snprintf(abuse, sizeof abuse, "%s", name ? name + 4 : ""); /* "/lib" */
	abuse[strlen(abuse) - 3] = 0;                              /* ".so" */
}

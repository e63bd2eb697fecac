/* Opens plug-ins, and calls the functions of their tables. */
#define _GNU_SOURCE
#include "port.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *tp_dlopen(const char *path, char *why, size_t size) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed: it may have threads and handlers */
	if (!library)
		snprintf(why, size, "%s", dlerror());
	return library;
}

int tp_table(void *library, const tent_transport_api **api, char *why, size_t size) {
	tent_transport_plugin_fn entry = (tent_transport_plugin_fn)dlsym(library, "tent_transport_plugin");
	if (!entry)
		return 0;
	*api = entry(TENT_TRANSPORT_MAJOR, TENT_TRANSPORT_MINOR);
	if (!*api)
		snprintf(why, size, "it cannot serve version %d.%d of the interface", TENT_TRANSPORT_MAJOR,
		         TENT_TRANSPORT_MINOR);
	return *api ? 1 : -1;
}

tent_transport_api *tp_kept(const tent_transport_api *theirs) {
	static struct kept {
		struct kept *next;
		tent_transport_api api;
	} *all; /* a leak checker finds them by it: Go's memory is none that it looks at */
	struct kept *k = calloc(1, sizeof *k);
	if (!k)
		return NULL;
	memcpy(&k->api, theirs, theirs->size < sizeof k->api ? theirs->size : sizeof k->api);
	k->next = all;
	all = k;
	return &k->api;
}

int tp_check(const tent_transport_api *api, char *why, size_t size) { return api->check(why, size); }

int tp_open(const tent_transport_api *api, tp_port *p, const tent_peer *self, const char *const *values,
            tent_transport **t, tent_error *e) {
	return api->open(tp_name(p), tp_host(), self, values, t, e);
}

void tp_info(const tent_transport_api *api, tent_transport *t, tent_info *info) { api->info(t, info); }

int tp_register(const tent_transport_api *api, tent_transport *t, const tent_region *r, uint64_t limit, uint64_t *key,
                void *descriptor, size_t *n, tent_error *e) {
	return api->register_region(t, r, limit, key, descriptor, n, e);
}

int tp_revoke(const tent_transport_api *api, tent_transport *t, uint64_t key, const tent_peer *peer, uint64_t epoch,
              uint64_t limit, tent_error *e) {
	return api->revoke(t, key, peer, epoch, limit, e);
}

int tp_deregister(const tent_transport_api *api, tent_transport *t, uint64_t key, uint64_t limit, tent_error *e) {
	return api->deregister(t, key, limit, e);
}

int tp_attach(const tent_transport_api *api, tent_transport *t, uint64_t link, const tent_peer *peer, tent_error *e) {
	return api->attach(t, link, peer, e);
}

int tp_import(const tent_transport_api *api, tent_transport *t, uint64_t link, const void *d, size_t n, uint64_t *key,
              tent_error *e) {
	return api->import_region(t, link, d, n, key, e);
}

void tp_forget(const tent_transport_api *api, tent_transport *t, uint64_t link, uint64_t key) {
	api->forget(t, link, key);
}

void tp_detach(const tent_transport_api *api, tent_transport *t, uint64_t link) { api->detach(t, link); }

void tp_withdraw(const tent_transport_api *api, tent_transport *t, const uint64_t *cookies, size_t n) {
	api->withdraw(t, cookies, n);
}

void tp_fence(const tent_transport_api *api, tent_transport *t, tent_rail rail) { api->fence(t, rail); }

void tp_probe(const tent_transport_api *api, tent_transport *t, tent_rail rail, uint64_t token) {
	api->probe(t, rail, token);
}

int tp_close(const tent_transport_api *api, tent_transport *t, uint64_t limit, tent_error *e) {
	return api->close(t, limit, e);
}

int tp_serve(const tent_transport_api *api, tent_transport *t, const tent_peer *from, const void *message, size_t n,
             void *answer, size_t *answer_n, tent_error *e) {
	return api->serve(t, from, message, n, answer, answer_n, e);
}

void tp_called(const tent_transport_api *api, tent_transport *t, uint64_t token, const void *answer, size_t n,
               const tent_error *e) {
	api->called(t, token, answer, n, e);
}

int tp_notify(const tent_transport_api *api, tent_transport *t, uint64_t link, const void *message, size_t n,
              uint64_t token) {
	return api->notify(t, link, message, n, token);
}

void tp_noted(const tent_transport_api *api, tent_transport *t, uint64_t token, int taken) {
	api->noted(t, token, taken);
}

int tp_heard(const tent_transport_api *api, tent_transport *t, tent_rail rail, tent_signs *signs) {
	return api->heard(t, rail, signs);
}

size_t tp_explain(const tent_transport_api *api, tent_transport *t, uint64_t link, char *text, size_t size) {
	return api->explain(t, link, text, size);
}

int tp_open_file(const tent_transport_api *api, tent_transport *t, const tent_file_spec *spec, tent_file *file,
                 tent_error *e) {
	return api->open_file(t, spec, file, e);
}

int tp_import_file(const tent_transport_api *api, tent_transport *t, uint64_t link, const tent_file *file,
                   uint64_t *key, tent_error *e) {
	return api->import_file(t, link, file, key, e);
}

void tp_sync(const tent_transport_api *api, tent_transport *t, uint64_t link, uint64_t key, uint64_t token) {
	api->sync(t, link, key, token);
}

int tp_allocate(const tent_transport_api *api, tent_transport *t, tent_memory *m, tent_error *e) {
	return api->allocate(t, m, e);
}

int tp_release(const tent_transport_api *api, tent_transport *t, uint64_t address, uint64_t bytes, tent_error *e) {
	return api->release(t, address, bytes, e);
}

int tp_remap(const tent_transport_api *api, tent_transport *t, uint64_t key, uint64_t offset, uint64_t bytes,
             uint64_t limit, tent_error *e) {
	return api->remap(t, key, offset, bytes, limit, e);
}

int tp_match(const tent_transport_api *api, tent_transport *t, uint64_t link, uint64_t local, uint64_t remote,
             tent_match *match, tent_error *e) {
	return api->match(t, link, local, remote, match, e);
}

void tp_disconnect(const tent_transport_api *api, tent_transport *t, const tent_peer *peer) {
	api->disconnect(t, peer);
}

int tp_reach(const tent_transport_api *api, tent_transport *t, const tent_peer *peer, const char *const *addresses,
             size_t n, char *why, size_t size) {
	return api->reach(t, peer, addresses, n, why, size);
}

uint64_t tp_flushes(const tent_transport_api *api, tent_transport *t) { return api->flushes(t); }

size_t tp_survey(const tent_transport_api *api, char *text, size_t size) { return api->survey(text, size); }

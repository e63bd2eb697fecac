/*
 * The example, and one breach of the contract. The name of the file chooses it: libtwice.so completes each slice twice.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define tent_transport_plugin inside_plugin
#include "../example/inside.c"
#undef tent_transport_plugin

#include <dlfcn.h>

static char abuse[64];
static tent_host false_host, *host_is = &false_host;
static const tent_host *true_host;
static tent_transport_api table;
static struct { tent_transport_api api; char more[64]; } larger;
static tent_setting declared[300];

static int is(const char *name) { return !strcmp(abuse, name); }

static void bad_complete(tent_port *p, const tent_completion *list, size_t n) {
	for (size_t i = 0; i < n; i++) {
		tent_completion c = list[i];
		tent_error e;
		memset(&e, 0, sizeof e);
		e.size = sizeof e;
		if (is("stranger")) {
			tent_completion other = {~0ull, 1, NULL}, none = {0, 1, NULL}, later = {c.cookie + (7ull << 32), 1, NULL};
			true_host->complete(p, &other, 1);
			true_host->complete(p, &none, 1);
			true_host->complete(p, &later, 1);
		}
		if (is("wrong-bytes")) c.bytes = 1;
		if (is("no-code")) c.error = &e;
		if (is("odd-code")) e.code = 9999, c.error = &e;
		if (is("odd-scope")) e.code = TENT_LOST, e.scope = 77, c.error = &e;
		if (is("no-end-of-text")) {
			e.code = TENT_TIMEOUT;
			memset(e.cause, 'x', sizeof e.cause);
			memset(e.hint, '\033', sizeof e.hint);
			c.error = &e;
		}
		if (is("short-error")) e.size = 8, c.error = &e;
		true_host->complete(p, &c, 1);
		if (is("twice")) true_host->complete(p, &c, 1);
		if (is("no-list")) true_host->complete(p, NULL, 5);
		if (is("no-port")) {
			true_host->complete(NULL, &c, 1);
			true_host->ready((tent_port *)(uintptr_t)0x123456789, (tent_rail){1, 1, 0, 0});
			true_host->log((tent_port *)&table, 0, "nobody");
		}
	}
}

static int bad_rail_up(tent_port *p, const tent_rail_info *info) {
	tent_rail_info bad = *info;
	int taken = true_host->rail_up(p, info);
	if (is("rail-twice"))
		for (int i = 0; i < 3; i++) true_host->rail_up(p, info);
	if (is("no-structs")) {
		bad.size = 4;
		true_host->rail_up(p, &bad);
		true_host->rail_up(p, NULL);
		true_host->link_down(p, info->rail.link, NULL);
		true_host->notified(p, NULL, "x", 1, 1);
		true_host->describe(p, 1, NULL, 10);
		true_host->call(p, info->rail.link, NULL, 1 << 30, 1, 1);
		true_host->log(p, 99, NULL);
	}
	if (is("odd-links"))
		for (int i = 0; i < 3; i++) {
			bad.rail.link = 0;
			true_host->rail_up(p, &bad);
			true_host->fenced(p, 1ull << 31, 1, 1); /* a generation of 0 */
			true_host->ready(p, (tent_rail){info->rail.link + (9ull << 32), 1, 0, 0}); /* one that ended, or comes */
		}
	if (is("crowd"))
		for (int i = 0; i < 40000; i++) true_host->progress(p, info->rail);
	if (is("odd-tokens"))
		for (uint64_t i = 0; i < 3; i++) true_host->done(p, i << 32 | 5, 0, NULL);
	if (is("calls"))
		for (uint64_t i = 0; i < 3; i++) true_host->call(p, info->rail.link, "hello", 5, i, 10);
	return taken;
}

static int bad_open(tent_port *p, const tent_host *host, const tent_peer *self, const char *const *values,
                    tent_transport **t, tent_error *e) {
	true_host = host;
	false_host = *host;
	false_host.complete = bad_complete;
	false_host.rail_up = bad_rail_up;
	if (is("open-fails")) return 7777;
	int r = in_open(p, host_is, self, values, t, e);
	if (is("open-empty") && !r) {
		in_close(*t, 0, e);
		*t = NULL;
	}
	return r;
}

static void bad_info(tent_transport *t, tent_info *info) {
	in_info(t, info);
	if (is("odd-feature")) info->features |= 1u << 30;
	if (is("odd-alignment")) info->alignment = 3;
	if (is("no-slices")) info->slice_max = 0;
	if (is("no-depth")) info->slices_max = 0;
	if (is("no-pairs")) memset(info->pairs, 0, sizeof info->pairs);
	if (is("odd-versions")) info->version_first = 2;
}

static size_t bad_submit(tent_transport *t, tent_slice *const *list, size_t n) {
	if (is("keeps")) return n;
	size_t taken = in_submit(t, list, n);
	if (is("too-many")) return taken + 5;
	while (is("denies") && t->accepted) in_poll(t, n); /* it carries all of them out, and says that it took none */
	if (is("denies")) return 0;
	return taken;
}

static size_t bad_poll(tent_transport *t, size_t budget) {
	return in_poll(t, budget) + (is("poll-lies") ? 1000000 : 0);
}

static int bad_register(tent_transport *t, const tent_region *m, uint64_t limit, uint64_t *key, void *d, size_t *n,
                        tent_error *e) {
	int r = in_register(t, m, limit, key, d, n, e);
	if (is("no-key")) *key = 0;
	if (is("long-descriptor")) *n = 1 << 20;
	return r;
}

static int bad_close(tent_transport *t, uint64_t limit, tent_error *e) {
	tent_port *port = t->port;
	int r = in_close(t, limit, e);
	tent_completion c = {1ull << 32, 4096, NULL};
	tent_rail_info info;
	memset(&info, 0, sizeof info);
	info.size = sizeof info, info.rail.generation = 9, info.rail.link = 1ull << 32 | 1;
	if (is("late")) {
		for (int i = 0; i < 5; i++) true_host->complete(port, &c, 1);
		true_host->rail_up(port, &info);
	}
	return r;
}

static int bad_check(char *why, size_t n) {
	if (is("not-here")) snprintf(why, n, "no device is plugged in");
	return is("not-here") || is("not-here-silent");
}

#ifdef __cplusplus
extern "C"
#endif
const tent_transport_api *tent_transport_plugin(uint32_t major, uint32_t minor) {
	Dl_info self;
	void *here;
	const tent_transport_api *(*entry)(uint32_t, uint32_t) = tent_transport_plugin;
	memcpy(&here, &entry, sizeof here);
	if (!dladdr(here, &self)) return NULL;
	const char *name = strrchr(self.dli_fname, '/');
	snprintf(abuse, sizeof abuse, "%s", name ? name + 4 : ""); /* "/lib" */
	abuse[strlen(abuse) - 3] = 0;                              /* ".so" */
	table = *inside_plugin(major, minor);
	table.name = abuse;
	table.check = bad_check, table.open = bad_open, table.info = bad_info, table.submit = bad_submit;
	table.register_region = bad_register, table.close = bad_close, table.poll = bad_poll;
	if (is("no-table")) return NULL;
	if (is("other-major")) table.major = 2;
	if (is("empty-table")) table.size = 0;
	if (is("shorter")) table.size -= 8;
	if (is("endless")) table.size = ~0u;
	if (is("no-submit")) table.submit = NULL;
	if (is("no-close")) table.close = NULL;
	if (is("unnamed")) table.name = NULL;
	if (is("long-name")) table.name = "seventy-bytes-are-more-than-a-name-may-have-and-this-one-has-all-of-them";
	if (is("odd-name")) table.name = "Caf\xc3\xa9 \033[2J";
	if (is("taken")) table.name = "tcp";
	if (is("no-settings")) table.settings = NULL;
	if (is("many-settings")) table.settings_count = ~0ull;
	if (is("odd-setting") || is("twice-setting") || is("odd-default") || is("own-setting")) {
		declared[0] = settings[0], declared[1] = settings[0];
		if (is("odd-setting")) declared[0].kind = "matrix";
		if (is("odd-default")) declared[0].kind = "int", declared[0].takes = "1..4", declared[0].value = "9";
		if (is("own-setting")) declared[0].key = "enable";
		table.settings = declared, table.settings_count = is("twice-setting") ? 2 : 1;
	}
	if (is("larger")) {
		larger.api = table;
		larger.api.size = sizeof larger, larger.api.minor = 7;
		memset(larger.more, 0xff, sizeof larger.more);
		return &larger.api;
	}
	return &table;
}

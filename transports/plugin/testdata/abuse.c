/*
 * The example, and one breach of the contract. The name of the file chooses it: libtwice.so completes each slice twice.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../example/copy.h"

static char abuse[64];

/* hold copies. With "holds" it says by the first byte of the local memory that it begins, and waits for the second. */
static int hold(const tent_slice *s, uint64_t remote, int trusting) {
	char *bytes = (char *)(uintptr_t)s->local;
	if (!strcmp(abuse, "holds"))
		for (__atomic_store_n(bytes, 1, __ATOMIC_RELEASE); !__atomic_load_n(bytes + 1, __ATOMIC_ACQUIRE);) usleep(100);
	return copy(s, remote, trusting);
}

#define copy hold
#define tent_transport_plugin inside_plugin
#include "../example/inside.c"
#undef tent_transport_plugin
#undef copy

#include <dlfcn.h>

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
	if (is("old-rails"))
		for (uint32_t old = 0; old < info->rail.generation; old++) {
			bad.rail.generation = old;
			true_host->rail_down(p, bad.rail, NULL);
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
	static tent_port *before;
	if (is("old-name") && before) {
		tent_completion c = {1ull << 32, 64, NULL};
		true_host->complete(before, &c, 1);
		true_host->log(before, 3, "by a name of before");
	}
	before = p;
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
	if (is("own-threads")) info->features &= ~(uint32_t)TENT_COPIES;
	if (is("odd-feature")) info->features |= 1u << 30;
	if (is("odd-alignment")) info->alignment = 3;
	if (is("no-slices")) info->slice_max = 0;
	if (is("no-depth")) info->slices_max = 0;
	if (is("no-pairs")) memset(info->pairs, 0, sizeof info->pairs);
	if (is("odd-versions")) info->version_first = 2;
	if (!strncmp(abuse, "file-", 5) || is("no-sync") || is("syncs")) {
		info->features |= TENT_FILES;
		info->pairs[TENT_CPU][TENT_FILE] = 1;
	}
}

static const tent_slice *mine; /* of close-fails, which goes on with it: a number of it that must stay the same */
static tent_port *mine_of;
static uint64_t number_of(const tent_slice *s) { return s->cookie ^ s->local ^ s->pieces.local_at[0] ^ s->pieces.remote_at[0]; }
static uint64_t number;

/* late_end completes the slice of close-fails long behind close, and reports whether it was still there. */
static int late_end(void) {
	tent_completion c = {mine->cookie, mine->length, NULL};
	int whole = number_of(mine) == number;
	true_host->complete(mine_of, &c, 1);
	return whole;
}

/* deny takes all slices, ends the last one, and says that it took none. */
static size_t deny(tent_transport *t, tent_slice *const *list, size_t n) {
	tent_slice *last = list[n - 1];
	pthread_mutex_lock(&mutex);
	t->polling = 1; /* the worker leaves them alone */
	pthread_mutex_unlock(&mutex);
	in_submit(t, list, n);
	pthread_mutex_lock(&mutex);
	leave(&t->queue[last->priority], last);
	end(t, last, NULL);
	pthread_mutex_unlock(&mutex);
	in_arm(t);
	return 0;
}

static size_t bad_submit(tent_transport *t, tent_slice *const *list, size_t n) {
	if (is("keeps")) return n;
	if (is("close-fails")) {
		mine = list[0], mine_of = t->port, number = number_of(mine);
		return n;
	}
	if (is("denies-some")) return deny(t, list, n);
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
	char *bytes = (char *)(uintptr_t)m->address;
	if (is("hangs")) /* as long as holds, and beyond its limit */
		for (__atomic_store_n(bytes, 1, __ATOMIC_RELEASE); !__atomic_load_n(bytes + 1, __ATOMIC_ACQUIRE);) usleep(100);
	int r = in_register(t, m, limit, key, d, n, e);
	if (is("no-key")) *key = 0;
	if (is("long-descriptor")) *n = 1 << 20;
	return r;
}

static int bad_close(tent_transport *t, uint64_t limit, tent_error *e) {
	tent_port *port = t->port;
	if (is("close-fails"))
		return fail(e, TENT_TIMEOUT, TENT_SCOPE_TRANSPORT, TENT_SIDE_LOCAL, "a thread is at work on a slice");
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
	if (mine && !late_end()) return snprintf(why, n, "its slice was taken away"), 1;
	if (is("not-here")) snprintf(why, n, "no device is plugged in");
	return is("not-here") || is("not-here-silent");
}

static int bad_heard(tent_transport *t, tent_rail rail, tent_signs *signs) {
	int up = in_heard(t, rail, signs);
	signs->held = is("held"), signs->unacked = is("unacked") ? 1ull << 40 : 0;
	if (is("from-the-future")) signs->heard = signs->spoke = ~0ull;
	return is("deaf") ? 0 : up;
}

/* Of what came with version 1.1 */

/* meets waits for another call, and reports whether that has slices of its own. */
static int meets(const tent_slice *mine) {
	static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
	static pthread_cond_t met = PTHREAD_COND_INITIALIZER;
	static const tent_slice *first;
	static int result = -1;
	struct timespec limit;
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 10;
	pthread_mutex_lock(&door);
	if (first) {
		result = first != mine;
		pthread_cond_signal(&met);
	}
	first = mine;
	while (result < 0 && !pthread_cond_timedwait(&met, &door, &limit)) continue;
	int own = result > 0;
	pthread_mutex_unlock(&door);
	return own;
}

static int bad_carry(tent_transport *t, tent_slice *const *list, size_t n) {
	tent_completion c = {list[0]->cookie, list[0]->length, NULL};
	if (is("carry-completes"))
		for (int i = 0; i < 3; i++) true_host->complete(t->port, &c, 1);
	if (is("carry-meets") && !meets(list[0])) return 0;
	return is("carry-denies") ? in_carry(t, list, n) && 0 : in_carry(t, list, n);
}

static int bad_open_file(tent_transport *t, const tent_file_spec *spec, tent_file *file, tent_error *e) {
	(void)t, (void)e;
	file->bytes = spec->bytes, file->read_only = spec->read_only;
	snprintf(file->path, sizeof file->path, "%s", spec->path);
	if (is("file-relative")) snprintf(file->path, sizeof file->path, "x/y");
	if (is("file-endless")) memset(file->path, '/', sizeof file->path);
	if (is("file-smaller")) file->bytes = 1;
	if (is("file-writes")) file->read_only = 0;
	return is("file-silent") ? 7777 : 0;
}

static int bad_import_file(tent_transport *t, uint64_t link, const tent_file *file, uint64_t *key, tent_error *e) {
	(void)t, (void)link, (void)file, (void)e;
	*key = is("file-no-key") ? 0 : 5;
	return 0;
}

static void bad_sync(tent_transport *t, uint64_t link, uint64_t key, uint64_t token) {
	(void)link, (void)key;
	for (int i = 0; i < (is("syncs") ? 4 : 1); i++) true_host->done(t->port, token, 0, NULL);
}

static int bad_allocate(tent_transport *t, tent_memory *m, tent_error *e) {
	static char given[64];
	(void)t, (void)e;
	if (!is("gives-nothing")) m->address = (uintptr_t)given;
	if (is("gives-little")) m->bytes = 1;
	if (is("gives-beyond")) m->bytes = ~0ull;
	return is("gives-silently") ? -1 : 0;
}

static int bad_release(tent_transport *t, uint64_t address, uint64_t bytes, tent_error *e) {
	(void)t, (void)address, (void)bytes;
	e->scope = 99, e->code = TENT_LOST;
	return 1;
}

static int bad_remap(tent_transport *t, uint64_t key, uint64_t offset, uint64_t bytes, uint64_t limit, tent_error *e) {
	(void)t, (void)key, (void)offset, (void)bytes, (void)limit, (void)e;
	return -5;
}

static int bad_match(tent_transport *t, uint64_t link, uint64_t local, uint64_t remote, tent_match *m, tent_error *e) {
	(void)t, (void)link, (void)local, (void)remote, (void)e;
	memset(m->near, 0xff, sizeof m->near);
	memset(m->there, 0xff, sizeof m->there);
	memset(m->why, '\033', sizeof m->why);
	m->near_count = is("match-many") ? 65 : 64;
	return is("match-silent") ? 1 << 20 : 0;
}

static void bad_disconnect(tent_transport *t, const tent_peer *peer) {
	for (int i = 0; i < 3; i++) true_host->refused(t->port, i ? 4711 : -1, peer->address, NULL);
	true_host->refused(t->port, TENT_REFUSED_ACCESS, NULL, "nobody");
}

static int bad_reach(tent_transport *t, const tent_peer *peer, const char *const *addresses, size_t n, char *why,
                     size_t bytes) {
	(void)t, (void)peer;
	if (is("reach-endless")) memset(why, 'x', bytes);
	return n > 0 && addresses[n] == NULL && !strcmp(addresses[0], "10.0.0.1:7");
}

static uint64_t bad_flushes(tent_transport *t) { (void)t; return ~0ull; }

static size_t bad_survey(char *text, size_t bytes) {
	memset(text, '\n', bytes);
	memcpy(text + 3, "a card \033[2J", 11);
	return bytes * 2;
}

static void newer(void) {
	table.carry = bad_carry, table.open_file = bad_open_file, table.import_file = bad_import_file;
	table.sync = is("no-sync") ? NULL : bad_sync, table.allocate = bad_allocate, table.release = bad_release;
	table.remap = bad_remap, table.match = bad_match, table.disconnect = bad_disconnect, table.reach = bad_reach;
	table.flushes = bad_flushes, table.survey = bad_survey;
	if (is("older")) table.size = offsetof(tent_transport_api, carry), table.minor = 0;
	if (is("half-newer")) table.size = offsetof(tent_transport_api, allocate);
	if (is("no-poll") || is("own-threads")) table.poll = NULL;
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
	table.register_region = bad_register, table.close = bad_close, table.poll = bad_poll, table.heard = bad_heard;
	newer();
	if (is("no-table")) return NULL;
	if (is("other-major")) table.major = 2;
	if (is("empty-table")) table.size = 0;
	if (is("shorter")) table.size = offsetof(tent_transport_api, explain);
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

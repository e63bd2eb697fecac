/*
 * Reports of plug-ins, from any thread, at any time. A plug-in holds the name of a port, not its address: a number of a
 * door and the door's generation. So a report that comes after close finds the door shut, and touches no memory that
 * was given back.
 *
 *	plug-in thread ──complete──▶ live[slot] == generation ? ──▶ ends ──▶ Go, which reads them itself
 *	               ──others────▶ reports, at most TP_REPORTS_MAX ──tp_next──▶ Go
 *
 * A slot enters ends once for each life, so ends is as long as the slab and is never full.
 */
#define _GNU_SOURCE
#include "port.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { DOORS = 256 };

_Static_assert(TP_API_LEAST == 216 && TP_PEER_LEAST == 56, "version 1.0 of the interface has changed");

struct tp_port {
	uint32_t door, slots;
	const tent_transport_api *api;
	tent_transport *of; /* the transport that open gave */
	tent_slice *slab;
	uint32_t *chain;
	uint32_t *live; /* by slot: the generation of the slice that may complete, 0 for none */
	tp_ends ends;
	tp_report *oldest, **newest;
	uint32_t reports;
	uint64_t breaches[TP_BREACHES];
	int eventfd, asleep;
	uint64_t fences; /* calls of fenced */
	struct epoch {
		uint64_t link, epoch;
	} *epochs; /* by index of a link */
	uint32_t epochs_room;
	tp_port *behind; /* of those that were shut and not freed */
};

/* A door's lock guards its port, too. Doors are never given back. */
static struct door {
	pthread_mutex_t lock;
	uint32_t generation;
	tp_port *port;
} doors[DOORS] = {[0 ... DOORS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static void lock(tp_port *p) { pthread_mutex_lock(&doors[p->door].lock); }
static void unlock(tp_port *p) { pthread_mutex_unlock(&doors[p->door].lock); }

/* enter returns the port of a name with its lock held, or NULL. */
static tp_port *enter(tent_port *name) {
	uint64_t number = (uintptr_t)name, index = number & 0xffff;
	if (index == 0 || index > DOORS)
		return NULL;
	struct door *d = &doors[index - 1];
	pthread_mutex_lock(&d->lock);
	if (d->port && d->generation == number >> 16)
		return d->port;
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

tp_port *tp_new(uint32_t slots, char *why, size_t size) {
	tp_port *p = calloc(1, sizeof *p);
	if (p) {
		p->slots = slots;
		p->slab = calloc(slots + TP_TRAYS * TP_BATCH, sizeof *p->slab);
		p->chain = calloc(slots, sizeof *p->chain);
		p->live = calloc(slots, sizeof *p->live);
		p->ends.list = calloc(slots, sizeof *p->ends.list);
		p->newest = &p->oldest;
		p->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	}
	if (!p || !p->slab || !p->chain || !p->live || !p->ends.list || p->eventfd < 0) {
		snprintf(why, size, "no memory or no descriptor: %s", strerror(errno));
		if (p)
			p->door = DOORS;
		tp_free(p);
		return NULL;
	}
	for (p->door = 0; p->door < DOORS; p->door++) {
		struct door *d = &doors[p->door];
		pthread_mutex_lock(&d->lock);
		int vacant = !d->port;
		if (vacant) {
			d->port = p;
			d->generation++;
		}
		pthread_mutex_unlock(&d->lock);
		if (vacant)
			return p;
	}
	snprintf(why, size, "%d transports of plug-ins are open in this process, which is the limit", DOORS);
	tp_free(p);
	return NULL;
}

/* retire gives back the door, and all that no plug-in reads. */
static void retire(tp_port *p) {
	if (p->door < DOORS) {
		lock(p);
		doors[p->door].port = NULL;
		unlock(p);
	}
	while (p->oldest) {
		tp_report *r = p->oldest;
		p->oldest = r->next;
		free(r);
	}
	for (; p->ends.list && p->ends.taken != p->ends.put; p->ends.taken++)
		free((void *)p->ends.list[p->ends.taken % p->slots].error);
	if (p->eventfd >= 0)
		close(p->eventfd);
	free(p->epochs);
	p->epochs = NULL;
}

void tp_shut(tp_port *p) {
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static tp_port *shut; /* a leak checker finds them by it */
	retire(p);
	pthread_mutex_lock(&mutex);
	p->behind = shut;
	shut = p;
	pthread_mutex_unlock(&mutex);
}

void tp_free(tp_port *p) {
	if (!p)
		return;
	retire(p);
	free(p->slab);
	free(p->chain);
	free(p->live);
	free(p->ends.list);
	free(p);
}

tent_port *tp_name(tp_port *p) {
	return (tent_port *)(uintptr_t)((uint64_t)doors[p->door].generation << 16 | (p->door + 1));
}
tent_slice *tp_slab(tp_port *p) { return p->slab; }
uint32_t *tp_chain(tp_port *p) { return p->chain; }
tp_ends *tp_ends_of(tp_port *p) { return &p->ends; }
int tp_eventfd(tp_port *p) { return p->eventfd; }

void tp_bind(tp_port *p, const tent_transport_api *api, tent_transport *of) {
	p->api = api;
	p->of = of;
}

static int waiting(const tp_port *p) { return p->ends.put != __atomic_load_n(&p->ends.taken, __ATOMIC_ACQUIRE); }
static int polling(const tp_port *p) { return (int)__atomic_load_n(&p->ends.polling, __ATOMIC_RELAXED); }

static void wake(tp_port *p) {
	uint64_t one = 1;
	if (!p->asleep)
		return;
	p->asleep = 0;
	while (write(p->eventfd, &one, sizeof one) < 0 && errno == EINTR)
		;
}

static void breach(tp_port *p, int kind) {
	p->breaches[kind]++;
	wake(p);
}

/* take copies a struct of another version: fields that it lacks are 0, those that we do not know are left out. */
static int take(void *into, size_t size, size_t least, const void *from) {
	uint32_t given = 0;
	if (!from)
		return 0;
	memcpy(&given, from, sizeof given);
	if (given < least)
		return 0;
	memset(into, 0, size);
	memcpy(into, from, given < size ? given : size);
	return 1;
}

static int take_error(tent_error *into, const tent_error *from) {
	if (!take(into, sizeof *into, sizeof *into, from))
		return 0;
	into->cause[sizeof into->cause - 1] = into->hint[sizeof into->hint - 1] = 0;
	return 1;
}

static void complete(tent_port *name, const tent_completion *list, size_t n) {
	tp_port *p = enter(name);
	if (!p)
		return;
	for (size_t i = 0; list && i < n; i++) {
		uint32_t slot = (uint32_t)list[i].cookie, generation = (uint32_t)(list[i].cookie >> 32);
		if (slot >= p->slots || generation == 0 || __atomic_load_n(&p->live[slot], __ATOMIC_RELAXED) != generation) {
			breach(p, TP_STRANGER);
			continue;
		}
		tent_error *error = NULL;
		if (list[i].error && (error = calloc(1, sizeof *error)) && !take_error(error, list[i].error)) {
			error->size = 0; /* Go words it */
			breach(p, TP_MALFORMED);
		}
		__atomic_store_n(&p->live[slot], 0, __ATOMIC_RELAXED);
		/* Without memory for its error a slice must not look as if it had succeeded: its bytes say so. */
		uint64_t bytes = list[i].error && !error ? UINT64_MAX : list[i].bytes;
		p->ends.list[p->ends.put % p->slots] = (tp_end){bytes, (uintptr_t)error, slot};
		__atomic_store_n(&p->ends.put, p->ends.put + 1, __ATOMIC_RELEASE);
	}
	if (!polling(p) && waiting(p))
		wake(p);
	unlock(p);
}

/* put queues a report with copies of its texts and bytes behind it. */
static int put(tent_port *name, const tp_report *from, const tent_error *error) {
	size_t text[3] = {0, 0, 0}, room = sizeof *from + from->n;
	tp_report *r = NULL;
	for (int i = 0; i < 3; i++)
		if (from->text[i])
			room += (text[i] = strnlen(from->text[i], TP_TEXT_MAX)) + 1;
	tp_port *p = enter(name);
	if (!p)
		return 0;
	if (p->reports >= TP_REPORTS_MAX) {
		breach(p, TP_CROWDED);
	} else if ((from->n && !from->bytes) || (error && error->size < sizeof *error)) {
		breach(p, TP_MALFORMED);
	} else if ((r = malloc(room))) {
		char *at = (char *)(r + 1);
		*r = *from;
		for (int i = 0; i < 3; i++) {
			if (!from->text[i])
				continue;
			memcpy(at, from->text[i], text[i]);
			at[text[i]] = 0;
			r->text[i] = at;
			at += text[i] + 1;
		}
		if (r->n)
			r->bytes = memcpy(at, from->bytes, r->n);
		r->failed = error && take_error(&r->error, error);
		r->next = NULL;
		*p->newest = r;
		p->newest = &r->next;
		p->reports++;
		wake(p);
	}
	unlock(p);
	return r != NULL;
}

static int ready(tent_port *p, tent_rail rail) { return put(p, &(tp_report){.kind = TP_READY, .rail = rail}, NULL); }

static int progress(tent_port *p, tent_rail rail) {
	return put(p, &(tp_report){.kind = TP_PROGRESS, .rail = rail}, NULL);
}

static int malformed(tent_port *name) {
	tp_port *p = enter(name);
	if (p) {
		breach(p, TP_MALFORMED);
		unlock(p);
	}
	return 0;
}

static int rail_up(tent_port *p, const tent_rail_info *info) {
	tp_report r = {.kind = TP_RAIL_UP};
	if (!take(&r.info, sizeof r.info, sizeof r.info, info))
		return malformed(p);
	r.rail = r.info.rail;
	r.text[0] = r.info.local, r.text[1] = r.info.remote, r.text[2] = r.info.device;
	return put(p, &r, NULL);
}

static int rail_down(tent_port *p, tent_rail rail, const tent_error *cause) {
	return put(p, &(tp_report){.kind = TP_RAIL_DOWN, .rail = rail}, cause);
}

static int link_down(tent_port *p, uint64_t link, const tent_error *cause) {
	if (!cause)
		return malformed(p);
	return put(p, &(tp_report){.kind = TP_LINK_DOWN, .rail = {.link = link}}, cause);
}

/* remember keeps the newest epoch of a link's peer: a task that begins from now on carries it. */
static void remember(tp_port *p, uint64_t link, uint64_t epoch) {
	uint32_t index = (uint32_t)link - 1, room = p->epochs_room ? p->epochs_room : 16;
	if (index >= TP_LINKS_MAX)
		return;
	while (room <= index)
		room *= 2;
	if (room != p->epochs_room) {
		struct epoch *more = realloc(p->epochs, room * sizeof *more);
		if (!more)
			return;
		memset(more + p->epochs_room, 0, (room - p->epochs_room) * sizeof *more);
		p->epochs = more;
		p->epochs_room = room;
	}
	struct epoch *e = &p->epochs[index];
	if (e->link != link || e->epoch < epoch)
		*e = (struct epoch){link, epoch};
	__atomic_store_n(&p->fences, p->fences + 1, __ATOMIC_RELEASE);
}

uint64_t tp_epoch(tp_port *p, uint64_t link) {
	uint32_t index = (uint32_t)link - 1;
	lock(p);
	uint64_t epoch = index < p->epochs_room && p->epochs[index].link == link ? p->epochs[index].epoch : 0;
	unlock(p);
	return epoch;
}

const uint64_t *tp_fences(tp_port *p) { return &p->fences; }

static int fenced(tent_port *name, uint64_t link, uint64_t key, uint64_t epoch) {
	tp_port *p = enter(name);
	if (!p)
		return 0;
	remember(p, link, epoch);
	unlock(p);
	return put(name, &(tp_report){.kind = TP_FENCED, .rail = {.link = link}, .key = key, .value = epoch}, NULL);
}

static int notified(tent_port *p, const tent_peer *from, const void *message, size_t n, uint64_t token) {
	tent_peer peer;
	if (!take(&peer, sizeof peer, TP_PEER_LEAST, from) || n > TENT_ANSWER_MAX * 2)
		return malformed(p);
	tp_report r = {.kind = TP_NOTIFIED, .key = token, .bytes = message, .n = n,
	               .text = {peer.address, peer.name, peer.machine_id}};
	memcpy(r.id, peer.id, sizeof r.id);
	return put(p, &r, NULL);
}

static int done(tent_port *p, uint64_t token, uint64_t rtt, const tent_error *error) {
	return put(p, &(tp_report){.kind = TP_DONE, .key = token, .value = rtt}, error);
}

static int call(tent_port *p, uint64_t link, const void *message, size_t n, uint64_t token, uint32_t timeout_ms) {
	if (n > TENT_ANSWER_MAX)
		return malformed(p);
	return put(p, &(tp_report){.kind = TP_CALL, .rail = {.link = link}, .key = token, .bytes = message, .n = n,
	                           .level = timeout_ms < 60000 ? (int)timeout_ms : 60000}, NULL);
}

static int describe(tent_port *p, uint64_t key, const void *descriptor, size_t n) {
	if (n > TENT_DESCRIPTOR_MAX)
		return malformed(p);
	return put(p, &(tp_report){.kind = TP_DESCRIBE, .key = key, .bytes = descriptor, .n = n}, NULL);
}

static int say(tent_port *p, int level, const char *text) {
	return text ? put(p, &(tp_report){.kind = TP_LOG, .level = level, .text = {text}}, NULL) : malformed(p);
}

static int refused(tent_port *p, int reason, const char *from, const char *cause) {
	if (!from || reason < TENT_REFUSED_IDENTITY || reason > TENT_REFUSED_FORGED)
		return malformed(p);
	return put(p, &(tp_report){.kind = TP_REFUSED, .level = reason, .text = {from, cause}}, NULL);
}

const tent_host *tp_host(void) {
	static const tent_host host = {sizeof host, TENT_TRANSPORT_MAJOR, TENT_TRANSPORT_MINOR, complete, ready, progress,
	                               rail_up, rail_down, link_down, fenced, notified, done, call, describe, say, refused};
	return &host;
}

size_t tp_submit(tp_port *p, uint32_t slot, size_t n) {
	tent_slice *list[TP_BATCH];
	for (size_t i = 0; i < n; i++, slot = p->chain[slot]) {
		list[i] = &p->slab[slot];
		/* without the lock: nobody else writes the entry of a slot that is not live */
		__atomic_store_n(&p->live[slot], (uint32_t)(list[i]->cookie >> 32), __ATOMIC_RELAXED);
	}
	size_t taken = p->api->submit(p->of, list, n);
	if (taken == n)
		return n;
	lock(p);
	if (taken > n) {
		breach(p, TP_MALFORMED);
		taken = n;
	}
	size_t last = n; /* one behind the last slice that has completed, so was accepted, and those before it */
	while (last > taken && p->live[list[last - 1] - p->slab])
		last--;
	if (last > taken) { /* what the plug-in says now is wrong */
		breach(p, TP_MALFORMED);
		taken = last;
	}
	for (size_t i = taken; i < n; i++)
		p->live[list[i] - p->slab] = 0;
	unlock(p);
	return taken;
}

int tp_carry(tp_port *p, uint32_t tray, size_t n) {
	tent_slice *list[TP_BATCH], *first = p->slab + p->slots + tray * TP_BATCH;
	for (size_t i = 0; i < n; i++)
		list[i] = first + i;
	return p->api->carry(p->of, list, n);
}

void tp_poll(tp_port *p, size_t budget) { p->api->poll(p->of, budget); }

void tp_arm(tp_port *p) {
	if (p->api->arm)
		p->api->arm(p->of);
	lock(p);
	__atomic_store_n(&p->ends.polling, 0, __ATOMIC_RELAXED);
	if (waiting(p))
		wake(p);
	unlock(p);
}

tp_report *tp_next(tp_port *p) {
	lock(p);
	tp_report *r = p->oldest;
	if (r) {
		p->oldest = r->next;
		if (!p->oldest)
			p->newest = &p->oldest;
		p->reports--;
	}
	unlock(p);
	return r;
}

int tp_sleep(tp_port *p) {
	lock(p);
	p->asleep = !p->oldest && (polling(p) || !waiting(p)) && !p->breaches[TP_STRANGER] && !p->breaches[TP_CROWDED] &&
	            !p->breaches[TP_MALFORMED];
	int asleep = p->asleep;
	unlock(p);
	return asleep;
}

void tp_wake(tp_port *p) {
	lock(p);
	__atomic_store_n(&p->ends.polling, 0, __ATOMIC_RELAXED);
	wake(p);
	unlock(p);
}

void tp_breaches(tp_port *p, uint64_t counts[TP_BREACHES]) {
	lock(p);
	memcpy(counts, p->breaches, sizeof p->breaches);
	memset(p->breaches, 0, sizeof p->breaches);
	unlock(p);
}

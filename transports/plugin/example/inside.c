/*
 * A whole transport: engines of one process copy between their regions. Compile it, and name the result in "plugins":
 *
 *	cc -std=c99 -O2 -shared -fPIC -pthread -I<include>/tent inside.c -o inside.so
 *
 * submit queues slices by priority; a worker, or a waiter by poll, copies the most urgent one and completes it. One
 * mutex guards everything; it is not held while bytes are copied. A queued or running slice is linked by its scratch.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "copy.h"
#include "fail.h"
#include "list.h"
#include "region.h"
#include "tent_transport.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CLASSES = 3, SLICES_MAX = 1024, SHORT = 4096 };

typedef struct tie { /* a link */
	struct tie *next;
	uint64_t number;
	tent_transport *to;  /* NULL: the peer has closed */
	uint32_t generation; /* of the rail that is up, 0 for none */
	uint32_t last;
	int self, starving;
	uint8_t id[16];
} tie;
typedef struct note { struct note *next; tent_transport *from; uint64_t token; } note; /* waits for the peer's answer */

struct tent_transport {
	tent_transport *next;
	tent_port *port;
	const tent_host *host;
	uint8_t id[16];
	char address[256], name[256];
	tie *links;
	region *regions;
	note *notes;
	list queue[CLASSES], running;
	uint32_t accepted;
	int trusting, polling, stop;
	pthread_t worker; pthread_cond_t work;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a slice has ended, and somebody waits for it */
static int waiters;
static tent_transport *all;
static uint64_t last_key;

#define LINK(s) ((tie *)(uintptr_t)(s)->scratch[1])
static int gone(tent_error *e, int code, const char *cause) {
	return fail(e, code, TENT_SCOPE_LINK, TENT_SIDE_REMOTE, cause);
}

/* end completes a slice that is in no list any more. */
static void end(tent_transport *t, tent_slice *s, const tent_error *e) {
	tent_completion c = {s->cookie, e ? 0 : s->length, e};
	t->accepted--;
	t->host->complete(t->port, &c, 1); /* s is not ours any more */
	for (tie *l = t->links; l; l = l->next) {
		tent_rail rail = {l->number, l->generation, 0, 0};
		if (l->starving && l->generation) t->host->ready(t->port, rail);
		l->starving = 0;
	}
	if (waiters) pthread_cond_broadcast(&changed);
}

/* Slices of a link, those to a peer, those that a region shuts out, and those with some cookies. */
typedef struct { const tie *of; const tent_transport *to; const region *shut; const uint64_t *cookies; size_t n; } choice;

static int meant(const tent_transport *t, const tent_slice *s, const choice *c) {
	for (size_t i = 0; i < c->n; i++)
		if (s->cookie == c->cookies[i]) return 1;
	const region *r = c->shut;
	if (LINK(s) == c->of || (c->to && LINK(s)->to == c->to)) return 1;
	return r && s->remote_key == r->key && outside(r, t->id, s->epoch);
}

/* drop ends the queued slices that are meant. */
static void drop(tent_transport *t, choice c, const tent_error *e) {
	for (int i = 0; i < CLASSES; i++)
		for (tent_slice *s = t->queue[i].first, *next; s; s = next) {
			next = NEXT(s);
			if (meant(t, s, &c) && leave(&t->queue[i], s)) end(t, s, e);
		}
}

/* lasts returns 0 if none that is meant runs, and else waits for the end of any: what others own may be gone then. */
static int lasts(choice c) {
	tent_slice *s = NULL;
	for (tent_transport *t = all; t && !s; t = t->next)
		for (s = t->running.first; s && !meant(t, s, &c);) s = NEXT(s);
	if (!s) return 0;
	waiters++;
	pthread_cond_wait(&changed, &mutex);
	waiters--;
	return 1;
}

static void rise(tent_transport *t, tie *l) {
	tent_rail_info info;
	memset(&info, 0, sizeof info);
	info.size = sizeof info, info.node = -1;
	info.rail.link = l->number, info.rail.generation = l->generation = ++l->last;
	info.local = t->address, info.remote = l->to->address;
	t->host->rail_up(t->port, &info);
}

/* lower takes a rail down. With wait, for a link that is in no list any more, its running slices have ended, too. */
static void lower(tent_transport *t, tie *l, int code, const char *cause, int wait) {
	tent_error e;
	choice c = {l, NULL, NULL, NULL, 0};
	fail(&e, code, TENT_SCOPE_SLICE, TENT_SIDE_UNKNOWN, cause);
	l->generation = 0;
	drop(t, c, &e);
	while (wait && lasts(c)) continue;
}

/* allowed returns 0 if a slice may be carried out, and else the reason. */
static int allowed(const tent_transport *t, const tent_slice *s, const region *here, const region *there,
                   tent_error *e) {
	int write = s->op == TENT_WRITE, within = 1;
	for (uint64_t i = 0; there && i < s->pieces.count; i++) {
		uint64_t at = s->remote + s->pieces.remote_at[i];
		within = within && at >= s->remote && inside(there, at, s->pieces.bytes);
	}
	if (!LINK(s)->to) return gone(e, TENT_PEER_UNREACHABLE, "the peer has closed");
	if (!here || s->local < here->address || (!s->pieces.count && !inside(here, s->local - here->address, s->length)))
		return fail(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SCOPE_SLICE, TENT_SIDE_LOCAL, "no such memory here");
	if (!there) return fail(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "no such region there");
	if (outside(there, t->id, s->epoch))
		return fail(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "the region was fenced by its owner");
	if ((!LINK(s)->self && there->permission < (write ? TENT_GLOBAL_READ_WRITE : TENT_GLOBAL_READ_ONLY)) ||
	    (write ? there->read_only : here->read_only))
		return fail(e, TENT_PERMISSION_DENIED, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "the region does not allow it");
	if (!within || (!s->pieces.count && !inside(there, s->remote, s->length)))
		return fail(e, TENT_INVALID_ARGUMENT, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "outside of the region");
	return 0;
}

/* carry carries the most urgent slice out. It returns 0 when none waits. */
static int carry(tent_transport *t) {
	tent_error e;
	tent_slice *s = NULL;
	for (int i = 0; i < CLASSES && !s; i++)
		if ((s = t->queue[i].first)) leave(&t->queue[i], s);
	if (!s) return 0;
	FIND(region, here, t->regions, here->key == s->local_key);
	FIND(region, there, LINK(s)->to ? LINK(s)->to->regions : NULL, there->key == s->remote_key);
	int failed = allowed(t, s, here, there, &e);
	if (!failed) {
		uint64_t remote = there->address;
		int held = t->trusting && s->length <= SHORT; /* the mutex is kept: the copy is shorter than the two calls */
		push(&t->running, s);
		if (!held) pthread_mutex_unlock(&mutex);
		int side = copy(s, remote, t->trusting);
		if (!held) pthread_mutex_lock(&mutex);
		leave(&t->running, s);
		failed = side && fail(&e, TENT_ADDRESS_NOT_REGISTERED, TENT_SCOPE_SLICE, side, "the memory is not mapped");
	}
	end(t, s, failed ? &e : NULL);
	return 1;
}

static void *work(void *of) {
	tent_transport *t = (tent_transport *)of;
	pthread_mutex_lock(&mutex);
	while (!t->stop)
		if (t->polling || !carry(t)) pthread_cond_wait(&t->work, &mutex);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static int in_check(char *why, size_t n) { (void)why, (void)n; return 0; }
static int in_open(tent_port *port, const tent_host *host, const tent_peer *self, const char *const *values,
                   tent_transport **out, tent_error *e) {
	tent_transport *t = (tent_transport *)calloc(1, sizeof *t);
	if (!t) return no_memory(e);
	t->port = port, t->host = host;
	t->trusting = !strcmp(values[0], "true");
	memcpy(t->id, self->id, 16);
	snprintf(t->address, sizeof t->address, "%s", self->address);
	snprintf(t->name, sizeof t->name, "%s", self->name);
	pthread_cond_init(&t->work, NULL);
	pthread_mutex_lock(&mutex);
	t->next = all, all = t;
	if (pthread_create(&t->worker, NULL, work, t)) abort();
	pthread_mutex_unlock(&mutex);
	*out = t;
	return 0;
}

static void in_info(tent_transport *t, tent_info *info) {
	(void)t;
	info->features = TENT_VECTORS | TENT_SAME_HOST | TENT_COPIES;
	info->slice_max = info->slice_best = 1 << 20;
	info->alignment = 1, info->slices_max = SLICES_MAX;
	info->pairs[TENT_CPU][TENT_CPU] = 1;
}

static int in_register(tent_transport *t, const tent_region *m, uint64_t limit, uint64_t *key, void *d, size_t *n,
                       tent_error *e) {
	region *r = (region *)calloc(1, sizeof *r);
	(void)limit;
	if (!r) return no_memory(e);
	r->address = m->address, r->bytes = m->bytes, r->permission = m->permission, r->read_only = m->read_only;
	pthread_mutex_lock(&mutex);
	*key = r->key = ++last_key;
	r->next = t->regions, t->regions = r;
	pthread_mutex_unlock(&mutex);
	memcpy(d, t->id, 16);
	memcpy((char *)d + 16, key, 8);
	*n = 24;
	return 0;
}

static int shut(tent_transport *t, uint64_t key, const tent_peer *peer, uint64_t epoch, tent_error *e) {
	FIND(region, r, t->regions, r->key == key);
	if (!r) return fail(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SCOPE_SLICE, TENT_SIDE_LOCAL, "no region has this key");
	uint64_t *floor = &r->floor;
	if (peer) {
		FIND(door, d, r->doors, !memcmp(d->id, peer->id, 16));
		if (!d) {
			if (!(d = (door *)calloc(1, sizeof *d))) return no_memory(e);
			memcpy(d->id, peer->id, 16);
			d->next = r->doors, r->doors = d;
		}
		floor = &d->floor;
	}
	if (epoch == 0) *floor = ~0ull;
	else if (epoch > *floor) *floor = epoch;
	fail(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "the region was fenced by its owner");
	choice c = {NULL, NULL, r, NULL, 0};
	for (tent_transport *other = all; other; other = other->next) drop(other, c, e);
	while (r && lasts(c))
		for (r = t->regions; r && r->key != key;) r = r->next; /* deregister has waited for them, too */
	for (tent_transport *other = all; other; other = other->next)
		for (tie *l = other->links; l && epoch; l = l->next)
			if (l->to == t && (!peer || !memcmp(other->id, peer->id, 16)))
				other->host->fenced(other->port, l->number, key, epoch);
	return 0;
}

static int in_revoke(tent_transport *t, uint64_t key, const tent_peer *peer, uint64_t epoch, uint64_t limit,
                     tent_error *e) {
	(void)limit;
	pthread_mutex_lock(&mutex);
	int r = shut(t, key, peer, epoch, e);
	pthread_mutex_unlock(&mutex);
	return r;
}

static int in_deregister(tent_transport *t, uint64_t key, uint64_t limit, tent_error *e) {
	(void)limit;
	pthread_mutex_lock(&mutex);
	int failed = shut(t, key, NULL, 0, e);
	for (region **at = &t->regions; *at && !failed; at = &(*at)->next)
		if ((*at)->key == key) {
			region *r = *at;
			*at = r->next;
			forget_region(r);
			break;
		}
	pthread_mutex_unlock(&mutex);
	return failed;
}

static int in_attach(tent_transport *t, uint64_t number, const tent_peer *peer, tent_error *e) {
	tie *l = (tie *)calloc(1, sizeof *l);
	int failed = 0;
	pthread_mutex_lock(&mutex);
	FIND(tent_transport, to, all, !to->stop && !strcmp(to->address, peer->address));
	if (!to || !l) failed = gone(e, TENT_PEER_UNREACHABLE, "the peer is not in this process");
	else if (memcmp(to->id, peer->id, 16)) failed = gone(e, TENT_PEER_RESTARTED, "another incarnation answers");
	else {
		l->number = number, l->to = to, l->self = peer->self;
		memcpy(l->id, peer->id, 16);
		l->next = t->links, t->links = l;
		rise(t, l);
	}
	pthread_mutex_unlock(&mutex);
	if (failed) free(l);
	return failed;
}

static int in_import(tent_transport *t, uint64_t number, const void *d, size_t n, uint64_t *key, tent_error *e) {
	pthread_mutex_lock(&mutex);
	FIND(tie, l, t->links, l->number == number);
	int ours = l && n == 24 && !memcmp(d, l->id, 16);
	pthread_mutex_unlock(&mutex);
	if (!ours) return fail(e, TENT_INVALID_ARGUMENT, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "not a descriptor of the peer");
	memcpy(key, (const char *)d + 16, 8);
	return *key ? 0 : fail(e, TENT_INVALID_ARGUMENT, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "key 0");
}

static void in_forget(tent_transport *t, uint64_t number, uint64_t key) { (void)t, (void)number, (void)key; }
static void in_detach(tent_transport *t, uint64_t number) {
	pthread_mutex_lock(&mutex);
	for (tie **at = &t->links; *at; at = &(*at)->next)
		if ((*at)->number == number) {
			tie *l = *at;
			*at = l->next; /* nothing new comes */
			lower(t, l, TENT_LOST, "the link was detached", 1);
			free(l);
			break;
		}
	pthread_mutex_unlock(&mutex);
}

static tie *up(tent_transport *t, tent_rail rail) {
	FIND(tie, l, t->links, l->number == rail.link);
	return l && rail.generation && l->generation == rail.generation && rail.index == 0 ? l : NULL;
}

static size_t in_submit(tent_transport *t, tent_slice *const *slices, size_t n) {
	pthread_mutex_lock(&mutex);
	tie *l = up(t, slices[0]->rail);
	size_t taken = 0, room = SLICES_MAX - t->accepted;
	if (l) {
		l->starving |= n > room;
		for (; taken < n && taken < room; taken++) {
			tent_slice *s = slices[taken];
			s->scratch[1] = (uintptr_t)l;
			push(&t->queue[s->priority < CLASSES ? s->priority : CLASSES - 1], s);
			t->accepted++;
		}
	}
	if (taken && !t->polling) pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&mutex);
	return taken;
}

/* in_carry copies short slices on the caller's thread. The mutex keeps revoke out meanwhile. */
static int in_carry(tent_transport *t, tent_slice *const *slices, size_t n) {
	tent_error e;
	size_t done = 0;
	pthread_mutex_lock(&mutex);
	tie *l = up(t, slices[0]->rail);
	for (int i = 0; i < CLASSES; i++)
		if (t->queue[i].first) l = NULL; /* it overtakes nobody */
	for (; l && done < n; done++) {
		tent_slice *s = slices[done];
		s->scratch[1] = (uintptr_t)l;
		FIND(region, here, t->regions, here->key == s->local_key);
		FIND(region, there, l->to ? l->to->regions : NULL, there->key == s->remote_key);
		if (allowed(t, s, here, there, &e) || copy(s, there->address, t->trusting)) break;
	}
	pthread_mutex_unlock(&mutex);
	return done == n;
}

static void in_withdraw(tent_transport *t, const uint64_t *cookies, size_t n) {
	choice c = {NULL, NULL, NULL, cookies, n};
	tent_error e;
	fail(&e, TENT_WITHDRAWN, TENT_SCOPE_SLICE, TENT_SIDE_UNKNOWN, "asked back");
	pthread_mutex_lock(&mutex);
	drop(t, c, &e);
	pthread_mutex_unlock(&mutex);
}

static void in_fence(tent_transport *t, tent_rail rail) {
	pthread_mutex_lock(&mutex);
	tie *l = up(t, rail);
	if (l) {
		lower(t, l, TENT_WITHDRAWN, "the rail was fenced", 0);
		rise(t, l);
	}
	pthread_mutex_unlock(&mutex);
}

static void in_probe(tent_transport *t, tent_rail rail, uint64_t token) {
	tent_error e;
	fail(&e, TENT_STALE_GENERATION, TENT_SCOPE_RAIL, TENT_SIDE_LOCAL, "the rail is not up in this generation");
	pthread_mutex_lock(&mutex);
	t->host->done(t->port, token, 0, up(t, rail) ? NULL : &e);
	pthread_mutex_unlock(&mutex);
}

static int in_heard(tent_transport *t, tent_rail rail, tent_signs *signs) {
	struct timespec now;
	pthread_mutex_lock(&mutex);
	tie *l = up(t, rail);
	pthread_mutex_unlock(&mutex);
	clock_gettime(CLOCK_MONOTONIC, &now);
	signs->heard = signs->moved = signs->spoke = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	return l != NULL;
}

static int in_notify(tent_transport *t, uint64_t number, const void *message, size_t n, uint64_t token) {
	note *waits = (note *)calloc(1, sizeof *waits);
	tent_peer self;
	memset(&self, 0, sizeof self);
	self.size = sizeof self, self.address = t->address, self.name = t->name;
	memcpy(self.id, t->id, 16);
	pthread_mutex_lock(&mutex);
	FIND(tie, l, t->links, l->number == number);
	int sent = waits && l && l->to && l->to->host->notified(l->to->port, &self, message, n, (uintptr_t)waits);
	if (sent) {
		waits->from = t, waits->token = token;
		waits->next = l->to->notes, l->to->notes = waits;
	}
	pthread_mutex_unlock(&mutex);
	if (!sent) free(waits);
	return sent;
}

/* answer ends the notification of a note, if its sender is still there. */
static void answer(note *n, int taken) {
	tent_error e;
	fail(&e, TENT_TOO_MANY_REQUESTS, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "the peer has no room for the message");
	FIND(tent_transport, from, all, from == n->from);
	if (from) from->host->done(from->port, n->token, 0, taken ? NULL : &e);
	free(n);
}

static void in_noted(tent_transport *t, uint64_t token, int taken) {
	pthread_mutex_lock(&mutex);
	for (note **at = &t->notes; *at; at = &(*at)->next)
		if ((uintptr_t)*at == token) {
			note *n = *at;
			*at = n->next;
			answer(n, taken);
			break;
		}
	pthread_mutex_unlock(&mutex);
}

static size_t in_poll(tent_transport *t, size_t budget) {
	size_t done = 0;
	pthread_mutex_lock(&mutex);
	for (t->polling = 1; done < budget && carry(t);) done++;
	pthread_mutex_unlock(&mutex);
	return done;
}

static void in_arm(tent_transport *t) {
	pthread_mutex_lock(&mutex);
	t->polling = 0;
	pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&mutex);
}

static int in_close(tent_transport *t, uint64_t limit, tent_error *e) {
	(void)limit;
	pthread_mutex_lock(&mutex);
	t->stop = 1, t->polling = 0; /* nobody attaches any more, and others still find the slices that run here */
	pthread_cond_signal(&t->work);
	choice c = {NULL, t, NULL, NULL, 0};
	for (tent_transport *other = all; other; other = other->next)
		for (tie *l = other->links; l; l = l->next)
			if (l->to == t) lower(other, l, TENT_LOST, "the peer has closed", 0);
	while (lasts(c)) continue;
	gone(e, TENT_PEER_UNREACHABLE, "the peer has closed");
	for (tent_transport *other = all; other; other = other->next)
		for (tie *l = other->links; l; l = l->next)
			if (l->to == t && other != t) {
				l->to = NULL;
				other->host->link_down(other->port, l->number, e);
			}
	for (tie *l; (l = t->links); free(l)) {
		t->links = l->next;
		lower(t, l, TENT_LOST, "the transport was closed", 1);
	}
	for (note *n; (n = t->notes); answer(n, 0)) t->notes = n->next;
	for (region *r; (r = t->regions); forget_region(r)) t->regions = r->next;
	FIND(tent_transport, before, all, before->next == t);
	if (before) before->next = t->next; else all = t->next;
	pthread_mutex_unlock(&mutex);
	pthread_join(t->worker, NULL);
	pthread_cond_destroy(&t->work);
	free(t);
	return 0;
}

static const tent_setting settings[] = {
	{"trusting", "bool", NULL, "false", NULL, "Copies without the kernel: memory that is gone ends the process."},
};

static const tent_transport_api api = {
	sizeof api, TENT_TRANSPORT_MAJOR, TENT_TRANSPORT_MINOR, "inside", settings, 1, in_check, in_open, in_info, in_register,
	in_revoke, in_deregister, in_attach, in_import, in_forget, in_detach, in_submit, in_withdraw, in_fence, in_probe,
	in_close, NULL, NULL, in_notify, in_noted, in_heard, in_poll, in_arm, NULL, in_carry,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
};

#ifdef __cplusplus
extern "C"
#endif
const tent_transport_api *tent_transport_plugin(uint32_t major, uint32_t minor) {
	(void)minor;
	return major == TENT_TRANSPORT_MAJOR ? &api : NULL;
}

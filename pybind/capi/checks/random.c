/* Random programs of several threads over two engines, beside a model of every byte and of every notification.
 *
 * A request that is COMPLETED has moved the bytes of the model. One that is not has a reason: it was cancelled, or its
 * time was over. From its end on its destination stays as it is. Wrong handles are refused, and batches may be freed at
 * any time. A notification arrives once if its batch is COMPLETED, else once at most. TENT_SEED repeats a program. */
#define _XOPEN_SOURCE 700
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tent/transfer_engine.h"

enum { THREADS = 3, STEPS = 400, SIZE = 1 << 16, MEMORIES = 4, REQUESTS = 12, FLIGHTS = 24, NOTES = STEPS, LIMIT_MS = 30000 };

static uint64_t seed;
static tent_engine_t engines[2];
static char names[2][256];
static atomic_int arrived[THREADS][NOTES], completed;

/* Bytes of an engine and their model. */
struct memory {
	int owner, allocated;
	unsigned char *bytes, model[SIZE], known[SIZE], written[SIZE]; /* written: by a request under way */
	unsigned short read[SIZE];                                     /* by so many of them */
};

struct move {
	struct memory *source, *destination;
	size_t from, to, n;
	unsigned char sent[SIZE], known[SIZE]; /* the source's bytes, and whether they were known */
};

struct flight {
	int mover, count, excused, note; /* note: its number, -1 none */
	tent_batch_id_t batch;
	struct move *moves;
	uint64_t seen; /* transferred bytes */
};

/* One thread's program: its memory is its own, the engines are everybody's. */
struct program {
	int number;
	uint64_t dice;
	struct memory memories[MEMORIES];
	tent_segment_id_t peers[2]; /* the other engine, as each of the two has it */
	struct flight flights[FLIGHTS];
	int flying, notes, must[NOTES];
	tent_batch_id_t stale[2];
};

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "random: TENT_SEED=%" PRIu64 ": %s: %s\n", seed, what, tent_last_error());
	abort();
}

static uint64_t below(struct program *p, uint64_t n) { /* xorshift */
	p->dice ^= p->dice << 13;
	p->dice ^= p->dice >> 7;
	p->dice ^= p->dice << 17;
	return p->dice % n;
}

static void check(const struct memory *m) {
	for (size_t i = 0; i < SIZE; i++) must(!m->known[i] || m->bytes[i] == m->model[i], "a byte is wrong");
}

static void offer(struct memory *m) { must(tent_register_memory(engines[m->owner], m->bytes, SIZE) == 0, "tent_register_memory"); }

static void begin(struct program *p) {
	for (int i = 0; i < MEMORIES; i++) {
		struct memory *m = &p->memories[i];
		m->owner = i % 2;
		m->allocated = i / 2;
		if (m->allocated)
			must(tent_allocate_memory(engines[m->owner], (void **)&m->bytes, SIZE, "") == 0, "tent_allocate_memory");
		else {
			m->bytes = malloc(SIZE);
			must(m->bytes != NULL, "malloc");
			offer(m);
		}
		for (size_t j = 0; j < SIZE; j++) m->bytes[j] = m->model[j] = (unsigned char)below(p, 256), m->known[j] = 1;
	}
	for (int i = 0; i < 2; i++) must(tent_open_segment(engines[i], &p->peers[i], names[1 - i]) == 0, "tent_open_segment");
}

/* Enters the bytes of a move, if it disturbs no other one. */
static int take(struct move *m) {
	for (size_t i = 0; i < m->n; i++)
		if (m->source->written[m->from + i] || m->destination->written[m->to + i] || m->destination->read[m->to + i]) return 0;
	if (m->source == m->destination && m->from < m->to + m->n && m->to < m->from + m->n) return 0;
	for (size_t i = 0; i < m->n; i++) {
		m->source->read[m->from + i]++;
		m->destination->written[m->to + i] = 1;
		m->sent[i] = m->source->model[m->from + i];
		m->known[i] = m->source->known[m->from + i];
		m->destination->known[m->to + i] = 0;
	}
	return 1;
}

/* The end of a move: nobody writes to its destination any more. */
static void settle(struct move *m, int moved) {
	for (size_t i = 0; i < m->n; i++) {
		struct memory *d = m->destination;
		m->source->read[m->from + i]--;
		d->written[m->to + i] = 0;
		d->known[m->to + i] = 1;
		d->model[m->to + i] = moved && m->known[i] ? m->sent[i] : d->bytes[m->to + i];
	}
	check(m->destination);
	check(m->source);
}

static void submits(struct program *p) {
	if (p->flying == FLIGHTS) return;
	struct flight *f = &p->flights[p->flying];
	tent_request_t requests[REQUESTS];
	tent_submit_options_t options;
	char name[16], message[16];
	memset(f, 0, sizeof *f);
	memset(requests, 0, sizeof requests);
	memset(&options, 0, sizeof options);
	f->mover = (int)below(p, 2);
	f->note = -1;
	f->moves = calloc(REQUESTS, sizeof *f->moves);
	must(f->moves != NULL, "calloc");
	struct memory *near = &p->memories[f->mover + 2 * below(p, 2)], *far = &p->memories[below(p, MEMORIES)];
	int wanted = 1 + (int)below(p, REQUESTS);
	for (int i = 0; i < wanted; i++) {
		struct move *m = &f->moves[f->count];
		int writes = (int)below(p, 2);
		m->source = writes ? near : far;
		m->destination = writes ? far : near;
		m->n = 1 + below(p, below(p, 4) ? 5000 : SIZE);
		m->from = below(p, SIZE - m->n + 1);
		m->to = below(p, SIZE - m->n + 1);
		if (!take(m)) continue;
		tent_request_t *r = &requests[f->count++];
		r->opcode = writes ? OPCODE_WRITE : OPCODE_READ;
		r->source = near->bytes + (writes ? m->from : m->to);
		r->target_id = far->owner == f->mover ? TENT_LOCAL_SEGMENT_ID : p->peers[f->mover];
		r->target_offset = (uintptr_t)far->bytes + (writes ? m->to : m->from);
		r->length = m->n;
		r->priority = (int)below(p, 3);
	}
	f->batch = f->count ? tent_allocate_batch(engines[f->mover], (size_t)f->count) : 0;
	if (!f->count) return free(f->moves);
	must(f->batch != 0, "tent_allocate_batch");
	if (below(p, 10) == 0) {
		struct timespec now;
		clock_gettime(CLOCK_MONOTONIC, &now);
		options.deadline_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + below(p, 3000000);
		f->excused = 1;
	}
	if (below(p, 2)) {
		f->note = p->notes++;
		options.notify = 1;
		snprintf(name, sizeof name, "%d", p->number);
		options.name = name;
		options.message = message;
		options.message_bytes = (size_t)snprintf(message, sizeof message, "%d", f->note);
	}
	must(tent_submit_ex(engines[f->mover], f->batch, requests, (size_t)f->count + 1, &options) == -1, "too many requests");
	int first = below(p, 2) ? f->count : 1 + (int)below(p, (uint64_t)f->count); /* in one submit, or in two */
	tent_submit_options_t rest = options;
	if (first < f->count) options.notify = 0;
	for (int part = 0; part < 1 + (first < f->count); part++) {
		size_t n = (size_t)(part ? f->count - first : first);
		int result = tent_submit_ex(engines[f->mover], f->batch, requests + (part ? first : 0), n, part ? &rest : &options);
		if (result == 0) continue;
		must(f->excused && strncmp(tent_last_error(), "TIMEOUT", 7) == 0, "tent_submit_ex"); /* the deadline had passed */
		for (int i = part ? first : 0; i < f->count; i++) settle(&f->moves[i], 0);
		f->count = part ? first : 0;
		f->note = -1;
		break;
	}
	memset(message, 'x', sizeof message); /* the engine has its own */
	if (f->count) p->flying++;
	else must(tent_free_batch(engines[f->mover], f->batch) == 0, "tent_free_batch"), free(f->moves);
}

static struct flight *any(struct program *p) { return p->flying ? &p->flights[below(p, (uint64_t)p->flying)] : NULL; }

static void looks(struct program *p) {
	struct flight *f = any(p);
	if (!f) return;
	tent_status_t all, one, list[REQUESTS];
	size_t count = REQUESTS;
	must(tent_overall_status(engines[f->mover], f->batch, &all) == 0, "tent_overall_status");
	must(all.status >= STATUS_PENDING && all.transferred_bytes >= f->seen, "transferred_bytes has fallen");
	f->seen = all.transferred_bytes;
	must(tent_task_status_list(engines[f->mover], f->batch, list, &count) == 0 && count == (size_t)f->count, "the list");
	must(tent_task_status(engines[f->mover], f->batch, (size_t)f->count, &one) == -1, "a task that is not there");
	must(tent_wait(engines[f->mover], f->batch, 0, &one) >= 0, "tent_wait");
	for (int i = 0; all.status == STATUS_COMPLETED && i < f->count; i++)
		must(list[i].status == STATUS_COMPLETED && list[i].transferred_bytes == f->moves[i].n, "a task of a COMPLETED batch");
}

static void cancels(struct program *p) {
	struct flight *f = any(p);
	if (!f) return;
	f->excused = 1;
	must(tent_cancel_task(engines[f->mover], f->batch, below(p, (uint64_t)f->count)) == 0, "tent_cancel_task");
}

static void removed(struct program *p, struct flight *f) {
	free(f->moves);
	*f = p->flights[--p->flying];
}

static void finishes(struct program *p) {
	struct flight *f = any(p);
	if (!f) return;
	tent_status_t all, list[REQUESTS];
	size_t count = REQUESTS;
	tent_engine_t engine = engines[f->mover];
	must(tent_wait(engine, f->batch, LIMIT_MS, &all) == 0 && all.status > STATUS_PENDING, "a batch does not end");
	must(all.status == STATUS_COMPLETED || f->excused, "a batch has failed");
	must(tent_task_status_list(engine, f->batch, list, &count) == 0 && count == (size_t)f->count, "tent_task_status_list");
	for (int i = 0; i < f->count; i++) {
		must(list[i].status > STATUS_PENDING, "a task of a batch that has ended");
		must(all.status != STATUS_COMPLETED || list[i].status == STATUS_COMPLETED, "a task of a batch that is COMPLETED");
		settle(&f->moves[i], list[i].status == STATUS_COMPLETED);
	}
	completed += all.status == STATUS_COMPLETED;
	if (f->note >= 0 && all.status == STATUS_COMPLETED) p->must[f->note] = 1;
	must(tent_free_batch(engine, f->batch) == 0, "tent_free_batch");
	must(tent_free_batch(engine, f->batch) == -1, "a batch is freed twice");
	must(tent_overall_status(engine, f->batch, &all) == -1, "a batch that was freed has a status");
	p->stale[f->mover] = f->batch;
	removed(p, f);
}

/* Frees a batch that may be under way: its bytes are not looked at any more. */
static void drops(struct program *p) {
	struct flight *f = any(p);
	if (!f) return;
	must(tent_free_batch(engines[f->mover], f->batch) == 0, "tent_free_batch");
	must(tent_free_batch(engines[f->mover], f->batch) == -1, "a batch is freed twice");
	removed(p, f);
}

static int idle(const struct memory *m) {
	for (size_t i = 0; i < SIZE; i++)
		if (m->read[i] || m->written[i]) return 0;
	return 1;
}

static void registers(struct program *p) {
	struct memory *m = &p->memories[below(p, MEMORIES)];
	if (!idle(m)) return;
	must(tent_unregister_memory(engines[m->owner], m->bytes, SIZE) == 0, "tent_unregister_memory");
	must(tent_unregister_memory(engines[m->owner], m->bytes, SIZE) == -1, "memory is unregistered twice");
	check(m);
	offer(m);
}

static void tells(struct program *p) {
	int from = (int)below(p, 2), own = (int)below(p, 4) == 0, note = p->notes++;
	char name[16], message[16];
	snprintf(name, sizeof name, "%d", p->number);
	snprintf(message, sizeof message, "%d", note);
	must(tent_send_notifs(engines[from], own ? TENT_LOCAL_SEGMENT_ID : p->peers[from], name, message) == 0, "tent_send_notifs");
	p->must[note] = 1;
}

static void heard(const char *name, const char *message) {
	int thread = atoi(name), note = atoi(message);
	must(thread >= 0 && thread < THREADS && note >= 0 && note < NOTES, "a notification that nobody has sent");
	must(atomic_fetch_add(&arrived[thread][note], 1) == 0, "a notification has arrived twice");
}

static void hears(int at, int64_t timeout_ms) {
	tent_notifi_info some;
	tent_notif_t one;
	int got = tent_recv_notif(engines[at], timeout_ms, &one);
	must(got >= 0, "tent_recv_notif");
	if (got) {
		must(strcmp(one.peer, names[0]) == 0 || strcmp(one.peer, names[1]) == 0, "a notification of another peer");
		heard(one.name, one.message);
		tent_free_notif(&one);
	}
	must(tent_recv_notifs(engines[at], &some) == 0, "tent_recv_notifs");
	for (int i = 0; i < some.num_records; i++) heard(some.records[i].name, some.records[i].msg);
	tent_free_notifs(&some);
}

static void errs(struct program *p) {
	int at = (int)below(p, 2);
	tent_engine_t nobody = (tent_engine_t)(uintptr_t)(1000000 + below(p, 1000)), engine = below(p, 2) ? engines[at] : nobody;
	tent_batch_id_t batch = below(p, 2) || !p->stale[at] ? p->dice | UINT64_C(1) << 63 : p->stale[at];
	tent_segment_id_t segment = 1000000 + below(p, 1000);
	tent_request_t r = {OPCODE_WRITE, p->memories[at].bytes, segment, 0, 10, 0, 0};
	tent_status_t status;
	size_t count = 1;
	int result = 0;
	switch (below(p, 9)) {
	case 0: result = tent_submit(engine, batch, &r, 1); break;
	case 1: result = tent_overall_status(engine, batch, &status); break;
	case 2: result = tent_task_status(engine, batch, 0, &status); break;
	case 3: result = tent_task_status_list(engine, batch, &status, &count); break;
	case 4: result = tent_cancel_task(engine, batch, 0); break;
	case 5: result = tent_wait(engine, batch, 5, &status); break;
	case 6: result = tent_free_batch(engine, batch); break;
	case 7: result = tent_close_segment(engine, segment); break;
	case 8: result = tent_send_notifs(engine, segment, "a", "b"); break;
	}
	must(result == -1 && tent_last_error()[0], "a wrong handle is no error");
}

static void *runs(void *argument) {
	struct program *p = argument;
	for (int step = 0; step < STEPS; step++) {
		uint64_t chance = below(p, 100);
		if (chance < 35) submits(p);
		else if (chance < 60) finishes(p);
		else if (chance < 70) looks(p);
		else if (chance < 74) cancels(p);
		else if (chance < 75) drops(p);
		else if (chance < 80) registers(p);
		else if (chance < 85) tells(p);
		else if (chance < 93) hears((int)below(p, 2), (int64_t)below(p, 3));
		else errs(p);
	}
	while (p->flying) finishes(p);
	return NULL;
}

int main(void) {
	static struct program programs[THREADS];
	pthread_t threads[THREADS];
	const char *given = getenv("TENT_SEED");
	seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000003 + (uint64_t)clock();
	for (int i = 0; i < 2; i++) {
		if (seed % 2) tent_set_config("transports/shm/enable", "false");
		engines[i] = tent_create_engine();
		must(engines[i] != NULL && tent_segment_name(engines[i], names[i], sizeof names[i]) == 0, "tent_create_engine");
	}
	for (int i = 0; i < THREADS; i++) {
		programs[i].number = i;
		programs[i].dice = seed * THREADS + (uint64_t)i + 1;
		for (int j = 0; j < 20; j++) below(&programs[i], 2);
		begin(&programs[i]);
	}
	for (int i = 0; i < THREADS; i++) must(pthread_create(&threads[i], NULL, runs, &programs[i]) == 0, "pthread_create");
	for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
	for (int at = 0; at < 2; at++)
		for (int i = 0; i < 10; i++) hears(at, i == 0 ? 10 : 0);
	for (int i = 0; i < 2; i++) {
		tent_destroy_engine(engines[i]);
		must(tent_last_error()[0] == 0, "tent_destroy_engine");
	}
	for (int i = 0; i < THREADS; i++) {
		struct program *p = &programs[i];
		for (int note = 0; note < p->notes; note++) must(!p->must[note] || arrived[i][note], "a notification is lost");
		for (int j = 0; j < MEMORIES; j++) {
			struct memory *m = &p->memories[j];
			check(m);
			if (m->allocated) must(tent_free_memory(engines[m->owner], m->bytes) == 0, "tent_free_memory");
			else free(m->bytes);
		}
	}
	must(completed > 100, "hardly a batch was COMPLETED");
	printf("every byte and notification of random programs is where the model has it\n");
	return 0;
}

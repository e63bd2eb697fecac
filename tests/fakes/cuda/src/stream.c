/* Streams and events. Each stream is a thread with a queue; its work waits for a seeded delay first. Threads sleep
 * on the condition that they wait for: one wakes for its own stream, and not for each copy of every other. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

pthread_cond_t fake_moved = PTHREAD_COND_INITIALIZER;
struct stream *fake_streams;
static int held;
static unsigned births;

/* In µs. A thread that sleeps for less costs more than the work that it delays, so it sleeps rarely then, by chance. */
enum { SHORTEST = 50 };

static void delay(struct stream *s) {
	long most = fake_setting("DELAY_US", 0);
	if (most <= 0)
		return;
	long us = rand_r(&s->random) % (most + 1);
	if (us < SHORTEST && rand_r(&s->random) % SHORTEST >= us)
		return;
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	nanosleep(&t, NULL);
}

/* Carries out work. The lock is held, and given back while bytes move. */
static void carry(struct stream *s, struct work *w) {
	int poisoned = s->context->poisoned;
	switch (w->what) {
	case RECORD:
		if (w->event->reached < w->turn)
			w->event->reached = w->turn;
		return;
	case WAIT:
		while (w->event->reached < w->turn)
			pthread_cond_wait(&fake_moved, &fake_lock);
		return;
	case WAIT_VALUE: /* a GPU's front end looks at the word again and again, here ever less often; nobody wakes it */
		for (long pause = 20000; (int32_t)(*w->word - (uint32_t)w->turn) < 0 && !s->context->poisoned;) {
			pthread_mutex_unlock(&fake_lock);
			nanosleep(&(struct timespec){0, pause}, NULL);
			pause = pause < 1000000 ? 2 * pause : pause;
			pthread_mutex_lock(&fake_lock);
		}
		return;
	default:
		break;
	}
	for (size_t i = 0; i < w->count; i++) {
		struct segment *g = &w->segments[i];
		for (int side = 0; side < 2; side++)
			if (g->holds[side] && g->holds[side]->trailer->freed)
				fake_stats.stale++;
	}
	if (w->what == COPY && !poisoned && fake_injected("copy", s->context))
		poisoned = s->context->poisoned;
	pthread_mutex_unlock(&fake_lock);
	if (!poisoned)
		delay(s);
	for (size_t i = 0; i < w->count && !poisoned; i++) {
		struct segment *g = &w->segments[i];
		if (w->what == SET)
			memset(g->to, w->byte, g->bytes);
		else if (w->what == KERNEL)
			fake_kernel(g, w->blocks);
		else
			memcpy(g->to, g->from, g->bytes);
	}
	pthread_mutex_lock(&fake_lock);
	for (size_t i = 0; i < w->count; i++)
		for (int side = 0; side < 2; side++)
			if (w->segments[i].holds[side])
				fake_drop(w->segments[i].holds[side]);
	fake_stats.copies += (int64_t)w->count;
}

static void *run(void *argument) {
	struct stream *s = argument;
	prctl(PR_SET_TIMERSLACK, 1); /* of delay: the usual slack is ten times as long */
	pthread_mutex_lock(&fake_lock);
	for (;;) {
		while ((!s->first && !s->ending) || (s->first && held))
			pthread_cond_wait(&s->came, &fake_lock);
		if (!s->first)
			break;
		struct work *w = s->first;
		while (w->behind && s->context->legacy->done < w->behind)
			pthread_cond_wait(&fake_moved, &fake_lock);
		carry(s, w);
		if (!(s->first = w->next))
			s->last = NULL;
		s->done++;
		if (s->awaited && s->done >= s->awaited) {
			s->awaited = 0;
			pthread_cond_broadcast(&s->went);
		}
		if (!s->first || w->what == RECORD)
			pthread_cond_broadcast(&fake_moved);
		free(w->segments);
		free(w);
	}
	s->context = NULL; /* the sign of its end */
	pthread_cond_broadcast(&fake_moved);
	pthread_mutex_unlock(&fake_lock);
	return NULL;
}

static struct stream *begin(struct context *c) {
	struct stream *s = calloc(1, sizeof *s);
	s->context = c;
	pthread_cond_init(&s->came, NULL);
	pthread_cond_init(&s->went, NULL);
	s->random = (unsigned)fake_setting("SEED", 1) + ++births * 7919;
	if (pthread_create(&s->thread, NULL, run, s)) {
		free(s);
		return NULL;
	}
	s->next = fake_streams;
	fake_streams = s;
	return s;
}

/* 0 and 1 are the legacy stream of the current context, 2 that of the thread; here all three are one. */
struct stream *fake_stream_of(void *handle, struct context *current) {
	if ((uintptr_t)handle > 2) {
		for (struct stream *s = fake_streams; s; s = s->next)
			if (s == handle)
				return s;
		return NULL;
	}
	if (!current->legacy && (current->legacy = begin(current->green ? &fake_contexts[current->device] : current)))
		current->legacy->green = current->green ? current : NULL;
	return current->legacy;
}

/* With free copies, the call that queues a copy ends it, and no byte moves. */
static int ends_at_once(struct stream *s, struct work *w) {
	static int free_copies = -1;
	if (free_copies < 0)
		free_copies = (int)fake_setting("FREE", 0);
	if (!free_copies || s->first || held || s->context->poisoned || (w->what != COPY && w->what != RECORD && w->what != KERNEL))
		return 0;
	if (w->what == RECORD)
		w->event->reached = w->turn;
	for (size_t i = 0; i < w->count; i++)
		for (int side = 0; side < 2; side++)
			if (w->segments[i].holds[side])
				fake_drop(w->segments[i].holds[side]);
	fake_stats.copies += (int64_t)w->count;
	free(w->segments);
	s->queued++;
	s->done++;
	return 1;
}

int fake_queue(struct stream *s, struct work *w) {
	if (ends_at_once(s, w))
		return OK;
	struct work *kept = malloc(sizeof *kept);
	*kept = *w;
	kept->next = NULL;
	kept->behind = s->blocking && s->context->legacy ? s->context->legacy->queued : 0;
	if (s->last)
		s->last->next = kept;
	else
		s->first = kept;
	s->last = kept;
	s->queued++;
	if (s->first == kept)
		pthread_cond_signal(&s->came);
	return OK;
}

void fake_hold(int on) {
	held = on;
	for (struct stream *s = fake_streams; s; s = s->next)
		pthread_cond_signal(&s->came);
}

void fake_wait(struct stream *s, uint64_t turn) {
	while (s->done < turn) {
		if (!s->awaited || turn < s->awaited)
			s->awaited = turn;
		pthread_cond_wait(&s->went, &fake_lock);
	}
}

void fake_drain(void) {
again:
	for (struct stream *s = fake_streams; s; s = s->next)
		if (s->done < s->queued) {
			pthread_cond_wait(&fake_moved, &fake_lock);
			goto again; /* streams may have come and gone */
		}
}

API int cuStreamCreate(struct stream **stream, unsigned flags) {
	struct context *current;
	int result = fake_enter_current("cuStreamCreate", &current);
	if (result)
		return result;
	if (flags > 1)
		return fake_leave(INVALID_VALUE);
	if (!(*stream = begin(current->green ? &fake_contexts[current->device] : current)))
		return fake_leave(OUT_OF_MEMORY);
	(*stream)->green = current->green ? current : NULL;
	(*stream)->blocking = !(flags & 1); /* CU_STREAM_NON_BLOCKING */
	fake_stats.streams++;
	return fake_leave(OK);
}

API int cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
	(void)priority;
	return cuStreamCreate(stream, flags);
}

/* Returns at once on hardware, and the work goes on; here the thread must end, so this waits. */
API int cuStreamDestroy_v2(struct stream *handle) {
	struct context *current;
	int result = fake_enter_current("cuStreamDestroy_v2", &current);
	if (result)
		return result;
	struct stream *s = (uintptr_t)handle > 2 ? fake_stream_of(handle, current) : NULL;
	if (!s)
		return fake_leave(INVALID_HANDLE);
	s->ending = 1;
	fake_captures -= s->capturing;
	pthread_cond_signal(&s->came);
	while (s->context)
		pthread_cond_wait(&fake_moved, &fake_lock);
	for (struct stream **at = &fake_streams; *at; at = &(*at)->next)
		if (*at == s) {
			*at = s->next;
			break;
		}
	pthread_t thread = s->thread;
	fake_stats.streams--;
	fake_leave(OK);
	pthread_join(thread, NULL);
	free(s);
	return OK;
}

/* Whether the legacy stream of a context stands behind a stream that is being captured. */
static int behind_capture(void *handle, struct context *current) {
	for (struct stream *s = fake_streams; s && (uintptr_t)handle < 2; s = s->next)
		if (s->context == current && s->blocking && s->capturing)
			return 1;
	return 0;
}

/* Takes the lock for a call about a stream. */
int fake_enter_stream(const char *function, void *handle, struct context **current, struct stream **s) {
	int result = fake_enter_current(function, current);
	if (result)
		return result;
	if (behind_capture(handle, *current))
		return fake_leave(CAPTURE_IMPLICIT);
	if (!(*s = fake_stream_of(handle, *current)) || (*s)->ending)
		return fake_leave(INVALID_HANDLE);
	return (*s)->context->poisoned ? fake_leave((*s)->context->poisoned) : OK;
}

API int cuStreamQuery(void *handle) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuStreamQuery", handle, &current, &s);
	return result ? result : fake_leave(s->done == s->queued ? OK : NOT_READY);
}

API int cuStreamSynchronize(void *handle) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuStreamSynchronize", handle, &current, &s);
	if (result)
		return result;
	fake_wait(s, s->queued);
	return fake_leave(s->context->poisoned);
}

API int cuStreamGetCtx(void *handle, struct context **context) {
	struct stream *s;
	if ((uintptr_t)handle <= 2) { /* that of the current context */
		int result = fake_enter_current("cuStreamGetCtx", context);
		return result ? result : fake_leave(OK);
	}
	int result = fake_enter("cuStreamGetCtx");
	if (result)
		return result;
	if (!(s = fake_stream_of(handle, NULL)))
		return fake_leave(INVALID_HANDLE);
	*context = s->green ? s->green : s->context;
	return fake_leave(OK);
}

#if FAKE_DRIVER >= 12050
API int cuStreamGetCtx_v2(void *handle, struct context **context, struct context **green) {
	*green = NULL;
	int result = cuStreamGetCtx(handle, context);
	if (!result && (*context)->green) {
		*green = *context;
		*context = &fake_contexts[(*context)->device];
	}
	return result;
}
#endif

API int cuStreamIsCapturing(void *handle, int *status) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuStreamIsCapturing", handle, &current, &s);
	if (result)
		return result;
	*status = s->capturing;
	return fake_leave(OK);
}

/* Nothing is captured: the stream only says that it is, and other calls are forbidden as beside a mode of GLOBAL. */
API int cuStreamBeginCapture_v2(void *handle, int mode) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuStreamBeginCapture_v2", handle, &current, &s);
	if (result)
		return result;
	if ((uintptr_t)handle <= 2 || s->capturing || mode)
		return fake_leave(mode ? INVALID_VALUE : CAPTURE_UNSUPPORTED);
	fake_captures++;
	s->capturing = 1;
	return fake_leave(OK);
}

API int cuStreamEndCapture(void *handle, void **graph) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuStreamEndCapture", handle, &current, &s);
	if (result)
		return result;
	if (!s->capturing)
		return fake_leave(INVALID_VALUE);
	fake_captures--;
	s->capturing = 0;
	*graph = calloc(1, 1);
	return fake_leave(OK);
}

API int cuGraphDestroy(void *graph) {
	int result = fake_enter("cuGraphDestroy");
	if (result)
		return result;
	free(graph);
	return fake_leave(OK);
}

API int cuStreamWaitEvent(void *handle, struct event *e, unsigned flags) {
	struct context *current;
	struct stream *s;
	(void)flags;
	int result = fake_enter_stream("cuStreamWaitEvent", handle, &current, &s);
	if (result)
		return result;
	return fake_leave(fake_queue(s, &(struct work){.what = WAIT, .event = e, .turn = e->recorded}));
}

/* Flags: 0 is GEQ, the comparison wraps around; 1 << 30 flushes writes of other devices. */
API int cuStreamWaitValue32_v2(void *handle, uint64_t address, uint32_t value, unsigned flags) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuStreamWaitValue32_v2", handle, &current, &s);
	if (result)
		return result;
	struct range *r = fake_find(address);
	if (flags & 1u << 30 && !fake_setting("CAN_FLUSH", 0))
		return fake_leave(NOT_SUPPORTED);
	if (flags & ~(1u << 30) || address % 4 || !r || r->kind != PINNED)
		return fake_leave(INVALID_VALUE);
	fake_flushes[s->context->device] += flags != 0;
	return fake_leave(fake_queue(s, &(struct work){.what = WAIT_VALUE, .word = (uint32_t *)address, .turn = value}));
}

API int cuEventCreate(struct event **event, unsigned flags) {
	struct context *current;
	int result = fake_enter_current("cuEventCreate", &current);
	if (result)
		return result;
	if (flags & ~7u)
		return fake_leave(INVALID_VALUE);
	*event = calloc(1, sizeof **event);
	(*event)->context = current->green ? &fake_contexts[current->device] : current;
	fake_stats.events++;
	return fake_leave(OK);
}

API int cuEventDestroy_v2(struct event *event) { /* the memory stays: work may still name it */
	int result = fake_enter("cuEventDestroy_v2");
	if (result)
		return result;
	if (event->destroyed)
		return fake_leave(INVALID_HANDLE);
	event->destroyed = 1;
	fake_stats.events--;
	return fake_leave(OK);
}

API int cuEventRecord(struct event *event, void *handle) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuEventRecord", handle, &current, &s);
	if (result)
		return result;
	if (event->context != s->context) /* an event of another device */
		return fake_leave(INVALID_HANDLE);
	return fake_leave(fake_queue(s, &(struct work){.what = RECORD, .event = event, .turn = ++event->recorded}));
}

API int cuEventQuery(struct event *event) {
	int result = fake_enter("cuEventQuery");
	if (result)
		return result;
	if (event->context->poisoned)
		return fake_leave(event->context->poisoned);
	return fake_leave(event->reached >= event->recorded ? OK : NOT_READY);
}

API int cuEventSynchronize(struct event *event) {
	int result = fake_enter("cuEventSynchronize");
	if (result)
		return result;
	while (event->reached < event->recorded)
		pthread_cond_wait(&fake_moved, &fake_lock);
	return fake_leave(event->context->poisoned);
}

//go:build cgo

/* Streams of the program: events behind their work, and words that they wait for. */
#define _GNU_SOURCE
#include "shim.h"
#include "inside.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Events that nobody uses. Making one takes the driver some microseconds, and there is one for each request. */
#define EVENTS_KEPT 64
static struct {
	tc_context context;
	tc_event event;
} idle[EVENTS_KEPT];
static int idle_count;

static tc_event take_event(tc_context context) {
	tc_event event = NULL;
	pthread_mutex_lock(&lock);
	for (int i = idle_count; i-- > 0 && !event;)
		if (idle[i].context == context) {
			event = idle[i].event;
			idle[i] = idle[--idle_count];
		}
	pthread_mutex_unlock(&lock);
	return event;
}

/* An event that was not reached may be recorded again: only its newest record counts. */
void give_event(tc_context context, tc_event event) {
	pthread_mutex_lock(&lock);
	int keep = idle_count < EVENTS_KEPT;
	if (keep) {
		idle[idle_count].context = context;
		idle[idle_count++].event = event;
	}
	pthread_mutex_unlock(&lock);
	if (!keep)
		cu.cuEventDestroy_v2(event);
}

/* Records an event behind the work that is in a stream now; its context is current. One that was kept
 * may be of a context that has ended, at the address of this one: then a new one is made. */
tc_result record(tc_context context, tc_stream stream, tc_event *event) {
	if ((*event = take_event(context))) {
		if (!cu.cuEventRecord(*event, stream))
			return ended(TC_OK, "");
		cu.cuEventDestroy_v2(*event);
	}
	tc_result r = CALL(cuEventCreate, event, TC_EVENT_DISABLE_TIMING);
	if (r.code)
		return r;
	r = CALL(cuEventRecord, *event, stream);
	if (r.code)
		cu.cuEventDestroy_v2(*event);
	return r;
}

/* Work in a stream that is being captured belongs to a graph. The legacy default stream would wait for one that is, if it
 * is no NON_BLOCKING one, and the driver refuses that. */
static tc_result not_capturing(tc_stream stream) {
	int capturing = 0;
	tc_result r = ended(TC_OK, "");
	if (cu.cuStreamIsCapturing)
		r = CALL(cuStreamIsCapturing, stream, &capturing);
	if (r.code == TC_STREAM_CAPTURE_IMPLICIT || (!r.code && capturing))
		return ended(TC_CAPTURING, r.call);
	return r;
}

/* Adds an event behind the work in a stream. It is of a context of its own: home. */
static tc_result add(tc_context context, tc_context home, tc_stream stream, tc_gate *gate) {
	thread_state before;
	tc_result r = push(context, &before);
	if (r.code)
		return r;
	tc_event event = NULL;
	r = not_capturing(stream);
	if (!r.code)
		r = record(home, stream, &event);
	pop(&before);
	if (!r.code) {
		gate->of[gate->count].context = home;
		gate->of[gate->count++].event = event;
	}
	return r;
}

/* The context of a stream, and that of its events. Default streams (0, 1 and 2) belong to a device, -1 for that of the
 * thread; NULL where the thread has none.
 *
 * The program may have made a stream in a green context, which is for one thread at a time. So ours use the primary one
 * of its device, which has its events, too; but for a default stream, of which the thread's own context decides. */
static tc_result owner(uint64_t stream, int device, tc_context *context, tc_context *home) {
	tc_result r = ended(TC_OK, "");
	*context = *home = NULL;
	if (stream > 2 && !cu.cuStreamGetCtx_v2) /* CUDA 12.5 has it */
		r = CALL(cuStreamGetCtx, (tc_stream)stream, context);
	else if (stream <= 2 && device >= 0)
		r = context_of(device, context);
	else if (stream <= 2)
		r = CALL(cuCtxGetCurrent, context);
	*home = *context;
	void *green;
	if (!r.code && cu.cuStreamGetCtx_v2 && (stream > 2 || (device < 0 && *context)))
		r = CALL(cuStreamGetCtx_v2, (tc_stream)stream, home, &green);
	if (!*context)
		*context = *home;
	return r;
}

/* The default streams of all devices that are in use. */
static tc_result add_all(uint64_t stream, tc_gate *gate) {
	int count = 0;
	tc_result r = CALL(cuDeviceGetCount, &count);
	for (int i = 0; i < count && i < DEVICES_MAX && !r.code; i++) {
		int handle, active = 0;
		unsigned flags;
		tc_context context;
		r = CALL(cuDeviceGet, &handle, i);
		if (!r.code)
			r = CALL(cuDevicePrimaryCtxGetState, handle, &flags, &active);
		if (!r.code && active && !(r = context_of(i, &context)).code)
			r = add(context, context, (tc_stream)stream, gate);
	}
	return r;
}

tc_result tc_record(uint64_t stream, int device, tc_gate **gate) {
	if (forked())
		return ended(TC_FORKED, "cuEventRecord");
	tc_context context, home;
	tc_result r = owner(stream, device, &context, &home);
	if (r.code)
		return r;
	tc_gate *g = calloc(1, sizeof *g + (context ? 1 : DEVICES_MAX) * sizeof *g->of);
	if (!g)
		return ended(TC_NO_MEMORY, "calloc");
	r = context ? add(context, home, (tc_stream)stream, g) : add_all(stream, g);
	if (r.code) {
		tc_forget(g);
		return r;
	}
	*gate = g;
	return r;
}

static tc_result query(tc_context context, tc_event event) {
	thread_state before;
	tc_result r = push(context, &before);
	if (r.code)
		return r;
	r = CALL(cuEventQuery, event);
	pop(&before);
	return r;
}

tc_result tc_passed(tc_gate *gate, int *passed) {
	*passed = 0;
	while (gate->count) {
		tc_context context = gate->of[gate->count - 1].context;
		tc_event event = gate->of[gate->count - 1].event;
		tc_result r = query(context, event);
		if (r.code == TC_NOT_READY)
			return ended(TC_OK, "");
		if (r.code)
			return r;
		give_event(context, event);
		gate->count--;
	}
	*passed = 1;
	return ended(TC_OK, "");
}

void tc_forget(tc_gate *gate) {
	if (!forked())
		while (gate->count) {
			gate->count--;
			give_event(gate->of[gate->count].context, gate->of[gate->count].event);
		}
	free(gate);
}

/* Words that streams wait for, in one page of pinned memory. It stays: to free it, the driver would wait for the very
 * streams that wait for a word. A word that was let go is used again when its stream has passed. */
#define WORDS 1024
static uint32_t *words;
static int words_used; /* the others were never used */
static uint64_t words_at; /* for devices */
static struct {
	enum { FREE, USED, LEFT } state;
	tc_context context;
	tc_event passed;
} uses[WORDS];

/* Finds a word. A context is current. */
static tc_result take_word(int *index) {
	tc_result r = ended(TC_OK, "");
	pthread_mutex_lock(&lock);
	if (!words) {
		void *page = NULL;
		r = CALL(cuMemHostAlloc, &page, WORDS * sizeof *words, TC_MEMHOSTALLOC_PORTABLE | TC_MEMHOSTALLOC_DEVICEMAP);
		if (!r.code)
			r = CALL(cuMemHostGetDevicePointer_v2, &words_at, page, 0);
		if (!r.code)
			words = page;
		else if (page)
			cu.cuMemFreeHost(page);
	}
	*index = -1;
	for (int i = 0; i < WORDS && !r.code && *index < 0; i++)
		if (uses[i].state == FREE)
			*index = i;
	pthread_mutex_unlock(&lock);
	return r.code || *index >= 0 ? r : ended(TC_MANY, "cuStreamWaitValue32_v2");
}

/* Gives back the words that were let go and passed. */
static void collect(void) {
	for (int i = 0; i < words_used; i++) {
		pthread_mutex_lock(&lock);
		int left = uses[i].state == LEFT;
		tc_context context = uses[i].context;
		tc_event passed = uses[i].passed;
		pthread_mutex_unlock(&lock);
		if (left && query(context, passed).code != TC_NOT_READY) {
			give_event(context, passed);
			pthread_mutex_lock(&lock);
			uses[i].state = FREE;
			pthread_mutex_unlock(&lock);
		}
	}
}

/* A wait is until the word is 1 or more. Where the device can, writes of other devices to its memory are flushed behind
 * it: an RDMA NIC writes past its caches. */
static unsigned wait_flags(void) {
	int device = 0, can = 0;
	if (cu.cuCtxGetDevice && cu.cuDeviceGetAttribute && !cu.cuCtxGetDevice(&device) &&
	    !cu.cuDeviceGetAttribute(&can, TC_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, device) && can)
		return TC_STREAM_WAIT_VALUE_GEQ | TC_STREAM_WAIT_VALUE_FLUSH;
	return TC_STREAM_WAIT_VALUE_GEQ;
}

/* Records when a stream has passed a word. Without that the wait is ended here, and the word is never used again. */
static tc_result keep(int at, uint64_t stream, tc_latch *latch) {
	tc_result r = record(latch->context, (tc_stream)stream, &latch->passed);
	if (r.code)
		__atomic_store_n(latch->word, 1, __ATOMIC_RELEASE);
	pthread_mutex_lock(&lock);
	uses[at].state = USED;
	uses[at].context = latch->context;
	uses[at].passed = latch->passed;
	if (at >= words_used)
		words_used = at + 1;
	pthread_mutex_unlock(&lock);
	return r;
}

static pthread_mutex_t holding = PTHREAD_MUTEX_INITIALIZER; /* one takes a word at a time; before lock */

tc_result tc_hold(uint64_t stream, int device, tc_latch *latch) {
	if (forked())
		return ended(TC_FORKED, "cuStreamWaitValue32_v2");
	if (!cu.cuStreamWaitValue32_v2 || !cu.cuMemHostGetDevicePointer_v2) /* CUDA 11.7 has them */
		return ended(TC_NOT_SUPPORTED, "cuStreamWaitValue32_v2");
	thread_state before;
	tc_context context;
	int at;
	tc_result r = owner(stream, device, &context, &latch->context);
	if (!r.code && !context)
		r = ended(TC_WHICH, "cuCtxGetCurrent");
	if (!r.code)
		r = push(context, &before);
	if (r.code)
		return r;
	pthread_mutex_lock(&holding);
	collect();
	r = not_capturing((tc_stream)stream);
	if (!r.code && !(r = take_word(&at)).code) {
		words[at] = 0;
		latch->word = &words[at];
		latch->address = words_at + (uint64_t)at * sizeof *words;
		r = CALL(cuStreamWaitValue32_v2, (tc_stream)stream, latch->address, 1, wait_flags());
		if (!r.code)
			r = keep(at, stream, latch);
	}
	pthread_mutex_unlock(&holding);
	pop(&before);
	return r;
}

void tc_let_go(tc_latch *latch) {
	pthread_mutex_lock(&lock);
	uses[latch->word - words].state = LEFT;
	pthread_mutex_unlock(&lock);
}

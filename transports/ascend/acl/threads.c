/* Threads for work of others that have no context: they would keep the one that we make current. */
#define _GNU_SOURCE
#include "inside.h"

#include <pthread.h>
#include <signal.h>

/* Copies of several engines run side by side; more than the copy engines of a device have nothing to win. */
#define THREADS_MOST 8

struct order {
	ta_result (*run)(ta_work *);
	ta_work *work;
	ta_result end;
	int done;
	struct order *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER, went = PTHREAD_COND_INITIALIZER;
static struct order *first, **last = &first;
static int threads, idle;

static void *serve(void *unused) {
	(void)unused;
	pthread_mutex_lock(&lock);
	for (;;) {
		idle++;
		while (!first)
			pthread_cond_wait(&came, &lock);
		idle--;
		struct order *o = first;
		if (!(first = o->next))
			last = &first;
		pthread_mutex_unlock(&lock);
		ta_result end = o->run(o->work);
		pthread_mutex_lock(&lock);
		o->end = end;
		o->done = 1;
		pthread_cond_broadcast(&went);
	}
	return NULL;
}

/* Signals are for the threads of the program. */
static int start(void) {
	sigset_t all, before;
	pthread_attr_t detached;
	pthread_t thread;
	sigfillset(&all);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_create(&thread, &detached, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&detached);
	threads += !failed;
	return failed;
}

ta_result ta_elsewhere(ta_result (*run)(ta_work *), ta_work *w) {
	struct order o = {.run = run, .work = w};
	pthread_mutex_lock(&lock);
	if (!idle && threads < THREADS_MOST && start() && !threads) {
		pthread_mutex_unlock(&lock);
		return (ta_result){TA_NO_THREAD, "pthread_create", ""};
	}
	*last = &o;
	last = &o.next;
	pthread_cond_signal(&came);
	while (!o.done)
		pthread_cond_wait(&went, &lock);
	pthread_mutex_unlock(&lock);
	return o.end;
}

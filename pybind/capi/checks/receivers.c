/* Threads that wait for notifications get one each: one that another thread has taken is no end of the wait. */
#define _XOPEN_SOURCE 600
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tent/transfer_engine.h"

enum { THREADS = 4, ROUNDS = 50, LIMIT_MS = 20000 };

static tent_engine_t engine;
static pthread_barrier_t together, two;

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "receivers: %s: %s\n", what, tent_last_error());
	exit(1);
}

static void *receives(void *none) {
	tent_notif_t notification;
	pthread_barrier_wait(&together);
	must(tent_recv_notif(engine, LIMIT_MS, &notification) == 1, "a thread received none");
	tent_free_notif(&notification);
	return none;
}

static void *outlives(void *none) {
	tent_notif_t notification;
	pthread_barrier_wait(&two);
	must(tent_recv_notif(engine, INT64_MAX, &notification) == -1, "a thread waits on for an engine that was destroyed");
	return none;
}

int main(void) {
	engine = tent_create_engine();
	must(engine != NULL && pthread_barrier_init(&together, NULL, THREADS + 1) == 0, "an engine");
	must(pthread_barrier_init(&two, NULL, 2) == 0, "pthread_barrier_init");
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t threads[THREADS];
		for (int i = 0; i < THREADS; i++) must(pthread_create(&threads[i], NULL, receives, NULL) == 0, "pthread_create");
		pthread_barrier_wait(&together);
		for (int i = 0; i < THREADS; i++) must(tent_send_notif(engine, 0, "a", 1, "b", 1) == 0, "tent_send_notif");
		for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
	}
	tent_notif_t none;
	must(tent_recv_notif(engine, 0, &none) == 0, "one was left behind");

	pthread_t last;
	must(pthread_create(&last, NULL, outlives, NULL) == 0, "pthread_create");
	pthread_barrier_wait(&two);
	tent_destroy_engine(engine);
	pthread_join(last, NULL);
	return 0;
}

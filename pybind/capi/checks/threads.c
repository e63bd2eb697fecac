/* Threads beside one another and behind one another: a range that several of them register is one region, and settings are
 * those of the thread that has set them. */
#define _XOPEN_SOURCE 600
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { SIZE = 4096, ROUNDS = 100, THREADS = 4 };

static tent_engine_t engine;
static _Alignas(SIZE) unsigned char memory[SIZE];
static pthread_barrier_t together;

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "threads: %s: %s\n", what, tent_last_error());
	exit(1);
}

static long regions(void) {
	char *text = tent_describe(engine, "metrics");
	must(text != NULL, "tent_describe");
	const char *line = strstr(text, "\ntent_regions ");
	must(line != NULL, "the metrics have no tent_regions");
	long n = strtol(line + strlen("\ntent_regions "), NULL, 10);
	tent_free_text(text);
	return n;
}

static void *registers(void *none) {
	pthread_barrier_wait(&together);
	must(tent_register_memory(engine, memory, SIZE) == 0, "tent_register_memory");
	return none;
}

static void *sets(void *none) {
	tent_set_config("transports/tcp/lanes", "7"); /* and makes no engine */
	return none;
}

static void *makes(void *none) {
	tent_engine_t other = tent_create_engine();
	must(other != NULL, "tent_create_engine");
	char *text = tent_describe(other, "config");
	must(text != NULL && strstr(text, "\"argument\"") == NULL, "a thread that has set nothing has settings of another one");
	tent_free_text(text);
	tent_destroy_engine(other);
	return none;
}

static void run(void *(*thread)(void *)) { /* glibc gives each the memory of the one before */
	pthread_t started;
	must(pthread_create(&started, NULL, thread, NULL) == 0, "pthread_create");
	pthread_join(started, NULL);
}

int main(void) {
	engine = tent_create_engine();
	must(engine != NULL, "tent_create_engine");
	long before = regions();
	must(pthread_barrier_init(&together, NULL, THREADS) == 0, "pthread_barrier_init");
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t threads[THREADS];
		for (int i = 0; i < THREADS; i++) must(pthread_create(&threads[i], NULL, registers, NULL) == 0, "pthread_create");
		for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
		must(regions() == before + 1, "several threads registered one range, and it is not one region");
		must(tent_unregister_memory(engine, memory, 0) == 0, "tent_unregister_memory");
		must(regions() == before, "a region is left");
		must(tent_unregister_memory(engine, memory, 0) == -1, "a range was unregistered twice");
	}
	tent_destroy_engine(engine);
	run(sets);
	run(makes);
	return 0;
}

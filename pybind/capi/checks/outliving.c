/* Memory of tent_allocate_memory outlives its engine until tent_free_memory, also memory that threads get while another
 * one destroys it, and no other call finds it then. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { SIZE = 16 << 20, ENGINES = 8, ROUNDS = 12, THREADS = 6, RANGES = 10000 };

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "outliving: %s: %s\n", what, tent_last_error());
	exit(1);
}

static long resident(void) { /* KiB */
	char line[256];
	long found = -1;
	FILE *status = fopen("/proc/self/status", "r");
	must(status != NULL, "/proc/self/status");
	while (fgets(line, sizeof line, status))
		if (strncmp(line, "VmRSS:", 6) == 0) found = strtol(line + 6, NULL, 10);
	fclose(status);
	return found;
}

static tent_engine_t ending;
static struct got {
	void *memory[RANGES];
	int count;
} got[THREADS];
static pthread_barrier_t begun;

/* Allocates until the engine has ended. */
static void *allocates(void *of) {
	struct got *mine = of;
	for (mine->count = 0; mine->count < RANGES; mine->count++) {
		if (tent_allocate_memory(ending, &mine->memory[mine->count], 4096, NULL) != 0) break;
		if (mine->count == 0) pthread_barrier_wait(&begun);
	}
	must(mine->count > 0 && (mine->count == RANGES || strstr(tent_last_error(), "CLOSED")), "the end of a thread");
	return NULL;
}

static void beside(void) {
	pthread_t threads[THREADS];
	must((ending = tent_create_engine()) != NULL, "tent_create_engine");
	must(pthread_barrier_init(&begun, NULL, THREADS + 1) == 0, "pthread_barrier_init");
	for (int i = 0; i < THREADS; i++)
		must(pthread_create(&threads[i], NULL, allocates, &got[i]) == 0, "pthread_create");
	pthread_barrier_wait(&begun);
	tent_destroy_engine(ending);
	must(tent_last_error()[0] == 0, "tent_destroy_engine beside tent_allocate_memory");
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		for (int k = 0; k < got[i].count; k++)
			must(tent_free_memory(ending, got[i].memory[k]) == 0, "memory that came beside tent_destroy_engine");
	}
	pthread_barrier_destroy(&begun);
}

int main(void) {
	long before = 0;
	for (int i = 0; i < ENGINES; i++) {
		void *memory, *other;
		tent_lease_t lease;
		tent_engine_t engine = tent_create_engine();
		must(engine != NULL && tent_allocate_memory(engine, &memory, SIZE, NULL) == 0, "tent_allocate_memory");
		must(tent_allocate_memory(engine, &other, 4096, NULL) == 0, "tent_allocate_memory");
		memset(memory, i + 1, SIZE);
		tent_destroy_engine(engine);
		must(tent_last_error()[0] == 0, "tent_destroy_engine");

		must(((unsigned char *)memory)[SIZE - 1] == i + 1, "the bytes behind tent_destroy_engine");
		must(!tent_available(engine), "an engine that was destroyed is available");
		must(tent_share_memory(engine, memory, SIZE, NULL, &lease) == -1, "it was shared");
		must(tent_unregister_memory(engine, memory, SIZE) == -1, "it was unregistered");
		must(tent_free_memory(engine, memory) == 0, "tent_free_memory");
		must(tent_free_memory(engine, memory) == -1, "it was freed twice");
		must(tent_free_memory(engine, other) == 0, "tent_free_memory of the last");
		if (i == 0) before = resident();
	}
	must(resident() - before < (ENGINES - 1) * (SIZE >> 10) / 2, "the memory was not given back");
	for (int i = 0; i < ROUNDS; i++) beside();
	return 0;
}

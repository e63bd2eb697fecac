/* Threads that destroy one engine all return when nothing touches its memory any more, and none is told anything else. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tent/transfer_engine.h"

enum { THREADS = 4, SIZE = 4096 };

static tent_engine_t engine;
static unsigned char memory[SIZE];
static pthread_barrier_t together;
static double begun; /* s */
static atomic_int complaints;

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "destroyed_twice: %s: %s\n", what, tent_last_error());
	exit(1);
}

static void *destroys(void *none) {
	pthread_barrier_wait(&together);
	tent_destroy_engine(engine);
	double took = now() - begun;
	if (took < 1 || tent_last_error()[0]) {
		complaints++;
		fprintf(stderr, "a thread was told \"%s\" after %.3f s\n", tent_last_error(), took);
	}
	return none;
}

/* Begins a READ that nothing brings back for a second. */
static void begin_read(const char *path) {
	char name[64] = "file://";
	tent_segment_id_t file;
	must(tent_open_segment(engine, &file, strcat(name, path)) == 0, "tent_open_segment");
	tent_request_t request = {OPCODE_READ, memory, file, 0, SIZE, 0, 0};
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	begun = now();
	must(batch != 0 && tent_submit(engine, batch, &request, 1) == 0, "tent_submit");
}

int main(void) {
	char path[] = "/tmp/tent-destroyed-XXXXXX";
	int fd = mkstemp(path);
	must(fd >= 0 && ftruncate(fd, SIZE) == 0, "a file");
	tent_set_config("allow_faults", "true");
	tent_set_config("fence_timeout_file_ms", "1000");
	tent_set_config("faults", "op=READ blackhole silent");
	engine = tent_create_engine();
	must(engine != NULL && tent_register_memory(engine, memory, SIZE) == 0, "an engine");
	begin_read(path);

	pthread_t threads[THREADS];
	must(pthread_barrier_init(&together, NULL, THREADS) == 0, "pthread_barrier_init");
	for (int i = 0; i < THREADS; i++) must(pthread_create(&threads[i], NULL, destroys, NULL) == 0, "pthread_create");
	for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
	unlink(path);
	return complaints != 0;
}

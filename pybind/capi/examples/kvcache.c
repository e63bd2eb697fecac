/* A prefill process writes pages of its KV cache into a decode process, in C. Every byte is verified by the receiver.
 *
 *   cc kvcache.c $(pkg-config --cflags --libs tent) -o kvcache && ./kvcache
 *
 * The two processes are this program twice; the child is started before an engine is made, since a forked child cannot use
 * an engine of its parent.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tent/transfer_engine.h"

enum { PAGES = 64, PAGE_BYTES = 65536, GUARD = 4096, LIMIT_MS = 30000 };

static void stop(const char *what) {
	fprintf(stderr, "kvcache: %s: %s\n", what, tent_last_error());
	exit(1);
}

/* The value of byte i of page p. */
static unsigned char content(size_t p, size_t i) { return (unsigned char)(p * 131 + i * 7 + i / 251); }

/* Page p of the prefill process goes here in the decode process. */
static size_t place(size_t p) { return p * 37 % PAGES; }

static int decode(void) {
	size_t size = (size_t)PAGES * PAGE_BYTES;
	unsigned char *all = calloc(1, size + 2 * GUARD), *kv = all + GUARD; /* ordinary memory, with a guard band on each side */
	char name[256];
	tent_notif_t note;
	tent_engine_t engine = tent_create_engine();
	if (!engine) stop("tent_create_engine");
	if (tent_register_memory(engine, kv, size)) stop("tent_register_memory");
	if (tent_segment_name(engine, name, sizeof name)) stop("tent_segment_name");
	printf("%s %llu\n", name, (unsigned long long)(uintptr_t)kv);
	fflush(stdout);
	if (tent_recv_notif(engine, LIMIT_MS, &note) != 1) stop("tent_recv_notif");
	int wrong = strcmp(note.name, "done") != 0 || strcmp(note.message, "step 7") != 0;
	tent_free_notif(&note);
	if (tent_unregister_memory(engine, kv, size)) stop("tent_unregister_memory"); /* from here on nobody writes there */
	for (size_t p = 0; p < PAGES; p++)
		for (size_t i = 0; i < PAGE_BYTES; i++) wrong += kv[place(p) * PAGE_BYTES + i] != content(p, i);
	for (size_t i = 0; i < GUARD; i++) wrong += all[i] != 0 || kv[size + i] != 0;
	tent_destroy_engine(engine);
	free(all);
	return wrong ? 3 : 0;
}

static void prefill(const char *target, uint64_t there) {
	size_t size = (size_t)PAGES * PAGE_BYTES;
	void *memory;
	tent_segment_id_t segment;
	tent_status_t status;
	tent_request_t requests[PAGES];
	tent_engine_t engine = tent_create_engine();
	if (!engine) stop("tent_create_engine");
	if (tent_allocate_memory(engine, &memory, size, "cpu:0")) stop("tent_allocate_memory");
	if (tent_open_segment(engine, &segment, target)) stop("tent_open_segment");
	unsigned char *kv = memory;
	memset(requests, 0, sizeof requests);
	for (size_t p = 0; p < PAGES; p++) {
		for (size_t i = 0; i < PAGE_BYTES; i++) kv[p * PAGE_BYTES + i] = content(p, i);
		requests[p].opcode = OPCODE_WRITE;
		requests[p].source = kv + p * PAGE_BYTES;
		requests[p].target_id = segment;
		requests[p].target_offset = there + place(p) * PAGE_BYTES;
		requests[p].length = PAGE_BYTES;
		requests[p].priority = p < 4 ? 0 : 2; /* the first pages are urgent */
	}
	tent_batch_id_t batch = tent_allocate_batch(engine, PAGES);
	if (!batch) stop("tent_allocate_batch");
	if (tent_submit_notif(engine, batch, requests, PAGES, "done", "step 7")) stop("tent_submit_notif");
	if (tent_wait(engine, batch, LIMIT_MS, &status)) stop("tent_wait");
	if (status.status != STATUS_COMPLETED || status.transferred_bytes != size) {
		char why[1024];
		tent_batch_failure(engine, batch, why, sizeof why);
		fprintf(stderr, "kvcache: status %d: %s\n", status.status, why);
		exit(1);
	}
	if (tent_free_batch(engine, batch) || tent_close_segment(engine, segment) || tent_free_memory(engine, memory)) stop("the end");
	tent_destroy_engine(engine);
}

int main(int argc, char **argv) {
	if (argc == 2 && strcmp(argv[1], "decode") == 0) return decode();
	int out[2], result = 0;
	if (pipe(out)) return perror("pipe"), 1;
	pid_t child = fork();
	if (child < 0) return perror("fork"), 1;
	if (child == 0) {
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		execl("/proc/self/exe", argv[0], "decode", (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	FILE *lines = fdopen(out[0], "r");
	char target[256];
	unsigned long long there;
	if (!lines || fscanf(lines, "%255s %llu", target, &there) != 2) return fprintf(stderr, "kvcache: no receiver\n"), 1;
	prefill(target, there);
	if (waitpid(child, &result, 0) != child || !WIFEXITED(result) || WEXITSTATUS(result)) return fprintf(stderr, "kvcache: wrong bytes\n"), 1;
	fclose(lines);
	printf("%d pages of %d bytes, every byte right\n", PAGES, PAGE_BYTES);
	return 0;
}

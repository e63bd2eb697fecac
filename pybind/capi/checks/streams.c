/* A READ into memory of a GPU begins behind the work of one stream, and another stream goes on at its end and not before.
 * The driver is the emulated one, which TENT_LIBCUDA names: its memory cannot be touched by the processor. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { SIZE = 1 << 20, NOT_READY = 600 };

static int (*enter)(int);
static int (*allocate)(uint64_t *, size_t), (*pinned)(void **, size_t, unsigned), (*create)(void **, unsigned);
static int (*copy)(uint64_t, uint64_t, size_t, void *), (*query)(void *), (*synchronize)(void *);
static int (*wait_value)(void *, uint64_t, uint32_t, unsigned);

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "streams: %s: %s\n", what, tent_last_error());
	exit(1);
}

static void load(void) {
	const char *path = getenv("TENT_LIBCUDA");
	void *driver = path ? dlopen(path, RTLD_NOW) : NULL;
	must(driver != NULL, "TENT_LIBCUDA names no driver: run this by build_capi.py --check");
	struct { const char *name; void *to; } calls[] = {{"fakecuda_enter", &enter}, {"cuMemAlloc_v2", &allocate},
		{"cuMemHostAlloc", &pinned}, {"cuStreamCreate", &create}, {"cuMemcpyAsync", &copy}, {"cuStreamQuery", &query},
		{"cuStreamSynchronize", &synchronize}, {"cuStreamWaitValue32_v2", &wait_value}};
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		void *found = dlsym(driver, calls[i].name);
		must(found != NULL, calls[i].name);
		memcpy(calls[i].to, &found, sizeof found);
	}
}

int main(void) {
	static unsigned char theirs[SIZE];
	uint64_t gpu = 0, word = 0;
	unsigned char *out;
	uint32_t *go, *seen;
	void *before, *after;
	load();
	tent_engine_t owner = tent_create_engine(), engine = tent_create_engine();
	must(owner && engine, "tent_create_engine");
	must(!enter(0) && !allocate(&gpu, SIZE) && !create(&before, 1) && !create(&after, 1), "the driver");
	must(!pinned((void **)&out, SIZE, 0) && !pinned((void **)&go, 4, 0) && !pinned((void **)&seen, 4, 0), "pinned memory");
	for (int i = 0; i < SIZE; i++) theirs[i] = (unsigned char)(i * 131 + i / 4096);
	memset(out, 0, SIZE);
	*go = *seen = 0;

	char name[512];
	tent_segment_id_t peer = 0;
	must(tent_register_memory(owner, theirs, SIZE) == 0, "tent_register_memory");
	must(tent_register_memory(engine, (void *)(uintptr_t)gpu, SIZE) == 0, "memory of the GPU");
	must(tent_segment_name(owner, name, sizeof name) == 0 && tent_open_segment(engine, &peer, name) == 0, "tent_open_segment");

	tent_request_t r = {OPCODE_READ, (void *)(uintptr_t)gpu, peer, (uintptr_t)theirs, SIZE, 0, 0};
	tent_submit_options_t options = {0};
	options.stream = (uintptr_t)before;
	must(wait_value(before, (uintptr_t)go, 1, 0) == 0, "cuStreamWaitValue32");
	tent_batch_id_t batch = tent_allocate_batch(engine, 2);
	must(batch != 0 && tent_submit_ex(engine, batch, &r, 1, &options) == 0, "tent_submit_ex");
	must(tent_wait_on(engine, batch, (uintptr_t)after, &word) == 0 && word != 0, "tent_wait_on");
	must(copy((uintptr_t)out, gpu, SIZE, after) == 0 && copy((uintptr_t)seen, word, 4, after) == 0, "cuMemcpyAsync");
	must(query(after) == NOT_READY, "the stream does not wait");

	options.stream = (uintptr_t)after; /* a request of the batch that waits for a stream that waits for the batch */
	must(tent_submit_ex(engine, batch, &r, 1, &options) == -1 && strstr(tent_last_error(), "stream") != NULL, "a cycle");
	must(tent_wait_on(engine, batch, 0, NULL) == -1 && strstr(tent_last_error(), "CU_STREAM_LEGACY") != NULL, "stream 0");
	must(tent_wait_on(engine, batch + 1, (uintptr_t)after, NULL) == -1, "a batch that is none");

	*(volatile uint32_t *)go = 1;
	must(synchronize(after) == 0, "cuStreamSynchronize");
	must(memcmp(out, theirs, SIZE) == 0, "the bytes that the stream saw");
	must(*seen == STATUS_COMPLETED, "the word that the stream saw");
	tent_status_t status;
	must(tent_wait(engine, batch, 20000, &status) == 0 && status.status == STATUS_COMPLETED, "tent_wait");
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch");
	tent_destroy_engine(engine);
	tent_destroy_engine(owner);
	puts("a stream went on at the end, and saw every byte");
	return 0;
}

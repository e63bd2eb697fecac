/* A reservation is registered before it has pages. Requests that need bytes without pages fail, those that reach fresh
 * pages complete, and an ordinary registration of a reservation is refused. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tent/transfer_engine.h"

enum { PAGE = 4096, PAGES = 4, SIZE = PAGES * PAGE };

static tent_engine_t engine, owner;
static unsigned char mine[SIZE];

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "growable: %s: %s\n", what, tent_last_error());
	exit(1);
}

/* A WRITE of one page, and how it ends. */
static int end_of(tent_segment_id_t target, unsigned char *reservation, int page, char *reason, size_t room) {
	tent_request_t r = {OPCODE_WRITE, mine + page * PAGE, target, (uintptr_t)reservation + page * PAGE, PAGE, 0, 0};
	tent_status_t status;
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	must(batch != 0 && tent_submit(engine, batch, &r, 1) == 0, "tent_submit");
	must(tent_wait(engine, batch, 20000, &status) == 0, "tent_wait");
	must(tent_batch_failure(engine, batch, reason, room) == 0, "tent_batch_failure");
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch");
	return status.status;
}

static void back(unsigned char *reservation, int page, int protection) {
	void *at = mmap(reservation + page * PAGE, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	must(at != MAP_FAILED && tent_remap_memory(owner, reservation, (size_t)page * PAGE, PAGE) == 0, "tent_remap_memory");
}

int main(void) {
	owner = tent_create_engine();
	engine = tent_create_engine();
	must(owner && engine, "tent_create_engine");
	for (int i = 0; i < SIZE; i++) mine[i] = (unsigned char)(i * 131 + i / PAGE);
	unsigned char *reservation = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(reservation != MAP_FAILED, "mmap");
	must(tent_register_memory(engine, mine, SIZE) == 0, "tent_register_memory");
	must(tent_register_memory(owner, reservation, SIZE) == -1 && strstr(tent_last_error(), "growable") != NULL,
	     "a reservation was taken for memory, or the error does not name the cure");
	must(tent_register_growable_memory(owner, reservation, SIZE, NULL) == 0, "tent_register_growable_memory");

	char name[512], reason[4096] = "";
	tent_segment_id_t peer = 0;
	must(tent_segment_name(owner, name, sizeof name) == 0 && tent_open_segment(engine, &peer, name) == 0, "tent_open_segment");
	int lost = end_of(peer, reservation, 1, reason, sizeof reason);
	must(lost == STATUS_FAILED && strstr(reason, "ADDRESS_NOT_REGISTERED") != NULL, "a WRITE without pages");
	back(reservation, 1, PROT_READ | PROT_WRITE);
	must(end_of(peer, reservation, 1, reason, sizeof reason) == STATUS_COMPLETED, reason);
	must(memcmp(reservation + PAGE, mine + PAGE, PAGE) == 0, "the bytes of the fresh page");
	must(end_of(peer, reservation, 2, reason, sizeof reason) == STATUS_FAILED, "the page behind it");
	back(reservation, 1, PROT_NONE);
	must(end_of(peer, reservation, 1, reason, sizeof reason) == STATUS_FAILED, "a page that is gone again");

	must(tent_unregister_memory(owner, reservation, 0) == 0, "tent_unregister_memory");
	tent_destroy_engine(engine);
	tent_destroy_engine(owner);
	return 0;
}

/* Allocated memory is registered and taken back like the program's: allocate, register, unregister, free. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { SIZE = 65536, PART = 4096, PIECE = 100 };

static tent_engine_t engine, owner;
static tent_segment_id_t peer;
static unsigned char mine[SIZE], expected[SIZE], *theirs;

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "allocated: %s: %s\n", what, tent_last_error());
	exit(1);
}

static int refused(int result, const char *words) { return result == -1 && strstr(tent_last_error(), words) != NULL; }

/* A WRITE of some bytes: 0 when they have arrived, -1 when it was refused. */
static int put(size_t at) {
	tent_request_t r = {OPCODE_WRITE, mine + at, peer, (uintptr_t)theirs + at, PIECE, 0, 0};
	tent_status_t status;
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	must(batch != 0, "tent_allocate_batch");
	int given = tent_submit(engine, batch, &r, 1);
	must(given == -1 || tent_wait(engine, batch, 20000, &status) == 0, "tent_wait");
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch");
	if (given == -1 || status.status != STATUS_COMPLETED) return -1;
	memcpy(expected + at, mine + at, PIECE);
	return 0;
}

static void look(const char *when) { must(memcmp(theirs, expected, SIZE) == 0, when); }

int main(void) {
	char name[256];
	void *memory;
	tent_lease_t lease;
	for (size_t i = 0; i < SIZE; i++) mine[i] = (unsigned char)(i * 7 + i / 251);
	owner = tent_create_engine();
	engine = tent_create_engine();
	must(owner && engine && tent_segment_name(owner, name, sizeof name) == 0, "tent_create_engine");
	must(tent_open_segment(engine, &peer, name) == 0, "tent_open_segment");
	must(tent_register_memory(engine, mine, SIZE) == 0, "tent_register_memory of the initiator");
	must(tent_allocate_memory(owner, &memory, SIZE, "cpu:0") == 0, "tent_allocate_memory");
	theirs = memory;

	must(tent_register_memory(owner, memory, SIZE) == 0, "it is registered already");
	must(refused(tent_register_memory_with_perm(owner, memory, SIZE, PERM_GLOBAL_READ_ONLY), "registered already"), "read only");
	must(put(0) == 0, "a WRITE into registered memory");
	must(tent_unregister_memory(owner, memory, SIZE) == 0, "tent_unregister_memory");
	must(put(1000) == -1, "a WRITE arrived in memory that was unregistered");
	must(refused(tent_unregister_memory(owner, memory, 0), "not an address of tent_register_memory"), "once too often");
	must(refused(tent_share_memory(owner, memory, PART, NULL, &lease), "are not inside memory"), "a lease");
	look("bytes of a refused WRITE");

	must(tent_register_memory(owner, memory, SIZE) == 0, "tent_register_memory again");
	must(tent_register_memory(owner, memory, PART) == 0, "tent_register_memory of a part");
	must(tent_unregister_memory(owner, memory, 0) == 0, "the part");
	must(put(2000) == 0, "a WRITE into memory that was registered anew");
	look("bytes of a WRITE");
	must(tent_free_memory(owner, memory) == 0, "tent_free_memory");
	must(put(3000) == -1, "a WRITE arrived in memory that was freed");
	must(refused(tent_unregister_memory(owner, memory, 0), "not an address of tent_register_memory"), "behind the end");

	must(tent_allocate_memory(owner, &memory, SIZE, "cpu:0") == 0, "tent_allocate_memory");
	must(tent_unregister_memory(owner, memory, 0) == 0 && tent_register_memory(owner, memory, SIZE) == 0, "anew");
	tent_destroy_engine(owner);
	((unsigned char *)memory)[7] = 9;
	must(tent_free_memory(owner, memory) == 0, "tent_free_memory behind the engine");
	tent_destroy_engine(engine);
	return 0;
}

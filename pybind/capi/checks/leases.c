/* A lease gives a peer a part of memory that nobody else may reach, by its token, until it ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { PAGE = 4096, PAGES = 5, SIZE = PAGES * PAGE, FROM = PAGE, LENGTH = 2 * PAGE };

static tent_engine_t engine, owner;
static unsigned char mine[SIZE], kept[SIZE], before[SIZE];

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "leases: %s: %s\n", what, tent_last_error());
	exit(1);
}

/* How a WRITE of a length from the same place of `mine` ends; STATUS_INVALID where it is refused at once. */
static int end_of(tent_segment_id_t target, uint64_t base, size_t length) {
	tent_request_t r = {OPCODE_WRITE, mine, target, base, length, 0, 0};
	tent_status_t status = {STATUS_INVALID, 0};
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	must(batch != 0, "tent_allocate_batch");
	if (tent_submit(engine, batch, &r, 1) == 0) must(tent_wait(engine, batch, 20000, &status) == 0, "tent_wait");
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch");
	return status.status;
}

int main(void) {
	owner = tent_create_engine();
	engine = tent_create_engine();
	must(owner && engine, "tent_create_engine");
	for (int i = 0; i < SIZE; i++) mine[i] = (unsigned char)(i * 131 + i / PAGE), kept[i] = before[i] = (unsigned char)(i * 7 + 1);
	must(tent_register_memory(engine, mine, SIZE) == 0, "tent_register_memory");
	must(tent_register_memory_with_perm(owner, kept, SIZE, PERM_LOCAL_READ_WRITE) == 0, "tent_register_memory_with_perm");

	char name[512], token[64], other[64];
	tent_segment_id_t peer = 0;
	tent_lease_t lease = 0, brief = 0;
	struct tent_buffer_info found;
	must(tent_segment_name(owner, name, sizeof name) == 0 && tent_open_segment(engine, &peer, name) == 0, "tent_open_segment");
	must(tent_share_memory(owner, mine, PAGE, PERM_GLOBAL_READ_WRITE, NULL, 0, &lease) == -1 &&
	         strstr(tent_last_error(), "ADDRESS_NOT_REGISTERED"), "a lease of memory that the owner has not registered");
	must(tent_share_memory(owner, kept + FROM, LENGTH, PERM_GLOBAL_READ_WRITE, "no pattern", 0, &lease) == -1, "peers");
	must(tent_share_memory(owner, kept + FROM, LENGTH, PERM_GLOBAL_READ_WRITE, NULL, 60000, &lease) == 0, "tent_share_memory");
	must(tent_lease_token(owner, lease, token, 8) == -1, "a buffer that is too short");
	must(tent_lease_token(owner, lease, token, sizeof token) == 0, "tent_lease_token");
	must(tent_find_lease(engine, peer, token, &found) == 0, "tent_find_lease");
	must(found.length == LENGTH, "the length of the lease");

	must(end_of(peer, found.base, LENGTH) == STATUS_COMPLETED, "a WRITE to the lease");
	must(memcmp(kept + FROM, mine, LENGTH) == 0, "the bytes of the lease");
	must(end_of(peer, found.base, LENGTH + PAGE) != STATUS_COMPLETED, "a WRITE beyond its end");
	must(end_of(peer, found.base - PAGE, PAGE) != STATUS_COMPLETED, "a WRITE before its begin");
	must(memcmp(kept, before, FROM) == 0 && memcmp(kept + FROM + LENGTH, before + FROM + LENGTH, SIZE - FROM - LENGTH) == 0,
	     "bytes beside the lease");

	must(tent_renew_lease(owner, lease, 120000) == 0, "tent_renew_lease");
	must(tent_share_memory(owner, kept, PAGE, PERM_GLOBAL_READ_ONLY, NULL, 0, &brief) == 0, "a second lease");
	must(tent_lease_token(owner, brief, other, sizeof other) == 0 && strcmp(token, other) != 0, "tokens differ");
	must(tent_find_lease(engine, peer, other, &found) == 0, "the second lease");
	must(end_of(peer, found.base, PAGE) != STATUS_COMPLETED, "a WRITE to a lease for READs");

	must(tent_find_lease(engine, peer, token, &found) == 0, "the first lease again");
	memcpy(before + FROM, kept + FROM, LENGTH);
	memset(mine, 0x5a, SIZE);
	must(tent_close_lease(owner, lease) == 0 && tent_close_lease(owner, lease) == 0, "tent_close_lease");
	must(end_of(peer, found.base, LENGTH) != STATUS_COMPLETED, "a WRITE to a lease that was closed");
	must(tent_renew_lease(owner, lease, 1000) == -1, "the renewal of a lease that was closed");
	must(tent_unregister_memory(owner, kept, 0) == 0, "tent_unregister_memory"); /* and with it the second lease */
	must(tent_lease_token(owner, brief, other, sizeof other) == -1, "a lease whose memory was unregistered");
	must(memcmp(kept, before, SIZE) == 0, "bytes after the end");
	tent_destroy_engine(engine);
	tent_destroy_engine(owner);
	return 0;
}

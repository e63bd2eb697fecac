/* Every term of a request reaches the engine, for the whole call and for one request of it. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tent/transfer_engine.h"

enum { SIZE = 4096 };

static tent_engine_t engine, owner;
static unsigned char mine[SIZE], theirs[SIZE];

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "terms: %s: %s\n", what, tent_last_error());
	exit(1);
}

static uint64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* A WRITE of two requests, and how it ends; `reason` is the failure's text. */
static int end_of(tent_segment_id_t target, uint64_t offset, const tent_submit_options_t *options, char *reason, size_t room) {
	tent_request_t list[2];
	memset(list, 0, sizeof list);
	for (int i = 0; i < 2; i++) {
		list[i].opcode = OPCODE_WRITE;
		list[i].source = mine + i * (SIZE / 2);
		list[i].target_id = target;
		list[i].target_offset = offset + (uint64_t)i * (SIZE / 2);
		list[i].length = SIZE / 2;
	}
	tent_status_t status;
	tent_batch_id_t batch = tent_allocate_batch(engine, 2);
	must(batch != 0, "tent_allocate_batch");
	must(tent_submit_ex(engine, batch, list, 2, options) == 0, "tent_submit_ex");
	must(tent_wait(engine, batch, 20000, &status) == 0, "tent_wait");
	must(tent_batch_failure(engine, batch, reason, room) == 0, "tent_batch_failure");
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch");
	return status.status;
}

/* The same terms for the whole call, and for the second request alone, end a WRITE in the same way. */
static void expect(const char *what, tent_segment_id_t target, uint64_t offset, tent_submit_options_t terms, int state,
                   const char *code) {
	char reason[4096] = "";
	tent_request_terms_t each[2] = {{0}, {0}};
	each[1].deadline_ns = terms.deadline_ns;
	each[1].intent_type = terms.intent_type;
	each[1].integrity = terms.integrity;
	each[1].durability = terms.durability;
	each[1].policy_name = terms.policy_name;
	tent_submit_options_t own = {0};
	own.terms = each;
	for (int i = 0; i < 2; i++) {
		int got = end_of(target, offset, i == 0 ? &terms : &own, reason, sizeof reason);
		if (got == state && strstr(reason, code)) continue;
		fprintf(stderr, "terms: %s, %s: state %d, %s\n", what, i == 0 ? "all" : "one request", got, reason);
		exit(1);
	}
}

/* A term out of its range is refused, and the sentence names it. */
static void refused(const char *name, tent_segment_id_t target, tent_submit_options_t terms) {
	tent_request_t r = {OPCODE_WRITE, mine, target, (uintptr_t)theirs, SIZE, 0, 0};
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	if (tent_submit_ex(engine, batch, &r, 1, &terms) == 0 || !strstr(tent_last_error(), name)) {
		fprintf(stderr, "terms: %s was not refused by name: %s\n", name, tent_last_error());
		exit(1);
	}
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch");
}

int main(void) {
	tent_set_config("transports/shm/enable", "false");
	owner = tent_create_engine();
	tent_set_config("transports/shm/enable", "false");
	tent_set_config("allow_faults", "true");
	tent_set_config("faults", "\"corrupt; fail_sync\"");
	tent_set_config("policy", "[{\"name\": \"usual\", \"segment_type\": \"memory\", \"transports\": [\"tcp\"]},"
	                          " {\"name\": \"vain\", \"segment_type\": \"memory\", \"transports\": [\"shm\"]}]");
	engine = tent_create_engine();
	must(owner && engine, "tent_create_engine");
	memset(mine, 0x5a, SIZE);
	must(tent_register_memory(engine, mine, SIZE) == 0 && tent_register_memory(owner, theirs, SIZE) == 0, "tent_register_memory");
	char name[512], path[] = "/tmp/tent-terms-XXXXXX";
	tent_segment_id_t peer = 0, file = 0;
	must(tent_segment_name(owner, name, sizeof name) == 0 && tent_open_segment(engine, &peer, name) == 0, "tent_open_segment");
	int fd = mkstemp(path);
	must(fd >= 0 && ftruncate(fd, SIZE) == 0, "mkstemp");
	snprintf(name, sizeof name, "file://%s", path);
	must(tent_open_segment(engine, &file, name) == 0, "tent_open_segment of a file");
	uint64_t there = (uintptr_t)theirs;

	tent_submit_options_t none = {0}, checked = {0}, durable = {0}, late = {0}, meant = {0}, named = {0}, only = {0};
	checked.integrity = INTEGRITY_CRC32C;
	durable.durability = DURABILITY_DATA;
	late.deadline_ns = now_ns() - 1;
	meant.intent_type = INTENT_CHECKPOINT;
	expect("no term", peer, there, none, STATUS_COMPLETED, "");
	expect("integrity", peer, there, checked, STATUS_FAILED, "CORRUPTED");
	expect("deadline", peer, there, late, STATUS_TIMEOUT, "TIMEOUT");
	expect("intent", peer, there, meant, STATUS_COMPLETED, "");
	named.policy_name = "usual";
	expect("policy", peer, there, named, STATUS_COMPLETED, "");
	only.require = 1ull << TRANSPORT_TCP | 1ull << TRANSPORT_RDMA;
	expect("require", peer, there, only, STATUS_COMPLETED, "");
	expect("no durability", file, 0, none, STATUS_COMPLETED, "");
	expect("durability", file, 0, durable, STATUS_FAILED, "fail_sync");
	checked.integrity = durable.durability = 2;
	meant.intent_type = -1;
	late.deadline_ns = 1ull << 63;
	refused("integrity", peer, checked);
	refused("durability", peer, durable);
	refused("intent_type", peer, meant);
	refused("deadline_ns", peer, late);
	named.policy_name = "nobody";
	refused("policy_name", peer, named);
	only.require = 1ull << TRANSPORT_RDMA;
	refused("require", peer, only);
	named.policy_name = "vain"; /* it allows only a transport that is switched off */
	refused("vain", peer, named);

	close(fd);
	unlink(path);
	tent_destroy_engine(engine);
	tent_destroy_engine(owner);
	printf("every term of C arrives\n");
	return 0;
}

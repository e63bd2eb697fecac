/* Milliseconds that are beyond all times are a limit that never comes, and none that is over. Those below 0 are over. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { SIZE = 64 << 20 };

static void must(int ok, const char *what, int64_t limit) {
	if (ok) return;
	fprintf(stderr, "far_limits: %s of %lld ms: %s\n", what, (long long)limit, tent_last_error());
	exit(1);
}

/* An engine without memory shared with others: so its bytes take longer than a call. */
static tent_engine_t made(void **memory) {
	tent_set_config("transports/shm/enable", "false");
	tent_engine_t engine = tent_create_engine();
	must(engine != NULL && tent_allocate_memory(engine, memory, SIZE, NULL) == 0, "an engine for limits", 0);
	return engine;
}

static void endures(tent_engine_t engine, void *memory, tent_segment_id_t peer, void *there, int64_t limit) {
	tent_request_t request = {OPCODE_WRITE, memory, peer, (uintptr_t)there, SIZE, 0, 0};
	tent_status_t status;
	char token[65];
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	must(batch != 0 && tent_submit(engine, batch, &request, 1) == 0, "tent_submit", limit);
	must(tent_wait(engine, batch, limit, &status) == 0 && status.status == STATUS_COMPLETED, "tent_wait", limit);
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch", limit);
	must(tent_probe_peer(engine, peer, limit) == 1, "tent_probe_peer", limit);

	tent_notif_t notification;
	must(tent_send_notif(engine, TENT_LOCAL_SEGMENT_ID, "a", 1, "b", 1) == 0, "tent_send_notif", limit);
	must(tent_recv_notif(engine, limit, &notification) == 1, "tent_recv_notif", limit);
	tent_free_notif(&notification);

	tent_lease_t lease;
	tent_lease_options_t options = {0, NULL, NULL, limit};
	must(tent_share_memory(engine, memory, SIZE, &options, &lease) == 0, "tent_share_memory", limit);
	must(tent_lease_token(engine, lease, token, sizeof token) == 0, "the token", limit);
	must(tent_renew_lease(engine, lease, limit) == 0, "tent_renew_lease", limit);
	must(tent_lease_token(engine, lease, token, sizeof token) == 0, "the token after tent_renew_lease", limit);
	must(tent_close_lease(engine, lease) == 0, "tent_close_lease", limit);
}

/* Waits return with what is there already. */
static void is_over(tent_engine_t engine, void *memory, tent_segment_id_t peer, void *there, int64_t limit) {
	tent_request_t request = {OPCODE_WRITE, memory, peer, (uintptr_t)there, SIZE, 0, 0};
	tent_notif_t notification;
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	must(batch != 0 && tent_submit(engine, batch, &request, 1) == 0, "tent_submit", limit);
	int ended = tent_wait(engine, batch, limit, NULL);
	must(ended == 0 || ended == 1, "tent_wait", limit);
	must(tent_wait(engine, batch, 60000, NULL) == 0 && tent_wait(engine, batch, limit, NULL) == 0, "tent_wait", limit);
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch", limit);

	must(tent_recv_notif(engine, limit, &notification) == 0, "tent_recv_notif of none", limit);
	must(tent_send_notif(engine, TENT_LOCAL_SEGMENT_ID, "a", 1, "b", 1) == 0, "tent_send_notif", limit);
	must(tent_recv_notif(engine, limit, &notification) == 1, "tent_recv_notif", limit);
	tent_free_notif(&notification);
}

int main(void) {
	void *memory, *there;
	char name[256];
	tent_segment_id_t peer;
	tent_engine_t engine = made(&memory), other = made(&there);
	must(tent_segment_name(other, name, sizeof name) == 0, "tent_segment_name", 0);
	must(tent_open_segment(engine, &peer, name) == 0, "tent_open_segment", 0);
	/* the last is 2^64 and some 0.4 million nanoseconds */
	int64_t limits[] = {60000, INT64_MAX, (int64_t)1 << 62, INT64_MAX / 1000, 18446744073710};
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) endures(engine, memory, peer, there, limits[i]);
	int64_t over[] = {-1, -INT64_MAX, INT64_MIN, INT64_MIN / 1000, -18446744073710};
	for (size_t i = 0; i < sizeof over / sizeof *over; i++) is_over(engine, memory, peer, there, over[i]);
	tent_destroy_engine(engine);
	tent_destroy_engine(other);
	return 0;
}

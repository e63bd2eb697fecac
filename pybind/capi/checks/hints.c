/* A hint names the transport of a plug-in by its number, which its name gives. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { SIZE = 4096 };

static unsigned char mine[SIZE], theirs[SIZE];

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "hints: %s: %s\n", what, tent_last_error());
	exit(1);
}

static tent_engine_t opened(const char *plug_in) {
	char list[4096];
	snprintf(list, sizeof list, "[\"%s\"]", plug_in);
	tent_set_config("plugins", list);
	tent_set_config("transports/shm/enable", "false");
	tent_set_config("rail_suspect_ms", "900"); /* a busy machine takes no rail out of the order */
	tent_set_config("policy", "[{\"name\": \"usual\", \"segment_type\": \"memory\", \"transports\": [\"tcp\", \"inside\"]}]");
	tent_engine_t engine = tent_create_engine();
	must(engine != NULL, "tent_create_engine");
	return engine;
}

/* Bytes that a transport has written. */
static long counted(tent_engine_t engine, const char *transport) {
	char name[128];
	snprintf(name, sizeof name, "tent_write_bytes_total{class=\"high\",transport=\"%s\"} ", transport);
	char *text = tent_describe(engine, "metrics");
	must(text != NULL, "tent_describe");
	char *at = strstr(text, name);
	long bytes = at ? atol(at + strlen(name)) : 0;
	tent_free_text(text);
	return bytes;
}

static void write_by(tent_engine_t engine, tent_segment_id_t target, int hint) {
	tent_request_t request;
	tent_status_t status;
	memset(&request, 0, sizeof request);
	request.opcode = OPCODE_WRITE;
	request.source = mine;
	request.target_id = target;
	request.target_offset = (uint64_t)(uintptr_t)theirs;
	request.length = SIZE;
	request.transport_hint = hint;
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	must(batch != 0, "tent_allocate_batch");
	must(tent_submit(engine, batch, &request, 1) == 0, "tent_submit");
	must(tent_wait(engine, batch, 20000, &status) == 0 && status.status == STATUS_COMPLETED, "tent_wait");
	must(tent_free_batch(engine, batch) == 0, "tent_free_batch");
	must(memcmp(mine, theirs, SIZE) == 0, "the bytes");
}

int main(void) {
	const char *plug_in = getenv("TENT_CHECK_PLUG_IN");
	must(plug_in != NULL, "TENT_CHECK_PLUG_IN names no plug-in");
	tent_engine_t owner = opened(plug_in), engine = opened(plug_in);
	char name[256];
	tent_segment_id_t target;
	for (int i = 0; i < SIZE; i++) mine[i] = (unsigned char)(i * 13 + (i >> 8));
	must(tent_register_memory(engine, mine, SIZE) == 0, "tent_register_memory");
	must(tent_register_memory_with_perm(owner, theirs, SIZE, PERM_GLOBAL_READ_WRITE) == 0, "tent_register_memory_with_perm");
	must(tent_segment_name(owner, name, sizeof name) == 0, "tent_segment_name");
	must(tent_open_segment(engine, &target, name) == 0, "tent_open_segment");

	must(tent_transport_number(engine, "tcp") == TRANSPORT_TCP, "the number of tcp");
	must(tent_transport_number(engine, "outside") == -1 && strstr(tent_last_error(), "outside") != NULL, "a name of nobody");
	must(tent_transport_number(NULL, "tcp") == -1, "an engine that is none");
	int inside = tent_transport_number(engine, "inside");
	must(inside > 0, "the number of the plug-in");

	/* A route without a rail is passed over: both are up behind this. */
	while (!counted(engine, "tcp")) write_by(engine, target, TRANSPORT_TCP);
	while (!counted(engine, "inside")) write_by(engine, target, inside);
	long before = counted(engine, "inside");
	memset(theirs, 0, SIZE);
	write_by(engine, target, 0);
	must(counted(engine, "inside") == before, "the policy prefers tcp");
	memset(theirs, 0, SIZE);
	write_by(engine, target, inside);
	must(counted(engine, "inside") == before + SIZE, "the hint was not followed");

	tent_close_segment(engine, target);
	tent_destroy_engine(engine);
	tent_destroy_engine(owner);
	printf("a hint names the plug-in\n");
	return 0;
}

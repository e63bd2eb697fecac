/* Registered ranges that overlap: each call means the same of them each time, in whichever order they came. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { ROUNDS = 20, WHOLE = 1 << 20, PART = 65536, PAGE = 4096 };

static _Alignas(PAGE) unsigned char memory[WHOLE];
static tent_engine_t engine;

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "overlap: %s: %s\n", what, tent_last_error());
	exit(1);
}

static int refused(int result, const char *words) { return result == -1 && strstr(tent_last_error(), words) != NULL; }

/* The whole memory, that peers may write, and its first part, that they may read, in either order. */
static void register_both(int whole_first) {
	tent_memory_options_t part;
	memset(&part, 0, sizeof part);
	part.permission = PERM_GLOBAL_READ_ONLY;
	for (int i = 0; i < 2; i++) {
		if (i != whole_first)
			must(tent_register_memory(engine, memory, WHOLE) == 0, "tent_register_memory");
		else
			must(tent_register_memory_ex(engine, memory, PART, &part) == 0, "tent_register_memory_ex");
	}
}

int main(void) {
	engine = tent_create_engine();
	must(engine != NULL, "tent_create_engine");
	for (int round = 0; round < ROUNDS; round++) {
		tent_lease_t lease, larger;
		char token[65];
		void *addrs[] = {memory};
		tent_range_t inside[] = {{memory, PAGE}, {memory + 2 * PAGE, PAGE}}, across[] = {{memory, PAGE}, {memory + PART, PAGE}};
		register_both(round % 2);

		must(tent_share_ranges(engine, across, 2, NULL, &larger) == 0, "tent_share_ranges of the larger range");
		must(tent_share_ranges(engine, inside, 2, NULL, &lease) == 0, "tent_share_ranges of the smaller range");

		must(tent_remap_memory(engine, memory, 0, PAGE) == 0, "tent_remap_memory in both");
		must(tent_remap_memory(engine, memory, PART, PAGE) == 0, "tent_remap_memory in one");

		must(refused(tent_unregister_memory(engine, memory, 0), "2 registered ranges begin at"), "by its address alone");
		must(refused(tent_unregister_memory_batch(engine, addrs, NULL, 1), "2 registered ranges begin at"), "as a list");
		must(tent_unregister_memory(engine, memory, PART) == 0, "the smaller range");
		must(tent_lease_token(engine, lease, token, sizeof token) == -1, "a lease outlived the smaller range");
		must(tent_lease_token(engine, larger, token, sizeof token) == 0, "a lease of the larger range ended");
		must(tent_unregister_memory(engine, memory, 0) == 0, "the larger range");
	}
	tent_destroy_engine(engine);
	return 0;
}

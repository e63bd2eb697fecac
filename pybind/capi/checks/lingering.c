/* A slice that nothing brings back: its memory is in use until the engine has ended. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tent/transfer_engine.h"

enum { SIZE = 65536 };

static unsigned char memory[SIZE];

static void must(int ok, const char *what) {
	if (ok) return;
	fprintf(stderr, "lingering: %s: %s\n", what, tent_last_error());
	exit(1);
}

static tent_engine_t made(void) {
	tent_set_config("allow_faults", "true");
	tent_set_config("fence_timeout_file_ms", "50");
	tent_set_config("faults", "op=READ blackhole silent");
	tent_engine_t engine = tent_create_engine();
	must(engine != NULL, "tent_create_engine");
	must(tent_register_memory(engine, memory, SIZE) == 0, "tent_register_memory");
	return engine;
}

/* Cancels a READ of a file; its status afterwards. */
static int canceled(tent_engine_t engine, const char *path) {
	char name[64] = "file://";
	tent_segment_id_t file;
	tent_status_t status;
	must(tent_open_segment(engine, &file, strcat(name, path)) == 0, "tent_open_segment");
	tent_request_t r = {OPCODE_READ, memory, file, 0, SIZE, 0, 0};
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	must(batch != 0 && tent_submit(engine, batch, &r, 1) == 0, "tent_submit");
	must(tent_cancel_task(engine, batch, 0) == 0, "tent_cancel_task");
	must(tent_wait(engine, batch, 20000, &status) == 0, "tent_wait");
	return status.status;
}

int main(void) {
	char path[] = "/tmp/tent-lingering-XXXXXX";
	int fd = mkstemp(path);
	must(fd >= 0 && ftruncate(fd, SIZE) == 0, "a file");

	tent_engine_t engine = made();
	must(canceled(engine, path) == STATUS_CANCELED, "a READ that was canceled");
	for (int i = 0; i < 2; i++)
		must(tent_unregister_memory(engine, memory, SIZE) == -1 && strstr(tent_last_error(), "kernel may still use"),
		     "memory was given back that the kernel has");
	tent_destroy_engine(engine);
	must(tent_last_error()[0] == 0, "tent_destroy_engine waits for it");
	unlink(path);
	return 0;
}

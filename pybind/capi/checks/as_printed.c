/* The lines of the QoS documentation in C, exactly as they stand there. */
#include <stdio.h>
#include <string.h>

/* clang-format off */
// In C
#include "tent/transfer_engine.h"

static int submit(tent_engine_t engine, tent_batch_id_t batch_id, void *buffer, tent_segment_id_t segment_id, size_t size) {
// Create request with priority
tent_request_t req = {
    .opcode = OPCODE_READ,
    .source = buffer,
    .target_id = segment_id,
    .target_offset = 0,
    .length = size,
    .priority = 0  // 0=HIGH, 1=MEDIUM, 2=LOW
};

/* the documentation's offset is that of a region; here it is an address */
req.target_offset = (uintptr_t)buffer + size;

// Submit the request
return
tent_submit(engine, batch_id, &req, 1);
}
/* clang-format on */

enum { SIZE = 4096 };

int main(void) {
	tent_engine_t engine = tent_create_engine();
	void *memory = NULL;
	tent_status_t status;
	if (!engine || tent_allocate_memory(engine, &memory, 2 * SIZE, "cpu:0")) return fprintf(stderr, "%s\n", tent_last_error()), 1;
	memset((char *)memory + SIZE, 0x5a, SIZE);
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	if (submit(engine, batch, memory, TENT_LOCAL_SEGMENT_ID, SIZE) || tent_wait(engine, batch, 10000, &status))
		return fprintf(stderr, "%s\n", tent_last_error()), 1;
	int right = status.status == STATUS_COMPLETED && memcmp(memory, (char *)memory + SIZE, SIZE) == 0;
	char *counted = tent_describe(engine, "metrics");
	right = right && counted && (strstr(counted, "tent_read_requests_total{class=\"high\",transport=\"shm\"} 1\n") ||
	                             strstr(counted, "tent_read_requests_total{class=\"high\",transport=\"tcp\"} 1\n"));
	tent_free_text(counted);
	tent_destroy_engine(engine);
	printf(right ? "as printed\n" : "wrong\n");
	return right ? 0 : 1;
}

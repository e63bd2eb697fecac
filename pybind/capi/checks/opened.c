/* A program that is not linked with the library, such as a plug-in's host, opens it by dlopen and moves bytes. */
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

enum { SIZE = 4096 };

/* A call of the library by its name, under the same name with a line behind it. */
#define FIND(call) __typeof__(call) *call##_ = (__typeof__(call) *)dlsym(library, #call)

int main(void) {
	void *library = dlopen(getenv("TENT_CHECK_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
	if (!library) return fprintf(stderr, "opened: %s\n", dlerror()), 1;
	FIND(tent_create_engine);
	FIND(tent_allocate_memory);
	FIND(tent_allocate_batch);
	FIND(tent_submit);
	FIND(tent_wait);
	FIND(tent_destroy_engine);
	FIND(tent_last_error);

	void *memory;
	tent_status_t status = {0, 0};
	tent_engine_t engine = tent_create_engine_();
	int right = engine && tent_allocate_memory_(engine, &memory, 2 * SIZE, NULL) == 0;
	if (right) {
		char *to = (char *)memory + SIZE;
		memset(memory, 0x5a, SIZE);
		tent_request_t request = {OPCODE_WRITE, memory, TENT_LOCAL_SEGMENT_ID, (uintptr_t)to, SIZE, 0, 0};
		tent_batch_id_t batch = tent_allocate_batch_(engine, 1);
		right = batch && tent_submit_(engine, batch, &request, 1) == 0 && tent_wait_(engine, batch, 10000, &status) == 0 &&
		        status.status == STATUS_COMPLETED && memcmp(memory, to, SIZE) == 0;
	}
	if (!right) fprintf(stderr, "opened: %s\n", tent_last_error_());
	tent_destroy_engine_(engine);
	return !right;
}

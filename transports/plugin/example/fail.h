/* Fills in the error of a call, and returns its code. */
#ifndef FAIL_H
#define FAIL_H

#include "tent_transport.h"

#include <stdio.h>
#include <string.h>

static int fail(tent_error *e, int code, int scope, int side, const char *cause) {
	memset(e, 0, sizeof *e);
	e->size = sizeof *e;
	e->code = (uint16_t)code, e->scope = (uint8_t)scope, e->side = (uint8_t)side;
	snprintf(e->cause, sizeof e->cause, "%s", cause);
	return code;
}

static int no_memory(tent_error *e) {
	return fail(e, TENT_OUT_OF_MEMORY, TENT_SCOPE_TRANSPORT, TENT_SIDE_LOCAL, "no memory");
}

#endif

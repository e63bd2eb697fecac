/* One kernel: the one that tent brings. Its PTX is not read beyond its name; its source is compiled into this library,
 * and each of its threads is run in turn. Memory that the device may not touch ends the context, as on hardware. */
#include "fake.h"
#include "../../../../transports/cuda/driver/copy.h"

#include <stdlib.h>
#include <string.h>

static const char name[] = "tent_copy";

API int cuModuleLoadData(const char **module, const char *image) {
	struct context *current;
	int result = fake_enter_current("cuModuleLoadData", &current);
	if (result)
		return result;
	if (!fake_setting("KERNELS", 1))
		return fake_leave(INVALID_PTX);
	*module = strstr(image, ".entry");
	return fake_leave(*module && strstr(image, ".version 6.0\n.target sm_70\n") ? OK : INVALID_PTX);
}

API int cuModuleGetFunction(const char **function, const char *module, const char *wanted) {
	struct context *current;
	int result = fake_enter_current("cuModuleGetFunction", &current);
	if (result)
		return result;
	*function = name;
	return fake_leave(!strcmp(wanted, name) && strstr(module, name) ? OK : NOT_FOUND);
}

/* Copies between devices of one process need no access, and kernels do. */
static int open_to(struct context *c, uint64_t address) {
	struct range *r = fake_find(address);
	switch (r ? (int)r->kind : -1) {
	case DEVICE:
		return r->device == c->device || c->peers & 1u << r->device;
	case IMPORTED:
		return r->context == c;
	}
	return 1; /* fake_segments looks at that of the VMM */
}

API int cuLaunchKernel(const char *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared, void *handle, void **parameters,
                       void **more) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuLaunchKernel", handle, &current, &s);
	if (result)
		return result;
	if (function != name || !grid_x || !grid_y || grid_y > TC_RANGES || grid_z != 1 || block_x != TC_THREADS ||
	    block_y != 1 || block_z != 1 || shared || more)
		return fake_leave(INVALID_VALUE);
	const tc_ranges *list = parameters[0];
	fake_stats.launches++;
	if (fake_setting("FREE", 0))
		return fake_leave(OK); /* it has copied nothing */
	for (unsigned i = grid_y; i-- > 0;) { /* blocks have no order */
		const tc_range *r = &list->of[i];
		struct work w = {.what = KERNEL, .blocks = grid_x};
		int pageable = 0;
		if (!r->bytes)
			continue;
		if (!open_to(s->context, r->to) || !open_to(s->context, r->from) ||
		    fake_segments(r->to, r->from, r->bytes, s->context->device, &w.segments, &w.count, &pageable) || pageable) {
			s->context->poisoned = ILLEGAL_ADDRESS;
			break;
		}
		fake_queue(s, &w);
	}
	return fake_leave(OK);
}

void fake_kernel(const struct segment *g, unsigned blocks) {
	tc_range r = {(uint64_t)g->to, (uint64_t)g->from, g->bytes};
	for (uint64_t thread = 0; thread < (uint64_t)blocks * TC_THREADS; thread++)
		tc_copy_words(&r, thread, (uint64_t)blocks * TC_THREADS);
}

/* Copies in streams, one by one and in batches. */
#include "fake.h"

/* Checks a copy now, and carries it out later. Memory of the host that is not pinned makes the call wait. */
static int copy(struct context *current, struct stream *s, uint64_t to, uint64_t from, size_t bytes) {
	struct work w = {.what = COPY};
	int pageable = 0;
	(void)current;
	int result = fake_segments(to, from, bytes, s->context->device, &w.segments, &w.count, &pageable);
	if (result)
		return result;
	fake_queue(s, &w);
	if (pageable)
		fake_wait(s, s->queued);
	return OK;
}

API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *handle) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuMemcpyAsync", handle, &current, &s);
	return result ? result : fake_leave(copy(current, s, to, from, bytes));
}

API int cuMemcpyPeerAsync(uint64_t to, struct context *toContext, uint64_t from, struct context *fromContext,
                          size_t bytes, void *handle) {
	(void)toContext, (void)fromContext;
	return cuMemcpyAsync(to, from, bytes, handle);
}

API int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void *handle) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream("cuMemsetD8Async", handle, &current, &s);
	if (result)
		return result;
	struct work w = {.what = SET, .byte = byte};
	int pageable = 0;
	result = fake_segments(to, to, bytes, s->context->device, &w.segments, &w.count, &pageable);
	return fake_leave(result ? result : pageable ? INVALID_VALUE : fake_queue(s, &w));
}

struct attributes { int order, hints[4], flags; };
_Static_assert(sizeof(struct attributes) == 24, "CUmemcpyAttributes");

#if FAKE_DRIVER >= 12080
/* Copies of a batch have no order; so they are carried out from the last to the first. */
static int batch(const char *function, uint64_t *to, uint64_t *from, size_t *bytes, size_t count,
                 struct attributes *a, size_t *first, size_t attributes, size_t *failed, void *handle) {
	struct context *current;
	struct stream *s;
	int result = fake_enter_stream(function, handle, &current, &s);
	if (result)
		return result;
	if (failed)
		*failed = SIZE_MAX;
	if ((uintptr_t)handle <= 2 || !count || attributes != 1 || *first || a->order != 1)
		return fake_leave(INVALID_VALUE);
	fake_stats.batches++;
	for (size_t i = count; i-- > 0;)
		if (!bytes[i] || (result = copy(current, s, to[i], from[i], bytes[i]))) {
			if (failed)
				*failed = i;
			return fake_leave(result ? result : INVALID_VALUE); /* those before it stay queued */
		}
	return fake_leave(OK);
}

API int cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *bytes, size_t count, struct attributes *a,
                           size_t *first, size_t attributes, size_t *failed, void *handle) {
	return batch("cuMemcpyBatchAsync", to, from, bytes, count, a, first, attributes, failed, handle);
}
#endif
#if FAKE_DRIVER >= 13000
API int cuMemcpyBatchAsync_v2(uint64_t *to, uint64_t *from, size_t *bytes, size_t count, struct attributes *a,
                              size_t *first, size_t attributes, void *handle) {
	return batch("cuMemcpyBatchAsync_v2", to, from, bytes, count, a, first, attributes, NULL, handle);
}
#endif

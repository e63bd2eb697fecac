//go:build cgo

/* Many short ranges by the processors of a device, where its copy engines take microseconds for each. shim.h has the
 * contract. */
#include "shim.h"
#include "copy.h"
#include "inside.h"

#include <pthread.h>

/* A range that is longer than this takes a copy engine long enough that its beginning does not count. */
enum { LONGEST = 4 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tc_function kernels[DEVICES_MAX]; /* made by tc_prepare, and kept as long as the process */

static tc_result launch(tc_function kernel, tc_stream stream, tc_ranges *list, size_t count, uint64_t longest) {
	void *parameters[] = {list};
	unsigned each = (unsigned)((longest + TC_BLOCK - 1) / TC_BLOCK);
	return CALL(cuLaunchKernel, kernel, each ? each : 1, (unsigned)count, 1, TC_THREADS, 1, 1, 0, stream, parameters,
	            NULL);
}

/* A driver may load a kernel at its first launch, and wait for the work of the program then: so it is launched here. */
static tc_result load(int device, const char *image, tc_function *kernel) {
	tc_module module;
	tc_stream stream;
	tc_ranges nothing = {0};
	tc_result r = copies_of(device, &stream);
	if (!r.code)
		r = CALL(cuModuleLoadData, &module, image);
	if (!r.code)
		r = CALL(cuModuleGetFunction, kernel, module, "tent_copy");
	if (!r.code)
		r = launch(*kernel, stream, &nothing, 1, 0);
	return r.code ? r : CALL(cuStreamSynchronize, stream);
}

tc_result tc_prepare(int device, const char *image) {
	NEED(cuModuleLoadData);
	NEED(cuModuleGetFunction);
	NEED(cuLaunchKernel);
	NEED(cuCtxEnablePeerAccess); /* without it no kernel reaches memory of another device */
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	pthread_mutex_lock(&lock);
	if (!kernels[device]) {
		tc_function made = NULL;
		if (!(r = load(device, image, &made)).code)
			__atomic_store_n(&kernels[device], made, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	pop(&before);
	return r;
}

int gathers(const tc_copies *c, const uint64_t *to, const uint64_t *from, const uint64_t *bytes) {
	if (!c->by_kernel || c->count < 2 || !__atomic_load_n(&kernels[c->device], __ATOMIC_ACQUIRE))
		return 0;
	for (size_t i = 0; i < c->count; i++)
		if (bytes[i] > LONGEST || (to[i] | from[i] | bytes[i]) % TC_WORD)
			return 0;
	return 1;
}

tc_result gather(int device, tc_stream stream, const uint64_t *to, const uint64_t *from, const uint64_t *bytes,
                 size_t count) {
	tc_function kernel = __atomic_load_n(&kernels[device], __ATOMIC_ACQUIRE);
	tc_result r = ended(TC_OK, "");
	for (size_t done = 0; done < count && !r.code;) {
		tc_ranges list;
		uint64_t longest = 0;
		size_t n = 0;
		for (; n < TC_RANGES && done < count; n++, done++) {
			list.of[n] = (tc_range){to[done], from[done], bytes[done]};
			longest = bytes[done] > longest ? bytes[done] : longest;
		}
		r = launch(kernel, stream, &list, n, longest);
	}
	return r;
}

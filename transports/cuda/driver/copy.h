/* The kernel that copies many short ranges of devices, in C that the compilers of GPUs take, too. tools/ptx.py makes
 * copy.ptx of it; the emulated driver of the tests compiles and runs the same lines. */
#ifndef TENT_CUDA_COPY_H
#define TENT_CUDA_COPY_H

#ifdef __CUDACC_RTC__
typedef unsigned long long uint64_t;
#define TC_ON_DEVICE __device__ static inline
#else
#include <stdint.h>
#define TC_ON_DEVICE static inline
#endif

enum {
	TC_RANGES = 168,  /* of one launch: its parameters are 4 KiB at most */
	TC_THREADS = 256, /* of a block */
	TC_WORD = 16,     /* bytes that a thread moves at once; places and sizes of ranges are multiples */
	TC_WORDS = 4,     /* that it has under way */
	TC_BLOCK = TC_THREADS * TC_WORDS * TC_WORD /* bytes of a block's turn */
};

typedef struct {
	uint64_t to, from, bytes;
} tc_range;

typedef struct {
	tc_range of[TC_RANGES];
} tc_ranges;

typedef struct __attribute__((aligned(TC_WORD))) {
	uint64_t first, second;
} tc_word;

/* Copies one thread's words of a range: the at-th of every step, TC_WORDS of them at once as long as there are. */
TC_ON_DEVICE void tc_copy_words(const tc_range *r, uint64_t at, uint64_t step) {
	tc_word *to = (tc_word *)r->to;
	const tc_word *from = (const tc_word *)r->from;
	uint64_t words = r->bytes / TC_WORD;
	for (; at + 3 * step < words; at += 4 * step) {
		tc_word a = from[at], b = from[at + step], c = from[at + 2 * step], d = from[at + 3 * step];
		to[at] = a;
		to[at + step] = b;
		to[at + 2 * step] = c;
		to[at + 3 * step] = d;
	}
	for (; at < words; at += step)
		to[at] = from[at];
}

#endif

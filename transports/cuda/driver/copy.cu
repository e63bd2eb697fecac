/* The source of copy.ptx, which tools/ptx.py makes. A block copies a part of one range: blockIdx.y is its number. */
#include "copy.h"

extern "C" __global__ void __launch_bounds__(TC_THREADS) tent_copy(const __grid_constant__ tc_ranges list) {
	tc_copy_words(&list.of[blockIdx.y], (uint64_t)blockIdx.x * TC_THREADS + threadIdx.x, (uint64_t)gridDim.x * TC_THREADS);
}

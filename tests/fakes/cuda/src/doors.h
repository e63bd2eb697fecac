/* What the doors of the emulated driver and those of a real one have in common. */
#ifndef TENT_FAKE_CUDA_DOORS_H
#define TENT_FAKE_CUDA_DOORS_H

#include <stdint.h>

#define API __attribute__((visibility("default")))

#endif

/* Opens NVML and fills the slots of the trampolines. */
#ifndef TENT_NVML_LOAD_H
#define TENT_NVML_LOAD_H

#include <stddef.h>

/* tent_nvml_library returns the name of the library: TENT_LIBNVIDIA_ML names another one, for tests. */
const char *tent_nvml_library(void);

/* tent_nvml_load returns the number of functions that the library has, or -1, with the reason in `why`. The library
 * stays open. Calls must not run side by side. */
int tent_nvml_load(char *why, size_t size);

#endif

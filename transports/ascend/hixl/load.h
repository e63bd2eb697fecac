/* The functions of ../shim/tent_ascend.h in a shim that was loaded. load_hixl comes first, once.
 *
 * The go command looks for changes in this folder alone: where that header changes, its number does here, too. */
#ifndef TENT_HIXL_LOAD_H
#define TENT_HIXL_LOAD_H

#include "../shim/tent_ascend.h"

_Static_assert(TENT_ASCEND_ABI == 1, "load.c calls the functions of this number");

int load_hixl(char *why, size_t bytes); /* 0, or -1 and the reason */
const char *hixl_report(void);
uint32_t hixl_create(const char *local, const char *const *options, uint64_t *engine);
void hixl_destroy(uint64_t engine);
uint32_t hixl_register(uint64_t engine, uint64_t address, uint64_t bytes, int host, uint64_t *handle);
uint32_t hixl_deregister(uint64_t engine, uint64_t handle);
uint32_t hixl_connect(uint64_t engine, const char *peer, int32_t milliseconds);
uint32_t hixl_disconnect(uint64_t engine, const char *peer, int32_t milliseconds);
uint32_t hixl_transfer(uint64_t engine, const char *peer, int write, const void *ranges, size_t count,
                       uint64_t *request);
void hixl_status(uint64_t engine, void *list, size_t count);

#endif

/* The C interface to HIXL, Huawei's library for memory of Ascend NPUs: its own is C++. tent_ascend.cc carries it out.
 * `make ascend-shim` compiles that into libtent_ascend.so, which tent loads while it runs.
 *
 * An engine is one hixl::Hixl. Its calls come from any thread for which the ACL context of the engine's device is
 * current. create and destroy run beside no other call of the engine. No C++ exception leaves a function.
 *
 * Numbers of the interface grow when a function changes; tent refuses a shim of another number. */
#ifndef TENT_ASCEND_H
#define TENT_ASCEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TENT_ASCEND_ABI = 1 };

/* Codes are those of HIXL: SUCCESS is 0. One is ours: HIXL threw an exception, whose text is tent_ascend_report. */
enum { TENT_ASCEND_THREW = 1 };

/* Ends of a request: HIXL's TransferStatus. */
enum { TENT_ASCEND_WAITING = 0, TENT_ASCEND_COMPLETED = 1, TENT_ASCEND_TIMEOUT = 2, TENT_ASCEND_FAILED = 3 };

typedef struct tent_ascend tent_ascend;

/* A part of a request: bytes between an address here and one in the peer's process. */
typedef struct {
	uint64_t local, remote, bytes;
} tent_ascend_range;

/* The state of a request that was asked about. Any but WAITING ends it: HIXL has forgotten it, and so must the caller. A
 * code other than 0 ends it, too. */
typedef struct {
	uint64_t request;
	uint32_t code, state;
} tent_ascend_ask;

int tent_ascend_abi(void);
const char *tent_ascend_report(void); /* of the calling thread's latest exception, "" without one */

/* local is "address:port", and is listened on. options are names and values in turn, with NULL behind them. */
uint32_t tent_ascend_create(const char *local, const char *const *options, tent_ascend **engine);
void tent_ascend_destroy(tent_ascend *engine);
uint32_t tent_ascend_register(tent_ascend *engine, uint64_t address, uint64_t bytes, int host, uint64_t *handle);
uint32_t tent_ascend_deregister(tent_ascend *engine, uint64_t handle);
uint32_t tent_ascend_connect(tent_ascend *engine, const char *peer, int32_t milliseconds);
uint32_t tent_ascend_disconnect(tent_ascend *engine, const char *peer, int32_t milliseconds);
uint32_t tent_ascend_transfer(tent_ascend *engine, const char *peer, int write, const tent_ascend_range *ranges,
                              size_t count, uint64_t *request);
void tent_ascend_status(tent_ascend *engine, tent_ascend_ask *list, size_t count);

#ifdef __cplusplus
}
#endif

#endif

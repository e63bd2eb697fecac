/* Code generated from gocore/request/schema by go generate; DO NOT EDIT.
 *
 * Requests and their terms. transfer_engine.h includes this file. */
#ifndef TENT_REQUEST_H
#define TENT_REQUEST_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t tent_segment_id_t;

#define TENT_LOCAL_SEGMENT_ID 0ull /* the engine's own memory, always open */

enum {
	OPCODE_READ = 0,
	OPCODE_WRITE = 1
};

enum {
	INTENT_UNSPEC = 0,
	INTENT_FOREGROUND_GET = 1,
	INTENT_BACKGROUND_PREFETCH = 2,
	INTENT_MIGRATION = 3,
	INTENT_CHECKPOINT = 4,
	INTENT_WEIGHT_LOADING = 5,
	INTENT_STAGING_INTERNAL = 6
};

enum {
	INTEGRITY_NONE = 0,
	INTEGRITY_CRC32C = 1
};

enum {
	DURABILITY_NONE = 0,
	DURABILITY_DATA = 1
};

/* One READ (remote to local) or WRITE (local to remote). Zero it before filling it in.
 * The layout is upstream's. */
struct tent_request {
	int opcode; /* OPCODE_*: the direction: READ fetches from the peer, WRITE sends to it */
	void *source; /* local address, registered or allocated, in either direction */
	tent_segment_id_t target_id; /* handle of the segment; 0 is the engine's own memory */
	uint64_t target_offset; /* an address of the peer; counts from 0 in a segment opened on one region or a file */
	uint64_t length; /* bytes */
	int priority; /* 0 high, 1 medium, 2 low */
	int transport_hint; /* the transport that is tried first; 0 leaves the choice to the policy */
};
typedef struct tent_request tent_request_t;

/* The terms of one request that tent_request has no field for; 0 is the default of each. */
struct tent_request_terms {
	uint64_t deadline_ns; /* ns on CLOCK_MONOTONIC: the request ends as TIMEOUT when this instant passes; 0 is none */
	int intent_type; /* INTENT_*: why the bytes move; a policy may choose routes by it */
	int integrity; /* INTEGRITY_*: a checksum of each slice, verified where it arrives; a slice that does not match is sent again */
	int durability; /* DURABILITY_*: for files: the batch ends when all that the request has written is on stable storage */
	const char *policy_name; /* the policy that counts, by its name; without one the first that matches */
	uint64_t require; /* the only transports that may carry it: bit n modulo 64 for the one of number n; 0 is any */
	uint64_t stream; /* the stream of a device whose present work must be done before a byte moves; 0 is none */
};
typedef struct tent_request_terms tent_request_terms_t;

/* The options of tent_submit_ex, for all requests of a call. Zero it before filling it in. */
struct tent_submit_options {
	uint64_t deadline_ns; /* of every request */
	int intent_type; /* of every request */
	int notify; /* not 0: send name and message after the last byte */
	const char *name;
	const void *message;
	size_t message_bytes;
	/* NULL, or one for each request: a field that is not 0 there holds instead of the one here */
	const tent_request_terms_t *terms;
	int integrity; /* of every request */
	int durability; /* of every request */
	const char *policy_name; /* of every request */
	uint64_t require; /* of every request */
	uint64_t stream; /* of every request */
	const char *trace; /* the caller's name for the call, at most 64 bytes; NULL for none */
};
typedef struct tent_submit_options tent_submit_options_t;

#if defined(__cplusplus) && !defined(TENT_TYPES_ONLY)
namespace mooncake {
namespace tent {

using SegmentID = uint64_t;

constexpr SegmentID LOCAL_SEGMENT_ID = TENT_LOCAL_SEGMENT_ID;
constexpr int PRIO_HIGH = 0;
constexpr int PRIO_MEDIUM = 1;
constexpr int PRIO_LOW = 2;

struct Request {
	enum class OpCode { READ = OPCODE_READ, WRITE = OPCODE_WRITE };
	OpCode opcode = OpCode::READ;
	void *source = nullptr;
	SegmentID target_id = LOCAL_SEGMENT_ID;
	uint64_t target_offset = 0;
	uint64_t length = 0;
	int priority = 0;
	int transport_hint = 0;
	uint64_t deadline_ns = 0;
	int intent_type = 0;
	int integrity = 0;
	int durability = 0;
	const char *policy_name = nullptr;
	uint64_t require = 0;
	uint64_t stream = 0;
	const char *trace = nullptr; /* the caller's name for the call, at most 64 bytes; its requests bear the same, or none */

	tent_request_t request() const {
		return {static_cast<int>(opcode), source, target_id, target_offset, length, priority, transport_hint};
	}
	tent_request_terms_t terms() const { return {deadline_ns, intent_type, integrity, durability, policy_name, require, stream}; }
};

} /* namespace tent */
} /* namespace mooncake */
#endif

#endif /* TENT_REQUEST_H */

/* An emulated libcufile.so.0 for tests, over the emulated libcuda. ../doc.go has its rules and their sources.
 *
 * One mutex guards all tables. It is not held while bytes move. */
#ifndef TENT_FAKE_CUFILE_H
#define TENT_FAKE_CUFILE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

#define API __attribute__((visibility("default")))

/* CUfileOpError, by the vendor's numbers. */
enum {
	NOT_INITIALIZED = 5001, CUDA_ERROR = 5011, INVALID_VALUE = 5022, ALREADY_REGISTERED = 5023, NOT_REGISTERED = 5024,
	ALREADY_OPEN = 5026, HANDLE_INVALID = 5027, HANDLE_REGISTERED = 5028, INTERNAL = 5030, NO_DRIVER = 5033, PINNING = 5036
};

enum { COMPLETE = 0x10, FAILED = 0x40 };

typedef struct {
	int err, cu_err;
} error;

struct descriptor {
	int type, pad, fd, pad2;
	const void *operations;
};

struct properties {
	unsigned major, minor;
	size_t poll_threshold, direct_most;
	unsigned status, control, features, cache_most, cache_of_buffer, pinned_most, batch_most, batch_timeout;
};

struct parameters {
	int mode;
	uint64_t base;
	off_t file_offset, device_offset;
	size_t bytes;
	struct handle *file;
	int operation;
	void *cookie;
};

struct event {
	void *cookie;
	int status;
	size_t result;
};

struct handle {
	int fd, writable, users;
	struct handle *next;
};

struct buffer {
	uint64_t base, size, memory; /* memory: the driver's number of what it has pinned at the base */
	int users;                   /* I/Os under way */
	struct buffer *next;
};

/* An I/O of a batch, or of a caller that waits (batch is NULL). */
struct io {
	struct batch *batch;
	struct handle *file;
	uint64_t base, address, bytes;
	off_t at;
	int write, silent; /* silent: no event comes */
	void *cookie;
	int ended;
	ssize_t result;
	struct io *next;
};

struct batch {
	unsigned entries, posted, under_way;
	int cancelled, destroyed;
	struct event *events; /* that nobody has taken yet */
	unsigned count;
	struct batch *next;
};

struct stats {
	int64_t handles, buffers, batches, under_way, moved, submits, cancels, drivers, faults;
};

/* A setting of the process. */
static long setting(const char *name, long otherwise) {
	char key[64];
	snprintf(key, sizeof key, "TENT_FAKECUFILE_%s", name);
	const char *text = getenv(key);
	return text && *text ? strtol(text, NULL, 10) : otherwise;
}

#endif

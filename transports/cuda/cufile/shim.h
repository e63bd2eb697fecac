/* The part of the cuFile API that tent calls, in declarations of our own: no header of the vendor is needed.
 *
 * Sizes and offsets are those of cuFile 1.0 to 1.16, on x86-64 and aarch64. */
#ifndef TENT_CUFILE_SHIM_H
#define TENT_CUFILE_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* CUfileError_t; it is returned by value. */
typedef struct {
	int err, cu_err;
} cf_error;
_Static_assert(sizeof(cf_error) == 8, "CUfileError_t");

/* CUfileDescr_t. */
typedef struct {
	int type;
	union {
		int fd;
		void *other;
	} handle;
	const void *operations;
} cf_descriptor;
_Static_assert(sizeof(cf_descriptor) == 24 && offsetof(cf_descriptor, handle) == 8, "CUfileDescr_t");

/* CUfileDrvProps_t. */
typedef struct {
	unsigned major, minor;
	size_t poll_threshold, direct_most; /* KiB */
	unsigned status, control;
	unsigned features, cache_most, cache_of_buffer, pinned_most, batch_most, batch_timeout;
} cf_properties;
_Static_assert(sizeof(cf_properties) == 56 && offsetof(cf_properties, control) == 28 &&
                   offsetof(cf_properties, features) == 32 && offsetof(cf_properties, batch_most) == 48,
               "CUfileDrvProps_t");

/* CUfileIOParams_t and CUfileIOEvents_t. */
typedef struct {
	int mode;
	void *base;
	off_t file_offset, device_offset;
	size_t bytes;
	void *file;
	int operation;
	void *cookie;
} cf_io;
_Static_assert(sizeof(cf_io) == 64 && offsetof(cf_io, base) == 8 && offsetof(cf_io, bytes) == 32 &&
                   offsetof(cf_io, file) == 40 && offsetof(cf_io, operation) == 48 && offsetof(cf_io, cookie) == 56,
               "CUfileIOParams_t");
typedef struct {
	void *cookie;
	int status;
	size_t result; /* it holds a signed value */
} cf_event;
_Static_assert(sizeof(cf_event) == 24 && offsetof(cf_event, result) == 16, "CUfileIOEvents_t");

/* Events of a batch. */
typedef struct {
	unsigned count;
	cf_event events[];
} cf_answer;

/* X(type, name, arguments). Without a NEEDED one cuFile is not used; without a BATCH one threads wait for each run. */
#define CF_SYMBOLS(NEEDED, BATCH, OPTIONAL)                                                                  \
	NEEDED(cf_error, cuFileDriverOpen, (void))                                                           \
	NEEDED(cf_error, cuFileDriverGetProperties, (cf_properties * properties))                            \
	NEEDED(cf_error, cuFileHandleRegister, (void **file, cf_descriptor *descriptor))                     \
	NEEDED(void, cuFileHandleDeregister, (void *file))                                                   \
	NEEDED(cf_error, cuFileBufRegister, (const void *base, size_t bytes, int flags))                     \
	NEEDED(cf_error, cuFileBufDeregister, (const void *base))                                            \
	NEEDED(ssize_t, cuFileRead, (void *file, void *base, size_t bytes, off_t at, off_t into))            \
	NEEDED(ssize_t, cuFileWrite, (void *file, const void *base, size_t bytes, off_t at, off_t from))     \
	BATCH(cf_error, cuFileBatchIOSetUp, (void **batch, unsigned entries))                                \
	BATCH(cf_error, cuFileBatchIOSubmit, (void *batch, unsigned count, cf_io *list, unsigned flags))     \
	BATCH(cf_error, cuFileBatchIOGetStatus,                                                              \
	      (void *batch, unsigned least, unsigned *count, cf_event *events, struct timespec *limit))      \
	BATCH(cf_error, cuFileBatchIOCancel, (void *batch))                                                  \
	BATCH(void, cuFileBatchIODestroy, (void *batch))                                                     \
	OPTIONAL(cf_error, cuFileGetVersion, (int *version))

/* Of our own, beside CUfileOpError: the process was forked. */
enum { CF_FORKED = -1, CF_ENDLESS = -2 };

/* All may be called from any thread. Those about memory of a device need its context to be current. */
int cf_load(char *why, size_t bytes); /* once a process; 1: with batches, 0: without, -1 and -2: the reason */
cf_error cf_open(cf_properties *properties, int *version);
cf_error cf_adopt(int fd, void **file);
void cf_drop(void *file);
cf_error cf_keep(uint64_t base, uint64_t bytes);
cf_error cf_unkeep(uint64_t base);
int64_t cf_move(int write, void *file, uint64_t base, uint64_t offset, int64_t at, uint64_t bytes); /* bytes, or negative */
cf_error cf_set_up(unsigned entries, void **batch);
cf_error cf_post(void *batch, cf_io *io); /* one entry: io stays where it is until its event */
cf_error cf_status(void *batch, unsigned least, unsigned most, cf_answer *answer, int64_t limit_ns);
void cf_end(void *batch, int spoiled);

#endif

/* An emulated libcuda.so.1 for tests: no GPU, no driver. ../doc.go has its rules and their sources.
 *
 * One mutex guards all tables. Bytes of a device lie in a memfd with two mappings: the program sees address space that
 * no processor can touch (PROT_NONE), and the copy engine reads and writes the shadow. */
#ifndef TENT_FAKE_CUDA_H
#define TENT_FAKE_CUDA_H

#include "doors.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef FAKE_DRIVER
#define FAKE_DRIVER 13000 /* as cuDriverGetVersion says it */
#endif

#define DEVICES_MAX 8
#define GRANULARITY (2UL << 20) /* of allocations of the VMM, and of addresses */
#define PAGE 4096UL

/* Results, by the vendor's numbers. */
enum {
	OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201, ALREADY_MAPPED = 208, PEER_UNSUPPORTED = 217, INVALID_PTX = 218, INVALID_HANDLE = 400,
	NOT_FOUND = 500, NOT_READY = 600,
	ILLEGAL_ADDRESS = 700, PEER_ALREADY_ENABLED = 704, CONTEXT_IS_DESTROYED = 709,
	HOST_ALREADY_REGISTERED = 712, HOST_NOT_REGISTERED = 713,
	NOT_PERMITTED = 800, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_IMPLICIT = 906
};

enum { FLAG_POSIX_FD = 1, FLAG_FABRIC = 8 };

/* The last page of each memfd: every process that maps the bytes sees it. */
struct trailer {
	uint64_t magic, size, nonce;
	int32_t device, vmm, types, freed;
};

/* Bytes of a device, or of another process's device. */
struct physical {
	int fd, owner;       /* owner: the process, 0 for this one; fd is -1 where nothing can be exported */
	uint64_t at;         /* in fd */
	uint64_t size, id;   /* id: CU_POINTER_ATTRIBUTE_BUFFER_ID */
	char *shadow;
	struct trailer *trailer;
	int references, handles;
};

enum kind { DEVICE, IMPORTED, MAPPED, RESERVED, PINNED };

/* A range of addresses that the driver knows. MAPPED lies inside of RESERVED. */
struct range {
	uint64_t start, size;
	enum kind kind;
	int device, opened, ours; /* ours: PINNED memory that cuMemHostAlloc made */
	int managed, pooled;      /* DEVICE memory of cuMemAllocManaged, of cuMemAllocAsync */
	unsigned access;          /* MAPPED: bit by device */
	struct physical *physical;
	struct context *context;
	uint64_t origin; /* IMPORTED: its address in its owner */
	char *pages; /* PINNED: those of its registration, in a mapping of ours; NULL where they are found by the address */
	struct range *next;
};

/* A part of a copy, in addresses that the copy engine reaches. */
struct segment {
	char *to;
	const char *from;
	uint64_t bytes;
	struct physical *holds[2];
};

struct context {
	int device, retained, poisoned; /* poisoned: a sticky error */
	int green;                      /* a part of the primary one: it is current in one thread at a time */
	struct stream *legacy;
	unsigned peers;
};

struct work {
	enum { COPY, SET, RECORD, WAIT, WAIT_VALUE, KERNEL } what;
	struct segment *segments;
	size_t count;
	int byte;
	unsigned blocks; /* of KERNEL */
	struct event *event;
	uint64_t turn;
	uint64_t behind; /* of a blocking stream: the turn of the default stream that comes first */
	volatile uint32_t *word; /* of WAIT_VALUE; turn is its value */
	struct work *next;
};

struct stream {
	struct context *context, *green; /* green: that of a stream which was made in one, whose context is the primary one */
	pthread_t thread;
	pthread_cond_t came, went; /* work for its thread; the turn `awaited`, the first that somebody waits for, is done */
	struct work *first, *last;
	uint64_t queued, done, awaited;
	int ending, capturing, blocking;
	unsigned random;
	struct stream *next;
};

struct event {
	struct context *context;
	uint64_t recorded, reached;
	int destroyed;
};

struct stats {
	int64_t allocations, imports, handles, reservations, mappings, pinned, streams, events, retained, depth, copies,
	    batches, calls, stale, files, peers, launches;
};

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_moved; /* a stream has ended or has no work left, or an event was reached */
extern struct range *fake_ranges;
extern struct stream *fake_streams;
extern struct stats fake_stats;
extern struct context fake_contexts[DEVICES_MAX], fake_greens[DEVICES_MAX];
extern int fake_devices;
extern long fake_flushes[DEVICES_MAX]; /* of the bytes of other devices */
extern int fake_captures; /* streams that are being captured */

/* context.c */
int fake_enter(const char *function); /* takes the lock; on an error it is not held */
int fake_enter_current(const char *function, struct context **current);
int fake_leave(int result); /* gives the lock back */
long fake_setting(const char *name, long otherwise);
int fake_linked(int device, int peer);
int fake_injected(const char *function, struct context *where);

/* memory.c */
struct physical *fake_physical(uint64_t size, int device, int vmm, int types);
struct physical *fake_adopt(int fd, int owner, uint64_t at, uint64_t size);
void fake_drop(struct physical *p);
struct range *fake_find(uint64_t address);
struct range *fake_add(uint64_t start, uint64_t size, enum kind kind, int device);
void fake_remove(struct range *r);
uint64_t fake_reserve(uint64_t size);
void fake_release(uint64_t start, uint64_t size);
int fake_segments(uint64_t to, uint64_t from, uint64_t bytes, int device, struct segment **out, size_t *count,
                  int *pageable);
void fake_drain(void); /* waits for all streams */

/* kernel.c */
void fake_kernel(const struct segment *g, unsigned blocks);

/* stream.c */
int fake_enter_stream(const char *function, void *handle, struct context **current, struct stream **s);
int fake_queue(struct stream *s, struct work *w);
struct stream *fake_stream_of(void *handle, struct context *current);
void fake_hold(int on); /* streams carry nothing out until it is 0 again */
void fake_wait(struct stream *s, uint64_t turn);

#endif

/* The plain C program that tent is compared with on files: the system calls that must be made, and nothing beside them.
 *   each                          preadv2 through the page cache, one call a piece, by threads
 *   read, write, gather, scatter, restore  O_DIRECT by one io_uring of one thread that keeps DEPTH operations in the kernel
 * Driven by lines on stdin (see contestant.py):
 *   each SIZE COUNT ITERATIONS THREADS           -> "ns N"   COUNT READs a thread and iteration, each in a part of the file
 *   read|write SIZE COUNT ITERATIONS PIECES      -> "ns N"   COUNT x ITERATIONS pieces, one behind the other
 *   gather|scatter SIZE COUNT ITERATIONS PIECES  -> "ns N"   the same in random order in the file
 *   restore SIZE COUNT ITERATIONS PAGES          -> "ns N"   READs one behind the other, each of PAGES pages that go to
 *                                                            random places in other memory, as large as the file
 * Memory is 64 MiB, where pieces of a run lie one behind the other as in tent's benchmark. PIECES bounds how many of
 * them are used in turn; with DEPTH it is fio's memory. It is of huge pages where the kernel has some: a READ of 1 MiB
 * into pages of 4 KiB has more segments than a virtual disk takes at once.
 * Usage: cfile DEPTH FILE
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "floor.h"

#define ARENA ((size_t)64 << 20)
#define HUGE ((size_t)2 << 20)
#define PAGES_MOST 16

struct work { /* pieces of one verb */
	int write, scattered;
	size_t size, total, pieces; /* pieces: of memory, used in turn */
	size_t pages;               /* of a piece, for restore; else 1 */
	char **places;              /* of all pages, for restore */
};

struct queue { /* one of the two queues that the kernel shares */
	_Atomic unsigned *head, *tail;
	unsigned mask;
};

static char *arena;
static const char *path;
static size_t file_bytes;
static unsigned depth;
static uint64_t seed = 88172645463325252u;

static char *map_huge(size_t bytes) {
	char *m = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) die("mmap");
	m += (HUGE - (uintptr_t)m % HUGE) % HUGE;
	madvise(m, bytes, MADV_HUGEPAGE); /* or not: it is as fast as it can be */
	for (size_t i = 0; i < bytes; i++) m[i] = (char)(i * 7 >> 3); /* zeroes are moved faster than anything else */
	return m;
}

static uint64_t next_random(void) { /* xorshift64 */
	seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
	return seed;
}

/* ---- through the page cache ---- */

struct reader { pthread_t thread; size_t number, threads, size, total; };

static void *read_each(void *of) {
	struct reader *r = of;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) die(path);
	struct iovec v = {arena + r->number * ((size_t)1 << 20), r->size};
	size_t room = file_bytes / r->size / r->threads;
	for (size_t i = 0; i < r->total; i++)
		if (preadv2(fd, &v, 1, (off_t)((r->number * room + i % room) * r->size), RWF_NOWAIT) != (ssize_t)r->size &&
		    preadv(fd, &v, 1, (off_t)((r->number * room + i % room) * r->size)) != (ssize_t)r->size)
			die("preadv");
	close(fd);
	return NULL;
}

static void run_each(size_t size, size_t total, size_t threads) {
	struct reader readers[64];
	if (threads < 1 || threads > 64) die("threads");
	for (size_t i = 0; i < threads; i++) {
		readers[i] = (struct reader){.number = i, .threads = threads, .size = size, .total = total};
		if (pthread_create(&readers[i].thread, NULL, read_each, &readers[i])) die("pthread_create");
	}
	for (size_t i = 0; i < threads; i++) pthread_join(readers[i].thread, NULL);
}

/* ---- past the page cache ---- */

static int ring_fd, direct_fd;
static struct queue submissions, completions;
static unsigned *order; /* of submission entries */
static struct io_uring_sqe *entries;
static struct io_uring_cqe *ends;
static struct iovec (*vectors)[PAGES_MOST]; /* of submission entries */

static void open_ring(void) {
	struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
	ring_fd = (int)syscall(SYS_io_uring_setup, depth, &p);
	if (ring_fd < 0) die("io_uring_setup");
	size_t bytes = p.cq_off.cqes + p.cq_entries * sizeof *ends, other = p.sq_off.array + p.sq_entries * sizeof *order;
	char *m = mmap(NULL, bytes > other ? bytes : other, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_fd,
		       IORING_OFF_SQ_RING);
	entries = mmap(NULL, p.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_fd,
		       IORING_OFF_SQES);
	if (m == MAP_FAILED || entries == MAP_FAILED || !(p.features & IORING_FEAT_SINGLE_MMAP)) die("io_uring");
	submissions = (struct queue){(void *)(m + p.sq_off.head), (void *)(m + p.sq_off.tail), *(unsigned *)(m + p.sq_off.ring_mask)};
	completions = (struct queue){(void *)(m + p.cq_off.head), (void *)(m + p.cq_off.tail), *(unsigned *)(m + p.cq_off.ring_mask)};
	order = (unsigned *)(m + p.sq_off.array);
	ends = (struct io_uring_cqe *)(m + p.cq_off.cqes);
	if (!(vectors = calloc(p.sq_entries, sizeof *vectors))) die("calloc");
	direct_fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (direct_fd < 0) die(path);
}

/* Adds the piece of a number to the submission queue. The kernel has room for depth of them. */
static void add(const struct work *w, size_t i) {
	unsigned tail = atomic_load_explicit(submissions.tail, memory_order_relaxed), at = tail & submissions.mask;
	size_t places = file_bytes / w->size, place = w->scattered ? next_random() % places : i % places;
	for (size_t k = 0; k < w->pages; k++)
		vectors[at][k] = (struct iovec){w->places ? w->places[place * w->pages + k] : arena + i % w->pieces * w->size,
						w->size / w->pages};
	entries[at] = (struct io_uring_sqe){.opcode = w->write ? IORING_OP_WRITEV : IORING_OP_READV, .fd = direct_fd,
					    .off = place * w->size, .addr = (uintptr_t)vectors[at], .len = (unsigned)w->pages};
	order[at] = at;
	atomic_store_explicit(submissions.tail, tail + 1, memory_order_release);
}

/* Takes the ends that are there off the completion queue and returns how many they are. */
static unsigned reap(size_t size) {
	unsigned head = atomic_load_explicit(completions.head, memory_order_relaxed), first = head;
	for (; head != atomic_load_explicit(completions.tail, memory_order_acquire); head++)
		if (ends[head & completions.mask].res != (int)size)
			errno = -ends[head & completions.mask].res, die("operation");
	atomic_store_explicit(completions.head, head, memory_order_release);
	return head - first;
}

static void run_ring(const struct work *w) {
	size_t begun = 0, ended = 0;
	while (ended < w->total) {
		unsigned fresh = 0;
		for (; begun < w->total && begun - ended < depth; fresh++) add(w, begun++);
		if (syscall(SYS_io_uring_enter, ring_fd, fresh, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) die("io_uring_enter");
		ended += reap(w->size);
	}
}

static char **shuffled(size_t page) { /* places of the file's pages in other memory, by Fisher and Yates */
	size_t n = file_bytes / page;
	char **places = calloc(n, sizeof *places), *m = map_huge(file_bytes);
	if (!places) die("calloc");
	for (size_t i = 0, j; i < n; i++) j = next_random() % (i + 1), places[i] = places[j], places[j] = m + i * page;
	return places;
}

static void command(const char *line) {
	static char **places;
	char verb[16];
	size_t size, count, iterations, last;
	if (sscanf(line, "%15s %zu %zu %zu %zu", verb, &size, &count, &iterations, &last) != 5 || size == 0 ||
	    size > ARENA || (!strcmp(verb, "restore") && (last == 0 || last > PAGES_MOST)))
		errno = EINVAL, die(line);
	struct work w = {.write = !strcmp(verb, "write") || !strcmp(verb, "scatter"),
			 .scattered = !strcmp(verb, "scatter") || !strcmp(verb, "gather"),
			 .size = size, .total = count * iterations,
			 .pieces = last && last < ARENA / size ? last : ARENA / size, .pages = 1};
	if (!strcmp(verb, "restore")) /* pages are as large as in the first one */
		w.pages = last, w.places = places = places ? places : shuffled(size / last);
	uint64_t begin = now_ns();
	if (!strcmp(verb, "each")) run_each(size, w.total, last);
	else run_ring(&w);
	printf("ns %llu\n", (unsigned long long)(now_ns() - begin));
}

int main(int argc, char **argv) {
	struct stat st;
	char line[256];
	if (argc != 3) return fprintf(stderr, "usage: cfile DEPTH FILE\n"), 2;
	depth = (unsigned)strtoul(argv[1], NULL, 10), path = argv[2];
	if (stat(path, &st)) die(path);
	file_bytes = (size_t)st.st_size;
	arena = map_huge(ARENA);
	if (depth > 0) open_ring();
	printf("ready\n");
	for (fflush(stdout); fgets(line, sizeof line, stdin); fflush(stdout)) command(line);
	return 0;
}

/* The plain C programs that tent is compared with on one host, one thread, two processes:
 *   memcpy   pieces are copied into (out of) a memfd that both processes have mapped
 *   nt       the same with non-temporal stores
 *   vm       process_vm_writev (readv) into the private memory of the other process, all pieces of a batch a call
 * Driven by lines on stdin (see contestant.py):
 *   write|read SIZE COUNT ITERATIONS _         ->  "ns N N N ..."   one number a batch
 *   pages SIZE COUNT ITERATIONS REGIONS        ->  the same for pages in another order, COUNT of them in REGIONS equal regions
 *   check write|read|pages SIZE COUNT REGIONS  ->  "ok" or "bad OFFSET"
 * Usage: cshm memcpy|nt|vm ARENA_BYTES
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>

#include "floor.h"
#endif

enum { FILL = 1, CHECK = 2, IOV_MOST = 1024, POSITIONS = 16 };

struct order { /* what the other process is asked to do with its memory */
	uint64_t op, length, seed;
};

struct batch { /* pieces of equal size; offsets here and there */
	size_t size, count;
	uint64_t *mine, *theirs;
};

static char *arena, *remote; /* ours; the peer's: mapped here, or its address there */
static size_t arena_bytes;
static enum { MEMCPY, NT, VM } mode;
static pid_t peer;
static int to_peer[2], from_peer[2];

/* The pattern depends on the position, so bytes that land in the wrong place are seen. */
static uint64_t word(uint64_t i, uint64_t seed) { return (i + 1) * 0x9e3779b97f4a7c15u + seed; }

static void fill(char *memory, uint64_t seed) {
	uint64_t *w = (uint64_t *)memory;
	for (size_t i = 0; i < arena_bytes / 8; i++) w[i] = word(i, seed);
}

static void copy_nt(char *to, const char *from, size_t n) {
#if defined(__SSE2__)
	if (((uintptr_t)to | n) % 64 == 0) {
		for (size_t i = 0; i < n; i += 64)
			for (int k = 0; k < 64; k += 16)
				_mm_stream_si128((__m128i *)(to + i + k), _mm_loadu_si128((const __m128i *)(from + i + k)));
		_mm_sfence();
		return;
	}
#endif
	memcpy(to, from, n);
}

static void move_by_kernel(const struct batch *b, int write) {
	static struct iovec here[IOV_MOST], there[IOV_MOST];
	for (size_t done = 0; done < b->count;) {
		size_t n = b->count - done < IOV_MOST ? b->count - done : IOV_MOST;
		for (size_t i = 0; i < n; i++) {
			here[i] = (struct iovec){arena + b->mine[done + i], b->size};
			there[i] = (struct iovec){remote + b->theirs[done + i], b->size};
		}
		ssize_t moved = write ? process_vm_writev(peer, here, n, there, n, 0) : process_vm_readv(peer, here, n, there, n, 0);
		if (moved != (ssize_t)(n * b->size)) die("process_vm");
		done += n;
	}
}

static void move(const struct batch *b, int write) {
	if (mode == VM) return move_by_kernel(b, write);
	for (size_t i = 0; i < b->count; i++) {
		char *to = write ? remote + b->theirs[i] : arena + b->mine[i];
		const char *from = write ? arena + b->mine[i] : remote + b->theirs[i];
		if (mode == NT)
			copy_nt(to, from, b->size);
		else
			memcpy(to, from, b->size);
	}
}

static struct batch new_batch(size_t size, size_t count, size_t regions, size_t base) {
	struct batch b = {size, count, malloc(count * 8), malloc(count * 8)};
	if (!b.mine || !b.theirs) die("malloc");
	size_t each = regions ? count / regions : count;
	for (size_t i = 0; i < count; i++) {
		size_t first = i / each * each, page = i % each;
		b.mine[i] = base + (first + (regions ? page * 77 % each : page)) * size;
		b.theirs[i] = base + (first + (regions ? page * 181 % each : page)) * size;
	}
	return b;
}

static void free_batch(struct batch *b) {
	free(b->mine);
	free(b->theirs);
}

static uint64_t ask(uint64_t op, uint64_t length, uint64_t seed) {
	struct order o = {op, length, seed};
	uint64_t answer;
	if (write(to_peer[1], &o, sizeof o) != sizeof o || read(from_peer[0], &answer, sizeof answer) != sizeof answer) die("peer");
	return answer;
}

static void run_peer(char *memory) {
	struct order o;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(to_peer[0], &o, sizeof o) == sizeof o) {
		uint64_t answer = o.op == FILL ? (fill(memory, o.seed), 0) : 0;
		const uint64_t *w = (uint64_t *)memory;
		for (size_t i = 0; o.op == CHECK && i < o.length / 8 && !answer; i++)
			if (w[i] != word(i, o.seed)) answer = i * 8 + 1;
		if (write(from_peer[1], &answer, sizeof answer) != sizeof answer) break;
	}
	exit(0);
}

/* Pages in another order cannot be told from wrong ones by position alone: each is looked for where it belongs. */
static uint64_t wrong_after(const struct batch *b, int write, uint64_t seed) {
	char *page = malloc(b->size);
	uint64_t wrong = 0;
	for (size_t i = 0; i < b->count && !wrong; i++) {
		uint64_t from = write ? b->mine[i] : b->theirs[i], to = write ? b->theirs[i] : b->mine[i];
		const char *have = arena + to;
		if (write && mode == VM) {
			struct iovec l = {page, b->size}, r = {remote + to, b->size};
			if (process_vm_readv(peer, &l, 1, &r, 1, 0) != (ssize_t)b->size) die("process_vm_readv");
			have = page;
		} else if (write) {
			have = remote + to;
		}
		for (size_t k = 0; k < b->size / 8 && !wrong; k++)
			if (((const uint64_t *)have)[k] != word((from + 8 * k) / 8, seed)) wrong = to + 8 * k + 1;
	}
	free(page);
	return wrong;
}

static void check(const char *verb, size_t size, size_t count, size_t regions) {
	static uint64_t seed = 7;
	int write = verb[0] != 'r', paged = verb[0] == 'p';
	struct batch b = new_batch(size, count, paged ? regions : 0, 0);
	seed += 0x51ed2701;
	fill(arena, write ? seed : ~seed);
	ask(FILL, 0, write ? ~seed : seed);
	move(&b, write);
	uint64_t wrong = wrong_after(&b, write, seed);
	if (!wrong && write && !paged) wrong = ask(CHECK, size * count, seed);
	if (wrong)
		printf("bad %llu\n", (unsigned long long)wrong - 1);
	else
		printf("ok\n");
	free_batch(&b);
}

static void measure(const char *verb, size_t size, size_t count, int iterations, size_t regions) {
	size_t room = arena_bytes / (size * count);
	struct batch batches[POSITIONS];
	uint64_t *took = calloc((size_t)iterations, sizeof *took);
	if (!took || room == 0) die("arena");
	for (size_t p = 0; p < POSITIONS; p++)
		batches[p] = new_batch(size, count, verb[0] == 'p' ? regions : 0, p % room * size * count);
	for (int i = 0; i < iterations; i++) {
		uint64_t begin = now_ns();
		move(&batches[i % POSITIONS], verb[0] != 'r');
		took[i] = now_ns() - begin;
	}
	printf("ns");
	for (int i = 0; i < iterations; i++) printf(" %llu", (unsigned long long)took[i]);
	printf("\n");
	for (size_t p = 0; p < POSITIONS; p++) free_batch(&batches[p]);
	free(took);
}

static void command(const char *line) {
	char verb[8];
	size_t size, count, regions = 0;
	int iterations;
	if (sscanf(line, "check %7s %zu %zu %zu", verb, &size, &count, &regions) == 4)
		check(verb, size, count, regions);
	else if (sscanf(line, "%7s %zu %zu %d %zu", verb, &size, &count, &iterations, &regions) == 5)
		measure(verb, size, count, iterations, regions);
	else
		printf("what? %s", line);
	fflush(stdout);
}

static char *new_memory(int fd) {
	char *p = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED) die("mmap");
	return p;
}

int main(int argc, char **argv) {
	if (argc != 3) return fprintf(stderr, "usage: cshm memcpy|nt|vm ARENA_BYTES\n"), 2;
	mode = argv[1][0] == 'm' ? MEMCPY : argv[1][0] == 'n' ? NT : VM;
	arena_bytes = strtoull(argv[2], NULL, 10);
	int fd = mode == VM ? -1 : memfd_create("cshm", 0);
	if (fd >= 0 && ftruncate(fd, (off_t)arena_bytes)) die("ftruncate");
	if (pipe(to_peer) || pipe(from_peer)) die("pipe");
	remote = new_memory(fd); /* private memory lies at the same address in both processes after fork */
	peer = fork();
	if (peer < 0) die("fork");
	fill(remote, 1);
	if (peer == 0) run_peer(remote);
	arena = new_memory(-1);
	fill(arena, 2);
	printf("ready %d\n", (int)peer);
	fflush(stdout);
	char line[256];
	while (fgets(line, sizeof line, stdin)) command(line);
	kill(peer, SIGKILL);
	return 0;
}

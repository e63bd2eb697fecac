/* Memory between two guard bands, and the byte oracle of C programs that share it with rails.h. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD = 1 << 16, GUARD_BYTE = 0xa5 };

/* Bytes between two guard bands, all of them there; returns the begin of the first band. */
static char *guarded(uint64_t bytes) {
	size_t whole = bytes + 2 * GUARD;
	char *m = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (m == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return memset(m, GUARD_BYTE, whole);
}

/* The pattern depends on the position, so bytes that land in the wrong place are seen. */
static uint64_t word(uint64_t i, uint64_t seed) { return (i + 1) * 0x9e3779b97f4a7c15u ^ seed; }

static void fill(char *m, uint64_t bytes, uint64_t seed) {
	uint64_t *w = (uint64_t *)(m + GUARD);
	for (uint64_t i = 0; i < bytes / 8; i++) w[i] = word(i, seed);
}

/* Prints "ok"; "bad" and the first of length bytes that is of neither seed; "guard" where a guard band was touched. */
static void look(const char *m, uint64_t bytes, uint64_t length, uint64_t seed, uint64_t or_seed) {
	const unsigned char *band = (const unsigned char *)m, *have = band + GUARD;
	for (uint64_t i = 0; i < GUARD; i++)
		if (band[i] != GUARD_BYTE || have[bytes + i] != GUARD_BYTE) {
			printf("guard %llu\n", (unsigned long long)i);
			return;
		}
	for (uint64_t i = 0; i < length; i++) {
		unsigned char one = (unsigned char)(word(i / 8, seed) >> 8 * (i % 8));
		unsigned char other = (unsigned char)(word(i / 8, or_seed) >> 8 * (i % 8));
		if (have[i] != one && have[i] != other) {
			printf("bad %llu\n", (unsigned long long)i);
			return;
		}
	}
	printf("ok\n");
}

/* Copies slices between memories of this process. By the kernel, which survives memory that is gone; or by memcpy. */
#ifndef COPY_H
#define COPY_H

#include "tent_transport.h"

#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PARTS = 256 };

/* kept reports whether each page of a range can be read. */
static int kept(uint64_t at, uint64_t n) {
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	for (uint64_t a = at; a < at + n; a = (a / page + 1) * page) {
		char c;
		struct iovec to = {&c, 1}, from = {(void *)(uintptr_t)a, 1};
		if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1) return 0;
	}
	return 1;
}

/* move copies n ranges by the kernel, which survives memory that is gone. It returns the side to blame, or 0. */
static int move(const tent_slice *s, struct iovec *local, struct iovec *remote, size_t n, uint64_t bytes) {
	struct iovec *to = s->op == TENT_WRITE ? remote : local, *from = s->op == TENT_WRITE ? local : remote;
	if (process_vm_writev(getpid(), from, n, to, n, 0) == (ssize_t)bytes) return 0;
	for (size_t i = 0; i < n; i++)
		if (!kept((uintptr_t)from[i].iov_base, from[i].iov_len))
			return s->op == TENT_WRITE ? TENT_SIDE_LOCAL : TENT_SIDE_REMOTE;
	return s->op == TENT_WRITE ? TENT_SIDE_REMOTE : TENT_SIDE_LOCAL;
}

/* copy carries a slice out to or from a region at an address. It returns the side to blame, or 0. */
static int copy(const tent_slice *s, uint64_t remote, int trusting) {
	struct iovec here[PARTS], there[PARTS];
	uint64_t count = s->pieces.count ? s->pieces.count : 1, each = s->length / count;
	if (trusting && !s->pieces.count) {
		void *l = (void *)(uintptr_t)s->local, *r = (void *)(uintptr_t)(remote + s->remote);
		memcpy(s->op == TENT_WRITE ? r : l, s->op == TENT_WRITE ? l : r, s->length);
		return 0;
	}
	for (uint64_t i = 0; i < count;) {
		size_t n = 0;
		for (; n < PARTS && i < count; n++, i++) {
			uint64_t l = s->pieces.count ? s->pieces.local_at[i] : 0, r = s->pieces.count ? s->pieces.remote_at[i] : 0;
			here[n].iov_base = (void *)(uintptr_t)(s->local + l);
			there[n].iov_base = (void *)(uintptr_t)(remote + s->remote + r);
			here[n].iov_len = there[n].iov_len = each;
		}
		int side = move(s, here, there, n, n * each);
		if (side) return side;
	}
	return 0;
}

#endif

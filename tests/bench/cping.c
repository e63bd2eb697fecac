/* The floor of a small WRITE over TCP: a ping-pong between two processes on loopback, one connection, header and payload in one sendmsg,
 * received into their places, answered by 8 bytes. Nothing else is done for it.
 *   sleep   both ends sleep in recvmsg
 *   spin    both ends look without a pause (MSG_DONTWAIT) for 10 ms before they sleep, which needs a processor each
 * Driven by lines on stdin (see contestant.py):
 *   write SIZE 1 ITERATIONS PAUSE_US   ->  "ns N N N ..."   one number a WRITE; the initiator sleeps PAUSE_US before each, outside of it
 *   check write SIZE 1 _               ->  "ok" or "bad OFFSET"
 * Usage: cping sleep|spin CONGESTION ARENA_BYTES
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "floor.h"

enum { POSITIONS = 16, SPIN_NS = 10000000 };

struct header {
	uint64_t offset, length, seed; /* a seed other than 0: look at the bytes, and answer where the first wrong one is, plus 1 */
};

static char *arena;
static size_t arena_bytes;
static int spins;

/* The pattern depends on the position, so bytes that land in the wrong place are seen. */
static char pattern(uint64_t i, uint64_t seed) {
	return (char)(((i / 8 + 1) * 0x9e3779b97f4a7c15u + seed) >> (8 * (i % 8)));
}

/* Receives exactly that many bytes; false when the other end has closed. */
static int receive(int fd, void *to, size_t bytes) {
	uint64_t end = spins ? now_ns() + SPIN_NS : 0;
	for (char *p = to; bytes > 0;) {
		ssize_t n = recv(fd, p, bytes, end && now_ns() < end ? MSG_DONTWAIT : 0);
		if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
		if (n <= 0) return 0;
		p += n;
		bytes -= (size_t)n;
	}
	return 1;
}

static void send_all(int fd, struct iovec *v, size_t parts) {
	struct msghdr m = {.msg_iov = v, .msg_iovlen = parts};
	for (;;) {
		ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
		if (n < 0 && errno != EINTR) die("sendmsg");
		size_t left = 0, gone = n < 0 ? 0 : (size_t)n;
		for (size_t i = 0; i < parts; i++) {
			size_t part = gone < v[i].iov_len ? gone : v[i].iov_len;
			v[i].iov_base = (char *)v[i].iov_base + part;
			v[i].iov_len -= part;
			gone -= part;
			left += v[i].iov_len;
		}
		if (left == 0) return;
	}
}

static void serve(int fd) {
	struct header h;
	while (receive(fd, &h, sizeof h) && receive(fd, arena + h.offset, h.length)) {
		uint64_t answer = 0;
		for (uint64_t i = h.offset; h.seed && i < h.offset + h.length && !answer; i++)
			if (arena[i] != pattern(i, h.seed)) answer = i + 1;
		struct iovec v = {&answer, sizeof answer};
		send_all(fd, &v, 1);
	}
}

static uint64_t move(int fd, uint64_t offset, uint64_t length, uint64_t seed) {
	struct header h = {offset, length, seed};
	struct iovec v[2] = {{&h, sizeof h}, {arena + offset, length}};
	uint64_t answer;
	send_all(fd, v, 2);
	if (!receive(fd, &answer, sizeof answer)) die("peer");
	return answer;
}

static void check(int fd, uint64_t length) {
	static uint64_t seed = 1;
	seed += 0x51ed2701;
	for (uint64_t i = 0; i < length; i++) arena[i] = pattern(i, seed);
	uint64_t wrong = move(fd, 0, length, seed);
	if (wrong)
		printf("bad %llu\n", (unsigned long long)wrong - 1);
	else
		printf("ok\n");
}

static void measure(int fd, uint64_t length, int iterations, long pause_us) {
	uint64_t room = arena_bytes / length, *took = calloc((size_t)iterations, sizeof *took);
	struct timespec pause = {pause_us / 1000000, pause_us % 1000000 * 1000};
	if (!took || room == 0) die("arena");
	for (int i = 0; i < iterations; i++) {
		if (pause_us > 1) nanosleep(&pause, NULL); /* run.py says 1 where it means nothing by it */
		uint64_t begin = now_ns();
		move(fd, (uint64_t)i % POSITIONS % room * length, length, 0);
		took[i] = now_ns() - begin;
	}
	printf("ns");
	for (int i = 0; i < iterations; i++) printf(" %llu", (unsigned long long)took[i]);
	printf("\n");
	free(took);
}

static void command(int fd, const char *line) {
	unsigned long long size;
	int iterations;
	long pause_us;
	if (sscanf(line, "check write %llu 1", &size) == 1)
		check(fd, size);
	else if (sscanf(line, "write %llu 1 %d %ld", &size, &iterations, &pause_us) == 3)
		measure(fd, size, iterations, pause_us);
	else
		printf("what? %s", line);
	fflush(stdout);
}

static void set_options(int fd, const char *congestion) {
	int one = 1;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) die("TCP_NODELAY");
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion))) die("TCP_CONGESTION");
}

int main(int argc, char **argv) {
	if (argc != 4) return fprintf(stderr, "usage: cping sleep|spin CONGESTION ARENA_BYTES\n"), 2;
	spins = !strcmp(argv[1], "spin");
	arena_bytes = strtoull(argv[3], NULL, 10);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &size))
		die("listen");
	pid_t peer = fork();
	if (peer < 0) die("fork");
	arena = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (arena == MAP_FAILED) die("mmap");
	memset(arena, peer == 0, arena_bytes);
	int fd;
	if (peer == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if ((fd = accept(listener, NULL, NULL)) < 0) die("accept");
		set_options(fd, argv[2]);
		serve(fd);
		return 0;
	}
	if ((fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) die("socket");
	set_options(fd, argv[2]);
	if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
	printf("ready %d\n", (int)peer);
	fflush(stdout);
	char line[256];
	while (fgets(line, sizeof line, stdin)) command(fd, line);
	kill(peer, SIGKILL);
	return 0;
}

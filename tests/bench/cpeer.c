/* The plain C program that tent is compared with: n TCP connections on loopback between two processes, blocking
 * calls, header and payload in one sendmsg, payload received into its place, one acknowledgement a connection and
 * batch. It is the floor of transfers over TCP. Driven by lines on stdin (see contestant.py):
 *   write|read SIZE COUNT ITERATIONS CONNECTIONS   ->  "ns N N N ..."   one number an iteration
 *   check write|read SIZE COUNT CONNECTIONS        ->  "ok", "bad OFFSET" or "guard OFFSET"
 * The child process owns the other end's memory. Usage: cpeer CONGESTION CONNECTIONS_MAX ARENA_BYTES
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "floor.h"
#include "guarded.h"

enum { WRITE = 1, READ = 2, FILL = 3, LOOK = 4, LANES_MAX = 8, PIECE = 1 << 20 };

/* What goes in front of every batch, and of its answer; `seed` is for FILL and LOOK. It fills a cache line: payload less
 * than 32 bytes behind a page's begin is copied slowly by a Zen 4 (docs/design/decisions/0219). */
struct header {
	uint64_t op, offset, length, seed, unused[4];
};

static char *memory; /* behind its guard band */
static size_t arena_bytes;

/* Header and payload leave in one call; what a signal or a short send leaves over follows. */
static void send_all(int fd, const void *head, size_t head_bytes, const char *body, size_t body_bytes) {
	struct iovec v[2] = {{(void *)head, head_bytes}, {(void *)body, body_bytes}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	while (v[0].iov_len + v[1].iov_len > 0) {
		ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) die("sendmsg");
		for (int i = 0; i < 2; i++) {
			size_t part = (size_t)n < v[i].iov_len ? (size_t)n : v[i].iov_len;
			v[i].iov_base = (char *)v[i].iov_base + part;
			v[i].iov_len -= part;
			n -= (ssize_t)part;
		}
	}
}

static int receive_all(int fd, void *to, size_t bytes) {
	char *p = to;
	while (bytes > 0) {
		ssize_t n = recv(fd, p, bytes < PIECE ? bytes : PIECE, MSG_WAITALL);
		if (n < 0 && errno == EINTR) continue;
		if (n <= 0) return -1;
		p += n, bytes -= (size_t)n;
	}
	return 0;
}

static void set_options(int fd, const char *congestion) {
	int one = 1;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) die("TCP_NODELAY");
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion))) die("TCP_CONGESTION");
}

/* The peer: one thread a connection, which does what the headers say. */
static void *serve(void *arg) {
	int fd = (int)(intptr_t)arg;
	struct header h, answer = {0};
	while (receive_all(fd, &h, sizeof h) == 0) {
		if (h.op == WRITE && receive_all(fd, memory + h.offset, h.length)) break;
		if (h.op == FILL) fill(memory - GUARD, arena_bytes, h.seed);
		if (h.op == LOOK) look(memory - GUARD, arena_bytes, h.length, h.seed, h.seed);
		fflush(stdout);
		send_all(fd, &answer, sizeof answer, memory + h.offset, h.op == READ ? h.length : 0);
	}
	return NULL;
}

static void run_peer(int listener, int lanes, const char *congestion) {
	pthread_t thread;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < lanes; i++) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0) die("accept");
		set_options(fd, congestion);
		if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd)) die("pthread_create");
	}
	for (;;) pause();
}

/* The initiator: lane 0 is the main thread's, so that a ping-pong has no hand-over; the others have a thread each. */
static struct lane {
	int fd;
	struct header job;
	sem_t begun, ended;
} lanes_of[LANES_MAX];

static void carry_out(struct lane *l) {
	struct header answer;
	send_all(l->fd, &l->job, sizeof l->job, memory + l->job.offset, l->job.op == WRITE ? l->job.length : 0);
	if (receive_all(l->fd, &answer, sizeof answer)) die("peer");
	if (l->job.op == READ && receive_all(l->fd, memory + l->job.offset, l->job.length)) die("peer");
}

__attribute__((noreturn)) static void *work(void *arg) {
	for (struct lane *l = arg;; sem_post(&l->ended)) {
		while (sem_wait(&l->begun)) {} /* again after a signal */
		carry_out(l);
	}
}

/* One batch over the first n lanes, in equal parts. */
static void transfer(uint64_t op, uint64_t offset, uint64_t length, int n) {
	uint64_t part = length / (uint64_t)n;
	for (int i = n - 1; i >= 0; i--) {
		uint64_t rest = i == n - 1 ? length - part * (uint64_t)i : part;
		lanes_of[i].job = (struct header){.op = op, .offset = offset + part * (uint64_t)i, .length = rest};
		if (i > 0) sem_post(&lanes_of[i].begun);
	}
	carry_out(&lanes_of[0]);
	for (int i = 1; i < n; i++)
		while (sem_wait(&lanes_of[i].ended)) {}
}

static void ask(uint64_t op, uint64_t length, uint64_t seed) {
	lanes_of[0].job = (struct header){.op = op, .length = length, .seed = seed};
	carry_out(&lanes_of[0]);
}

static void check(uint64_t op, uint64_t length, int n) {
	static uint64_t seed;
	seed += 0x51ed2701;
	fill(memory - GUARD, arena_bytes, op == WRITE ? seed : ~seed);
	ask(FILL, 0, op == WRITE ? ~seed : seed);
	transfer(op, 0, length, n);
	if (op == WRITE) ask(LOOK, length, seed); /* the peer prints to the same pipe */
	else look(memory - GUARD, arena_bytes, length, seed, seed);
}

static void measure(uint64_t op, uint64_t length, int iterations, int n) {
	printf("ns");
	for (uint64_t i = 0; i < (uint64_t)iterations; i++) {
		uint64_t begin = now_ns();
		transfer(op, i % (arena_bytes / length) % 16 * length, length, n);
		printf(" %llu", (unsigned long long)(now_ns() - begin));
	}
	printf("\n");
}

static void connect_lanes(const struct sockaddr_in *to, int n, const char *congestion) {
	for (int i = 0; i < n; i++) {
		struct lane *l = &lanes_of[i];
		pthread_t thread;
		l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (l->fd < 0) die("socket");
		set_options(l->fd, congestion);
		if (connect(l->fd, (const struct sockaddr *)to, sizeof *to)) die("connect");
		if (sem_init(&l->begun, 0, 0) || sem_init(&l->ended, 0, 0)) die("sem_init");
		if (i > 0 && pthread_create(&thread, NULL, work, l)) die("pthread_create");
	}
}

static void command(const char *line) {
	char verb[8], op[8];
	unsigned long long size, count;
	int iterations = 0, n = 1;
	if (sscanf(line, "check %7s %llu %llu %d", op, &size, &count, &n) == 4)
		check(op[0] == 'w' ? WRITE : READ, size * count, n);
	else if (sscanf(line, "%7s %llu %llu %d %d", verb, &size, &count, &iterations, &n) == 5)
		measure(verb[0] == 'w' ? WRITE : READ, size * count, iterations, n);
	else
		printf("what? %s", line);
	fflush(stdout);
}

int main(int argc, char **argv) {
	if (argc != 4) return 2;
	int lanes = atoi(argv[2]), listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	arena_bytes = strtoull(argv[3], NULL, 10);
	if (lanes < 1 || lanes > LANES_MAX) return fprintf(stderr, "1 to %d connections\n", LANES_MAX), 2;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	struct sockaddr *any = (struct sockaddr *)&address;
	if (listener < 0 || bind(listener, any, size) || listen(listener, LANES_MAX) || getsockname(listener, any, &size))
		die("listen");
	pid_t peer = fork();
	if (peer < 0) die("fork");
	memory = guarded(arena_bytes) + GUARD;
	if (peer == 0) run_peer(listener, lanes, argv[1]);
	close(listener);
	connect_lanes(&address, lanes, argv[1]);
	printf("ready %d\n", (int)peer);
	fflush(stdout);
	char line[256];
	while (fgets(line, sizeof line, stdin)) command(line);
	kill(peer, SIGKILL);
	return 0;
}

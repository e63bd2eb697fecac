// A plain C sender and receiver over loopback, for ratios within one run. Two processes, blocking sockets.
//
//   cpeer bulk CONNECTIONS BYTES ROUNDS CONGESTION   writes BYTES over so many connections, one acknowledgement each
//   cpeer ping BYTES ROUNDS CONGESTION               header and payload by one sendmsg, one acknowledgement
//
// Prints "name p50_ns min_ns cpu_ns": of one round, and the processor time of both processes for one round.
// Build: gcc -O2 -pthread -o cpeer cpeer.c
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct header { unsigned long kind, length, key, offset; };

static long long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what) { perror(what); exit(1); }

static char *memory(size_t n, int fill) {
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) die("mmap");
	for (size_t i = 0; i < n; i++) p[i] = (char)(i * 31 + fill);  // never zeros: some processors move those faster
	return p;
}

static void tune(int fd, const char *congestion) {
	int one = 1;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) die("nodelay");
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, strlen(congestion))) die(congestion);
}

static int take(int fd, void *into, size_t n) {
	for (char *p = into; n > 0;) {
		ssize_t k = recv(fd, p, n, MSG_WAITALL);
		if (k == 0) return 0;
		if (k < 0) { if (errno == EINTR) continue; die("recv"); }
		p += k, n -= k;
	}
	return 1;
}

static void give(int fd, struct header *h, char *payload) {
	struct iovec v[2] = {{h, sizeof *h}, {payload, h->length}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	for (size_t left = sizeof *h + h->length; left > 0;) {
		ssize_t k = sendmsg(fd, &m, MSG_NOSIGNAL);
		if (k < 0) { if (errno == EINTR) continue; die("sendmsg"); }
		left -= k;
		while (k > 0 && (size_t)k >= m.msg_iov->iov_len) k -= m.msg_iov->iov_len, m.msg_iov++, m.msg_iovlen--;
		if (k > 0) m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + k, m.msg_iov->iov_len -= k;
	}
}

struct side { int fd; char *memory; size_t bytes; int rounds; pthread_barrier_t *gate; };

static void *receiver(void *arg) {
	struct side *s = arg;
	struct header h;
	while (take(s->fd, &h, sizeof h)) {
		if (!take(s->fd, s->memory + h.offset, h.length)) break;
		if (send(s->fd, &h, 16, MSG_NOSIGNAL) != 16) die("acknowledge");
	}
	return NULL;
}

static void *sender(void *arg) {
	struct side *s = arg;
	for (int i = 0; i < s->rounds; i++) {
		pthread_barrier_wait(s->gate);
		struct header h = {.length = s->bytes};
		char answer[16];
		give(s->fd, &h, s->memory);
		if (!take(s->fd, answer, 16)) die("no answer");
		pthread_barrier_wait(s->gate);
	}
	return NULL;
}

static int ascending(const void *a, const void *b) {
	long long x = *(const long long *)a, y = *(const long long *)b;
	return x < y ? -1 : x > y;
}

static double seconds(struct rusage u) {
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
	int bulk = argc == 6 && !strcmp(argv[1], "bulk");
	if (!bulk && !(argc == 5 && !strcmp(argv[1], "ping"))) return fprintf(stderr, "see the head of cpeer.c\n"), 2;
	int n = bulk ? atoi(argv[2]) : 1;
	size_t bytes = strtoull(argv[bulk ? 3 : 2], NULL, 0) / n;
	int rounds = atoi(argv[bulk ? 4 : 3]);
	const char *congestion = argv[bulk ? 5 : 4];
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof a;
	if (bind(listener, (void *)&a, sizeof a) || listen(listener, 64) || getsockname(listener, (void *)&a, &size)) die("listen");
	pid_t child = fork();
	pthread_t thread[64];
	struct side side[64];
	for (int i = 0; i < n; i++) {
		side[i] = (struct side){.memory = memory(bytes, child != 0), .bytes = bytes, .rounds = rounds};
		if (child) {
			side[i].fd = socket(AF_INET, SOCK_STREAM, 0);
			tune(side[i].fd, congestion);
			if (connect(side[i].fd, (void *)&a, sizeof a)) die("connect");
		} else {
			side[i].fd = accept(listener, NULL, NULL);
			if (side[i].fd < 0) die("accept");
			tune(side[i].fd, congestion);
		}
	}
	if (!child) {
		for (int i = 0; i < n; i++) pthread_create(&thread[i], NULL, receiver, &side[i]);
		for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
		return 0;
	}
	long long *took = malloc(rounds * sizeof *took);
	if (bulk) {
		pthread_barrier_t gate;
		pthread_barrier_init(&gate, NULL, n + 1);
		for (int i = 0; i < n; i++) side[i].gate = &gate, pthread_create(&thread[i], NULL, sender, &side[i]);
		for (int i = 0; i < rounds; i++) {
			long long begin = now();
			pthread_barrier_wait(&gate);
			pthread_barrier_wait(&gate);
			took[i] = now() - begin;
		}
		for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
	} else {
		for (int i = 0; i < rounds; i++) {
			struct header h = {.length = bytes};
			char answer[16];
			long long begin = now();
			give(side[0].fd, &h, side[0].memory);
			if (!take(side[0].fd, answer, 16)) die("no answer");
			took[i] = now() - begin;
		}
	}
	for (int i = 0; i < n; i++) close(side[i].fd);
	waitpid(child, NULL, 0);
	struct rusage mine, theirs;
	getrusage(RUSAGE_SELF, &mine);
	getrusage(RUSAGE_CHILDREN, &theirs);
	qsort(took, rounds, sizeof *took, ascending);
	printf("%s-%zux%d %lld %lld %.0f\n", argv[1], bytes, n, took[rounds / 2], took[0], (seconds(mine) + seconds(theirs)) * 1e9 / rounds);
	return 0;
}

/* The plain C program that tent over RDMA is compared with: verbs called directly, no byte copied (rails.h). It polls,
 * and sleeps on the completion channels when there is nothing to take.
 *
 * Usage: crdma DEVICE:DEVICE,... PAIRS CHAIN DEPTH BLOCK ARENA_BYTES TIMEOUT RETRIES. Driven by lines on stdin:
 *   write|read SIZE COUNT ITERATIONS RAILS   ->  "ns N N N ..."   one number an iteration (see contestant.py)
 *   check write|read SIZE COUNT RAILS        ->  "ok", "bad OFFSET" or "guard OFFSET"
 * The first line is "ready PID"; there is no other process, so PID is this one's.
 */
#include "rails.h"

static void succeeded(const struct rail *r) { (void)r; }

static void failed(const struct rail *r, const struct ibv_wc *wc) {
	fprintf(stderr, "rail %d: %s\n", (int)(r - rails), ibv_wc_status_str(wc->status));
	exit(1);
}

static void sleep_until_woken(void) {
	struct pollfd fds[RAILS_MAX];
	for (int i = 0; i < work.rails; i++) fds[i] = (struct pollfd){rails[i].a.channel->fd, POLLIN, 0};
	if (poll(fds, (nfds_t)work.rails, -1) < 0 && errno != EINTR) die("poll");
	for (int i = 0; i < work.rails; i++)
		if (fds[i].revents) take_wake_up(&rails[i]);
}

static void transfer(enum ibv_wr_opcode op, uint64_t offset, uint64_t length, int over) {
	work.op = op, work.next = offset, work.end = offset + length, work.rails = over;
	for (fill_queues(); work.flying > 0; fill_queues())
		if (!poll_or_arm()) sleep_until_woken();
}

static void check(enum ibv_wr_opcode op, uint64_t length, int over) {
	static uint64_t seed;
	int from = op == IBV_WR_RDMA_READ;
	seed += 0x51ed2701;
	fill(memory[from], arena_bytes, seed);
	fill(memory[!from], arena_bytes, ~seed);
	transfer(op, 0, length, over);
	look(memory[!from], arena_bytes, length, seed, seed);
}

static void measure(enum ibv_wr_opcode op, uint64_t length, int iterations, int over) {
	printf("ns");
	for (uint64_t i = 0; i < (uint64_t)iterations; i++) {
		uint64_t begin = now_ns();
		transfer(op, i % (arena_bytes / length) % 16 * length, length, over);
		printf(" %llu", (unsigned long long)(now_ns() - begin));
	}
	printf("\n");
}

static void command(const char *line) {
	char name[8];
	unsigned long long size, count;
	int iterations = 0, over = 1, checked = sscanf(line, "check %7s %llu %llu %d", name, &size, &count, &over) == 4;
	int known = checked || sscanf(line, "%7s %llu %llu %d %d", name, &size, &count, &iterations, &over) == 5;
	enum ibv_wr_opcode op = name[0] == 'w' ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	if (!known || over < 1 || over > n_rails || !size || size * count > arena_bytes)
		printf("what? %s", line);
	else if (checked)
		check(op, size * count, over);
	else
		measure(op, size * count, iterations, over);
	fflush(stdout);
}

int main(int argc, char **argv) {
	if (argc != 9) return fprintf(stderr, "usage: crdma DEVICES PAIRS CHAIN DEPTH BLOCK BYTES TIMEOUT RETRIES\n"), 2;
	open_rails(argv);
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	char line[256];
	while (fgets(line, sizeof line, stdin)) command(line);
	return 0;
}

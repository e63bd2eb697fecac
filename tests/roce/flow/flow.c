/* Bytes that flow on every rail until they are stopped, beside faults: what a queue pair makes of each (rails.h).
 *
 * Usage: flow DEVICE:DEVICE,... PAIRS CHAIN DEPTH BLOCK ARENA_BYTES TIMEOUT RETRIES. Driven by lines on stdin:
 *   flow write|read                      ->  "flowing"; from then on there come by themselves
 *        "first RAIL NS" first success since the rail was connected    "failed RAIL STATUS NS" its first error
 *        "event RAIL a|b TYPE NS" asynchronous event of the device at an end
 *   connect RAIL | close RAIL | open RAIL  ->  "done RAIL NS" or "refused RAIL ERRNO"; open closes first
 *   moved                                ->  "moved BYTES ..." by rail
 *   stop                                 ->  "ok", "bad OFFSET" or "guard OFFSET": no byte is in a wrong place
 * Times are CLOCK_MONOTONIC in nanoseconds.
 */
#include "../../bench/rails.h"

static void succeeded(const struct rail *r) {
	printf("first %d %llu\n", (int)(r - rails), (unsigned long long)now_ns());
}

static void failed(const struct rail *r, const struct ibv_wc *wc) {
	printf("failed %d %d %llu\n", (int)(r - rails), wc->status, (unsigned long long)now_ns());
}

static void close_end(struct end *e) {
	for (int i = 0; i < n_qps; i++)
		if (e->qp[i]) ibv_destroy_qp(e->qp[i]);
	if (e->cq) ibv_destroy_cq(e->cq);
	if (e->channel) ibv_destroy_comp_channel(e->channel);
	if (e->mr) ibv_dereg_mr(e->mr);
	if (e->pd) ibv_dealloc_pd(e->pd);
	if (e->context) ibv_close_device(e->context);
	memset(e->qp, 0, sizeof e->qp);
	e->cq = NULL, e->channel = NULL, e->mr = NULL, e->pd = NULL, e->context = NULL;
}

static int close_rail(struct rail *r) {
	close_end(&r->a);
	close_end(&r->b);
	r->dead = 1;
	return r->open = 0;
}

static void print_events(int i, char side, struct ibv_context *context) {
	struct ibv_async_event event;
	while (!ibv_get_async_event(context, &event)) {
		printf("event %d %c %d %llu\n", i, side, event.event_type, (unsigned long long)now_ns());
		ibv_ack_async_event(&event);
	}
}

/* Sleeps until there is something to take; returns whether it is a line on stdin, where that is listened to. */
static int sleep_until_woken(int input) {
	struct pollfd fds[3 * RAILS_MAX + 1];
	int n = 0;
	for (int i = 0; i < n_rails; i++) {
		struct rail *r = &rails[i];
		fds[n++] = (struct pollfd){r->open ? r->a.channel->fd : -1, POLLIN, 0};
		fds[n++] = (struct pollfd){r->open ? r->a.context->async_fd : -1, POLLIN, 0};
		fds[n++] = (struct pollfd){r->open ? r->b.context->async_fd : -1, POLLIN, 0};
	}
	fds[n] = (struct pollfd){input, POLLIN, 0};
	fflush(stdout);
	if (poll(fds, (nfds_t)n + 1, -1) < 0 && errno != EINTR) die("poll");
	for (int i = 0; i < n_rails; i++) {
		if (fds[3 * i].revents) take_wake_up(&rails[i]);
		if (fds[3 * i + 1].revents) print_events(i, 'a', rails[i].a.context);
		if (fds[3 * i + 2].revents) print_events(i, 'b', rails[i].b.context);
	}
	return fds[n].revents != 0;
}

enum { SEED = 0x7e57 };

static void begin(const char *name) {
	work.op = name[0] == 'w' ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	int from = work.op == IBV_WR_RDMA_READ;
	fill(memory[from], arena_bytes, SEED);
	fill(memory[!from], arena_bytes, ~SEED);
	work.next = 0, work.end = UINT64_MAX, work.rails = n_rails;
	printf("flowing\n");
}

static int well_and_busy(void) {
	for (int i = 0; i < n_rails; i++)
		for (int q = 0; q < n_qps; q++)
			if (!rails[i].dead && rails[i].flying[q]) return 1;
	return 0;
}

/* Waits for what is in flight on rails that are well, and looks at every byte. */
static void stop(void) {
	work.end = work.next;
	while (well_and_busy())
		if (!poll_or_arm()) sleep_until_woken(-1);
	look(memory[work.op == IBV_WR_RDMA_WRITE], arena_bytes, arena_bytes, SEED, ~SEED);
}

static void change(const char *verb, int i) {
	int error = !strcmp(verb, "connect") ? connect_rail(&rails[i]) : close_rail(&rails[i]);
	if (!strcmp(verb, "open")) error = open_rail(&rails[i]);
	if (error)
		printf("refused %d %d\n", i, error);
	else
		printf("done %d %llu\n", i, (unsigned long long)now_ns());
}

static void command(const char *line) {
	char word[16] = "", argument[16] = "";
	sscanf(line, "%15s %15s", word, argument);
	if (!strcmp(word, "flow")) {
		begin(argument);
	} else if (!strcmp(word, "stop")) {
		stop();
	} else if (!strcmp(word, "moved")) {
		printf("moved");
		for (int i = 0; i < n_rails; i++) printf(" %llu", (unsigned long long)rails[i].moved);
		printf("\n");
	} else if (strstr("connect close open", word) && atoi(argument) < n_rails) {
		change(word, atoi(argument));
	} else {
		printf("what? %s", line);
	}
}

/* A line at a time: stdio would keep the second of two that came together from poll. */
static int take_line(char *line, size_t room) {
	for (size_t n = 0; n + 1 < room; n++) {
		if (read(0, line + n, 1) != 1) return 0;
		line[n + 1] = 0;
		if (line[n] == '\n') return 1;
	}
	return 0;
}

int main(int argc, char **argv) {
	char line[64];
	if (argc != 9) return fprintf(stderr, "usage: flow DEVICES PAIRS CHAIN DEPTH BLOCK BYTES TIMEOUT RETRIES\n"), 2;
	open_rails(argv);
	work.rails = n_rails;
	printf("ready %d\n", (int)getpid());
	for (;;) {
		fill_queues();
		struct pollfd input = {0, POLLIN, 0};
		int asked = poll_or_arm() ? poll(&input, 1, 0) > 0 : sleep_until_woken(STDIN_FILENO);
		if (!asked) continue;
		if (!take_line(line, sizeof line)) return 0;
		command(line);
		fflush(stdout);
	}
}

/* Rails of RDMA by verbs alone, for crdma.c and tests/roce/flow/flow.c. Both ends of each rail are in this process;
 * one posts, the other is passive. A request is cut into work requests of `block` bytes; up to `chain_max` of them are
 * posted by one call, and the last is signalled. Each queue pair has up to `depth` chains in flight and takes the next
 * when one ends, so a slow rail holds no other back. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "guarded.h"
#include "floor.h"

enum { RAILS_MAX = 16, QPS_MAX = 16, CHAIN_MAX = 64 };

struct end {
	char name[32];
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp[QPS_MAX];
	union ibv_gid gid;
	int gid_index;
};

static struct rail {
	struct end a, b; /* a posts, b is passive */
	uint32_t generation;
	int open, dead, succeeded, flying[QPS_MAX];
	uint64_t moved, begun[QPS_MAX], ends[QPS_MAX], lengths[QPS_MAX][CHAIN_MAX]; /* of chains, by their number */
} rails[RAILS_MAX];

static int n_rails, n_qps, chain_max, depth, timeout, retries;
static uint64_t block, arena_bytes; /* block divides arena_bytes */
static char *memory[2]; /* of the initiator and of the target, each between two guard bands */
static struct {
	enum ibv_wr_opcode op;
	uint64_t next, end, flying;
	int rails;
} work;

/* The address of RoCE v2 by which the other end is reached; it may have moved to another index. */
static int find_gid(struct end *e) {
	struct ibv_gid_entry g[64];
	ssize_t n = ibv_query_gid_table(e->context, g, 64, 0);
	for (ssize_t i = 0; i < n; i++)
		if (g[i].gid_type == IBV_GID_TYPE_ROCE_V2 && g[i].gid.raw[10] == 0xff && g[i].gid.raw[11] == 0xff) {
			e->gid = g[i].gid, e->gid_index = (int)g[i].gid_index;
			return 0;
		}
	return n < 0 ? (int)-n : ENODATA;
}

static int open_end(struct end *e, char *base) {
	int n = 0, access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_device **list = ibv_get_device_list(&n);
	for (int i = 0; list && i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), e->name)) e->context = ibv_open_device(list[i]);
	if (list) ibv_free_device_list(list);
	if (!e->context) return ENODEV;
	fcntl(e->context->async_fd, F_SETFL, O_NONBLOCK);
	if (!(e->pd = ibv_alloc_pd(e->context))) return errno;
	if (!(e->mr = ibv_reg_mr(e->pd, base, arena_bytes + 2 * GUARD, access))) return errno;
	if (!(e->channel = ibv_create_comp_channel(e->context))) return errno;
	fcntl(e->channel->fd, F_SETFL, O_NONBLOCK);
	if (!(e->cq = ibv_create_cq(e->context, n_qps * (depth * chain_max + 1), NULL, e->channel, 0))) return errno;
	for (int i = 0; i < n_qps; i++) {
		struct ibv_qp_init_attr a = {.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC};
		a.cap = (struct ibv_qp_cap){(uint32_t)(depth * chain_max), 1, 1, 1, 0};
		if (!(e->qp[i] = ibv_create_qp(e->pd, &a))) return errno;
	}
	return 0;
}

/* By way of the error state, which empties the send queue. Soft-RoCE of Linux 6.12 resets a queue pair with requests in
 * its send queue wrongly: it forgets them, goes on at their places, and takes a queue as full as before for empty. */
static int reset_qp(struct ibv_qp *qp) {
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	ibv_modify_qp(qp, &a, IBV_QP_STATE); /* a new one refuses, and needs it not */
	a.qp_state = IBV_QPS_RESET;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

static int connect_qp(struct end *e, const struct end *to, int i, uint32_t psn) {
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	int error = ibv_modify_qp(e->qp[i], &a, mask);
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = to->qp[i]->qp_num};
	a.rq_psn = psn, a.max_dest_rd_atomic = 16, a.min_rnr_timer = 12;
	a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1};
	a.ah_attr.grh = (struct ibv_global_route){.dgid = to->gid, .sgid_index = (uint8_t)e->gid_index, .hop_limit = 64};
	mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (!error) error = ibv_modify_qp(e->qp[i], &a, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = psn, .rnr_retry = 1, .max_rd_atomic = 16};
	a.timeout = (uint8_t)timeout, a.retry_cnt = (uint8_t)retries;
	mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
	return error ? error : ibv_modify_qp(e->qp[i], &a, mask | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Queue pairs from the beginning. Completions of before bear another generation. */
static int connect_rail(struct rail *r) {
	if (!r->open) return ENOTCONN;
	int error = find_gid(&r->a);
	if (!error) error = find_gid(&r->b);
	r->generation++;
	r->dead = 1;
	for (int i = 0; i < n_qps; i++) {
		if (!error) error = reset_qp(r->a.qp[i]);
		if (!error) error = reset_qp(r->b.qp[i]);
	}
	struct ibv_wc old[64];
	while (ibv_poll_cq(r->a.cq, 64, old) > 0) {} /* they leave their room to the new ones */
	for (int i = 0; i < n_qps; i++) {
		uint32_t psn = (r->generation * 7919u + (uint32_t)i) & 0xffffff;
		if (!error) error = connect_qp(&r->a, &r->b, i, psn);
		if (!error) error = connect_qp(&r->b, &r->a, i, psn);
		work.flying -= (uint64_t)r->flying[i];
		r->flying[i] = 0;
		r->begun[i] = r->ends[i] = 0;
	}
	r->dead = error != 0;
	r->succeeded = 0;
	return error;
}

static int open_rail(struct rail *r) {
	int error = open_end(&r->a, memory[0]);
	if (!error) error = open_end(&r->b, memory[1]);
	r->open = !error;
	return error ? error : connect_rail(r);
}

/* Posts the next chain on a queue pair by one call. */
static void post_chain(struct rail *r, int q) {
	struct ibv_send_wr wr[CHAIN_MAX], *bad;
	struct ibv_sge sge[CHAIN_MAX];
	uint64_t begin = work.next, number = r->begun[q]++;
	int n = 0;
	for (; n < chain_max && work.next < work.end; n++) {
		uint64_t at = GUARD + work.next % arena_bytes, rest = work.end - work.next, length = rest < block ? rest : block;
		sge[n] = (struct ibv_sge){(uintptr_t)memory[0] + at, (uint32_t)length, r->a.mr->lkey};
		wr[n] = (struct ibv_send_wr){.sg_list = &sge[n], .num_sge = 1, .opcode = work.op};
		wr[n].wr.rdma.remote_addr = (uintptr_t)memory[1] + at, wr[n].wr.rdma.rkey = r->b.mr->rkey;
		wr[n].wr_id = (uint64_t)r->generation << 32 | (uint64_t)q;
		if (n) wr[n - 1].next = &wr[n];
		work.next += length;
	}
	wr[n - 1].send_flags = IBV_SEND_SIGNALED;
	r->lengths[q][number % CHAIN_MAX] = work.next - begin;
	r->flying[q]++, work.flying++;
	if (ibv_post_send(r->a.qp[q], wr, &bad)) die("ibv_post_send");
}

static void fill_queues(void) {
	for (int full = 1; full <= depth; full++) /* chain by chain, so that all rails get theirs */
		for (int i = 0; i < work.rails * n_qps && work.next < work.end; i++) {
			struct rail *r = &rails[i % work.rails];
			if (!r->dead && r->flying[i / work.rails] < full) post_chain(r, i / work.rails);
		}
}

/* The program's part: a rail's first success since it was connected, and its first error, after which it is dead. */
static void succeeded(const struct rail *r);
static void failed(const struct rail *r, const struct ibv_wc *wc);

static void completed(struct rail *r, const struct ibv_wc *wc) {
	int q = (int)(uint32_t)wc->wr_id;
	if (wc->wr_id >> 32 != r->generation || r->dead) return;
	if (wc->status == IBV_WC_SUCCESS) {
		r->moved += r->lengths[q][r->ends[q]++ % CHAIN_MAX];
		r->flying[q]--, work.flying--;
		if (!r->succeeded++) succeeded(r);
	} else {
		r->dead = 1;
		failed(r, wc);
	}
}

static int poll_rails(void) {
	struct ibv_wc wc[64];
	int total = 0;
	for (int i = 0; i < work.rails; i++) {
		int n = rails[i].open ? ibv_poll_cq(rails[i].a.cq, 64, wc) : 0;
		if (n < 0) die("ibv_poll_cq");
		for (int k = 0; k < n; k++) completed(&rails[i], &wc[k]);
		total += n;
	}
	return total;
}

/* Takes completions; without any it arms the queues and returns 0 when there is still none. */
static int poll_or_arm(void) {
	if (poll_rails()) return 1;
	for (int i = 0; i < work.rails; i++)
		if (rails[i].open && ibv_req_notify_cq(rails[i].a.cq, 0)) die("ibv_req_notify_cq");
	return poll_rails();
}

static void take_wake_up(struct rail *r) {
	struct ibv_cq *cq;
	void *own;
	if (!ibv_get_cq_event(r->a.channel, &cq, &own)) ibv_ack_cq_events(cq, 1);
}

static void open_rails(char **argv) {
	n_qps = atoi(argv[2]), chain_max = atoi(argv[3]), depth = atoi(argv[4]), block = strtoull(argv[5], NULL, 10);
	arena_bytes = strtoull(argv[6], NULL, 10), timeout = atoi(argv[7]), retries = atoi(argv[8]);
	if (n_qps < 1 || n_qps > QPS_MAX || chain_max < 1 || chain_max > CHAIN_MAX || depth < 1 || depth > CHAIN_MAX)
		exit(fprintf(stderr, "at most %d queue pairs, %d in a chain, %d chains\n", QPS_MAX, CHAIN_MAX, CHAIN_MAX));
	memory[0] = guarded(arena_bytes), memory[1] = guarded(arena_bytes);
	for (char *pair = strtok(argv[1], ","); pair && n_rails < RAILS_MAX; pair = strtok(NULL, ",")) {
		struct rail *r = &rails[n_rails++];
		if (sscanf(pair, "%31[^:]:%31s", r->a.name, r->b.name) != 2) exit(fprintf(stderr, "no pair: %s\n", pair));
		if ((errno = open_rail(r))) die(pair);
	}
}

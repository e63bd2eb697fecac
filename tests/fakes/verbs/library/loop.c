/* A plain program over the library, for benchmarks: it builds chains of WRITEs and the READ behind them, posts each by
 * one call and takes its completion, as tests/bench/crdma.c does over the real library. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>

enum { BATCH = 64, BYTES = 4096 };

#define X(result, name, arguments) result name arguments;
TV_FUNCTIONS(X)
#undef X

static struct tv_qp *connected[2];
static struct tv_cq *taken;
static struct tv_mr *memory;

static int join(struct tv_qp *p, const struct tv_qp *to) {
	struct tv_qp_attr a = {.qp_state = TV_QPS_INIT, .port_num = 1};
	a.qp_access_flags = TV_ACCESS_REMOTE_WRITE | TV_ACCESS_REMOTE_READ;
	int error = ibv_modify_qp(p, &a, TV_QP_STATE | TV_QP_PKEY_INDEX | TV_QP_PORT | TV_QP_ACCESS_FLAGS);
	a = (struct tv_qp_attr){.qp_state = TV_QPS_RTR, .path_mtu = 5, .dest_qp_num = to->qp_num, .max_dest_rd_atomic = 16};
	a.ah_attr.is_global = 1;
	error |= ibv_modify_qp(p, &a, TV_QP_STATE | TV_QP_AV | TV_QP_PATH_MTU | TV_QP_DEST_QPN | TV_QP_RQ_PSN |
		TV_QP_MAX_DEST_RD_ATOMIC | TV_QP_MIN_RNR_TIMER);
	a = (struct tv_qp_attr){.qp_state = TV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .max_rd_atomic = 16};
	return error | ibv_modify_qp(p, &a, TV_QP_STATE | TV_QP_TIMEOUT | TV_QP_RETRY_CNT | TV_QP_RNR_RETRY |
		TV_QP_SQ_PSN | TV_QP_MAX_QP_RD_ATOMIC);
}

static int prepare(void) { /* once; a benchmark's process ends with it */
	static char page[BYTES];
	int n;
	struct tv_context *c = ibv_open_device(ibv_get_device_list(&n)[0]);
	struct tv_pd *pd = c ? ibv_alloc_pd(c) : NULL;
	taken = c ? ibv_create_cq(c, 4 * BATCH, NULL, NULL, 0) : NULL;
	if (!pd || !taken)
		return ENOMEM;
	struct tv_qp_init_attr a = {.send_cq = taken, .recv_cq = taken, .qp_type = TV_QPT_RC};
	a.cap = (struct tv_cap){4 * BATCH, 1, 1, 1, 0};
	for (int i = 0; i < 2; i++) {
		if (!(connected[i] = ibv_create_qp(pd, &a)))
			return ENOMEM;
	}
	memory = ibv_reg_mr(pd, page, sizeof page, TV_ACCESS_LOCAL_WRITE | TV_ACCESS_REMOTE_WRITE | TV_ACCESS_REMOTE_READ);
	return memory ? join(connected[0], connected[1]) | join(connected[1], connected[0]) : ENOMEM;
}

static int chain(long requests) {
	struct tv_send_wr wr[BATCH], *bad;
	struct tv_sge sge[BATCH];
	struct tv_completion end[BATCH];
	for (long i = 0; i < requests; i++) {
		int last = i == requests - 1;
		sge[i] = (struct tv_sge){(uintptr_t)memory->addr, last ? 8 : BYTES, memory->lkey};
		wr[i] = (struct tv_send_wr){.wr_id = (uint64_t)i, .next = last ? NULL : &wr[i + 1], .sg_list = &sge[i], .num_sge = 1,
			.opcode = last ? TV_WR_RDMA_READ : TV_WR_RDMA_WRITE, .send_flags = last ? TV_SEND_SIGNALED : 0,
			.remote_addr = (uintptr_t)memory->addr, .rkey = memory->rkey};
	}
	int error = connected[0]->context->ops.post_send(connected[0], wr, &bad);
	while (!error) {
		int n = taken->context->ops.poll_cq(taken, BATCH, end);
		if (n > 0 && end[n - 1].status == TV_WC_SUCCESS)
			return 0;
		error = n ? EIO : 0;
	}
	return error;
}

/* loop posts so many requests by so many calls, and returns the time in ns, -1 for an error. */
long loop(long posts, long requests) {
	if (posts < 1 || requests > posts * BATCH || (!memory && prepare()))
		return -1;
	double begin = now();
	for (long i = 0; i < posts; i++) {
		if (chain(requests * (i + 1) / posts - requests * i / posts))
			return -1;
	}
	return (long)(1e9 * (now() - begin));
}

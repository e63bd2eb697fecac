/* Queue pairs: their states, what is posted to them, and the completions. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pair *pairs[PAIRS];

struct pair *pair_of(uint32_t number) {
	struct pair *p = &table->pairs[number % PAIRS];
	return p->taken && p->public.qp_num == number ? p : NULL;
}

/* vacant finds room for a pair. Its number is not that of another one, in any process. */
static struct pair *vacant(void) {
	for (int tries = 0; tries < PAIRS; tries++, table->next_pair = (table->next_pair + 1) & 0xffffff) {
		struct pair *p = &table->pairs[table->next_pair % PAIRS];
		if (!p->taken && table->next_pair > 0x100)
			return p;
	}
	return NULL;
}

struct tv_qp *ibv_create_qp(struct tv_pd *pd, struct tv_qp_init_attr *a) {
	lock();
	struct context *c = (struct context *)pd->context;
	struct pair *p = NULL;
	int error = 0;
	if (dead(pd->context))
		error = EIO;
	else if (knobs.fail_pair > 0 && knobs.fail_pair-- > 0)
		error = ENOMEM;
	else if (a->qp_type != TV_QPT_RC || a->cap.max_send_wr > RING_MOST / 2 || a->cap.max_send_sge > RANGES ||
			a->cap.max_inline_data > INLINE)
		error = EINVAL;
	if (!error && !(p = vacant()))
		error = ENOMEM;
	if (error) {
		unlock();
		errno = error;
		return NULL;
	}
	*p = (struct pair){.taken = true, .seat = (uint8_t)seat, .device = (uint8_t)c->device->index};
	p->public = (struct tv_qp){.context = pd->context, .qp_context = a->qp_context, .pd = pd, .send_cq = a->send_cq,
		.recv_cq = a->recv_cq, .qp_num = table->next_pair++, .qp_type = a->qp_type};
	p->queue = (struct queue *)a->send_cq;
	p->room = a->cap.max_send_wr ? a->cap.max_send_wr : 1;
	p->ring = calloc(p->room, sizeof *p->ring);
	p->attr.cap = a->cap;
	p->last = &p->late;
	pairs[p->public.qp_num % PAIRS] = p;
	p->queue->users++;
	((struct pd *)pd)->users++;
	counts.objects++;
	counts.pairs++;
	unlock();
	return &p->public;
}

static void forget(struct pair *p) { /* its completions */
	for (unsigned i = 0; i < p->queue->count; i++) {
		struct ended *e = &p->queue->ring[(p->queue->first + i) % (unsigned)p->queue->public.cqe];
		if (e->pair == p)
			e->pair = NULL;
	}
}

int ibv_destroy_qp(struct tv_qp *public) {
	struct pair *p = (struct pair *)public;
	if (gone(public->context) || knobs.stuck)
		return gone(public->context) ? EIO : ETIMEDOUT;
	lock();
	public->state = TV_QPS_RESET;
	await(&p->busy);
	settle(p, NULL);
	dismiss((struct context *)public->context, public, &p->owed, "ibv_destroy_qp");
	forget(p);
	pairs[public->qp_num % PAIRS] = NULL;
	p->queue->users--;
	((struct pd *)public->pd)->users--;
	counts.objects--;
	counts.pairs--;
	for (unsigned i = 0; i < p->room; i++)
		free(p->ring[i].inlined);
	free(p->ring);
	*p = (struct pair){0};
	unlock();
	return 0;
}

/* way checks the way to the other end, as the kernel does. RoCE has global headers alone; on InfiniBand the kernel takes
 * any way, and packets by one that leads nowhere are lost. */
static int way(const struct tv_ah_attr *a) {
	int gids = knobs.infiniband ? 1 : knobs.gids < GIDS ? knobs.gids : GIDS;
	return !(a->is_global ? a->sgid_index < gids : knobs.infiniband) ? EINVAL : 0;
}

static int transition(struct pair *p, const struct tv_qp_attr *a, int mask) {
	static const struct { uint32_t from; int needs; } steps[] = {
		[TV_QPS_INIT] = {TV_QPS_RESET, TV_QP_PKEY_INDEX | TV_QP_PORT | TV_QP_ACCESS_FLAGS},
		[TV_QPS_RTR] = {TV_QPS_INIT, TV_QP_AV | TV_QP_PATH_MTU | TV_QP_DEST_QPN | TV_QP_RQ_PSN |
			TV_QP_MAX_DEST_RD_ATOMIC | TV_QP_MIN_RNR_TIMER},
		[TV_QPS_RTS] = {TV_QPS_RTR, TV_QP_TIMEOUT | TV_QP_RETRY_CNT | TV_QP_RNR_RETRY | TV_QP_SQ_PSN |
			TV_QP_MAX_QP_RD_ATOMIC}};
	uint32_t to = a->qp_state;
	if (to == TV_QPS_RESET || to == TV_QPS_ERR)
		return 0;
	if (to > TV_QPS_RTS || p->public.state != steps[to].from || mask != (steps[to].needs | TV_QP_STATE))
		return EINVAL;
	if (to == TV_QPS_INIT && (a->port_num < 1 || a->port_num > PORTS || a->pkey_index >= PKEYS))
		return EINVAL;
	const struct tv_device *d = ((struct context *)p->public.context)->device;
	if (to == TV_QPS_RTR && (way(&a->ah_attr) || a->path_mtu < 1 || a->path_mtu > d->mtu || a->max_dest_rd_atomic > d->reads))
		return EINVAL;
	if (to == TV_QPS_RTS && a->max_rd_atomic > d->reads)
		return EINVAL;
	return 0;
}

/* take copies the attributes of a step. */
static void take(struct pair *p, const struct tv_qp_attr *a) {
	struct tv_qp_attr *own = &p->attr;
	switch (a->qp_state) {
	case TV_QPS_INIT:
		own->pkey_index = a->pkey_index;
		own->port_num = a->port_num;
		own->qp_access_flags = a->qp_access_flags;
		break;
	case TV_QPS_RTR:
		own->ah_attr = a->ah_attr;
		own->path_mtu = a->path_mtu;
		own->dest_qp_num = a->dest_qp_num;
		own->rq_psn = a->rq_psn;
		own->max_dest_rd_atomic = a->max_dest_rd_atomic;
		own->min_rnr_timer = a->min_rnr_timer;
		break;
	case TV_QPS_RTS:
		own->timeout = a->timeout;
		own->retry_cnt = a->retry_cnt;
		own->rnr_retry = a->rnr_retry;
		own->sq_psn = a->sq_psn;
		own->max_rd_atomic = a->max_rd_atomic;
	}
}

int ibv_modify_qp(struct tv_qp *public, struct tv_qp_attr *a, int mask) {
	struct pair *p = (struct pair *)public;
	lock();
	int error = transition(p, a, mask);
	if (!error && knobs.fail_modify > 0 && a->qp_state != TV_QPS_RESET && knobs.fail_modify-- > 0)
		error = ENOMEM;
	bool ends = a->qp_state == TV_QPS_RESET || a->qp_state == TV_QPS_ERR;
	if (!error && (gone(public->context) || (!ends && dead(public->context))))
		error = EIO;
	if (!error && ends && knobs.stuck)
		error = ETIMEDOUT;
	if (!error) {
		uint32_t to = a->qp_state;
		take(p, a);
		public->state = to;
		if (to == TV_QPS_RESET || to == TV_QPS_ERR) {
			await(&p->busy);
			settle(p, NULL);
		}
		if (to == TV_QPS_ERR)
			flush(p, TV_WC_WR_FLUSH_ERR);
		if (to == TV_QPS_RESET) {
			p->begun = p->freed = p->posted;
			p->life++;
		}
		p->retry = p->due = 0;
		p->broken = false;
		announce_all();
	}
	unlock();
	return error;
}

int ibv_query_qp(struct tv_qp *public, struct tv_qp_attr *a, int mask, struct tv_qp_init_attr *init) {
	struct pair *p = (struct pair *)public;
	(void)mask;
	lock();
	*a = p->attr;
	a->qp_state = public->state;
	a->rq_psn = (a->rq_psn + p->came) & 0xffffff;
	memset(init, 0, sizeof *init);
	init->cap = p->attr.cap;
	unlock();
	return 0;
}

int post(struct tv_qp *public, struct tv_send_wr *wr, struct tv_send_wr **bad) {
	struct pair *p = (struct pair *)public;
	int error = 0;
	lock();
	counts.posts++;
	if (knobs.fail_post > 0 && knobs.fail_post-- > 0)
		error = ENOMEM;
	for (; wr && !error; wr = wr->next) {
		if (public->state != TV_QPS_RTS && public->state != TV_QPS_ERR)
			error = EINVAL;
		else if (p->posted - p->freed >= p->room)
			error = ENOMEM;
		else if ((wr->send_flags & TV_SEND_INLINE) &&
			(wr->opcode != TV_WR_RDMA_WRITE || wr->sg_list->length > p->attr.cap.max_inline_data))
			error = EINVAL;
		else if (wr->num_sge > 1 || (wr->opcode != TV_WR_RDMA_WRITE && wr->opcode != TV_WR_RDMA_READ))
			error = EINVAL;
		if (error)
			break;
		struct tv_sge none = {0}, *g = wr->num_sge ? wr->sg_list : &none;
		char *copy = NULL; /* of the bytes as they are now: the caller may change them after this call */
		if (wr->send_flags & TV_SEND_INLINE) {
			copy = malloc(g->length + 1);
			memcpy(copy, (void *)(uintptr_t)g->addr, g->length);
			counts.inlined++;
		}
		free(p->ring[p->posted % p->room].inlined);
		p->ring[p->posted % p->room] = (struct request){.inlined = copy, .id = wr->wr_id, .local = g->addr, .length = g->length,
			.lkey = g->lkey, .remote = wr->remote_addr, .rkey = wr->rkey, .opcode = wr->opcode,
			.flags = wr->send_flags, .turn = p->posted};
		p->posted++;
		counts.requests++;
		if (knobs.prompt && public->state == TV_QPS_RTS && p->begun + 1 == p->posted) {
			p->begun++;
			completed(p, &p->ring[(p->posted - 1) % p->room], TV_WC_SUCCESS);
		}
	}
	if (public->state == TV_QPS_ERR)
		flush(p, TV_WC_WR_FLUSH_ERR);
	if (error)
		*bad = wr;
	if (!knobs.prompt)
		announce();
	unlock();
	return error;
}

static void enter(struct queue *q, struct ended e) {
	if (q->count == (unsigned)q->public.cqe) {
		counts.overflows++;
		q->lost = true;
		notify((struct context *)q->public.context, TV_EVENT_CQ_ERR, q, 0);
		return;
	}
	q->ring[(q->first + q->count++) % (unsigned)q->public.cqe] = e;
}

void completed(struct pair *p, const struct request *r, uint32_t status) {
	if (status == TV_WC_SUCCESS && !(r->flags & TV_SEND_SIGNALED))
		return;
	struct queue *q = p->queue;
	struct ended e = {.pair = p, .turn = r->turn, .life = p->life};
	e.c = (struct tv_completion){.wr_id = r->id, .status = status, .opcode = r->opcode, .byte_len = r->length,
		.qp_num = p->public.qp_num};
	if (knobs.lose > 0 && knobs.lose-- > 0)
		return;
	enter(q, e);
	if (knobs.twice > 0 && knobs.twice-- > 0)
		enter(q, e);
	if (q->armed && q->public.channel && !gone(q->public.context)) {
		struct tv_cq *public = &q->public;
		q->armed = false;
		if (write(((struct channel *)q->public.channel)->wake, &public, sizeof public) != sizeof public)
			abort();
	}
}

void flush(struct pair *p, uint32_t first_status) {
	for (; p->begun < p->posted; p->begun++, first_status = TV_WC_WR_FLUSH_ERR)
		completed(p, &p->ring[p->begun % p->room], first_status);
}

int poll_queue(struct tv_cq *public, int most, struct tv_completion *out) {
	struct queue *q = (struct queue *)public;
	int n = 0;
	lock();
	for (; n < most && q->count > 0 && !q->lost; n++) {
		struct ended *e = &q->ring[q->first];
		q->first = (q->first + 1) % (unsigned)public->cqe;
		q->count--;
		out[n] = e->c;
		if (e->pair && e->pair->life == e->life && e->turn >= e->pair->freed)
			e->pair->freed = e->turn + 1;
	}
	if (q->lost)
		n = -EIO;
	unlock();
	return n;
}

int arm_queue(struct tv_cq *public, int solicited) {
	(void)solicited;
	lock();
	((struct queue *)public)->armed = true;
	counts.arms++;
	unlock();
	return 0;
}

/* Calls libibverbs through pointers that dlsym gave. Functions return 0 or a negative errno, pointers NULL with errno. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tv_library *loaded; /* the latest; they are never unloaded, and a leak checker does not look into Go's memory */

tv_library *tv_load(const char *path, char *why, size_t size) {
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed: its providers keep threads and handlers */
	if (!handle) {
		snprintf(why, size, "%s", dlerror());
		return NULL;
	}
	tv_library *l = calloc(1, sizeof *l);
	if (!l) {
		snprintf(why, size, "no memory");
		return NULL;
	}
#define X(result, name, arguments) \
	if (!(l->name = (result(*) arguments)dlsym(handle, #name))) { \
		snprintf(why, size, "%s: it has no function %s: rdma-core 32 or newer is needed", path, #name); \
		free(l); \
		return NULL; \
	}
	TV_FUNCTIONS(X)
#undef X
#define X(result, name, arguments) l->name = (result(*) arguments)dlsym(handle, #name);
	TV_OPTIONAL(X)
#undef X
	/* Before the first registration. Where the kernel copies pinned pages as a process forks (Linux 5.12), it is nothing. */
	l->ibv_fork_init();
	l->before = loaded;
	loaded = l;
	return l;
}

static int failed(int r) { /* functions return an errno, or -1 and set it */
	if (r == 0)
		return 0;
	if (r > 0)
		return -r;
	return errno ? -errno : -EIO;
}

static void nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

/* Queue pairs of other transports than InfiniBand and RoCE are not connected by modify_qp: those of iWARP are by rdma_cm. */
static int joins(struct tv_device *d) { return ((struct tv_device_head *)d)->transport == TV_TRANSPORT_IB; }

/* tv_devices writes the names of the devices that can be used, a line each, and returns the number of all. */
int tv_devices(tv_library *l, char *names, size_t size) {
	int n = 0;
	size_t used = 0;
	errno = 0;
	struct tv_device **list = l->ibv_get_device_list(&n);
	if (!list)
		return failed(-1);
	names[0] = 0;
	for (int i = 0; i < n; i++) {
		const char *name = l->ibv_get_device_name(list[i]);
		if (!joins(list[i]))
			continue;
		if (used + strlen(name) + 2 > size)
			break;
		used += (size_t)snprintf(names + used, size - used, "%s\n", name);
	}
	l->ibv_free_device_list(list);
	return n;
}

struct tv_context *tv_open(tv_library *l, const char *name) {
	int n = 0;
	struct tv_device **list = l->ibv_get_device_list(&n);
	struct tv_context *c = NULL;
	errno = ENODEV;
	for (int i = 0; list && i < n; i++) {
		if (joins(list[i]) && strcmp(name, l->ibv_get_device_name(list[i])) == 0) {
			c = l->ibv_open_device(list[i]);
			break;
		}
	}
	int kept = errno;
	if (list)
		l->ibv_free_device_list(list);
	if (c)
		nonblocking(c->async_fd);
	errno = kept;
	return c;
}

int tv_port(tv_library *l, struct tv_context *c, int port, struct tv_port_attr *a) {
	memset(a, 0, sizeof *a);
	return failed(l->ibv_query_port(c, (uint8_t)port, a));
}

int tv_gids(tv_library *l, struct tv_context *c, struct tv_gid_entry *list, int most) {
	ssize_t n = l->_ibv_query_gid_table(c, list, (size_t)most, 0, sizeof list[0]);
	return (int)n;
}

int tv_limits(tv_library *l, struct tv_context *c, struct tv_device_attr *a) {
	memset(a, 0, sizeof *a);
	return failed(l->ibv_query_device(c, a));
}

struct tv_mr *tv_register(tv_library *l, struct tv_pd *pd, uintptr_t at, size_t bytes, uint64_t first, unsigned access) {
	if ((access & TV_ACCESS_RELAXED_ORDERING) && l->ibv_reg_mr_iova2)
		return l->ibv_reg_mr_iova2(pd, (void *)at, bytes, first, access);
	return l->ibv_reg_mr_iova(pd, (void *)at, bytes, first, (int)(access & ~(unsigned)TV_ACCESS_RELAXED_ORDERING));
}

struct tv_mr *tv_register_dmabuf(tv_library *l, struct tv_pd *pd, int fd, uint64_t offset, size_t bytes, uint64_t first,
				 unsigned access) {
	if (!l->ibv_reg_dmabuf_mr) { /* rdma-core before 34 */
		errno = ENOSYS;
		return NULL;
	}
	return l->ibv_reg_dmabuf_mr(pd, offset, bytes, first, fd, (int)access);
}

int tv_deregister(tv_library *l, struct tv_mr *mr) { return failed(l->ibv_dereg_mr(mr)); }

struct tv_channel *tv_channel_new(tv_library *l, struct tv_context *c) {
	struct tv_channel *h = l->ibv_create_comp_channel(c);
	if (h)
		nonblocking(h->fd);
	return h;
}

int tv_channel_end(tv_library *l, struct tv_channel *h) { return failed(l->ibv_destroy_comp_channel(h)); }

struct tv_cq *tv_cq_new(tv_library *l, struct tv_context *c, int entries, struct tv_channel *h) {
	return l->ibv_create_cq(c, entries, NULL, h, 0);
}

int tv_cq_end(tv_library *l, struct tv_cq *cq) { return failed(l->ibv_destroy_cq(cq)); }

int tv_arm(struct tv_cq *cq) { return failed(cq->context->ops.req_notify_cq(cq, 0)); }

int tv_poll(struct tv_cq *cq, tv_ended *out, int most) {
	struct tv_completion list[TV_BATCH];
	int n = cq->context->ops.poll_cq(cq, most < TV_BATCH ? most : TV_BATCH, list);
	for (int i = 0; i < n; i++)
		out[i] = (tv_ended){list[i].wr_id, list[i].status, list[i].vendor_err, list[i].qp_num, list[i].byte_len};
	return n;
}

/* tv_drain takes the events of a channel, most at most, and returns their number. */
int tv_drain(tv_library *l, struct tv_channel *h, int most) {
	struct tv_cq *cq;
	void *context;
	int n = 0;
	while (n < most && l->ibv_get_cq_event(h, &cq, &context) == 0) {
		l->ibv_ack_cq_events(cq, 1);
		n++;
	}
	return n;
}

int tv_event(tv_library *l, struct tv_context *c, uint32_t *type, uint32_t *about) {
	struct tv_async_event e;
	if (l->ibv_get_async_event(c, &e))
		return failed(-1);
	*type = e.event_type;
	*about = 0;
	switch (e.event_type) {
	case TV_EVENT_QP_FATAL:
	case TV_EVENT_QP_REQ_ERR:
	case TV_EVENT_QP_ACCESS_ERR:
		*about = e.element.qp->qp_num;
		break;
	case TV_EVENT_PORT_ACTIVE:
	case TV_EVENT_PORT_ERR:
	case TV_EVENT_LID_CHANGE:
	case TV_EVENT_GID_CHANGE:
		*about = (uint32_t)e.element.port_num;
	}
	l->ibv_ack_async_event(&e);
	return 0;
}

struct tv_pd *tv_pd_new(tv_library *l, struct tv_context *c) { return l->ibv_alloc_pd(c); }
int tv_pd_end(tv_library *l, struct tv_pd *pd) { return failed(l->ibv_dealloc_pd(pd)); }
int tv_close(tv_library *l, struct tv_context *c) { return failed(l->ibv_close_device(c)); }

struct tv_qp *tv_qp_new(tv_library *l, struct tv_pd *pd, struct tv_cq *cq, int requests, int sges, int *inlined) {
	struct tv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = TV_QPT_RC};
	a.cap.max_send_wr = (uint32_t)requests;
	a.cap.max_send_sge = (uint32_t)sges;
	a.cap.max_recv_wr = a.cap.max_recv_sge = 1;
	a.cap.max_inline_data = (uint32_t)*inlined;
	struct tv_qp *qp = l->ibv_create_qp(pd, &a);
	if (!qp && *inlined > 0) { /* a device that has no room for so many bytes in a request */
		a.cap.max_inline_data = 0;
		qp = l->ibv_create_qp(pd, &a);
	}
	*inlined = (int)a.cap.max_inline_data;
	return qp;
}

int tv_qp_end(tv_library *l, struct tv_qp *qp) { return failed(l->ibv_destroy_qp(qp)); }

int tv_qp_state(tv_library *l, struct tv_qp *qp, int state) {
	struct tv_qp_attr a = {.qp_state = (uint32_t)state};
	return failed(l->ibv_modify_qp(qp, &a, TV_QP_STATE));
}

int tv_qp_init(tv_library *l, struct tv_qp *qp, const tv_path *p) {
	struct tv_qp_attr a = {.qp_state = TV_QPS_INIT, .pkey_index = p->pkey, .port_num = p->port};
	a.qp_access_flags = p->access;
	return failed(l->ibv_modify_qp(qp, &a, TV_QP_STATE | TV_QP_PKEY_INDEX | TV_QP_PORT | TV_QP_ACCESS_FLAGS));
}

static int receive(tv_library *l, struct tv_qp *qp, const tv_path *p) {
	struct tv_qp_attr a = {.qp_state = TV_QPS_RTR, .path_mtu = p->mtu, .dest_qp_num = p->qp, .rq_psn = p->psn};
	a.max_dest_rd_atomic = p->served;
	a.min_rnr_timer = p->rnr_timer;
	a.ah_attr.port_num = p->port;
	a.ah_attr.sl = p->sl;
	a.ah_attr.dlid = p->lid;
	a.ah_attr.src_path_bits = p->bits;
	a.ah_attr.static_rate = p->rate;
	a.ah_attr.is_global = p->global;
	if (p->global) {
		memcpy(a.ah_attr.dgid, p->gid, sizeof a.ah_attr.dgid);
		a.ah_attr.flow_label = p->flow;
		a.ah_attr.sgid_index = p->sgid;
		a.ah_attr.hop_limit = p->hops;
		a.ah_attr.traffic_class = p->traffic;
	}
	return failed(l->ibv_modify_qp(qp, &a, TV_QP_STATE | TV_QP_AV | TV_QP_PATH_MTU | TV_QP_DEST_QPN | TV_QP_RQ_PSN |
		TV_QP_MAX_DEST_RD_ATOMIC | TV_QP_MIN_RNR_TIMER));
}

int tv_qp_connect(tv_library *l, struct tv_qp *qp, const tv_path *p) {
	int r = receive(l, qp, p);
	if (r)
		return r;
	struct tv_qp_attr a = {.qp_state = TV_QPS_RTS, .sq_psn = p->own_psn, .timeout = p->timeout,
		.retry_cnt = p->retries, .rnr_retry = p->rnr_retries, .max_rd_atomic = p->reads};
	return failed(l->ibv_modify_qp(qp, &a, TV_QP_STATE | TV_QP_TIMEOUT | TV_QP_RETRY_CNT | TV_QP_RNR_RETRY |
		TV_QP_SQ_PSN | TV_QP_MAX_QP_RD_ATOMIC));
}

int tv_qp_query(tv_library *l, struct tv_qp *qp, struct tv_qp_attr *a) {
	struct tv_qp_init_attr init;
	memset(a, 0, sizeof *a);
	return failed(l->ibv_query_qp(qp, a, (1 << 21) - 1, &init));
}

/* tv_chain_new makes TV_BATCH empty requests that are linked, for free. */
tv_request *tv_chain_new(void) {
	tv_request *list = calloc(TV_BATCH, sizeof *list);
	for (int i = 0; list && i < TV_BATCH; i++) {
		list[i].wr.next = i + 1 < TV_BATCH ? &list[i + 1].wr : NULL;
		list[i].wr.sg_list = &list[i].range;
	}
	return list;
}

int tv_post(struct tv_qp *qp, tv_request *chain, int n, int *posted) {
	struct tv_send_wr *last = &chain[n - 1].wr, *next = last->next, *bad = NULL;
	last->next = NULL;
	int result = qp->context->ops.post_send(qp, &chain->wr, &bad);
	last->next = next;
	*posted = result && bad ? (int)((tv_request *)(void *)bad - chain) : result ? 0 : n;
	return failed(result);
}

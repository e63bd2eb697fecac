/* Devices, contexts, domains, registrations, channels and queues: everything but queue pairs and the wire. */
#include "fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATIENCE = 5 }; /* seconds */

struct knobs knobs;
struct counts counts;

bool gone(const struct tv_context *public) {
	const struct context *c = (const struct context *)public;
	return c->pulls != c->device->pulls;
}

bool dead(const struct tv_context *public) { return gone(public) || ((const struct context *)public)->device->dead; }

static bool strikes(int *knob) { return *knob > 0 && (*knob)-- > 0; }

static void *none(int error) {
	unlock();
	errno = error;
	return NULL;
}

/* A kernel before 5.12 gives a process that forks other pages than those that NICs reach, at its next store. So the
 * library has to hear of it before the first registration. */
int ibv_fork_init(void) {
	begin();
	lock();
	int late = counts.registrations > 0 && counts.forks == 0;
	counts.forks++;
	unlock();
	return late ? EINVAL : 0;
}

struct tv_device **ibv_get_device_list(int *n) {
	begin();
	lock();
	counts.looks++;
	if (strikes(&knobs.fail_list))
		return none(ENOSYS);
	int count = 0;
	struct tv_device **list = calloc(DEVICES + 1, sizeof *list);
	for (int i = 0; i < knobs.devices; i++) {
		if (!devices[i].dead)
			list[count++] = &devices[i];
	}
	unlock();
	if (n)
		*n = count;
	return list;
}

void ibv_free_device_list(struct tv_device **list) { free(list); }
const char *ibv_get_device_name(struct tv_device *d) { return d->name; }

struct context *contexts;

struct tv_context *ibv_open_device(struct tv_device *d) {
	lock();
	int fds[2];
	if (strikes(&knobs.fail_open) || d->dead || pipe2(fds, 02000000) != 0) /* O_CLOEXEC */
		return none(d->dead ? EIO : ENOMEM);
	struct context *c = calloc(1, sizeof *c);
	c->public.device = d;
	c->device = d;
	c->pulls = d->pulls;
	c->public.async_fd = fds[0];
	c->wake = fds[1];
	c->public.cmd_fd = -1;
	c->public.num_comp_vectors = 1;
	c->public.ops.poll_cq = poll_queue;
	c->public.ops.req_notify_cq = arm_queue;
	c->public.ops.post_send = post;
	c->next = contexts;
	contexts = c;
	counts.objects++;
	unlock();
	return &c->public;
}

int ibv_close_device(struct tv_context *public) {
	struct context *c = (struct context *)public;
	lock();
	if (c->users > 0) {
		unlock();
		return EBUSY;
	}
	counts.objects--;
	struct context **at = &contexts;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	close(public->async_fd);
	close(c->wake);
	free(c);
	unlock();
	return 0;
}

void notify(struct context *c, uint32_t type, void *about, int port) {
	if (c->count == EVENTS || c->wake < 0)
		return;
	c->events[(c->first + c->count++) % EVENTS] = (struct event){type, about, port};
	counts.events++;
	if (write(c->wake, "e", 1) != 1)
		abort();
}

/* Nobody takes an event of the object any more. Those that were taken have to be acknowledged: the real library waits for
 * that without a limit (ibv_get_async_event(3), ibv_get_cq_event(3)), and this one ends the process. */
void dismiss(struct context *c, const void *about, const unsigned *owed, const char *call) {
	unsigned kept = 0;
	for (unsigned i = 0; i < c->count; i++) {
		struct event e = c->events[(c->first + i) % EVENTS];
		if (e.about != about)
			c->events[(c->first + kept++) % EVENTS] = e;
	}
	c->count = kept;
	for (double limit = now() + PATIENCE; *owed > 0; doze(limit)) {
		if (now() >= limit) {
			fprintf(stderr, "fake libibverbs: %s would hang: %u events are not acknowledged\n", call, *owed);
			abort();
		}
	}
}

/* owed_of is the count of the object of an event, NULL if it is about none. */
static unsigned *owed_of(const struct tv_async_event *e) {
	switch (e->event_type) {
	case TV_EVENT_CQ_ERR:
		return &((struct queue *)e->element.cq)->owed;
	case TV_EVENT_QP_FATAL: case TV_EVENT_QP_REQ_ERR: case TV_EVENT_QP_ACCESS_ERR: case TV_EVENT_COMM_EST:
	case TV_EVENT_SQ_DRAINED: case TV_EVENT_PATH_MIG: case TV_EVENT_PATH_MIG_ERR: case TV_EVENT_QP_LAST_WQE:
		return &((struct pair *)e->element.qp)->owed;
	}
	return NULL;
}

static void acknowledge(unsigned *owed, unsigned n) {
	if (*owed < n) {
		fprintf(stderr, "fake libibverbs: %u events are acknowledged, of %u that were taken\n", n, *owed);
		abort();
	}
	*owed -= n;
	announce();
}

int ibv_get_async_event(struct tv_context *public, struct tv_async_event *e) {
	struct context *c = (struct context *)public;
	char byte;
	if (read(public->async_fd, &byte, 1) != 1) {
		errno = gone(public) ? EIO : errno;
		return -1;
	}
	lock();
	if (c->count == 0) { /* it was about a pair that has ended */
		unlock();
		errno = EAGAIN;
		return -1;
	}
	struct event *got = &c->events[c->first++ % EVENTS];
	c->count--;
	e->event_type = got->type;
	if (got->about)
		e->element.qp = got->about;
	else
		e->element.port_num = got->port;
	unsigned *owed = owed_of(e);
	if (owed)
		++*owed;
	unlock();
	return 0;
}

void ibv_ack_async_event(struct tv_async_event *e) {
	lock();
	unsigned *owed = owed_of(e);
	if (owed)
		acknowledge(owed, 1);
	unlock();
}

int ibv_query_device(struct tv_context *c, struct tv_device_attr *a) {
	memset(a, 0, sizeof *a);
	strcpy(a->fw_ver, "fake");
	a->max_mr_size = 1ull << 40;
	a->vendor_id = knobs.soft ? 0xffffff : 0;
	a->max_qp = PAIRS;
	a->max_qp_wr = RING_MOST / 2;
	a->max_sge = a->max_sge_rd = RANGES;
	a->max_cqe = RING_MOST;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = ((struct context *)c)->device->reads;
	return dead(c) ? EIO : 0;
}

int ibv_query_port(struct tv_context *public, uint8_t port, struct tv_port_attr *a) {
	struct context *c = (struct context *)public;
	if (port < 1 || port > PORTS || dead(public))
		return dead(public) ? EIO : EINVAL;
	lock();
	counts.ports++;
	unlock();
	a->state = c->device->down ? 1 : TV_PORT_ACTIVE;
	a->max_mtu = 5;
	a->active_mtu = c->device->mtu;
	a->gid_tbl_len = 16;
	a->max_msg_sz = (uint32_t)knobs.message;
	a->link_layer = knobs.infiniband ? TV_LINK_INFINIBAND : TV_LINK_ETHERNET;
	a->lid = lid(c->device);
	a->flags = c->device->routed ? TV_PORT_NEEDS_GRH : 0;
	a->active_width = 2;
	a->active_speed = 32;
	return 0;
}

/* lid is 0 for RoCE. */
uint16_t lid(const struct tv_device *d) { return knobs.infiniband ? (uint16_t)(d->host << 4 | (unsigned)(d->index + 1)) : 0; }

/* address is link-local at index 0; 10.0.DEVICE.HOST and 172.16.DEVICE.HOST, as RoCE maps them, at 1 and 2; and the former
 * again at 3, by RoCE v1. Those behind are of IPv6. InfiniBand has the prefix of its subnet, and the number of the port. */
void address(const struct tv_device *d, int index, uint8_t gid[16]) {
	memset(gid, 0, 16);
	if (knobs.infiniband) {
		gid[0] = 0xfe;
		gid[1] = 0x80;
		gid[7] = (uint8_t)d->subnet;
		gid[14] = (uint8_t)d->host;
		gid[15] = (uint8_t)(1 + d->index);
	} else if (index >= GIDS) {
		gid[0] = 0xfd;
		gid[13] = (uint8_t)d->index;
		gid[14] = (uint8_t)(index >> 8);
		gid[15] = (uint8_t)index;
	} else if (index == 0) {
		gid[0] = 0xfe;
		gid[1] = 0x80;
		gid[15] = (uint8_t)(1 + d->index);
	} else {
		gid[10] = gid[11] = 0xff;
		gid[12] = index == 2 ? 172 : 10;
		gid[13] = index == 2 ? 16 : 0;
		gid[14] = (uint8_t)d->index;
		gid[15] = (uint8_t)d->host;
	}
}

ssize_t _ibv_query_gid_table(struct tv_context *public, struct tv_gid_entry *list, size_t most, uint32_t flags,
			     size_t size) {
	struct context *c = (struct context *)public;
	(void)flags;
	(void)size;
	lock();
	int gids = knobs.infiniband ? 1 : knobs.gids;
	size_t all = PORTS * (size_t)gids;
	for (size_t k = 0; k < all && all <= most; k++) {
		int i = (int)k % gids;
		list[k] = (struct tv_gid_entry){.gid_index = (uint32_t)i, .port_num = 1 + (uint32_t)k / (uint32_t)gids,
			.gid_type = knobs.infiniband ? TV_GID_IB : i == 3 ? TV_GID_ROCE_V1 : TV_GID_ROCE_V2};
		address(c->device, i, (uint8_t *)list[k].gid);
	}
	unlock();
	return all <= most ? (ssize_t)all : -EINVAL; /* as rdma_query_gid_table of Linux */
}

struct tv_pd *ibv_alloc_pd(struct tv_context *c) {
	lock();
	struct pd *p = calloc(1, sizeof *p);
	p->public.context = c;
	((struct context *)c)->users++;
	counts.objects++;
	unlock();
	return &p->public;
}

int ibv_dealloc_pd(struct tv_pd *public) {
	struct pd *p = (struct pd *)public;
	if (gone(public->context))
		return EIO;
	lock();
	int busy = p->users > 0;
	if (!busy) {
		((struct context *)public->context)->users--;
		counts.objects--;
		free(p);
	}
	unlock();
	return busy ? EBUSY : 0;
}

/* A key is an index and a tag of eight bits above it, as on real NICs. With reuse the tag stays, and the slot that was
 * freed last comes first. */
static uint32_t key_of(uint32_t slot, uint32_t tag) { return slot << 8 | (tag & 0xff); }

struct memory *memory_of(uint32_t key) {
	uint32_t slot = key >> 8;
	struct memory *m = slot < MEMORIES ? &table->memories[slot] : NULL;
	return m && m->taken && m->public.rkey == key && !m->ending ? m : NULL;
}

static struct tv_mr *enter(struct tv_pd *pd, void *at, size_t bytes, uint64_t first, unsigned access) {
	struct context *c = (struct context *)pd->context;
	lock();
	while (knobs.hold && bytes >= (size_t)knobs.hold)
		doze(0);
	if (strikes(&knobs.fail_register) || dead(pd->context) || (c->device->refused && c->device->refused == bytes))
		return none(ENOMEM);
	if ((access & TV_ACCESS_REMOTE_WRITE) && !(access & TV_ACCESS_LOCAL_WRITE))
		return none(EINVAL);
	unsigned slot = knobs.reuse ? 1 : table->next_memory;
	for (int tries = 0; slot == 0 || table->memories[slot].taken; tries++) {
		slot = (slot + 1) % MEMORIES;
		if (tries > MEMORIES)
			return none(ENOMEM);
	}
	table->next_memory = slot + 1 == MEMORIES ? 1 : slot + 1;
	struct memory *m = &table->memories[slot];
	*m = (struct memory){.taken = true, .seat = (uint8_t)seat, .first = first, .access = access};
	m->public = (struct tv_mr){.context = pd->context, .pd = pd, .addr = at, .length = bytes};
	m->public.lkey = m->public.rkey = key_of(slot, knobs.reuse ? 7 : table->tag++);
	counts.relaxed += (access & TV_ACCESS_RELAXED_ORDERING) != 0;
	counts.registrations++;
	counts.registered += (long)bytes;
	((struct pd *)pd)->users++;
	counts.objects++;
	unlock();
	return &m->public;
}

struct tv_mr *ibv_reg_mr_iova(struct tv_pd *pd, void *at, size_t bytes, uint64_t first, int access) {
	return enter(pd, at, bytes, first, (unsigned)access);
}
struct tv_mr *ibv_reg_mr_iova2(struct tv_pd *pd, void *at, size_t bytes, uint64_t first, unsigned access) {
	return enter(pd, at, bytes, first, access);
}
struct tv_mr *ibv_reg_mr(struct tv_pd *pd, void *at, size_t bytes, int access) {
	return enter(pd, at, bytes, (uintptr_t)at, (unsigned)access);
}

/* A dma-buf is a file that can be mapped, as the fakes of accelerators export it. It begins at the file's position. */
struct tv_mr *ibv_reg_dmabuf_mr(struct tv_pd *pd, uint64_t offset, size_t bytes, uint64_t first, int fd, int access) {
	off_t begin = lseek(fd, 0, SEEK_CUR);
	if ((offset ^ first) & 4095) { /* as the kernel, which maps whole pages */
		errno = EINVAL;
		return NULL;
	}
	offset += begin > 0 ? (uint64_t)begin : 0;
	uint64_t page = offset & ~4095ull;
	char *at = mmap(NULL, bytes + (offset - page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)page);
	if (at == MAP_FAILED)
		return NULL;
	struct tv_mr *mr = enter(pd, at + (offset - page), bytes, first, (unsigned)access);
	if (!mr)
		munmap(at, bytes + (offset - page));
	else
		((struct memory *)mr)->mapped = true;
	return mr;
}

int ibv_dereg_mr(struct tv_mr *public) {
	struct memory *m = (struct memory *)public;
	if (gone(public->context) || knobs.kept)
		return gone(public->context) ? EIO : ETIMEDOUT;
	lock();
	m->ending = true;
	await(&m->busy);
	for (int i = 0; i < PAIRS; i++) { /* what is late lands before the keys end */
		if (pairs[i])
			settle(pairs[i], NULL);
	}
	if (m->mapped) {
		uintptr_t page = (uintptr_t)public->addr & ~(uintptr_t)4095;
		munmap((void *)page, public->length + ((uintptr_t)public->addr - page));
	}
	((struct pd *)public->pd)->users--;
	counts.objects--;
	*m = (struct memory){0};
	unlock();
	return 0;
}

struct tv_channel *ibv_create_comp_channel(struct tv_context *c) {
	lock();
	int fds[2];
	if (pipe2(fds, 02000000) != 0)
		return none(EMFILE);
	struct channel *h = calloc(1, sizeof *h);
	h->public.context = c;
	h->public.fd = fds[0];
	h->wake = fds[1];
	((struct context *)c)->users++;
	counts.objects++;
	counts.channels++;
	unlock();
	return &h->public;
}

int ibv_destroy_comp_channel(struct tv_channel *public) {
	struct channel *h = (struct channel *)public;
	lock();
	int busy = h->users > 0;
	if (!busy) {
		close(public->fd);
		close(h->wake);
		((struct context *)public->context)->users--;
		counts.objects--;
		counts.channels--;
		free(h);
	}
	unlock();
	return busy ? EBUSY : 0;
}

struct tv_cq *ibv_create_cq(struct tv_context *c, int entries, void *context, struct tv_channel *h, int vector) {
	(void)vector;
	lock();
	if (strikes(&knobs.fail_queue) || dead(c) || entries > RING_MOST)
		return none(entries > RING_MOST ? EINVAL : ENOMEM);
	struct queue *q = calloc(1, sizeof *q);
	q->public = (struct tv_cq){.context = c, .channel = h, .cq_context = context, .cqe = entries};
	q->ring = calloc((size_t)entries, sizeof *q->ring);
	((struct context *)c)->users++;
	if (h)
		((struct channel *)h)->users++;
	counts.objects++;
	unlock();
	return &q->public;
}

/* quiet takes the rings of a queue out of its channel, which goes around once. */
static void quiet(struct queue *q) {
	struct channel *h = (struct channel *)q->public.channel;
	struct tv_cq *ring = NULL;
	do {
		if (ring != &q->public && write(h->wake, &ring, sizeof ring) != sizeof ring)
			abort();
	} while (read(h->public.fd, &ring, sizeof ring) == sizeof ring && ring);
}

int ibv_destroy_cq(struct tv_cq *public) {
	struct queue *q = (struct queue *)public;
	if (gone(public->context))
		return EIO;
	lock();
	int busy = q->users > 0;
	if (!busy) {
		if (public->channel)
			quiet(q);
		dismiss((struct context *)public->context, public, &q->owed, "ibv_destroy_cq");
		((struct context *)public->context)->users--;
		if (public->channel)
			((struct channel *)public->channel)->users--;
		counts.objects--;
		free(q->ring);
		free(q);
	}
	unlock();
	return busy ? EBUSY : 0;
}

int ibv_get_cq_event(struct tv_channel *h, struct tv_cq **cq, void **context) {
	__atomic_fetch_add(&counts.drains, 1, __ATOMIC_RELAXED);
	lock(); /* the descriptor does not block, by tent's will */
	bool rang = read(h->fd, cq, sizeof *cq) == sizeof *cq;
	if (rang) {
		*context = (*cq)->cq_context;
		((struct queue *)*cq)->owed++;
	}
	unlock();
	return rang ? 0 : -1;
}

void ibv_ack_cq_events(struct tv_cq *cq, unsigned n) {
	lock();
	acknowledge(&((struct queue *)cq)->owed, n);
	unlock();
}

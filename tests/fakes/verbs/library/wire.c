/* The wire: one thread that carries out the work requests of all queue pairs, and the knobs of tests. */
#include "fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 16 << 10 };

double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* leads reports whether packets from an address of a device reach one of another. */
static bool leads(const struct tv_device *here, unsigned from, const struct tv_device *there, const void *to) {
	for (unsigned i = 0; i < GIDS; i++) {
		uint8_t gid[16];
		address(there, (int)i, gid);
		if (!memcmp(gid, to, sizeof gid) && (from == 3) == (i == 3)) /* both by one version of RoCE */
			return !(here->walled & 1u << from) && !(there->walled & 1u << i);
	}
	return false;
}

/* carries reports whether packets of a pair lead from its device to another one. Those of InfiniBand go by the LID inside
 * a subnet. Where a port shares its LID with others, as virtual functions do, the global header says whose they are. */
static bool carries(const struct pair *p, const struct tv_device *here, const struct tv_device *there) {
	const struct tv_ah_attr *way = &p->attr.ah_attr;
	if (!knobs.infiniband)
		return leads(here, way->sgid_index, there, way->dgid);
	uint8_t gid[16];
	address(there, 0, gid);
	if (here->subnet != there->subnet || way->dlid != lid(there))
		return false;
	return way->is_global ? !memcmp(gid, way->dgid, sizeof gid) : !here->routed && !there->routed;
}

static bool works(const struct tv_device *d) { return !d->silent && !d->down && !d->dead; }

static bool reached(struct pair *p, struct pair **peer) {
	struct pair *to = pair_of(p->attr.dest_qp_num);
	struct tv_device *here = ((struct context *)p->public.context)->device, *there;
	*peer = to;
	if (!to || (to->public.state != TV_QPS_RTR && to->public.state != TV_QPS_RTS) ||
		to->attr.dest_qp_num != p->public.qp_num || to->attr.rq_psn != p->attr.sq_psn)
		return false;
	there = &table->devices[to->seat][to->device];
	return living(to->seat) && works(here) && works(there) && p->attr.max_rd_atomic <= to->attr.max_dest_rd_atomic &&
		p->attr.path_mtu == to->attr.path_mtu && /* else packets are longer than one end takes, or a READ's are */
		carries(p, here, there) && carries(to, there, here);
}

static struct memory *usable(uint32_t key, const struct pair *by, uint64_t at, uint64_t bytes, unsigned access) {
	struct memory *m = memory_of(key);
	if (!m || m->seat != by->seat || m->public.pd != by->public.pd || (m->access & access) != access || at < m->first ||
		at - m->first > m->public.length || bytes > m->public.length - (at - m->first))
		return NULL;
	return m;
}

/* move copies between memory of ours and that of a process. It survives memory that is gone, and returns the error. */
static int move(unsigned of, bool reads, uint64_t here, uint64_t there, uint64_t bytes) {
	struct iovec ours = {(void *)(uintptr_t)here, bytes}, theirs = {(void *)(uintptr_t)there, bytes};
	pid_t process = table->process[of];
	ssize_t moved = reads ? process_vm_readv(process, &ours, 1, &theirs, 1, 0)
			      : process_vm_writev(process, &ours, 1, &theirs, 1, 0);
	return moved == (ssize_t)bytes ? 0 : moved < 0 ? errno : EFAULT;
}

/* PCI Express keeps the order of WRITEs that go one way, so a READ pushes those to its own memory alone. */
void settle(struct pair *p, const struct memory *in) {
	struct landing **at = &p->late;
	while (*at) {
		struct landing *l = *at;
		if (in && l->to != in) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		move(seat, false, (uint64_t)(uintptr_t)l->data, l->at, l->bytes);
		free(l);
	}
	p->last = at;
}

static bool put_off(struct pair *to, struct memory *in, uint64_t at, uint64_t from, uint32_t bytes) {
	struct landing *l = malloc(sizeof *l + bytes);
	*l = (struct landing){.to = in, .at = at, .bytes = bytes, .due = now() + 1e-6 * (knobs.unseen ? knobs.unseen : knobs.late)};
	if (move(seat, true, (uint64_t)(uintptr_t)l->data, from, bytes)) {
		free(l);
		return false;
	}
	*to->last = l;
	to->last = &l->next;
	return true;
}

static void fail(struct pair *p, uint32_t status) {
	p->public.state = TV_QPS_ERR;
	p->broken = p->seat != seat;
	if (p->broken)
		announce_all();
	else
		flush(p, status);
}

/* use notes that the wire of our process moves bytes of these, or does not any more. */
static void use(struct pair *p, struct pair *peer, struct memory *own, struct memory *other, seats bit) {
	seats *all[] = {&p->busy, &peer->busy, &other->busy, own ? &own->busy : &other->busy};
	for (int i = 0; i < 4; i++)
		*all[i] = (*all[i] & ~(1u << seat)) | bit;
}

/* step carries out one piece of a pair's first request. */
static void step(struct pair *p, struct pair *peer) {
	struct request *r = &p->ring[p->begun % p->room];
	bool reads = r->opcode == TV_WR_RDMA_READ;
	uint32_t bytes = r->length - r->done < PIECE ? r->length - r->done : PIECE;
	if (r->length > (uint32_t)knobs.message) {
		fail(p, TV_WC_LOC_LEN_ERR);
		return;
	}
	if (r->length > 0) {
		unsigned right = reads ? TV_ACCESS_REMOTE_READ : TV_ACCESS_REMOTE_WRITE;
		struct memory *own = usable(r->lkey, p, r->local, r->length, reads ? TV_ACCESS_LOCAL_WRITE : 0);
		struct memory *other = usable(r->rkey, peer, r->remote, r->length, right);
		if (!own && !r->inlined) {
			fail(p, TV_WC_LOC_PROT_ERR);
			return;
		}
		if (!other || !(peer->attr.qp_access_flags & right)) {
			fail(peer, TV_WC_WR_FLUSH_ERR);
			fail(p, TV_WC_REM_ACCESS_ERR);
			return;
		}
		uint64_t here = r->inlined ? (uint64_t)(uintptr_t)r->inlined + r->done
					   : (uint64_t)(uintptr_t)own->public.addr + (r->local - own->first) + r->done;
		uint64_t there = (uint64_t)(uintptr_t)other->public.addr + (r->remote - other->first) + r->done;
		if (reads && knobs.deaf && other->mapped) {
			fail(peer, TV_WC_WR_FLUSH_ERR);
			fail(p, (uint32_t)knobs.deaf);
			return;
		}
		if (reads && peer->seat == seat)
			settle(peer, other); /* a READ pushes the WRITEs before it */
		bool late = peer->seat == seat && /* a test may turn the knob while the lock is free */
			(reads ? knobs.unseen && own->mapped : knobs.late);
		use(p, peer, own, other, 1u << seat);
		unlock();
		int error = late ? 0 : move(peer->seat, reads, here, there, bytes);
		lock();
		if (late && reads)
			error = put_off(p, own, here, there, bytes) ? 0 : EFAULT;
		else if (late)
			error = put_off(peer, other, there, here, bytes) ? 0 : EFAULT;
		use(p, peer, own, other, 0);
		announce();
		if (p->public.state != TV_QPS_RTS) { /* whoever changed it waits for us, and ends the request */
			return;
		}
		if (error == ESRCH)
			return; /* the process ends: nobody acknowledges */
		if (error) {
			fail(peer, TV_WC_WR_FLUSH_ERR);
			fail(p, TV_WC_REM_OP_ERR);
			return;
		}
		counts.bytes += bytes;
	}
	r->done += bytes;
	p->wrote |= !reads && bytes > 0;
	if (r->done < r->length) {
		if (knobs.soft && reads && p->wrote) { /* a WRITE's second acknowledgement: see device.sets of package rdma */
			p->begun++;
			completed(p, r, TV_WC_SUCCESS);
			fail(p, TV_WC_WR_FLUSH_ERR);
		}
		return;
	}
	if (knobs.statuses > 0 && knobs.statuses-- > 0) {
		fail(p, (uint32_t)knobs.status);
		return;
	}
	*(reads ? &counts.reads : &counts.writes) += 1;
	peer->came++;
	p->begun++;
	p->due = 0;
	completed(p, r, TV_WC_SUCCESS);
}

/* ready reports whether a pair has a request that goes on now. Else next becomes the time at which to look again. */
static bool ready(struct pair *p, double at, double *next, struct pair **peer) {
	if (p->late && p->late->due <= at)
		settle(p, NULL);
	if (p->late && p->late->due < *next)
		*next = p->late->due;
	if (p->broken)
		flush(p, TV_WC_WR_FLUSH_ERR);
	p->broken = false;
	if (p->public.state != TV_QPS_RTS || p->begun == p->posted)
		return false;
	if (!reached(p, peer)) {
		if (p->retry == 0)
			p->retry = at + (1 + p->attr.retry_cnt) * 4.096e-6 * (double)(1u << p->attr.timeout);
		if (p->retry <= at)
			fail(p, TV_WC_RETRY_EXC_ERR);
		else if (p->retry < *next)
			*next = p->retry;
		return false;
	}
	p->retry = 0;
	if (knobs.delay && p->due == 0)
		p->due = at + 1e-6 * knobs.delay;
	if (p->due > at) {
		*next = p->due < *next ? p->due : *next;
		return false;
	}
	return true;
}

static void *wire(void *none) {
	(void)none;
	lock();
	for (;;) {
		double at = now(), next = at + 3600;
		int moved = 0;
		unsigned start = (unsigned)rand(); /* shuffled, each pair has its turn all the same */
		for (unsigned i = 0; i < PAIRS; i++) {
			struct pair *peer, *p = pairs[knobs.shuffle ? (start + i * 7919u) % PAIRS : i];
			if (p && ready(p, at, &next, &peer)) {
				step(p, peer);
				moved++;
			}
		}
		if (moved)
			continue;
		doze(next);
	}
	return NULL;
}

static void defaults(void) {
	const char *text = getenv("TENT_FAKE_VERBS_DEVICES");
	knobs = (struct knobs){.devices = text ? atoi(text) : 2, .gids = 2, .message = 1 << 30};
	counts.inlined = counts.relaxed = 0;
	if (knobs.devices < 0 || knobs.devices > DEVICES)
		knobs.devices = 2;
	for (int i = 0; i < DEVICES; i++) {
		devices[i] = (struct tv_device){.head = {.node = 1}, .index = i, .host = 1, .reads = 16, .mtu = 5,
			.pulls = devices[i].pulls};
		snprintf(devices[i].name, sizeof devices[i].name, "fake%d", i);
	}
}

static void start(void) {
	sit_down();
	lock();
	defaults();
	unlock();
	pthread_t thread;
	pthread_create(&thread, NULL, wire, NULL);
	pthread_detach(thread);
}

void begin(void) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, start);
}

/* tell gives an event of a device to each context of it, as the kernel does: one without queue pairs hears of it, too.
 * That of a completion queue goes to those that have one. */
static void tell(struct tv_device *d, uint32_t type) {
	for (struct context *c = contexts; c; c = c->next) {
		struct queue *about = NULL;
		for (int i = 0; i < PAIRS && type == TV_EVENT_CQ_ERR && !about; i++)
			if (pairs[i] && pairs[i]->public.context == &c->public)
				about = pairs[i]->queue;
		if (c->device == d && (about || type != TV_EVENT_CQ_ERR))
			notify(c, type, about, 1);
	}
}

static void die(struct tv_device *d, bool now) {
	d->dead = now;
	for (int i = 0; now && i < PAIRS; i++) {
		struct pair *p = pairs[i];
		if (!p || ((struct context *)p->public.context)->device != d || p->public.state == TV_QPS_RESET)
			continue;
		p->public.state = TV_QPS_ERR;
		await(&p->busy);
		if (pairs[i] == p)
			flush(p, TV_WC_WR_FLUSH_ERR);
	}
	if (now)
		tell(d, TV_EVENT_DEVICE_FATAL);
}

static bool hush(int *wake) {
	int was = *wake;
	*wake = -1;
	return was >= 0 && close(was) == 0;
}

/* pull takes a device out: the kernel ends all that it had, and its event files are in error for good. */
static void pull(struct tv_device *d) {
	d->pulls++;
	for (int i = 0; i < PAIRS; i++) {
		struct context *c = pairs[i] ? (struct context *)pairs[i]->public.context : NULL;
		if (!c || c->device != d || c->pulls + 1 != d->pulls)
			continue;
		counts.pairs--;
		hush(&c->wake);
		struct channel *h = (struct channel *)pairs[i]->queue->public.channel;
		if (h && hush(&h->wake))
			counts.channels--;
	}
}

static long on_device(const char *what, struct tv_device *d, long value) {
	if (!strcmp(what, "silence"))
		d->silent = value;
	else if (!strcmp(what, "wall"))
		d->walled = (unsigned)value;
	else if (!strcmp(what, "routed"))
		d->routed = value;
	else if (!strcmp(what, "subnet"))
		d->subnet = (unsigned)value;
	else if (!strcmp(what, "mtu"))
		d->mtu = (uint32_t)value;
	else if (!strcmp(what, "reads-most"))
		d->reads = (int)value;
	else if (!strcmp(what, "transport"))
		d->head.transport = (uint32_t)value;
	else if (!strcmp(what, "refuse"))
		d->refused = (size_t)value;
	else if (!strcmp(what, "port")) {
		d->down = !value;
		tell(d, value ? TV_EVENT_PORT_ACTIVE : TV_EVENT_PORT_ERR);
	} else if (!strcmp(what, "event"))
		tell(d, (uint32_t)value);
	else if (!strcmp(what, "address")) {
		d->host = (uint32_t)value;
		tell(d, TV_EVENT_GID_CHANGE);
	} else if (!strcmp(what, "dead"))
		die(d, value);
	else if (!strcmp(what, "pull")) {
		die(d, value);
		if (value)
			pull(d);
	} else
		return -1;
	return 0;
}

static long on_pair(uint32_t number, long status) {
	struct pair *p = pair_of(number);
	if (!p || p->seat != seat)
		return -1;
	bool idle = p->begun == p->posted;
	p->public.state = TV_QPS_ERR;
	await(&p->busy);
	if (pair_of(number) != p)
		return 0;
	flush(p, (uint32_t)status);
	if (idle)
		notify((struct context *)p->public.context, TV_EVENT_QP_FATAL, &p->public, 0);
	return 0;
}

/* on_pair_event is news of a pair, which the device goes on to serve. */
static long on_pair_event(uint32_t number, long type) {
	struct pair *p = pair_of(number);
	if (!p || p->seat != seat)
		return -1;
	notify((struct context *)p->public.context, (uint32_t)type, &p->public, 0);
	return 0;
}

static long knob(const char *what, long value) {
	static const struct { const char *name; int *value; } ints[] = {{"register", &knobs.fail_register},
		{"pair", &knobs.fail_pair}, {"queue", &knobs.fail_queue}, {"modify", &knobs.fail_modify},
		{"open", &knobs.fail_open}, {"post", &knobs.fail_post}, {"list", &knobs.fail_list}, {"lose", &knobs.lose}, {"twice", &knobs.twice}, {"status", &knobs.status},
		{"statuses", &knobs.statuses}, {"deaf", &knobs.deaf}, {"stuck", &knobs.stuck}, {"kept", &knobs.kept}, {"late", &knobs.late}, {"unseen", &knobs.unseen}, {"shuffle", &knobs.shuffle}, {"delay", &knobs.delay},
		{"hold", &knobs.hold}, {"soft", &knobs.soft}, {"prompt", &knobs.prompt},
		{"infiniband", &knobs.infiniband}, {"message", &knobs.message},
		{"devices", &knobs.devices}, {"gids", &knobs.gids}};
	static const struct { const char *name; long *value; } longs[] = {{"objects", &counts.objects},
		{"posts", &counts.posts}, {"requests", &counts.requests}, {"reads", &counts.reads},
		{"writes", &counts.writes}, {"bytes", &counts.bytes}, {"overflows", &counts.overflows},
		{"pairs", &counts.pairs}, {"inlined", &counts.inlined}, {"relaxed", &counts.relaxed},
		{"channels", &counts.channels}, {"arms", &counts.arms}, {"drains", &counts.drains},
		{"registrations", &counts.registrations}, {"registered", &counts.registered},
		{"looks", &counts.looks}, {"forks", &counts.forks}, {"ports", &counts.ports}};
	for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
		if (!strcmp(what, ints[i].name)) {
			*ints[i].value = (int)value;
			return 0;
		}
	}
	for (size_t i = 0; i < sizeof longs / sizeof *longs; i++) {
		if (!strcmp(what, longs[i].name))
			return *longs[i].value;
	}
	if (!strcmp(what, "reuse")) {
		knobs.reuse = value;
		return 0;
	}
	return -1;
}

/* fake_control turns a knob: "silence fake0 1", "pair-error 257 12", "late 5000", "reset", or asks: "objects". "loop
 * POSTS REQUESTS" runs the plain program, and returns its time in ns. */
long fake_control(const char *text) {
	char what[32] = "", name[32] = "";
	long value = 0, result;
	int device;
	begin();
	if (sscanf(text, "loop %ld %ld", &value, &result) == 2)
		return loop(value, result);
	lock();
	struct memory *m;
	if (sscanf(text, "access %ld", &value) == 1) /* the rights of a key */
		result = (m = memory_of((uint32_t)value)) ? (long)m->access : -1;
	else if (sscanf(text, "%31s fake%d %ld", what, &device, &value) == 3 && device >= 0 && device < DEVICES)
		result = on_device(what, &devices[device], value);
	else if (sscanf(text, "pair-error %31s %ld", name, &value) == 2)
		result = on_pair((uint32_t)atol(name), value);
	else if (sscanf(text, "pair-event %31s %ld", name, &value) == 2)
		result = on_pair_event((uint32_t)atol(name), value);
	else if (!strcmp(text, "flush")) {
		for (int i = 0; i < PAIRS; i++) {
			if (pairs[i])
				settle(pairs[i], NULL);
		}
		result = 0;
	} else if (!strcmp(text, "reset")) {
		defaults();
		result = 0;
	} else if (sscanf(text, "%31s %ld", what, &value) >= 1)
		result = knob(what, value);
	else
		result = -1;
	announce_all();
	unlock();
	return result;
}

/* A libibverbs.so.1 without hardware, for tests: see package tests/fakes/verbs. One mutex guards everything. One thread
 * of a process, the wire, carries the work requests of its queue pairs out, a piece at a time in turn. A piece moves its
 * bytes without the mutex; calls that end a queue pair or a registration wait for the pieces that use it, as a NIC's do.
 *
 * Queue pairs and registrations stand in a table. Processes that are given the same file share it, and the mutex: each
 * has a seat there. A wire reaches memory of another process without its help, as a NIC does. So one that is stopped is
 * served, and one that was killed answers no more. Pointers in an entry are those of its own process. */
#ifndef TENT_FAKE_VERBS_H
#define TENT_FAKE_VERBS_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "abi.h"

enum { DEVICES = 8, PAIRS = 1 << 12, MEMORIES = 1 << 15, EVENTS = 256, RING_MOST = 1 << 15, GIDS = 4, PORTS = 2, PKEYS = 4, RANGES = 8, INLINE = 512,
	SEATS = 16 };

struct tv_device { /* the library's is longer; tent looks at its beginning alone */
	struct tv_device_head head;
	char name[16];
	int index;
	bool dead, silent, down;
	bool routed; /* of InfiniBand: packets to and from it need a global header, as those of a virtual function do */
	unsigned walled; /* bits of the addresses that lead nowhere */
	unsigned subnet; /* of InfiniBand */
	int reads;       /* RDMA READs under way at once on a queue pair, at either end */
	uint32_t mtu;    /* the code of the largest packet of its ports */
	uint32_t host; /* last part of its address */
	size_t refused; /* registrations of this size fail, 0: none */
	unsigned pulls; /* how often it was taken out: contexts of before are gone */
};

struct event { uint32_t type; void *about; int port; };
struct context {
	struct tv_context public;
	struct tv_device *device;
	int wake; /* other end of async_fd */
	struct event events[EVENTS];
	unsigned first, count, pulls;
	int users;
	struct context *next; /* that is open, too */
};
struct pd { struct tv_pd public; int users; };
typedef uint32_t seats; /* bits: the processes of these seats carry a piece out that uses the entry */
struct memory {
	struct tv_mr public;
	uint64_t first;
	unsigned access;
	seats busy;
	uint8_t seat;
	bool taken, ending, mapped;
};
struct channel { struct tv_channel public; int wake, users; };

struct ended { struct tv_completion c; struct pair *pair; uint64_t turn; uint32_t life; };
struct queue {
	struct tv_cq public;
	struct ended *ring;
	unsigned first, count;
	bool armed, lost;
	int users;
	unsigned owed; /* acknowledgements of its events that were taken; the same of a pair */
};

struct request { uint64_t id, local, remote, turn; uint32_t length, lkey, rkey, opcode, flags, done; char *inlined; };
struct landing { struct landing *next; struct memory *to; uint64_t at; uint32_t bytes; double due; char data[]; };
struct pair {
	struct tv_qp public;
	struct queue *queue;
	struct request *ring;
	unsigned room;           /* of the ring: requests that were posted and whose completion was not polled */
	uint64_t posted, begun, freed; /* turns: begun is the one that is carried out next */
	uint32_t life;           /* grows with every reset: completions of before free nothing */
	struct tv_qp_attr attr;
	seats busy;
	uint8_t seat, device;
	bool taken;
	bool broken;             /* by a request of another process: our own wire flushes it */
	double retry, due;       /* when the peer is given up; when the request may begin; 0: not set */
	unsigned owed;
	uint32_t came;           /* requests that were carried out at this end */
	bool wrote;              /* it has carried a WRITE with bytes out since it was new */
	struct landing *late, **last; /* WRITEs that are acknowledged and not placed, of the receiving pair */
};

/* What processes share. */
struct table {
	pthread_mutex_t big;
	bool made;
	pid_t process[SEATS];
	struct bell { uint32_t rung, waiting; } bells[SEATS];
	struct tv_device devices[SEATS][DEVICES];
	uint32_t next_pair, next_memory, tag;
	struct pair pairs[PAIRS];
	struct memory memories[MEMORIES];
};
extern struct table *table;
extern unsigned seat;              /* ours */
extern struct tv_device *devices;  /* ours */
extern struct pair *pairs[PAIRS];  /* ours, by their places in the table */
extern struct context *contexts;   /* ours that are open */

struct knobs {
	int fail_register, fail_pair, fail_queue, fail_modify, fail_open; /* so many of the next calls give ENOMEM */
	int fail_post;            /* so many of the next postings find no room */
	int fail_list;            /* the same of looks at the list of devices, which give ENOSYS, as without a descriptor */
	int lose, twice;          /* so many of the next completions */
	int status, statuses;     /* the next requests end with status */
	int stuck, kept;          /* calls that end a queue pair, or a registration, give ETIMEDOUT: firmware does not answer */
	int deaf;                 /* READs of memory of a dma-buf end with this status; WRITEs to it are posted on PCI, and do not fail */
	int late, shuffle, delay; /* late and delay in µs */
	int unseen;               /* READs into memory of a dma-buf are put off, until "flush": its device does not see the bytes yet */
	int hold;                 /* registrations of so many bytes or more wait, 0 for none */
	int soft;                 /* the vendor and the completer of Soft-RoCE */
	int prompt;               /* requests end while they are posted, and move nothing: for the cost of a request */
	int infiniband;           /* the ports are of InfiniBand: one address each, and LIDs */
	int message;              /* bytes of the longest message of a port */
	bool reuse;               /* keys come back at once */
	int devices, gids;        /* gids of the addresses of a device are shown; those beyond the fourth lead nowhere */
};
extern struct knobs knobs;
extern struct counts { long objects, posts, requests, reads, writes, bytes, inlined, relaxed, channels, events, drains, overflows, pairs, arms,
	registrations, registered, looks, forks, ports; } counts;

void begin(void);        /* starts the wire, once */
void sit_down(void);     /* takes a seat, before all else */
bool living(unsigned of); /* is the process of a seat there? */
void lock(void);
void unlock(void);
void doze(double until); /* gives the mutex back until something is announced, or it is so late; 0: no limit */
bool gone(const struct tv_context *); /* was the device taken out? Each call gives EIO then, also those that end something */
bool dead(const struct tv_context *); /* was it, or has it failed? */
void announce(void);     /* with the mutex: wakes those of this process that doze */
void announce_all(void); /* the same in all processes: what their wires can reach has changed */
void await(const seats *busy); /* until no wire moves bytes of the entry */
double now(void);        /* seconds */
void notify(struct context *, uint32_t type, void *about, int port);
void dismiss(struct context *, const void *about, const unsigned *owed, const char *call); /* the events of an object that ends */
void completed(struct pair *, const struct request *, uint32_t status);
void flush(struct pair *, uint32_t first_status);
void settle(struct pair *, const struct memory *in); /* places what is late, in one memory or in all (NULL) */
struct pair *pair_of(uint32_t number);
struct memory *memory_of(uint32_t key);
int poll_queue(struct tv_cq *, int, struct tv_completion *);
void address(const struct tv_device *, int index, uint8_t gid[16]);
uint16_t lid(const struct tv_device *);
int arm_queue(struct tv_cq *, int);
int post(struct tv_qp *, struct tv_send_wr *, struct tv_send_wr **);
long loop(long posts, long requests);

#endif

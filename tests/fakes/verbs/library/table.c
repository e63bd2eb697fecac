/* The table that processes share: its file, their seats, the mutex, and how they wait for each other. */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct table *table;
struct tv_device *devices;
unsigned seat;
static int file = -1; /* a byte of it is locked for each process: the kernel ends the lock with the process */

static void give_up(const char *what) {
	perror(what);
	abort();
}

void lock(void) {
	if (pthread_mutex_lock(&table->big) == EOWNERDEAD) /* it was killed; changes of an entry are a few stores */
		pthread_mutex_consistent(&table->big);
}

void unlock(void) { pthread_mutex_unlock(&table->big); }

/* A condition variable of glibc does not survive a process that is killed while it waits, so this is a word alone. */
void doze(double until) {
	struct bell *b = &table->bells[seat];
	uint32_t seen = b->rung;
	double left = until ? until - now() : 3600;
	if (left <= 0)
		return;
	struct timespec limit = {(time_t)left, (long)(1e9 * (left - (double)(time_t)left))};
	b->waiting++;
	unlock();
	syscall(SYS_futex, &b->rung, FUTEX_WAIT, seen, &limit, NULL, 0);
	lock();
	b->waiting--;
}

static void ring(struct bell *b) {
	b->rung++;
	if (b->waiting > 0)
		syscall(SYS_futex, &b->rung, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

void announce(void) { ring(&table->bells[seat]); }

void announce_all(void) {
	for (unsigned i = 0; i < SEATS; i++)
		ring(&table->bells[i]);
}

static bool held(unsigned of) {
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = of, .l_len = 1};
	return fcntl(file, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

bool living(unsigned of) { return of == seat || held(of); }

/* The wire of another process rings no bell of ours: we look again, as we would have to if it was killed. */
void await(const seats *busy) {
	for (;;) {
		seats others = *busy & ~(1u << seat), ours = *busy & (1u << seat);
		for (unsigned i = 0; i < SEATS; i++) {
			if ((others & 1u << i) && !living(i))
				others &= ~(1u << i);
		}
		if (!others && !ours)
			return;
		doze(others ? now() + 1e-3 : 0);
	}
}

static void make(bool shared) {
	pthread_mutexattr_t a;
	pthread_mutexattr_init(&a);
	if (shared) {
		pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	}
	pthread_mutex_init(&table->big, &a);
	table->next_pair = 0x101;
	table->made = true;
}

/* vacate removes what a process that was here before has left. */
static void vacate(unsigned of) {
	for (unsigned i = 0; i < PAIRS; i++) {
		struct pair *p = &table->pairs[i];
		p->busy &= ~(1u << of);
		if (p->taken && p->seat == of)
			*p = (struct pair){0};
	}
	for (unsigned i = 0; i < MEMORIES; i++) {
		struct memory *m = &table->memories[i];
		m->busy &= ~(1u << of);
		if (m->taken && m->seat == of)
			*m = (struct memory){0};
	}
}

static void take_seat(void) {
	for (seat = 0; seat < SEATS; seat++) {
		struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = seat, .l_len = 1};
		if (fcntl(file, F_OFD_SETLK, &l) == 0)
			break;
	}
	if (seat == SEATS)
		give_up("fake libibverbs: no seat is free");
	lock();
	vacate(seat);
	table->bells[seat].waiting = 0;
	unlock();
}

void sit_down(void) {
	const char *path = getenv("TENT_FAKE_VERBS_TABLE");
	bool shared = path && *path;
	if (shared && ((file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0 || flock(file, LOCK_EX) != 0 ||
		ftruncate(file, sizeof *table) != 0))
		give_up(path);
	table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | (shared ? 0 : MAP_ANONYMOUS), file, 0);
	if (table == MAP_FAILED)
		give_up("fake libibverbs: its table");
	if (!table->made)
		make(shared);
	if (shared) {
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* the others reach our memory */
		flock(file, LOCK_UN);
		take_seat();
	}
	table->process[seat] = getpid();
	devices = table->devices[seat];
}

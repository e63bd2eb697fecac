#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;  /* an I/O for the threads */
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER; /* an I/O has ended, or is let go */
static struct handle *handles;
static struct buffer *buffers;
static struct batch *batches;
static struct io *first;
static struct stats stats;
static int opened, held, threads;
static unsigned buffered; /* entries with a buffer: from Submit until their event is taken */
static unsigned long randomness;

static int (*peek)(void *, uint64_t, uint64_t, int);
static int (*current)(void **);
static int (*attribute)(void *, int, uint64_t);
static int (*device)(int *);

static struct fault {
	char function[64];
	long nth;
	int code;
} faults[16];

#define THREADS 4
#define BOUNCE (1 << 20)
#define BUFFERS 64
#define OK ((error){0, 0})
#define ERROR(code) ((error){code, 0})

/* The nth call of a function from now on gives a code. Of "io" it is the nth I/O, which fails late with an errno, and of
 * "short" the nth I/O, of which half is carried out. The lock is held. */
static int injected(const char *function) {
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		if (faults[i].nth && !strcmp(faults[i].function, function) && --faults[i].nth == 0) {
			stats.faults++;
			return faults[i].code;
		}
	return 0;
}

API void fakecufile_inject(const char *function, long nth, int code) {
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		if (!faults[i].nth) {
			snprintf(faults[i].function, sizeof faults[i].function, "%s", function);
			faults[i].nth = nth, faults[i].code = code;
			break;
		}
	pthread_mutex_unlock(&lock);
}

/* Holds all I/Os back before they move a byte, or lets them go on. */
API void fakecufile_hold(int on) {
	pthread_mutex_lock(&lock);
	held = on;
	pthread_cond_broadcast(&came);
	pthread_mutex_unlock(&lock);
}

API void fakecufile_stats(struct stats *into) {
	pthread_mutex_lock(&lock);
	*into = stats;
	pthread_mutex_unlock(&lock);
}

/* The real one would do harm, often later: the test ends here. */
static void wrong(const char *what) {
	fprintf(stderr, "fake cufile: %s\n", what);
	abort();
}

static error leave(int code) {
	pthread_mutex_unlock(&lock);
	return ERROR(code);
}

/* Takes the lock for a call; after an error it is not held. */
static int enter(const char *function) {
	pthread_mutex_lock(&lock);
	int code = injected(function);
	if (!code && !opened)
		code = NOT_INITIALIZED;
	if (code)
		pthread_mutex_unlock(&lock);
	return code;
}

/* Calls about memory of a device need a context of the thread. */
static int without_context(void) {
	void *context = NULL;
	return current(&context) || !context;
}

/* A sticky error has ended the context, and each call there gives it. */
static int lost(void) { return device(&(int){0}); }

/* A signal would end the process by an assertion of the library. */
static void want_no_signals(void) {
	sigset_t now;
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	if (!sigismember(&now, SIGURG))
		wrong("a call that signals may interrupt");
}

static int load_driver(void) {
	const char *path = getenv("TENT_LIBCUDA");
	void *cuda = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
	if (!cuda)
		return 0;
	peek = (int (*)(void *, uint64_t, uint64_t, int))dlsym(cuda, "fakecuda_peek");
	current = (int (*)(void **))dlsym(cuda, "cuCtxGetCurrent");
	attribute = (int (*)(void *, int, uint64_t))dlsym(cuda, "cuPointerGetAttribute");
	device = (int (*)(int *))dlsym(cuda, "cuCtxGetDevice");
	return peek && current && attribute && device;
}

API error cuFileDriverOpen(void) {
	pthread_mutex_lock(&lock);
	int code = injected("cuFileDriverOpen");
	if (!code && !load_driver())
		code = NO_DRIVER;
	if (!code && !setting("NATIVE", 0) && !setting("COMPAT", 1))
		code = NOT_INITIALIZED;
	if (code)
		return leave(code);
	stats.drivers++;
	opened = 1;
	randomness = (unsigned long)setting("SEED", 1);
	return leave(0);
}

API error cuFileDriverGetProperties(struct properties *p) {
	int code = enter("cuFileDriverGetProperties");
	if (code)
		return ERROR(code);
	*p = (struct properties){.major = (unsigned)setting("NATIVE", 0), .direct_most = 16384, .batch_most = 128};
	p->control = setting("COMPAT", 1) ? 2 : 0;
	p->features = setting("BATCHES", 1) ? 7 : 5;
	return leave(0);
}

API error cuFileGetVersion(int *version) {
	*version = setting("VERSION", 1090);
	return OK;
}

API error cuFileHandleRegister(struct handle **into, struct descriptor *d) {
	int code = enter("cuFileHandleRegister");
	if (code)
		return ERROR(code);
	struct statfs fs;
	int flags = fcntl(d->fd, F_GETFL);
	if (d->type != 1 || flags < 0 || fstatfs(d->fd, &fs))
		return leave(INVALID_VALUE);
	if (fs.f_type == 0x01021994 && !setting("TMPFS", 1))
		return leave(INTERNAL);
	for (struct handle *h = handles; h; h = h->next)
		if (h->fd == d->fd)
			return leave(HANDLE_REGISTERED);
	struct handle *h = calloc(1, sizeof *h);
	h->fd = d->fd, h->writable = (flags & O_ACCMODE) != O_RDONLY, h->next = handles;
	handles = *into = h;
	stats.handles++;
	return leave(0);
}

static struct handle *known(struct handle *file) {
	for (struct handle *h = handles; h; h = h->next)
		if (h == file)
			return h;
	return NULL;
}

/* A handle that is in use, or that is not there, is a mistake that ends the test. */
API void cuFileHandleDeregister(struct handle *file) {
	pthread_mutex_lock(&lock);
	struct handle **at = &handles;
	while (*at && *at != file)
		at = &(*at)->next;
	if (!*at || file->users || fcntl(file->fd, F_GETFL) < 0)
		wrong("a handle was deregistered that is unknown, in use, or of a descriptor that is closed");
	*at = file->next;
	free(file);
	stats.handles--;
	pthread_mutex_unlock(&lock);
}

/* CU_POINTER_ATTRIBUTE_BUFFER_ID: memory that takes another's place has another number. */
static uint64_t memory_at(uint64_t base) {
	uint64_t id = 0;
	return attribute(&id, 7, base) ? 0 : id;
}

static struct buffer *buffer_of(uint64_t base) {
	for (struct buffer *b = buffers; b; b = b->next)
		if (b->base == base)
			return b;
	return NULL;
}

API error cuFileBufRegister(const void *base, size_t bytes, int flags) {
	int code = enter("cuFileBufRegister");
	if (code)
		return ERROR(code);
	if (without_context() || flags || !bytes)
		return leave(without_context() ? CUDA_ERROR : INVALID_VALUE);
	for (struct buffer *b = buffers; b; b = b->next)
		if (b->base == (uint64_t)base)
			return leave(ALREADY_REGISTERED);
	if ((long)bytes > setting("PIN_MOST", 1L << 40))
		return leave(PINNING);
	struct buffer *b = calloc(1, sizeof *b);
	b->base = (uint64_t)base, b->size = bytes, b->memory = memory_at(b->base), b->next = buffers;
	buffers = b;
	stats.buffers++;
	return leave(0);
}

API error cuFileBufDeregister(const void *base) {
	int code = enter("cuFileBufDeregister");
	if (code)
		return ERROR(code);
	struct buffer **at = &buffers;
	while (*at && (*at)->base != (uint64_t)base)
		at = &(*at)->next;
	if (!*at)
		return leave(NOT_REGISTERED);
	struct buffer *b = *at;
	if (b->users)
		wrong("memory was given back under an I/O");
	*at = b->next;
	free(b);
	stats.buffers--;
	return leave(0);
}

/* Moves the bytes of an I/O through memory of the host, as compat mode does. */
static ssize_t move(const struct io *io, size_t bytes) {
	char *bounce = aligned_alloc(4096, BOUNCE);
	size_t moved = 0;
	while (moved < bytes) {
		off_t at = io->at + (off_t)moved;
		size_t n = bytes - moved, before = (size_t)at & 4095;
		n = n < BOUNCE - 8192 ? n : BOUNCE - 8192;
		ssize_t got;
		if (io->write) { /* an end that is not aligned loses neighbours' bytes in the real one: none may come here */
			if (before || n & 4095)
				wrong("a WRITE that is not of whole units");
			if (peek(bounce, io->address + moved, n, 0)) {
				free(bounce);
				return -EFAULT;
			}
			got = pwrite(io->file->fd, bounce, n, at);
		} else {
			got = pread(io->file->fd, bounce, (before + n + 4095) & ~4095UL, at - (off_t)before);
			got = got < 0 ? got : got < (ssize_t)before ? 0 : got - (ssize_t)before;
			got = got > (ssize_t)n ? (ssize_t)n : got;
			if (got > 0 && peek(bounce + before, io->address + moved, (uint64_t)got, 1))
				got = -1, errno = EFAULT;
		}
		if (got < 0) {
			int why = errno;
			free(bounce);
			return -why;
		}
		if (!got)
			break;
		moved += (size_t)got;
	}
	free(bounce);
	return (ssize_t)moved;
}

static unsigned long next_random(void) {
	randomness = randomness * 6364136223846793005UL + 1442695040888963407UL;
	return randomness >> 33;
}

static void drop_batch(struct batch *b) {
	struct batch **at = &batches;
	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	free(b->events);
	free(b);
	stats.batches--;
}

/* Books the end of an I/O. The lock is held. */
static void finish(struct io *io, ssize_t result) {
	struct batch *b = io->batch;
	struct buffer *memory = buffer_of(io->base);
	stats.under_way--;
	io->file->users--;
	if (memory && memory->users)
		memory->users--;
	io->result = result;
	io->ended = 1;
	if (b) {
		b->under_way--;
		if (!io->silent && !b->cancelled)
			b->events[b->count++] = (struct event){io->cookie, result < 0 ? FAILED : COMPLETE, (size_t)result};
		if (b->destroyed && !b->under_way)
			drop_batch(b);
		free(io);
	}
	pthread_cond_broadcast(&ended);
}

static void *work(void *unused) {
	(void)unused;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!first || held)
			pthread_cond_wait(&came, &lock);
		struct io **at = &first; /* any: completions have no order */
		for (unsigned long skip = next_random() % 4; skip && (*at)->next; skip--)
			at = &(*at)->next;
		struct io *io = *at;
		*at = io->next;
		int errno_of = injected("io"), cut = injected("short");
		long delay = setting("DELAY_US", 0);
		delay = delay ? (long)(next_random() % (unsigned long)delay) : 0;
		pthread_mutex_unlock(&lock);
		if (delay)
			usleep((useconds_t)delay);
		ssize_t result = errno_of ? -errno_of : move(io, cut ? io->bytes / 2 & ~4095UL : io->bytes);
		pthread_mutex_lock(&lock);
		stats.moved += result > 0 ? result : 0;
		finish(io, result);
	}
	return NULL;
}

/* Queues an I/O. The lock is held. */
static void queue(struct io *io) {
	for (; threads < THREADS; threads++) {
		pthread_t thread;
		pthread_create(&thread, NULL, work, NULL);
		pthread_detach(thread);
	}
	struct buffer *memory = buffer_of(io->base);
	io->file->users++;
	if (memory)
		memory->users++;
	stats.under_way++;
	struct io **at = &first;
	while (*at)
		at = &(*at)->next;
	*at = io;
	pthread_cond_signal(&came);
}

/* A range past the end of its registered buffer, an unknown handle and a file that is read-only are refused. */
static int invalid(struct handle *file, uint64_t base, off_t offset, size_t bytes, off_t at, int write) {
	struct handle *h = known(file);
	if (!h || at < 0 || offset < 0 || !bytes || (write && !h->writable))
		return 1;
	for (struct buffer *b = buffers; b; b = b->next)
		if (b->base == base && b->memory != memory_at(base))
			wrong("an I/O reaches memory that is pinned, and is not there any more");
	for (struct buffer *b = buffers; b; b = b->next)
		if (b->base == base && ((uint64_t)offset > b->size || bytes > b->size - (uint64_t)offset))
			return 1;
	return 0;
}

static ssize_t synchronous(const char *name, struct handle *file, uint64_t base, size_t bytes, off_t at, off_t offset,
                           int write) {
	int code = enter(name);
	if (!code && (without_context() || invalid(file, base, offset, bytes, at, write)))
		code = without_context() ? CUDA_ERROR : INVALID_VALUE, pthread_mutex_unlock(&lock);
	if (code)
		return -code;
	struct io io = {.file = file, .base = base, .address = base + (uint64_t)offset, .bytes = bytes, .at = at, .write = write};
	queue(&io);
	while (!io.ended)
		pthread_cond_wait(&ended, &lock);
	pthread_mutex_unlock(&lock);
	if (io.result < 0) {
		errno = (int)-io.result;
		return -1;
	}
	return io.result;
}

API ssize_t cuFileRead(struct handle *file, void *base, size_t bytes, off_t at, off_t offset) {
	return synchronous("cuFileRead", file, (uint64_t)base, bytes, at, offset, 0);
}

API ssize_t cuFileWrite(struct handle *file, const void *base, size_t bytes, off_t at, off_t offset) {
	return synchronous("cuFileWrite", file, (uint64_t)base, bytes, at, offset, 1);
}

API error cuFileBatchIOSetUp(struct batch **into, unsigned entries) {
	int code = enter("cuFileBatchIOSetUp");
	if (code)
		return ERROR(code);
	struct batch *b = calloc(1, sizeof *b);
	b->entries = entries, b->events = calloc(entries, sizeof *b->events), b->next = batches;
	batches = *into = b;
	stats.batches++;
	return leave(0);
}

/* One entry that is wrong fails the whole call. Those in front of it run, and no event of the call comes. */
API error cuFileBatchIOSubmit(struct batch *b, unsigned count, struct parameters *list, unsigned flags) {
	int code = enter("cuFileBatchIOSubmit");
	if (code)
		return ERROR(code);
	stats.submits++;
	want_no_signals();
	if (b->under_way || b->count)
		wrong("a Submit into a batch with entries under way, which would lose events");
	while (buffered + count > BUFFERS) /* until another batch is asked for its events */
		pthread_cond_wait(&ended, &lock);
	if (flags || without_context() || b->posted + count > b->entries || b->cancelled)
		return leave(INTERNAL);
	unsigned good = 0;
	while (good < count && !invalid(list[good].file, list[good].base, list[good].device_offset, list[good].bytes,
	                                list[good].file_offset, list[good].operation))
		good++;
	for (unsigned i = 0; i < good; i++) {
		struct parameters *p = &list[i];
		struct io *io = calloc(1, sizeof *io);
		*io = (struct io){.batch = b, .file = p->file, .base = p->base, .address = p->base + (uint64_t)p->device_offset,
		                  .bytes = p->bytes, .at = p->file_offset, .write = p->operation, .cookie = p->cookie, .silent = good < count};
		b->posted++;
		b->under_way++;
		buffered++;
		queue(io);
	}
	return leave(good < count ? INTERNAL : 0);
}

API error cuFileBatchIOGetStatus(struct batch *b, unsigned least, unsigned *count, struct event *into,
                                 struct timespec *limit) {
	unsigned room = *count;
	*count = 0;
	int code = enter("cuFileBatchIOGetStatus");
	if (code)
		return ERROR(code);
	want_no_signals();
	if (without_context())
		wrong("GetStatus without a current context, which would lose events");
	if (!setting("LOST", 1) && lost())
		return leave(CUDA_ERROR);
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	if (limit) {
		until.tv_sec += limit->tv_sec + (until.tv_nsec + limit->tv_nsec) / 1000000000;
		until.tv_nsec = (until.tv_nsec + limit->tv_nsec) % 1000000000;
	}
	while (b->count < least && b->under_way)
		if (limit ? pthread_cond_timedwait(&ended, &lock, &until) : pthread_cond_wait(&ended, &lock))
			break;
	for (; *count < room && b->count; (*count)++) {
		unsigned i = (unsigned)(next_random() % b->count);
		into[*count] = b->events[i];
		b->events[i] = b->events[--b->count];
		buffered--;
		pthread_cond_broadcast(&ended);
	}
	if (!b->under_way && !b->count)
		b->posted = 0; /* room again */
	return leave(0);
}

/* It succeeds, and no event comes any more. What runs goes on. */
API error cuFileBatchIOCancel(struct batch *b) {
	int code = enter("cuFileBatchIOCancel");
	if (code)
		return ERROR(code);
	stats.cancels++;
	b->cancelled = 1;
	b->count = 0;
	return leave(0);
}

API void cuFileBatchIODestroy(struct batch *b) {
	pthread_mutex_lock(&lock);
	b->destroyed = 1;
	if (!b->under_way)
		drop_batch(b);
	pthread_mutex_unlock(&lock);
}

/*
 * A transport between memory and files of this machine, by the page cache. Its links are files, which are there at once.
 *
 *	open_file ── checks, makes, grows ──▶ tent_file ──import_file──▶ a descriptor ──▶ slices by pread and pwrite
 *
 * One worker takes the most urgent slice, or a sync that waits. One mutex guards everything; it is not held while the
 * kernel works. Any file is opened that the user of the process may open: "roots" of tent's own transports do not bind
 * a plug-in.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fail.h"
#include "list.h"
#include "tent_transport.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLASSES = 3, SLICES_MAX = 1024 };

typedef struct region { struct region *next; uint64_t key, address, bytes; int read_only; } region;
typedef struct tie { struct tie *next; uint64_t number; uint32_t generation; int starving; char path[TENT_PATH_MAX]; } tie;
typedef struct file { struct file *next; uint64_t key, bytes; tie *of; int fd, read_only; } file;
typedef struct wish { struct wish *next; uint64_t token; int fd; } wish; /* a sync that waits, with a descriptor */

struct tent_transport {
	tent_port *port;
	const tent_host *host;
	tie *links;
	region *regions;
	file *files;
	wish *wishes;
	list queue[CLASSES];
	tent_slice *running;
	uint32_t accepted;
	uint64_t last_key;
	int stop;
	pthread_t worker;
	pthread_mutex_t mutex;
	pthread_cond_t work, changed;
};

#define LINK(s) ((tie *)(uintptr_t)(s)->scratch[1])

/* trouble makes the error of a system call on a file. The device's own trouble ends the link: another way may do. */
static int trouble(tent_error *e, int number) {
	int code = TENT_STORAGE_ERROR;
	switch (number) {
	case ENOENT: case ENOTDIR: code = TENT_NOT_FOUND; break;
	case EACCES: case EPERM: case EROFS: case ELOOP: case ETXTBSY: code = TENT_PERMISSION_DENIED; break;
	case ENOSPC: case EDQUOT: case EFBIG: code = TENT_NO_SPACE; break;
	case EINVAL: case EISDIR: case ENAMETOOLONG: code = TENT_INVALID_ARGUMENT; break;
	case EMFILE: case ENFILE: code = TENT_TOO_MANY_REQUESTS; break;
	}
	return fail(e, code, code == TENT_STORAGE_ERROR ? TENT_SCOPE_LINK : TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, strerror(number));
}

static int slice_error(tent_error *e, int code, int side, const char *cause) {
	return fail(e, code, TENT_SCOPE_SLICE, side, cause);
}

/* end completes a slice that is in no list any more. */
static void end(tent_transport *t, tent_slice *s, const tent_error *e) {
	tent_completion c = {s->cookie, e ? 0 : s->length, e};
	t->accepted--;
	t->host->complete(t->port, &c, 1);
	for (tie *l = t->links; l; l = l->next) {
		tent_rail rail = {l->number, l->generation, 0, 0};
		if (l->starving) t->host->ready(t->port, rail);
		l->starving = 0;
	}
	pthread_cond_broadcast(&t->changed);
}

/* drop ends the queued slices of a link, or those with the cookies. */
static void drop(tent_transport *t, const tie *of, const uint64_t *cookies, size_t n) {
	tent_error e;
	slice_error(&e, TENT_WITHDRAWN, TENT_SIDE_LOCAL, "asked back, or its file was closed");
	for (int i = 0; i < CLASSES; i++)
		for (tent_slice *s = t->queue[i].first, *next; s; s = next) {
			int meant = LINK(s) == of;
			next = NEXT(s);
			for (size_t k = 0; k < n && !meant; k++) meant = s->cookie == cookies[k];
			if (meant && leave(&t->queue[i], s)) end(t, s, &e);
		}
}

static int inside(uint64_t at, uint64_t n, uint64_t bytes) { return at <= bytes && n <= bytes - at; }

/* allowed returns 0 if a slice may be carried out, and else the reason. */
static int allowed(const tent_slice *s, const region *r, const file *f, tent_error *e) {
	uint64_t count = s->pieces.count ? s->pieces.count : 1, each = s->length / count;
	int here = r && s->local >= r->address, there = 1;
	for (uint64_t i = 0; here && f && i < count; i++) {
		uint64_t l = s->local - r->address + (s->pieces.count ? s->pieces.local_at[i] : 0);
		uint64_t at = s->remote + (s->pieces.count ? s->pieces.remote_at[i] : 0);
		here = inside(l, each, r->bytes), there = there && at >= s->remote && inside(at, each, f->bytes);
	}
	if (!here) return slice_error(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SIDE_LOCAL, "no such memory here");
	if (!f) return slice_error(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SIDE_REMOTE, "no open file has this key");
	if (!there) return slice_error(e, TENT_INVALID_ARGUMENT, TENT_SIDE_REMOTE, "outside of the file");
	if (s->op == TENT_WRITE ? f->read_only : r->read_only)
		return slice_error(e, TENT_PERMISSION_DENIED, s->op == TENT_WRITE ? TENT_SIDE_REMOTE : TENT_SIDE_LOCAL, "it is read-only");
	return 0;
}

/* copy moves one part of a slice. */
static int copy(const tent_slice *s, int fd, uint64_t local, uint64_t at, uint64_t n, tent_error *e) {
	while (n > 0) {
		void *p = (void *)(uintptr_t)local;
		ssize_t moved = s->op == TENT_WRITE ? pwrite(fd, p, n, (off_t)at) : pread(fd, p, n, (off_t)at);
		if (moved < 0 && (errno == EINTR || errno == EAGAIN)) continue;
		if (moved < 0 && errno == EFAULT)
			return slice_error(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SIDE_LOCAL, "the memory is not mapped");
		if (moved < 0) return trouble(e, errno);
		if (moved == 0) return slice_error(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SIDE_REMOTE, "the file was cut short");
		local += (uint64_t)moved, at += (uint64_t)moved, n -= (uint64_t)moved;
	}
	return 0;
}

/* carry carries the most urgent slice out. It returns 0 when none waits. */
static int carry(tent_transport *t) {
	tent_error e;
	tent_slice *s = NULL;
	for (int i = 0; i < CLASSES && !s; i++)
		if ((s = t->queue[i].first)) leave(&t->queue[i], s);
	if (!s) return 0;
	FIND(region, r, t->regions, r->key == s->local_key);
	FIND(file, f, t->files, f->key == s->remote_key && f->of == LINK(s));
	int failed = allowed(s, r, f, &e), fd = f ? f->fd : -1;
	t->running = s;
	pthread_mutex_unlock(&t->mutex);
	uint64_t count = s->pieces.count ? s->pieces.count : 1, each = s->length / count;
	for (uint64_t i = 0; i < count && !failed; i++) {
		uint64_t l = s->pieces.count ? s->pieces.local_at[i] : 0, at = s->pieces.count ? s->pieces.remote_at[i] : 0;
		failed = copy(s, fd, s->local + l, s->remote + at, each, &e);
	}
	pthread_mutex_lock(&t->mutex);
	t->running = NULL;
	end(t, s, failed ? &e : NULL);
	return 1;
}

/* grant makes the files of the oldest wish durable. */
static int grant(tent_transport *t) {
	tent_error e;
	wish *w = t->wishes;
	if (!w) return 0;
	t->wishes = w->next;
	pthread_mutex_unlock(&t->mutex);
	int failed = fdatasync(w->fd) && trouble(&e, errno);
	close(w->fd);
	t->host->done(t->port, w->token, 0, failed ? &e : NULL);
	free(w);
	pthread_mutex_lock(&t->mutex);
	return 1;
}

static void *work(void *of) {
	tent_transport *t = (tent_transport *)of;
	pthread_mutex_lock(&t->mutex);
	while (!t->stop || t->wishes)
		if (!carry(t) && !grant(t)) pthread_cond_wait(&t->work, &t->mutex);
	pthread_mutex_unlock(&t->mutex);
	return NULL;
}

static int disk_check(char *why, size_t n) { (void)why, (void)n; return 0; }

static int disk_open(tent_port *port, const tent_host *host, const tent_peer *self, const char *const *values,
                     tent_transport **out, tent_error *e) {
	tent_transport *t = (tent_transport *)calloc(1, sizeof *t);
	(void)self, (void)values;
	if (!t) return no_memory(e);
	t->port = port, t->host = host;
	pthread_mutex_init(&t->mutex, NULL);
	pthread_cond_init(&t->work, NULL);
	pthread_cond_init(&t->changed, NULL);
	if (pthread_create(&t->worker, NULL, work, t)) {
		free(t);
		return fail(e, TENT_TOO_MANY_REQUESTS, TENT_SCOPE_TRANSPORT, TENT_SIDE_LOCAL, "no thread");
	}
	*out = t;
	return 0;
}

static void disk_info(tent_transport *t, tent_info *info) {
	(void)t;
	info->features = TENT_VECTORS | TENT_SAME_HOST | TENT_FILES;
	info->slice_max = info->slice_best = 1 << 20;
	info->alignment = 1, info->slices_max = SLICES_MAX;
	info->pairs[TENT_CPU][TENT_FILE] = 1;
}

/* Peers never reach memory by this transport, so a region has no descriptor, and revoke has nothing to wait for. */
static int disk_register(tent_transport *t, const tent_region *m, uint64_t limit, uint64_t *key, void *d, size_t *n,
                         tent_error *e) {
	region *r = (region *)calloc(1, sizeof *r);
	(void)limit, (void)d;
	if (!r) return no_memory(e);
	r->address = m->address, r->bytes = m->bytes, r->read_only = m->read_only;
	pthread_mutex_lock(&t->mutex);
	*key = r->key = ++t->last_key;
	r->next = t->regions, t->regions = r;
	pthread_mutex_unlock(&t->mutex);
	*n = 0;
	return 0;
}

static int disk_revoke(tent_transport *t, uint64_t key, const tent_peer *peer, uint64_t epoch, uint64_t limit,
                       tent_error *e) {
	(void)peer, (void)epoch, (void)limit;
	pthread_mutex_lock(&t->mutex);
	FIND(region, r, t->regions, r->key == key);
	pthread_mutex_unlock(&t->mutex);
	return r ? 0 : slice_error(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SIDE_LOCAL, "no region has this key");
}

static int disk_deregister(tent_transport *t, uint64_t key, uint64_t limit, tent_error *e) {
	region *r = NULL;
	(void)limit;
	pthread_mutex_lock(&t->mutex);
	for (region **at = &t->regions; *at && !r; )
		if ((*at)->key == key) r = *at, *at = r->next;
		else at = &(*at)->next;
	while (t->running && t->running->local_key == key) pthread_cond_wait(&t->changed, &t->mutex);
	pthread_mutex_unlock(&t->mutex);
	free(r);
	return r ? 0 : slice_error(e, TENT_ADDRESS_NOT_REGISTERED, TENT_SIDE_LOCAL, "no region has this key");
}

static void rise(tent_transport *t, tie *l) {
	tent_rail_info info;
	memset(&info, 0, sizeof info);
	info.size = sizeof info, info.node = -1;
	info.rail.link = l->number, info.rail.generation = ++l->generation;
	info.local = "page cache", info.remote = l->path;
	t->host->rail_up(t->port, &info);
}

static int disk_attach(tent_transport *t, uint64_t number, const tent_peer *peer, tent_error *e) {
	tie *l = (tie *)calloc(1, sizeof *l);
	if (!l) return no_memory(e);
	if (strncmp(peer->address, "file://", 7)) {
		free(l);
		return fail(e, TENT_INVALID_ARGUMENT, TENT_SCOPE_LINK, TENT_SIDE_REMOTE, "the peer is no file");
	}
	snprintf(l->path, sizeof l->path, "%s", peer->address + 7);
	l->number = number;
	pthread_mutex_lock(&t->mutex);
	l->next = t->links, t->links = l;
	rise(t, l);
	pthread_mutex_unlock(&t->mutex);
	return 0;
}

/* look finds out which file a descriptor is of. */
static int look(int fd, tent_file *f, tent_error *e) {
	struct stat st;
	if (fstat(fd, &st)) return trouble(e, errno);
	if (!S_ISREG(st.st_mode)) return slice_error(e, TENT_INVALID_ARGUMENT, TENT_SIDE_REMOTE, "it is not a regular file");
	f->device = st.st_dev, f->inode = st.st_ino, f->bytes = (uint64_t)st.st_size;
	return 0;
}

static int opened(const char *path, int flags) { return open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600); }

static int disk_open_file(tent_transport *t, const tent_file_spec *spec, tent_file *f, tent_error *e) {
	int flags = spec->read_only ? O_RDONLY : O_RDWR, fd, failed;
	char link[64];
	(void)t;
	if (spec->read_only && (spec->create || spec->truncate))
		return slice_error(e, TENT_INVALID_ARGUMENT, TENT_SIDE_LOCAL, "a file that is opened to be read is neither made nor emptied");
	if ((fd = opened(spec->path, flags | (spec->create ? O_CREAT : 0))) < 0) return trouble(e, errno);
	failed = look(fd, f, e);
	if (!failed && spec->truncate) failed = ftruncate(fd, 0) ? trouble(e, errno) : look(fd, f, e);
	if (!failed && spec->bytes > f->bytes) {
		if (!spec->create) failed = slice_error(e, TENT_INVALID_ARGUMENT, TENT_SIDE_REMOTE, "the file is shorter");
		else if (ftruncate(fd, (off_t)spec->bytes)) failed = trouble(e, errno);
		f->bytes = spec->bytes;
	}
	f->read_only = spec->read_only;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, f->path, sizeof f->path - 1);
	if (!failed && n < 0) failed = trouble(e, errno);
	f->path[n < 0 ? 0 : n] = 0;
	close(fd);
	return failed;
}

/* The link is of this file, or of a folder above it. */
static int below(const char *path, const char *above) {
	size_t n = strlen(above);
	return !strncmp(path, above, n) && (path[n] == 0 || path[n] == '/');
}

static int disk_import_file(tent_transport *t, uint64_t number, const tent_file *meant, uint64_t *key, tent_error *e) {
	tent_file now;
	file *f = (file *)calloc(1, sizeof *f);
	if (!f) return no_memory(e);
	f->fd = opened(meant->path, meant->read_only ? O_RDONLY : O_RDWR);
	int failed = f->fd < 0 ? trouble(e, errno) : look(f->fd, &now, e);
	if (!failed && (now.device != meant->device || now.inode != meant->inode))
		failed = slice_error(e, TENT_STALE_ID, TENT_SIDE_REMOTE, "another file has this name now");
	pthread_mutex_lock(&t->mutex);
	FIND(tie, l, t->links, l->number == number);
	if (!failed && (!l || !below(meant->path, l->path)))
		failed = slice_error(e, TENT_INVALID_ARGUMENT, TENT_SIDE_REMOTE, "the link is of another file");
	if (!failed) {
		f->bytes = meant->bytes, f->read_only = meant->read_only != 0, f->of = l;
		*key = f->key = ++t->last_key;
		f->next = t->files, t->files = f;
	}
	pthread_mutex_unlock(&t->mutex);
	if (failed) {
		if (f->fd >= 0) close(f->fd);
		free(f);
	}
	return failed;
}

/* shut closes the files of a link, or the one with the key. No slice of them is left. */
static void shut(tent_transport *t, const tie *of, uint64_t key) {
	for (file **at = &t->files; *at; ) {
		file *f = *at;
		if (f->of == of && (key == 0 || f->key == key)) *at = f->next, close(f->fd), free(f);
		else at = &f->next;
	}
}

static void disk_forget(tent_transport *t, uint64_t number, uint64_t key) {
	pthread_mutex_lock(&t->mutex);
	FIND(tie, l, t->links, l->number == number);
	if (l && key) shut(t, l, key);
	pthread_mutex_unlock(&t->mutex);
}

/* part takes a link out that is in the list no more. */
static void part(tent_transport *t, tie *l) {
	drop(t, l, NULL, 0);
	while (t->running && LINK(t->running) == l) pthread_cond_wait(&t->changed, &t->mutex);
	shut(t, l, 0);
	free(l);
}

static void disk_detach(tent_transport *t, uint64_t number) {
	pthread_mutex_lock(&t->mutex);
	for (tie **at = &t->links; *at; at = &(*at)->next)
		if ((*at)->number == number) {
			tie *l = *at;
			*at = l->next;
			part(t, l);
			break;
		}
	pthread_mutex_unlock(&t->mutex);
}

static tie *up(tent_transport *t, tent_rail rail) {
	FIND(tie, l, t->links, l->number == rail.link);
	return l && l->generation == rail.generation && rail.index == 0 ? l : NULL;
}

static size_t disk_submit(tent_transport *t, tent_slice *const *slices, size_t n) {
	pthread_mutex_lock(&t->mutex);
	tie *l = up(t, slices[0]->rail);
	size_t taken = 0, room = SLICES_MAX - t->accepted;
	if (l) l->starving |= n > room;
	for (; l && taken < n && taken < room; taken++) {
		tent_slice *s = slices[taken];
		s->scratch[1] = (uintptr_t)l;
		push(&t->queue[s->priority < CLASSES ? s->priority : CLASSES - 1], s);
		t->accepted++;
	}
	if (taken) pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&t->mutex);
	return taken;
}

static void disk_withdraw(tent_transport *t, const uint64_t *cookies, size_t n) {
	pthread_mutex_lock(&t->mutex);
	drop(t, NULL, cookies, n);
	pthread_mutex_unlock(&t->mutex);
}

static void disk_fence(tent_transport *t, tent_rail rail) {
	pthread_mutex_lock(&t->mutex);
	tie *l = up(t, rail);
	if (l) {
		drop(t, l, NULL, 0);
		rise(t, l);
	}
	pthread_mutex_unlock(&t->mutex);
}

static void disk_probe(tent_transport *t, tent_rail rail, uint64_t token) {
	tent_error e;
	fail(&e, TENT_STALE_GENERATION, TENT_SCOPE_RAIL, TENT_SIDE_LOCAL, "the rail is not up in this generation");
	pthread_mutex_lock(&t->mutex);
	int is = up(t, rail) != NULL;
	pthread_mutex_unlock(&t->mutex);
	t->host->done(t->port, token, 0, is ? NULL : &e);
}

static void disk_sync(tent_transport *t, uint64_t number, uint64_t key, uint64_t token) {
	tent_error e;
	wish *w = (wish *)calloc(1, sizeof *w), **last = &t->wishes;
	pthread_mutex_lock(&t->mutex);
	FIND(file, f, t->files, f->key == key && f->of->number == number);
	int wished = w && f && (w->fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0)) >= 0; /* it outlives forget */
	if (wished) {
		w->token = token;
		while (*last) last = &(*last)->next;
		*last = w;
		pthread_cond_signal(&t->work);
	}
	pthread_mutex_unlock(&t->mutex);
	if (wished) return;
	slice_error(&e, f ? TENT_TOO_MANY_REQUESTS : TENT_STALE_ID, TENT_SIDE_LOCAL, f ? "no descriptor" : "no open file has this key");
	t->host->done(t->port, token, 0, &e);
	free(w);
}

static int disk_close(tent_transport *t, uint64_t limit, tent_error *e) {
	(void)limit, (void)e;
	pthread_mutex_lock(&t->mutex);
	for (tie *l; (l = t->links); part(t, l)) t->links = l->next;
	t->stop = 1;
	pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&t->mutex);
	pthread_join(t->worker, NULL);
	for (region *r; (r = t->regions); free(r)) t->regions = r->next;
	pthread_cond_destroy(&t->work);
	pthread_cond_destroy(&t->changed);
	pthread_mutex_destroy(&t->mutex);
	free(t);
	return 0;
}

/* In place of import_region: its links are files. */
static int disk_import(tent_transport *t, uint64_t number, const void *d, size_t n, uint64_t *key, tent_error *e) {
	(void)t, (void)number, (void)d, (void)n, (void)key;
	return fail(e, TENT_INVALID_ARGUMENT, TENT_SCOPE_SLICE, TENT_SIDE_REMOTE, "a file comes by import_file");
}

static const tent_transport_api api = {
	sizeof api, TENT_TRANSPORT_MAJOR, TENT_TRANSPORT_MINOR, "disk", NULL, 0, disk_check, disk_open, disk_info, disk_register,
	disk_revoke, disk_deregister, disk_attach, disk_import, disk_forget, disk_detach, disk_submit, disk_withdraw, disk_fence,
	disk_probe, disk_close, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, disk_open_file, disk_import_file, disk_sync,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
};

/* A tent of version 1.0 knows no files. */
#ifdef __cplusplus
extern "C"
#endif
const tent_transport_api *tent_transport_plugin(uint32_t major, uint32_t minor) {
	return major == TENT_TRANSPORT_MAJOR && minor >= 1 ? &api : NULL;
}

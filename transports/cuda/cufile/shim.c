//go:build cgo

/* Each function is one call of the library. shim.h has the contract. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CF_DECLARE(type, name, arguments) type(*name) arguments;
static struct { CF_SYMBOLS(CF_DECLARE, CF_DECLARE, CF_DECLARE) } cf;
static pid_t loaded_in;

static const cf_error forked = {CF_FORKED, 0};

/* The path comes from the environment of C, which Python's os.environ changes too. It is the process's library: two
 * engines cannot differ in it. Programs with more rights than their user ignore it. */
int cf_load(char *why, size_t bytes) {
	const char *path = secure_getenv("TENT_LIBCUFILE");
	if (!path || !*path)
		path = "libcufile.so.0";
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(why, bytes, "%s", dlerror());
		return -1;
	}
	size_t used = 0;
	int batches = 1;
#define WANT(type, name, arguments)                                                                          \
	if (!(cf.name = (type(*) arguments)dlsym(library, #name)) && used + sizeof #name + 1 < bytes)        \
		used += (size_t)snprintf(why + used, bytes - used, "%s%s", used ? " " : "", #name);
#define BATCH(type, name, arguments) batches &= (cf.name = (type(*) arguments)dlsym(library, #name)) != NULL;
#define FIND(type, name, arguments) cf.name = (type(*) arguments)dlsym(library, #name);
	CF_SYMBOLS(WANT, BATCH, FIND)
	loaded_in = getpid();
	return used ? -2 : batches; /* the library stays: its threads do */
}

/* A process that was forked has the library and not its threads. */
static int is_child(void) { return loaded_in != getpid(); }

/* The library takes EINTR for a mistake of its own, and ends the process (seen with 1.14.1). The runtime of Go sends
 * signals to its threads, so none is delivered during a call. Those of faults are, to the thread that made them. */
static sigset_t quiet(void) {
	sigset_t all, before;
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	sigdelset(&all, SIGABRT);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	return before;
}

static void loud(sigset_t before) { pthread_sigmask(SIG_SETMASK, &before, NULL); }

/* Its opening reads /proc/modules until the end, which never comes where the file is not there: on a kernel without
 * modules, and in some containers (seen with 1.11.1 and 1.14.1). */
static int is_endless(int version) {
	enum { FIRST_SEEN = 1110 };
	FILE *modules = fopen("/proc/modules", "re");
	if (modules)
		fclose(modules);
	return !modules && version >= FIRST_SEEN;
}

cf_error cf_open(cf_properties *properties, int *version) {
	if (is_child())
		return forked;
	if (!cf.cuFileGetVersion || cf.cuFileGetVersion(version).err)
		*version = 0;
	if (is_endless(*version))
		return (cf_error){CF_ENDLESS, 0};
	cf_error e = cf.cuFileDriverOpen();
	return e.err ? e : cf.cuFileDriverGetProperties(properties);
}

cf_error cf_adopt(int fd, void **file) {
	cf_descriptor d = {.type = 1, .handle.fd = fd}; /* CU_FILE_HANDLE_TYPE_OPAQUE_FD */
	return is_child() ? forked : cf.cuFileHandleRegister(file, &d);
}

void cf_drop(void *file) {
	if (!is_child())
		cf.cuFileHandleDeregister(file);
}

cf_error cf_keep(uint64_t base, uint64_t bytes) {
	return is_child() ? forked : cf.cuFileBufRegister((void *)base, bytes, 0);
}

cf_error cf_unkeep(uint64_t base) { return is_child() ? forked : cf.cuFileBufDeregister((void *)base); }

/* A result of -1 means errno, any other negative one is a CUfileOpError. */
int64_t cf_move(int write, void *file, uint64_t base, uint64_t offset, int64_t at, uint64_t bytes) {
	if (is_child())
		return -ECHILD; /* as good a number as any: the library does not give it */
	sigset_t before = quiet();
	errno = 0;
	ssize_t moved = write ? cf.cuFileWrite(file, (void *)base, bytes, at, (off_t)offset)
	                      : cf.cuFileRead(file, (void *)base, bytes, at, (off_t)offset);
	loud(before); /* it leaves errno alone */
	return moved == -1 ? -(int64_t)(errno ? errno : EIO) : moved;
}

cf_error cf_set_up(unsigned entries, void **batch) {
	return is_child() ? forked : cf.cuFileBatchIOSetUp(batch, entries);
}

cf_error cf_post(void *batch, cf_io *io) {
	sigset_t before = quiet();
	cf_error e = is_child() ? forked : cf.cuFileBatchIOSubmit(batch, 1, io, 0);
	loud(before);
	return e;
}

cf_error cf_status(void *batch, unsigned least, unsigned most, cf_answer *answer, int64_t limit_ns) {
	struct timespec limit = {.tv_sec = limit_ns / 1000000000, .tv_nsec = limit_ns % 1000000000};
	sigset_t before = quiet();
	answer->count = is_child() ? 0 : most;
	cf_error e =
	    is_child() ? forked : cf.cuFileBatchIOGetStatus(batch, least, &answer->count, answer->events, &limit);
	loud(before);
	return e;
}

/* Nothing of the batch is under way. One that was spoiled is cancelled first: it may hold an entry that was refused. */
void cf_end(void *batch, int spoiled) {
	if (is_child())
		return;
	if (spoiled)
		cf.cuFileBatchIOCancel(batch);
	cf.cuFileBatchIODestroy(batch);
}

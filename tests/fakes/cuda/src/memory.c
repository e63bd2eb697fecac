/* Memory: allocations, addresses, pinned pages of the host. */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x74656e7466616b65UL

struct range *fake_ranges;
static uint64_t buffers, nonces;

static uint64_t rounded(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }

static struct physical *map(int fd, int owner, uint64_t at, uint64_t size) {
	uint64_t whole = rounded(size, PAGE) + PAGE;
	char *shadow = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
	if (shadow == MAP_FAILED)
		return NULL;
	struct physical *p = calloc(1, sizeof *p);
	p->fd = fd, p->owner = owner, p->at = at, p->size = size, p->id = ++buffers;
	p->shadow = shadow, p->trailer = (struct trailer *)(shadow + whole - PAGE), p->references = 1;
	return p;
}

/* One sparse file has the bytes of all allocations that are not of the VMM: they take no descriptors, as on hardware. */
static int arena = -1;
static uint64_t arena_end;

static struct physical *in_arena(uint64_t size) {
	if (arena < 0 && ((arena = memfd_create("fakecuda", MFD_CLOEXEC)) < 0 || ftruncate(arena, 1L << 42)))
		return NULL;
	uint64_t at = arena_end;
	arena_end += rounded(size, PAGE) + PAGE;
	return map(arena, 0, at, size);
}

static struct physical *in_file(uint64_t size) {
	int fd = memfd_create("fakecuda", MFD_CLOEXEC);
	struct physical *p = NULL;
	if (fd >= 0 && !ftruncate(fd, (off_t)(rounded(size, PAGE) + PAGE)))
		p = map(fd, 0, 0, size);
	if (!p)
		close(fd);
	else
		fake_stats.files++;
	return p;
}

struct physical *fake_physical(uint64_t size, int device, int vmm, int types) {
	struct physical *p = vmm ? in_file(size) : in_arena(size);
	if (!p)
		return NULL;
	memset(p->shadow, 0xc3, size); /* memory of a device is not zeroed */
	*p->trailer = (struct trailer){MAGIC, size, ((uint64_t)getpid() << 32) + ++nonces, device, vmm, types, 0};
	return p;
}

/* Takes over a descriptor of an allocation, of this or another process; size 0 means all of the file. */
struct physical *fake_adopt(int fd, int owner, uint64_t at, uint64_t size) {
	struct stat st;
	if (fstat(fd, &st) || st.st_size < (off_t)(2 * PAGE))
		return NULL;
	off_t end = size ? (off_t)(at + rounded(size, PAGE)) : st.st_size - (off_t)PAGE;
	struct trailer t;
	if (pread(fd, &t, sizeof t, end) != sizeof t || t.magic != MAGIC || (size && t.size != size))
		return NULL;
	struct physical *p = map(fd, owner, at, t.size);
	if (p && size) { /* the mapping is enough: it is exported no further */
		close(fd);
		p->fd = -1;
	} else if (p) {
		fake_stats.files++;
	}
	return p;
}

void fake_drop(struct physical *p) {
	if (--p->references)
		return;
	munmap(p->shadow, rounded(p->size, PAGE) + PAGE);
	if (p->fd == arena && !p->owner) {
		/* An importer may still map the page of the trailer, with its sign that the memory is freed. */
		fallocate(arena, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->at, (off_t)rounded(p->size, PAGE));
	} else if (p->fd >= 0) {
		close(p->fd);
		fake_stats.files--;
	}
	free(p);
}

/* The innermost range with an address; mappings stand before their reservation. */
struct range *fake_find(uint64_t address) {
	for (struct range *r = fake_ranges; r; r = r->next)
		if (address >= r->start && address < r->start + r->size)
			return r;
	return NULL;
}

struct range *fake_add(uint64_t start, uint64_t size, enum kind kind, int device) {
	struct range *r = calloc(1, sizeof *r);
	r->start = start, r->size = size, r->kind = kind, r->device = device;
	r->next = fake_ranges;
	fake_ranges = r;
	return r;
}

void fake_remove(struct range *r) {
	for (struct range **at = &fake_ranges; *at; at = &(*at)->next)
		if (*at == r) {
			*at = r->next;
			break;
		}
	if (r->physical)
		fake_drop(r->physical);
	if (r->pages)
		munmap(r->pages - r->start % PAGE, rounded(r->start % PAGE + r->size, PAGE));
	free(r);
}

/* Address space that was given back: the driver keeps it, and gives the same addresses again. */
static struct hole {
	uint64_t start, size;
	struct hole *next;
} *holes;

void fake_release(uint64_t start, uint64_t size) {
	struct hole *h = malloc(sizeof *h);
	*h = (struct hole){start, rounded(size, PAGE), holes};
	holes = h;
}

/* Address space that no processor can touch, aligned as that of the vendor. */
uint64_t fake_reserve(uint64_t size) {
	for (struct hole **at = &holes; *at; at = &(*at)->next)
		if ((*at)->size == rounded(size, PAGE)) {
			struct hole *h = *at;
			uint64_t start = h->start;
			*at = h->next;
			free(h);
			return start;
		}
	uint64_t whole = rounded(size, PAGE) + GRANULARITY;
	char *space = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (space == MAP_FAILED)
		return 0;
	uint64_t start = rounded((uint64_t)space, GRANULARITY), end = start + rounded(size, PAGE);
	if (start > (uint64_t)space)
		munmap(space, start - (uint64_t)space);
	if ((uint64_t)space + whole > end)
		munmap((void *)end, (uint64_t)space + whole - end);
	return start;
}

static int out_of_reach(struct range *r, int device) {
	return r->kind == RESERVED || (r->kind == MAPPED && !(r->access & 1u << device));
}

/* Looks up one end of a copy: up to *bytes that lie in one piece. */
static int resolve(uint64_t address, int device, uint64_t *bytes, char **at, struct physical **holds, int *pageable) {
	struct range *r = fake_find(address);
	*holds = NULL;
	if (r && out_of_reach(r, device))
		return INVALID_VALUE;
	if (!r || r->kind == PINNED) {
		*pageable |= !r;
		*at = r && r->pages ? r->pages + (address - r->start) : (char *)address;
		if (r && (*bytes > r->start + r->size - address || (!r->ours && !fake_setting("HOSTPTR", 1))))
			return INVALID_VALUE;
		for (struct range *o = fake_ranges; o; o = o->next) /* up to the next range that the driver knows */
			if (o->start > address && o->start - address < *bytes)
				return INVALID_VALUE;
		return OK;
	}
	uint64_t left = r->start + r->size - address;
	if (*bytes > left)
		*bytes = left;
	*at = r->physical->shadow + (address - r->start);
	*holds = r->physical;
	return OK;
}

/* Cuts a copy where mappings end. A range that leaves its allocation into nothing is refused, as a driver that knows
 * all of its addresses does. */
int fake_segments(uint64_t to, uint64_t from, uint64_t bytes, int device, struct segment **out, size_t *count,
                  int *pageable) {
	*out = NULL, *count = 0;
	int ends[2] = {!!fake_find(to), !!fake_find(from)};
	while (bytes) {
		struct segment s = {.bytes = bytes};
		char *source;
		if ((ends[0] && !fake_find(to)) || (ends[1] && !fake_find(from)) ||
		    resolve(to, device, &s.bytes, &s.to, &s.holds[0], pageable) ||
		    resolve(from, device, &s.bytes, &source, &s.holds[1], pageable)) {
			free(*out);
			*out = NULL;
			return INVALID_VALUE;
		}
		s.from = source;
		*out = realloc(*out, (*count + 1) * sizeof s);
		(*out)[(*count)++] = s;
		to += s.bytes, from += s.bytes, bytes -= s.bytes;
	}
	for (size_t i = 0; i < *count; i++)
		for (int side = 0; side < 2; side++)
			if ((*out)[i].holds[side])
				(*out)[i].holds[side]->references++;
	return OK;
}

enum { PLAIN, OF_MANAGED, OF_POOL };

static int allocate(const char *function, uint64_t *address, size_t size, int way) {
	struct context *current;
	int result = fake_enter_current(function, &current);
	if (result)
		return result;
	if (!size)
		return fake_leave(INVALID_VALUE);
	if (size > (size_t)fake_setting("BYTES", 1L << 32))
		return fake_leave(OUT_OF_MEMORY);
	struct physical *p = fake_physical(size, current->device, 0, 0);
	if (!p)
		return fake_leave(OUT_OF_MEMORY);
	if (!(*address = fake_reserve(size))) {
		fake_drop(p);
		return fake_leave(OUT_OF_MEMORY);
	}
	struct range *r = fake_add(*address, size, DEVICE, current->device);
	r->physical = p, r->managed = way == OF_MANAGED, r->pooled = way == OF_POOL;
	fake_stats.allocations++;
	return fake_leave(OK);
}

API int cuMemAlloc_v2(uint64_t *address, size_t size) { return allocate("cuMemAlloc_v2", address, size, PLAIN); }

/* Its pages stay on the device here, where no processor touches them. CU_MEM_ATTACH_GLOBAL is 1, HOST 2. */
API int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
	return flags == 1 || flags == 2 ? allocate("cuMemAllocManaged", address, size, OF_MANAGED) : INVALID_VALUE;
}

/* Of the device's default pool. The stream may be any: it is there at once here. */
API int cuMemAllocAsync(uint64_t *address, size_t size, void *stream) {
	(void)stream;
	return allocate("cuMemAllocAsync", address, size, OF_POOL);
}

/* Freeing waits for the work of the process, as the vendor's cudaFree does. */
API int cuMemFree_v2(uint64_t address) {
	struct context *current;
	int result = fake_enter_current("cuMemFree_v2", &current);
	if (result)
		return result;
	fake_drain();
	struct range *r = fake_find(address);
	if (!r || r->kind != DEVICE || r->start != address)
		return fake_leave(INVALID_VALUE);
	r->physical->trailer->freed = 1;
	fake_release(address, r->size);
	fake_remove(r);
	fake_stats.allocations--;
	return fake_leave(OK);
}

API int cuMemGetInfo_v2(size_t *left, size_t *total) {
	struct context *current;
	int result = fake_enter_current("cuMemGetInfo_v2", &current);
	if (result)
		return result;
	*left = *total = (size_t)fake_setting("BYTES", 1L << 32);
	return fake_leave(OK);
}

/* Of a mapping of the VMM it is one mapping, not the reservation. */
API int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
	struct context *current;
	int result = fake_enter_current("cuMemGetAddressRange_v2", &current);
	if (result)
		return result;
	struct range *r = fake_find(address);
	if (!r || r->kind == RESERVED || r->kind == PINNED)
		return fake_leave(INVALID_VALUE);
	if (base)
		*base = r->start;
	if (size)
		*size = r->size;
	return fake_leave(OK);
}

/* One attribute; memory that the driver does not know gives zeros, and -2 as its device. */
static void attribute(struct range *r, int which, void *into) {
	int known = r && r->kind != RESERVED, device = known && r->kind != PINNED;
	int vmm = device && r->physical->trailer->vmm;
	switch (which) {
	case 1: /* context; NULL for memory of the VMM and of pools */
		*(void **)into = device && !vmm && !r->pooled ? &fake_contexts[r->device] : NULL;
		break;
	case 2: /* memory type */
		*(unsigned *)into = !known ? 0 : device ? 2 : 1;
		break;
	case 7: /* buffer id */
		*(uint64_t *)into = device ? r->physical->id : 0;
		break;
	case 8: /* managed */
		*(int *)into = device && r->managed; /* truth values are int */
		break;
	case 9: /* device */
		*(int *)into = !known ? -2 : r->device;
		break;
	case 10: /* legacy IPC */
		*(int *)into = device && !vmm && r->kind == DEVICE && !r->managed && !r->pooled;
		break;
	case 11: /* the start of its range, 12: its size */
		*(uint64_t *)into = known ? r->start : 0;
		break;
	case 12:
		*(uint64_t *)into = known ? r->size : 0;
		break;
	case 14: /* handle types */
		*(uint64_t *)into = vmm ? (uint64_t)r->physical->trailer->types : 0;
		break;
	case 17: /* pool */
		*(void **)into = device && r->pooled ? &fake_contexts[r->device] : NULL; /* any number but 0 */
		break;
	}
}

API int cuPointerGetAttributes(unsigned count, int *which, void **into, uint64_t address) {
	int result = fake_enter("cuPointerGetAttributes");
	if (result)
		return result;
	struct range *r = fake_find(address);
	for (unsigned i = 0; i < count; i++)
		attribute(r, which[i], into[i]);
	return fake_leave(OK);
}

API int cuPointerGetAttribute(void *into, int which, uint64_t address) { /* fails where the plural gives zeros */
	int result = fake_enter("cuPointerGetAttribute");
	if (result)
		return result;
	struct range *r = fake_find(address);
	if (!r || r->kind == RESERVED)
		return fake_leave(INVALID_VALUE);
	attribute(r, which, into);
	return fake_leave(OK);
}

/* Whether all of a range is mapped, and can be written where it must. */
static int mapped(uint64_t address, size_t size, int writable) {
	FILE *maps = fopen("/proc/self/maps", "re");
	uint64_t start, end, at = address;
	char line[512], may[5];
	while (maps && at < address + size && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %4s", &start, &end, may) == 3 && start <= at && at < end && may[0] == 'r' &&
		    (may[1] == 'w' || !writable))
			at = end;
	if (maps)
		fclose(maps);
	return at >= address + size;
}

API int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
	struct context *current;
	int result = fake_enter_current("cuMemHostRegister_v2", &current);
	if (result)
		return result;
	if (!size || flags > 15 || !mapped((uint64_t)address, size, !(flags & 8))) /* READ_ONLY is 8 */
		return fake_leave(INVALID_VALUE);
	for (struct range *r = fake_ranges; r; r = r->next)
		if ((uint64_t)address < r->start + r->size && r->start < (uint64_t)address + size)
			return fake_leave(r->kind == PINNED ? HOST_ALREADY_REGISTERED : INVALID_VALUE);
	struct range *r = fake_add((uint64_t)address, size, PINNED, current->device);
	uint64_t into = (uint64_t)address % PAGE;
	char *pages = mremap((char *)address - into, 0, rounded(into + size, PAGE), MREMAP_MAYMOVE); /* if they are shared */
	r->pages = pages == MAP_FAILED ? NULL : pages + into;
	fake_stats.pinned++;
	return fake_leave(OK);
}

API int cuMemHostUnregister(void *address) {
	struct context *current;
	int result = fake_enter_current("cuMemHostUnregister", &current);
	if (result)
		return result;
	fake_drain();
	struct range *r = fake_find((uint64_t)address);
	if (!r || r->kind != PINNED || r->ours || r->start != (uint64_t)address)
		return fake_leave(HOST_NOT_REGISTERED);
	fake_remove(r);
	fake_stats.pinned--;
	return fake_leave(OK);
}

API int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
	struct context *current;
	int result = fake_enter_current("cuMemHostAlloc", &current);
	if (result)
		return result;
	if (!size || flags > 7)
		return fake_leave(INVALID_VALUE);
	void *at = mmap(NULL, rounded(size, PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return fake_leave(OUT_OF_MEMORY);
	fake_add((uint64_t)at, size, PINNED, current->device)->ours = 1;
	fake_stats.pinned++;
	*address = at;
	return fake_leave(OK);
}

/* Unified addresses: the host's is the device's. */
API int cuMemHostGetDevicePointer_v2(uint64_t *address, void *host, unsigned flags) {
	struct context *current;
	int result = fake_enter_current("cuMemHostGetDevicePointer_v2", &current);
	if (result)
		return result;
	struct range *r = fake_find((uint64_t)host);
	if (flags || !r || r->kind != PINNED)
		return fake_leave(INVALID_VALUE);
	*address = (uint64_t)host;
	return fake_leave(OK);
}

API int cuMemFreeHost(void *address) {
	struct context *current;
	int result = fake_enter_current("cuMemFreeHost", &current);
	if (result)
		return result;
	fake_drain();
	struct range *r = fake_find((uint64_t)address);
	if (!r || r->kind != PINNED || !r->ours || r->start != (uint64_t)address)
		return fake_leave(INVALID_VALUE);
	munmap(address, rounded(r->size, PAGE));
	fake_remove(r);
	fake_stats.pinned--;
	return fake_leave(OK);
}

/* For tests: bytes of a device as its owner sees them, without a copy of the driver's. 0 on success. */
API int fakecuda_peek(void *into, uint64_t address, uint64_t bytes, int store) {
	pthread_mutex_lock(&fake_lock);
	fake_drain();
	for (int result = OK; bytes;) {
		uint64_t some = bytes;
		char *at;
		struct physical *holds;
		int pageable = 0;
		struct range *r = fake_find(address);
		if (!r || r->kind == RESERVED || r->kind == PINNED)
			return fake_leave(INVALID_VALUE);
		unsigned access = r->access;
		r->access = ~0u;
		result = resolve(address, 0, &some, &at, &holds, &pageable);
		r->access = access;
		if (result)
			return fake_leave(result);
		memcpy(store ? at : into, store ? into : at, some);
		into = (char *)into + some, address += some, bytes -= some;
	}
	return fake_leave(OK);
}

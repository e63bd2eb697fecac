/* Memory that other processes map: legacy handles, the VMM with file descriptors and fabric handles, dma-bufs. */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The 64 bytes of a handle. The descriptor is opened by /proc: it works while its process lives. */
struct handle {
	uint64_t magic, nonce, size, offset;
	int32_t pid, fd;
	uint64_t address; /* in the owner */
	int32_t unused[4];
};
_Static_assert(sizeof(struct handle) == 64, "CUipcMemHandle");
#define LEGACY 0x6c65676163790001UL
#define FABRIC 0x6661627269630001UL

struct location { int type, id; };
struct properties {
	int type, types;
	struct location location;
	void *security;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
_Static_assert(sizeof(struct properties) == 32, "CUmemAllocationProp");
struct access { struct location location; int flags; };
_Static_assert(sizeof(struct access) == 12, "CUmemAccessDesc");

API int cuIpcGetMemHandle(struct handle *h, uint64_t address) {
	struct context *current;
	int result = fake_enter_current("cuIpcGetMemHandle", &current);
	if (result)
		return result;
	struct range *r = fake_find(address);
	if (!r || r->kind != DEVICE || r->managed || r->pooled) /* memory of the VMM has none, too */
		return fake_leave(INVALID_VALUE);
	memset(h, 0, sizeof *h);
	h->magic = LEGACY, h->nonce = r->physical->trailer->nonce, h->size = r->size;
	h->pid = getpid(), h->fd = r->physical->fd, h->offset = r->physical->at, h->address = r->start;
	return fake_leave(OK);
}

/* Opens the descriptor of another process, if it still is the allocation that the handle names. */
static struct physical *reopen(const struct handle *h) {
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	int legacy = h->magic == LEGACY;
	struct physical *p = fake_adopt(fd, h->pid, legacy ? h->offset : 0, legacy ? h->size : 0);
	if (!p) {
		close(fd);
		return NULL;
	}
	if (p->trailer->nonce != h->nonce || p->trailer->freed) {
		fake_drop(p);
		return NULL;
	}
	return p;
}

API int cuIpcOpenMemHandle_v2(uint64_t *address, struct handle h, unsigned flags) {
	struct context *current;
	int result = fake_enter_current("cuIpcOpenMemHandle_v2", &current);
	if (result)
		return result;
	if (flags != 1 || h.magic != LEGACY) /* LAZY_ENABLE_PEER_ACCESS is mandatory */
		return fake_leave(INVALID_VALUE);
	if (h.pid == getpid() && !fake_setting("OWN", 0))
		return fake_leave(INVALID_CONTEXT);
	for (struct range *r = fake_ranges; r; r = r->next)
		if (r->kind == IMPORTED && r->context == current && r->physical->trailer->nonce == h.nonce) {
			r->opened++;
			*address = r->start;
			return fake_leave(OK);
		}
	for (struct range *r = fake_ranges; r; r = r->next)
		if (r->kind == IMPORTED && r->context == current && r->physical->owner == h.pid &&
		    h.address < r->origin + r->size && r->origin < h.address + h.size)
			return fake_leave(ALREADY_MAPPED);
	struct physical *p = reopen(&h);
	if (!p)
		return fake_leave(INVALID_HANDLE);
	if (!(*address = fake_reserve(h.size))) {
		fake_drop(p);
		return fake_leave(OUT_OF_MEMORY);
	}
	if (current->device != p->trailer->device && !fake_linked(current->device, p->trailer->device)) {
		fake_release(*address, h.size);
		fake_drop(p);
		return fake_leave(PEER_UNSUPPORTED);
	}
	struct range *r = fake_add(*address, h.size, IMPORTED, current->device);
	r->physical = p, r->context = current, r->opened = 1, r->origin = h.address;
	fake_stats.imports++;
	return fake_leave(OK);
}

API int cuIpcCloseMemHandle(uint64_t address) {
	struct context *current;
	int result = fake_enter_current("cuIpcCloseMemHandle", &current);
	if (result)
		return result;
	struct range *r = fake_find(address);
	if (!r || r->kind != IMPORTED || r->start != address)
		return fake_leave(INVALID_VALUE);
	if (r->context != current)
		return fake_leave(INVALID_CONTEXT);
	if (--r->opened)
		return fake_leave(OK);
	fake_release(r->start, r->size);
	fake_remove(r);
	fake_stats.imports--;
	return fake_leave(OK);
}

static int imex(void) { return (int)fake_setting("IMEX", 0); }

API int cuMemGetAllocationGranularity(size_t *bytes, const struct properties *p, int option) {
	int result = fake_enter("cuMemGetAllocationGranularity");
	(void)option;
	if (result)
		return result;
	if (p->type != 1 || p->location.type != 1 || p->location.id < 0 || p->location.id >= fake_devices)
		return fake_leave(INVALID_VALUE);
	*bytes = GRANULARITY;
	return fake_leave(OK);
}

API int cuMemCreate(struct physical **handle, size_t size, const struct properties *p, uint64_t flags) {
	int result = fake_enter("cuMemCreate");
	if (result)
		return result;
	if (flags || p->type != 1 || p->location.type != 1 || p->location.id < 0 || p->location.id >= fake_devices ||
	    !size || size % GRANULARITY)
		return fake_leave(INVALID_VALUE);
	if (p->types & FLAG_FABRIC && !fake_setting("FABRIC", 1))
		return fake_leave(NOT_SUPPORTED);
	if (p->types & FLAG_FABRIC && !imex())
		return fake_leave(NOT_PERMITTED); /* also where attribute 128 is 1 */
	if (!(*handle = fake_physical(size, p->location.id, 1, p->types)))
		return fake_leave(OUT_OF_MEMORY);
	(*handle)->handles = 1;
	fake_stats.handles++;
	return fake_leave(OK);
}

API int cuMemRelease(struct physical *handle) {
	int result = fake_enter("cuMemRelease");
	if (result)
		return result;
	if (!handle->handles)
		return fake_leave(INVALID_VALUE);
	handle->handles--;
	fake_stats.handles--;
	fake_drop(handle);
	return fake_leave(OK);
}

API int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t hint, uint64_t flags) {
	int result = fake_enter("cuMemAddressReserve");
	(void)hint;
	if (result)
		return result;
	if (flags || alignment & (alignment - 1) || alignment > GRANULARITY || !size || size % GRANULARITY)
		return fake_leave(INVALID_VALUE);
	if (!(*address = fake_reserve(size)))
		return fake_leave(OUT_OF_MEMORY);
	struct range *r = fake_add(*address, size, RESERVED, -1);
	struct range **at = &fake_ranges; /* behind all mappings, which must be found first */
	*at = r->next;
	while (*at)
		at = &(*at)->next;
	*at = r;
	r->next = NULL;
	fake_stats.reservations++;
	return fake_leave(OK);
}

static struct range *reserved(uint64_t address, size_t size) {
	for (struct range *r = fake_ranges; r; r = r->next)
		if (r->kind == RESERVED && address >= r->start && address + size <= r->start + r->size)
			return r;
	return NULL;
}

API int cuMemAddressFree(uint64_t address, size_t size) {
	int result = fake_enter("cuMemAddressFree");
	if (result)
		return result;
	struct range *r = reserved(address, size);
	if (!r || r->start != address || r->size != size || fake_find(address) != r)
		return fake_leave(INVALID_VALUE);
	fake_release(address, size);
	fake_remove(r);
	fake_stats.reservations--;
	return fake_leave(OK);
}

API int cuMemMap(uint64_t address, size_t size, size_t offset, struct physical *handle, uint64_t flags) {
	int result = fake_enter("cuMemMap");
	if (result)
		return result;
	if (flags || !reserved(address, size) || !handle->handles || offset || size > handle->size || !size ||
	    size % GRANULARITY || address % GRANULARITY)
		return fake_leave(INVALID_VALUE);
	for (struct range *r = fake_ranges; r; r = r->next)
		if (r->kind == MAPPED && address < r->start + r->size && r->start < address + size)
			return fake_leave(ALREADY_MAPPED);
	struct range *r = fake_add(address, size, MAPPED, handle->trailer->device);
	r->physical = handle;
	handle->references++;
	fake_stats.mappings++;
	return fake_leave(OK);
}

API int cuMemUnmap(uint64_t address, size_t size) {
	int result = fake_enter("cuMemUnmap");
	if (result)
		return result;
	fake_drain();
	while (size) {
		struct range *r = fake_find(address);
		if (!r || r->kind != MAPPED || r->start != address || r->size > size)
			return fake_leave(INVALID_VALUE);
		address += r->size, size -= r->size;
		fake_remove(r);
		fake_stats.mappings--;
	}
	return fake_leave(OK);
}

API int cuMemSetAccess(uint64_t address, size_t size, const struct access *list, size_t count) {
	int result = fake_enter("cuMemSetAccess");
	if (result)
		return result;
	for (size_t i = 0; i < count; i++) /* NONE, READ, READWRITE */
		if (list[i].flags != 0 && list[i].flags != 1 && list[i].flags != 3)
			return fake_leave(INVALID_VALUE);
	if (!count || !size)
		return fake_leave(INVALID_VALUE);
	for (uint64_t at = address; at < address + size;) {
		struct range *r = fake_find(at); /* owner: -1 came as a descriptor, so from this host */
		if (!r || r->kind != MAPPED)
			return fake_leave(INVALID_VALUE);
		for (size_t i = 0; i < count; i++) {
			int id = list[i].location.id; /* a device without a way there fails the whole call */
			if (list[i].location.type != 1 || id < 0 || id >= fake_devices ||
			    (id != r->device && r->physical->owner <= 0 && !fake_linked(id, r->device)))
				return fake_leave(INVALID_VALUE);
			r->access = list[i].flags == 3 ? r->access | 1u << id : r->access & ~(1u << id);
		}
		at = r->start + r->size;
	}
	return fake_leave(OK);
}

API int cuMemRetainAllocationHandle(struct physical **handle, void *address) {
	int result = fake_enter("cuMemRetainAllocationHandle");
	if (result)
		return result;
	struct range *r = fake_find((uint64_t)address);
	if (!r || r->kind != MAPPED)
		return fake_leave(INVALID_VALUE);
	*handle = r->physical;
	r->physical->references++;
	r->physical->handles++;
	fake_stats.handles++;
	return fake_leave(OK);
}

API int cuMemGetAllocationPropertiesFromHandle(struct properties *p, struct physical *handle) {
	int result = fake_enter("cuMemGetAllocationPropertiesFromHandle");
	if (result)
		return result;
	*p = (struct properties){.type = 1, .types = handle->trailer->types,
		.location = {1, handle->trailer->device}, .rdma = 1};
	return fake_leave(OK);
}

API int cuMemExportToShareableHandle(void *into, struct physical *handle, int type, uint64_t flags) {
	int result = fake_enter("cuMemExportToShareableHandle");
	if (result)
		return result;
	if (flags || (type != FLAG_POSIX_FD && type != FLAG_FABRIC) || !(handle->trailer->types & type))
		return fake_leave(INVALID_VALUE);
	if (type == FLAG_POSIX_FD) {
		int fd = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			return fake_leave(304);
		*(int *)into = fd;
		return fake_leave(OK);
	}
	struct handle *h = into;
	memset(h, 0, sizeof *h);
	h->magic = FABRIC, h->nonce = handle->trailer->nonce, h->size = handle->size, h->offset = (uint64_t)imex();
	h->pid = handle->owner ? handle->owner : getpid(), h->fd = handle->fd;
	return fake_leave(OK);
}

/* A file descriptor comes as the value of the pointer, a fabric handle behind it. The descriptor stays the caller's. */
API int cuMemImportFromShareableHandle(struct physical **handle, void *from, int type) {
	int result = fake_enter("cuMemImportFromShareableHandle");
	if (result)
		return result;
	struct physical *p = NULL;
	if (type == FLAG_POSIX_FD) {
		int fd = fcntl((int)(intptr_t)from, F_DUPFD_CLOEXEC, 0);
		if (fd >= 0 && !(p = fake_adopt(fd, -1, 0, 0)))
			close(fd);
	} else if (type == FLAG_FABRIC) {
		struct handle h;
		memcpy(&h, from, sizeof h);
		if (!imex() || h.offset != (uint64_t)imex())
			return fake_leave(NOT_PERMITTED); /* exporter and importer need the same IMEX domain */
		if (h.magic == FABRIC)
			p = reopen(&h);
	}
	if (!p)
		return fake_leave(INVALID_VALUE);
	p->handles = 1;
	fake_stats.handles++;
	*handle = p;
	return fake_leave(OK);
}

/* The descriptor has the bytes of all of the allocation; a real one begins at the address. */
API int cuMemGetHandleForAddressRange(void *into, uint64_t address, size_t size, int type, uint64_t flags) {
	struct context *current;
	int result = fake_enter_current("cuMemGetHandleForAddressRange", &current);
	if (result)
		return result;
	struct range *r = fake_find(address);
	if (type != 1 || flags || address % PAGE || size % PAGE || !r || r->kind == PINNED || r->kind == RESERVED ||
	    r->managed || r->pooled || address + size > r->start + (r->size + PAGE - 1) / PAGE * PAGE)
		return fake_leave(INVALID_VALUE);
	if (!fake_setting("DMABUF", 1))
		return fake_leave(NOT_SUPPORTED);
	/* A dma-buf begins with its range. A file cannot, so the position of the descriptor says where the range begins. */
	char name[32];
	snprintf(name, sizeof name, "/proc/self/fd/%d", r->physical->fd);
	int fd = open(name, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return fake_leave(304);
	lseek(fd, (off_t)(r->physical->at + (address - r->start)), SEEK_SET);
	*(int *)into = fd;
	return fake_leave(OK);
}

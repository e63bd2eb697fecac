//go:build cgo

/* Memory of devices in other processes. A legacy handle names an allocation of cuMemAlloc; memory of the VMM is named by
 * a descriptor for each of its chunks, or a fabric handle. shim.h has the contract. */
#include "shim.h"
#include "inside.h"

#include <string.h>

static tc_result share_chunk(uint64_t address, int fabric, tc_block *block) {
	NEED(cuMemRetainAllocationHandle);
	NEED(cuMemRelease);
	NEED(cuMemGetAllocationPropertiesFromHandle);
	NEED(cuMemExportToShareableHandle);
	uint64_t allocation;
	tc_result r = CALL(cuMemRetainAllocationHandle, &allocation, (void *)address);
	if (r.code)
		return r;
	tc_properties p;
	memset(&p, 0, sizeof p);
	r = CALL(cuMemGetAllocationPropertiesFromHandle, &p, allocation);
	if (!r.code && fabric && !(p.types & FABRIC))
		r = ended(TC_NO_HANDLE, "cuMemExportToShareableHandle");
	else if (!r.code && !fabric && p.types & POSIX_FD)
		r = CALL(cuMemExportToShareableHandle, &block->fd, allocation, POSIX_FD, 0);
	else if (!r.code && p.types & FABRIC && !(r = CALL(cuMemExportToShareableHandle, &block->handle, allocation, FABRIC,
							    0)).code)
		block->fabric = 1;
	else if (!r.code)
		r = ended(TC_PRIVATE, "cuMemExportToShareableHandle");
	cu.cuMemRelease(allocation);
	return r;
}

static tc_result share_legacy(tc_block *block) {
	NEED(cuIpcGetMemHandle);
	return CALL(cuIpcGetMemHandle, &block->handle, block->base);
}

/* Memory of cuMemAlloc is none of the VMM's, and has no handle for other hosts. */
static tc_result share_any(uint64_t address, int fabric, tc_block *block) {
	if (fabric) {
		tc_result r = share_chunk(address, 1, block);
		return r.code == TC_INVALID_VALUE ? ended(TC_NO_HANDLE, r.call) : r;
	}
	tc_result legacy = share_legacy(block);
	if (!legacy.code) /* memory of the VMM has none */
		return legacy;
	tc_result r = share_chunk(address, 0, block);
	if (legacy.code == TC_INVALID_VALUE && r.code == TC_INVALID_VALUE)
		return ended(TC_OWN, legacy.call);
	return r.code == TC_INVALID_VALUE || r.code == TC_NOT_SUPPORTED ? legacy : r;
}

tc_result tc_share(int device, uint64_t address, int fabric, tc_block *block) {
	memset(block, 0, sizeof *block);
	block->fd = -1;
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	size_t bytes = 0;
	r = CALL(cuMemGetAddressRange_v2, &block->base, &bytes, address);
	block->bytes = bytes;
	if (!r.code)
		r = share_any(address, fabric, block);
	pop(&before);
	return r;
}

/* Without the flag the driver refuses. */
tc_result tc_open(int device, const void *handle, uint64_t *address) {
	NEED(cuIpcOpenMemHandle_v2);
	tc_handle h;
	memcpy(&h, handle, sizeof h);
	VISIT(device, CALL(cuIpcOpenMemHandle_v2, address, h, TC_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

tc_result tc_close(int device, uint64_t address) {
	NEED(cuIpcCloseMemHandle);
	VISIT(device, CALL(cuIpcCloseMemHandle, address));
}

tc_result tc_reserve(uint64_t bytes, uint64_t *address) {
	NEED(cuMemAddressReserve);
	NEED(cuMemAddressFree);
	if (forked())
		return ended(TC_FORKED, "cuMemAddressReserve");
	return CALL(cuMemAddressReserve, address, bytes, 0, 0, 0);
}

/* A descriptor goes as the value of the pointer, a fabric handle behind it. The mapping keeps the allocation, so its handle is given back. */
tc_result tc_map(uint64_t address, uint64_t bytes, int fd, const void *fabric) {
	NEED(cuMemImportFromShareableHandle);
	NEED(cuMemMap);
	NEED(cuMemRelease);
	if (forked())
		return ended(TC_FORKED, "cuMemMap");
	uint64_t allocation;
	tc_handle h; /* aligned */
	memcpy(&h, fabric, sizeof h);
	tc_result r = fd < 0 ? CALL(cuMemImportFromShareableHandle, &allocation, &h, FABRIC)
			     : CALL(cuMemImportFromShareableHandle, &allocation, (void *)(intptr_t)fd, POSIX_FD);
	if (r.code)
		return r;
	r = CALL(cuMemMap, address, bytes, 0, allocation, 0);
	cu.cuMemRelease(allocation);
	return r;
}

tc_result tc_allow(int device, uint64_t address, uint64_t bytes) {
	NEED(cuMemSetAccess);
	tc_access access = {{ON_DEVICE, device}, READ_WRITE}; /* its context first: the device is going to copy */
	VISIT(device, CALL(cuMemSetAccess, address, bytes, &access, 1));
}

tc_result tc_unmap(uint64_t address, uint64_t mapped, uint64_t reserved) {
	NEED(cuMemUnmap);
	if (forked())
		return ended(TC_FORKED, "cuMemUnmap");
	tc_result r = ended(TC_OK, "");
	if (mapped)
		r = CALL(cuMemUnmap, address, mapped);
	tc_result after = CALL(cuMemAddressFree, address, reserved);
	return r.code ? r : after;
}

//go:build cgo

/* Memory of the VMM: allocations that are made for handles of other processes and hosts. shim.h has the contract. */
#define _GNU_SOURCE
#include "shim.h"
#include "inside.h"

#include <stdlib.h>

enum {
	RDMA_WITH_VMM = TC_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
	FABRIC_HANDLES = TC_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
};

static tc_result attribute(int device, int which, int *value) {
	NEED(cuDeviceGetAttribute);
	int handle;
	tc_result r = CALL(cuDeviceGet, &handle, device);
	*value = 0;
	return r.code ? r : CALL(cuDeviceGetAttribute, value, which, handle);
}

int tc_nics_reach_chunks(int device) {
	int rdma;
	return !attribute(device, RDMA_WITH_VMM, &rdma).code && rdma;
}

/* Memory that a NIC may reach says so when it is made. */
static tc_result properties_of(int device, int types, tc_properties *p) {
	int rdma, handle;
	tc_result r = attribute(device, RDMA_WITH_VMM, &rdma);
	if (!r.code)
		r = CALL(cuDeviceGet, &handle, device);
	*p = (tc_properties){.type = TC_MEM_ALLOCATION_TYPE_PINNED,
			     .types = types,
			     .location = {ON_DEVICE, handle},
			     .flags = {0, rdma != 0}};
	return r;
}

static tc_result create(const tc_properties *p, uint64_t *bytes, uint64_t *allocation) {
	NEED(cuMemGetAllocationGranularity);
	NEED(cuMemCreate);
	NEED(cuMemRelease);
	size_t unit = 0;
	tc_result r = CALL(cuMemGetAllocationGranularity, &unit, p, TC_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (r.code)
		return r;
	*bytes = (*bytes + unit - 1) / unit * unit;
	return CALL(cuMemCreate, allocation, *bytes, p, 0);
}

/* A device that has no way there makes the whole call fail, so only those with one are listed. */
static tc_result allow_all(int device, uint64_t address, uint64_t bytes) {
	NEED(cuMemSetAccess);
	tc_access list[DEVICES_MAX];
	size_t count = 0;
	int home, other, can;
	tc_result r = CALL(cuDeviceGet, &home, device);
	for (int i = 0; i < device_count && !r.code; i++) {
		if ((r = CALL(cuDeviceGet, &other, i)).code)
			break;
		can = i == device;
		if (!can && (!cu.cuDeviceCanAccessPeer || cu.cuDeviceCanAccessPeer(&can, other, home)))
			can = 0;
		if (can)
			list[count++] = (tc_access){{ON_DEVICE, other}, READ_WRITE};
	}
	return r.code ? r : CALL(cuMemSetAccess, address, bytes, list, count);
}

static tc_result map_new(const tc_properties *p, int device, uint64_t *address, uint64_t *bytes) {
	NEED(cuMemMap);
	NEED(cuMemUnmap);
	uint64_t allocation;
	tc_result r = create(p, bytes, &allocation);
	if (r.code)
		return r;
	if (!(r = tc_reserve(*bytes, address)).code) {
		r = CALL(cuMemMap, *address, *bytes, 0, allocation, 0);
		int mapped = !r.code;
		if (mapped)
			r = allow_all(device, *address, *bytes);
		if (r.code)
			(void)tc_unmap(*address, mapped ? *bytes : 0, *bytes);
	}
	cu.cuMemRelease(allocation); /* the mapping keeps it */
	return r;
}

tc_result tc_allocate_chunk(int device, uint64_t bytes, int types, uint64_t *address, uint64_t *mapped) {
	thread_state before;
	tc_result r = enter(device, &before);
	if (r.code)
		return r;
	tc_properties p;
	*mapped = bytes;
	r = properties_of(device, types, &p);
	if (!r.code && !(r = map_new(&p, device, address, mapped)).code) {
		if ((r = zero(device, *address, *mapped)).code)
			(void)tc_unmap(*address, *mapped, *mapped);
	}
	pop(&before);
	return r;
}

/* Tests have a folder of their own. Programs with more rights than their user ignore that. */
const char *tc_channels(void) {
	const char *folder = secure_getenv("TENT_IMEX_CHANNELS");
	return folder && *folder ? folder : "/dev/nvidia-caps-imex-channels";
}

/* The attribute is 1 on hosts without an IMEX channel, too: only the way there and back proves something. */
tc_result tc_probe_fabric(int device) {
	NEED(cuMemExportToShareableHandle);
	NEED(cuMemImportFromShareableHandle);
	if (forked())
		return ended(TC_FORKED, "cuMemCreate");
	int supported;
	tc_result r = attribute(device, FABRIC_HANDLES, &supported);
	if (r.code)
		return r;
	if (!supported)
		return ended(TC_NO_FABRIC, "cuDeviceGetAttribute");
	tc_properties p;
	tc_handle handle;
	uint64_t made, back, bytes = 1;
	if ((r = properties_of(device, FABRIC, &p)).code || (r = create(&p, &bytes, &made)).code)
		return r;
	r = CALL(cuMemExportToShareableHandle, &handle, made, FABRIC, 0);
	if (!r.code && !(r = CALL(cuMemImportFromShareableHandle, &back, &handle, FABRIC)).code)
		cu.cuMemRelease(back);
	cu.cuMemRelease(made);
	return r;
}

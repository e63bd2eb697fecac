/* The part of the CUDA driver API that tent calls, in declarations of our own: no header of the vendor is needed.
 *
 * Names are those that dlsym must be asked for: the plain name of a function means its oldest form. Sizes and offsets
 * are those of CUDA 12.4 to 13.2, on x86-64 and aarch64. abi_test.go compares all of it with the vendor's cuda.h, where
 * one is installed; `make test` brings two. */
#ifndef TENT_CUDA_SHIM_H
#define TENT_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef void *tc_context, *tc_stream, *tc_event, *tc_module, *tc_function;

/* Numbers of the API: with CU_ for TC_, each has its name there. */
enum {
	TC_POINTER_ATTRIBUTE_CONTEXT = 1,
	TC_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	TC_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	TC_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	TC_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	TC_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	TC_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	TC_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	TC_MEMORYTYPE_HOST = 1,
	TC_MEMORYTYPE_DEVICE = 2,
	TC_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
	TC_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES = 98,
	TC_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
	TC_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117,
	TC_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
	TC_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
	TC_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER = 100, /* the device sees the bytes of a NIC by itself */
	TC_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST = 1,
	TC_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0,
	TC_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100,
	TC_STREAM_NON_BLOCKING = 1, /* it waits for no stream of the program */
	TC_STREAM_CAPTURE_MODE_RELAXED = 2,
	TC_STREAM_WAIT_VALUE_GEQ = 0,
	TC_STREAM_WAIT_VALUE_FLUSH = 1 << 30,
	TC_EVENT_DISABLE_TIMING = 2,
	TC_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
	TC_MEMHOSTALLOC_PORTABLE = 1, /* pinned for every device */
	TC_MEMHOSTALLOC_DEVICEMAP = 2,
	TC_MEMHOSTREGISTER_PORTABLE = 1,
	TC_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
	TC_MEM_ALLOCATION_TYPE_PINNED = 1,
	TC_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	TC_MEM_LOCATION_TYPE_DEVICE = 1,
	TC_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
	TC_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	TC_MEM_HANDLE_TYPE_FABRIC = 8,
	TC_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1
};

/* CUmemcpyAttributes. */
typedef struct {
	int order, from_hint[2], to_hint[2];
	unsigned flags;
} tc_order;
_Static_assert(sizeof(tc_order) == 24, "CUmemcpyAttributes");

/* CUipcMemHandle; it goes by value. */
typedef struct {
	unsigned char bytes[64];
} tc_handle;

/* CUmemAllocationProp and CUmemAccessDesc. */
typedef struct {
	int type, types, location[2];
	void *security;
	unsigned char flags[8];
} tc_properties;
_Static_assert(sizeof(tc_properties) == 32, "CUmemAllocationProp");
typedef struct {
	int location[2], flags;
} tc_access;
_Static_assert(sizeof(tc_access) == 12, "CUmemAccessDesc");

_Static_assert(sizeof(int) == 4 && sizeof(size_t) == 8 && sizeof(void *) == 8, "an LP64 system: Linux, 64 bits");

/* X(kind, name, arguments): every function returns a CUresult, an int. Without a NEEDED one there is no driver. */
#define TC_SYMBOLS(NEEDED, OPTIONAL)                                                                         \
	NEEDED(cuInit, (unsigned flags))                                                                     \
	NEEDED(cuDriverGetVersion, (int *version))                                                           \
	NEEDED(cuGetErrorName, (int code, const char **text))                                                \
	NEEDED(cuGetErrorString, (int code, const char **text))                                              \
	NEEDED(cuDeviceGetCount, (int *count))                                                               \
	NEEDED(cuDeviceGet, (int *device, int ordinal))                                                      \
	NEEDED(cuDeviceGetName, (char *text, int bytes, int device))                                         \
	NEEDED(cuDeviceGetPCIBusId, (char *text, int bytes, int device))                                     \
	NEEDED(cuDevicePrimaryCtxRetain, (tc_context * context, int device))                                 \
	NEEDED(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active))                       \
	NEEDED(cuCtxPushCurrent_v2, (tc_context context))                                                    \
	NEEDED(cuCtxPopCurrent_v2, (tc_context * context))                                                   \
	NEEDED(cuCtxGetCurrent, (tc_context * context))                                                      \
	NEEDED(cuMemAlloc_v2, (uint64_t * address, size_t bytes))                                            \
	NEEDED(cuMemFree_v2, (uint64_t address))                                                             \
	NEEDED(cuMemGetAddressRange_v2, (uint64_t * base, size_t *bytes, uint64_t address))                  \
	NEEDED(cuPointerGetAttributes, (unsigned count, int *which, void **into, uint64_t address))          \
	NEEDED(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, tc_stream stream))                  \
	NEEDED(cuMemsetD8Async, (uint64_t to, unsigned char byte, size_t bytes, tc_stream stream))           \
	NEEDED(cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))                               \
	NEEDED(cuMemFreeHost, (void *address))                                                               \
	NEEDED(cuStreamCreate, (tc_stream * stream, unsigned flags))                                         \
	NEEDED(cuStreamSynchronize, (tc_stream stream))                                                      \
	NEEDED(cuStreamGetCtx, (tc_stream stream, tc_context *context))                                      \
	NEEDED(cuEventCreate, (tc_event * event, unsigned flags))                                            \
	NEEDED(cuEventDestroy_v2, (tc_event event))                                                          \
	NEEDED(cuEventRecord, (tc_event event, tc_stream stream))                                            \
	NEEDED(cuEventQuery, (tc_event event))                                                               \
	NEEDED(cuEventSynchronize, (tc_event event))                                                         \
	OPTIONAL(cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags))                        \
	OPTIONAL(cuMemHostUnregister, (void *address))                                                       \
	OPTIONAL(cuDeviceGetUuid_v2, (unsigned char *uuid, int device))                                      \
	OPTIONAL(cuDeviceGetUuid, (unsigned char *uuid, int device))                                         \
	OPTIONAL(cuThreadExchangeStreamCaptureMode, (int *mode))                                             \
	OPTIONAL(cuStreamIsCapturing, (tc_stream stream, int *status))                                       \
	OPTIONAL(cuStreamGetCtx_v2, (tc_stream stream, tc_context *context, void **green))                   \
	OPTIONAL(cuStreamWaitValue32_v2, (tc_stream stream, uint64_t address, uint32_t value, unsigned flags)) \
	OPTIONAL(cuMemHostGetDevicePointer_v2, (uint64_t * address, void *host, unsigned flags))             \
	OPTIONAL(cuDeviceGetAttribute, (int *value, int which, int device))                                  \
	OPTIONAL(cuCtxGetDevice, (int *device))                                                              \
	OPTIONAL(cuMemcpyBatchAsync_v2, (uint64_t * to, uint64_t * from, size_t *bytes, size_t count,        \
	                                 tc_order *orders, size_t *first, size_t order_count, tc_stream stream)) \
	OPTIONAL(cuMemcpyBatchAsync,                                                                         \
	         (uint64_t * to, uint64_t * from, size_t *bytes, size_t count, tc_order *orders, size_t *first, \
	          size_t order_count, size_t *failed, tc_stream stream))                                     \
	OPTIONAL(cuModuleLoadData, (tc_module * module, const void *image))                                  \
	OPTIONAL(cuModuleGetFunction, (tc_function * function, tc_module module, const char *name))          \
	OPTIONAL(cuLaunchKernel,                                                                             \
	         (tc_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
	          unsigned block_y, unsigned block_z, unsigned shared, tc_stream stream, void **parameters, void **more)) \
	OPTIONAL(cuIpcGetMemHandle, (tc_handle * handle, uint64_t address))                                  \
	OPTIONAL(cuIpcOpenMemHandle_v2, (uint64_t * address, tc_handle handle, unsigned flags))              \
	OPTIONAL(cuIpcCloseMemHandle, (uint64_t address))                                                    \
	OPTIONAL(cuMemRetainAllocationHandle, (uint64_t * allocation, void *address))                        \
	OPTIONAL(cuMemRelease, (uint64_t allocation))                                                        \
	OPTIONAL(cuMemGetAllocationPropertiesFromHandle, (tc_properties * properties, uint64_t allocation))  \
	OPTIONAL(cuMemExportToShareableHandle, (void *into, uint64_t allocation, int type, uint64_t flags))  \
	OPTIONAL(cuMemImportFromShareableHandle, (uint64_t * allocation, void *from, int type))              \
	OPTIONAL(cuMemGetAllocationGranularity, (size_t * bytes, const tc_properties *properties, int option))  \
	OPTIONAL(cuMemCreate,                                                                                \
	         (uint64_t * allocation, size_t bytes, const tc_properties *properties, uint64_t flags))     \
	OPTIONAL(cuDeviceCanAccessPeer, (int *can, int device, int peer))                                    \
	OPTIONAL(cuCtxEnablePeerAccess, (tc_context peer, unsigned flags))                                   \
	OPTIONAL(cuMemAddressReserve,                                                                        \
	         (uint64_t * address, size_t bytes, size_t alignment, uint64_t hint, uint64_t flags))        \
	OPTIONAL(cuMemAddressFree, (uint64_t address, size_t bytes))                                         \
	OPTIONAL(cuMemMap, (uint64_t address, size_t bytes, size_t offset, uint64_t allocation, uint64_t flags)) \
	OPTIONAL(cuMemUnmap, (uint64_t address, size_t bytes))                                               \
	OPTIONAL(cuMemSetAccess, (uint64_t address, size_t bytes, tc_access * list, size_t count))           \
	OPTIONAL(cuFlushGPUDirectRDMAWrites, (int target, int scope))                                        \
	OPTIONAL(cuMemGetHandleForAddressRange,                                                              \
	         (void *into, uint64_t address, size_t bytes, int type, uint64_t flags))

/* Results of the driver that the shim knows by itself: CUDA_SUCCESS, and CUDA_ERROR_. */
enum {
	TC_OK = 0,
	TC_INVALID_VALUE = 1,
	TC_PEER_ACCESS_UNSUPPORTED = 217,
	TC_NOT_READY = 600,
	TC_PEER_ACCESS_ALREADY_ENABLED = 704,
	TC_TOO_MANY_PEERS = 711,
	TC_NOT_SUPPORTED = 801,
	TC_STREAM_CAPTURE_IMPLICIT = 906
};

/* Of our own: no CUresult is negative. */
enum { TC_FORKED = -1, TC_CAPTURING = -2, TC_NO_MEMORY = -3, TC_PRIVATE = -4, TC_MANY = -5, TC_WHICH = -6, TC_NO_FABRIC = -7,
       TC_NO_HANDLE = -8, TC_APART = -9, TC_ELSEWHERE = -10, TC_OWN = -11 };

/* Ways of the bytes of a NIC to a device. */
enum { TC_LATE, TC_FLUSHED, TC_SEEN };

/* The end of a call: the code, and the function of the driver that returned it. */
typedef struct {
	int code;
	const char *call;
} tc_result;

/* The time in which a device's context is current on a thread. */
typedef struct {
	tc_result end;
	int mode;
} tc_visit;

/* Where an address is. The driver writes most of it, each attribute with the width of its own: a truth value is an int
 * there, and a shorter one is written past its end (NVIDIA/DALI, request 3873). */
typedef struct {
	unsigned type; /* TC_MEMORYTYPE_, 0 unknown */
	int device, managed;
	int legacy; /* of cuMemAlloc, and so open to legacy handles and to peers */
	uint64_t base, bytes, allocation; /* of pinned memory of the host: its registration */
} tc_place;
_Static_assert(sizeof((tc_place *)0)->managed == 4 && sizeof((tc_place *)0)->legacy == 4, "truth values of the driver");

/* An allocation as another process opens it: by a legacy handle, or by a descriptor of the VMM if fd is not -1. */
typedef struct {
	uint64_t base, bytes;
	int fd, fabric; /* fabric: the handle is one of the VMM */
	tc_handle handle;
} tc_block;

/* A number of events that have to pass. */
typedef struct {
	int count;
	struct {
		tc_context context;
		tc_event event;
	} of[];
} tc_gate;

/* A stream that waits: for the word to be something else than 0, which is the program's to write. */
typedef struct {
	tc_context context;
	tc_event passed; /* behind the wait */
	uint32_t *word;
	uint64_t address; /* of the word, for devices */
} tc_latch;

/* Copies that were queued. A device has a stream for each lane. */
enum { TC_LANES = 6 };
typedef struct {
	uint64_t context, stream, event; /* behind them; numbers, which cgo does not follow at each call */
	uint64_t call; /* of the end */
	int code;
} tc_flight;

/* The copies of one slice in a burst: count ranges from the first on. by_kernel: all of it is memory that processors of the
 * device reach, so that tc_prepare's kernel may copy it. */
typedef struct {
	int device, lane, by_kernel;
	size_t first, count;
	tc_flight flight; /* with the code and the call of a failure; nothing is under way then */
} tc_copies;

/* All may be called from any thread, and leave its current context as it was. */
int tc_load(char *why, size_t bytes); /* once a process; 0, or -1 and the reason */
tc_result tc_init(int *version, int *count);
const char *tc_words(int code, const char **name);
tc_visit tc_enter_device(int device); /* its context is current until tc_leave_device, on this thread */
void tc_leave_device(int mode);
tc_result tc_describe(int device, char *name, char *pci, size_t bytes, unsigned char *uuid);
tc_result tc_locate(uint64_t address, tc_place *place);
tc_result tc_allocate(int device, uint64_t bytes, uint64_t *address);
tc_result tc_free(int device, uint64_t address);
tc_result tc_copy(int device, uint64_t to, uint64_t from, uint64_t bytes);
void tc_post(tc_copies *list, size_t count, uint64_t *to, uint64_t *from, uint64_t *bytes);
tc_result tc_prepare(int device, const char *image); /* PTX of copy.cu; the first call about a device loads it */
tc_result tc_finish(tc_flight *flight);
void tc_ended(tc_flight *list, size_t count); /* code: TC_NOT_READY for those that are under way */
tc_result tc_end(const tc_flight *flight);
tc_result tc_pin(int device, uint64_t bytes, uint64_t *address);
tc_result tc_unpin(int device, uint64_t address);
int tc_in_use(int device); /* it has a context in this process already */
int tc_elsewhere(void); /* some device reaches registered memory of the host by another address than the processor */
tc_result tc_keep(int device, uint64_t address, uint64_t bytes); /* pins memory of the program; TC_ELSEWHERE */
tc_result tc_unkeep(int device, uint64_t address);
tc_result tc_export(int device, uint64_t address, uint64_t bytes, int *fd);
int tc_landing(int device); /* how it sees the bytes of a NIC */
tc_result tc_flush(int device);
tc_result tc_share(int device, uint64_t address, int fabric, tc_block *block); /* fabric: for other hosts, by no other way */
tc_result tc_allocate_chunk(int device, uint64_t bytes, int types, uint64_t *address, uint64_t *mapped); /* zeroed; tc_unmap ends it */
int tc_nics_reach_chunks(int device); /* 0: or it cannot be asked */
const char *tc_channels(void); /* the folder of the IMEX channels */
tc_result tc_probe_fabric(int device); /* makes a fabric handle and opens it; leaves nothing */
tc_result tc_reach(int device, int other); /* TC_APART: no peer access to memory of the other one */
tc_result tc_join(int device, int other); /* and its context is open to the device's copies from now on */
tc_result tc_open(int device, const void *handle, uint64_t *address);
tc_result tc_close(int device, uint64_t address);
tc_result tc_reserve(uint64_t bytes, uint64_t *address);
tc_result tc_map(uint64_t address, uint64_t bytes, int fd, const void *fabric); /* fabric: if fd is -1 */
tc_result tc_allow(int device, uint64_t address, uint64_t bytes);
tc_result tc_unmap(uint64_t address, uint64_t mapped, uint64_t reserved);
tc_result tc_record(uint64_t stream, int device, tc_gate **gate); /* device: of a default stream, or -1 */
tc_result tc_passed(tc_gate *gate, int *passed);
void tc_forget(tc_gate *gate);
tc_result tc_hold(uint64_t stream, int device, tc_latch *latch);
void tc_let_go(tc_latch *latch); /* the word is its owner's no more; it is given away when the stream has passed */

#endif

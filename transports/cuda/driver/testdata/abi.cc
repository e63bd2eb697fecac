/* Compares shim.h with the vendor's cuda.h: each difference is an error of the compiler that names it. abi_test.go
 * compiles this twice and runs nothing. With __CUDA_API_VERSION_INTERNAL the header declares every generation of each
 * function, and layouts and arguments are compared. Without it, each plain name means the newest generation.
 *
 * It is C++ for the sake of its templates: they take a function's type apart, argument by argument. */
#include <cuda.h>
#include <cstddef>
#include <type_traits>
#define _Static_assert static_assert /* shim.h is C */
#include "shim.h"
#include "facts.h" /* numbers of facts.go, which abi_test.go writes */

/* Numbers */

#define SAME(ours, theirs) static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define NUMBER(name) SAME(TC_##name, CU_##name)
NUMBER(POINTER_ATTRIBUTE_CONTEXT);
NUMBER(POINTER_ATTRIBUTE_MEMORY_TYPE);
NUMBER(POINTER_ATTRIBUTE_BUFFER_ID);
NUMBER(POINTER_ATTRIBUTE_IS_MANAGED);
NUMBER(POINTER_ATTRIBUTE_DEVICE_ORDINAL);
NUMBER(MEMORYTYPE_HOST);
NUMBER(MEMORYTYPE_DEVICE);
NUMBER(DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
NUMBER(DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
NUMBER(DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
NUMBER(DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
NUMBER(GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
NUMBER(FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
NUMBER(FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
NUMBER(FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
NUMBER(STREAM_NON_BLOCKING);
NUMBER(STREAM_CAPTURE_MODE_RELAXED);
NUMBER(STREAM_WAIT_VALUE_GEQ);
NUMBER(STREAM_WAIT_VALUE_FLUSH);
NUMBER(EVENT_DISABLE_TIMING);
NUMBER(MEMHOSTALLOC_PORTABLE);
NUMBER(MEMHOSTALLOC_DEVICEMAP);
NUMBER(MEMHOSTREGISTER_PORTABLE);
NUMBER(IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
NUMBER(MEM_ALLOCATION_TYPE_PINNED);
NUMBER(MEM_ALLOC_GRANULARITY_MINIMUM);
NUMBER(MEM_LOCATION_TYPE_DEVICE);
NUMBER(MEM_ACCESS_FLAGS_PROT_READWRITE);
NUMBER(MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
NUMBER(MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
#if CUDA_VERSION >= 12030
NUMBER(DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
NUMBER(MEM_HANDLE_TYPE_FABRIC);
#endif
#if CUDA_VERSION >= 12080
NUMBER(MEMCPY_SRC_ACCESS_ORDER_STREAM);
#endif

SAME(TC_OK, CUDA_SUCCESS);
SAME(TC_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(TC_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(TC_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(TC_PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(TC_TOO_MANY_PEERS, CUDA_ERROR_TOO_MANY_PEERS);
SAME(TC_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(TC_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(GO_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(GO_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(GO_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);

/* The errors that stay in a context, in the order of their codes. */
constexpr int ours_that_stay[] = {GO_STICKY};
constexpr int theirs_that_stay[] = {
	CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE,
#if CUDA_VERSION >= 12090
	CUDA_ERROR_CONTAINED,
#else
	226,
#endif
	CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_ASSERT,
	CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS,
	CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED,
#if CUDA_VERSION >= 12090
	CUDA_ERROR_TENSOR_MEMORY_LEAK,
#else
	721,
#endif
	CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_UNKNOWN};

constexpr bool alike(const int *ours, const int *theirs, int count) {
	for (int i = 0; i < count; i++)
		if (ours[i] != theirs[i])
			return false;
	return true;
}
static_assert(sizeof ours_that_stay == sizeof theirs_that_stay &&
                  alike(ours_that_stay, theirs_that_stay, sizeof ours_that_stay / sizeof(int)),
              "stickyCodes");

/* Layouts */

#define SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), "size of " #theirs)
#define FIELD(ours, field, theirs, named)                                                                    \
	static_assert(offsetof(ours, field) == offsetof(theirs, named), "offset of " #theirs "." #named);    \
	static_assert(sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->named), "size of " #theirs "." #named)
SIZE(tc_handle, CUipcMemHandle);
SIZE(tc_properties, CUmemAllocationProp);
FIELD(tc_properties, type, CUmemAllocationProp, type);
FIELD(tc_properties, types, CUmemAllocationProp, requestedHandleTypes);
FIELD(tc_properties, location, CUmemAllocationProp, location);
FIELD(tc_properties, location[0], CUmemAllocationProp, location.type);
FIELD(tc_properties, location[1], CUmemAllocationProp, location.id);
FIELD(tc_properties, security, CUmemAllocationProp, win32HandleMetaData);
FIELD(tc_properties, flags, CUmemAllocationProp, allocFlags);
FIELD(tc_properties, flags[1], CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SIZE(tc_access, CUmemAccessDesc);
FIELD(tc_access, location[0], CUmemAccessDesc, location.type);
FIELD(tc_access, location[1], CUmemAccessDesc, location.id);
FIELD(tc_access, flags, CUmemAccessDesc, flags);
#if CUDA_VERSION >= 12030
SIZE(tc_handle, CUmemFabricHandle);
#endif
#if CUDA_VERSION >= 12080
SIZE(tc_order, CUmemcpyAttributes);
FIELD(tc_order, order, CUmemcpyAttributes, srcAccessOrder);
FIELD(tc_order, from_hint, CUmemcpyAttributes, srcLocHint);
FIELD(tc_order, to_hint, CUmemcpyAttributes, dstLocHint);
FIELD(tc_order, flags, CUmemcpyAttributes, flags);
#endif

#ifdef __CUDA_API_VERSION_INTERNAL

/* Functions: as many arguments, and each is passed in the same way. What a pointer leads to has the same size, as far
 * as both sides know it; bytes of ours may be anything. */

#if CUDA_VERSION < 12080 /* a header that is too old proves nothing about these */
extern "C" CUresult cuMemcpyBatchAsync(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, CUstream);
#endif
#if CUDA_VERSION < 12050
extern "C" CUresult cuStreamGetCtx_v2(CUstream, CUcontext *, void **);
#endif
#if CUDA_VERSION < 13000
extern "C" CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream);
#endif

template <class T, class = void> constexpr size_t size_of = 0; /* void, and types that the header only names */
template <class T> constexpr size_t size_of<T, std::void_t<decltype(sizeof(T))>> = sizeof(T);

template <class Ours, class Theirs> constexpr bool passed_alike() {
	if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
		using O = std::remove_cv_t<std::remove_pointer_t<Ours>>;
		using T = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
		if constexpr (std::is_void_v<O> || std::is_void_v<T> || std::is_same_v<O, unsigned char> || !size_of<T>)
			return true;
		else
			return passed_alike<O, T>();
	} else {
		return std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
		       std::is_class_v<Ours> == std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
	}
}

template <class Ours, class Theirs> struct calls_alike : std::false_type {};
template <class... Ours, class... Theirs> struct calls_alike<int(Ours...), CUresult(Theirs...)> {
	static constexpr bool same_count = sizeof...(Ours) == sizeof...(Theirs);
	template <class...> struct list {};
	template <class O, class... Os, class T, class... Ts> static constexpr bool each(list<O, Os...>, list<T, Ts...>) {
		return passed_alike<O, T>() && each(list<Os...>(), list<Ts...>());
	}
	template <class... Rest> static constexpr bool each(list<>, list<Rest...>) { return true; }
	template <class O, class... Os> static constexpr bool each(list<O, Os...>, list<>) { return true; }
	static constexpr bool value = same_count && each(list<Ours...>(), list<Theirs...>());
};

static_assert(sizeof(CUresult) == sizeof(int), "CUresult");
#define CALLS(name, arguments) static_assert(calls_alike<int arguments, decltype(name)>::value, "arguments of " #name);
TC_SYMBOLS(CALLS, CALLS)

#else

/* Names: a plain name that the header gives to a newer generation stands beside that in our list, as the older form for
 * older drivers. A forgotten _v2 is found by that, also where the arguments did not change. */

constexpr bool equal(const char *a, const char *b) {
	for (; *a && *a == *b; a++, b++)
		;
	return *a == *b;
}

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define OURS(name, arguments) #name,
constexpr const char *ours[] = {TC_SYMBOLS(OURS, OURS)};

constexpr bool listed(const char *name) {
	for (const char *one : ours)
		if (equal(one, name))
			return true;
	return false;
}

#define NEWEST(name, arguments) static_assert(listed(TEXT(name)), #name " is an old form");
TC_SYMBOLS(NEWEST, NEWEST)

#endif

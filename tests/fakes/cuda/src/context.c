/* Start, devices, contexts, injected failures. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct stats fake_stats;
struct context fake_contexts[DEVICES_MAX], fake_greens[DEVICES_MAX];
static pthread_t green_threads[DEVICES_MAX]; /* in which each is current, fake_greens[i].green - 1 times */
int fake_devices;

static int started, child; /* cuInit was called; this process was forked afterwards, which getpid would tell slowly */

static void in_child(void) { child = 1; }

/* The stack of contexts of a thread. */
#define DEPTH_MAX 16
static __thread struct context *stack[DEPTH_MAX];
static __thread int depth;
enum { RELAXED = 2 };
static __thread int capture_mode; /* GLOBAL, as a thread begins */
int fake_captures;

struct fault {
	char function[64];
	long nth;
	int result, sticky;
};
#define FAULTS_MAX 16
static struct fault faults[FAULTS_MAX];
static int fault_count;

long fake_setting(const char *name, long otherwise) {
	char key[64];
	snprintf(key, sizeof key, "TENT_FAKECUDA_%s", name);
	const char *text = getenv(key);
	return text && *text ? strtol(text, NULL, 10) : otherwise;
}

/* All pairs are linked but those that TENT_FAKECUDA_APART lists, "0-1,0-2"; "all" for none. */
int fake_linked(int device, int peer) {
	const char *apart = getenv("TENT_FAKECUDA_APART");
	char one[8], other[8];
	snprintf(one, sizeof one, "%d-%d", device, peer);
	snprintf(other, sizeof other, "%d-%d", peer, device);
	return device != peer && !(apart && (!strcmp(apart, "all") || strstr(apart, one) || strstr(apart, other)));
}

/* The nth call of a function from now on gives an error. A sticky one poisons the thread's current context. The function
 * "copy" is the copy engine: its error comes late, and poisons the context of the copy's stream. */
API void fakecuda_inject(const char *function, long nth, int result, int sticky) {
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i <= fault_count && i < FAULTS_MAX; i++)
		if (i == fault_count || !faults[i].nth) {
			struct fault *f = &faults[i];
			snprintf(f->function, sizeof f->function, "%s", function);
			f->nth = nth, f->result = result, f->sticky = sticky;
			fault_count += i == fault_count;
			break;
		}
	pthread_mutex_unlock(&fake_lock);
}

API void fakecuda_stats(struct stats *into) {
	pthread_mutex_lock(&fake_lock);
	*into = fake_stats;
	into->depth = depth;
	pthread_mutex_unlock(&fake_lock);
}

/* A sticky error stays in the context: every later call there returns it. */
int fake_injected(const char *function, struct context *where) {
	for (int i = 0; i < fault_count; i++) {
		struct fault *f = &faults[i];
		if (f->nth && !strcmp(f->function, function) && --f->nth == 0) {
			if (f->sticky && where)
				where->poisoned = f->result;
			return f->result;
		}
	}
	return OK;
}

static int injected(const char *function) { return fake_injected(function, depth ? stack[depth - 1] : NULL); }

/* Captures of others are in the mode GLOBAL, and these calls are unsafe beside them. */
static int unsafe(const char *function) {
	static const char *const calls[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost",
		"cuMemHostRegister_v2", "cuMemHostUnregister", "cuEventQuery", "cuEventSynchronize"};
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (!strcmp(function, calls[i]))
			return 1;
	return 0;
}

int fake_enter(const char *function) {
	pthread_mutex_lock(&fake_lock);
	fake_stats.calls++;
	int result = injected(function);
	if (!result && (!started || child))
		result = NOT_INITIALIZED; /* before cuInit, and in a child that was forked */
	if (!result && fake_captures && capture_mode != RELAXED && unsafe(function))
		result = CAPTURE_UNSUPPORTED;
	if (result)
		pthread_mutex_unlock(&fake_lock);
	return result;
}

int fake_enter_current(const char *function, struct context **current) {
	int result = fake_enter(function);
	if (result)
		return result;
	if (!depth || !stack[depth - 1])
		return fake_leave(INVALID_CONTEXT);
	*current = stack[depth - 1];
	return (*current)->poisoned ? fake_leave((*current)->poisoned) : OK;
}

int fake_leave(int result) {
	pthread_mutex_unlock(&fake_lock);
	return result;
}

API int cuInit(unsigned flags) {
	pthread_mutex_lock(&fake_lock);
	fake_stats.calls++;
	int result = injected("cuInit");
	if (!result && flags)
		result = INVALID_VALUE;
	if (!result && fake_setting("DEVICES", 2) == 0)
		result = NO_DEVICE;
	if (!result && child)
		result = NOT_INITIALIZED;
	if (!result && !started) {
		fake_devices = (int)fake_setting("DEVICES", 2);
		fake_devices = fake_devices > DEVICES_MAX ? DEVICES_MAX : fake_devices;
		for (int i = 0; i < fake_devices; i++)
			fake_contexts[i].device = i;
		started = !pthread_atfork(NULL, NULL, in_child);
	}
	return fake_leave(result);
}

API int cuDriverGetVersion(int *version) { /* also before cuInit */
	*version = FAKE_DRIVER;
	return OK;
}

static const struct { int code; const char *name, *text; } words[] = {
	{OK, "CUDA_SUCCESS", "no error"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
	{PEER_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
	{INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
	 "operation would make the legacy stream depend on a capturing blocking stream"},
};

static int word(int code, const char **into, int name) {
	*into = NULL;
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (words[i].code == code)
			*into = name ? words[i].name : words[i].text;
	return *into ? OK : INVALID_VALUE;
}

API int cuGetErrorName(int code, const char **into) { return word(code, into, 1); }
API int cuGetErrorString(int code, const char **into) { return word(code, into, 0); }

API int cuDeviceGetCount(int *count) {
	int result = fake_enter("cuDeviceGetCount");
	if (result)
		return result;
	*count = fake_devices;
	return fake_leave(OK);
}

/* Takes the lock for a call about a device. */
static int enter_device(const char *function, int device) {
	int result = fake_enter(function);
	if (!result && (device < 0 || device >= fake_devices))
		return fake_leave(INVALID_DEVICE);
	return result;
}

API int cuDeviceGet(int *device, int ordinal) {
	int result = enter_device("cuDeviceGet", ordinal);
	if (result)
		return result;
	*device = ordinal;
	return fake_leave(OK);
}

API int cuDeviceGetName(char *name, int length, int device) {
	int result = enter_device("cuDeviceGetName", device);
	if (result)
		return result;
	snprintf(name, (size_t)length, "Emulated GPU");
	return fake_leave(OK);
}

API int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
	int result = enter_device("cuDeviceGetUuid_v2", device);
	if (result)
		return result;
	memcpy(uuid, "tent fake cuda ", 15);
	uuid[15] = (unsigned char)(device + 1);
	return fake_leave(OK);
}

API int cuDeviceGetPCIBusId(char *text, int length, int device) { /* the vendor writes capitals */
	int result = enter_device("cuDeviceGetPCIBusId", device);
	if (result)
		return result;
	snprintf(text, (size_t)length, "FACE:%02X:00.0", device + 0x1a);
	return fake_leave(OK);
}

API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
	int result = enter_device("cuDeviceTotalMem_v2", device);
	if (result)
		return result;
	*bytes = (size_t)fake_setting("BYTES", 1L << 32);
	return fake_leave(OK);
}

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
	int result = enter_device("cuDeviceGetAttribute", device);
	if (result)
		return result;
	switch (attribute) {
	case 41: case 102: case 103: /* unified addresses, VMM, its file descriptors */
		*value = 1;
		break;
	case 40: /* copy engines */
		*value = 2;
		break;
	case 124:
		*value = (int)fake_setting("DMABUF", 1);
		break;
	case 98: /* a wait for a word flushes the bytes of other devices */
		*value = (int)fake_setting("CAN_FLUSH", 0);
		break;
	case 91: /* registered memory of the host has one address */
		*value = (int)fake_setting("HOSTPTR", 1);
		break;
	case 110: /* GPUDirect RDMA with memory of the VMM */
		*value = (int)fake_setting("RDMA_VMM", 0);
		break;
	case 117: /* cuFlushGPUDirectRDMAWrites */
		*value = (int)fake_setting("FLUSH", 1);
		break;
	case 118: /* who sees the bytes of a NIC: nobody but for a flush, the device, or all of them */
		*value = (int)fake_setting("ORDERING", 200);
		break;
	case 128: /* 1 on machines without IMEX, too: it is no proof */
		*value = (int)fake_setting("FABRIC", 1);
		break;
	case 75:
		*value = 9;
		break;
	default:
		*value = 0;
	}
	return fake_leave(OK);
}

API int cuDeviceCanAccessPeer(int *can, int device, int peer) {
	int result = enter_device("cuDeviceCanAccessPeer", device);
	if (result)
		return result;
	if (peer < 0 || peer >= fake_devices)
		return fake_leave(INVALID_DEVICE);
	*can = fake_linked(device, peer);
	return fake_leave(OK);
}

API int cuDevicePrimaryCtxRetain(struct context **context, int device) {
	int result = enter_device("cuDevicePrimaryCtxRetain", device);
	if (result)
		return result;
	if (fake_contexts[device].poisoned == CONTEXT_IS_DESTROYED)
		fake_contexts[device].poisoned = OK;
	fake_contexts[device].retained++;
	fake_stats.retained++;
	*context = &fake_contexts[device];
	return fake_leave(OK);
}

API int cuDevicePrimaryCtxRelease_v2(int device) {
	int result = enter_device("cuDevicePrimaryCtxRelease_v2", device);
	if (result)
		return result;
	if (!fake_contexts[device].retained)
		return fake_leave(INVALID_CONTEXT);
	fake_contexts[device].retained--;
	fake_stats.retained--;
	return fake_leave(OK);
}

API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
	int result = enter_device("cuDevicePrimaryCtxGetState", device);
	if (result)
		return result;
	*flags = 0;
	*active = fake_contexts[device].retained > 0 && fake_contexts[device].poisoned != CONTEXT_IS_DESTROYED;
	return fake_leave(OK);
}

/* What cudaDeviceReset does. The context keeps its handle and who retains it, and is gone until somebody retains it
 * again. What was made in it is gone for good, which this one does not emulate. */
API int cuDevicePrimaryCtxReset_v2(int device) {
	int result = enter_device("cuDevicePrimaryCtxReset_v2", device);
	if (result)
		return result;
	fake_drain();
	fake_contexts[device].poisoned = CONTEXT_IS_DESTROYED;
	return fake_leave(OK);
}

API int cuCtxPushCurrent_v2(struct context *context) {
	int result = fake_enter("cuCtxPushCurrent_v2");
	if (result)
		return result;
	if (!context || !context->retained || depth == DEPTH_MAX)
		return fake_leave(INVALID_CONTEXT);
	if (context->green > 1 && !pthread_equal(green_threads[context->device], pthread_self()))
		return fake_leave(INVALID_CONTEXT);
	if (context->green) {
		green_threads[context->device] = pthread_self();
		context->green++;
	}
	stack[depth++] = context;
	return fake_leave(OK);
}

API int cuCtxPopCurrent_v2(struct context **context) {
	int result = fake_enter("cuCtxPopCurrent_v2");
	if (result)
		return result;
	if (!depth)
		return fake_leave(INVALID_CONTEXT);
	*context = stack[--depth];
	(*context)->green -= (*context)->green > 0;
	return fake_leave(OK);
}

API int cuCtxGetCurrent(struct context **context) {
	int result = fake_enter("cuCtxGetCurrent");
	if (result)
		return result;
	*context = depth ? stack[depth - 1] : NULL;
	return fake_leave(OK);
}

API int cuCtxSetCurrent(struct context *context) {
	int result = fake_enter("cuCtxSetCurrent");
	if (result)
		return result;
	if (!depth)
		depth = 1;
	stack[depth - 1] = context;
	if (!context)
		depth--;
	return fake_leave(OK);
}

API int cuCtxGetDevice(int *device) {
	struct context *current;
	int result = fake_enter_current("cuCtxGetDevice", &current);
	if (result)
		return result;
	*device = current->device;
	return fake_leave(OK);
}

API int cuCtxEnablePeerAccess(struct context *peer, unsigned flags) {
	struct context *current;
	int result = fake_enter_current("cuCtxEnablePeerAccess", &current);
	if (result)
		return result;
	if (flags || !peer)
		return fake_leave(INVALID_VALUE);
	if (!fake_linked(current->device, peer->device))
		return fake_leave(PEER_UNSUPPORTED);
	if (current->peers & 1u << peer->device)
		return fake_leave(PEER_ALREADY_ENABLED);
	current->peers |= 1u << peer->device;
	fake_stats.peers++;
	return fake_leave(OK);
}

API int cuThreadExchangeStreamCaptureMode(int *mode) {
	int result = fake_enter("cuThreadExchangeStreamCaptureMode");
	if (result)
		return result;
	int before = capture_mode;
	capture_mode = *mode;
	*mode = before;
	return fake_leave(OK);
}

/* An unknown name is no error: the pointer is NULL and the status 1 (seen with the real driver 550). */
API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
	(void)name, (void)version, (void)flags;
	int result = fake_enter("cuGetProcAddress_v2");
	if (result)
		return result;
	*function = NULL;
	*status = 1;
	return fake_leave(OK);
}

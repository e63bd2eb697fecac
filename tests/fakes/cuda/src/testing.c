/* For tests alone: a brake for the streams, and other doors that no real driver has. doors.c has those that both have. */
#include "fake.h"

long fake_flushes[DEVICES_MAX];

/* Waits for the bytes of NICs, which the emulated ones of tests/fakes/verbs keep: it counts for the device. */
API int cuFlushGPUDirectRDMAWrites(int target, int scope) {
	struct context *current;
	int result = fake_enter_current("cuFlushGPUDirectRDMAWrites", &current);
	if (result)
		return result;
	if (target != 0 || (scope != 100 && scope != 200))
		return fake_leave(INVALID_VALUE);
	if (!fake_setting("FLUSH", 1))
		return fake_leave(NOT_SUPPORTED);
	fake_flushes[current->device]++;
	return fake_leave(OK);
}

extern int cuCtxPushCurrent_v2(void *), cuCtxPopCurrent_v2(void **), cuDevicePrimaryCtxReset_v2(int);

/* Makes a green context of a device current on this thread, which has its primary one. cuCtxPopCurrent ends that. */
API int fakecuda_green(int device) {
	struct context *g = &fake_greens[device];
	if (!g->green)
		*g = (struct context){.device = device, .retained = 1, .green = 1};
	return cuCtxPushCurrent_v2(g);
}

API int fakecuda_ungreen(void) {
	void *c;
	return cuCtxPopCurrent_v2(&c);
}

API int fakecuda_reset(int device) { return cuDevicePrimaryCtxReset_v2(device); }

API uint64_t fakecuda_flushes(int device) { return (uint64_t)fake_flushes[device]; }

/* Holds all work of all streams back, or lets it go on. */
API void fakecuda_hold(int on) {
	pthread_mutex_lock(&fake_lock);
	fake_hold(on);
	pthread_mutex_unlock(&fake_lock);
}

API void fakecuda_forgive(void) {
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < fake_devices; i++)
		fake_contexts[i].poisoned = OK;
	pthread_mutex_unlock(&fake_lock);
}

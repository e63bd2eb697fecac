/* libnvidia-ml.so.1 without hardware, for tests: four GPUs. The last two are joined by twelve NVLinks and are in a domain,
 * the one before lies behind another bridge, and the first on another socket. The addresses are those of the emulated
 * CUDA driver, in the other order. FAKE_NVML_OLD leaves out what drivers before 12.4 do not have.
 *
 * The domain comes from the environment, TENT_FAKENVML_ and: CLUSTER, a byte that its UUID repeats (193), CLIQUE (7),
 * STATE (3, registered), STATUS (0). HIDDEN has the indexes of GPUs that the process may not ask about, which are counted. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS 4
#define LINKS 12
#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4 };

typedef struct { /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, pci_id, subsystem;
    char bus_id[32];
} pci_info;

static int open_count;

/* The ordinal that CUDA gives it: the other order. */
static uintptr_t ordinal(void *device) { return GPUS - (uintptr_t)device; }

API int nvmlInit_v2(void) {
    open_count++;
    return SUCCESS;
}

API int nvmlShutdown(void) {
    if (!open_count) {
        return UNINITIALIZED;
    }
    open_count--;
    return SUCCESS;
}

/* Why a call about a device is refused. */
static int refused(const void *device) {
    return !open_count ? UNINITIALIZED : !device || (uintptr_t)device > GPUS ? INVALID_ARGUMENT : SUCCESS;
}

API int fake_nvml_open(void) { return open_count; }

API int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!open_count) {
        return UNINITIALIZED;
    }
    *count = GPUS;
    return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!open_count) {
        return UNINITIALIZED;
    }
    if (index >= GPUS) {
        return INVALID_ARGUMENT;
    }
    const char *hidden = getenv("TENT_FAKENVML_HIDDEN");
    if (hidden && strchr(hidden, '0' + (int)index)) {
        return NO_PERMISSION;
    }
    *device = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(void *device, pci_info *info) {
    if (refused(device)) {
        return refused(device);
    }
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "0000FACE:%02X:00.0", (unsigned)(0x1a + ordinal(device)));
    return SUCCESS;
}

API int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active) {
    if (refused(device)) {
        return refused(device);
    }
    if (ordinal(device) > 1) {
        return NOT_SUPPORTED;
    }
    if (link > LINKS) {
        return INVALID_ARGUMENT;
    }
    *active = link < LINKS; /* one more is there, and is down */
    return SUCCESS;
}

API int nvmlDeviceGetP2PStatus(void *a, void *b, int index, int *status) {
    if (refused(a) || refused(b)) {
        return refused(a) ? refused(a) : refused(b);
    }
    *status = index == 2 && ordinal(a) < 2 && ordinal(b) < 2 ? 0 : 5;
    return SUCCESS;
}

API int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level) {
    if (refused(a) || refused(b) || a == b) {
        return refused(a) ? refused(a) : refused(b) ? refused(b) : INVALID_ARGUMENT;
    }
    uintptr_t last = ordinal(a) > ordinal(b) ? ordinal(a) : ordinal(b);
    *level = last == 3 ? 50 : last == 2 ? 20 : 10;
    return SUCCESS;
}

#ifndef FAKE_NVML_OLD
typedef struct { /* nvmlGpuFabricInfo_v2_t */
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} fabric_info;

static int setting(const char *name, int otherwise) {
    char key[64];
    snprintf(key, sizeof key, "TENT_FAKENVML_%s", name);
    const char *text = getenv(key);
    return text && *text ? atoi(text) : otherwise;
}

API int nvmlDeviceGetGpuFabricInfoV(void *device, fabric_info *info) {
    if (refused(device)) {
        return refused(device);
    }
    if (ordinal(device) > 1) {
        return NOT_SUPPORTED;
    }
    if (info->version != (sizeof *info | 2 << 24)) {
        return INVALID_ARGUMENT;
    }
    memset(info->cluster, setting("CLUSTER", 0xc1), sizeof info->cluster);
    info->status = setting("STATUS", 0), info->clique = (unsigned)setting("CLIQUE", 7);
    info->state = (unsigned char)setting("STATE", 3);
    return SUCCESS;
}
#endif

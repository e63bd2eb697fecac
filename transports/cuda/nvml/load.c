//go:build cgo

#define _GNU_SOURCE
#include "load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define FORWARD(name) #name,
static const char *const names[] = {
#include "names.h"
};
#undef FORWARD

extern void *tent_nvml_slots[] __attribute__((visibility("hidden")));
extern void tent_nvml_absent(void) __attribute__((visibility("hidden")));

const char *tent_nvml_library(void) {
    const char *path = secure_getenv("TENT_LIBNVIDIA_ML");
    return path != NULL && *path != 0 ? path : "libnvidia-ml.so.1";
}

int tent_nvml_load(char *why, size_t size) {
    const char *library = tent_nvml_library();
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    if (handle == NULL) {
        const char *cause = dlerror();
        snprintf(why, size, "%s", cause != NULL ? cause : library);
        return -1;
    }
    int found = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *function = dlsym(handle, names[i]);
        tent_nvml_slots[i] = function != NULL ? function : (void *)tent_nvml_absent;
        found += function != NULL;
    }
    return found;
}

/* What PyTorch takes from libcuda.so.1 by its name; the rest it asks the runtime for (runtime.c). */
#include <dlfcn.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuCtxGetCurrent(void **context) {
    static int only;
    *context = &only;
    return 0;
}

/* PyTorch asks whether a stream is captured only where there is a context, which the runtime knows. */
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    void *runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD), *found = runtime;
    int (*get)(const char *, void **, unsigned, unsigned long long, void *) = NULL;
    int (*own)(int, unsigned *, int *) = NULL;
    *flags = *active = 0;
    if (found) found = dlsym(runtime, "cudaGetDriverEntryPointByVersion");
    memcpy(&get, &found, sizeof found);
    if (get) get("cuDevicePrimaryCtxGetState", &found, 0, 0, NULL);
    memcpy(&own, &found, sizeof found);
    return own ? own(device, flags, active) : 0;
}

EXPORT int cuGetErrorString(int error, const char **text) {
    *text = "an error of the emulated driver";
    return 0;
}

/* What PyTorch takes from libcuda.so.1 by its name; the rest it asks the runtime for (runtime.c). */
#define EXPORT __attribute__((visibility("default")))

EXPORT int cuCtxGetCurrent(void **context) {
    static int only;
    *context = &only;
    return 0;
}

EXPORT int cuGetErrorString(int error, const char **text) {
    *text = "an error of the emulated driver";
    return 0;
}

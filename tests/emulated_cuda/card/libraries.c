/* cuBLAS, cuBLASLt, cuDNN, cuSPARSE, cuSOLVER and cuRAND: handles, and what PyTorch reads from them.
 *
 * Each of these libraries is linked with the whole file and shows only the functions that are its own (../build.py).
 * Workspaces of cuBLAS and cuBLASLt are PyTorch's own and so as on a card. Buffers of cuSPARSE are not known: 0.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static int new_handle(void **out) {
    static uintptr_t next = 0x5000;
    *out = (void *)(next += 16);
    return 0;
}

EXPORT int cublasCreate_v2(void **handle) { return new_handle(handle); }

EXPORT int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }

EXPORT int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }

EXPORT const char *cublasGetStatusString(int status) { return "an error of the emulated cuBLAS"; }

EXPORT size_t cublasLtGetVersion(void) { return 130000; }

EXPORT int cublasLtMatmulDescCreate(void **handle, int compute, int scale) { return new_handle(handle); }

EXPORT int cublasLtMatmulPreferenceCreate(void **handle) { return new_handle(handle); }

EXPORT int cublasLtMatrixLayoutCreate(void **handle, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return new_handle(handle);
}

struct heuristic { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

/* One algorithm, which needs no workspace: PyTorch takes one of its own size all the same. */
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, void *a, void *b, void *c, void *d,
    void *preference, int asked, struct heuristic *out, int *found) {
    memset(out, 0, sizeof *out);
    *found = 1;
    return 0;
}

/* Convolutions would run on descriptors that were never filled, so cuDNN cannot be initialised. */
EXPORT int cudnnCreate(void **handle) { return 1001; } /* CUDNN_STATUS_NOT_INITIALIZED */

EXPORT const char *cudnnGetErrorString(int status) {
    return "the emulated card has no cuDNN: set torch.backends.cudnn.enabled = False";
}

EXPORT size_t cudnnGetVersion(void) { return 91900; }

EXPORT size_t cudnnGetCudartVersion(void) { return 13000; }

EXPORT int cusparseCreate(void **handle) { return new_handle(handle); }

EXPORT int cusparseSpMM_bufferSize(void *handle, int a_op, int b_op, const void *alpha, void *a, void *b,
    const void *beta, void *c, int type, int algorithm, size_t *bytes) {
    return *bytes = 0;
}

EXPORT int cusparseSDDMM_bufferSize(void *handle, int a_op, int b_op, const void *alpha, void *a, void *b,
    const void *beta, void *c, int type, int algorithm, size_t *bytes) {
    return *bytes = 0;
}

EXPORT int cusparseSpMV_bufferSize(void *handle, int op, const void *alpha, void *a, void *x, const void *beta,
    void *y, int type, int algorithm, size_t *bytes) {
    return *bytes = 0;
}

EXPORT int cusolverDnCreate(void **handle) { return new_handle(handle); }

EXPORT int curandCreateGenerator(void **handle, int type) { return new_handle(handle); }

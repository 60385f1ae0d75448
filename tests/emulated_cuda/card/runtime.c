/* An emulated CUDA runtime. Memory is the host's, accounted against each card's size; copies copy; kernels do nothing.
 *
 * PyTorch's own CUDA build runs on it unchanged, with its dispatcher, its caching allocator and the host code of its
 * kernels. Functions that PyTorch needs and that are not here return 0 and do nothing: ../build.py adds them.
 *
 * CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read as CUDA does. A process sees one MIG instance.
 */
#define _GNU_SOURCE
#include "accounts.h"
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#define MAX_BLOCKS 65536
#define PAGE ((size_t)2 << 20) /* the driver hands out memory in steps of 2 MiB, at addresses that are multiples */
#define ON_HOST (-1)

static __thread cudaError_t last_error;
static __thread int current_device;

static cudaError_t fail(cudaError_t error) { return last_error = error; }

/* The capture of a CUDA graph: one at a time, of one stream. What it runs is done at once, as everything here, and a
 * replay does nothing. EMULATED_NO_CAPTURE=1 stands for a card or a driver that cannot capture. */

static struct {
    cudaStream_t stream; /* NULL without a capture */
    enum cudaStreamCaptureStatus status;
    enum cudaStreamCaptureMode mode;
    unsigned long long id;
    pthread_t thread;
    size_t launches;
} capture;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static cudaError_t invalidate(void) {
    capture.status = cudaStreamCaptureStatusInvalidated;
    return fail(cudaErrorStreamCaptureUnsupported);
}

/* Whether this thread must not make a call that could wait for the card, by cudaThreadExchangeStreamCaptureMode. */
static int unsafe_now(void) {
    if (!capture.stream || cudaStreamCaptureModeRelaxed == capture.mode) return 0;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return 0;
    int everywhere = capture.mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    return everywhere || pthread_equal(capture.thread, pthread_self());
}

/* Devices: CUDA's numbers for the cards that a process may see. */

static int visible[MAX_GPUS], visible_count = -1;

static int speed(int gpu) { return gpu_sms(gpu) * gpu_capability(gpu)->threads_per_sm; }

/* CUDA puts the fastest card first unless told otherwise, so with unequal cards its indices are not NVML's. */
static void in_cuda_order(int order[MAX_GPUS]) {
    for (int n = 0; n < gpu_count(); n++) {
        int at = n;
        if (strcmp(setting("CUDA_DEVICE_ORDER", "FASTEST_FIRST"), "PCI_BUS_ID"))
            for (; at && speed(order[at - 1]) < speed(n); at--) order[at] = order[at - 1];
        order[at] = n;
    }
}

/* The card that an entry of CUDA_VISIBLE_DEVICES names: an index, or a UUID or the beginning of only one; else -1.
 * The GPU of MIG instances stands for the first of them. */
static int named(const char *entry, const int order[MAX_GPUS]) {
    int found = -1;
    if (strncmp(entry, "GPU-", 4) && strncmp(entry, "MIG-", 4)) {
        char *end;
        long index = strtol(entry, &end, 10);
        return *end || end == entry || index < 0 || index >= (mig() ? 1 : gpu_count()) ? -1 : order[index];
    }
    char parent[64];
    gpu_uuid(PARENT, parent);
    if (mig() && !strncmp(parent, entry, strlen(entry))) return 0;
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        char uuid[64], alias[96] = "";
        gpu_uuid(gpu, uuid);
        if (mig()) mig_alias(gpu, alias);
        if (strncmp(uuid, entry, strlen(entry)) && strncmp(alias, entry, strlen(entry))) continue;
        if (found >= 0) return -1;
        found = gpu;
    }
    return found;
}

/* The first entry that names no card hides itself and all that follow; a card that is named twice hides all, as
 * torch.cuda._parse_visible_devices says. */
static void find_visible(void) {
    if (visible_count >= 0) return;
    int order[MAX_GPUS], n = 0;
    in_cuda_order(order);
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) {
        memcpy(visible, order, sizeof order);
        visible_count = mig() ? 1 : gpu_count();
        return;
    }
    for (int number = 0; *wanted && number < parts(wanted) && n < MAX_GPUS; number++) {
        char entry[96];
        part(wanted, number, entry, sizeof entry);
        int gpu = named(entry, order);
        if (gpu < 0) break;
        for (int i = 0; i < n; i++)
            if (visible[i] == gpu) {
                visible_count = 0;
                return;
            }
        visible[n++] = gpu;
    }
    visible_count = mig() && n ? 1 : n;
}

/* Whether this is a fork of a process that had counted the cards: CUDA works in none. */
static int in_fork(void) {
    static pid_t first;
    if (!first) first = getpid();
    return first != getpid();
}

/* The card behind one of this process's devices, or -1. */
static int card(int device) {
    if (in_fork()) return -1;
    find_visible();
    return device >= 0 && device < visible_count ? visible[device] : -1;
}

EXPORT cudaError_t cudaGetDeviceCount(int *n) {
    *n = 0;
    if (in_fork()) return fail(cudaErrorInitializationError);
    find_visible();
    *n = visible_count;
    return visible_count ? cudaSuccess : fail(cudaErrorNoDevice);
}

EXPORT cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

/* Since CUDA 12 this makes the context. */
EXPORT cudaError_t cudaSetDevice(int device) {
    if (card(device) < 0) return fail(cudaErrorInvalidDevice);
    if (!account_take(card(device), 0)) return fail(cudaErrorMemoryAllocation);
    current_device = device;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }

EXPORT const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInitializationError: return "initialization error";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorNotSupported: return "the emulated card cannot do this";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        default: return "an error of the emulated card";
    }
}

EXPORT const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInitializationError: return "cudaErrorInitializationError";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
        default: return "cudaErrorUnknown";
    }
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    int gpu = card(device);
    if (gpu < 0) return fail(cudaErrorInvalidDevice);
    const struct model *model = gpu_model(gpu);
    const struct capability *capability = gpu_capability(gpu);
    memset(p, 0, sizeof *p);
    gpu_name(gpu, p->name);
    gpu_uuid_bytes(gpu, (unsigned char *)&p->uuid);
    p->totalGlobalMem = gpu_total(gpu);
    p->major = model->major;
    p->minor = model->minor;
    p->multiProcessorCount = gpu_sms(gpu);
    p->maxThreadsPerMultiProcessor = capability->threads_per_sm;
    p->maxBlocksPerMultiProcessor = capability->blocks_per_sm;
    p->sharedMemPerMultiprocessor = (size_t)capability->shared_kib_per_sm << 10;
    p->sharedMemPerBlockOptin = (size_t)capability->shared_kib_per_block << 10;
    p->l2CacheSize = model->l2_kib << 10;
    p->integrated = !strcmp(model->key, "Orin");
    p->pciBusID = mig() ? 1 : gpu + 1;
    /* The same for all cards of the table. */
    p->sharedMemPerBlock = 48 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = INT32_MAX;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->textureAlignment = 512;
    p->asyncEngineCount = 2;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = p->cooperativeLaunch = 1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device)) return last_error;
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
        case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
        case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
        case cudaDevAttrWarpSize: *value = p.warpSize; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
        case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
        case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
        case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
        case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
        case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
        case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
        case cudaDevAttrIntegrated: *value = p.integrated; break;
        case cudaDevAttrCooperativeLaunch: *value = p.cooperativeLaunch; break;
        case cudaDevAttrUnifiedAddressing: *value = p.unifiedAddressing; break;
        case cudaDevAttrPciBusId: *value = p.pciBusID; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *out, int room, int device) {
    if (card(device) < 0) return fail(cudaErrorInvalidDevice);
    snprintf(out, room, "0000:%02x:00.0", mig() ? 1 : card(device) + 1);
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;
    return cudaSuccess;
}

/* Memory. Pages of the host are taken as they are written, so a card may be larger than the host's memory. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *at;
    size_t bytes;
    int gpu; /* or ON_HOST */
} blocks[MAX_BLOCKS];
static int block_count;

/* Room for `bytes` at a multiple of a page, of which nothing is used yet; NULL if the host has no addresses left. */
static char *reserve(size_t bytes, size_t align, int protection) {
    char *raw = mmap(NULL, bytes + align, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    char *at = (char *)(((uintptr_t)raw + align - 1) & ~(align - 1));
    if (at > raw) munmap(raw, at - raw);
    if (raw + align > at) munmap(at + bytes, raw + align - at);
    return at;
}

static cudaError_t allocate(void **out, size_t bytes, int gpu) {
    bytes = (bytes + PAGE - 1) & ~(PAGE - 1);
    if (gpu != ON_HOST && !account_take(gpu, bytes)) return cudaErrorMemoryAllocation;
    char *at = block_count < MAX_BLOCKS ? reserve(bytes, PAGE, PROT_READ | PROT_WRITE) : NULL;
    if (!at) {
        if (gpu != ON_HOST) account_give(gpu, bytes);
        return cudaErrorMemoryAllocation;
    }
    blocks[block_count].at = *out = at;
    blocks[block_count].bytes = bytes;
    blocks[block_count++].gpu = gpu;
    return cudaSuccess;
}

static cudaError_t release(void *at) {
    for (int i = 0; i < block_count; i++) {
        if (blocks[i].at != at) continue;
        munmap(at, blocks[i].bytes);
        if (blocks[i].gpu != ON_HOST) account_give(blocks[i].gpu, blocks[i].bytes);
        blocks[i] = blocks[--block_count];
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

EXPORT cudaError_t cudaMalloc(void **out, size_t bytes) {
    int gpu = card(current_device);
    *out = NULL;
    if (gpu < 0) return fail(cudaErrorNoDevice);
    if (!bytes) return cudaSuccess;
    if (unsafe_now()) return invalidate();
    pthread_mutex_lock(&lock);
    cudaError_t error = allocate(out, bytes, gpu);
    pthread_mutex_unlock(&lock);
    write_log("malloc %d %zu %d %d\n", getpid(), bytes, error, gpu);
    return error ? fail(error) : cudaSuccess;
}

/* Of NULL it only makes the context, which is how PyTorch asks for one. */
EXPORT cudaError_t cudaFree(void *at) {
    if (!at) return cudaSetDevice(current_device);
    if (unsafe_now()) return invalidate();
    pthread_mutex_lock(&lock);
    cudaError_t error = release(at);
    pthread_mutex_unlock(&lock);
    return error ? fail(error) : cudaSuccess;
}

EXPORT cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    pthread_mutex_lock(&lock);
    cudaError_t error = allocate(out, bytes ? bytes : 1, ON_HOST);
    pthread_mutex_unlock(&lock);
    return error ? fail(error) : cudaSuccess;
}

EXPORT cudaError_t cudaFreeHost(void *at) { return at ? cudaFree(at) : cudaSuccess; }

EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    int gpu = card(current_device);
    if (gpu < 0) return fail(cudaErrorNoDevice);
    if (!account_take(gpu, 0)) return fail(cudaErrorMemoryAllocation);
    *total = gpu_total(gpu);
    *free_bytes = *total - account_used(gpu);
    return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    memset(out, 0, sizeof *out);
    out->type = cudaMemoryTypeUnregistered;
    out->device = cudaInvalidDeviceId;
    find_visible();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < block_count; i++) {
        if ((char *)pointer < blocks[i].at || (char *)pointer >= blocks[i].at + blocks[i].bytes) continue;
        out->type = blocks[i].gpu == ON_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
        out->devicePointer = (void *)pointer;
        out->hostPointer = blocks[i].gpu == ON_HOST ? (void *)pointer : NULL;
        for (int device = 0; device < visible_count; device++)
            if (blocks[i].gpu == visible[device]) out->device = device;
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    memmove(to, from, bytes);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return unsafe_now() ? invalidate() : cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

EXPORT cudaError_t cudaMemcpyPeerAsync(
    void *to, int device, const void *from, int from_device, size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *to, size_t pitch, const void *from, size_t from_pitch, size_t width,
    size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++)
        memmove((char *)to + row * pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}

/* Whole pages that become zero are given back to the host. */
EXPORT cudaError_t cudaMemset(void *at, int value, size_t bytes) {
    char *first = (char *)(((uintptr_t)at + 4095) & ~4095ul), *end = (char *)(((uintptr_t)at + bytes) & ~4095ul);
    if (value || end <= first) {
        memset(at, value, bytes);
        return cudaSuccess;
    }
    memset(at, 0, first - (char *)at);
    madvise(first, end - first, MADV_DONTNEED);
    memset(end, 0, (char *)at + bytes - end);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream) {
    return cudaMemset(at, value, bytes);
}

EXPORT cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
    static char room[1 << 20]; /* for any of the constants that kernels would read */
    *out = room;
    return cudaSuccess;
}

/* What cannot be done says so, where doing nothing would give wrong memory or a pointer to nowhere. */

EXPORT cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
    return fail(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at) { return fail(cudaErrorNotSupported); }

EXPORT cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    return fail(cudaErrorNotSupported);
}

/* Streams and events: numbers, as everything is done at once. */

static void *new_handle(void) {
    static atomic_uintptr_t next = 0x1000;
    return (void *)atomic_fetch_add(&next, 16);
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    *stream = new_handle();
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return cudaStreamCreate(stream);
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return unsafe_now() || (capture.stream && stream == capture.stream) ? invalidate() : cudaSuccess;
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

EXPORT cudaError_t cudaDeviceSynchronize(void) { return unsafe_now() ? invalidate() : cudaSuccess; }

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaDeviceSynchronize(); }

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaDeviceSynchronize(); }

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    if (getenv("EMULATED_NO_CAPTURE")) return fail(cudaErrorNotSupported);
    if (!stream) return fail(cudaErrorStreamCaptureUnsupported);
    if (capture.stream) return fail(cudaErrorIllegalState);
    capture.stream = stream;
    capture.status = cudaStreamCaptureStatusActive;
    capture.mode = mode;
    capture.id++;
    capture.thread = pthread_self();
    capture.launches = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    if (!stream || stream != capture.stream) return fail(cudaErrorIllegalState);
    capture.stream = NULL;
    *graph = capture.status == cudaStreamCaptureStatusActive ? new_handle() : NULL;
    return *graph ? cudaSuccess : fail(cudaErrorStreamCaptureInvalidated);
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = stream && stream == capture.stream ? capture.status : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
    unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
    size_t *count) {
    cudaStreamIsCapturing(stream, status);
    if (id) *id = *status == cudaStreamCaptureStatusNone ? 0 : capture.id;
    if (count) *count = 0;
    return cudaSuccess;
}

/* Of the last capture; which kernels they are is not known. */
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    *count = capture.launches;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    *made = new_handle();
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) {
    *event = new_handle();
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return cudaEventCreate(event); }

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    *milliseconds = 1.0f;
    return cudaSuccess;
}

/* Kernels: what compiled code asks for before a launch. Registers are unknown here, so 32 for all, with which no card
 * is limited by them; blocks at once go by the card's threads, its blocks and its shared memory. */

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, current_device)) return last_error;
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = p.maxThreadsPerBlock;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = 10 * p.major + p.minor;
    out->maxDynamicSharedSizeBytes = p.sharedMemPerBlockOptin;
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks_at_once, const void *function, int threads, size_t shared, unsigned flags) {
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, current_device)) return last_error;
    if (threads < 1 || threads > p.maxThreadsPerBlock) return fail(cudaErrorInvalidValue);
    int warps = (threads + p.warpSize - 1) / p.warpSize;
    int by_threads = p.maxThreadsPerMultiProcessor / (warps * p.warpSize);
    int by_shared = shared ? p.sharedMemPerMultiprocessor / shared : p.maxBlocksPerMultiProcessor;
    int least = by_threads < by_shared ? by_threads : by_shared;
    *blocks_at_once = least < p.maxBlocksPerMultiProcessor ? least : p.maxBlocksPerMultiProcessor;
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks_at_once, const void *function, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks_at_once, function, threads, shared, 0);
}

static __thread struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} launch;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    if (capture.stream && stream == capture.stream) capture.launches++;
    launch.grid = grid;
    launch.block = block;
    launch.shared = shared;
    launch.stream = stream;
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = launch.grid;
    *block = launch.block;
    *shared = launch.shared;
    *(void **)stream = launch.stream;
    return cudaSuccess;
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)(uintptr_t)function;
    return cudaSuccess;
}

EXPORT void **__cudaRegisterFatBinary(void *binary) {
    static void *fat = &fat;
    return &fat;
}

/* The driver's functions, which PyTorch asks the runtime for. Expandable segments reserve addresses, create memory,
 * which is what counts, and map it there. */

static CUresult granularity(size_t *out, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags flags) {
    *out = PAGE;
    return CUDA_SUCCESS;
}

static CUresult address_reserve(
    CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr hint, unsigned long long flags) {
    *at = (CUdeviceptr)reserve(bytes, align > PAGE ? align : PAGE, PROT_NONE);
    return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult address_free(CUdeviceptr at, size_t bytes) {
    munmap((void *)at, bytes);
    return CUDA_SUCCESS;
}

struct created {
    size_t bytes;
    int gpu;
};

static CUresult memory_create(
    CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *p, unsigned long long flags) {
    int gpu = card(p->location.id);
    if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
    if (!account_take(gpu, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct created *created = malloc(sizeof *created);
    created->bytes = bytes;
    created->gpu = gpu;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)created;
    return CUDA_SUCCESS;
}

static CUresult memory_release(CUmemGenericAllocationHandle handle) {
    struct created *created = (struct created *)(uintptr_t)handle;
    account_give(created->gpu, created->bytes);
    free(created);
    return CUDA_SUCCESS;
}

static CUresult memory_map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
    unsigned long long flags) {
    return mprotect((void *)at, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult memory_unmap(CUdeviceptr at, size_t bytes) {
    madvise((void *)at, bytes, MADV_DONTNEED);
    mprotect((void *)at, bytes, PROT_NONE);
    return CUDA_SUCCESS;
}

static CUresult current_context(CUcontext *context) {
    static int only;
    *context = (CUcontext)&only;
    return CUDA_SUCCESS;
}

static CUresult primary_context_state(CUdevice device, unsigned *flags, int *active) {
    if (card(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
    open_accounts();
    *flags = 0;
    *active = mine && atomic_load(&mine->gpu[card(device)].context);
    return CUDA_SUCCESS;
}

static long nothing(void) { return 0; }

static const struct {
    const char *name;
    void *function;
} driver_functions[] = {
    {"cuCtxGetCurrent", current_context},
    {"cuDevicePrimaryCtxGetState", primary_context_state},
    {"cuMemGetAllocationGranularity", granularity},
    {"cuMemAddressReserve", address_reserve},
    {"cuMemAddressFree", address_free},
    {"cuMemCreate", memory_create},
    {"cuMemRelease", memory_release},
    {"cuMemMap", memory_map},
    {"cuMemUnmap", memory_unmap},
};

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
    unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    *out = (void *)nothing;
    if (result) *result = cudaDriverEntryPointSuccess;
    for (size_t i = 0; i < LENGTH(driver_functions); i++)
        if (!strcmp(name, driver_functions[i].name)) *out = driver_functions[i].function;
    return cudaSuccess;
}

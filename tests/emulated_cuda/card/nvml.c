/* An emulated NVML over the same cards and accounts. Structs and codes as in NVIDIA's public nvml.h.
 *
 * Of a GPU in MIG mode memory and processes are for privileged users alone, which nobody is here; of an instance there
 * is no utilisation.
 */
#define _GNU_SOURCE
#include "accounts.h"

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct process_v1 {
    unsigned pid;
    unsigned long long used;
};

struct process_v3 {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static void *handle(int gpu) { return (void *)(uintptr_t)(gpu + 1); } /* never NULL */

static int card(void *handle) { return (int)(uintptr_t)handle - 1; }

/* How many GPUs are on the bus. */
static int on_bus(void) { return mig() ? 1 : gpu_count(); }

static int parent(void *handle) { return card(handle) == PARENT; }

static int text(char *out, unsigned room, const char *value) {
    if (strlen(value) >= room) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void) { return SUCCESS; }
EXPORT int nvmlInit(void) { return SUCCESS; }
EXPORT int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
EXPORT int nvmlShutdown(void) { return SUCCESS; }

EXPORT const char *nvmlErrorString(int error) { return error ? "an error of the emulated NVML" : "Success"; }

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned room) { return text(out, room, "580.00.00"); }

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *n) {
    *n = on_bus();
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount(unsigned *n) { return nvmlDeviceGetCount_v2(n); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if ((int)index >= on_bus()) return INVALID_ARGUMENT;
    *out = handle(mig() ? PARENT : index);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *wanted, void **out) {
    for (int gpu = 0; gpu <= PARENT; gpu++) {
        if (gpu == PARENT ? !mig() : gpu >= gpu_count()) continue;
        char uuid[64], alias[96] = "";
        gpu_uuid(gpu, uuid);
        if (mig() && gpu != PARENT) mig_alias(gpu, alias);
        if (strcmp(uuid, wanted) && strcmp(alias, wanted)) continue;
        *out = handle(gpu);
        return SUCCESS;
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out) {
    unsigned bus;
    if (sscanf(bus_id, "%*x:%x", &bus) != 1 || bus < 1 || (int)bus > on_bus()) return NOT_FOUND;
    *out = handle(mig() ? PARENT : bus - 1);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **out) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}

EXPORT int nvmlDeviceGetUUID(void *gpu, char *out, unsigned room) {
    char uuid[64];
    gpu_uuid(card(gpu), uuid);
    return text(out, room, uuid);
}

EXPORT int nvmlDeviceGetName(void *gpu, char *out, unsigned room) {
    char name[128];
    if (parent(gpu)) return text(out, room, gpu_model(0)->name);
    gpu_name(card(gpu), name);
    return text(out, room, name);
}

EXPORT int nvmlDeviceGetIndex(void *gpu, unsigned *index) {
    *index = parent(gpu) ? 0 : card(gpu);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) {
    const struct model *model = gpu_model(parent(gpu) ? 0 : card(gpu));
    *major = model->major;
    *minor = model->minor;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *out) {
    if (parent(gpu)) return NO_PERMISSION;
    out->total = gpu_total(card(gpu));
    out->used = account_used(card(gpu));
    out->free = out->total - out->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory_v2 *out) {
    struct memory memory;
    if (nvmlDeviceGetMemoryInfo(gpu, &memory)) return NO_PERMISSION;
    out->total = memory.total;
    out->used = memory.used;
    out->free = memory.free;
    out->reserved = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *n, struct process_v3 *out) {
    if (parent(gpu)) return NO_PERMISSION;
    unsigned found = 0, room = out ? *n : 0;
    open_accounts();
    for (int i = 0; i < MAX_PROCESSES && !getenv("EMULATED_NO_PROCESSES"); i++) {
        if (!alive(&accounts[i]) || !atomic_load(&accounts[i].gpu[card(gpu)].context)) continue;
        if (found < room) {
            out[found].pid = accounts[i].pid;
            out[found].used = held_by(&accounts[i], card(gpu));
            out[found].gpu_instance = mig() ? (unsigned)card(gpu) + 1 : 0xFFFFFFFF;
            out[found].compute_instance = mig() ? 0 : 0xFFFFFFFF;
        }
        found++;
    }
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Names without a version are the first one, whose entries have no instances. */
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *gpu, unsigned *n, struct process_v1 *out) {
    struct process_v3 all[MAX_PROCESSES];
    unsigned room = out ? *n : 0;
    *n = MAX_PROCESSES;
    if (nvmlDeviceGetComputeRunningProcesses_v3(gpu, n, all)) return NO_PERMISSION;
    for (unsigned i = 0; i < *n && i < room; i++) {
        out[i].pid = all[i].pid;
        out[i].used = all[i].used;
    }
    return *n > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(void *gpu, unsigned percent[2]) {
    percent[0] = percent[1] = 0;
    return mig() ? NOT_SUPPORTED : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeMode(void *gpu, unsigned *mode) {
    *mode = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPersistenceMode(void *gpu, unsigned *mode) {
    *mode = 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(void *gpu, unsigned *current, unsigned *pending) {
    *current = *pending = 1;
    return parent(gpu) ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *gpu, unsigned *n) {
    *n = parent(gpu) ? 7 : 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, unsigned index, void **out) {
    if (!parent(gpu) || (int)index >= gpu_count()) return NOT_FOUND;
    *out = handle(index);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceId(void *gpu, unsigned *id) {
    *id = card(gpu) + 1;
    return mig() && !parent(gpu) ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetComputeInstanceId(void *gpu, unsigned *id) {
    *id = 0;
    return mig() && !parent(gpu) ? SUCCESS : NOT_SUPPORTED;
}

struct attributes {
    unsigned sms, engines[5], gpu_slices, compute_slices;
    unsigned long long memory_mib;
};

EXPORT int nvmlDeviceGetAttributes_v2(void *gpu, struct attributes *out) {
    if (!mig() || parent(gpu)) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->sms = gpu_sms(card(gpu));
    out->gpu_slices = out->compute_slices = 1;
    out->memory_mib = gpu_total(card(gpu)) >> 20;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void *gpu, unsigned link, int *type) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, void *info) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetGpuFabricInfoV(void *gpu, void *info) { return NOT_SUPPORTED; }

/* The cards that can be emulated, and those that this machine is said to have.
 *
 * EMULATED_GPU_NAME  a key or a name of `models`, or several with commas, one for each card (H100)
 * EMULATED_GPUS      their sizes in MiB with commas (those of their models)
 * EMULATED_MIG       1 makes them the MIG instances of one GPU, each a GPU instance with one compute instance
 *
 * Cards are numbered as on the bus, which is NVML's order. CUDA's own order is in runtime.c.
 */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 16

/* What all cards of a compute capability share: CUDA C++ programming guide, "Technical specifications per compute
 * capability". PyTorch's kernels choose their grids, and so their temporary memory, by the threads of an SM. */
struct capability {
    int major, minor, threads_per_sm, blocks_per_sm, shared_kib_per_sm, shared_kib_per_block;
};

static const struct capability capabilities[] = {
    {7, 0, 2048, 32, 96, 96},
    {7, 5, 1024, 16, 64, 64},
    {8, 0, 2048, 32, 164, 163},
    {8, 6, 1536, 16, 100, 99},
    {8, 7, 1536, 16, 164, 163},
    {8, 9, 1536, 24, 100, 99},
    {9, 0, 2048, 32, 228, 227},
    {10, 0, 2048, 32, 228, 227},
    {12, 0, 1536, 24, 100, 99},
};

/* `name` and `mib` as nvidia-smi shows them, `sms` as torch.cuda.get_device_properties does. */
struct model {
    const char *key, *name;
    int major, minor, sms, l2_kib;
    unsigned long mib;
};

static const struct model models[] = {
    {"T4", "Tesla T4", 7, 5, 40, 4096, 15360},
    {"V100", "Tesla V100-SXM2-16GB", 7, 0, 80, 6144, 16384},
    {"A10", "NVIDIA A10", 8, 6, 72, 6144, 23028},
    {"A100", "NVIDIA A100-SXM4-40GB", 8, 0, 108, 40960, 40960},
    {"L4", "NVIDIA L4", 8, 9, 58, 49152, 23034},
    {"L40S", "NVIDIA L40S", 8, 9, 142, 98304, 46068},
    {"RTX2080Ti", "NVIDIA GeForce RTX 2080 Ti", 7, 5, 68, 5632, 11264},
    {"RTX3090", "NVIDIA GeForce RTX 3090", 8, 6, 82, 6144, 24576},
    {"RTX4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 73728, 24564},
    {"RTX5090", "NVIDIA GeForce RTX 5090", 12, 0, 170, 98304, 32607},
    {"H100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 51200, 81559},
    {"H200", "NVIDIA H200", 9, 0, 132, 61440, 143771},
    {"B200", "NVIDIA B200", 10, 0, 148, 129024, 183359},
    {"Orin", "Orin", 8, 7, 16, 4096, 62841}, /* Jetson AGX Orin of 64 GB, which shares its memory with the CPU */
};

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* A wrong setting must not become a card that nobody asked for, so the process ends. */
__attribute__((noreturn)) static inline void refuse(const char *variable, const char *value, const char *rule) {
    fprintf(stderr, "error: %s=%s: %s\n", variable, value, rule);
    _exit(2);
}

static inline int parts(const char *list) {
    int n = 1;
    for (; *list; list++) n += *list == ',';
    return n;
}

/* The part of a list with commas that has this number; of a list with a single part, that one. */
static inline void part(const char *list, int number, char *out, size_t room) {
    if (parts(list) == 1) number = 0;
    while (number-- > 0) list = strchr(list, ',') + 1;
    snprintf(out, room, "%.*s", (int)strcspn(list, ","), list);
}

static inline const char *setting(const char *variable, const char *otherwise) {
    const char *value = getenv(variable);
    return value && *value ? value : otherwise;
}

static inline int gpu_count(void) {
    const char *sizes = setting("EMULATED_GPUS", NULL), *names = setting("EMULATED_GPU_NAME", "H100");
    int n = parts(sizes ? sizes : names);
    if (n > MAX_GPUS) refuse("EMULATED_GPUS", sizes ? sizes : names, "at most 16 cards");
    if (sizes && parts(names) != 1 && parts(names) != n)
        refuse("EMULATED_GPU_NAME", names, "one name, or one for each size in EMULATED_GPUS");
    return n;
}

static inline const struct model *gpu_model(int gpu) {
    char name[128];
    part(setting("EMULATED_GPU_NAME", "H100"), gpu, name, sizeof name);
    for (size_t i = 0; i < LENGTH(models); i++)
        if (!strcmp(name, models[i].key) || !strcmp(name, models[i].name)) return &models[i];
    refuse("EMULATED_GPU_NAME", name, "not a card of tests/emulated_cuda/card/cards.h");
}

static inline int mig(void) { return !strcmp(setting("EMULATED_MIG", "0"), "1"); }

/* The instances of a GPU have equal parts of its SMs. */
static inline int gpu_sms(int gpu) { return gpu_model(gpu)->sms / (mig() ? gpu_count() : 1); }

static inline const struct capability *gpu_capability(int gpu) {
    const struct model *model = gpu_model(gpu);
    for (size_t i = 0; i < LENGTH(capabilities); i++)
        if (capabilities[i].major == model->major && capabilities[i].minor == model->minor) return &capabilities[i];
    refuse("EMULATED_GPU_NAME", model->key, "its compute capability is not in tests/emulated_cuda/card/cards.h");
}

static inline size_t gpu_total(int gpu) {
    const char *sizes = setting("EMULATED_GPUS", NULL);
    if (!sizes) return (size_t)gpu_model(gpu)->mib << 20;
    char size[128], *end;
    part(sizes, gpu, size, sizeof size);
    unsigned long long mib = strtoull(size, &end, 10);
    if (*end || end == size || !mib) refuse("EMULATED_GPUS", sizes, "sizes in MiB with commas, as in 24576,24576");
    return (size_t)mib << 20;
}

/* As in "NVIDIA A100-SXM4-40GB MIG 1g.5gb". */
static inline void gpu_name(int gpu, char out[128]) {
    int n = snprintf(out, 128, "%s", gpu_model(gpu)->name);
    if (mig()) snprintf(out + n, 128 - n, " MIG 1g.%zugb", gpu_total(gpu) >> 30);
}

#define PARENT MAX_GPUS /* the number of the GPU whose instances the cards are */

static inline void gpu_uuid_bytes(int gpu, unsigned char bytes[16]) {
    memset(bytes, gpu == PARENT ? 0xee : 0x11 * (gpu + 1), 16);
}

static inline void gpu_uuid(int gpu, char out[64]) {
    static const int dashes_before[] = {4, 6, 8, 10};
    unsigned char bytes[16];
    gpu_uuid_bytes(gpu, bytes);
    out += sprintf(out, mig() && gpu != PARENT ? "MIG-" : "GPU-");
    for (int i = 0, d = 0; i < 16; i++) {
        if (d < 4 && dashes_before[d] == i) *out++ = '-', d++;
        out += sprintf(out, "%02x", bytes[i]);
    }
}

/* The name of a MIG instance until driver 470. */
static inline void mig_alias(int gpu, char out[96]) {
    char parent[64];
    gpu_uuid(PARENT, parent);
    snprintf(out, 96, "MIG-%s/%d/0", parent, gpu + 1);
}

/* What every process has taken of every emulated card: a file that all of them map.
 *
 * EMULATED_GPU_STATE   the file (/dev/shm/emulated_gpus)
 * EMULATED_CONTEXT_MB  what a CUDA context takes of a card, in MiB (500)
 * EMULATED_CUDA_LOG    a file that gets lines: context PID CARD, and malloc PID BYTES ERROR CARD for each cudaMalloc
 *
 * A process that has died no longer counts, however it died, as with a driver: no one needs to clean up.
 */
#pragma once
#include "cards.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>

#define MAX_PROCESSES 512

struct account {
    atomic_int pid;
    atomic_ullong started; /* with the pid it names a process: pids are used again */
    struct {
        atomic_ulong bytes;
        atomic_int context;
    } gpu[MAX_GPUS];
};

static struct account *accounts, *mine;
static int accounts_file = -1, opened_by;

/* When a process was started, in the kernel's ticks; 0 for one that has ended, also if no one has waited for it. */
static inline unsigned long long started(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int field = 2; *at; at++)
        if (*at == ' ' && ++field == 22) return strtoull(at + 1, NULL, 10);
    return 0;
}

static inline int alive(struct account *account) {
    int pid = atomic_load(&account->pid);
    return pid && started(pid) == atomic_load(&account->started);
}

static inline size_t context_bytes(void) { return (size_t)atol(setting("EMULATED_CONTEXT_MB", "500")) << 20; }

/* After a fork the file is opened again, as locks of flock belong to what `open` returned. */
static inline void open_accounts(void) {
    if (opened_by == getpid()) return;
    const char *path = setting("EMULATED_GPU_STATE", "/dev/shm/emulated_gpus");
    size_t bytes = sizeof(struct account) * MAX_PROCESSES;
    accounts_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (accounts_file < 0 || ftruncate(accounts_file, bytes)) refuse("EMULATED_GPU_STATE", path, "cannot be opened");
    accounts = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, accounts_file, 0);
    if (accounts == MAP_FAILED) refuse("EMULATED_GPU_STATE", path, "cannot be mapped");
    mine = NULL;
    opened_by = getpid();
}

static inline size_t held_by(struct account *account, int gpu) {
    return atomic_load(&account->gpu[gpu].bytes) + (atomic_load(&account->gpu[gpu].context) ? context_bytes() : 0);
}

static inline size_t account_used(int gpu) {
    size_t sum = 0;
    open_accounts();
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (alive(&accounts[i])) sum += held_by(&accounts[i], gpu);
    return sum;
}

/* This process's account; the caller holds the file's lock. */
static inline struct account *my_account(void) {
    for (int i = 0; !mine && i < MAX_PROCESSES; i++) {
        if (alive(&accounts[i]) && atomic_load(&accounts[i].pid) != getpid()) continue;
        memset(&accounts[i], 0, sizeof accounts[i]);
        atomic_store(&accounts[i].pid, getpid());
        atomic_store(&accounts[i].started, started(getpid()));
        mine = &accounts[i];
    }
    if (!mine) refuse("EMULATED_GPU_STATE", setting("EMULATED_GPU_STATE", "?"), "more than 512 processes");
    return mine;
}

static inline void write_log(const char *format, ...) {
    const char *path = getenv("EMULATED_CUDA_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    va_list values;
    va_start(values, format);
    vfprintf(file, format, values);
    va_end(values);
    fclose(file);
}

/* Takes memory of a card, and a context where this process has none there yet: 0 if the card has no room for both. All
 * processes' sum is looked at and added to under one lock, or two could take the same. */
static inline int account_take(int gpu, size_t bytes) {
    open_accounts();
    flock(accounts_file, LOCK_EX);
    struct account *account = my_account();
    size_t context = atomic_load(&account->gpu[gpu].context) ? 0 : context_bytes();
    int fits = account_used(gpu) + context + bytes <= gpu_total(gpu);
    if (fits) {
        atomic_store(&account->gpu[gpu].context, 1);
        atomic_fetch_add(&account->gpu[gpu].bytes, bytes);
    }
    flock(accounts_file, LOCK_UN);
    if (fits && context) write_log("context %d %d\n", getpid(), gpu);
    return fits;
}

/* A forked process frees what was its parent's, which its parent still has. */
static inline void account_give(int gpu, size_t bytes) {
    if (opened_by == getpid()) atomic_fetch_sub(&mine->gpu[gpu].bytes, bytes);
}

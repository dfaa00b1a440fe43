/* A stand-in libnvidia-ml.so.1 for hosts without a GPU.
 *
 * Everything it tells comes from a file named by NVML_STUB_STATE, mapped shared: the test that
 * owns the file changes a field and the next call sees it. The Python twin of the structures is
 * state.py. -DOLD_DRIVER leaves out what a driver from before MIG does not have.
 *
 * Handles carry the number of the initialisation they were made in: one kept over a shutdown,
 * where the real library's is dangling, is refused.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };
enum { MAX_GPUS = 8, MAX_INSTANCES = 7, MAX_PROCESSES = 8, MAX_XIDS = 8 };

typedef struct {
    /* An empty slot has no slices. */
    uint32_t slices, gpu_instance, compute_instance, process;
    uint32_t gpm_busy_milliseconds[4];
    uint64_t memory_total_bytes, memory_used_bytes;
} instance_t;

typedef struct {
    uint64_t microseconds;
    uint32_t pid, sm_percent;
} process_sample_t;

typedef struct {
    /* What the calls return instead of OK; `error` is for all calls on an open handle. */
    uint32_t open_error, error, utilization_error, memory_error, power_error, energy_error,
        clock_error, processes_error, throttle_error, ecc_error, gpm_error, gpm_metric_error;
    uint32_t minor, utilization_percent, power_milliwatts, sm_clock_megahertz;
    uint64_t memory_total_bytes, memory_used_bytes, energy_millijoules;
    uint32_t process_count, processes[MAX_PROCESSES];
    uint32_t mig, unused;
    instance_t instances[MAX_INSTANCES];
    uint64_t throttle_reasons, ecc_errors[2];
    /* Running counters: the time that has passed and, in it, busy graphics, SM, tensor, DRAM. */
    uint32_t gpm_supported, gpm_milliseconds, gpm_busy_milliseconds[4];
    uint32_t events_error, sample_count;
    uint32_t temperature_error, field_error, celsius, memory_celsius, limit_milliwatts, limit_error;
    /* PCIe sent and received, NVLink sent and received, in all. */
    uint64_t link_mebibytes[4];
    process_sample_t samples[MAX_PROCESSES];
    uint64_t process_memory_bytes[MAX_PROCESSES];
} gpu_t;

/* An error that waits to be reported. */
typedef struct {
    uint32_t gpu, number, gpu_instance;
} xid_t;

typedef struct {
    uint32_t init_error, count_error, gpu_count;
    /* Counted by the stub. */
    uint32_t inits, shutdowns, process_calls, gpm_samples, event_sets;
    uint32_t xid_count;
    xid_t xids[MAX_XIDS];
    gpu_t gpus[MAX_GPUS];
} state_t;

typedef uintptr_t handle_t; /* generation << 16 | (gpu + 1) << 8 | (instance slot + 1, or 0) */

static state_t *state;
static unsigned references, generation;

static state_t *mapped(void) {
    struct stat file;
    const char *path = getenv("NVML_STUB_STATE");
    int fd = path ? open(path, O_RDWR) : -1;
    if (fd < 0 || fstat(fd, &file) || file.st_size != sizeof(state_t)) {
        fprintf(stderr, "NVML stub: NVML_STUB_STATE is no file of %zu bytes\n", sizeof(state_t));
        abort();
    }
    void *map = mmap(NULL, sizeof(state_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return map;
}

static handle_t handle_of(unsigned gpu, unsigned slot_plus_1) {
    return (handle_t)generation << 16 | (gpu + 1) << 8 | slot_plus_1;
}

static int find(handle_t handle, gpu_t **gpu, instance_t **instance) {
    unsigned number = (handle >> 8 & 0xff) - 1, slot_plus_1 = handle & 0xff;
    if (!references) return UNINITIALIZED;
    if (handle >> 16 != generation || number >= MAX_GPUS) return INVALID;
    *gpu = &state->gpus[number];
    *instance = slot_plus_1 ? &(*gpu)->instances[slot_plus_1 - 1] : NULL;
    return (*gpu)->error;
}

/* Every call on a device begins by finding it, or returns the error of the device. */
#define FIND                                      \
    gpu_t *gpu;                                   \
    instance_t *instance;                         \
    int error = find(handle, &gpu, &instance);    \
    if (error) return error
#define UNLESS(what) \
    if (gpu->what) return gpu->what

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!state) state = mapped();
    if (state->init_error) return state->init_error;
    state->inits++;
    if (!references++) generation++;
    return OK;
}

int nvmlShutdown(void) {
    if (!references) return UNINITIALIZED;
    state->shutdowns++;
    references--;
    return OK;
}

const char *nvmlErrorString(int error) {
    (void)error;
    return "an error of the stub";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "stub");
    return references ? OK : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!references) return UNINITIALIZED;
    *count = state->gpu_count;
    return state->count_error;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *handle) {
    if (!references) return UNINITIALIZED;
    if (index >= state->gpu_count) return INVALID;
    *handle = handle_of(index, 0);
    return state->gpus[index].open_error;
}

int nvmlDeviceGetUUID(handle_t handle, char *uuid, unsigned length) {
    FIND;
    unsigned number = gpu - state->gpus;
    if (instance)
        snprintf(uuid, length, "MIG-57ab0000-0000-0000-%04x-%012x", number,
                 (unsigned)(instance - gpu->instances));
    else
        snprintf(uuid, length, "GPU-57ab0000-0000-0000-0000-%012x", number);
    return OK;
}

int nvmlDeviceGetName(handle_t handle, char *name, unsigned length) {
    FIND;
    if (instance)
        snprintf(name, length, "Stub GPU MIG %ug", instance->slices);
    else
        snprintf(name, length, "Stub GPU");
    return OK;
}

int nvmlDeviceGetMinorNumber(handle_t handle, unsigned *minor) {
    FIND;
    *minor = gpu->minor;
    return instance ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetPciInfo_v3(handle_t handle, void *info) {
    FIND;
    struct {
        char legacy[16];
        uint32_t domain, bus, device, device_id, subsystem_id;
        char bus_id[32];
    } pci = {.bus = 16 + (gpu - state->gpus)};
    snprintf(pci.bus_id, sizeof pci.bus_id, "00000000:%02X:00.0", pci.bus);
    memcpy(info, &pci, sizeof pci);
    return OK;
}

int nvmlDeviceGetUtilizationRates(handle_t handle, uint32_t rates[2]) {
    FIND;
    UNLESS(utilization_error);
    if (gpu->mig) return NOT_SUPPORTED;
    rates[0] = gpu->utilization_percent;
    rates[1] = 0;
    return OK;
}

int nvmlDeviceGetMemoryInfo(handle_t handle, uint64_t memory[3]) {
    FIND;
    UNLESS(memory_error);
    uint64_t total = instance ? instance->memory_total_bytes : gpu->memory_total_bytes;
    uint64_t used = instance ? instance->memory_used_bytes : gpu->memory_used_bytes;
    memory[0] = total;
    memory[1] = total - used;
    memory[2] = used;
    return OK;
}

/* Power, like energy below, of an instance is that of its whole GPU: the trap for the reader. */
int nvmlDeviceGetPowerUsage(handle_t handle, uint32_t *milliwatts) {
    FIND;
    UNLESS(power_error);
    *milliwatts = gpu->power_milliwatts;
    return OK;
}

int nvmlDeviceGetClockInfo(handle_t handle, unsigned kind, uint32_t *megahertz) {
    FIND;
    UNLESS(clock_error);
    *megahertz = kind == 1 ? gpu->sm_clock_megahertz : 0;
    return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(handle_t handle, uint64_t *reasons) {
    FIND;
    UNLESS(throttle_error);
    *reasons = gpu->throttle_reasons;
    return instance ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetTemperature(handle_t handle, unsigned sensor, uint32_t *celsius) {
    FIND;
    UNLESS(temperature_error);
    if (sensor) return INVALID;
    *celsius = gpu->celsius;
    return instance ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetEnforcedPowerLimit(handle_t handle, uint32_t *milliwatts) {
    FIND;
    UNLESS(limit_error);
    *milliwatts = gpu->limit_milliwatts;
    return instance ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetFieldValues(handle_t handle, int count, void *told) {
    struct {
        uint32_t id, scope;
        int64_t microseconds, latency;
        uint32_t type, error;
        uint64_t value;
    } *fields = told;
    FIND;
    UNLESS(field_error);
    for (int i = 0; i < count; i++) {
        fields[i].error = fields[i].id == 82 ? OK : NOT_SUPPORTED;
        fields[i].value = gpu->memory_celsius;
    }
    return OK;
}

int nvmlDeviceGetTotalEccErrors(handle_t handle, unsigned kind, unsigned counter, uint64_t *told) {
    FIND;
    UNLESS(ecc_error);
    if (kind > 1 || counter != 1) return INVALID;
    *told = gpu->ecc_errors[kind];
    return OK;
}

typedef struct {
    uint32_t pid;
    uint64_t memory_used_bytes;
    uint32_t gpu_instance, compute_instance;
} process_t;

int nvmlDeviceGetComputeRunningProcesses_v2(handle_t handle, unsigned *count, process_t *told) {
    FIND;
    state->process_calls += told == NULL;
    UNLESS(processes_error);
    uint32_t *pids = instance ? &instance->process : gpu->processes;
    unsigned have = instance ? instance->process != 0 : gpu->process_count, room = *count;
    *count = have;
    if (room < have) return TOO_SMALL;
    for (unsigned i = 0; i < have; i++)
        told[i] = (process_t){.pid = pids[i],
                              .memory_used_bytes = instance ? 0 : gpu->process_memory_bytes[i]};
    return OK;
}

/* One set is enough: who registers a GPU with it is told the GPU's errors, one at a call. */
static unsigned registered[MAX_GPUS];

int nvmlEventSetCreate(void **set) {
    if (!references) return UNINITIALIZED;
    memset(registered, 0, sizeof registered);
    *set = registered;
    state->event_sets++;
    return OK;
}

int nvmlEventSetFree(void *set) {
    if (set != registered) return INVALID;
    state->event_sets--;
    return OK;
}

int nvmlDeviceRegisterEvents(handle_t handle, unsigned long long types, void *set) {
    FIND;
    if (instance || types != 8 || set != registered) return INVALID;
    UNLESS(events_error);
    registered[gpu - state->gpus] = 1;
    return OK;
}

int nvmlEventSetWait_v2(void *set, void *told, unsigned timeout_milliseconds) {
    struct {
        handle_t device;
        unsigned long long type, data;
        unsigned gpu_instance, compute_instance;
    } *event = told;
    if (!references) return UNINITIALIZED;
    if (set != registered || timeout_milliseconds) return INVALID; /* nobody here may wait */
    if (!state->xid_count) return TIMEOUT;
    xid_t xid = state->xids[0];
    memmove(state->xids, state->xids + 1, --state->xid_count * sizeof xid);
    if (!registered[xid.gpu]) return TIMEOUT;
    event->device = handle_of(xid.gpu, 0);
    event->type = 8;
    event->data = xid.number;
    event->gpu_instance = xid.gpu_instance;
    return OK;
}

int nvmlDeviceGetProcessUtilization(handle_t handle, process_sample_t *told, unsigned *count,
                                    unsigned long long after) {
    FIND;
    struct {
        unsigned pid;
        unsigned long long microseconds;
        unsigned sm, memory, encoder, decoder;
    } *samples = (void *)told;
    unsigned found = 0;
    if (instance) return NOT_SUPPORTED;
    for (unsigned i = 0; i < gpu->sample_count; i++) {
        process_sample_t *sample = &gpu->samples[i];
        if (sample->microseconds <= after) continue;
        if (samples && found < *count) {
            samples[found].pid = sample->pid;
            samples[found].microseconds = sample->microseconds;
            samples[found].sm = sample->sm_percent;
        }
        found++;
    }
    if (!found) return NOT_FOUND;
    unsigned room = samples ? *count : 0;
    *count = found;
    return found > room ? TOO_SMALL : OK;
}

#ifndef OLD_DRIVER

int nvmlDeviceGetComputeRunningProcesses_v3(handle_t handle, unsigned *count, process_t *told) {
    return nvmlDeviceGetComputeRunningProcesses_v2(handle, count, told);
}

int nvmlDeviceGetTotalEnergyConsumption(handle_t handle, uint64_t *millijoules) {
    FIND;
    UNLESS(energy_error);
    *millijoules = gpu->energy_millijoules;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(handle_t handle, void *told) {
    struct {
        uint32_t version;
        uint64_t total, reserved, free, used;
    } *memory = told;
    uint64_t answer[3];
    int error = nvmlDeviceGetMemoryInfo(handle, answer);
    if (error) return error;
    memory->total = answer[0];
    memory->reserved = 0;
    memory->free = answer[1];
    memory->used = answer[2];
    return OK;
}

int nvmlDeviceGetMigMode(handle_t handle, unsigned *current, unsigned *pending) {
    FIND;
    *current = *pending = gpu->mig;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t handle, unsigned *count) {
    FIND;
    *count = gpu->mig ? MAX_INSTANCES : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t handle, unsigned index, handle_t *made) {
    FIND;
    if (instance || index >= MAX_INSTANCES) return INVALID;
    if (!gpu->instances[index].slices) return NOT_FOUND;
    *made = handle_of(gpu - state->gpus, index + 1);
    return OK;
}

int nvmlDeviceGetGpuInstanceId(handle_t handle, unsigned *id) {
    FIND;
    if (!instance) return NOT_SUPPORTED;
    *id = instance->gpu_instance;
    return OK;
}

int nvmlDeviceGetComputeInstanceId(handle_t handle, unsigned *id) {
    FIND;
    if (!instance) return NOT_SUPPORTED;
    *id = instance->compute_instance;
    return OK;
}

int nvmlDeviceGetAttributes_v2(handle_t handle, void *told) {
    FIND;
    if (!instance) return NOT_SUPPORTED;
    struct {
        uint32_t multiprocessors, engines[5], gpu_slices, compute_slices;
        uint64_t memory_megabytes;
    } attributes = {.gpu_slices = MAX_INSTANCES, .compute_slices = instance->slices};
    memcpy(told, &attributes, sizeof attributes);
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(handle_t handle, uint64_t *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(handle, reasons);
}

typedef struct {
    uint32_t taken, milliseconds, busy_milliseconds[4], metric_error;
    uint64_t link_mebibytes[4];
} sample_t;

int nvmlGpmQueryDeviceSupport(handle_t handle, uint32_t told[2]) {
    FIND;
    if (told[0] != 1 || instance) return INVALID;
    told[1] = gpu->gpm_supported;
    return OK;
}

int nvmlGpmSampleAlloc(sample_t **sample) {
    if (!references) return UNINITIALIZED;
    *sample = calloc(1, sizeof(sample_t));
    state->gpm_samples++;
    return OK;
}

int nvmlGpmSampleFree(sample_t *sample) {
    free(sample);
    state->gpm_samples--;
    return OK;
}

static int take(gpu_t *gpu, const uint32_t *busy, sample_t *sample) {
    UNLESS(gpm_error);
    if (!gpu->gpm_supported) return NOT_SUPPORTED;
    *sample = (sample_t){1, gpu->gpm_milliseconds, {0}, gpu->gpm_metric_error, {0}};
    memcpy(sample->link_mebibytes, gpu->link_mebibytes, sizeof sample->link_mebibytes);
    memcpy(sample->busy_milliseconds, busy, sizeof sample->busy_milliseconds);
    return OK;
}

int nvmlGpmSampleGet(handle_t handle, sample_t *sample) {
    FIND;
    if (instance || gpu->mig) return NOT_SUPPORTED;
    return take(gpu, gpu->gpm_busy_milliseconds, sample);
}

int nvmlGpmMigSampleGet(handle_t handle, unsigned number, sample_t *sample) {
    FIND;
    if (instance) return INVALID; /* it wants the handle of the whole GPU */
    for (unsigned slot = 0; slot < MAX_INSTANCES; slot++) {
        instance = &gpu->instances[slot];
        if (instance->slices && instance->gpu_instance == number)
            return take(gpu, instance->gpm_busy_milliseconds, sample);
    }
    return INVALID;
}

int nvmlGpmMetricsGet(void *told) {
    struct {
        uint32_t version, count;
        sample_t *older, *newer;
        struct {
            uint32_t id, error;
            double value;
            char *names[3];
        } metrics[];
    } *question = told;
    const uint32_t ids[] = {1, 2, 5, 10}, links[] = {20, 21, 61, 60};
    if (!references) return UNINITIALIZED;
    if (question->version != 1 || !question->older->taken || !question->newer->taken)
        return INVALID;
    double passed = (double)question->newer->milliseconds - question->older->milliseconds;
    for (unsigned i = 0; i < question->count; i++) {
        question->metrics[i].error = INVALID;
        for (unsigned part = 0; part < 4; part++) {
            if (question->metrics[i].id != ids[part]) continue;
            /* The last of them only: one part may be told where another is not. */
            question->metrics[i].error = part == 3 ? question->newer->metric_error : OK;
            question->metrics[i].value = 100.0 *
                ((double)question->newer->busy_milliseconds[part] -
                 question->older->busy_milliseconds[part]) / passed;
        }
        for (unsigned link = 0; link < 4; link++) {
            if (question->metrics[i].id != links[link]) continue;
            question->metrics[i].error = question->newer->metric_error;
            question->metrics[i].value = 1000.0 *
                ((double)question->newer->link_mebibytes[link] -
                 question->older->link_mebibytes[link]) / passed;
        }
    }
    return OK;
}

#endif

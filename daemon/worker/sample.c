/* gpu-sample: prints power, clocks and errors of this machine's GPUs (daemon/devices/sample.h),
 * from NVIDIA's management library, which comes with the driver. Values whose function an older
 * driver lacks are omitted. */
#include <ctype.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/devices/sample.h"
#include "daemon/devices/xid.h"
#include "flags/flags.h"
#include "worker/nvml.h"
#include "worker/worker.h"

/* Numbers of NVML's stable binary interface (NVML API Reference). */
enum {
    NVML_SUCCESS = 0,
    NVML_CLOCK_SM = 1,
    NVML_CLOCK_MEM = 2,
    NVML_TEMPERATURE_GPU = 0,
    NVML_ECC_CORRECTED = 0,
    NVML_ECC_UNCORRECTED = 1,
    NVML_ECC_VOLATILE = 0, /* errors since the driver was loaded */
    NVML_THROTTLE_POWER = 0x4,
    NVML_THROTTLE_HARDWARE = 0x8,
    NVML_THROTTLE_THERMAL = 0x20 | 0x40, /* thermal throttling by software, by hardware */
    NVML_THROTTLE_BRAKE = 0x80,
};

struct nvml_rates {
    /* share of the time in which kernels ran, and in which memory was accessed, percent */
    unsigned gpu, memory;
};

struct nvml_memory {
    unsigned long long total, free, used;
};

/* X(member of struct nvml_sampler, symbol in the library, arguments after the device) */
#define NVML_CALLS(X)                                                                        \
    X(uuid, "nvmlDeviceGetUUID", (void *, char *, unsigned))                                 \
    X(pci, "nvmlDeviceGetPciInfo_v3", (void *, struct hd_nvml_pci *))                        \
    X(power, "nvmlDeviceGetPowerUsage", (void *, unsigned *))                                \
    X(limit, "nvmlDeviceGetEnforcedPowerLimit", (void *, unsigned *))                        \
    X(energy, "nvmlDeviceGetTotalEnergyConsumption", (void *, unsigned long long *))         \
    X(temperature, "nvmlDeviceGetTemperature", (void *, int, unsigned *))                    \
    X(clock, "nvmlDeviceGetClockInfo", (void *, int, unsigned *))                            \
    X(clock_max, "nvmlDeviceGetMaxClockInfo", (void *, int, unsigned *))                     \
    X(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons", (void *, unsigned long long *)) \
    X(rates, "nvmlDeviceGetUtilizationRates", (void *, struct nvml_rates *))                 \
    X(memory, "nvmlDeviceGetMemoryInfo", (void *, struct nvml_memory *))                     \
    X(ecc, "nvmlDeviceGetTotalEccErrors", (void *, int, int, unsigned long long *))

struct nvml_sampler {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*at)(unsigned index, void **device);
#define X(name, symbol, arguments) int(*name) arguments;
    NVML_CALLS(X)
#undef X
};

static void find(void *library, const char *symbol, void *place)
{
    void *found = dlsym(library, symbol);

    memcpy(place, &found, sizeof found);
}

static enum hd_status load_sampler(struct nvml_sampler *n)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library)
        return hd_err(HD_NOT_FOUND, "NVIDIA's management library is not there: %s", dlerror());
    find(library, "nvmlInit_v2", &n->init);
    find(library, "nvmlShutdown", &n->shutdown);
    find(library, "nvmlDeviceGetCount_v2", &n->count);
    find(library, "nvmlDeviceGetHandleByIndex_v2", &n->at);
#define X(name, symbol, arguments) find(library, symbol, &n->name);
    NVML_CALLS(X)
#undef X
    if (!n->init || !n->shutdown || !n->count || !n->at || !n->uuid)
        return hd_err(HD_UNSUPPORTED, "NVIDIA's management library is too old");
    return n->init() == NVML_SUCCESS
               ? HD_OK
               : hd_err(HD_IO, "NVIDIA's management library does not start; is the driver loaded?");
}

/* Calls the function `name` for the device if the library has it; true if the call succeeded. */
#define ASK(n, name, ...) ((n)->name && (n)->name(__VA_ARGS__) == NVML_SUCCESS)

static void sample_speed(const struct nvml_sampler *n, void *device, struct hd_sample *s)
{
    unsigned long long reasons;
    struct nvml_rates rates;
    unsigned mhz;

    if (ASK(n, clock, device, NVML_CLOCK_SM, &mhz))
        s->sm_hertz = 1e6 * mhz;
    if (ASK(n, clock, device, NVML_CLOCK_MEM, &mhz))
        s->memory_hertz = 1e6 * mhz;
    if (ASK(n, clock_max, device, NVML_CLOCK_SM, &mhz))
        s->sm_hertz_max = 1e6 * mhz;
    if (ASK(n, clock_max, device, NVML_CLOCK_MEM, &mhz))
        s->memory_hertz_max = 1e6 * mhz;
    if (ASK(n, throttle, device, &reasons)) {
        s->throttled_power = (reasons & NVML_THROTTLE_POWER) != 0;
        s->throttled_thermal = (reasons & NVML_THROTTLE_THERMAL) != 0;
        s->throttled_hardware = (reasons & NVML_THROTTLE_HARDWARE) != 0;
        s->throttled_brake = (reasons & NVML_THROTTLE_BRAKE) != 0;
    }
    if (ASK(n, rates, device, &rates))
        s->busy_ratio = rates.gpu / 100.0;
}

static void sample_device(const struct nvml_sampler *n, void *device, struct hd_sample *s)
{
    unsigned long long large;
    struct nvml_memory memory;
    unsigned number;

    if (ASK(n, power, device, &number))
        s->power_watts = number / 1e3;
    if (ASK(n, limit, device, &number))
        s->power_limit_watts = number / 1e3;
    if (ASK(n, energy, device, &large))
        s->energy_joules = (double)large / 1e3;
    if (ASK(n, temperature, device, NVML_TEMPERATURE_GPU, &number))
        s->temperature_celsius = number;
    if (ASK(n, memory, device, &memory)) {
        s->memory_used_bytes = (double)memory.used;
        s->memory_bytes = (double)memory.total;
    }
    if (ASK(n, ecc, device, NVML_ECC_CORRECTED, NVML_ECC_VOLATILE, &large))
        s->ecc_corrected = (double)large;
    if (ASK(n, ecc, device, NVML_ECC_UNCORRECTED, NVML_ECC_VOLATILE, &large))
        s->ecc_uncorrected = (double)large;
    sample_speed(n, device, s);
}

/* Copies the GPU's PCI address from NVML; NVML writes eight digits of the domain, the kernel's log
 * four. */
static void take_bus(const struct nvml_sampler *n, void *device, struct hd_gpu *gpu)
{
    struct hd_nvml_pci pci = {0};
    size_t length;

    if (!ASK(n, pci, device, &pci))
        return;
    length = strlen(pci.bus_id);
    (void)snprintf(gpu->bus, sizeof gpu->bus, "%s", pci.bus_id + (length > 12 ? length - 12 : 0));
    for (char *p = gpu->bus; *p; p++)
        *p = (char)tolower((unsigned char)*p);
}

/* Adds the GPUs' errors in the kernel's log to the samples; they are unknown if this process may
 * not read the log. */
static void take_errors(struct hd_gpu_list *gpus, struct hd_sample_list *list)
{
    if (hd_xid_read(HD_XID_LOG, gpus))
        return;
    for (int i = 0; i < list->count; i++) {
        long xid = 0;

        (void)sscanf(gpus->gpus[i].fault, "Xid %ld:", &xid);
        list->samples[i].xid = (double)xid;
    }
}

static enum hd_status sample_all(struct hd_sample_list *list, struct hd_gpu_list *gpus)
{
    struct nvml_sampler n = {0};
    unsigned count = 0;
    enum hd_status st = load_sampler(&n);

    if (st)
        return st;
    if (n.count(&count) != NVML_SUCCESS) {
        (void)n.shutdown();
        return hd_err(HD_IO,
                      "NVIDIA's management library cannot count the GPUs; see nvidia-smi and "
                      "dmesg");
    }
    for (unsigned i = 0; i < count && i < HD_GPU_MAX; i++) {
        struct hd_sample *s = &list->samples[list->count];
        void *device;

        hd_sample_clear(s);
        if (n.at(i, &device) != NVML_SUCCESS ||
            n.uuid(device, s->uuid, sizeof s->uuid) != NVML_SUCCESS)
            continue;
        sample_device(&n, device, s);
        take_bus(&n, device, &gpus->gpus[list->count]);
        gpus->count = ++list->count;
    }
    (void)n.shutdown();
    if (count && !list->count)
        return hd_err(HD_IO,
                      "NVIDIA's management library answers for none of %u GPUs; see nvidia-smi "
                      "and dmesg",
                      count);
    take_errors(gpus, list);
    return HD_OK;
}

int hd_worker_gpu_sample(int argc, char **argv)
{
    struct hd_sample_list *list = calloc(1, sizeof *list);
    struct hd_gpu_list *gpus = calloc(1, sizeof *gpus);
    struct hd_text json = {0};
    enum hd_status st = list && gpus ? hd_flags_read(argc, argv, NULL, 0, false)
                                     : hd_err(HD_NO_MEMORY, "no memory for a sample");

    if (!st)
        st = sample_all(list, gpus);
    if (!st) {
        hd_sample_list_write(list, &json);
        hd_text_add(&json, "\n");
    }
    st = hd_worker_print(st, &json);
    free(list);
    free(gpus);
    return hd_worker_finish("gpu-sample", st);
}

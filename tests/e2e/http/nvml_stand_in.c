/* A stand-in for NVIDIA's management library, with one GPU whose values the scenario knows. Loaded
 * as libnvidia-ml.so.1. It does not know the limit of power, as an old driver. With NVML_HANGS set
 * it answers nothing, as a driver whose GPU is broken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct rates {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size);
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *mw);
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj);
EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
EXPORT int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz);
EXPORT int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);
EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct rates *rates);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
EXPORT int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter,
                                       unsigned long long *count);

int nvmlInit_v2(void)
{
    const char *hangs = getenv("NVML_HANGS");

    while (hangs && access(hangs, F_OK) == 0)
        (void)sleep(1);
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 1;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    static int only;

    *device = &only;
    return index != 0;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
    (void)snprintf(uuid, size, "GPU-a");
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *mw)
{
    *mw = 412345;
    return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj)
{
    *mj = 7000500;
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    *celsius = 61;
    return 0;
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz)
{
    *mhz = type == 1 ? 1755 : 2619;
    return 0;
}

int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz)
{
    *mhz = type == 1 ? 1980 : 2619;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
    *reasons = 0x4 | 0x40; /* power, and thermal by hardware */
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, struct rates *rates)
{
    *rates = (struct rates){87, 30};
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    *memory = (struct memory){85899345920, 5899345920, 80000000000};
    return 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count)
{
    *count = type == 0 ? 12 : 0;
    return 0;
}

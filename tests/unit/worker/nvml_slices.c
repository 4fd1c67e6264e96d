/* A stand-in for NVIDIA's management library: a GPU that is divided into three slices, of which the second
 * place is empty, and two GPUs that are not divided, one of them too old. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct memory {
    unsigned long long total, free, used;
};
struct pci {
    char legacy[16];
    unsigned numbers[5];
    char bus_id[32];
};

static char gpus[3], slices[4];

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending);
EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count);
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice);
EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size);
EXPORT int nvmlDeviceGetName(void *device, char *name, unsigned size);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
EXPORT int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci);
EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 3;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &gpus[index];
    return 0;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    *current = *pending = device == &gpus[0];
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count)
{
    *count = 4;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice)
{
    *slice = &slices[index];
    return index == 1 ? 6 /* not found */ : 0;
}

static int number_of(const void *device)
{
    return (int)((const char *)device - slices);
}

static bool is_whole(const void *device)
{
    return device == &gpus[1] || device == &gpus[2];
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
    if (is_whole(device))
        (void)snprintf(uuid, size, device == &gpus[1] ? "GPU-whole" : "GPU-old");
    else
        (void)snprintf(uuid, size, "MIG-%d", number_of(device));
    return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size)
{
    (void)snprintf(name, size, "NVIDIA A100%s", is_whole(device) ? "" : " MIG 1g.5gb");
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    memory->total = is_whole(device) ? 40u : 5u;
    return 0;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    (void)snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%s:00.0",
                   device == &gpus[1]   ? "3B"
                   : device == &gpus[2] ? "5E"
                                        : "1A");
    return device == &gpus[0] || is_whole(device) ? 0 : 2; /* a slice has no address of its own */
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    *major = device == &gpus[2] ? 7 : 8;
    *minor = device == &gpus[2] ? 5 : 0;
    return 0;
}

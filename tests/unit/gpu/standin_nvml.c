/* A library with NVML's names, and GPUs as $STANDIN_NVML says: words of KEY=NUMBER, a blank
 * between.
 *
 *   gpus=N     so many, of 80 GiB with 4 NVLinks, the last of which is down (default 1)
 *   init=E     nvmlInit fails with that error      count=E    so does the number of GPUs
 *   lost=I     every question to GPU I fails with 15 (GPU is lost)
 *   shared=I   GPU I has no memory of its own, and none to tell (3)
 *   deaf=I     GPU I knows no question but the first ones (3, not supported)
 *   rare=E     every GPU answers those with error E
 *   mute=I     not even GPU I's handle can be had
 *   mig=I mode=I old=I ecc=I pending=I narrow=I    GPU I is in MIG mode, prohibited, of capability
 *              7.0, has 5 errors, a row to remap, 8 of its 16 lanes
 *   hang=1     nvmlInit never returns
 *
 * GPU I has bus 0000:1I:00.0 and the UUID of $STANDIN_NVML_UUID, or one that ends in I. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct memory {
    unsigned long long total, free, used;
};
struct pci {
    char bus_legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char bus_id[32];
};

enum { NOT_SUPPORTED = 3, LOST = 15 };

/* -1: the word is not there. */
static int asked(const char *key)
{
    const char *text = getenv("STANDIN_NVML"), *at = text ? text : "";
    const size_t n = strlen(key);

    for (; at && *at; at = strchr(at, ' '), at = at ? at + 1 : NULL)
        if (strncmp(at, key, n) == 0 && at[n] == '=')
            return atoi(at + n + 1);
    return -1;
}

static char places[64]; /* a handle is the address of one */

static int index_of(const void *handle)
{
    return (int)((const char *)handle - places);
}

static int fate(const void *handle)
{
    return asked("lost") == index_of(handle) ? LOST : 0;
}

static int rare(const void *handle) /* what not every GPU can answer */
{
    if (asked("rare") > 0)
        return asked("rare");
    return asked("deaf") == index_of(handle) ? NOT_SUPPORTED : fate(handle);
}

EXPORT int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    while (asked("hang") == 1)
        (void)pause();
    return asked("init") > 0 ? asked("init") : 0;
}

EXPORT int nvmlShutdown(void);
int nvmlShutdown(void)
{
    return 0;
}

EXPORT const char *nvmlErrorString(int result);
const char *nvmlErrorString(int result)
{
    return result == LOST ? "GPU is lost" : "Stand-in error";
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size);
int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    (void)snprintf(text, size, "580.65.06");
    return 0;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version);
int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = 13000;
    return 0;
}

#ifndef STANDIN_NO_COUNT
EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)(asked("gpus") < 0 ? 1 : asked("gpus"));
    return asked("count") > 0 ? asked("count") : 0;
}
#endif

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle)
{
    *handle = &places[i];
    return asked("mute") == (int)i ? LOST : 0;
}

EXPORT int nvmlDeviceGetName(void *handle, char *text, unsigned size);
int nvmlDeviceGetName(void *handle, char *text, unsigned size)
{
    (void)snprintf(text, size, "Stand-in H%d00", index_of(handle) + 1);
    return fate(handle);
}

EXPORT int nvmlDeviceGetUUID(void *handle, char *text, unsigned size);
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size)
{
    const char *given = getenv("STANDIN_NVML_UUID");

    if (given)
        (void)snprintf(text, size, "%s", given);
    else
        (void)snprintf(text, size, "GPU-00000000-0000-0000-0000-%012d", index_of(handle));
    return fate(handle);
}

EXPORT int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory);
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory)
{
    if (asked("shared") == index_of(handle))
        return NOT_SUPPORTED;
    *memory = (struct memory){.total = 80ull << 30, .used = 2ull << 30, .free = 78ull << 30};
    return fate(handle);
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci);
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci)
{
    *pci = (struct pci){.bus = 0x10u + (unsigned)index_of(handle)};
    return fate(handle);
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor);
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    *major = asked("old") == index_of(handle) ? 7 : 9;
    *minor = 0;
    return fate(handle);
}

EXPORT int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius);
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius)
{
    (void)sensor;
    *celsius = 41u + (unsigned)index_of(handle);
    return rare(handle);
}

#ifndef STANDIN_OLD
EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *value);
int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *value)
{
    *value = 1;
    return rare(handle);
}

EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value);
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value)
{
    *value = 5;
    return rare(handle);
}

EXPORT int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value);
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value)
{
    *value = asked("narrow") == index_of(handle) ? 8 : 16;
    return rare(handle);
}

EXPORT int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *value);
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *value)
{
    *value = 16;
    return rare(handle);
}

EXPORT int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active);
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active)
{
    *active = link < 3;
    return link < 4 ? rare(handle) : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *pci);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *pci)
{
    *pci =
        (struct pci){.bus = link < 2 ? 0xa0 : 0xa1}; /* two links to one switch, one to another */
    return rare(handle);
}

EXPORT int nvmlDeviceGetEccMode(void *handle, int *mode, int *pending);
int nvmlDeviceGetEccMode(void *handle, int *mode, int *pending)
{
    *mode = *pending = 1;
    return rare(handle);
}

EXPORT int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter,
                                       unsigned long long *count);
int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *count)
{
    *count = type == 1 && counter == 0 && asked("ecc") == index_of(handle) ? 5 : 0;
    return rare(handle);
}

EXPORT int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected,
                                     unsigned *pending, unsigned *failed);
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    *corrected = *uncorrected = *failed = 0;
    *pending = asked("pending") == index_of(handle);
    return rare(handle);
}

EXPORT int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending);
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    *current = *pending = asked("mig") == index_of(handle);
    return rare(handle);
}

EXPORT int nvmlDeviceGetComputeMode(void *handle, int *mode);
int nvmlDeviceGetComputeMode(void *handle, int *mode)
{
    *mode = asked("mode") == index_of(handle) ? 2 : 0;
    return rare(handle);
}
#endif

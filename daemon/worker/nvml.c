#include "worker/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Part of NVML's interface that is used here (NVML API Reference, NvLink and field values): layouts
 * and numbers are part of its stable binary interface. */
enum {
    NVML_SUCCESS = 0,
    NVML_LINKS_MAX = 18,        /* NVML_NVLINK_MAX_LINKS */
    NVML_FIELD_LINK_SPEED = 90, /* NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: MB/s, one direction */
    NVML_REMOTE_GPU = 0,        /* value of nvmlIntNvLinkDeviceType_t: the link leads to a GPU */
    NVML_REMOTE_SWITCH = 2,
    NVML_VALUE_UNSIGNED_INT = 1, /* value of nvmlValueType_t: the field is an unsigned int */
};

struct nvml_field {
    unsigned field, scope;
    long long timestamp, latency_us;
    int value_type, status;
    union {
        double real;
        unsigned number;
        unsigned long long large;
    } value;
};

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *uuid, void **device);
    int (*link_state)(void *device, unsigned link, int *active);
    int (*remote_pci)(void *device, unsigned link, struct hd_nvml_pci *pci);
    int (*remote_type)(void *device, unsigned link, int *type);
    int (*fields)(void *device, int count, struct nvml_field *fields);
};

struct nvml_function {
    const char *name;
    void *place; /* of the pointer to it */
};

/* Loads the library and its functions, of which the first one initializes it. */
static bool load_functions(const struct nvml_function *functions, size_t count, int (**init)(void))
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; library && i < count; i++) {
        void *symbol = dlsym(library, functions[i].name);

        if (!symbol)
            return false;
        memcpy(functions[i].place, &symbol, sizeof symbol);
    }
    return library && (*init)() == NVML_SUCCESS;
}

static bool load_nvml(struct nvml *n)
{
    const struct nvml_function functions[] = {
        {"nvmlInit_v2", &n->init},
        {"nvmlShutdown", &n->shutdown},
        {"nvmlDeviceGetHandleByUUID", &n->find},
        {"nvmlDeviceGetNvLinkState", &n->link_state},
        {"nvmlDeviceGetNvLinkRemotePciInfo_v2", &n->remote_pci},
        {"nvmlDeviceGetNvLinkRemoteDeviceType", &n->remote_type},
        {"nvmlDeviceGetFieldValues", &n->fields},
    };

    return load_functions(functions, sizeof functions / sizeof functions[0], &n->init);
}

static double link_bytes_per_s(const struct nvml *n, void *device)
{
    struct nvml_field field = {.field = NVML_FIELD_LINK_SPEED};

    if (n->fields(device, 1, &field) != NVML_SUCCESS || field.status != NVML_SUCCESS ||
        field.value_type != NVML_VALUE_UNSIGNED_INT)
        return 0;
    return 1e6 * field.value.number;
}

/* Returns true if two PCI addresses are equal: NVML writes eight digits of the domain, CUDA
 * four. */
static bool is_same_bus(const char *nvml, const char *cuda)
{
    const size_t a = strlen(nvml), b = strlen(cuda);

    return a >= b && strcasecmp(nvml + a - b, cuda) == 0;
}

static int find_bus(const char *bus_id, const char *const *buses, int count)
{
    for (int i = 0; i < count; i++)
        if (is_same_bus(bus_id, buses[i]))
            return i;
    return -1;
}

void hd_nvml_add_links(struct hd_inventory *v, const char *const *buses)
{
    int to_switch[HD_INVENTORY_GPUS_MAX] = {0};
    double speed[HD_INVENTORY_GPUS_MAX] = {0};
    struct nvml n = {0};
    const bool loaded = load_nvml(&n);

    for (int g = 0; loaded && g < v->gpu_count; g++) {
        int to_gpu[HD_INVENTORY_GPUS_MAX] = {0};
        void *device;

        if (n.find(v->gpus[g].uuid, &device) != NVML_SUCCESS)
            continue;
        speed[g] = link_bytes_per_s(&n, device);
        for (unsigned link = 0; link < NVML_LINKS_MAX; link++) {
            struct hd_nvml_pci pci = {0};
            int active = 0, type = NVML_REMOTE_GPU, other;

            if (n.link_state(device, link, &active) != NVML_SUCCESS || !active)
                continue;
            /* left out by older drivers, which have no such function: the link then counts as one
             * between GPUs */
            (void)n.remote_type(device, link, &type);
            if (type == NVML_REMOTE_SWITCH) {
                to_switch[g]++;
                continue;
            }
            if (n.remote_pci(device, link, &pci) != NVML_SUCCESS)
                continue;
            other = find_bus(pci.bus_id, buses, v->gpu_count);
            if (other >= 0 && other != g)
                to_gpu[other]++;
        }
        for (int other = 0; other < v->gpu_count; other++)
            if (to_gpu[other])
                hd_inventory_add_nvlink(v, g, other, to_gpu[other], speed[g], false);
    }
    for (int a = 0; a < v->gpu_count; a++)
        for (int b = 0; b < a; b++)
            if (to_switch[a] && to_switch[b])
                hd_inventory_add_nvlink(v, a, b,
                                        to_switch[a] < to_switch[b] ? to_switch[a] : to_switch[b],
                                        speed[a] < speed[b] ? speed[a] : speed[b], true);
    if (loaded)
        (void)n.shutdown(); /* the library stays loaded: the process ends soon */
}

/* ---- Slices ---- */

struct nvml_bytes {
    unsigned long long total, free, used;
};

struct nvml_devices {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*device)(unsigned index, void **device);
    int (*mig_mode)(void *device, unsigned *current, unsigned *pending);
    int (*slices_max)(void *device, unsigned *count);
    int (*slice)(void *device, unsigned index, void **slice);
    int (*uuid)(void *device, char *uuid, unsigned size);
    int (*name)(void *device, char *name, unsigned size);
    int (*memory)(void *device, struct nvml_bytes *memory);
    int (*pci)(void *device, struct hd_nvml_pci *pci);
    int (*capability)(void *device, int *major, int *minor);
};

static bool load_devices(struct nvml_devices *n)
{
    const struct nvml_function functions[] = {
        {"nvmlInit_v2", &n->init},
        {"nvmlShutdown", &n->shutdown},
        {"nvmlDeviceGetCount_v2", &n->count},
        {"nvmlDeviceGetHandleByIndex_v2", &n->device},
        {"nvmlDeviceGetMigMode", &n->mig_mode},
        {"nvmlDeviceGetMaxMigDeviceCount", &n->slices_max},
        {"nvmlDeviceGetMigDeviceHandleByIndex", &n->slice},
        {"nvmlDeviceGetUUID", &n->uuid},
        {"nvmlDeviceGetName", &n->name},
        {"nvmlDeviceGetMemoryInfo", &n->memory},
        {"nvmlDeviceGetPciInfo_v3", &n->pci},
        {"nvmlDeviceGetCudaComputeCapability", &n->capability},
    };

    return load_functions(functions, sizeof functions / sizeof functions[0], &n->init);
}

/* Describes a slice, or a whole GPU, on the bus of `device`. Returns false if the driver does not tell what
 * it is. */
static bool describe(const struct nvml_devices *n, void *device, void *slice,
                     const struct hd_gpu_list *list, struct hd_gpu *ret_gpu)
{
    struct nvml_bytes memory = {0};
    struct hd_nvml_pci pci = {0};
    struct hd_gpu gpu = {0};
    const struct hd_gpu *known;
    int major, minor;

    if (n->uuid(slice, gpu.uuid, sizeof gpu.uuid) != NVML_SUCCESS)
        return false;
    known = hd_gpu_find(list, gpu.uuid);
    if (known) {
        *ret_gpu = *known; /* as CUDA told it */
        return true;
    }
    if (n->name(slice, gpu.name, sizeof gpu.name) != NVML_SUCCESS ||
        n->memory(slice, &memory) != NVML_SUCCESS || n->pci(device, &pci) != NVML_SUCCESS)
        return false;
    if (n->capability(device, &major, &minor) == NVML_SUCCESS)
        hd_gpu_judge_capability(10 * major + minor, &gpu);
    gpu.memory_bytes = (int64_t)memory.total;
    /* the domain has eight digits here and four in CUDA */
    (void)snprintf(gpu.bus, sizeof gpu.bus, "%.*s", (int)sizeof gpu.bus - 1,
                   pci.bus_id + (strlen(pci.bus_id) > 12 ? strlen(pci.bus_id) - 12 : 0));
    *ret_gpu = gpu;
    return true;
}

/* Lists slices and whole GPUs in the driver's order. Returns their number. */
static int64_t list_devices(const struct nvml_devices *n, const struct hd_gpu_list *list,
                            struct hd_gpu ret_gpus[HD_GPU_MAX])
{
    int64_t found = 0;
    unsigned count = 0;

    if (n->count(&count) != NVML_SUCCESS)
        return 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned is_divided = 0, pending = 0, slices = 0;
        void *device, *slice;

        if (n->device(i, &device) != NVML_SUCCESS)
            continue;
        if (n->mig_mode(device, &is_divided, &pending) != NVML_SUCCESS)
            is_divided = 0;
        if (is_divided && n->slices_max(device, &slices) != NVML_SUCCESS)
            continue;
        for (unsigned k = 0; k < (is_divided ? slices : 1) && found < HD_GPU_MAX; k++) {
            if (!is_divided)
                slice = device;
            else if (n->slice(device, k, &slice) != NVML_SUCCESS)
                continue; /* an empty place */
            found += describe(n, device, slice, list, &ret_gpus[found]);
        }
    }
    return found;
}

void hd_nvml_add_slices(struct hd_gpu_list *list)
{
    struct nvml_devices n = {0};
    struct hd_gpu *gpus;
    bool has_slice = false;
    int64_t count;

    for (int64_t i = 0; i < list->count; i++)
        has_slice = has_slice || !strncmp(list->gpus[i].uuid, "MIG-", 4);
    if (!has_slice || !load_devices(&n))
        return;
    gpus = calloc(HD_GPU_MAX, sizeof *gpus);
    count = gpus ? list_devices(&n, list, gpus) : 0;
    /* a slice that CUDA names in a way by which the driver does not know it is one of the driver's */
    if (count && count >= list->count) {
        memcpy(list->gpus, gpus, (size_t)count * sizeof *gpus);
        list->count = count;
    }
    free(gpus);
    (void)n.shutdown();
}

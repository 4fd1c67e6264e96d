#include "worker/nvml.h"

#include <dlfcn.h>
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
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *uuid, void **device);
    int (*link_state)(void *device, unsigned link, int *active);
    int (*remote_pci)(void *device, unsigned link, struct hd_nvml_pci *pci);
    int (*remote_type)(void *device, unsigned link, int *type);
    int (*fields)(void *device, int count, struct nvml_field *fields);
};

static bool load_nvml(struct nvml *n)
{
    static const char *const names[] = {"nvmlInit_v2",
                                        "nvmlShutdown",
                                        "nvmlDeviceGetHandleByUUID",
                                        "nvmlDeviceGetNvLinkState",
                                        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
                                        "nvmlDeviceGetNvLinkRemoteDeviceType",
                                        "nvmlDeviceGetFieldValues"};
    void *const places[] = {&n->init,       &n->shutdown,    &n->find,  &n->link_state,
                            &n->remote_pci, &n->remote_type, &n->fields};

    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; n->library && i < sizeof names / sizeof names[0]; i++) {
        void *symbol = dlsym(n->library, names[i]);

        if (!symbol)
            return false;
        memcpy(places[i], &symbol, sizeof symbol);
    }
    return n->library && n->init() == NVML_SUCCESS;
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

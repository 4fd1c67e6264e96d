#include "daemon/gpu/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ---- what we need of NVML's interface ---- */

struct handle; /* of a GPU */

struct memory {
    unsigned long long total, free, used;
};

struct pci {
    char bus_legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char bus_id[32];
};

enum {
    SUCCESS = 0,
    NOT_SUPPORTED = 3,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    MISMATCH = 18,
};
enum { LINKS_MAX = 18, TEXT_MAX = 96, VERSION_MAX = 80 };
enum { CORRECTED = 0, UNCORRECTED = 1, SINCE_LOADED = 0, SENSOR_GPU = 0 };

/* member, symbol, arguments; the first ones are in every library there is */
#define CALLS(X, Y)                                                                               \
    X(init, nvmlInit_v2, (void))                                                                  \
    X(shutdown, nvmlShutdown, (void))                                                             \
    X(count, nvmlDeviceGetCount_v2, (unsigned *))                                                 \
    X(handle, nvmlDeviceGetHandleByIndex_v2, (unsigned, struct handle **))                        \
    X(name, nvmlDeviceGetName, (struct handle *, char *, unsigned))                               \
    X(uuid, nvmlDeviceGetUUID, (struct handle *, char *, unsigned))                               \
    X(memory, nvmlDeviceGetMemoryInfo, (struct handle *, struct memory *))                        \
    Y(driver, nvmlSystemGetDriverVersion, (char *, unsigned))                                     \
    Y(cuda, nvmlSystemGetCudaDriverVersion_v2, (int *))                                           \
    Y(pci, nvmlDeviceGetPciInfo_v3, (struct handle *, struct pci *))                              \
    Y(capability, nvmlDeviceGetCudaComputeCapability, (struct handle *, int *, int *))            \
    Y(temperature, nvmlDeviceGetTemperature, (struct handle *, int, unsigned *))                  \
    Y(generation, nvmlDeviceGetCurrPcieLinkGeneration, (struct handle *, unsigned *))             \
    Y(generation_max, nvmlDeviceGetMaxPcieLinkGeneration, (struct handle *, unsigned *))          \
    Y(width, nvmlDeviceGetCurrPcieLinkWidth, (struct handle *, unsigned *))                       \
    Y(width_max, nvmlDeviceGetMaxPcieLinkWidth, (struct handle *, unsigned *))                    \
    Y(link_state, nvmlDeviceGetNvLinkState, (struct handle *, unsigned, int *))                   \
    Y(link_peer, nvmlDeviceGetNvLinkRemotePciInfo_v2, (struct handle *, unsigned, struct pci *))  \
    Y(ecc_mode, nvmlDeviceGetEccMode, (struct handle *, int *, int *))                            \
    Y(ecc_errors, nvmlDeviceGetTotalEccErrors, (struct handle *, int, int, unsigned long long *)) \
    Y(remapped, nvmlDeviceGetRemappedRows,                                                        \
      (struct handle *, unsigned *, unsigned *, unsigned *, unsigned *))                          \
    Y(mig_mode, nvmlDeviceGetMigMode, (struct handle *, unsigned *, unsigned *))                  \
    Y(compute_mode, nvmlDeviceGetComputeMode, (struct handle *, int *))

struct nvml {
    void *library;
    const char *(*error_string)(int result);
#define X(member, symbol, arguments) int(*member) arguments;
    CALLS(X, X)
#undef X
};

static enum hd_status load(const char *library, struct nvml *nvml)
{
    const char *why;

    nvml->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    why = nvml->library ? NULL : dlerror();
    if (!nvml->library && strstr(why, "cannot open shared object"))
        return hd_err(HD_UNSUPPORTED, "no NVIDIA driver: %s is not there", library);
    if (!nvml->library)
        return hd_err(HD_UNSUPPORTED, "cannot load %s: %s", library, why);
    *(void **)&nvml->error_string = dlsym(nvml->library, "nvmlErrorString");
#define X(member, symbol, arguments)                         \
    *(void **)&nvml->member = dlsym(nvml->library, #symbol); \
    if (!nvml->member)                                       \
        return hd_err(HD_UNSUPPORTED, "%s has no " #symbol, library);
#define Y(member, symbol, arguments) *(void **)&nvml->member = dlsym(nvml->library, #symbol);
    CALLS(X, Y)
#undef X
#undef Y
    return HD_OK;
}

static enum hd_status failed(const struct nvml *nvml, const char *what, int result)
{
    const char *hint = result == DRIVER_NOT_LOADED
                           ? "; the kernel's module is not loaded: modprobe "
                             "nvidia, or see dmesg"
                       : result == MISMATCH ? "; the library is newer or older than the kernel's "
                                              "module: reboot, or load the module anew"
                                            : "";

    return hd_err(HD_UNSUPPORTED, "NVML: %s: error %d (%s)%s", what, result,
                  nvml->error_string ? nvml->error_string(result) : "?", hint);
}

/* ---- one GPU ---- */

struct query {
    const struct nvml *nvml;
    struct handle *handle;
    struct hd_gpu *gpu;
};

/* Whether a question was answered. One without whose answer nothing can compute makes the GPU
 * unusable (NEED), and so do the two errors that speak of the GPU itself, whatever was asked. The
 * rest (not supported, not allowed in a container, given up by a newer driver) is not known (ASK).
 * The first problem stays. */
static bool answered(struct query *q, const char *what, bool needed, int result)
{
    if (result == SUCCESS)
        return true;
    if ((needed || result == GPU_IS_LOST || result == RESET_REQUIRED) && !q->gpu->problem[0])
        (void)snprintf(q->gpu->problem, sizeof q->gpu->problem, "asked for its %s: error %d (%s)%s",
                       what, result, q->nvml->error_string ? q->nvml->error_string(result) : "?",
                       result == GPU_IS_LOST      ? "; it fell off the bus: see dmesg, reboot"
                       : result == RESET_REQUIRED ? "; nvidia-smi -r resets it"
                                                  : "");
    return false;
}
#define NEED(q, member, what, ...) \
    answered(q, what, true, (q)->nvml->member((q)->handle, __VA_ARGS__))
#define ASK(q, member, what, ...) \
    ((q)->nvml->member && answered(q, what, false, (q)->nvml->member((q)->handle, __VA_ARGS__)))

static void format_bus(const struct pci *pci, char ret_bus[HD_GPU_BUS_MAX])
{
    (void)snprintf(ret_bus, HD_GPU_BUS_MAX, "%04x:%02x:%02x.0", pci->domain & 0xffff,
                   pci->bus & 0xff, pci->device & 0xff);
}

static void ask_identity(struct query *q)
{
    char name[TEXT_MAX] = "", uuid[TEXT_MAX] = "";
    struct pci pci = {.domain = 0};
    struct memory memory;
    int major, minor, result;

    if (NEED(q, name, "name", name, sizeof name))
        (void)snprintf(q->gpu->name, sizeof q->gpu->name, "%s", name);
    if (NEED(q, uuid, "UUID", uuid, sizeof uuid))
        (void)snprintf(q->gpu->uuid, sizeof q->gpu->uuid, "%s", uuid);
    hd_gpu_clean(q->gpu->name);
    hd_gpu_clean(q->gpu->uuid);
    if (ASK(q, pci, "PCI address", &pci))
        format_bus(&pci, q->gpu->bus);
    /* one that shares the machine's memory has none of its own to tell; the runtime does */
    result = q->nvml->memory(q->handle, &memory);
    if (answered(q, "memory", result != NOT_SUPPORTED, result)) {
        q->gpu->memory_bytes = (int64_t)memory.total;
        q->gpu->used_bytes = (int64_t)memory.used;
    }
    if (ASK(q, capability, "compute capability", &major, &minor))
        q->gpu->capability = major * 10 + minor;
}

static void ask_state(struct query *q)
{
    unsigned number, pending, corrected, uncorrected, failure;
    unsigned long long errors;
    int mode, next;

    if (ASK(q, temperature, "temperature", SENSOR_GPU, &number))
        q->gpu->temperature_c = number;
    if (ASK(q, ecc_mode, "ECC mode", &mode, &next))
        q->gpu->ecc = mode;
    if (ASK(q, ecc_errors, "ECC errors", CORRECTED, SINCE_LOADED, &errors))
        q->gpu->ecc_corrected = (int64_t)errors;
    if (ASK(q, ecc_errors, "ECC errors", UNCORRECTED, SINCE_LOADED, &errors))
        q->gpu->ecc_uncorrected = (int64_t)errors;
    if (ASK(q, remapped, "remapped rows", &corrected, &uncorrected, &pending, &failure)) {
        q->gpu->rows_remapped = uncorrected;
        q->gpu->remap_pending = pending != 0;
        q->gpu->remap_failed = failure != 0;
    }
    if (ASK(q, mig_mode, "MIG mode", &number, &pending))
        q->gpu->mig = number;
    if (ASK(q, compute_mode, "compute mode", &mode))
        q->gpu->compute_mode = mode;
}

static void add_peer(struct hd_gpu *gpu, const char *bus)
{
    int64_t at = 0;

    while (at < gpu->peer_count && strcmp(gpu->peers[at].bus, bus) != 0)
        at++;
    if (at == HD_GPU_PEERS_MAX)
        return;
    if (at == gpu->peer_count) {
        (void)snprintf(gpu->peers[at].bus, sizeof gpu->peers[at].bus, "%s", bus);
        gpu->peer_count++;
    }
    gpu->peers[at].links++;
}

static void ask_links(struct query *q)
{
    char bus[HD_GPU_BUS_MAX];
    unsigned number;
    struct pci peer;
    int active;

    if (ASK(q, generation, "PCIe generation", &number))
        q->gpu->pcie_generation = number;
    if (ASK(q, generation_max, "PCIe generation", &number))
        q->gpu->pcie_generation_max = number;
    if (ASK(q, width, "PCIe width", &number))
        q->gpu->pcie_width = number;
    if (ASK(q, width_max, "PCIe width", &number))
        q->gpu->pcie_width_max = number;
    for (unsigned link = 0; q->nvml->link_state && link < LINKS_MAX; link++) {
        /* a link that the GPU does not have is told in several ways, none of them is news */
        if (q->nvml->link_state(q->handle, link, &active) != SUCCESS)
            break;
        q->gpu->nvlinks = link + 1;
        if (q->gpu->nvlinks_up < 0)
            q->gpu->nvlinks_up = 0;
        if (!active)
            continue;
        q->gpu->nvlinks_up++;
        if (q->nvml->link_peer && q->nvml->link_peer(q->handle, link, &peer) == SUCCESS) {
            format_bus(&peer, bus);
            add_peer(q->gpu, bus);
        }
    }
}

/* ---- all ---- */

static enum hd_status read_gpus(const struct nvml *nvml, struct hd_gpu_list *list)
{
    unsigned count = 0;
    int result = nvml->count(&count);

    if (result)
        return failed(nvml, "the number of GPUs", result);
    for (unsigned i = 0; i < count && list->count < HD_GPU_MAX; i++) {
        struct query q = {.nvml = nvml, .gpu = &list->gpus[list->count++]};

        hd_gpu_init(q.gpu);
        if (!answered(&q, "handle", true, nvml->handle(i, &q.handle))) {
            (void)snprintf(q.gpu->name, sizeof q.gpu->name, "GPU %u", i);
            continue;
        }
        ask_identity(&q);
        ask_state(&q);
        ask_links(&q);
    }
    return HD_OK;
}

enum hd_status hd_nvml_read(const char *library, struct hd_gpu_list *list)
{
    struct nvml nvml = {.library = NULL};
    enum hd_status st = load(library, &nvml);
    int result, cuda;

    if (!st && (result = nvml.init()) != SUCCESS)
        st = failed(&nvml, "start", result);
    if (st)
        return st; /* the library stays: it may have threads */
    if (!nvml.driver || nvml.driver(list->driver, VERSION_MAX) != SUCCESS)
        list->driver[0] = '\0';
    hd_gpu_clean(list->driver);
    if (nvml.cuda && nvml.cuda(&cuda) == SUCCESS)
        list->driver_cuda = cuda;
    st = read_gpus(&nvml, list);
    (void)nvml.shutdown();
    return st;
}

/* gpus: `heddle-worker gpus`, prints this machine's GPUs and which of them no rank can use
 * (daemon/devices/gpu.h). The daemon runs it as a process of its own with a deadline, because the
 * driver may hang. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/devices/xid.h"
#include "flags/flags.h"
#include "kernels/nccl.h"
#include "kernels/plugin.h"
#include "worker/nvml.h"
#include "worker/worker.h"

/* Reads the version of cuDNN that HEDDLE_CUDA_ATTENTION=cudnn would take. */
static void name_cudnn(const struct hd_backend_table *table, struct hd_gpu_list *list)
{
    struct hd_traits traits = {.threads = 1};
    const char *by;

    (void)setenv(HD_ATTENTION_ENV, "cudnn", 1);
    table->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    (void)unsetenv(HD_ATTENTION_ENV);
    by = strstr(traits.isa, HD_BY_CUDNN);
    if (by)
        (void)snprintf(list->cudnn, sizeof list->cudnn, "%s", by + strlen(HD_BY_CUDNN));
}

/* Adds the names of the GPU libraries and NCCL to the list of GPUs. If NCCL is missing it adds
 * none, since GPUs still serve jobs of one GPU. */
static void name_libraries(const struct hd_backend_table *table, struct hd_gpu_list *list)
{
    const struct hd_nccl_table *nccl = NULL;
    struct hd_traits traits = {.threads = 1};
    char version[HD_NCCL_VERSION_MAX];

    if (!table->device || !table->device->nccl || table->device->nccl(&nccl))
        return;
    table->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    hd_nccl_name(nccl->version, version);
    (void)snprintf(list->libraries, sizeof list->libraries, "%s, %s, %s", traits.isa,
                   traits.library, version);
}

/* Lists the GPUs that the CUDA runtime lists: ranks compute with it, so no other GPU is usable. */
static enum hd_status ask_plugin(struct hd_gpu_list *list)
{
    struct hd_plugin_gpu *seen = calloc(HD_PLUGIN_GPUS_MAX, sizeof *seen);
    const struct hd_backend_table *table = NULL;
    int count = 0;
    enum hd_status st =
        seen ? hd_plugin_cuda(&table) : hd_err(HD_NO_MEMORY, "no memory for a list of GPUs");

    if (!st)
        st = hd_plugin_cuda_gpus(seen, &count);
    for (int i = 0; i < count && !st && list->count < HD_GPU_MAX; i++) {
        struct hd_gpu *gpu = &list->gpus[list->count++];

        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "%s", seen[i].uuid);
        (void)snprintf(gpu->name, sizeof gpu->name, "%s", seen[i].name);
        (void)snprintf(gpu->bus, sizeof gpu->bus, "%s", seen[i].bus);
        gpu->memory_bytes = seen[i].memory_bytes;
        hd_gpu_judge_capability(seen[i].capability, gpu);
    }
    if (!st) {
        name_libraries(table, list);
        name_cudnn(table, list);
    }
    free(seen);
    return st;
}

static void take_inventory(struct hd_gpu_list *list)
{
    const char *uuids[HD_GPU_MAX], *buses[HD_GPU_MAX];

    for (int64_t i = 0; i < list->count; i++) {
        uuids[i] = list->gpus[i].uuid;
        buses[i] = list->gpus[i].bus;
    }
    hd_inventory_read("/sys", uuids, buses, (int)list->count, &list->inventory);
    hd_nvml_add_links(&list->inventory, buses);
}

int hd_worker_gpus(int argc, char **argv)
{
    struct hd_gpu_list *list = calloc(1, sizeof *list);
    struct hd_text json = {0};
    enum hd_status st = list ? hd_flags_read(argc, argv, NULL, 0, false)
                             : hd_err(HD_NO_MEMORY, "no memory for a list of GPUs");

    if (!st) {
        /* numbers the GPUs in the order of nvidia-smi */
        (void)setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
        if (ask_plugin(list))
            (void)snprintf(list->problem, sizeof list->problem, "%s", hd_err_message());
        if (!getenv("CUDA_VISIBLE_DEVICES")) /* which chooses among all */
            hd_nvml_add_slices(list);
        if (list->count && hd_xid_read(HD_XID_LOG, list))
            (void)snprintf(list->log_problem, sizeof list->log_problem, "%s", hd_err_message());
        take_inventory(list);
        hd_gpu_list_write(list, &json);
        hd_text_add(&json, "\n");
    }
    st = hd_worker_print(st, &json);
    free(list);
    return hd_worker_finish("gpus", st);
}

/* gpus: what this machine's GPUs are and how they fare. A process of its own, because the driver's
 * libraries may hang: heddled runs it with a deadline (daemon/gpu/gpu.h). */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/gpu/nvml.h"
#include "daemon/gpu/xid.h"
#include "kernels/plugin.h"
#include "worker/flags.h"
#include "worker/worker.h"

static void keep_story(char *ret_text, size_t size)
{
    (void)snprintf(ret_text, size, "%s", hd_err_message());
}

/* NULL: the runtime does not see it. */
static const struct hd_plugin_gpu *find(const struct hd_plugin_gpu *seen, int count,
                                        const struct hd_gpu *gpu)
{
    for (int i = 0; i < count; i++)
        if (strcmp(seen[i].uuid, gpu->uuid) == 0)
            return &seen[i];
    return NULL;
}

/* One that only the runtime knows: NVML is not there, or hides it. */
static void add_seen(const struct hd_plugin_gpu *seen, struct hd_gpu_list *list)
{
    struct hd_gpu *gpu = &list->gpus[list->count++];

    hd_gpu_init(gpu);
    (void)snprintf(gpu->name, sizeof gpu->name, "%s", seen->name);
    (void)snprintf(gpu->uuid, sizeof gpu->uuid, "%s", seen->uuid);
    for (size_t i = 0; seen->bus[i]; i++)
        gpu->bus[i] = (char)tolower((unsigned char)seen->bus[i]);
    hd_gpu_clean(gpu->name);
    hd_gpu_clean(gpu->uuid);
    gpu->memory_bytes = seen->memory_bytes;
    gpu->capability = seen->capability;
}

/* What can compute: the plug-in's word counts, for it is what ranks will use. */
static void ask_plugin(struct hd_gpu_list *list)
{
    struct hd_plugin_gpu *seen = calloc(HD_PLUGIN_GPUS_MAX, sizeof *seen);
    const struct hd_backend_table *table = NULL;
    int count = 0;
    enum hd_status st =
        seen ? hd_plugin_cuda(&table) : hd_err(HD_NO_MEMORY, "no memory for a list of GPUs");

    if (!st) {
        list->plugin_abi = table->abi;
        st = hd_plugin_cuda_gpus(seen, &count);
    }
    if (st)
        keep_story(list->plugin_problem, sizeof list->plugin_problem);
    for (int i = 0; i < count; i++)
        if (!hd_gpu_find(list, seen[i].uuid) && list->count < HD_GPU_MAX)
            add_seen(&seen[i], list);
    for (int64_t i = 0; i < list->count; i++) {
        const struct hd_plugin_gpu *same = find(seen, count, &list->gpus[i]);

        if (same && list->gpus[i].memory_bytes < 0)
            list->gpus[i].memory_bytes = same->memory_bytes;
        hd_gpu_judge(&list->gpus[i], st || same);
    }
    free(seen);
}

int hd_worker_gpus(int argc, char **argv)
{
    struct hd_gpu_list *list = calloc(1, sizeof *list);
    struct hd_text json = {0};
    enum hd_status st = list ? hd_flags_read(argc, argv, NULL, 0)
                             : hd_err(HD_NO_MEMORY, "no memory for a list of GPUs");

    if (!st) {
        hd_gpu_list_init(list);
        if (hd_nvml_read(HD_NVML_LIBRARY, list))
            keep_story(list->nvml_problem, sizeof list->nvml_problem);
        ask_plugin(list);
        if (list->count && hd_xid_read(HD_XID_LOG, list))
            keep_story(list->log_problem, sizeof list->log_problem);
        hd_gpu_list_write(list, &json);
        st = json.failed ? hd_err(HD_NO_MEMORY, "no memory for a list of GPUs") : HD_OK;
    }
    if (!st)
        (void)puts(json.data);
    hd_text_free(&json);
    free(list);
    return hd_worker_finish("gpus", st);
}

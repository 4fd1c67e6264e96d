#include "daemon/devices/gpu.h"

#include <stdio.h>
#include <string.h>

#include "base/fields.h"
#include "base/log.h"

enum { VALUES_MAX = 65536 /* 2,016 pairs of 64 GPUs have 6 values each */, DEPTH_MAX = 8 };
/* limit of a GPU's memory, bytes: 16 TiB, more than any GPU has */
static const int64_t memory_most = 1ll << 44;

#define WORD(type, member) HD_JSON_FIELD(#member, WORD, type, member)
static const struct hd_json_field list_fields[] = {
    WORD(struct hd_gpu_list, problem),
    WORD(struct hd_gpu_list, log_problem),
    WORD(struct hd_gpu_list, libraries),
    HD_JSON_FIELD("cudnn", WORD, struct hd_gpu_list, cudnn, .optional = true),
};
static const struct hd_json_field gpu_fields[] = {
    WORD(struct hd_gpu, uuid),
    WORD(struct hd_gpu, name),
    WORD(struct hd_gpu, bus),
    WORD(struct hd_gpu, problem),
    WORD(struct hd_gpu, fault),
    HD_JSON_FIELD("memory_bytes", INT, struct hd_gpu, memory_bytes, .min = INT64_MIN,
                  .max = INT64_MAX),
    HD_JSON_FIELD("fault_at", INT, struct hd_gpu, fault_at, .min = -1, .max = INT64_MAX),
};

const struct hd_gpu *hd_gpu_find(const struct hd_gpu_list *list, const char *uuid)
{
    for (int64_t i = 0; i < list->count; i++)
        if (strcmp(list->gpus[i].uuid, uuid) == 0)
            return &list->gpus[i];
    return NULL;
}

void hd_gpu_judge_capability(int capability, struct hd_gpu *gpu)
{
    if (capability < HD_GPU_MINIMUM_CAPABILITY)
        (void)snprintf(gpu->problem, sizeof gpu->problem,
                       "compute capability %d.%d is older than 8.0, which the kernels need",
                       capability / 10, capability % 10);
}

void hd_gpu_list_write(const struct hd_gpu_list *list, struct hd_text *ret_json)
{
    struct hd_json_writer w = {.out = ret_json};

    hd_json_begin(&w, NULL, '{');
    hd_fields_write(&w, list_fields, HD_JSON_FIELD_COUNT(list_fields), list);
    hd_inventory_write(&list->inventory, "inventory", &w);
    hd_json_begin(&w, "gpus", '[');
    for (int64_t i = 0; i < list->count; i++) {
        hd_json_begin(&w, NULL, '{');
        hd_fields_write(&w, gpu_fields, HD_JSON_FIELD_COUNT(gpu_fields), &list->gpus[i]);
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
}

static void refuse_gpu(struct hd_gpu *gpu, const char *what)
{
    if (!gpu->problem[0])
        (void)snprintf(
            gpu->problem, sizeof gpu->problem,
            "the driver reports %s: the driver or the GPU is broken; see nvidia-smi and dmesg",
            what);
}

/* Refuses a GPU without a UUID, and names it by its PCI address, or without one by its index: each
 * GPU needs a name of its own that is the same in the next list (numbers.h). A UUID with a blank,
 * or in the form of a CPU device's name, counts as none. */
static void need_uuid(struct hd_gpu *gpu, int64_t index)
{
    char bus[sizeof gpu->bus];

    if (gpu->uuid[0] && !strpbrk(gpu->uuid, " \t\r\n") && !hd_text_starts(gpu->uuid, "cpu-"))
        return;
    refuse_gpu(gpu, "no UUID for it");
    memcpy(bus, gpu->bus, sizeof bus);
    if (bus[0] && !strpbrk(bus, " \t\r\n"))
        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "PCI-%s", bus);
    else
        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "PCI-%lld", (long long)index);
}

/* Gives a GPU a problem if the driver reports impossible data about it. */
static void judge(struct hd_gpu_list *list, int64_t index)
{
    struct hd_gpu *gpu = &list->gpus[index];
    char what[80];

    if (gpu->memory_bytes <= 0 || gpu->memory_bytes > memory_most) {
        (void)snprintf(what, sizeof what, "that it has %lld bytes of memory",
                       (long long)gpu->memory_bytes);
        refuse_gpu(gpu, what);
        gpu->memory_bytes = 0; /* 0: unknown */
    }
    need_uuid(gpu, index);
    for (int64_t i = 0; i < index; i++)
        if (strcmp(list->gpus[i].uuid, gpu->uuid) == 0) {
            refuse_gpu(gpu, "that another GPU has the same UUID");
            refuse_gpu(&list->gpus[i], "that another GPU has the same UUID");
        }
}

enum hd_status hd_gpu_list_read(const char *json, size_t json_bytes, struct hd_gpu_list *ret_list)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = DEPTH_MAX};
    const struct hd_json *root = NULL, *gpus = NULL, *inventory = NULL;
    struct hd_gpu_list *list = ret_list;
    struct hd_arena arena;
    enum hd_status st;

    memset(list, 0, sizeof *list);
    hd_arena_init(&arena, 0);
    st = hd_json_parse(&arena, json, json_bytes, &limits, &root);
    if (!st)
        st = hd_fields_read(root, list_fields, HD_JSON_FIELD_COUNT(list_fields), NULL, list);
    inventory = st ? NULL : hd_json_member(root, "inventory"); /* older programs lack it */
    if (inventory && hd_inventory_parse(inventory, &list->inventory)) {
        hd_log(HD_LOG_WARN, "the links between the GPUs are not known: %s", hd_err_message());
        memset(&list->inventory, 0, sizeof list->inventory);
    }
    if (!st)
        st = hd_json_need(root, "gpus", HD_JSON_ARRAY, &gpus);
    for (const struct hd_json *g = st ? NULL : gpus->first; !st && g; g = g->next)
        st = list->count < HD_GPU_MAX
                 ? hd_fields_read(g, gpu_fields, HD_JSON_FIELD_COUNT(gpu_fields), NULL,
                                  &list->gpus[list->count++])
                 : hd_err(HD_LIMIT, "more than %d GPUs", HD_GPU_MAX);
    for (int64_t i = 0; !st && i < list->count; i++)
        judge(list, i);
    hd_arena_done(&arena);
    return st == HD_INVALID || st == HD_LIMIT ? hd_err_prefix(HD_CORRUPT, "the list of GPUs") : st;
}

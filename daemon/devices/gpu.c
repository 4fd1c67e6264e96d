#include "daemon/devices/gpu.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"

enum { VALUES_MAX = 65536 /* 2,016 pairs of 64 GPUs have 6 values each */, DEPTH_MAX = 8 };
/* limit of a GPU's memory, bytes: 16 TiB, more than any GPU has */
static const int64_t memory_most = 1ll << 44;

/* Text members of a GPU, with equal names in the struct and in JSON. */
#define TEXTS(X) X(uuid) X(name) X(bus) X(problem) X(fault)

const struct hd_gpu *hd_gpu_find(const struct hd_gpu_list *list, const char *uuid)
{
    for (int64_t i = 0; i < list->count; i++)
        if (strcmp(list->gpus[i].uuid, uuid) == 0)
            return &list->gpus[i];
    return NULL;
}

/* Writes a text with only printable ASCII, because a driver may return any bytes, and the text goes
 * to terminals and to the controller, which refuses text that is not UTF-8. */
static void write_text(struct hd_json_writer *w, const char *key, const char *text)
{
    char copy[HD_ERR_MAX];

    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *c = copy; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    hd_json_add_string(w, key, copy);
}

void hd_gpu_list_write(const struct hd_gpu_list *list, struct hd_text *ret_json)
{
    struct hd_json_writer w = {.out = ret_json};

    hd_json_begin(&w, NULL, '{');
    write_text(&w, "problem", list->problem);
    write_text(&w, "log_problem", list->log_problem);
    write_text(&w, "libraries", list->libraries);
    hd_inventory_write(&list->inventory, "inventory", &w);
    hd_json_begin(&w, "gpus", '[');
    for (int64_t i = 0; i < list->count; i++) {
        hd_json_begin(&w, NULL, '{');
#define X(text) write_text(&w, #text, list->gpus[i].text);
        TEXTS(X)
#undef X
        hd_json_add_int64(&w, "memory_bytes", list->gpus[i].memory_bytes);
        hd_json_add_int64(&w, "fault_at", list->gpus[i].fault_at);
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
}

static enum hd_status read_gpu(const struct hd_json *object, struct hd_gpu *gpu)
{
    enum hd_status st =
        hd_json_need_int64(object, "memory_bytes", INT64_MIN, INT64_MAX, &gpu->memory_bytes);

    if (!st)
        st = hd_json_need_int64(object, "fault_at", -1, INT64_MAX, &gpu->fault_at);
#define X(text) \
    if (!st)    \
        st = hd_json_copy_string(object, #text, gpu->text, sizeof gpu->text);
    TEXTS(X)
#undef X
    return st;
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
        st = hd_json_copy_string(root, "problem", list->problem, sizeof list->problem);
    if (!st)
        st = hd_json_copy_string(root, "log_problem", list->log_problem, sizeof list->log_problem);
    if (!st)
        st = hd_json_copy_string(root, "libraries", list->libraries, sizeof list->libraries);
    inventory = st ? NULL : hd_json_member(root, "inventory"); /* older programs lack it */
    if (inventory && hd_inventory_parse(inventory, &list->inventory)) {
        hd_log(HD_LOG_WARN, "the links between the GPUs are not known: %s", hd_err_message());
        memset(&list->inventory, 0, sizeof list->inventory);
    }
    if (!st)
        st = hd_json_need(root, "gpus", HD_JSON_ARRAY, &gpus);
    for (const struct hd_json *g = st ? NULL : gpus->first; !st && g; g = g->next)
        st = list->count < HD_GPU_MAX ? read_gpu(g, &list->gpus[list->count++])
                                      : hd_err(HD_LIMIT, "more than %d GPUs", HD_GPU_MAX);
    for (int64_t i = 0; !st && i < list->count; i++)
        judge(list, i);
    hd_arena_done(&arena);
    return st == HD_INVALID || st == HD_LIMIT ? hd_err_prefix(HD_CORRUPT, "the list of GPUs") : st;
}

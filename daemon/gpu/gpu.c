#include "daemon/gpu/gpu.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { VALUES_MAX = 16384, DEPTH_MAX = 8, CHARACTER_MAX = 4 };

void hd_gpu_init(struct hd_gpu *gpu)
{
    *gpu = (struct hd_gpu){.peer_count = 0};
#define X(name) gpu->name = -1;
    HD_GPU_NUMBERS(X)
#undef X
}

void hd_gpu_list_init(struct hd_gpu_list *list)
{
    *list = (struct hd_gpu_list){.driver_cuda = -1, .plugin_abi = -1};
}

/* Bytes of the character at `text`, NUL-terminated; 0: there is none. */
static size_t character(const char *text)
{
    for (size_t n = 1; n <= CHARACTER_MAX && n <= strlen(text); n++)
        if (hd_text_is_utf8(text, n))
            return n;
    return 0;
}

void hd_gpu_clean(char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    while (*at) {
        const size_t n = character((const char *)at);

        /* also U+0080 to U+009F, which terminals obey as well */
        if (!n || *at < ' ' || *at == 0x7f || (n == 2 && at[0] == 0xc2 && at[1] < 0xa0))
            memset(text + ((const char *)at - text), '?', n ? n : 1);
        at += n ? n : 1;
    }
}

struct hd_gpu *hd_gpu_find(struct hd_gpu_list *list, const char *uuid)
{
    for (int64_t i = 0; i < list->count; i++)
        if (strcmp(list->gpus[i].uuid, uuid) == 0)
            return &list->gpus[i];
    return NULL;
}

void hd_gpu_judge(struct hd_gpu *gpu, bool seen)
{
    if (gpu->problem[0])
        return; /* it does not even answer */
    if (gpu->mig == 1)
        (void)snprintf(gpu->problem, sizeof gpu->problem,
                       "MIG is on, and Heddle uses whole GPUs; nvidia-smi -i %.19s -mig 0 turns it "
                       "off",
                       gpu->bus);
    else if (gpu->compute_mode == 2)
        (void)snprintf(gpu->problem, sizeof gpu->problem,
                       "its compute mode prohibits all work; nvidia-smi -i %.19s -c 0 allows it",
                       gpu->bus);
    else if (gpu->capability >= 0 && gpu->capability < HD_GPU_MINIMUM_CAPABILITY)
        (void)snprintf(gpu->problem, sizeof gpu->problem,
                       "compute capability %d.%d is older than 8.0, which the kernels need",
                       (int)gpu->capability / 10, (int)gpu->capability % 10);
    else if (!seen)
        (void)snprintf(gpu->problem, sizeof gpu->problem,
                       "the CUDA runtime does not see it (is CUDA_VISIBLE_DEVICES set, or the "
                       "device not allowed in this container?)");
}

/* ---- writing ---- */

static void write_gpu(struct hd_json_writer *w, const struct hd_gpu *gpu)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "name", gpu->name);
    hd_json_add_string(w, "uuid", gpu->uuid);
    hd_json_add_string(w, "bus", gpu->bus);
#define X(name)         \
    if (gpu->name >= 0) \
        hd_json_add_int64(w, #name, gpu->name);
    HD_GPU_NUMBERS(X)
#undef X
    hd_json_begin(w, "peers", '[');
    for (int64_t i = 0; i < gpu->peer_count; i++) {
        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "bus", gpu->peers[i].bus);
        hd_json_add_int64(w, "links", gpu->peers[i].links);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    hd_json_add_string(w, "problem", gpu->problem);
    hd_json_end(w, '}');
}

void hd_gpu_list_write(const struct hd_gpu_list *list, struct hd_text *ret_json)
{
    struct hd_json_writer w = {.out = ret_json};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "driver", list->driver);
    hd_json_add_int64(&w, "driver_cuda", list->driver_cuda);
    hd_json_add_string(&w, "nvml_problem", list->nvml_problem);
    hd_json_add_string(&w, "plugin_problem", list->plugin_problem);
    hd_json_add_string(&w, "log_problem", list->log_problem);
    hd_json_add_int64(&w, "plugin_abi", list->plugin_abi);
    hd_json_begin(&w, "gpus", '[');
    for (int64_t i = 0; i < list->count; i++)
        write_gpu(&w, &list->gpus[i]);
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
}

/* ---- reading ---- */

static enum hd_status take_text(const struct hd_json *object, const char *key, char *ret_text,
                                size_t size)
{
    const char *text;
    enum hd_status st = hd_json_need_string(object, key, &text);

    if (st)
        return st;
    (void)snprintf(ret_text, size, "%s", text);
    for (size_t n = strlen(ret_text); n && !hd_text_is_utf8(ret_text, n);)
        ret_text[--n] = '\0'; /* it was cut inside a character */
    return HD_OK;
}

/* Not known when it is not there: a worker may say less. */
static enum hd_status take_number(const struct hd_json *object, const char *key, int64_t *ret_value)
{
    const struct hd_json *member = hd_json_member(object, key);

    return member ? hd_json_to_int64(member, -1, INT64_MAX, ret_value) : HD_OK;
}

static enum hd_status read_peers(const struct hd_json *object, struct hd_gpu *gpu)
{
    const struct hd_json *peers = NULL;
    enum hd_status st = hd_json_need(object, "peers", HD_JSON_ARRAY, &peers);

    if (st)
        return st;
    for (const struct hd_json *p = peers->first; !st && p; p = p->next) {
        struct hd_gpu_peer *peer = &gpu->peers[gpu->peer_count];

        if (gpu->peer_count++ == HD_GPU_PEERS_MAX)
            return hd_err(HD_LIMIT, "more than %d peers of a GPU", HD_GPU_PEERS_MAX);
        st = take_text(p, "bus", peer->bus, sizeof peer->bus);
        if (!st)
            st = hd_json_need_int64(p, "links", 0, 1000, &peer->links);
    }
    return st;
}

static enum hd_status read_gpu(const struct hd_json *object, struct hd_gpu *gpu)
{
    enum hd_status st = take_text(object, "name", gpu->name, sizeof gpu->name);

    if (!st)
        st = take_text(object, "uuid", gpu->uuid, sizeof gpu->uuid);
    if (!st)
        st = take_text(object, "bus", gpu->bus, sizeof gpu->bus);
    if (!st)
        st = take_text(object, "problem", gpu->problem, sizeof gpu->problem);
    hd_gpu_clean(gpu->name);
    hd_gpu_clean(gpu->uuid);
    hd_gpu_clean(gpu->bus);
    hd_gpu_clean(gpu->problem);
#define X(name) \
    if (!st)    \
        st = take_number(object, #name, &gpu->name);
    HD_GPU_NUMBERS(X)
#undef X
    return st ? st : read_peers(object, gpu);
}

static enum hd_status read_list(const struct hd_json *root, struct hd_gpu_list *list)
{
    const struct hd_json *gpus = NULL;
    enum hd_status st = take_text(root, "driver", list->driver, sizeof list->driver);

    if (!st)
        st = take_text(root, "nvml_problem", list->nvml_problem, sizeof list->nvml_problem);
    if (!st)
        st = take_text(root, "plugin_problem", list->plugin_problem, sizeof list->plugin_problem);
    if (!st)
        st = take_text(root, "log_problem", list->log_problem, sizeof list->log_problem);
    if (!st)
        st = take_number(root, "driver_cuda", &list->driver_cuda);
    if (!st)
        st = take_number(root, "plugin_abi", &list->plugin_abi);
    if (!st)
        st = hd_json_need(root, "gpus", HD_JSON_ARRAY, &gpus);
    for (const struct hd_json *g = st ? NULL : gpus->first; !st && g; g = g->next) {
        if (list->count == HD_GPU_MAX)
            return hd_err(HD_LIMIT, "more than %d GPUs", HD_GPU_MAX);
        hd_gpu_init(&list->gpus[list->count]);
        st = read_gpu(g, &list->gpus[list->count++]);
    }
    return st;
}

enum hd_status hd_gpu_list_read(const char *json, size_t json_bytes, struct hd_gpu_list *ret_list)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = DEPTH_MAX};
    const struct hd_json *root;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    hd_gpu_list_init(ret_list);
    st = hd_json_parse(&arena, json, json_bytes, &limits, &root);
    if (!st)
        st = read_list(root, ret_list);
    hd_arena_done(&arena);
    return st == HD_INVALID || st == HD_LIMIT ? hd_err_prefix(HD_CORRUPT, "the list of GPUs") : st;
}

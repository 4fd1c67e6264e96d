#include "daemon/devices/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

void hd_sample_clear(struct hd_sample *sample)
{
    memset(sample, 0, sizeof *sample);
#define X(name) sample->name = NAN;
    HD_SAMPLE_LIST(X)
#undef X
}

void hd_sample_list_write(const struct hd_sample_list *list, struct hd_text *ret_json)
{
    struct hd_json_writer w = {.out = ret_json};

    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "gpus", '[');
    for (int i = 0; i < list->count; i++) {
        const struct hd_sample *s = &list->samples[i];

        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "uuid", s->uuid);
#define X(name) hd_json_add_real(&w, #name, s->name); /* NaN becomes null */
        HD_SAMPLE_LIST(X)
#undef X
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
}

static double number_of(const struct hd_json *object, const char *key)
{
    const struct hd_json *member = hd_json_member(object, key);
    const double value =
        member && member->kind == HD_JSON_NUMBER ? strtod(member->text, NULL) : NAN;

    return isfinite(value) ? value : NAN;
}

enum hd_status hd_sample_list_read(const char *json, size_t json_bytes,
                                   struct hd_sample_list *ret_list)
{
    static const struct hd_json_limits limits = {.values_max = 4096, .depth_max = 4};
    const struct hd_json *root, *gpus, *gpu;
    struct hd_arena arena;
    enum hd_status st;

    ret_list->count = 0;
    hd_arena_init(&arena, 1 << 20);
    st = hd_json_parse(&arena, json, json_bytes, &limits, &root);
    if (!st)
        st = hd_json_need(root, "gpus", HD_JSON_ARRAY, &gpus);
    for (gpu = st ? NULL : gpus->first; !st && gpu && ret_list->count < HD_GPU_MAX;
         gpu = gpu->next) {
        struct hd_sample *s = &ret_list->samples[ret_list->count++];

        hd_sample_clear(s);
        st = hd_json_copy_string(gpu, "uuid", s->uuid, sizeof s->uuid);
#define X(name) s->name = number_of(gpu, #name);
        if (!st) {
            HD_SAMPLE_LIST(X)
        }
#undef X
    }
    hd_arena_done(&arena);
    if (st)
        ret_list->count = 0;
    return st ? hd_err(HD_CORRUPT, "the sample of the GPUs cannot be read: %s", hd_err_message())
              : HD_OK;
}

const struct hd_sample *hd_sample_find(const struct hd_sample_list *list, const char *uuid)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->samples[i].uuid, uuid) == 0)
            return &list->samples[i];
    return NULL;
}

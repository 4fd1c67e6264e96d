/* config_llama4: keys of a config.json of Llama 4: chunks of attention, layers with experts, and the
 * factor of queries in layers without rotary positions. */
#include <string.h>

#include "hf/config_internal.h"

enum { FLOOR_SCALE = 8192 };          /* default of floor_scale */
static const double attn_scale = 0.1; /* default of attn_scale */

void hd_hf_set_llama4_defaults(struct hd_hf_reading *r)
{
    r->chunk = -1;
    if (!hd_hf_reads(r->family, "attn_scale"))
        return;
    r->job->query_factor = attn_scale;
    r->job->query_factor_step = FLOOR_SCALE;
}

/* Reads attn_temperature_tuning, in some published files a number. */
enum hd_status hd_hf_read_tuning(struct hd_hf_reading *r, const struct hd_json *value)
{
    int64_t number = value->kind == HD_JSON_TRUE;
    enum hd_status st = HD_OK;

    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    if (value->kind != HD_JSON_TRUE && value->kind != HD_JSON_FALSE)
        st = hd_json_to_int64(value, 0, 1 << 20, &number);
    r->no_tuning = number == 0;
    return st ? hd_hf_unsupported(value->key, value, "it must be true or false") : HD_OK;
}

void hd_hf_take_tuning(struct hd_hf_reading *r)
{
    if (!hd_hf_reads(r->family, "attn_scale"))
        return;
    if (r->no_tuning)
        r->job->query_factor = 0;
    if (r->job->query_factor == 0)
        r->job->query_factor_step = 0;
}

void hd_hf_describe_llama4(struct hd_json_writer *w, const struct hd_job *job)
{
    const int64_t step =
        job->query_factor_step ? job->query_factor_step : job->rope_original_context;
    struct hd_layers rule = {0};

    hd_json_add_int64(w, "intermediate_size_mlp",
                      job->dense_ffn_hidden ? job->dense_ffn_hidden : job->ffn_hidden);
    (void)hd_layers_parse(job->experts_layers, &rule);
    hd_json_begin(w, "moe_layers", '[');
    for (int64_t i = 0; i < job->layers; i++)
        if (hd_layers_has(&rule, i))
            hd_json_add_int64(w, NULL, i);
    hd_json_end(w, ']');
    hd_json_add_bool(w, "attn_temperature_tuning", job->query_factor > 0);
    if (job->query_factor > 0) {
        hd_json_add_int64(w, "floor_scale", step);
        hd_json_add_real(w, "attn_scale", job->query_factor);
    }
}

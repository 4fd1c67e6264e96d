/* config_layers: which layers of a config.json have a sliding window, rotary positions, and experts,
 * as the job's rules that pick layers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hf/config_internal.h"

enum { LAYERS_MAX = 1024, SWITCH_FULL_LAYERS = 28 /* default of max_window_layers */ };

/* Writes the rule that picks these layers into a key of the job. */
static enum hd_status put_rule(const bool *picked, int64_t count, const char *key,
                               struct hd_job *job, const char **rule)
{
    char text[HD_LAYERS_TEXT_MAX];
    const enum hd_status st = hd_layers_format(picked, count, text);

    return st ? hd_err_prefix(HD_UNSUPPORTED, "%s", key) : hd_job_set_text(job, rule, text);
}

static enum hd_status check_length(const struct hd_hf_reading *r, const struct hd_json *list)
{
    if ((int64_t)list->count == r->job->layers)
        return HD_OK;
    return hd_err(HD_INVALID, "%s: has %zu entries for %" PRId64 " layers", list->key, list->count,
                  r->job->layers);
}

/* Sets picked[i] to `value` for each index i of a list of layers; NULL: there is no list. */
static enum hd_status mark_layers(const struct hd_hf_reading *r, const struct hd_json *list,
                                  bool value, bool *picked)
{
    for (const struct hd_json *v = list ? list->first : NULL; v; v = v->next) {
        int64_t layer;

        if (hd_json_to_int64(v, 0, r->job->layers - 1, &layer))
            return hd_err_prefix(HD_INVALID, "%s", list->key);
        picked[layer] = value;
    }
    return HD_OK;
}

/* ---- windows ---- */

/* Reads layer_types: picks layers with a window, or with chunks. */
static enum hd_status pick_by_types(const struct hd_hf_reading *r, bool *ret_picked)
{
    const char *local =
        r->family->window == HD_WINDOW_CHUNKS ? "chunked_attention" : "sliding_attention";
    enum hd_status st = check_length(r, r->layer_types);
    int64_t layer = 0;

    for (const struct hd_json *v = r->layer_types->first; !st && v; v = v->next, layer++) {
        const char *type = v->kind == HD_JSON_STRING ? v->text : "";
        char instead[64];

        ret_picked[layer] = strcmp(type, local) == 0;
        (void)snprintf(instead, sizeof instead, "use full_attention or %s", local);
        if (!ret_picked[layer] && strcmp(type, "full_attention") != 0 &&
            strcmp(type, "attention") != 0)
            st = hd_hf_unsupported("layer_types", v, instead);
    }
    return st;
}

/* Picks the layers that have a sliding window if config.json has no layer_types: by the rule of its
 * model class. */
static void pick_by_class(const struct hd_hf_reading *r, bool *ret_picked)
{
    const int64_t from = r->full_layers < 0 ? SWITCH_FULL_LAYERS : r->full_layers;
    struct hd_layers rule = {0};

    if (r->family->window_layers)
        (void)hd_layers_parse(r->family->window_layers, &rule);
    for (int64_t i = 0; i < r->job->layers; i++)
        ret_picked[i] = r->family->window == HD_WINDOW_SWITCH ? i >= from
                        : r->window_period                    ? (i + 1) % r->window_period != 0
                                                              : hd_layers_has(&rule, i);
}

static bool has_any(const bool *picked, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (picked[i])
            return true;
    return false;
}

/* Writes the layers with a window, or with chunks, into the job: as model.window_from if they are
 * the last ones. */
static enum hd_status put_window_layers(struct hd_hf_reading *r, const bool *picked)
{
    const int64_t count = r->job->layers;
    int64_t from = 0, next;

    if (!has_any(picked, count)) {
        r->job->window = r->job->attention_chunk = 0;
        return HD_OK;
    }
    while (!picked[from])
        from++;
    for (next = from; next < count && picked[next];)
        next++;
    if (next == count) {
        r->job->window_from = from;
        return HD_OK;
    }
    return put_rule(picked, count, "layer_types", r->job, &r->job->window_layers);
}

static enum hd_status take_window(struct hd_hf_reading *r)
{
    const enum hd_window_rule rule = r->family->window;
    const int64_t window = r->window < 0 ? r->family->absent.window : r->window;
    bool picked[LAYERS_MAX];
    enum hd_status st = HD_OK;

    if (rule != HD_WINDOW_NEVER && (rule != HD_WINDOW_SWITCH || r->use_window))
        r->job->window = window;
    if (rule == HD_WINDOW_NEVER || rule == HD_WINDOW_ALL)
        return HD_OK;
    if (r->layer_types) /* checked also where use_sliding_window is false */
        st = pick_by_types(r, picked);
    else
        pick_by_class(r, picked);
    if (!st && r->family->local_theta > 0 && !window && has_any(picked, r->job->layers))
        return hd_err(HD_UNSUPPORTED,
                      "sliding_window: null is not supported with layers of sliding_attention, "
                      "whose rotary angles differ; give a window of max_position_embeddings");
    return st || !r->job->window ? st : put_window_layers(r, picked);
}

/* Reads attention_chunk_size of Llama 4. Call it after the layers with rotary positions were read:
 * without layer_types, these layers attend in chunks. */
static enum hd_status take_chunks(struct hd_hf_reading *r)
{
    const int64_t chunk = r->chunk < 0 ? r->family->absent.chunk : r->chunk;
    struct hd_layers rule = {0};
    bool picked[LAYERS_MAX];
    enum hd_status st = HD_OK;

    (void)hd_layers_parse(r->job->rope_layers, &rule);
    for (int64_t i = 0; i < r->job->layers; i++)
        picked[i] = chunk && hd_layers_has(&rule, i);
    if (r->layer_types)
        st = pick_by_types(r, picked);
    if (!st && !chunk && has_any(picked, r->job->layers))
        st = hd_err(HD_UNSUPPORTED, "attention_chunk_size: null is not supported with layers of "
                                    "chunked_attention");
    r->job->attention_chunk = chunk;
    return st ? st : put_window_layers(r, picked);
}

/* ---- gated delta layers and short convolutions ---- */

/* Reads layer_types: picks layers of the type `other`; those it does not pick have attention. */
static enum hd_status pick_unattended(const struct hd_hf_reading *r, const char *other,
                                      bool *ret_picked)
{
    enum hd_status st = check_length(r, r->layer_types);
    int64_t layer = 0;

    for (const struct hd_json *v = r->layer_types->first; !st && v; v = v->next, layer++) {
        const char *type = v->kind == HD_JSON_STRING ? v->text : "";
        char instead[64];

        ret_picked[layer] = strcmp(type, other) == 0;
        (void)snprintf(instead, sizeof instead, "use full_attention or %s", other);
        if (!ret_picked[layer] && strcmp(type, "full_attention") != 0)
            st = hd_hf_unsupported("layer_types", v, instead);
    }
    return st;
}

/* Reads full_attn_idxs, indices of the layers with attention, unless there are layer_types. Without
 * both, all layers have attention. */
static enum hd_status take_conv_layers(struct hd_hf_reading *r)
{
    const int64_t count = r->job->layers;
    bool picked[LAYERS_MAX];
    enum hd_status st;

    for (int64_t i = 0; i < count; i++)
        picked[i] = r->attention_layers;
    st = r->layer_types ? pick_unattended(r, "conv", picked)
                        : mark_layers(r, r->attention_layers, false, picked);
    return st ? st : put_rule(picked, count, "layer_types", r->job, &r->job->conv_layers);
}

static enum hd_status take_delta_layers(struct hd_hf_reading *r)
{
    const int64_t count = r->job->layers, interval = r->full_interval ? r->full_interval : 4;
    bool picked[LAYERS_MAX];
    enum hd_status st = HD_OK;

    for (int64_t i = 0; i < count; i++)
        picked[i] = (i + 1) % interval != 0;
    if (r->layer_types)
        st = pick_unattended(r, "linear_attention", picked);
    return st ? st : put_rule(picked, count, "layer_types", r->job, &r->job->delta_layers);
}

/* ---- rotary positions ---- */

/* Picks the layers with a window; in a class that rotates all of them if there is none, all. */
static enum hd_status take_rope_in_windows(struct hd_hf_reading *r)
{
    const bool none =
        r->family->rope_without_windows && !(r->window < 0 ? r->family->absent.window : r->window);
    struct hd_layers windows;
    bool picked[LAYERS_MAX];

    if (hd_layers_parse(r->job->window_layers, &windows))
        return hd_err_prefix(HD_INVALID, "layer_types");
    for (int64_t i = 0; i < r->job->layers; i++)
        picked[i] =
            none || (r->job->window && i >= r->job->window_from && hd_layers_has(&windows, i));
    return put_rule(picked, r->job->layers, "layer_types", r->job, &r->job->rope_layers);
}

static enum hd_status take_rope_layers(struct hd_hf_reading *r)
{
    const int64_t count = r->job->layers;
    struct hd_layers rule = {0};
    bool picked[LAYERS_MAX];
    enum hd_status st = HD_OK;
    int64_t layer = 0;

    if (hd_hf_reads(r->family, "position_embedding_type") && !r->has_positions) {
        r->job->rope_layers = "none";
        return HD_OK;
    }
    if (r->family->rope_in_windows)
        return take_rope_in_windows(r);
    if (r->family->rope_layers)
        (void)hd_layers_parse(r->family->rope_layers, &rule);
    for (int64_t i = 0; i < count; i++)
        picked[i] = r->rope_interval ? (i + 1) % r->rope_interval != 0 : hd_layers_has(&rule, i);
    if (r->rope_layers && r->rope_layers->first)
        st = check_length(r, r->rope_layers);
    for (const struct hd_json *v = r->rope_layers ? r->rope_layers->first : NULL; !st && v;
         v = v->next, layer++) {
        int64_t rotates = v->kind == HD_JSON_TRUE;

        if (v->kind == HD_JSON_NUMBER)
            st = hd_json_to_int64(v, 0, 1, &rotates);
        else if (v->kind != HD_JSON_TRUE && v->kind != HD_JSON_FALSE)
            st = hd_err(HD_INVALID, "is not 0 or 1");
        if (st)
            return hd_err_prefix(HD_INVALID, "no_rope_layers: entry %" PRId64, layer);
        picked[layer] = rotates;
    }
    return st ? st : put_rule(picked, count, "no_rope_layers", r->job, &r->job->rope_layers);
}

bool hd_hf_has_window(const struct hd_job *job, int64_t layer)
{
    struct hd_layers rule = {0};

    (void)hd_layers_parse(job->window_layers, &rule);
    return (job->window || job->attention_chunk) && layer >= job->window_from &&
           hd_layers_has(&rule, layer);
}

static enum hd_status other_thetas(const struct hd_json *value)
{
    return hd_hf_unsupported("layer_rope_theta", value,
                             "the layers without a window must have one theta, and those with a "
                             "window one, which may be another if angles are not scaled");
}

/* Reads layer_rope_theta. Call it after the layers with a window, and the scaling of angles, were
 * read. */
enum hd_status hd_hf_take_layer_thetas(struct hd_hf_reading *r)
{
    const struct hd_json *list = r->layer_thetas;
    struct hd_job *job = r->job;
    double of_kind[2] = {0}; /* theta of the layers without, with a window; 0: no rotation */
    bool picked[LAYERS_MAX];
    enum hd_status st = list ? check_length(r, list) : HD_OK;
    int64_t layer = 0;

    if (st || !list)
        return st;
    for (const struct hd_json *v = list->first; v; v = v->next, layer++) {
        double theta = 0, *of = &of_kind[hd_hf_has_window(job, layer)];

        st = hd_hf_to_real(v, "layer_rope_theta", 0, 1e12, &theta);
        if (st)
            return st;
        if (theta > 0 && *of > 0 && *of != theta)
            return other_thetas(v);
        picked[layer] = theta > 0;
        *of = theta > 0 ? theta : *of;
    }
    if (of_kind[0] > 0 && of_kind[1] > 0 && of_kind[0] != of_kind[1]) {
        if (job->rope_scaling != HD_JOB_ROPE_SCALING_NONE)
            return other_thetas(list);
        job->rope_local_theta = of_kind[1];
    }
    if (of_kind[0] > 0 || of_kind[1] > 0)
        job->rope_theta = of_kind[0] > 0 ? of_kind[0] : of_kind[1];
    return put_rule(picked, job->layers, "layer_rope_theta", job, &job->rope_layers);
}

/* ---- experts ---- */

/* Reads mlp_layer_types: picks layers with experts. */
static enum hd_status pick_by_ffn_types(const struct hd_hf_reading *r, bool *ret_picked)
{
    enum hd_status st = check_length(r, r->ffn_types);
    int64_t layer = 0;

    for (const struct hd_json *v = r->ffn_types->first; !st && v; v = v->next, layer++) {
        const char *type = v->kind == HD_JSON_STRING ? v->text : "";

        ret_picked[layer] = strcmp(type, "sparse") == 0;
        if (!ret_picked[layer] && strcmp(type, "dense") != 0)
            st = hd_hf_unsupported(r->ffn_types->key, v, "use dense or sparse");
    }
    return st;
}

static enum hd_status take_expert_layers(struct hd_hf_reading *r)
{
    const char *key = hd_hf_reads(r->family, "moe_layers")              ? "moe_layers"
                      : hd_hf_reads(r->family, "first_k_dense_replace") ? "first_k_dense_replace"
                      : hd_hf_reads(r->family, "mlp_layer_types")       ? "mlp_layer_types"
                      : hd_hf_reads(r->family, "mlp_only_layers")       ? "mlp_only_layers"
                                                                        : "moe_layer_start_index";
    struct hd_job *job = r->job;
    bool picked[LAYERS_MAX];
    const int64_t last = r->last_sparse < 0 ? job->layers - 1 : r->last_sparse;
    enum hd_status st = HD_OK;

    for (int64_t i = 0; i < job->layers; i++)
        picked[i] = i >= r->first_sparse && i <= last && (i + 1) % r->sparse_step == 0;
    if (r->ffn_types)
        st = pick_by_ffn_types(r, picked);
    if (st)
        return st;
    if (r->expert_layer_list)
        memset(picked, 0, sizeof picked);
    st = mark_layers(r, r->expert_layer_list, true, picked);
    if (!st)
        st = mark_layers(r, r->dense_layers, false, picked);
    if (st)
        return st;
    for (int64_t i = 0; i < job->layers; i++)
        r->expert_layers += picked[i];
    if (r->expert_layers == job->layers)
        job->dense_ffn_hidden = 0;
    st = put_rule(picked, job->layers, key, job, &job->experts_layers);
    if (!st && !r->expert_layers)
        st = hd_err(HD_UNSUPPORTED, "%s: no layer has experts", key);
    if (!st && r->expert_layers < job->layers && !job->dense_ffn_hidden)
        st = hd_err(HD_INVALID, "intermediate_size is missing");
    return st;
}

enum hd_status hd_hf_take_layers(struct hd_hf_reading *r)
{
    const bool chunks = r->family->window == HD_WINDOW_CHUNKS;
    enum hd_status st = r->family->delta.layers  ? take_delta_layers(r)
                        : r->family->conv.layers ? take_conv_layers(r)
                        : chunks                 ? HD_OK
                                                 : take_window(r);

    if (!st)
        st = take_rope_layers(r);
    if (!st && chunks)
        st = take_chunks(r);
    return st || !r->family->experts ? st : take_expert_layers(r);
}

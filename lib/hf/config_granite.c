/* config_granite: keys of a config.json of Granite 4, whose layers may be Mamba layers and may have
 * experts. Dense models with attention in every layer are read. */
#include <inttypes.h>
#include <string.h>

#include "hf/config_internal.h"

enum hd_status hd_hf_read_block_types(struct hd_hf_reading *r, const struct hd_json *value)
{
    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    if (value->kind != HD_JSON_ARRAY)
        return hd_hf_unsupported(value->key, value,
                                 "it must be a list with the type of each layer");
    for (const struct hd_json *v = value->first; v; v = v->next)
        if (v->kind != HD_JSON_STRING ||
            (strcmp(v->text, "attention") != 0 && strcmp(v->text, "full_attention") != 0))
            return hd_hf_unsupported(value->key, v,
                                     "Mamba layers are not supported; only models whose layers all "
                                     "have attention are");
    r->blocks = value;
    return HD_OK;
}

/* Reads num_local_experts of a class that may have none. */
enum hd_status hd_hf_read_no_experts(struct hd_hf_reading *r, const struct hd_json *value)
{
    int64_t count = 0;
    const enum hd_status st = hd_json_to_int64(value, 0, 4096, &count);

    if (st)
        return hd_err_prefix(st, "%s", value->key);
    if (count)
        return hd_hf_unsupported(value->key, value,
                                 "experts of this class are not; only 0, a dense model, is");
    r->has_no_experts = true;
    return HD_OK;
}

enum hd_status hd_hf_read_position_type(struct hd_hf_reading *r, const struct hd_json *value)
{
    if (value->kind == HD_JSON_NULL ||
        (value->kind == HD_JSON_STRING && strcmp(value->text, "nope") == 0))
        return HD_OK;
    if (value->kind != HD_JSON_STRING || strcmp(value->text, "rope") != 0)
        return hd_hf_unsupported(value->key, value, "use rope or null");
    r->has_positions = true;
    return HD_OK;
}

/* Reads the width of the shared expert, or of the MLP of a class that calls it so. */
enum hd_status hd_hf_read_shared_width(struct hd_hf_reading *r, const struct hd_json *value)
{
    int64_t *member = r->family->experts ? &r->job->shared_ffn_hidden : &r->job->ffn_hidden;
    enum hd_status st = HD_OK;

    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 0, 1 << 22, member);
    return st ? hd_err_prefix(st, "%s", value->key) : HD_OK;
}

enum hd_status hd_hf_check_blocks(const struct hd_hf_reading *r)
{
    if (!hd_hf_reads(r->family, "layers_block_type"))
        return HD_OK;
    if (r->blocks && (int64_t)r->blocks->count != r->job->layers)
        return hd_err(HD_INVALID, "%s: has %zu entries for %" PRId64 " layers", r->blocks->key,
                      r->blocks->count, r->job->layers);
    if (!r->blocks)
        return hd_err(HD_UNSUPPORTED,
                      "layer_types: is missing, and means Mamba layers, which are not supported");
    if (!r->has_no_experts)
        return hd_err(HD_UNSUPPORTED,
                      "num_local_experts: is missing, and means experts; only 0 is supported");
    return HD_OK;
}

/* config_mpt: attn_config, the object of a config.json of MPT that describes its attention. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/words.h"
#include "hf/config_internal.h"

enum { BIAS_MAX = 8 }; /* alibi_bias_max: the slopes of ALiBi go down to 2^-8 */

/* Members with one supported value, as JSON text; others are read below or do not change training. */
static const char *const must[][2] = {{"attn_type", "\"multihead_attention\""},
                                      {"prefix_lm", "false"},
                                      {"qk_ln", "false"},
                                      {"attn_uses_sequence_id", "false"},
                                      {"alibi", "true"}};
static const char unread[] = "attn_impl alibi_bias_max model_type architectures is_encoder_decoder";

static enum hd_status read_member(struct hd_hf_reading *r, const struct hd_json *v)
{
    struct hd_job *job = r->job;
    char text[HD_HF_QUOTE_MAX], name[64];

    (void)snprintf(name, sizeof name, "attn_config.%.40s", v->key);
    if (v->kind == HD_JSON_NULL)
        return HD_OK;
    if (strcmp(v->key, "clip_qkv") == 0)
        return hd_hf_to_real(v, name, 1e-6, 1e6, &job->qkv_clip);
    if (strcmp(v->key, "softmax_scale") == 0)
        return hd_hf_to_real(v, name, 1e-9, 1e6, &job->attention_scale);
    if (strcmp(v->key, "attn_pdrop") == 0) {
        const enum hd_status st = hd_hf_to_real(v, name, 0, 0.99, &job->dropout_attention);

        job->dropout_residual = job->dropout_attention; /* the class has one for both */
        return st;
    }
    for (size_t i = 0; i < sizeof must / sizeof must[0]; i++)
        if (strcmp(v->key, must[i][0]) == 0)
            return strcmp(hd_hf_quote(v, text), must[i][1]) == 0
                       ? HD_OK
                       : hd_hf_unsupported(name, v, "MPT has attention with ALiBi alone here");
    if (strcmp(v->key, "alibi_bias_max") == 0 &&
        (v->kind != HD_JSON_NUMBER || strtod(v->text, NULL) != BIAS_MAX))
        return hd_hf_unsupported(name, v, "transformers computes the slopes with 8");
    return hd_words_have(unread, v->key) || hd_hf_is_harmless(v->key, r->family)
               ? HD_OK
               : hd_hf_unsupported(name, v, "this build does not know the key");
}

enum hd_status hd_hf_read_attn_config(struct hd_hf_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    if (value->kind != HD_JSON_OBJECT)
        return hd_hf_unsupported(value->key, value, "it must be an object");
    for (const struct hd_json *v = value->first; v && !st; v = v->next)
        st = read_member(r, v);
    return st;
}

void hd_hf_describe_attn_config(struct hd_json_writer *w, const struct hd_job *job)
{
    hd_json_begin(w, "attn_config", '{');
    hd_json_add_bool(w, "alibi", true);
    hd_json_add_int64(w, "alibi_bias_max", BIAS_MAX);
    hd_json_add_real(w, "attn_pdrop", job->dropout_attention);
    hd_json_add_string(w, "attn_type", "multihead_attention");
    if (job->qkv_clip > 0)
        hd_hf_add_float(w, "clip_qkv", job->qkv_clip);
    else
        hd_json_add_null(w, "clip_qkv");
    if (job->attention_scale > 0)
        hd_hf_add_float(w, "softmax_scale", job->attention_scale);
    else
        hd_json_add_null(w, "softmax_scale");
    hd_json_end(w, '}');
}

/* config_keys: the keys of config.json. One table has a rule for every key that matters; harmless.c
 * lists those that do not, rope.c reads the keys of rotary positions. transformers maps some names to
 * others (attribute_map): if both are in the file, the mapped name counts, as in transformers,
 * because it is set last. */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/words.h"
#include "hf/config_internal.h"

enum { QUOTE_MAX = HD_HF_QUOTE_MAX };

/* Model classes whose config.json has a key. */
enum scope {
    EVERY,    /* all classes */
    GPT2,     /* the class of GPT-2 */
    ROTARY,   /* all others */
    RMS,      /* classes with RMSNorm */
    LISTED,   /* classes whose row of families.def lists the key in `reads` */
    WINDOWED, /* classes with a sliding window */
    SWITCHED, /* classes with use_sliding_window */
    TYPED,    /* classes whose layers have types: SWITCHED, or HD_WINDOW_TYPES */
    EXPERTS   /* classes with experts */
};

enum rule {
    IS_INT,  /* stores an int64_t, from min to max */
    IS_REAL, /* stores a double, from min to max */
    IS_BOOL, /* stores true or false */
    IS_LIST, /* stores the JSON value, a list */
    MUST_BE, /* refuses values other than the JSON text `why`, or null */
    READ_BY  /* the row's function `read` reads the value */
};

struct key {
    const char *name;
    enum scope scope;
    enum rule rule;
    const char *why;
    bool in_reading;   /* true: stores in struct hd_hf_reading; false: in the job */
    bool null_is_zero; /* true: null stores 0; false: null counts as an absent key */
    bool is_written;   /* true: hd_hf_write_keys writes the job's member at `written` */
    size_t offset, written;
    double min, max;
    enum hd_status (*read)(struct hd_hf_reading *r, const struct hd_json *value);
};

/* ---- functions of the rule READ_BY ---- */

/* Accepts a key of config.json that find_type or rope.c reads. */
static enum hd_status read_elsewhere(struct hd_hf_reading *r, const struct hd_json *value)
{
    (void)r;
    (void)value;
    return HD_OK;
}

/* Returns whether the name is that of the class of another family that runs this one's models. */
static bool is_of_running_class(const struct hd_family *family, const char *name)
{
    struct hd_hf_classes c;
    struct hd_family other = {.stem = family->runs_as, .no_classifier = true};

    if (!family->runs_as)
        return false;
    hd_hf_class_names(&other, &c);
    return strcmp(name, c.head) == 0 || strcmp(name, c.base) == 0;
}

static enum hd_status read_architectures(struct hd_hf_reading *r, const struct hd_json *value)
{
    struct hd_hf_classes c;

    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    if (value->kind != HD_JSON_ARRAY)
        return hd_hf_unsupported("architectures", value, "it must be a list of class names");
    hd_hf_class_names(r->family, &c);
    for (const struct hd_json *v = value->first; v; v = v->next) {
        if (v->kind != HD_JSON_STRING ||
            (strcmp(v->text, c.head) != 0 && strcmp(v->text, c.base) != 0 &&
             strcmp(v->text, c.classifier) != 0 && !is_of_running_class(r->family, v->text)))
            return hd_hf_unsupported("architectures", v,
                                     "only language and reward models are supported");
        if (strcmp(v->text, c.classifier) == 0)
            r->job->objective = HD_JOB_OBJECTIVE_REWARD;
    }
    return HD_OK;
}

static enum hd_status read_kv_heads(struct hd_hf_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    r->one_kv_head_each = value->kind == HD_JSON_NULL;
    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 1, 4096, &r->job->kv_heads);
    return st ? hd_err_prefix(st, "num_key_value_heads") : HD_OK;
}

static enum hd_status read_activation(struct hd_hf_reading *r, const struct hd_json *value)
{
    /* names of transformers; gelu_new and gelu_pytorch_tanh are both the tanh form of GELU
     * (Hendrycks & Gimpel 2016), swish is another name of SiLU */
    static const char *const names[][2] = {[HD_FFN_SILU] = {"silu", "swish"},
                                           [HD_FFN_GELU_TANH] = {"gelu_new", "gelu_pytorch_tanh"},
                                           [HD_FFN_GELU_ERF] = {"gelu", "gelu_python"},
                                           [HD_FFN_RELU2] = {"relu2", "relu2"},
                                           [HD_FFN_RELU] = {"relu", "relu"},
                                           [HD_FFN_OSS] = {"silu", "swish"}};
    const char *const *may = names[r->family->activation];
    char instead[48];

    if (value->kind == HD_JSON_NULL && strcmp(value->key, "hidden_activation") == 0)
        return HD_OK;
    if (value->kind == HD_JSON_STRING &&
        (strcmp(value->text, may[0]) == 0 || strcmp(value->text, may[1]) == 0))
        return HD_OK;
    (void)snprintf(instead, sizeof instead, "use %s", may[r->family->gated && may[0][0] == 'g']);
    return hd_hf_unsupported(value->key, value, instead);
}

/* Reads true or false; null counts as an absent key and leaves *ret_value unchanged. */
static enum hd_status read_bool(const struct hd_json *value, bool *ret_value)
{
    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    if (value->kind != HD_JSON_TRUE && value->kind != HD_JSON_FALSE)
        return hd_hf_unsupported(value->key, value, "it must be true or false");
    *ret_value = value->kind == HD_JSON_TRUE;
    return HD_OK;
}

/* Reads use_bias, which all projections of a block follow. */
static enum hd_status read_use_bias(struct hd_hf_reading *r, const struct hd_json *value)
{
    const enum hd_status st = read_bool(value, &r->attention_bias);

    r->job->mlp_bias = r->attention_bias;
    return st;
}

static enum hd_status read_parallel(struct hd_hf_reading *r, const struct hd_json *value)
{
    bool parallel = !r->family->sequential;
    const enum hd_status st = read_bool(value, &parallel);

    r->job->parallel_residual = parallel && r->family->parallel ? r->family->parallel : "none";
    return st;
}

/* Reads logit_scale, by which logits are multiplied. */
static enum hd_status read_logit_scale(struct hd_hf_reading *r, const struct hd_json *value)
{
    double scale = 1;
    enum hd_status st = HD_OK;

    if (value->kind != HD_JSON_NULL)
        st = hd_hf_to_real(value, value->key, 1e-6, 1e6, &scale);
    r->job->logit_divisor = 1 / scale;
    return st;
}

/* Reads logits_scaling, which divides the logits or multiplies them. */
static enum hd_status read_logits_scaling(struct hd_hf_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    if (r->family->logits_multiplied)
        return read_logit_scale(r, value);
    if (value->kind != HD_JSON_NULL)
        st = hd_hf_to_real(value, value->key, 1e-6, 1e6, &r->job->logit_divisor);
    return st;
}

/* Reads query_pre_attn_scalar, whose inverse root multiplies the scores. */
static enum hd_status read_query_scalar(struct hd_hf_reading *r, const struct hd_json *value)
{
    double scalar = 0;
    enum hd_status st = HD_OK;

    if (value->kind != HD_JSON_NULL)
        st = hd_hf_to_real(value, value->key, 1e-6, 1e9, &scalar);
    if (!st && scalar > 0)
        r->job->attention_scale = 1 / sqrt(scalar);
    return st;
}

/* Reads sliding_window_pattern: the number of layers of a period, or, in EXAONE 4, its layers: local
 * ones, L, and a global one, G; 0, which transformers writes there without a window, is no period. */
static enum hd_status read_pattern(struct hd_hf_reading *r, const struct hd_json *value)
{
    const size_t local = value->kind == HD_JSON_STRING ? strspn(value->text, "L") : 0;

    if (value->kind == HD_JSON_NUMBER && strcmp(value->text, "0") == 0)
        return HD_OK;
    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    if (value->kind != HD_JSON_STRING) {
        const enum hd_status st = hd_json_to_int64(value, 1, 1024, &r->window_period);

        return st ? hd_err_prefix(st, "%s", value->key) : HD_OK;
    }
    if (!local || strcmp(value->text + local, "G") != 0)
        return hd_hf_unsupported(value->key, value, "use the number of layers of a period");
    r->window_period = (int64_t)local + 1;
    return HD_OK;
}

/* Reads q_lora_rank; null means that queries have no latent, an absent key the class's rank. */
static enum hd_status read_q_rank(struct hd_hf_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    r->no_q_latent = value->kind == HD_JSON_NULL;
    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 1, 1 << 16, &r->job->mla_q_rank);
    return st ? hd_err_prefix(st, "%s", value->key) : HD_OK;
}

/* Reads Heddle's own key of config.json: the tokenizer of a model without tokenizer.json. */
static enum hd_status read_tokenizer(struct hd_hf_reading *r, const struct hd_json *value)
{
    if (value->kind != HD_JSON_STRING || strcmp(value->text, "bytes") != 0)
        return hd_hf_unsupported("heddle_tokenizer", value, "it must be \"bytes\"");
    r->job->tokenizer = "bytes";
    return HD_OK;
}

static enum hd_status read_tied(struct hd_hf_reading *r, const struct hd_json *value)
{
    r->has_tied = value->kind != HD_JSON_NULL;
    return read_bool(value, &r->job->tie_embeddings);
}

/* ---- keys with only one supported value ---- */

/* Accepts a key of config.json with the value null, [] or {}; other values are HD_UNSUPPORTED. */
static enum hd_status read_empty(struct hd_hf_reading *r, const struct hd_json *value)
{
    const bool list = value->kind == HD_JSON_ARRAY || value->kind == HD_JSON_OBJECT;

    (void)r;
    return value->kind == HD_JSON_NULL || (list && !value->first)
               ? HD_OK
               : hd_hf_unsupported(value->key, value, "only null is, or an empty value");
}

static enum hd_status read_quantization(struct hd_hf_reading *r, const struct hd_json *value)
{
    return value->kind == HD_JSON_NULL ? HD_OK : hd_hf_read_quantization(value, r->job);
}

static enum hd_status read_compression(struct hd_hf_reading *r, const struct hd_json *value)
{
    (void)r;
    return value->kind == HD_JSON_NULL
               ? HD_OK
               : hd_hf_unsupported(
                     value->key, value,
                     "use a folder with plain weights, or with those of bitsandbytes");
}

static enum hd_status read_own_code(struct hd_hf_reading *r, const struct hd_json *value)
{
    return value->kind == HD_JSON_NULL || (value->kind == HD_JSON_OBJECT && !value->first) ||
                   hd_hf_reads(r->family, "auto_map") /* files of its class have one */
               ? HD_OK
               : hd_hf_unsupported(
                     value->key, value,
                     "the model may have code of its own; if it is a plain model of its "
                     "model_type, remove the key from the file");
}

/* ---- the table ---- */

/* Rows that store in the job and are written from there. */
#define STORED(name_, scope_, rule_, member)                                 \
    .name = (name_), .scope = (scope_), .rule = (rule_), .is_written = true, \
    .offset = offsetof(struct hd_job, member), .written = offsetof(struct hd_job, member)
#define INT(name, scope, member, low, high)                              \
    {                                                                    \
        STORED(name, scope, IS_INT, member), .min = (low), .max = (high) \
    }
#define REAL(name, scope, member, low, high)                              \
    {                                                                     \
        STORED(name, scope, IS_REAL, member), .min = (low), .max = (high) \
    }
#define CAP(name, scope, member, low, high)                                                     \
    {                                                                                           \
        STORED(name, scope, IS_REAL, member), .min = (low), .max = (high), .null_is_zero = true \
    }
#define BOOL(name, scope, member)            \
    {                                        \
        STORED(name, scope, IS_BOOL, member) \
    }
/* Rows that store in what is being read; further fields follow. */
#define READING(name_, scope_, rule_, member, ...)                               \
    {                                                                            \
        .name = (name_), .scope = (scope_), .rule = (rule_), .in_reading = true, \
        .offset = offsetof(struct hd_hf_reading, member), __VA_ARGS__            \
    }
#define COUNT(name, scope, member, low, high) \
    READING(name, scope, IS_INT, member, .min = (low), .max = (high))
#define FLAG(name, scope, member, of_job)                     \
    READING(name, scope, IS_BOOL, member, .is_written = true, \
            .written = offsetof(struct hd_job, of_job))
#define LIST(name, scope, member) READING(name, scope, IS_LIST, member, .why = NULL)
#define SPECIAL(name_, scope_, function)                                        \
    {                                                                           \
        .name = (name_), .scope = (scope_), .rule = READ_BY, .read = (function) \
    }
#define MUST(name_, scope_, value)                                          \
    {                                                                       \
        .name = (name_), .scope = (scope_), .rule = MUST_BE, .why = (value) \
    }
static const struct key keys[] = {
    SPECIAL("model_type", EVERY, read_elsewhere),
    SPECIAL("architectures", EVERY, read_architectures),
    INT("vocab_size", EVERY, vocab, 2, 1 << 22),
    SPECIAL("tie_word_embeddings", EVERY, read_tied),
    SPECIAL("heddle_tokenizer", EVERY, read_tokenizer),

    INT("n_layer", GPT2, layers, 1, 1024),
    INT("n_embd", GPT2, hidden, 1, 1 << 20),
    INT("n_head", GPT2, heads, 1, 4096),
    INT("n_positions", GPT2, context, 1, 1 << 24),
    INT("n_inner", GPT2, ffn_hidden, 1, 1 << 22),
    SPECIAL("activation_function", GPT2, read_activation),
    REAL("layer_norm_epsilon", GPT2, norm_eps, 1e-12, 1),
    MUST("scale_attn_weights", GPT2, "true"),
    MUST("scale_attn_by_inverse_layer_idx", GPT2, "false"),
    MUST("add_cross_attention", GPT2, "false"),
    REAL("attn_pdrop", GPT2, dropout_attention, 0, 0.99),
    REAL("embd_pdrop", GPT2, dropout_embedding, 0, 0.99),
    REAL("resid_pdrop", GPT2, dropout_residual, 0, 0.99),

    INT("num_hidden_layers", ROTARY, layers, 1, 1024),
    INT("hidden_size", ROTARY, hidden, 1, 1 << 20),
    INT("num_attention_heads", ROTARY, heads, 1, 4096),
    SPECIAL("num_key_value_heads", ROTARY, read_kv_heads),
    INT("head_dim", ROTARY, head_width, 1, 4096),
    INT("intermediate_size", ROTARY, ffn_hidden, 1, 1 << 22),
    INT("max_position_embeddings", ROTARY, context, 1, 1 << 24),
    SPECIAL("rope_theta", ROTARY, read_elsewhere),
    SPECIAL("rope_scaling", ROTARY, read_elsewhere),
    SPECIAL("rope_parameters", ROTARY, read_elsewhere),
    SPECIAL("original_max_position_embeddings", ROTARY, read_elsewhere),
    SPECIAL("partial_rotary_factor", ROTARY, read_elsewhere),
    REAL("attention_dropout", ROTARY, dropout_attention, 0, 0.99),

    /* keys of some classes: the rows of families.def list them */
    FLAG("attention_bias", LISTED, attention_bias, qkv_bias),
    BOOL("mlp_bias", LISTED, mlp_bias),
    FLAG("qkv_bias", LISTED, qkv_bias, qkv_bias),
    {.name = "use_bias",
     .scope = LISTED,
     .rule = READ_BY,
     .read = read_use_bias,
     .is_written = true,
     .written = offsetof(struct hd_job, qkv_bias)},
    FLAG("use_qkv_bias", LISTED, qkv_bias, qkv_bias),
    FLAG("attention_out_bias", LISTED, out_bias, out_bias),
    SPECIAL("use_parallel_residual", LISTED, read_parallel),
    READING("new_decoder_architecture", LISTED, IS_BOOL, falcon.grouped, .why = NULL),
    READING("multi_query", LISTED, IS_BOOL, falcon.multi_query, .why = NULL),
    COUNT("num_kv_heads", LISTED, falcon.kv_heads, 1, 4096),
    READING("parallel_attn", LISTED, IS_BOOL, falcon.parallel, .why = NULL),
    COUNT("num_ln_in_parallel_attn", LISTED, falcon.norms, 1, 4096),
    READING("alibi", LISTED, IS_BOOL, falcon.alibi, .why = NULL),
    SPECIAL("bias", LISTED, read_use_bias),
    SPECIAL("activation", LISTED, read_activation),
    SPECIAL("activation_function", LISTED, read_activation),
    INT("n_layer", LISTED, layers, 1, 1024),
    INT("n_layers", LISTED, layers, 1, 1024),
    INT("n_head", LISTED, heads, 1, 4096),
    INT("n_heads", LISTED, heads, 1, 4096),
    INT("d_model", LISTED, hidden, 1, 1 << 20),
    INT("ffn_dim", LISTED, ffn_hidden, 1, 1 << 22),
    INT("seq_length", LISTED, context, 1, 1 << 24),
    INT("max_seq_len", LISTED, context, 1, 1 << 24),
    READING("word_embed_proj_dim", LISTED, IS_INT, embedding_width, .min = 1, .max = 1 << 20,
            .is_written = true, .written = offsetof(struct hd_job, hidden)),
    SPECIAL("attn_config", LISTED, hd_hf_read_attn_config),
    CAP("clip_qkv", LISTED, qkv_clip, 1e-6, 1e6),
    REAL("dropout", LISTED, dropout_residual, 0, 0.99),
    REAL("embd_pdrop", LISTED, dropout_embedding, 0, 0.99),
    REAL("norm_eps", LISTED, norm_eps, 1e-12, 1),
    INT("n_embed", LISTED, hidden, 1, 1 << 20),
    INT("ffn_hidden_size", LISTED, ffn_hidden, 1, 1 << 22),
    REAL("layer_norm_epsilon", LISTED, norm_eps, 1e-12, 1),
    REAL("layer_norm_eps", LISTED, norm_eps, 1e-12, 1),
    REAL("hidden_dropout", LISTED, dropout_residual, 0, 0.99),
    SPECIAL("logit_scale", LISTED, read_logit_scale),
    SPECIAL("rotary_pct", LISTED, read_elsewhere),
    SPECIAL("rotary_emb_base", LISTED, read_elsewhere),
    SPECIAL("layer_types", LISTED, hd_hf_read_block_types),
    SPECIAL("layers_block_type", LISTED, hd_hf_read_block_types),
    SPECIAL("position_embedding_type", LISTED, hd_hf_read_position_type),
    SPECIAL("shared_intermediate_size", LISTED, hd_hf_read_shared_width),
    REAL("norm_epsilon", LISTED, norm_eps, 1e-12, 1),
    SPECIAL("hidden_activation", LISTED, read_activation),
    REAL("embedding_dropout", LISTED, dropout_embedding, 0, 0.99),
    REAL("residual_dropout", LISTED, dropout_residual, 0, 0.99),
    REAL("resid_pdrop", LISTED, dropout_residual, 0, 0.99),
    SPECIAL("query_pre_attn_scalar", LISTED, read_query_scalar),
    CAP("attn_logit_softcapping", LISTED, attention_cap, 1e-6, 1e6),
    CAP("final_logit_softcapping", LISTED, logit_cap, 1e-6, 1e6),
    REAL("attention_multiplier", LISTED, attention_scale, 1e-9, 1e6),
    REAL("embedding_multiplier", LISTED, embedding_scale, 1e-6, 1e6),
    REAL("residual_multiplier", LISTED, residual_scale, 1e-6, 1e6),
    SPECIAL("logits_scaling", LISTED, read_logits_scaling),
    REAL("rope_local_base_freq", LISTED, rope_local_theta, 1, 1e12),
    SPECIAL("sliding_window_pattern", LISTED, read_pattern),
    COUNT("full_attention_interval", LISTED, full_interval, 1, 1024),
    INT("linear_num_key_heads", LISTED, delta_key_heads, 1, 4096),
    INT("linear_num_value_heads", LISTED, delta_value_heads, 1, 4096),
    INT("linear_key_head_dim", LISTED, delta_key_width, 8, 256),
    INT("linear_value_head_dim", LISTED, delta_value_width, 8, 256),
    INT("linear_conv_kernel_dim", LISTED, delta_conv_width, 2, 8),
    INT("conv_L_cache", LISTED, conv_width, 2, 8),
    BOOL("conv_bias", LISTED, conv_bias),
    LIST("full_attn_idxs", LISTED, attention_layers),
    READING("block_auto_adjust_ff_dim", LISTED, IS_BOOL, ffn.adjusted, .why = NULL),
    READING("block_ffn_dim_multiplier", LISTED, IS_REAL, ffn.factor, .min = 1e-6, .max = 1e6,
            .null_is_zero = true),
    COUNT("block_multiple_of", LISTED, ffn.multiple, 1, 1 << 22),
    LIST("no_rope_layers", LISTED, rope_layers),
    COUNT("no_rope_layer_interval", LISTED, rope_interval, 1, 1024),
    LIST("layer_rope_theta", LISTED, layer_thetas),
    READING("attention_chunk_size", LISTED, IS_INT, chunk, .min = 1, .max = 1 << 24,
            .null_is_zero = true),
    SPECIAL("attn_temperature_tuning", LISTED, hd_hf_read_tuning),
    REAL("attn_scale", LISTED, query_factor, 0, 1e3),
    INT("floor_scale", LISTED, query_factor_step, 1, 1 << 24),
    INT("intermediate_size_mlp", LISTED, dense_ffn_hidden, 1, 1 << 22),
    LIST("moe_layers", LISTED, expert_layer_list),
    COUNT("interleave_moe_layer_step", LISTED, sparse_step, 1, 1024),
    REAL("swiglu_limit", LISTED, glu_limit, 1e-6, 1e6),
    INT("num_experts_per_tok", LISTED, experts_per_token, 1, 64),
    READING("moe_intermediate_size", LISTED, IS_INT, expert_ffn, .min = 1, .max = 1 << 22,
            .is_written = true, .written = offsetof(struct hd_job, ffn_hidden)),
    INT("shared_expert_intermediate_size", LISTED, shared_ffn_hidden, 0, 1 << 22),
    BOOL("norm_topk_prob", LISTED, renormalize),
    COUNT("decoder_sparse_step", LISTED, sparse_step, 1, 1024),
    LIST("mlp_only_layers", LISTED, dense_layers),
    INT("n_routed_experts", LISTED, experts, 1, 4096),
    INT("moe_num_experts", LISTED, experts, 1, 4096),
    INT("moe_k", LISTED, experts_per_token, 1, 64),
    COUNT("moe_num_shared_experts", LISTED, shared_experts, 0, 1024),
    COUNT("moe_layer_start_index", LISTED, first_sparse, 0, 1024),
    COUNT("moe_layer_end_index", LISTED, last_sparse, -1, 1024),
    COUNT("moe_layer_interval", LISTED, sparse_step, 1, 1024),
    COUNT("num_nextn_predict_layers", LISTED, extra_layers, 0, 1024),
    COUNT("mtp_num_hidden_layers", LISTED, extra_layers, 0, 1024),
    INT("n_group", LISTED, router_groups, 1, 64),
    INT("topk_group", LISTED, router_groups_kept, 1, 64),
    REAL("routed_scaling_factor", LISTED, router_scale, 1e-6, 1e6),
    SPECIAL("topk_method", LISTED, hd_hf_read_topk_method),
    FLAG("use_qk_norm", LISTED, qk_norm, qk_norm),
    FLAG("qk_layernorm", LISTED, qk_norm, qk_norm),
    SPECIAL("rotary_dim", LISTED, read_elsewhere),
    READING("router_aux_loss_coef", LISTED, IS_REAL, balance, .max = HD_HF_BALANCE_MAX),
    READING("router_jitter_noise", LISTED, IS_REAL, jitter, .max = 1),
    INT("num_local_experts", EXPERTS, experts, 1, 4096),
    COUNT("n_shared_experts", LISTED, shared_experts, 0, 1024),
    COUNT("first_k_dense_replace", LISTED, first_sparse, 0, 1024),
    LIST("mlp_layer_types", LISTED, ffn_types),
    SPECIAL("q_lora_rank", LISTED, read_q_rank),
    INT("kv_lora_rank", LISTED, mla_kv_rank, 1, 1 << 16),
    INT("qk_nope_head_dim", LISTED, mla_nope, 1, 4096),
    INT("qk_rope_head_dim", LISTED, mla_rope, 1, 4096),
    INT("v_head_dim", LISTED, mla_value, 1, 4096),
    SPECIAL("num_local_experts", LISTED, hd_hf_read_no_experts),

    READING("sliding_window", WINDOWED, IS_INT, window, .min = 1, .max = 1 << 24,
            .null_is_zero = true),
    READING("use_sliding_window", SWITCHED, IS_BOOL, use_window, .why = NULL),
    LIST("layer_types", TYPED, layer_types),
    COUNT("max_window_layers", SWITCHED, full_layers, 0, 1 << 20),

    /* the rest of the classes must have these values; the keys above come first */
    REAL("rms_norm_eps", RMS, norm_eps, 1e-12, 1),
    SPECIAL("hidden_act", ROTARY, read_activation),
    MUST("sliding_window", ROTARY, "null"),
    MUST("use_sliding_window", ROTARY, "false"),
    MUST("use_mrope", ROTARY, "false"),
    MUST("rope_interleaved", ROTARY, "false"),
    MUST("use_qk_norm", ROTARY, "false"),
    MUST("is_encoder_decoder", EVERY, "false"),
    MUST("tie_encoder_decoder", EVERY, "false"),
    MUST("add_cross_attention", ROTARY, "false"),
    SPECIAL("cross_attention_hidden_size", EVERY, read_empty),
    SPECIAL("pruned_heads", EVERY, read_empty),
    SPECIAL("quantization_config", EVERY, read_quantization),
    SPECIAL("compression_config", EVERY, read_compression),
    SPECIAL("auto_map", EVERY, read_own_code),
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

/* ---- reading ---- */

static enum hd_status store_value(struct hd_hf_reading *r, const struct key *k,
                                  const struct hd_json *v)
{
    char *const member = (k->in_reading ? (char *)r : (char *)r->job) + k->offset;
    enum hd_status st;

    if (v->kind == HD_JSON_NULL) {
        if (k->null_is_zero) /* of both types */
            memset(member, 0, sizeof(int64_t));
        return HD_OK;
    }
    if (k->rule == IS_REAL)
        return hd_hf_to_real(v, k->name, k->min, k->max, (double *)(void *)member);
    if (k->rule == IS_BOOL)
        return read_bool(v, (bool *)member);
    if (k->rule == IS_LIST) {
        memcpy(member, &v, sizeof v);
        return v->kind == HD_JSON_ARRAY ? HD_OK : hd_hf_unsupported(v->key, v, "it must be a list");
    }
    st = hd_json_to_int64(v, (int64_t)k->min, (int64_t)k->max, (int64_t *)(void *)member);
    return st ? hd_err_prefix(st, "%s", k->name) : HD_OK;
}

static enum hd_status check_value(const struct key *k, const struct hd_json *v)
{
    char text[QUOTE_MAX], instead[64];

    if (v->kind == HD_JSON_NULL || strcmp(hd_hf_quote(v, text), k->why) == 0 ||
        (v->kind == HD_JSON_NUMBER && k->why[0] >= '0' && k->why[0] <= '9' &&
         strtod(v->text, NULL) == strtod(k->why, NULL)))
        return HD_OK;
    (void)snprintf(instead, sizeof instead, "only %s is supported", k->why);
    return hd_hf_unsupported(k->name, v, instead);
}

static enum hd_status read_key(struct hd_hf_reading *r, const struct key *k,
                               const struct hd_json *v)
{
    switch (k->rule) {
    case IS_INT:
    case IS_REAL:
    case IS_BOOL:
    case IS_LIST:
        return store_value(r, k, v);
    case MUST_BE:
        return check_value(k, v);
    case READ_BY:
        return k->read(r, v);
    }
    return HD_OK;
}

/* Returns the name to which transformers maps this name in a class, or the name itself. */
static const char *mapped_name(const struct hd_family *family, const char *name)
{
    static const char *const mapped[][2] = {{"hidden_size", "n_embd"},
                                            {"max_position_embeddings", "n_positions"},
                                            {"num_attention_heads", "n_head"},
                                            {"num_hidden_layers", "n_layer"}};

    static const char *const of_experts[][2] = {{"num_local_experts", "n_routed_experts"},
                                                {"num_experts", "n_routed_experts"},
                                                {"num_experts", "moe_num_experts"},
                                                {"num_experts_per_tok", "moe_k"},
                                                {"num_mtp_layers", "num_nextn_predict_layers"}};

    /* LFM2's own names, which its class takes before the common ones */
    static const char *const of_lfm2[][2] = {{"block_ff_dim", "intermediate_size"},
                                             {"tie_embedding", "tie_word_embeddings"}};

    for (size_t i = 0; i < sizeof of_experts / sizeof of_experts[0]; i++)
        if (strcmp(of_experts[i][0], name) == 0 && hd_hf_reads(family, of_experts[i][1]))
            return of_experts[i][1];
    for (size_t i = 0; i < sizeof of_lfm2 / sizeof of_lfm2[0]; i++)
        if (strcmp(of_lfm2[i][0], name) == 0 && hd_hf_reads(family, name))
            return of_lfm2[i][1];
    if (family->experts && strcmp(name, "num_experts") == 0)
        return "num_local_experts";
    for (size_t i = 0; hd_hf_has_gpt2_keys(family) && i < sizeof mapped / sizeof mapped[0]; i++)
        if (strcmp(mapped[i][0], name) == 0)
            return mapped[i][1];
    return name;
}

static bool is_in_scope(const struct hd_family *family, const struct key *key)
{
    switch (key->scope) {
    case EVERY:
        return true;
    case GPT2:
        return hd_hf_has_gpt2_keys(family);
    case ROTARY:
        return !hd_hf_has_gpt2_keys(family);
    case RMS:
        return !hd_family_has_layernorm(family);
    case LISTED:
        return hd_hf_reads(family, key->name);
    case WINDOWED:
        return family->window != HD_WINDOW_NEVER && family->window != HD_WINDOW_CHUNKS;
    case SWITCHED:
        return family->window == HD_WINDOW_SWITCH;
    case TYPED:
        return family->window == HD_WINDOW_SWITCH || family->window == HD_WINDOW_TYPES ||
               family->window == HD_WINDOW_CHUNKS || family->delta.layers || family->conv.layers;
    case EXPERTS:
        return family->experts;
    }
    return false;
}

/* Returns whether the family's row lists the key among those without an effect. */
static bool is_ignored(const struct hd_family *family, const char *name)
{
    return hd_words_have(family->ignores ? family->ignores : "", name);
}

/* Returns the rule for a key of config.json in this model type; NULL: none. */
static const struct key *find_key(const struct hd_hf_reading *r, const char *name)
{
    name = mapped_name(r->family, name);
    for (int i = 0; i < KEY_COUNT && !is_ignored(r->family, name); i++)
        if (strcmp(keys[i].name, name) == 0 && is_in_scope(r->family, &keys[i]))
            return &keys[i];
    return NULL;
}

/* Sets ret_value to the one supported value of a key that the family's row lists in `must`; returns
 * whether it does. */
static bool has_must(const struct hd_family *family, const char *name, char ret_value[QUOTE_MAX])
{
    const size_t length = strlen(name);

    for (const char *at = family->must ? family->must : ""; *at;) {
        const size_t word = strcspn(at, " ");

        if (word > length && memcmp(at, name, length) == 0 && at[length] == '=') {
            (void)snprintf(ret_value, QUOTE_MAX, "%.*s", (int)(word - length - 1), at + length + 1);
            return true;
        }
        at += word;
        at += strspn(at, " ");
    }
    return false;
}

/* Checks the keys whose one supported value the family's row has. */
static enum hd_status check_must(const struct hd_hf_reading *r)
{
    enum hd_status st = HD_OK;

    for (const struct hd_json *v = r->root->first; v && !st; v = v->next) {
        char value[QUOTE_MAX];
        const struct key key = {.name = v->key, .why = value};

        if (has_must(r->family, v->key, value))
            st = check_value(&key, v);
    }
    return st;
}

/* Returns whether a key is unknown. A key with the value null never is: null turns a feature
 * off. */
static bool is_unknown(const struct hd_hf_reading *r, const struct hd_json *v)
{
    char value[QUOTE_MAX];

    return v->kind != HD_JSON_NULL && !find_key(r, v->key) && !has_must(r->family, v->key, value) &&
           !is_ignored(r->family, v->key) && !hd_hf_is_harmless(v->key, r->family);
}

/* Refuses unknown keys, and names all of them in one message. */
static enum hd_status check_known(const struct hd_hf_reading *r)
{
    enum { NAMES_MAX = 700 }; /* bytes of the names; a message has HD_ERR_MAX */
    char names[NAMES_MAX + QUOTE_MAX] = "", text[QUOTE_MAX];
    size_t count = 0, shown = 0, len = 0;

    for (const struct hd_json *v = r->root->first; v; v = v->next) {
        const struct hd_json name = {.kind = HD_JSON_STRING, .text = v->key};

        if (!is_unknown(r, v))
            continue;
        if (len < NAMES_MAX) {
            len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", count ? ", " : "",
                                    hd_hf_quote(&name, text));
            shown++;
        }
        count++;
    }
    if (!count)
        return HD_OK;
    if (count == 1)
        return hd_err(HD_UNSUPPORTED,
                      "key %s of a %s model is not known to this build; if it does not matter for "
                      "training, remove it from the file",
                      names, r->family->name);
    text[0] = '\0';
    if (count > shown)
        (void)snprintf(text, sizeof text, " and %zu more", count - shown);
    return hd_err(HD_UNSUPPORTED,
                  "keys %s%s of a %s model are not known to this build; those that do not matter "
                  "for training you can remove from the file",
                  names, text, r->family->name);
}

/* Adds a note about a setting that config.json has twice, under one name or two. */
static void note_twice(struct hd_hf_reading *r, const struct hd_json *v, const struct key *key)
{
    const struct hd_json *other = hd_json_member(r->root, key->name);
    char a[QUOTE_MAX], b[QUOTE_MAX];

    if (v->overrode)
        hd_hf_note(r->notes, "config.json has %s twice; the last, %s, counts", v->key,
                   hd_hf_quote(v, a));
    if (strcmp(v->key, key->name) != 0 && other && other->kind != HD_JSON_NULL &&
        !hd_hf_same_value(v, other))
        hd_hf_note(r->notes,
                   "config.json says %s: %s and %s: %s, which are one key; %s counts, as in "
                   "transformers",
                   v->key, hd_hf_quote(v, a), key->name, hd_hf_quote(other, b), v->key);
}

/* Reads the keys of config.json. mapped: reads only the names that transformers maps to others;
 * they must be read last, as they win. */
static enum hd_status read_named(struct hd_hf_reading *r, bool mapped)
{
    enum hd_status st = HD_OK;

    for (const struct hd_json *v = r->root->first; v && !st; v = v->next) {
        const struct key *key = find_key(r, v->key);

        if (!key || (strcmp(v->key, key->name) != 0) != mapped ||
            (mapped && v->kind == HD_JSON_NULL))
            continue;
        note_twice(r, v, key);
        st = read_key(r, key, v);
    }
    return st;
}

enum hd_status hd_hf_read_members(struct hd_hf_reading *r)
{
    enum hd_status st = check_known(r);

    if (!st)
        st = check_must(r);
    if (!st)
        st = read_named(r, false);
    return st ? st : read_named(r, true);
}

/* ---- writing ---- */

static void write_key(struct hd_json_writer *w, const struct hd_job *job, const struct key *k,
                      bool as_float)
{
    const char *const member = (const char *)job + k->written;
    const double real = k->rule == IS_REAL ? *(const double *)(const void *)member : 0;

    if (k->rule == IS_INT)
        hd_json_add_int64(w, k->name, *(const int64_t *)(const void *)member);
    else if (k->rule != IS_REAL)
        hd_json_add_bool(w, k->name, *(const bool *)member);
    else if (k->null_is_zero && real <= 0)
        hd_json_add_null(w, k->name);
    else if (as_float || k->null_is_zero)
        hd_hf_add_float(w, k->name, real);
    else
        hd_json_add_real(w, k->name, real);
}

void hd_hf_write_keys(struct hd_json_writer *w, const struct hd_job *job,
                      const struct hd_family *family, bool as_float, const char *names)
{
    while (*names) {
        const size_t length = strcspn(names, " ");
        bool known = false;

        for (int i = 0; i < KEY_COUNT; i++) {
            const struct key *k = &keys[i];

            if (!k->is_written || strncmp(k->name, names, length) != 0 || k->name[length])
                continue;
            known = true;
            if (is_in_scope(family, k)) {
                write_key(w, job, k, as_float);
                break;
            }
        }
        assert(known);
        (void)known;
        names += length + strspn(names + length, " ");
    }
}

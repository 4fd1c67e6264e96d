/* config: reads config.json into the model of a resolved job. One table has a rule for every key
 * that matters; harmless.c lists those that do not, rope.c reads the keys of rotary positions. A
 * second table has the names that transformers maps to others (attribute_map): if both are in the
 * file, the mapped name counts, as in transformers, because it is set last. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "hf/config_internal.h"

enum { VALUES_MAX = 1 << 16, DEPTH_MAX = 16, QUOTE_MAX = HD_HF_QUOTE_MAX };

enum {
    GPT2 = HD_HF_GPT2,
    LLAMA = HD_HF_LLAMA,
    MISTRAL = HD_HF_MISTRAL,
    QWEN2 = HD_HF_QWEN2,
    QWEN3 = HD_HF_QWEN3,
    MIXTRAL = HD_HF_MIXTRAL,
    QWEN = QWEN2 | QWEN3,
    LIKE_LLAMA = HD_HF_LIKE_LLAMA,
    ALL = HD_HF_ALL
};

const struct hd_hf_type hd_hf_types[HD_HF_TYPE_COUNT] = {
    {"gpt2", "GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification", GPT2},
    {"llama", "LlamaForCausalLM", "LlamaModel", "LlamaForSequenceClassification", LLAMA},
    {"mistral", "MistralForCausalLM", "MistralModel", "MistralForSequenceClassification", MISTRAL},
    {"qwen2", "Qwen2ForCausalLM", "Qwen2Model", "Qwen2ForSequenceClassification", QWEN2},
    {"qwen3", "Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification", QWEN3},
    {"mixtral", "MixtralForCausalLM", "MixtralModel", "MixtralForSequenceClassification", MIXTRAL},
};

/* Defaults of transformers for absent keys. */
enum { MISTRAL_WINDOW = 4096, QWEN_WINDOW = 4096, QWEN_FULL_LAYERS = 28 };
enum { MISTRAL_KV_HEADS = 8, QWEN_KV_HEADS = 32, QWEN3_HEAD_WIDTH = 128 };
enum { MIXTRAL_EXPERTS = 8, MIXTRAL_EXPERTS_PER_TOKEN = 2, BALANCE_MAX = 1000 };
static const double rope_theta = 1e4, mixtral_rope_theta = 1e6, mixtral_norm_eps = 1e-5,
                    mixtral_balance = 0.001;

struct config_reading {
    const struct hd_json *root;
    const struct hd_hf_type *type;
    struct hd_job *job;
    struct hd_text *notes; /* sentences about settings that are not applied; may be NULL */
    int64_t window;        /* tokens; 0: no window; -1: the key is absent */
    int64_t full_layers;   /* qwen: number of layers without a window; -1: the key is absent */
    bool use_window, has_tied, has_balance, attention_bias;
    bool one_kv_head_each; /* num_key_value_heads is null: as many as query heads, in every class */
    const struct hd_json *layer_types;
    double jitter; /* router_jitter_noise: noise on a router's input, not applied; 0: none */
};

enum rule {
    IS_INT,  /* stores to an int64_t at `offset`, from min to max */
    IS_REAL, /* stores to a double at `offset`, from min to max */
    MUST_BE, /* refuses values other than the JSON text `why`, or null */
    READ_BY  /* the row's function `read` reads the value */
};

struct key {
    const char *name;
    unsigned types;
    enum rule rule;
    const char *why;
    size_t offset;
    double min, max;
    enum hd_status (*read)(struct config_reading *r, const struct hd_json *value);
};

/* ---- functions of the rule READ_BY ---- */

/* Accepts a key of config.json that find_type or rope.c reads. */
static enum hd_status read_elsewhere(struct config_reading *r, const struct hd_json *value)
{
    (void)r;
    (void)value;
    return HD_OK;
}

static enum hd_status read_architectures(struct config_reading *r, const struct hd_json *value)
{
    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    if (value->kind != HD_JSON_ARRAY)
        return hd_hf_unsupported("architectures", value, "it must be a list of class names");
    for (const struct hd_json *v = value->first; v; v = v->next) {
        if (v->kind != HD_JSON_STRING ||
            (strcmp(v->text, r->type->architecture) != 0 && strcmp(v->text, r->type->base) != 0 &&
             strcmp(v->text, r->type->classifier) != 0))
            return hd_hf_unsupported("architectures", v,
                                     "only language and reward models are supported");
        if (strcmp(v->text, r->type->classifier) == 0)
            (void)snprintf(r->job->objective, sizeof r->job->objective, "reward");
    }
    return HD_OK;
}

static enum hd_status read_kv_heads(struct config_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    r->one_kv_head_each = value->kind == HD_JSON_NULL;
    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 1, 4096, &r->job->kv_heads);
    return st ? hd_err_prefix(st, "num_key_value_heads") : HD_OK;
}

static enum hd_status read_head_width(struct config_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 1, 4096, &r->job->head_width);
    return st ? hd_err_prefix(st, "head_dim") : HD_OK;
}

static enum hd_status read_inner(struct config_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 1, 1 << 22, &r->job->ffn_hidden);
    return st ? hd_err_prefix(st, "n_inner") : HD_OK;
}

static enum hd_status read_activation(struct config_reading *r, const struct hd_json *value)
{
    /* both are the tanh form of GELU (Hendrycks & Gimpel 2016); swish is another name of SiLU */
    static const char *const gelu[] = {"gelu_new", "gelu_pytorch_tanh"};
    static const char *const silu[] = {"silu", "swish"};
    const char *const *names = r->type->type == GPT2 ? gelu : silu;

    if (value->kind == HD_JSON_STRING &&
        (strcmp(value->text, names[0]) == 0 || strcmp(value->text, names[1]) == 0))
        return HD_OK;
    return hd_hf_unsupported(r->type->type == GPT2 ? "activation_function" : "hidden_act", value,
                             r->type->type == GPT2 ? "use gelu_new" : "use silu");
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

static enum hd_status read_window(struct config_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    r->window = 0;
    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 1, 1 << 24, &r->window);
    return st ? hd_err_prefix(st, "sliding_window") : HD_OK;
}

static enum hd_status read_use_window(struct config_reading *r, const struct hd_json *value)
{
    return read_bool(value, &r->use_window);
}

static enum hd_status read_full_layers(struct config_reading *r, const struct hd_json *value)
{
    enum hd_status st = HD_OK;

    if (value->kind != HD_JSON_NULL)
        st = hd_json_to_int64(value, 0, 1 << 20, &r->full_layers);
    return st ? hd_err_prefix(st, "max_window_layers") : HD_OK;
}

static enum hd_status read_balance(struct config_reading *r, const struct hd_json *value)
{
    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    r->has_balance = true;
    return hd_hf_to_real(value, value->key, 0, BALANCE_MAX, &r->job->balance);
}

static enum hd_status read_jitter(struct config_reading *r, const struct hd_json *value)
{
    return value->kind == HD_JSON_NULL ? HD_OK : hd_hf_to_real(value, value->key, 0, 1, &r->jitter);
}

static enum hd_status read_attention_bias(struct config_reading *r, const struct hd_json *value)
{
    return read_bool(value, &r->attention_bias);
}

static enum hd_status read_mlp_bias(struct config_reading *r, const struct hd_json *value)
{
    return read_bool(value, &r->job->mlp_bias);
}

static enum hd_status read_layer_types(struct config_reading *r, const struct hd_json *value)
{
    if (value->kind == HD_JSON_NULL)
        return HD_OK;
    if (value->kind != HD_JSON_ARRAY)
        return hd_hf_unsupported("layer_types", value,
                                 "it must be a list with one entry per layer");
    r->layer_types = value;
    for (const struct hd_json *v = value->first; v; v = v->next)
        if (v->kind != HD_JSON_STRING ||
            (strcmp(v->text, "full_attention") != 0 && strcmp(v->text, "sliding_attention") != 0))
            return hd_hf_unsupported("layer_types", v, "use full_attention or sliding_attention");
    return HD_OK;
}

/* Reads Heddle's own key of config.json: the tokenizer of a model without tokenizer.json. */
static enum hd_status read_tokenizer(struct config_reading *r, const struct hd_json *value)
{
    if (value->kind != HD_JSON_STRING || strcmp(value->text, "bytes") != 0)
        return hd_hf_unsupported("heddle_tokenizer", value, "it must be \"bytes\"");
    (void)snprintf(r->job->tokenizer, sizeof r->job->tokenizer, "bytes");
    return HD_OK;
}

static enum hd_status read_tied(struct config_reading *r, const struct hd_json *value)
{
    r->has_tied = value->kind != HD_JSON_NULL;
    return read_bool(value, &r->job->tie_embeddings);
}

/* ---- keys with only one supported value ---- */

/* Accepts a key of config.json with the value null, [] or {}; other values are HD_UNSUPPORTED. */
static enum hd_status read_empty(struct config_reading *r, const struct hd_json *value)
{
    const bool list = value->kind == HD_JSON_ARRAY || value->kind == HD_JSON_OBJECT;

    (void)r;
    return value->kind == HD_JSON_NULL || (list && !value->first)
               ? HD_OK
               : hd_hf_unsupported(value->key, value, "only null is, or an empty value");
}

static enum hd_status read_quantization(struct config_reading *r, const struct hd_json *value)
{
    return value->kind == HD_JSON_NULL ? HD_OK : hd_hf_read_quantization(value, r->job);
}

static enum hd_status read_compression(struct config_reading *r, const struct hd_json *value)
{
    (void)r;
    return value->kind == HD_JSON_NULL
               ? HD_OK
               : hd_hf_unsupported(
                     value->key, value,
                     "use a folder with plain weights, or with those of bitsandbytes");
}

static enum hd_status read_own_code(struct config_reading *r, const struct hd_json *value)
{
    (void)r;
    return value->kind == HD_JSON_NULL || (value->kind == HD_JSON_OBJECT && !value->first)
               ? HD_OK
               : hd_hf_unsupported(
                     value->key, value,
                     "the model may have code of its own; if it is a plain model of its "
                     "model_type, remove the key from the file");
}

/* ---- the table ---- */

#define INT(name, types, member, low, high)                                         \
    {                                                                               \
        name, types, IS_INT, NULL, offsetof(struct hd_job, member), low, high, NULL \
    }
#define REAL(name, types, member, low, high)                                         \
    {                                                                                \
        name, types, IS_REAL, NULL, offsetof(struct hd_job, member), low, high, NULL \
    }
#define SPECIAL(name, types, function)                \
    {                                                 \
        name, types, READ_BY, NULL, 0, 0, 0, function \
    }
#define MUST(name, types, value)                   \
    {                                              \
        name, types, MUST_BE, value, 0, 0, 0, NULL \
    }
static const struct key keys[] = {
    SPECIAL("model_type", ALL, read_elsewhere),
    SPECIAL("architectures", ALL, read_architectures),
    INT("vocab_size", ALL, vocab, 2, 1 << 22),
    SPECIAL("tie_word_embeddings", ALL, read_tied),
    SPECIAL("heddle_tokenizer", ALL, read_tokenizer),

    INT("n_layer", GPT2, layers, 1, 1024),
    INT("n_embd", GPT2, hidden, 1, 1 << 20),
    INT("n_head", GPT2, heads, 1, 4096),
    INT("n_positions", GPT2, context, 1, 1 << 24),
    SPECIAL("n_inner", GPT2, read_inner),
    SPECIAL("activation_function", GPT2, read_activation),
    REAL("layer_norm_epsilon", GPT2, norm_eps, 1e-12, 1),
    MUST("scale_attn_weights", GPT2, "true"),
    MUST("scale_attn_by_inverse_layer_idx", GPT2, "false"),
    MUST("add_cross_attention", GPT2, "false"),
    REAL("attn_pdrop", GPT2, dropout_attention, 0, 0.99),
    REAL("embd_pdrop", GPT2, dropout_embedding, 0, 0.99),
    REAL("resid_pdrop", GPT2, dropout_residual, 0, 0.99),

    INT("num_hidden_layers", LIKE_LLAMA, layers, 1, 1024),
    INT("hidden_size", LIKE_LLAMA, hidden, 1, 1 << 20),
    INT("num_attention_heads", LIKE_LLAMA, heads, 1, 4096),
    SPECIAL("num_key_value_heads", LIKE_LLAMA, read_kv_heads),
    SPECIAL("head_dim", LIKE_LLAMA, read_head_width),
    INT("intermediate_size", LIKE_LLAMA, ffn_hidden, 1, 1 << 22),
    INT("max_position_embeddings", LIKE_LLAMA, context, 1, 1 << 24),
    SPECIAL("hidden_act", LIKE_LLAMA, read_activation),
    REAL("rms_norm_eps", LIKE_LLAMA, norm_eps, 1e-12, 1),
    SPECIAL("rope_theta", LIKE_LLAMA, read_elsewhere),
    SPECIAL("rope_scaling", LIKE_LLAMA, read_elsewhere),
    SPECIAL("rope_parameters", LIKE_LLAMA, read_elsewhere),
    SPECIAL("original_max_position_embeddings", LIKE_LLAMA, read_elsewhere),
    SPECIAL("partial_rotary_factor", LIKE_LLAMA, read_elsewhere),
    SPECIAL("sliding_window", MISTRAL | QWEN | MIXTRAL, read_window),
    SPECIAL("use_sliding_window", QWEN, read_use_window),
    SPECIAL("layer_types", QWEN, read_layer_types),
    SPECIAL("max_window_layers", QWEN, read_full_layers),
    SPECIAL("attention_bias", LLAMA | QWEN3, read_attention_bias),
    SPECIAL("mlp_bias", LLAMA, read_mlp_bias),
    INT("num_local_experts", MIXTRAL, experts, 1, 4096),
    INT("num_experts_per_tok", MIXTRAL, experts_per_token, 1, 64),
    SPECIAL("router_aux_loss_coef", MIXTRAL, read_balance),
    SPECIAL("router_jitter_noise", MIXTRAL, read_jitter),
    REAL("attention_dropout", LIKE_LLAMA, dropout_attention, 0, 0.99),

    /* keys of published files, and attributes of every class, that would matter with other
     * values */
    MUST("attention_bias", MISTRAL | MIXTRAL, "false"),
    MUST("mlp_bias", MISTRAL | QWEN | MIXTRAL, "false"),
    MUST("sliding_window", LLAMA, "null"),
    MUST("use_sliding_window", LLAMA | MISTRAL | MIXTRAL, "false"),
    MUST("use_mrope", LIKE_LLAMA, "false"),
    MUST("rope_interleaved", LIKE_LLAMA, "false"),
    MUST("use_qk_norm", LLAMA | MISTRAL | QWEN2 | MIXTRAL, "false"),
    MUST("is_encoder_decoder", ALL, "false"),
    MUST("tie_encoder_decoder", ALL, "false"),
    MUST("add_cross_attention", LIKE_LLAMA, "false"),
    SPECIAL("cross_attention_hidden_size", ALL, read_empty),
    SPECIAL("pruned_heads", ALL, read_empty),
    SPECIAL("quantization_config", ALL, read_quantization),
    SPECIAL("compression_config", ALL, read_compression),
    SPECIAL("auto_map", ALL, read_own_code),
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

/* ---- reading ---- */

static enum hd_status read_key_number(struct config_reading *r, const struct key *k,
                                      const struct hd_json *v)
{
    void *member = (char *)r->job + k->offset;
    enum hd_status st;

    if (v->kind == HD_JSON_NULL) /* null counts as an absent key */
        return HD_OK;
    if (k->rule == IS_REAL)
        return hd_hf_to_real(v, k->name, k->min, k->max, member);
    st = hd_json_to_int64(v, (int64_t)k->min, (int64_t)k->max, member);
    return st ? hd_err_prefix(st, "%s", k->name) : HD_OK;
}

static enum hd_status check_value(const struct key *k, const struct hd_json *v)
{
    char text[QUOTE_MAX], instead[64];

    if (v->kind == HD_JSON_NULL || strcmp(hd_hf_quote(v, text), k->why) == 0)
        return HD_OK;
    (void)snprintf(instead, sizeof instead, "only %s is supported", k->why);
    return hd_hf_unsupported(k->name, v, instead);
}

static enum hd_status read_key(struct config_reading *r, const struct key *k,
                               const struct hd_json *v)
{
    switch (k->rule) {
    case IS_INT:
    case IS_REAL:
        return read_key_number(r, k, v);
    case MUST_BE:
        return check_value(k, v);
    case READ_BY:
        return k->read(r, v);
    }
    return HD_OK;
}

/* Returns the name to which transformers maps this name in a class, or the name itself. */
static const char *mapped_name(unsigned type, const char *name)
{
    static const struct {
        unsigned types;
        const char *name, *to;
    } mapped[] = {{GPT2, "hidden_size", "n_embd"},
                  {GPT2, "max_position_embeddings", "n_positions"},
                  {GPT2, "num_attention_heads", "n_head"},
                  {GPT2, "num_hidden_layers", "n_layer"},
                  {MIXTRAL, "num_experts", "num_local_experts"}};

    for (size_t i = 0; i < sizeof mapped / sizeof mapped[0]; i++)
        if ((mapped[i].types & type) && strcmp(mapped[i].name, name) == 0)
            return mapped[i].to;
    return name;
}

/* Returns the rule for a key of config.json in this model type; NULL: none. */
static const struct key *find_key(const struct config_reading *r, const char *name)
{
    name = mapped_name(r->type->type, name);
    for (int i = 0; i < KEY_COUNT; i++)
        if ((keys[i].types & r->type->type) && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

/* Returns whether a key is unknown. A key with the value null never is: null turns a feature
 * off. */
static bool is_unknown(const struct config_reading *r, const struct hd_json *v)
{
    return v->kind != HD_JSON_NULL && !find_key(r, v->key) &&
           !hd_hf_is_harmless(v->key, r->type->type);
}

/* Refuses unknown keys, and names all of them in one message. */
static enum hd_status check_known(const struct config_reading *r)
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
                      names, r->type->name);
    text[0] = '\0';
    if (count > shown)
        (void)snprintf(text, sizeof text, " and %zu more", count - shown);
    return hd_err(HD_UNSUPPORTED,
                  "keys %s%s of a %s model are not known to this build; those that do not matter "
                  "for training you can remove from the file",
                  names, text, r->type->name);
}

/* Adds a note about a setting that config.json has twice, under one name or two. */
static void note_twice(struct config_reading *r, const struct hd_json *v, const struct key *key)
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
static enum hd_status read_named(struct config_reading *r, bool mapped)
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

static enum hd_status read_members(struct config_reading *r)
{
    enum hd_status st = check_known(r);

    if (!st)
        st = read_named(r, false);
    return st ? st : read_named(r, true);
}

static enum hd_status find_type(struct config_reading *r)
{
    const struct hd_json *value = hd_json_member(r->root, "model_type");

    if (!value)
        return hd_err(HD_INVALID, "model_type is missing; gpt2, llama, mistral, qwen2, qwen3 and "
                                  "mixtral are known");
    for (size_t i = 0; !r->type && i < HD_HF_TYPE_COUNT; i++)
        if (value->kind == HD_JSON_STRING && strcmp(hd_hf_types[i].name, value->text) == 0)
            r->type = &hd_hf_types[i];
    if (!r->type)
        return hd_hf_unsupported("model_type", value,
                                 "gpt2, llama, mistral, qwen2, qwen3 and mixtral are known");
    return HD_OK;
}

static void fill_experts(struct config_reading *r)
{
    struct hd_job *job = r->job;

    if (!job->experts)
        job->experts = MIXTRAL_EXPERTS;
    if (!job->experts_per_token)
        job->experts_per_token = MIXTRAL_EXPERTS_PER_TOKEN;
    if (!r->has_balance)
        job->balance = mixtral_balance;
    if (job->layers) /* otherwise check_present reports the missing key */
        job->balance = hd_hf_balance(job->balance, job->experts_per_token, job->layers);
    job->renormalize = true;
    if (job->norm_eps == 0)
        job->norm_eps = mixtral_norm_eps;
}

/* Sets the defaults of transformers for absent keys. */
static void fill_absent(struct config_reading *r)
{
    struct hd_job *job = r->job;
    const bool gpt2 = r->type->type == GPT2;

    if (r->type->type == MIXTRAL)
        fill_experts(r);
    if (!r->has_tied)
        job->tie_embeddings = gpt2;
    if (!job->kv_heads && (r->one_kv_head_each || (r->type->type & (GPT2 | LLAMA))))
        job->kv_heads = job->heads;
    if (!job->kv_heads)
        job->kv_heads = r->type->type & QWEN ? QWEN_KV_HEADS : MISTRAL_KV_HEADS;
    if (gpt2 && !job->ffn_hidden && job->hidden)
        job->ffn_hidden = 4 * job->hidden;
    if (job->norm_eps == 0)
        job->norm_eps = gpt2 ? 1e-5 : 1e-6;
    if (!job->head_width && r->type->type == HD_HF_QWEN3)
        job->head_width = QWEN3_HEAD_WIDTH;
    if (!job->head_width && job->heads)
        job->head_width = job->hidden / job->heads;
    job->qkv_bias = gpt2 || r->type->type == QWEN2 || r->attention_bias;
    job->out_bias = gpt2 || r->attention_bias;
    job->mlp_bias = job->mlp_bias || gpt2;
    job->qk_norm = r->type->type == QWEN3;
    (void)snprintf(job->positions, sizeof job->positions, "%s", gpt2 ? "learned" : "rope");
}

static enum hd_status check_present(const struct config_reading *r)
{
    static const struct {
        size_t offset;
        const char *gpt2, *other;
    } needed[] = {
        {offsetof(struct hd_job, layers), "n_layer", "num_hidden_layers"},
        {offsetof(struct hd_job, hidden), "n_embd", "hidden_size"},
        {offsetof(struct hd_job, heads), "n_head", "num_attention_heads"},
        {offsetof(struct hd_job, kv_heads), "n_head", "num_key_value_heads"},
        {offsetof(struct hd_job, ffn_hidden), "n_inner", "intermediate_size"},
        {offsetof(struct hd_job, vocab), "vocab_size", "vocab_size"},
        {offsetof(struct hd_job, context), "n_positions", "max_position_embeddings"},
    };

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (*(const int64_t *)((const char *)r->job + needed[i].offset) == 0)
            return hd_err(HD_INVALID, "%s is missing",
                          r->type->type == GPT2 ? needed[i].gpt2 : needed[i].other);
    return HD_OK;
}

/* Finds the first layer with a window; all later layers must have one, too. */
static enum hd_status find_window_start(const struct config_reading *r, int64_t *ret_from)
{
    int64_t layer = 0, from = -1;

    if (!r->layer_types) {
        *ret_from = r->full_layers < 0 ? QWEN_FULL_LAYERS : r->full_layers;
        return HD_OK;
    }
    if ((int64_t)r->layer_types->count != r->job->layers)
        return hd_err(HD_INVALID, "layer_types: has %zu entries for %" PRId64 " layers",
                      r->layer_types->count, r->job->layers);
    for (const struct hd_json *v = r->layer_types->first; v; v = v->next, layer++) {
        const bool windowed = strcmp(v->text, "sliding_attention") == 0;

        if (windowed && from < 0)
            from = layer;
        if (!windowed && from >= 0)
            return hd_err(HD_UNSUPPORTED,
                          "layer_types: layer %" PRId64 " has full attention after a layer with a "
                          "window; only the last layers may have windows",
                          layer);
    }
    *ret_from = from < 0 ? r->job->layers : from;
    return HD_OK;
}

static enum hd_status take_window(struct config_reading *r)
{
    struct hd_job *job = r->job;
    enum hd_status st;

    if (r->type->type == MISTRAL)
        job->window = r->window < 0 ? MISTRAL_WINDOW : r->window;
    if (r->type->type == MIXTRAL && r->window > 0)
        job->window = r->window;
    if (!(r->type->type & QWEN))
        return HD_OK;
    st = find_window_start(r, &job->window_from);
    if (st)
        return st;
    if (r->use_window && job->window_from < job->layers)
        job->window = r->window < 0 ? QWEN_WINDOW : r->window;
    if (!job->window)
        job->window_from = 0;
    return HD_OK;
}

static enum hd_status check_built(const struct config_reading *r)
{
    const struct hd_job *job = r->job;

    if (job->hidden % job->heads && job->head_width == job->hidden / job->heads)
        return hd_err(HD_INVALID, "%s: %" PRId64 " heads do not divide the hidden size of %" PRId64,
                      r->type->type == GPT2 ? "n_head" : "num_attention_heads", job->heads,
                      job->hidden);
    if (job->balance > BALANCE_MAX)
        return hd_err(HD_INVALID,
                      "router_aux_loss_coef: its weight in each layer would be %g, and "
                      "at most %d is possible",
                      job->balance, BALANCE_MAX);
    if (job->experts_per_token > job->experts)
        return hd_err(HD_INVALID,
                      "num_experts_per_tok: %" PRId64 " is more than num_local_experts = %" PRId64,
                      job->experts_per_token, job->experts);
    return HD_OK;
}

static enum hd_status read_config(struct config_reading *r)
{
    enum hd_status st = find_type(r);

    if (!st && r->type->type == GPT2) /* defaults of transformers' GPT2Config */
        r->job->dropout_embedding = r->job->dropout_attention = r->job->dropout_residual = 0.1;
    if (!st)
        st = read_members(r);
    if (st)
        return st;
    fill_absent(r);
    st = check_present(r);
    if (!st)
        st = take_window(r);
    if (!st) /* gpt2 has no keys of rotary positions; its theta is the default of a job */
        st = hd_hf_read_rope(r->root, r->type->type == MIXTRAL ? mixtral_rope_theta : rope_theta,
                             r->job, r->notes);
    if (!st)
        st = check_built(r);
    if (!st && r->jitter > 0)
        hd_hf_note(r->notes,
                   "config.json says router_jitter_noise = %g; jitter is not supported, the model "
                   "is trained without it",
                   r->jitter);
    (void)snprintf(r->job->family, sizeof r->job->family, "%s", r->type->name);
    return st;
}

static void clear_model(struct hd_job *job)
{
    job->family[0] = '\0';
    job->layers = job->hidden = job->heads = job->kv_heads = 0;
    job->ffn_hidden = job->vocab = job->context = 0;
    job->rope_theta = job->norm_eps = 0;
    job->tie_embeddings = false;
    job->head_width = job->window = job->window_from = 0;
    job->qkv_bias = job->out_bias = job->mlp_bias = job->qk_norm = false;
    job->experts = job->experts_per_token = job->shared_ffn_hidden = 0;
    job->renormalize = job->noisy = false;
    job->balance = job->z_loss = job->capacity = 0;
    job->positions[0] = '\0';
    (void)snprintf(job->model_weights, sizeof job->model_weights, "plain");
    job->dropout_embedding = job->dropout_attention = job->dropout_residual = 0;
    (void)snprintf(job->rope_scaling, sizeof job->rope_scaling, "none");
    /* 0: not given; the members of rope_scaling below get the defaults of a job file */
    job->rope_original_context = 0;
    job->rope_factor = job->rope_low_freq_factor = job->rope_beta_slow = 1;
    job->rope_high_freq_factor = 4;
    job->rope_beta_fast = 32;
    job->rope_attention_factor = 0;
}

enum hd_status hd_hf_parse_config(const char *text, size_t text_bytes, struct hd_job *ret_job,
                                  struct hd_text *ret_notes)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = DEPTH_MAX};
    struct config_reading r = {.job = ret_job, .notes = ret_notes, .window = -1, .full_layers = -1};
    struct hd_arena arena;
    enum hd_status st;

    clear_model(ret_job);
    hd_arena_init(&arena, 0);
    st = hd_json_parse_repeated(&arena, text, text_bytes, &limits, &r.root);
    if (!st && r.root->kind != HD_JSON_OBJECT)
        st = hd_err(HD_INVALID, "it is not a JSON object");
    if (!st)
        st = read_config(&r);
    hd_arena_done(&arena);
    return st;
}

bool hd_hf_has_config(const char *dir)
{
    struct hd_text path = {0};
    bool found;

    hd_file_join(&path, dir, "config.json");
    found = !path.failed && hd_file_exists(path.data);
    hd_text_free(&path);
    return found;
}

enum hd_status hd_hf_read_config(const char *dir, struct hd_job *ret_job, struct hd_text *ret_notes)
{
    struct hd_text path = {0}, text = {0};
    enum hd_status st;

    hd_file_join(&path, dir, "config.json");
    if (path.failed) {
        hd_text_free(&path);
        return hd_err(HD_NO_MEMORY, "no memory for a path");
    }
    st = hd_file_read(path.data, HD_HF_CONFIG_BYTES_MAX, &text);
    if (!st) {
        st = hd_hf_parse_config(text.data ? text.data : "", text.len_bytes, ret_job, ret_notes);
        if (st)
            st = hd_err_prefix(st, "%s", path.data);
    }
    if (!st && ret_job->tie_embeddings)
        hd_hf_resolve_tied(dir, ret_job, ret_notes);
    hd_text_free(&path);
    hd_text_free(&text);
    return st;
}

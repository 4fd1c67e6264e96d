/* describe: writes the config.json of a resolved job. The model type is the job's family if it can
 * express the model, else the first type that can. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "hf/hf_internal.h"

/* Returns the name of a setting of experts or router that config.json cannot express; NULL: it can
 * express all. Settings that affect only training (other losses, capacity) are not part of the
 * model. */
static const char *lacks_of_router(const struct hd_job *job)
{
    if (job->shared_ffn_hidden)
        return "model.shared_ffn_hidden";
    if (job->noisy)
        return "model.router.noisy: true";
    return job->renormalize ? NULL : "model.router.renormalize: false";
}

/* Returns the name of a setting of the model that this model type cannot express; NULL: it can
 * express all. */
static const char *lacks(const struct hd_job *job, unsigned type)
{
    const bool gpt2 = type == HD_HF_GPT2, is_gpt2 = strcmp(job->family, "gpt2") == 0;

    if (gpt2 != is_gpt2)
        return "model.family";
    if ((type == HD_HF_MIXTRAL) != (job->experts > 0))
        return "model.experts";
    if (type == HD_HF_MIXTRAL && lacks_of_router(job))
        return lacks_of_router(job);
    if (strcmp(job->positions, gpt2 ? "learned" : "rope") != 0)
        return "model.positions: alibi";
    if (gpt2 && !(job->qkv_bias && job->out_bias))
        return "model.qkv_bias or model.out_bias: false";
    if (gpt2 && !job->mlp_bias)
        return "model.mlp_bias: false";
    if (gpt2 && job->head_width * job->heads != job->hidden)
        return "model.head_width";
    if (job->mlp_bias && !gpt2 && type != HD_HF_LLAMA)
        return "model.mlp_bias: true";
    if (job->qk_norm != (type == HD_HF_QWEN3))
        return "model.qk_norm";
    if (type == HD_HF_QWEN2 ? !job->qkv_bias || job->out_bias : job->qkv_bias != job->out_bias)
        return "model.qkv_bias with this model.out_bias";
    if ((type == HD_HF_MISTRAL || type == HD_HF_MIXTRAL) && job->qkv_bias)
        return "model.qkv_bias: true";
    if (job->window && (type == HD_HF_GPT2 || type == HD_HF_LLAMA))
        return "model.window";
    if (job->window_from && (type == HD_HF_MISTRAL || type == HD_HF_MIXTRAL))
        return "model.window_from";
    return NULL;
}

static enum hd_status choose_type(const struct hd_job *job, const struct hd_hf_type **ret_type)
{
    const char *what = NULL;

    for (size_t i = 0; i < HD_HF_TYPE_COUNT; i++)
        if (strcmp(hd_hf_types[i].name, job->family) == 0) {
            *ret_type = &hd_hf_types[i];
            what = lacks(job, hd_hf_types[i].type);
            if (!what)
                return HD_OK;
        }
    for (size_t i = 0; what && i < HD_HF_TYPE_COUNT; i++)
        if (!lacks(job, hd_hf_types[i].type)) {
            *ret_type = &hd_hf_types[i];
            return HD_OK;
        }
    return hd_err(HD_UNSUPPORTED,
                  "config.json of transformers' %s cannot express %s, and no other model type can "
                  "express this model",
                  job->family, what ? what : "model.family");
}

static void add_gpt2(struct hd_json_writer *w, const struct hd_job *job, int64_t positions)
{
    hd_json_add_int64(w, "n_layer", job->layers);
    hd_json_add_int64(w, "n_embd", job->hidden);
    hd_json_add_int64(w, "n_head", job->heads);
    hd_json_add_int64(w, "n_positions", positions ? positions : job->context);
    hd_json_add_int64(w, "n_inner", job->ffn_hidden);
    hd_json_add_string(w, "activation_function", "gelu_new");
    hd_json_add_real(w, "layer_norm_epsilon", job->norm_eps);
    hd_json_add_real(w, "attn_pdrop", job->dropout_attention);
    hd_json_add_real(w, "embd_pdrop", job->dropout_embedding);
    hd_json_add_real(w, "resid_pdrop", job->dropout_residual);
}

/* Adds rope_scaling, the older key, which newer versions read, too. */
static void add_rope(struct hd_json_writer *w, const struct hd_job *job)
{
    const bool llama3 = strcmp(job->rope_scaling, "llama3") == 0;
    const bool yarn = strcmp(job->rope_scaling, "yarn") == 0;

    hd_json_add_real(w, "rope_theta", job->rope_theta);
    if (strcmp(job->rope_scaling, "none") == 0) {
        hd_json_add_null(w, "rope_scaling");
        return;
    }
    hd_json_begin(w, "rope_scaling", '{');
    hd_json_add_string(w, "rope_type", job->rope_scaling);
    hd_json_add_real(w, "factor", job->rope_factor);
    if (llama3 || yarn)
        hd_json_add_int64(w, "original_max_position_embeddings", job->rope_original_context);
    if (llama3) {
        hd_json_add_real(w, "low_freq_factor", job->rope_low_freq_factor);
        hd_json_add_real(w, "high_freq_factor", job->rope_high_freq_factor);
    }
    if (yarn) {
        hd_json_add_real(w, "beta_fast", job->rope_beta_fast);
        hd_json_add_real(w, "beta_slow", job->rope_beta_slow);
        if (job->rope_attention_factor > 0)
            hd_json_add_real(w, "attention_factor", job->rope_attention_factor);
    }
    hd_json_end(w, '}');
}

static void add_window(struct hd_json_writer *w, const struct hd_job *job, unsigned type)
{
    if (type == HD_HF_QWEN2 || type == HD_HF_QWEN3) {
        hd_json_add_bool(w, "use_sliding_window", job->window > 0);
        hd_json_add_int64(w, "max_window_layers", job->window ? job->window_from : job->layers);
    }
    if (job->window)
        hd_json_add_int64(w, "sliding_window", job->window);
    else if (type != HD_HF_LLAMA)
        hd_json_add_null(w, "sliding_window"); /* an absent key would mean the default window */
}

/* Adds a number with a decimal point (0.0, not 0), which newer versions of transformers require. */
static void add_float(struct hd_json_writer *w, const char *key, double value)
{
    hd_json_add_real(w, key, value);
    if (!w->out->failed && !strpbrk(strrchr(w->out->data, ':'), ".en"))
        hd_text_add(w->out, ".0");
}

/* Returns the router_aux_loss_coef for which hd_hf_balance gives this weight, in as few digits as
 * possible, so that a coefficient that was read is written back unchanged. */
static double coefficient_of(const struct hd_job *job)
{
    const double exact = job->balance * (double)job->layers / (double)job->experts_per_token;
    const double near[] = {exact, nextafter(exact, 0), nextafter(exact, HUGE_VAL)};
    char text[40];

    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++)
        for (int digits = 1; digits <= 17; digits++) {
            double value;

            (void)snprintf(text, sizeof text, "%.*g", digits, near[i]);
            value = strtod(text, NULL);
            if (hd_hf_balance(value, job->experts_per_token, job->layers) == job->balance)
                return value;
        }
    return exact; /* no shorter number gives exactly this weight */
}

static void add_experts(struct hd_json_writer *w, const struct hd_job *job)
{
    hd_json_add_int64(w, "num_local_experts", job->experts);
    hd_json_add_int64(w, "num_experts_per_tok", job->experts_per_token);
    add_float(w, "router_aux_loss_coef", coefficient_of(job));
    hd_json_add_bool(w, "output_router_logits", false);
    add_float(w, "router_jitter_noise", 0);
}

static void add_llama(struct hd_json_writer *w, const struct hd_job *job, unsigned type)
{
    hd_json_add_int64(w, "num_hidden_layers", job->layers);
    hd_json_add_int64(w, "hidden_size", job->hidden);
    hd_json_add_int64(w, "num_attention_heads", job->heads);
    hd_json_add_int64(w, "num_key_value_heads", job->kv_heads);
    hd_json_add_int64(w, "head_dim", job->head_width);
    hd_json_add_int64(w, "intermediate_size", job->ffn_hidden);
    hd_json_add_int64(w, "max_position_embeddings", job->context);
    hd_json_add_string(w, "hidden_act", "silu");
    hd_json_add_real(w, "rms_norm_eps", job->norm_eps);
    add_rope(w, job);
    add_window(w, job, type);
    if (type == HD_HF_LLAMA || type == HD_HF_QWEN3)
        hd_json_add_bool(w, "attention_bias", job->qkv_bias);
    if (type == HD_HF_LLAMA)
        hd_json_add_bool(w, "mlp_bias", job->mlp_bias);
    hd_json_add_real(w, "attention_dropout", job->dropout_attention);
    if (type == HD_HF_MIXTRAL)
        add_experts(w, job);
}

static void add_id(struct hd_json_writer *w, const char *key, int64_t id)
{
    if (id < 0)
        hd_json_add_null(w, key);
    else
        hd_json_add_int64(w, key, id);
}

/* Adds the labels of a reward model, which has one. */
static void add_reward(struct hd_json_writer *w)
{
    hd_json_begin(w, "id2label", '{');
    hd_json_add_string(w, "0", "LABEL_0");
    hd_json_end(w, '}');
    hd_json_begin(w, "label2id", '{');
    hd_json_add_int64(w, "LABEL_0", 0);
    hd_json_end(w, '}');
}

enum hd_status hd_hf_write_config(const struct hd_job *job, enum hd_dtype dtype,
                                  struct hd_text *ret_text)
{
    return hd_hf_describe(
        &(struct hd_hf_description){.job = job, .dtype = dtype, .bos = -1, .eos = -1, .pad = -1},
        ret_text);
}

/* Describes the model. pad_token_id: transformers finds the last row of an answer in front of the
 * padding token, so a reward model without one refuses batches of several answers. bos and eos are
 * always written: the defaults of the classes are ids of other tokenizers. */
enum hd_status hd_hf_describe(const struct hd_hf_description *now, struct hd_text *ret_text)
{
    const struct hd_job *job = now->job;
    struct hd_json_writer w = {.out = ret_text};
    const struct hd_hf_type *type = NULL;
    enum hd_status st = choose_type(job, &type);

    if (st)
        return st;
    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "architectures", '[');
    hd_json_add_string(&w, NULL, hd_job_is_reward(job) ? type->classifier : type->architecture);
    hd_json_end(&w, ']');
    hd_json_add_string(&w, "model_type", type->name);
    hd_json_add_string(&w, "torch_dtype", now->dtype == HD_BF16 ? "bfloat16" : "float32");
    hd_json_add_int64(&w, "vocab_size", job->vocab);
    hd_json_add_bool(&w, "tie_word_embeddings", job->tie_embeddings);
    if (type->type == HD_HF_GPT2)
        add_gpt2(&w, job, now->positions);
    else
        add_llama(&w, job, type->type);
    if (strcmp(job->tokenizer, "bytes") == 0)
        hd_json_add_string(&w, "heddle_tokenizer", "bytes");
    if (hd_job_is_reward(job))
        add_reward(&w);
    if (hd_job_is_reward(job) || now->pad >= 0)
        add_id(&w, "pad_token_id", now->pad);
    add_id(&w, "bos_token_id", now->bos);
    add_id(&w, "eos_token_id", now->eos);
    hd_json_end(&w, '}');
    hd_text_add(ret_text, "\n");
    return ret_text->failed ? hd_err(HD_NO_MEMORY, "no memory for config.json") : HD_OK;
}

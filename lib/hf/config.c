/* config: reads config.json into the model of a resolved job: the model type, its keys
 * (config_keys.c), and what transformers' class assumes for keys that are absent. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/math.h"
#include "base/words.h"
#include "hf/config_internal.h"

enum { VALUES_MAX = 1 << 16, DEPTH_MAX = 16 };

/* Types of models of transformers that are not read: what their blocks have that no family here has,
 * and the family that is nearest. */
static const struct {
    const char *types, *lack, *nearest;
} lacking[] = {
    {"gptj codegen", "rotary pairs of adjacent channels beside a bias of the logits", "phi"},
    {"persimmon", "LayerNorms of queries and keys with biases", "stablelm"},
    {"apertus", "the activation xIELU", "arcee"},
    {"lfm2_moe", "experts behind short convolutions", "lfm2"},
    {"phimoe", "the router sparsemixer", "mixtral"},
    {"gemma3n gemma3n_text", "embeddings of each layer", "gemma3_text"},
    {"gemma4 gemma4_text", "heads of two widths", "gemma3_text"},
    {"mamba mamba2 falcon_mamba nemotron_h falcon_h1 jamba bamba zamba2", "state-space layers",
     "granitemoehybrid"},
    {"deepseek_v32 glm_moe_dsa", "an indexer that picks tokens for attention", "deepseek_v3"},
    {"kimi_linear", "delta layers with a decay for each channel", "qwen3_next"},
};

/* Writes what is known here of a model type that is no family. */
static void describe_missing_type(const char *type, char *ret_text, size_t size)
{
    const char *nearest = hd_family_nearest(type);

    for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++)
        if (hd_words_have(lacking[i].types, type)) {
            (void)snprintf(ret_text, size, "its blocks have %s; the nearest family is %s; ",
                           lacking[i].lack, lacking[i].nearest);
            return;
        }
    ret_text[0] = '\0';
    if (nearest)
        (void)snprintf(ret_text, size, "the nearest family is %s; ", nearest);
}

static enum hd_status find_type(struct hd_hf_reading *r)
{
    const struct hd_json *value = hd_json_member(r->root, "model_type");
    char list[HD_FAMILY_LIST_MAX], known[128] = "", instead[HD_FAMILY_LIST_MAX + 160];

    hd_family_list(list);
    if (r->wrapper && (!value || (value->kind == HD_JSON_STRING &&
                                  hd_words_have(r->wrapper->texts, value->text)))) {
        (void)snprintf(list, sizeof list, "%s", value ? value->text : r->wrapper->texts);
        list[strcspn(list, " ")] = '\0';
        r->family = hd_family_named(list);
        return HD_OK;
    }
    if (r->wrapper) {
        (void)snprintf(instead, sizeof instead,
                       "it is that of text_config, and known for a %s model are: %s",
                       r->wrapper->type, r->wrapper->texts);
        return hd_hf_unsupported("model_type", value, instead);
    }
    if (!value)
        return hd_err(HD_INVALID, "model_type is missing; these are known: %s", list);
    if (value->kind == HD_JSON_STRING)
        r->family = hd_family_of_type(value->text);
    if (r->family)
        return HD_OK;
    if (value->kind == HD_JSON_STRING)
        describe_missing_type(value->text, known, sizeof known);
    (void)snprintf(instead, sizeof instead, "%sknown are %s", known, list);
    return hd_hf_unsupported("model_type", value, instead);
}

/* Sets the defaults of transformers for absent keys of experts. */
static void fill_experts(struct hd_hf_reading *r)
{
    struct hd_job *job = r->job;

    job->balance = r->balance < 0 ? r->family->absent.balance : r->balance;
    if (!job->shared_ffn_hidden && !hd_json_member(r->root, "shared_expert_intermediate_size"))
        job->shared_ffn_hidden = r->family->absent.shared;
    if (hd_hf_reads(r->family, "moe_intermediate_size")) {
        job->dense_ffn_hidden = job->ffn_hidden;
        job->ffn_hidden = r->expert_ffn ? r->expert_ffn : r->family->absent.ffn_of_expert;
    }
    if (hd_hf_reads(r->family, "intermediate_size_mlp"))
        job->shared_ffn_hidden = job->ffn_hidden; /* each layer with experts has a shared one */
    if (r->shared_experts < 0)
        r->shared_experts = r->family->absent.shared_experts;
    if (hd_hf_shared_key(r->family))
        job->shared_ffn_hidden = r->shared_experts * job->ffn_hidden;
    if (r->first_sparse < 0)
        r->first_sparse = r->family->absent.dense_layers;
    if (hd_hf_reads(r->family, "topk_method") && !r->grouped)
        job->router_groups = job->router_groups_kept = 1;
}

/* Returns whether config.json says that its weights are bf16; a wrapped model's own file rules. */
static bool is_bf16(const struct hd_json *root, const struct hd_json *outer)
{
    const struct hd_json *newer = hd_json_member(root, "dtype");
    const struct hd_json *older = hd_json_member(root, "torch_dtype");
    const struct hd_json *dtype = newer ? newer : older;

    if (outer && (hd_json_member(outer, "dtype") || hd_json_member(outer, "torch_dtype")))
        return is_bf16(outer, NULL);
    return dtype && dtype->kind == HD_JSON_STRING && strcmp(dtype->text, "bfloat16") == 0;
}

static void fill_rope_and_scale(struct hd_hf_reading *r)
{
    struct hd_job *job = r->job;

    if (r->family->scales_embedding && job->hidden)
        job->embedding_scale = hd_hf_embedding_scale(job->hidden, is_bf16(r->root, r->outer));
    if (hd_hf_reads(r->family, "query_pre_attn_scalar") && job->attention_scale == 0)
        job->attention_scale = 1 / sqrt(256.0); /* the classes' default */
    if (hd_hf_reads(r->family, "attention_multiplier") && job->attention_scale == 0 &&
        !r->family->logits_multiplied)
        job->attention_scale = 1;
}

/* Sets the sizes that files of the class may leave out. */
static void fill_sizes(struct hd_hf_reading *r)
{
#define JOB(member)    offsetof(struct hd_job, member)
#define FAMILY(member) offsetof(struct hd_family, member)
    static const struct {
        size_t of_job, of_family; /* int64_t; 0 in the job: absent; 0 in the family: none has it */
    } sizes[] = {
        {JOB(vocab), FAMILY(absent.vocab)},
        {JOB(layers), FAMILY(absent.layers)},
        {JOB(hidden), FAMILY(absent.hidden)},
        {JOB(heads), FAMILY(absent.heads)},
        {JOB(ffn_hidden), FAMILY(absent.ffn)},
        {JOB(context), FAMILY(absent.context)},
        {JOB(experts), FAMILY(absent.experts)},
        {JOB(experts_per_token), FAMILY(absent.experts_per_token)},
        {JOB(dense_ffn_hidden), FAMILY(absent.dense_ffn)},
        {JOB(mla_kv_rank), FAMILY(latent.kv_rank)},
        {JOB(mla_nope), FAMILY(latent.nope)},
        {JOB(mla_rope), FAMILY(latent.rope)},
        {JOB(mla_value), FAMILY(latent.value)},
        {JOB(delta_key_heads), FAMILY(delta.key_heads)},
        {JOB(delta_value_heads), FAMILY(delta.value_heads)},
        {JOB(delta_key_width), FAMILY(delta.key_width)},
        {JOB(delta_value_width), FAMILY(delta.value_width)},
        {JOB(delta_conv_width), FAMILY(delta.conv_width)},
        {JOB(conv_width), FAMILY(conv.width)},
        {JOB(head_width), FAMILY(absent.head_width)},
    };
#undef JOB
#undef FAMILY

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t *const member = (int64_t *)(void *)((char *)r->job + sizes[i].of_job);

        if (!*member)
            memcpy(member, (const char *)r->family + sizes[i].of_family, sizeof *member);
    }
}

/* Computes the width of LFM2's feed-forward layer: two thirds of the one in config.json, times a
 * factor, up to a multiple of a number; unless the file says that it is the width itself. */
static void adjust_ffn(struct hd_hf_reading *r)
{
    int64_t *width = &r->job->ffn_hidden;

    if (!r->ffn.adjusted)
        return;
    *width = 2 * *width / 3;
    if (r->ffn.factor > 0) /* null: neither factor nor multiple */
        *width = hd_round_up((int64_t)(r->ffn.factor * (double)*width), r->ffn.multiple);
}

/* Sets the defaults of transformers for absent keys. */
static void fill_absent(struct hd_hf_reading *r)
{
    const struct hd_family *family = r->family;
    struct hd_job *job = r->job;

    fill_sizes(r);
    if (hd_hf_reads(family, "block_auto_adjust_ff_dim"))
        adjust_ffn(r);
    if (family->experts)
        fill_experts(r);
    if (!r->has_tied)
        job->tie_embeddings = family->tied;
    if (!job->kv_heads && (r->one_kv_head_each || !family->absent.kv_heads))
        job->kv_heads = job->heads;
    if (!job->kv_heads)
        job->kv_heads = family->absent.kv_heads;
    if ((hd_hf_has_gpt2_keys(family) || family->alibi) && !job->ffn_hidden && job->hidden)
        job->ffn_hidden = 4 * job->hidden;
    if (job->norm_eps == 0)
        job->norm_eps = family->absent.eps;
    if (family->latent.kv_rank) {
        if (!job->mla_q_rank && !r->no_q_latent)
            job->mla_q_rank = family->latent.q_rank;
        job->head_width =
            job->mla_nope + job->mla_rope; /* head_dim of such a file is another width */
    }
    if (!job->head_width && job->heads)
        job->head_width = job->hidden / job->heads;
    job->qkv_bias = r->qkv_bias || r->attention_bias;
    job->out_bias = r->out_bias || (r->attention_bias && !family->no_out_bias);
    job->qk_norm = r->qk_norm;
    if (hd_hf_reads(family, "rotary_emb_base")) /* hidden_dropout is also that of the embedding */
        job->dropout_embedding = job->dropout_residual;
    fill_rope_and_scale(r);
    job->positions = hd_family_positions(family);
}

static enum hd_status check_present(const struct hd_hf_reading *r)
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
                          hd_hf_has_gpt2_keys(r->family) ? needed[i].gpt2 : needed[i].other);
    return HD_OK;
}

static enum hd_status check_built(const struct hd_hf_reading *r)
{
    static const char *const heads[] = {"n_head", "n_heads", "num_attention_heads", NULL};
    const struct hd_job *job = r->job;

    if (job->hidden % job->heads && job->head_width == job->hidden / job->heads)
        return hd_err(HD_INVALID, "%s: %" PRId64 " heads do not divide the hidden size of %" PRId64,
                      hd_hf_has_gpt2_keys(r->family) ? "n_head" : hd_hf_own_key(r->family, heads),
                      job->heads, job->hidden);
    if (hd_hf_reads(r->family, "attn_config") && (job->heads & (job->heads - 1)))
        return hd_err(HD_UNSUPPORTED,
                      "n_heads: %" PRId64
                      " is no power of two, for which the slopes of MPT are others than those here",
                      job->heads);
    if (r->embedding_width && r->embedding_width != job->hidden)
        return hd_err(HD_UNSUPPORTED,
                      "word_embed_proj_dim: an embedding of %" PRId64
                      " channels is projected to hidden_size = %" PRId64
                      ", which is not supported; use a model of another size",
                      r->embedding_width, job->hidden);
    if (job->balance > HD_HF_BALANCE_MAX)
        return hd_err(HD_INVALID,
                      "router_aux_loss_coef: its weight in each layer would be %g, and "
                      "at most %d is possible",
                      job->balance, HD_HF_BALANCE_MAX);
    if (job->experts && !job->experts_per_token)
        return hd_err(HD_INVALID, "num_experts_per_tok is missing");
    if (job->experts_per_token > job->experts)
        return hd_err(HD_INVALID, "%s: %" PRId64 " is more than %s = %" PRId64,
                      hd_hf_reads(r->family, "moe_k") ? "moe_k" : "num_experts_per_tok",
                      job->experts_per_token, hd_hf_experts_key(r->family), job->experts);
    return HD_OK;
}

/* Sets members for which null is another value than an absent key: those of the class. */
static void set_class_defaults(struct hd_hf_reading *r)
{
    struct hd_job *job = r->job;

    if (hd_hf_has_gpt2_keys(r->family)) /* transformers' GPT2Config */
        job->dropout_embedding = job->dropout_attention = job->dropout_residual = 0.1;
    r->attention_bias = r->family->qkv_bias && (hd_hf_reads(r->family, "attention_bias") ||
                                                hd_hf_reads(r->family, "use_bias"));
    r->qkv_bias = r->family->qkv_bias && !r->attention_bias; /* no key but perhaps qkv_bias */
    r->out_bias = r->family->out_bias && !r->attention_bias;
    job->mlp_bias = r->family->mlp_bias;
    if (r->family->absent.dropout > 0)
        job->dropout_attention = job->dropout_residual = r->family->absent.dropout;
    if (r->family->absent.residual_dropout > 0)
        job->dropout_residual = r->family->absent.residual_dropout;
    if (r->family->absent.logit_divisor > 0)
        job->logit_divisor = r->family->absent.logit_divisor;
    job->parallel_residual =
        r->family->parallel && !r->family->sequential ? r->family->parallel : "none";
    job->attention_cap = r->family->attention_cap;
    job->logit_cap = r->family->logit_cap;
    job->glu_limit = r->family->glu_limit;
    r->qk_norm = r->family->qk_norm;
    hd_hf_set_falcon_defaults(r);
    hd_hf_set_llama4_defaults(r);
    job->rope_local_theta = r->family->local_theta;
    if (r->family->router_groups) {
        job->router_groups = r->family->absent.groups;
        job->router_groups_kept = r->family->absent.groups_kept;
        job->router_scale = r->family->absent.router_scale;
    }
    job->renormalize = hd_hf_reads(r->family, "norm_topk_prob") ? r->family->absent.renormalize
                                                                : r->family->renormalize;
}

static enum hd_status read_config(struct hd_hf_reading *r)
{
    enum hd_status st = find_type(r);

    if (st)
        return st;
    set_class_defaults(r);
    st = hd_hf_read_members(r);
    if (st)
        return st;
    fill_absent(r);
    hd_hf_take_tuning(r);
    st = hd_hf_take_falcon(r);
    if (!st)
        st = check_present(r);
    if (!st)
        st = hd_hf_check_blocks(r);
    if (!st)
        st = hd_hf_take_layers(r);
    if (!st) /* gpt2 has no keys of rotary positions; its theta is the default of a job */
        st = hd_hf_read_rope(r);
    if (!st)
        st = hd_hf_take_layer_thetas(r);
    if (!st && r->job->balance > 0) /* after hd_hf_take_layers, which counts layers with experts */
        r->job->balance =
            hd_hf_balance(r->job->balance, r->job->experts_per_token, r->expert_layers);
    if (!st)
        st = check_built(r);
    if (!st && r->extra_layers)
        hd_hf_note(r->notes,
                   "config.json says %s = %" PRId64
                   "; the layers that predict further tokens train "
                   "only with model.mtp.layers; else an export copies them from the base's folder",
                   hd_hf_further_key(r->family), r->extra_layers);
    if (!st && r->jitter > 0)
        hd_hf_note(r->notes,
                   "config.json says router_jitter_noise = %g; jitter is not supported, the model "
                   "is trained without it",
                   r->jitter);
    if (r->extra_layers <= hd_hf_further_max(r->family))
        r->job->mtp_layers = r->extra_layers;
    r->job->family = r->family->name;
    return st;
}

static void clear_model(struct hd_job *job)
{
    job->family = "";
    job->layers = job->hidden = job->heads = job->kv_heads = 0;
    job->ffn_hidden = job->vocab = job->context = 0;
    job->rope_theta = job->norm_eps = 0;
    job->tie_embeddings = false;
    job->head_width = job->window = job->window_from = 0;
    job->qkv_bias = job->out_bias = job->mlp_bias = job->qk_norm = false;
    job->experts = job->experts_per_token = job->shared_ffn_hidden = 0;
    job->dense_ffn_hidden = 0;
    job->delta_key_heads = job->delta_value_heads = job->delta_conv_width = 0;
    job->delta_key_width = job->delta_value_width = 0;
    job->delta_layers = job->conv_layers = "none";
    job->conv_width = 0;
    job->conv_bias = false;
    job->mla_q_rank = job->mla_kv_rank = job->mla_nope = job->mla_rope = job->mla_value = 0;
    job->renormalize = job->noisy = false;
    job->router_groups = job->router_groups_kept = 1;
    job->router_scale = 1;
    job->router_bias_rate = 0;
    job->window_layers = "all";
    job->rope_layers = "all";
    job->experts_layers = "all";
    job->parallel_residual = "none";
    job->query_factor = 0;
    job->query_factor_step = job->attention_chunk = 0;
    job->rope_fraction = job->logit_divisor = job->embedding_scale = job->residual_scale = 1;
    job->rope_local_theta = job->attention_scale = job->attention_cap = job->logit_cap = 0;
    job->glu_limit = job->qkv_clip = 0;
    job->mtp_layers = 0;
    job->rope_untruncated = false;
    job->balance = job->z_loss = job->capacity = 0;
    job->positions = 0;
    job->model_weights = HD_JOB_MODEL_WEIGHTS_PLAIN;
    job->dropout_embedding = job->dropout_attention = job->dropout_residual = 0;
    job->rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    /* 0: not given; the members of rope_scaling below get the defaults of a job file */
    job->rope_original_context = 0;
    job->rope_factor = job->rope_low_freq_factor = job->rope_beta_slow = 1;
    job->rope_high_freq_factor = 4;
    job->rope_beta_fast = 32;
    job->rope_attention_factor = job->rope_mscale_all_dim = 0;
    job->rope_short_factor = job->rope_long_factor = "";
}

enum hd_status hd_hf_parse_config(const char *text, size_t text_bytes, struct hd_job *ret_job,
                                  struct hd_text *ret_notes)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = DEPTH_MAX};
    struct hd_hf_reading r = {.job = ret_job,
                              .notes = ret_notes,
                              .window = -1,
                              .full_layers = -1,
                              .sparse_step = 1,
                              .first_sparse = -1,
                              .last_sparse = -1,
                              .shared_experts = -1,
                              .balance = -1,
                              .ffn = {.adjusted = true, .factor = 1, .multiple = 256}};
    struct hd_arena arena;
    enum hd_status st;

    clear_model(ret_job);
    hd_arena_init(&arena, 0);
    st = hd_json_parse_repeated(&arena, text, text_bytes, &limits, &r.root);
    if (!st && r.root->kind != HD_JSON_OBJECT)
        st = hd_err(HD_INVALID, "it is not a JSON object");
    if (!st)
        st = hd_hf_unwrap(&r);
    if (!st) {
        st = read_config(&r);
        if (st && r.outer)
            st = hd_err_prefix(st, "text_config");
    }
    if (!st && r.outer)
        st = hd_hf_read_outer(&r);
    hd_arena_done(&arena);
    return st;
}

bool hd_hf_has_config(const char *dir)
{
    return hd_folder_has(dir, "config.json");
}

enum hd_status hd_hf_read_config(const char *dir, struct hd_job *ret_job, struct hd_text *ret_notes)
{
    struct hd_text text = {0};
    enum hd_status st = hd_folder_read(dir, "config.json", HD_HF_CONFIG_BYTES_MAX, &text);

    if (st == HD_NOT_FOUND)
        st = !hd_file_exists(dir) ? hd_err(st, "there is no folder %s; check the path", dir)
             : hd_folder_has(dir, "adapter_config.json")
                 ? hd_err(st,
                          "%s has no config.json, but an adapter_config.json: it is an adapter, "
                          "which train.adapter.from names beside the model's folder",
                          dir)
                 : hd_err(st, "%s has no config.json, so it is no model folder of Hugging Face",
                          dir);
    if (!st) {
        st = hd_hf_parse_config(text.data, text.len_bytes, ret_job, ret_notes);
        if (st)
            st = hd_err_prefix(st, "%s/config.json", dir);
    }
    if (!st && ret_job->tie_embeddings)
        hd_hf_resolve_tied(dir, ret_job, ret_notes);
    hd_text_free(&text);
    return st;
}

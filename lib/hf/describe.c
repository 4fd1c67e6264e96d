/* describe: writes the config.json of a resolved job. The model type is the job's family if it can
 * express the model, else the first type that can. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/words.h"
#include "hf/config_internal.h"
#include "job/pair_factors.h"

static bool is_default_rule(const char *rule, const char *of_family)
{
    return strcmp(rule, of_family ? of_family : "all") == 0;
}

/* Returns the class's name for the epsilon of norms; rms_norm_eps if its row lists none. */
static const char *eps_key(const struct hd_family *f)
{
    static const char *const names[] = {"norm_epsilon", "layer_norm_epsilon", "layer_norm_eps",
                                        "norm_eps",     "rms_norm_eps",       NULL};

    return hd_hf_own_key(f, names);
}

/* Returns the name of a bias that this family cannot have or lack; NULL: none. */
static const char *lacks_of_biases(const struct hd_job *job, const struct hd_family *f)
{
    const bool gpt2 = hd_hf_has_gpt2_keys(f);
    const bool all = gpt2 || hd_hf_reads(f, "use_bias") || hd_hf_reads(f, "bias");
    const bool either = hd_hf_reads(f, "attention_bias");

    if (gpt2 && !(job->qkv_bias && job->out_bias))
        return "model.qkv_bias or model.out_bias: false";
    if (gpt2 && !job->mlp_bias)
        return "model.mlp_bias: false";
    if (all && (job->qkv_bias != job->out_bias || job->qkv_bias != job->mlp_bias))
        return "model.qkv_bias, model.out_bias and model.mlp_bias that differ";
    if (all)
        return NULL;
    if (job->mlp_bias != f->mlp_bias && !hd_hf_reads(f, "mlp_bias"))
        return job->mlp_bias ? "model.mlp_bias: true" : "model.mlp_bias: false";
    if (!either && !hd_hf_reads(f, "qkv_bias") && !hd_hf_reads(f, "use_qkv_bias") &&
        job->qkv_bias != f->qkv_bias)
        return job->qkv_bias ? "model.qkv_bias: true" : "model.qkv_bias with this model.out_bias";
    if (hd_hf_reads(f, "attention_out_bias"))
        return NULL;
    if (job->out_bias != (either ? !f->no_out_bias && job->qkv_bias : f->out_bias))
        return "model.qkv_bias with this model.out_bias";
    return NULL;
}

/* Returns whether config.json of the family can express which layers have rotary positions. */
static bool has_rope_layers(const struct hd_job *job, const struct hd_family *f)
{
    const int64_t count = hd_layers_count(job->rope_layers, job->layers);
    struct hd_layers rule = {0};

    if (hd_hf_reads(f, "no_rope_layers"))
        return true;
    if (hd_hf_reads(f, "position_embedding_type"))
        return count == 0 || count == job->layers;
    (void)hd_layers_parse(job->rope_layers, &rule);
    for (int64_t i = 0; f->rope_in_windows && i < job->layers; i++)
        if (hd_layers_has(&rule, i) !=
            (hd_hf_has_window(job, i) || (f->rope_without_windows && !job->window)))
            return false;
    return f->rope_in_windows || is_default_rule(job->rope_layers, NULL);
}

static const char *lacks_of_positions(const struct hd_job *job, const struct hd_family *f)
{
    const bool by_layer = hd_hf_reads(f, "layer_rope_theta");
    const bool tuned = hd_hf_reads(f, "attn_scale");
    const bool alibi = job->positions == HD_JOB_POSITIONS_ALIBI;

    if (alibi && !f->alibi && !hd_hf_reads(f, "alibi"))
        return "model.positions: alibi";
    if (alibi && f->scaled_alibi != hd_family_named(job->family)->scaled_alibi)
        return "model.positions: alibi, with the slopes of this family";
    if (!alibi && job->positions != hd_family_positions(f))
        return "model.positions";
    if (f->longrope && job->rope_scaling != HD_JOB_ROPE_SCALING_NONE &&
        job->rope_scaling != HD_JOB_ROPE_SCALING_LONGROPE)
        return "model.rope_scaling.type other than longrope";
    if (!by_layer && !has_rope_layers(job, f))
        return "model.rope_layers";
    if (job->query_factor > 0 && !hd_hf_reads(f, "llama_4_scaling_beta") && !tuned)
        return "model.query_factor";
    if (job->query_factor_step && !tuned && job->query_factor_step != job->rope_original_context)
        return "model.query_factor_step";
    if (hd_hf_reads(f, "llama_4_scaling_beta") && job->rope_scaling != HD_JOB_ROPE_SCALING_YARN)
        return "model.rope_scaling.type other than yarn";
    if (!hd_hf_reads(f, "partial_rotary_factor") && job->rope_fraction != 1)
        return "model.rope_fraction";
    if (!by_layer && (f->local_theta > 0) != (job->rope_local_theta > 0))
        return "model.rope_local_theta";
    if (by_layer && job->rope_local_theta > 0 && job->rope_scaling != HD_JOB_ROPE_SCALING_NONE)
        return "model.rope_local_theta with model.rope_scaling";
    if (job->window && (f->window == HD_WINDOW_NEVER || f->window == HD_WINDOW_CHUNKS))
        return "model.window";
    if (job->attention_chunk && f->window != HD_WINDOW_CHUNKS)
        return "model.attention_chunk";
    if (f->window != HD_WINDOW_ALL)
        return NULL;
    if (job->window_from)
        return "model.window_from";
    return job->window && !is_default_rule(job->window_layers, NULL) ? "model.window_layers" : NULL;
}

/* Returns s^-2 for a factor s of scores, rounded to a whole number if that gives the same factor. */
static double scalar_of(double scale, int64_t head_width)
{
    const double scalar = scale > 0 ? 1 / (scale * scale) : (double)head_width;
    const double whole = nearbyint(scalar);

    return scale > 0 && 1 / sqrt(whole) == scale ? whole : scalar;
}

static const char *lacks_of_multipliers(const struct hd_job *job, const struct hd_family *f)
{
    const bool own_embedding =
        f->scales_embedding ? job->embedding_scale == hd_hf_embedding_scale(job->hidden, false) ||
                                  job->embedding_scale == hd_hf_embedding_scale(job->hidden, true)
                            : job->embedding_scale == 1;

    if (job->attention_scale != 0 && !hd_hf_reads(f, "query_pre_attn_scalar") &&
        !hd_hf_reads(f, "attention_multiplier") && !hd_hf_reads(f, "attn_config"))
        return "model.attention_scale";
    if (job->qkv_clip > 0 && !hd_hf_reads(f, "clip_qkv") && !hd_hf_reads(f, "attn_config"))
        return "model.qkv_clip";
    if (hd_hf_reads(f, "query_pre_attn_scalar") &&
        fmod(scalar_of(job->attention_scale, job->head_width), 1) != 0)
        return "a model.attention_scale that is not 1 / sqrt(N) of a whole number N";
    if (job->attention_cap > 0 && !hd_hf_reads(f, "attn_logit_softcapping"))
        return "model.attention_cap";
    if (job->logit_cap > 0 && !hd_hf_reads(f, "final_logit_softcapping"))
        return "model.logit_cap";
    if (!own_embedding && !hd_hf_reads(f, "embedding_multiplier"))
        return "model.embedding_scale";
    if (job->residual_scale != 1 && !hd_hf_reads(f, "residual_multiplier"))
        return "model.residual_scale";
    if (job->logit_divisor != 1 && !hd_hf_reads(f, "logits_scaling") &&
        !hd_hf_reads(f, "logit_scale"))
        return "model.logit_divisor";
    return NULL;
}

/* Returns whether the blocks of two families compute the same, but for what keys of a job say. */
static bool same_blocks(const struct hd_family *a, const struct hd_family *b)
{
    return a->norm == b->norm && a->place == b->place && a->activation == b->activation &&
           a->gated == b->gated && a->learned == b->learned && a->interleaved == b->interleaved &&
           a->shared_gated == b->shared_gated && a->sinks == b->sinks &&
           a->router_sigmoid == b->router_sigmoid && a->select_bias == b->select_bias &&
           a->router_bias == b->router_bias && a->router_pairs == b->router_pairs &&
           a->scales_embedding == b->scales_embedding && a->embedding_norm == b->embedding_norm &&
           a->head_bias == b->head_bias && a->first_position == b->first_position &&
           a->gate_input == b->gate_input &&
           a->query_factor_unrotated == b->query_factor_unrotated &&
           (a->latent.kv_rank > 0) == (b->latent.kv_rank > 0) &&
           !a->delta.layers == !b->delta.layers && !a->conv.layers == !b->conv.layers &&
           a->output_gate == b->output_gate && a->latent.eps == b->latent.eps &&
           (!a->qk_norm || !b->qk_norm || a->qk_norm_form == b->qk_norm_form);
}

/* Returns whether the family has blocks whose branches are parallel, or not, as those of the job. */
static bool has_branches(const struct hd_job *job, const struct hd_family *f)
{
    const bool none = !*job->parallel_residual || strcmp(job->parallel_residual, "none") == 0;

    if (none)
        return !f->parallel || hd_hf_reads(f, "use_parallel_residual") ||
               hd_hf_reads(f, "parallel_attn");
    if (hd_hf_reads(f, "num_ln_in_parallel_attn"))
        return true;
    return f->parallel && strcmp(job->parallel_residual, f->parallel) == 0;
}

/* Returns whether config.json of the class says the epsilon of norms. */
static bool has_eps(const struct hd_family *f)
{
    return !hd_family_has_layernorm(f) || strcmp(eps_key(f), "rms_norm_eps") != 0;
}

/* Returns the name of a setting of the model that this family of transformers cannot express; NULL:
 * it can express all. */
static const char *lacks(const struct hd_job *job, const struct hd_family *f)
{
    const char *what = NULL;

    if (!same_blocks(f, hd_family_named(job->family)))
        return "model.family";
    if (!has_branches(job, f))
        return "model.parallel_residual";
    what = hd_hf_lacks_of_router(job, f);
    if (!what)
        what = lacks_of_positions(job, f);
    if (!what)
        what = lacks_of_biases(job, f);
    if (!what && (f->learned || f->no_head_width) && job->head_width * job->heads != job->hidden)
        what = "model.head_width";
    if (!what && job->kv_heads != job->heads &&
        hd_words_have(f->ignores ? f->ignores : "", "num_key_value_heads"))
        what = "model.kv_heads";
    if (!what && hd_hf_reads(f, "num_kv_heads") && !hd_hf_has_falcon_heads(job))
        what = "model.kv_heads with model.parallel_residual: none";
    if (!what && !has_eps(f) && job->norm_eps != f->absent.eps)
        what = "model.norm_eps";
    if (!what && f->alibi && job->ffn_hidden != 4 * job->hidden)
        what = "model.ffn_hidden";
    if (!what && hd_hf_reads(f, "attn_config") && (job->heads & (job->heads - 1)))
        what = "model.heads that are no power of two";
    if (!what && job->qk_norm != f->qk_norm && !hd_hf_reads(f, "use_qk_norm") &&
        !hd_hf_reads(f, "qk_layernorm"))
        what = "model.qk_norm";
    if (!what && job->qk_norm && f->qk_norm_form != hd_family_named(job->family)->qk_norm_form)
        what = "model.qk_norm of this family";
    return what ? what : lacks_of_multipliers(job, f);
}

enum hd_status hd_hf_type_of(const struct hd_job *job, const struct hd_family **ret_type)
{
    const struct hd_family *own = hd_family_named(job->family);
    const char *what = own ? lacks(job, own) : "model.family";

    *ret_type = own;
    if (!what)
        return HD_OK;
    for (size_t i = 0; own && i < hd_family_count; i++)
        if (!lacks(job, &hd_families[i])) {
            *ret_type = &hd_families[i];
            return HD_OK;
        }
    return hd_err(HD_UNSUPPORTED,
                  "config.json of transformers' %s cannot express %s, and no other model type can "
                  "express this model",
                  job->family, what);
}

static void add_gpt2(struct hd_json_writer *w, const struct hd_job *job, const struct hd_family *f,
                     int64_t positions)
{
    hd_hf_write_keys(w, job, f, false, "n_layer n_embd n_head");
    hd_json_add_int64(w, "n_positions", positions ? positions : job->context);
    hd_hf_write_keys(w, job, f, false, "n_inner");
    hd_json_add_string(w, "activation_function", "gelu_new");
    hd_hf_write_keys(w, job, f, false, "layer_norm_epsilon attn_pdrop embd_pdrop resid_pdrop");
}

/* Adds a list of LongRoPE, which the check of the job found correct. */
static void add_pair_factors(struct hd_json_writer *w, const struct hd_job *job, const char *name,
                             const char *text)
{
    double factors[HD_PAIR_FACTORS_MAX];

    if (hd_pair_factors_parse(job, text, factors))
        return;
    hd_json_begin(w, name, '[');
    for (int64_t i = 0; i < hd_job_rotated(job) / 2; i++)
        hd_json_add_real(w, NULL, factors[i]);
    hd_json_end(w, ']');
}

/* Adds the members of a scaling of angles; the job has one. */
static void add_scaling(struct hd_json_writer *w, const struct hd_job *job,
                        const struct hd_family *f)
{
    const bool llama3 = job->rope_scaling == HD_JOB_ROPE_SCALING_LLAMA3;
    const bool yarn = job->rope_scaling == HD_JOB_ROPE_SCALING_YARN;
    const bool longrope = job->rope_scaling == HD_JOB_ROPE_SCALING_LONGROPE;

    hd_json_add_string(w, "rope_type", hd_job_rope_scaling_words[job->rope_scaling]);
    hd_json_add_real(w, "factor", job->rope_factor);
    if (llama3 || yarn || longrope)
        hd_json_add_int64(w, "original_max_position_embeddings", job->rope_original_context);
    if (llama3) {
        hd_json_add_real(w, "low_freq_factor", job->rope_low_freq_factor);
        hd_json_add_real(w, "high_freq_factor", job->rope_high_freq_factor);
    }
    if (yarn) {
        hd_json_add_real(w, "beta_fast", job->rope_beta_fast);
        hd_json_add_real(w, "beta_slow", job->rope_beta_slow);
        if (job->rope_untruncated)
            hd_json_add_bool(w, "truncate", false);
    }
    if (longrope) {
        add_pair_factors(w, job, "short_factor", job->rope_short_factor);
        add_pair_factors(w, job, "long_factor", job->rope_long_factor);
    }
    if ((yarn || longrope) && job->rope_attention_factor > 0)
        hd_json_add_real(w, "attention_factor", job->rope_attention_factor);
    if (job->rope_mscale_all_dim > 0)
        hd_json_add_real(w, "mscale_all_dim", job->rope_mscale_all_dim);
    if (yarn && hd_hf_reads(f, "llama_4_scaling_beta"))
        hd_json_add_real(w, "llama_4_scaling_beta", job->query_factor);
}

/* Adds rope_parameters with an object per kind of layer: the only form in which a class that does not
 * read rope_local_base_freq can have another theta in layers with a window. */
static void add_rope_of_kinds(struct hd_json_writer *w, const struct hd_job *job,
                              const struct hd_family *f)
{
    hd_json_begin(w, "rope_parameters", '{');
    hd_json_begin(w, "full_attention", '{');
    hd_json_add_real(w, "rope_theta", job->rope_theta);
    if (job->rope_scaling == HD_JOB_ROPE_SCALING_NONE)
        hd_json_add_string(w, "rope_type", "default");
    else
        add_scaling(w, job, f);
    hd_json_end(w, '}');
    hd_json_begin(w, "sliding_attention", '{');
    hd_json_add_real(w, "rope_theta", job->rope_local_theta);
    hd_json_add_string(w, "rope_type", "default");
    hd_json_end(w, '}');
    hd_json_end(w, '}');
}

/* Adds rope_scaling, the older key, which newer versions read, too, if it can express the angles. */
static void add_rope(struct hd_json_writer *w, const struct hd_job *job, const struct hd_family *f)
{
    const bool reads_local = hd_hf_reads(f, "rope_local_base_freq");

    if (!reads_local && f->local_theta > 0 && job->rope_local_theta != f->local_theta) {
        add_rope_of_kinds(w, job, f);
        return;
    }
    hd_json_add_real(w, hd_hf_reads(f, "rotary_emb_base") ? "rotary_emb_base" : "rope_theta",
                     job->rope_theta);
    if (hd_hf_reads(f, "partial_rotary_factor"))
        hd_json_add_real(w, hd_hf_reads(f, "rotary_pct") ? "rotary_pct" : "partial_rotary_factor",
                         job->rope_fraction);
    if (reads_local)
        hd_json_add_real(w, "rope_local_base_freq", job->rope_local_theta);
    if (job->rope_scaling == HD_JOB_ROPE_SCALING_NONE &&
        (f->absent.yarn > 0 || f->absent.llama3 > 0)) {
        hd_json_begin(w, "rope_scaling", '{'); /* null would mean the scaling of the class */
        hd_json_add_string(w, "rope_type", "default");
        hd_json_end(w, '}');
        return;
    }
    if (job->rope_scaling == HD_JOB_ROPE_SCALING_NONE) {
        hd_json_add_null(w, "rope_scaling");
        return;
    }
    if (job->rope_scaling == HD_JOB_ROPE_SCALING_LONGROPE && f->longrope)
        hd_json_add_int64(w, "original_max_position_embeddings", job->rope_original_context);
    hd_json_begin(w, "rope_scaling", '{');
    add_scaling(w, job, f);
    hd_json_end(w, '}');
}

/* Adds the type of each layer, if not all have the window or none has. */
static void add_layer_types(struct hd_json_writer *w, const struct hd_job *job)
{
    const char *local = job->attention_chunk ? "chunked_attention" : "sliding_attention";

    hd_json_begin(w, "layer_types", '[');
    for (int64_t i = 0; i < job->layers; i++)
        hd_json_add_string(w, NULL, hd_hf_has_window(job, i) ? local : "full_attention");
    hd_json_end(w, ']');
}

/* Adds layer_types: `other` for the layers that the rule picks, attention for the rest. */
static void add_unattended(struct hd_json_writer *w, const struct hd_job *job, const char *picked,
                           const char *other)
{
    struct hd_layers rule = {0};

    (void)hd_layers_parse(picked, &rule);
    hd_json_begin(w, "layer_types", '[');
    for (int64_t i = 0; i < job->layers; i++)
        hd_json_add_string(w, NULL, hd_layers_has(&rule, i) ? other : "full_attention");
    hd_json_end(w, ']');
}

static void add_conv(struct hd_json_writer *w, const struct hd_job *job, const struct hd_family *f)
{
    add_unattended(w, job, job->conv_layers, "conv");
    hd_hf_write_keys(w, job, f, false, "conv_L_cache conv_bias");
    hd_json_add_bool(w, "block_auto_adjust_ff_dim", false);
}

static void add_delta(struct hd_json_writer *w, const struct hd_job *job, const struct hd_family *f)
{
    add_unattended(w, job, job->delta_layers, "linear_attention");
    hd_hf_write_keys(w, job, f, false,
                     "linear_num_key_heads linear_num_value_heads linear_key_head_dim "
                     "linear_value_head_dim linear_conv_kernel_dim");
}

static void add_window(struct hd_json_writer *w, const struct hd_job *job,
                       const struct hd_family *f)
{
    const bool from = is_default_rule(job->window_layers, NULL);

    if (f->window == HD_WINDOW_CHUNKS) {
        if (job->attention_chunk)
            hd_json_add_int64(w, "attention_chunk_size", job->attention_chunk);
        else
            hd_json_add_null(w, "attention_chunk_size");
        add_layer_types(w, job);
        return;
    }
    if (f->window == HD_WINDOW_SWITCH) {
        hd_json_add_bool(w, "use_sliding_window", job->window > 0);
        hd_json_add_int64(w, "max_window_layers",
                          job->window && from ? job->window_from : job->layers);
    }
    if (job->window)
        hd_json_add_int64(w, "sliding_window", job->window);
    else if (f->window != HD_WINDOW_NEVER)
        hd_json_add_null(w, "sliding_window"); /* an absent key would mean the default window */
    if (f->window == HD_WINDOW_TYPES || (f->window == HD_WINDOW_SWITCH && job->window && !from))
        add_layer_types(w, job);
}

static void add_latents(struct hd_json_writer *w, const struct hd_job *job,
                        const struct hd_family *f)
{
    if (job->mla_q_rank)
        hd_json_add_int64(w, "q_lora_rank", job->mla_q_rank);
    else
        hd_json_add_null(w, "q_lora_rank");
    hd_hf_write_keys(w, job, f, false, "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim");
}

/* Adds no_rope_layers, which has 1 for each layer that rotates. */
static void add_rope_layers(struct hd_json_writer *w, const struct hd_job *job)
{
    struct hd_layers rule = {0};

    (void)hd_layers_parse(job->rope_layers, &rule);
    hd_json_begin(w, "no_rope_layers", '[');
    for (int64_t i = 0; i < job->layers; i++)
        hd_json_add_int64(w, NULL, hd_layers_has(&rule, i));
    hd_json_end(w, ']');
}

/* Adds layer_rope_theta, the theta of each layer, 0 for one that does not rotate, unless all have the
 * same. */
static void add_layer_thetas(struct hd_json_writer *w, const struct hd_job *job)
{
    struct hd_layers rule = {0};

    if (is_default_rule(job->rope_layers, NULL) && job->rope_local_theta == 0)
        return;
    (void)hd_layers_parse(job->rope_layers, &rule);
    hd_json_begin(w, "layer_rope_theta", '[');
    for (int64_t i = 0; i < job->layers; i++) {
        const bool local = job->rope_local_theta > 0 && hd_hf_has_window(job, i);

        hd_json_add_real(w, NULL,
                         !hd_layers_has(&rule, i) ? 0
                         : local                  ? job->rope_local_theta
                                                  : job->rope_theta);
    }
    hd_json_end(w, ']');
}

/* Adds the keys of factors and caps that the class reads. */
static void add_multipliers(struct hd_json_writer *w, const struct hd_job *job,
                            const struct hd_family *f)
{
    if (hd_hf_reads(f, "query_pre_attn_scalar"))
        hd_json_add_real(w, "query_pre_attn_scalar",
                         scalar_of(job->attention_scale, job->head_width));
    hd_hf_write_keys(w, job, f, true, "attn_logit_softcapping final_logit_softcapping");
    if (hd_hf_reads(f, "attention_multiplier"))
        hd_hf_add_float(w, "attention_multiplier",
                        job->attention_scale > 0 ? job->attention_scale
                                                 : 1 / sqrt((double)job->head_width));
    hd_hf_write_keys(w, job, f, true,
                     "embedding_multiplier residual_multiplier clip_qkv swiglu_limit");
    if (hd_hf_reads(f, "logits_scaling"))
        hd_hf_add_float(w, "logits_scaling",
                        f->logits_multiplied ? 1 / job->logit_divisor : job->logit_divisor);
    if (hd_hf_reads(f, "logit_scale"))
        hd_hf_add_float(w, "logit_scale", 1 / job->logit_divisor);
}

/* Adds the activation and the norm's epsilon under the names of the class. */
static void add_activation(struct hd_json_writer *w, const struct hd_job *job,
                           const struct hd_family *f)
{
    static const char *const names[] = {
        [HD_FFN_SILU] = "silu",     [HD_FFN_GELU_TANH] = "gelu_pytorch_tanh",
        [HD_FFN_GELU_ERF] = "gelu", [HD_FFN_RELU2] = "relu2",
        [HD_FFN_RELU] = "relu",     [HD_FFN_OSS] = "silu"};
    static const char *const keys[] = {"hidden_activation", "activation", "activation_function",
                                       "hidden_act", NULL};

    if (!f->alibi || hd_hf_reads(f, "alibi")) /* the classes of Bloom and MPT have no such key */
        hd_json_add_string(w, hd_hf_own_key(f, keys), names[f->activation]);
    if (has_eps(f))
        hd_json_add_real(w, eps_key(f), job->norm_eps);
}

/* Adds the keys of blocks that some class alone has: parallel branches, and those of Granite 4. */
static void add_blocks(struct hd_json_writer *w, const struct hd_job *job,
                       const struct hd_family *f)
{
    const bool rotates = hd_layers_count(job->rope_layers, job->layers) > 0;

    if (hd_hf_reads(f, "use_parallel_residual"))
        hd_json_add_bool(w, "use_parallel_residual", strcmp(job->parallel_residual, "none") != 0);
    if (hd_hf_reads(f, "shared_intermediate_size"))
        hd_json_add_int64(w, "shared_intermediate_size",
                          f->experts ? job->shared_ffn_hidden : job->ffn_hidden);
    if (!hd_hf_reads(f, "layers_block_type"))
        return;
    hd_json_add_int64(w, "num_local_experts", 0);
    hd_json_begin(w, "layer_types", '[');
    for (int64_t i = 0; i < job->layers; i++)
        hd_json_add_string(w, NULL, "attention");
    hd_json_end(w, ']');
    if (rotates)
        hd_json_add_string(w, "position_embedding_type", "rope");
    else
        hd_json_add_null(w, "position_embedding_type");
    hd_json_add_int64(w, "mamba_n_heads", 1); /* the class checks that it divides the width */
}

/* positions: rows of an exported table of positions; 0: as many as the context. */
static void add_rotary(struct hd_json_writer *w, const struct hd_job *job,
                       const struct hd_family *f, int64_t positions)
{
    static const char *const layers[] = {"n_layer", "n_layers", "num_hidden_layers", NULL};
    static const char *const hidden[] = {"d_model", "hidden_size", NULL};
    static const char *const heads[] = {"n_head", "n_heads", "num_attention_heads", NULL};
    static const char *const ffn[] = {"ffn_hidden_size", "ffn_dim", "intermediate_size", NULL};
    static const char *const contexts[] = {"seq_length", "max_seq_len", "max_position_embeddings",
                                           NULL};
    const bool one_head_each = hd_words_have(f->ignores ? f->ignores : "", "num_key_value_heads") &&
                               !hd_hf_reads(f, "rotary_pct");
    const bool sparse = hd_hf_reads(f, "moe_intermediate_size");

    hd_json_add_int64(w, hd_hf_own_key(f, layers), job->layers);
    hd_json_add_int64(w, hd_hf_own_key(f, hidden), job->hidden);
    hd_json_add_int64(w, hd_hf_own_key(f, heads), job->heads);
    if (hd_hf_reads(f, "num_kv_heads"))
        hd_hf_describe_falcon(w, job);
    else if (!one_head_each)
        hd_json_add_int64(w, "num_key_value_heads", job->kv_heads);
    if (f->latent.kv_rank)
        add_latents(w, job, f);
    else if (!hd_hf_reads(f, "num_kv_heads") && !one_head_each) /* else computed */
        hd_json_add_int64(w, "head_dim", job->head_width);
    if (!f->alibi || hd_hf_reads(f, "alibi")) /* else four times as wide as the model */
        hd_json_add_int64(w, hd_hf_own_key(f, ffn),
                          sparse && job->dense_ffn_hidden ? job->dense_ffn_hidden
                                                          : job->ffn_hidden);
    if (hd_hf_reads(f, "moe_layers"))
        hd_hf_describe_llama4(w, job);
    hd_json_add_int64(w, hd_hf_own_key(f, contexts), positions ? positions : job->context);
    add_activation(w, job, f);
    if (!f->alibi && !f->learned)
        add_rope(w, job, f);
    add_window(w, job, f);
    if (f->delta.layers)
        add_delta(w, job, f);
    if (f->conv.layers)
        add_conv(w, job, f);
    hd_hf_write_keys(w, job, f, false,
                     "attention_bias qkv_bias use_bias use_qkv_bias attention_out_bias mlp_bias "
                     "use_qk_norm qk_layernorm");
    add_multipliers(w, job, f);
    add_blocks(w, job, f);
    if (hd_hf_reads(f, "no_rope_layers"))
        add_rope_layers(w, job);
    if (hd_hf_reads(f, "layer_rope_theta"))
        add_layer_thetas(w, job);
    if (hd_hf_reads(f, "attn_config"))
        hd_hf_describe_attn_config(w, job);
    else
        hd_json_add_real(w, "attention_dropout", job->dropout_attention);
    hd_hf_write_keys(w, job, f, false,
                     "dropout embd_pdrop word_embed_proj_dim residual_dropout embedding_dropout "
                     "hidden_dropout resid_pdrop");
    if (f->experts)
        hd_hf_describe_experts(w, job, f);
    else
        hd_hf_describe_further(w, job, f);
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
 * padding token, so a reward model without one refuses batches of several answers. The ids are always
 * written: the defaults of the classes are those of other tokenizers. */
enum hd_status hd_hf_describe(const struct hd_hf_description *now, struct hd_text *ret_text)
{
    const struct hd_job *job = now->job;
    struct hd_json_writer w = {.out = ret_text};
    const struct hd_family *type = NULL;
    struct hd_hf_classes classes;
    enum hd_status st = hd_hf_type_of(job, &type);

    if (!st)
        hd_hf_class_names(type, &classes);
    if (!st && hd_job_is_reward(job) && type->no_classifier)
        st =
            hd_err(HD_UNSUPPORTED, "transformers has no class for reward models of %s", type->name);
    if (st)
        return st;
    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "architectures", '[');
    hd_json_add_string(&w, NULL, hd_job_is_reward(job) ? classes.classifier : classes.head);
    hd_json_end(&w, ']');
    hd_json_add_string(&w, "model_type", type->name);
    hd_json_add_string(&w, "torch_dtype", now->dtype == HD_BF16 ? "bfloat16" : "float32");
    hd_json_add_int64(&w, "vocab_size", job->vocab);
    hd_json_add_bool(&w, "tie_word_embeddings", job->tie_embeddings);
    if (hd_hf_has_gpt2_keys(type))
        add_gpt2(&w, job, type, now->positions);
    else
        add_rotary(&w, job, type, now->positions ? now->positions - type->first_position : 0);
    if (strcmp(job->tokenizer, "bytes") == 0)
        hd_json_add_string(&w, "heddle_tokenizer", "bytes");
    if (hd_job_is_reward(job))
        add_reward(&w);
    add_id(&w, "pad_token_id", now->pad);
    add_id(&w, "bos_token_id", now->bos);
    add_id(&w, "eos_token_id", now->eos);
    hd_json_end(&w, '}');
    hd_text_add(ret_text, "\n");
    return ret_text->failed ? hd_err(HD_NO_MEMORY, "no memory for config.json") : HD_OK;
}

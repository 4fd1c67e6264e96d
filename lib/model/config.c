/* config: the model that a resolved job describes, and the settings of its blocks. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "job/pair_factors.h"
#include "model/model.h"

static_assert((int)HD_PAIR_FACTORS_MAX == (int)HD_ROPE_PAIRS_MAX, "lists of LongRoPE fit an op");

/* Sets the factors of LongRoPE for the job's context. */
static enum hd_status set_pair_factors(const struct hd_job *job, struct hd_rope *rope)
{
    double factors[HD_PAIR_FACTORS_MAX];
    const char *text = hd_pair_factors_of(job);

    if (hd_pair_factors_parse(job, text, factors))
        return hd_err_prefix(HD_INVALID, "model.rope_scaling.%s_factor",
                             text == job->rope_long_factor ? "long" : "short");
    for (int64_t i = 0; i < hd_job_rotated(job) / 2; i++)
        rope->pair_factor[i] = (float)factors[i];
    return HD_OK;
}

static enum hd_status rope_from_job(const struct hd_job *job, const struct hd_family *family,
                                    struct hd_rope *ret_rope)
{
    *ret_rope = (struct hd_rope){
        .theta = job->rope_theta,
        .rotated = job->rope_fraction < 1 || job->mla_kv_rank ? hd_job_rotated(job) : 0,
        .first = job->mla_nope,
        .interleaved = family->interleaved,
        .factor = job->rope_factor,
        .original_context = (double)job->rope_original_context,
        .low_freq_factor = job->rope_low_freq_factor,
        .high_freq_factor = job->rope_high_freq_factor,
        .beta_fast = job->rope_beta_fast,
        .beta_slow = job->rope_beta_slow,
        .yarn_no_truncate = job->rope_untruncated,
        .attention_factor = job->rope_attention_factor};
    switch (job->rope_scaling) {
    case HD_JOB_ROPE_SCALING_LINEAR:
        ret_rope->kind = HD_ROPE_LINEAR;
        break;
    case HD_JOB_ROPE_SCALING_LLAMA3:
        ret_rope->kind = HD_ROPE_LLAMA3;
        break;
    case HD_JOB_ROPE_SCALING_YARN:
        ret_rope->kind = HD_ROPE_YARN;
        break;
    case HD_JOB_ROPE_SCALING_LONGROPE:
        ret_rope->kind = HD_ROPE_LONGROPE;
        return set_pair_factors(job, ret_rope);
    case HD_JOB_ROPE_SCALING_NONE:
        ret_rope->kind = HD_ROPE_NONE;
        break;
    }
    return HD_OK;
}

static enum hd_status positions_from_job(const struct hd_job *job, const struct hd_family *family,
                                         enum hd_positions *ret_positions)
{
    /* also of a family with slopes, whose own value is alibi */
    const enum hd_job_positions native =
        family->learned ? HD_JOB_POSITIONS_LEARNED : HD_JOB_POSITIONS_ROPE;

    if (job->positions != HD_JOB_POSITIONS_ALIBI && job->positions != native)
        return hd_err(
            HD_UNSUPPORTED, "model.positions: '%s' is not supported for %s; use %s or alibi",
            hd_job_positions_words[job->positions], job->family, hd_job_positions_words[native]);
    *ret_positions = job->positions == HD_JOB_POSITIONS_ALIBI ? HD_POSITIONS_ALIBI
                     : family->learned                        ? HD_POSITIONS_LEARNED
                                                              : HD_POSITIONS_ROPE;
    return HD_OK;
}

static enum hd_status family_from_job(const struct hd_job *job, const struct hd_family **ret_family)
{
    char list[HD_FAMILY_LIST_MAX];

    *ret_family = hd_family_named(job->family);
    if (*ret_family)
        return HD_OK;
    hd_family_list(list);
    return hd_err(HD_UNSUPPORTED, "model.family: '%s' is not supported; use %s", job->family, list);
}

static enum hd_status place_from_job(const struct hd_job *job, const struct hd_family *family,
                                     enum hd_norm_place *ret_place)
{
    *ret_place = family->place;
    if (strcmp(job->parallel_residual, "one_norm") == 0)
        *ret_place = HD_NORM_ONE;
    else if (strcmp(job->parallel_residual, "two_norms") == 0)
        *ret_place = HD_NORM_TWO;
    else if (*job->parallel_residual && strcmp(job->parallel_residual, "none") != 0)
        return hd_err(HD_INVALID,
                      "model.parallel_residual: '%s' is not known; use none, one_norm or two_norms",
                      job->parallel_residual);
    return HD_OK;
}

static enum hd_status layers_from_job(const struct hd_job *job, struct hd_model_config *c)
{
    if (hd_layers_parse(job->window_layers, &c->window_layers))
        return hd_err_prefix(HD_INVALID, "model.window_layers");
    if (hd_layers_parse(job->rope_layers, &c->rope_layers))
        return hd_err_prefix(HD_INVALID, "model.rope_layers");
    if (hd_layers_parse(job->experts_layers, &c->experts_layers))
        return hd_err_prefix(HD_INVALID, "model.experts_layers");
    if (hd_layers_parse(*job->delta_layers ? job->delta_layers : "none", &c->delta_layers))
        return hd_err_prefix(HD_INVALID, "model.delta.layers");
    if (hd_layers_parse(*job->conv_layers ? job->conv_layers : "none", &c->conv_layers))
        return hd_err_prefix(HD_INVALID, "model.conv.layers");
    return HD_OK;
}

/* Sets the latents, and the factor of scores, which YaRN changes there (DeepSeek-AI 2024). */
static void latents_from_job(const struct hd_job *job, struct hd_model_config *c)
{
    const double stretch =
        0.1 * job->rope_mscale_all_dim * log(job->rope_factor > 1 ? job->rope_factor : 1) + 1;

    if (!job->mla_kv_rank)
        return;
    c->D = job->mla_nope + job->mla_rope;
    c->G = c->H;
    c->latents =
        (struct hd_latents){.q_rank = job->mla_q_rank,
                            .kv_rank = job->mla_kv_rank,
                            .nope = job->mla_nope,
                            .rope = job->mla_rope,
                            .value = job->mla_value,
                            .eps = c->family->latent.eps > 0 ? c->family->latent.eps : c->norm_eps};
    if (job->rope_mscale_all_dim > 0)
        c->attention_scale =
            (c->attention_scale > 0 ? c->attention_scale : 1 / sqrt((double)c->D)) * stretch *
            stretch;
}

enum hd_status hd_model_config_from_job(const struct hd_job *job,
                                        struct hd_model_config *ret_config)
{
    struct hd_model_config c = {.L = job->layers,
                                .further = job->mtp_layers,
                                .C = job->hidden,
                                .H = job->heads,
                                .G = job->kv_heads,
                                .F = job->ffn_hidden,
                                .V = job->vocab,
                                .context = job->context,
                                .D = job->head_width,
                                .window = job->window,
                                .chunk = job->attention_chunk,
                                .window_from = job->window_from,
                                .qkv_bias = job->qkv_bias,
                                .out_bias = job->out_bias,
                                .mlp_bias = job->mlp_bias,
                                .qk_norm = job->qk_norm,
                                .norm_eps = job->norm_eps,
                                .init_std = job->init_std,
                                .z_loss = job->head_z_loss,
                                .init_plain = job->init_residual == HD_JOB_INIT_RESIDUAL_PLAIN,
                                .tied = job->tie_embeddings && !hd_job_is_reward(job),
                                .reward = hd_job_is_reward(job),
                                .F_shared = job->experts ? job->shared_ffn_hidden : 0,
                                .F_dense = job->experts ? job->dense_ffn_hidden : 0,
                                .attention_scale = job->attention_scale,
                                .attention_cap = job->attention_cap,
                                .qkv_clip = job->qkv_clip,
                                .glu_limit = job->glu_limit,
                                .logit_cap = job->logit_cap,
                                .logit_scale = job->logit_divisor > 0 ? 1 / job->logit_divisor : 1,
                                .embedding_scale =
                                    job->embedding_scale > 0 ? job->embedding_scale : 1,
                                .residual_scale = job->residual_scale > 0 ? job->residual_scale : 1,
                                .router = {.E = job->experts,
                                           .K = job->experts_per_token,
                                           .renormalize = job->renormalize,
                                           .form = {.groups = job->router_groups,
                                                    .kept = job->router_groups_kept,
                                                    .scale = (float)job->router_scale},
                                           .noisy = job->noisy,
                                           .balance = job->balance,
                                           .z = job->z_loss,
                                           .capacity = job->capacity,
                                           .expert_rows = job->expert_rows,
                                           .seed = (uint64_t)job->seed},
                                .bias_rate = job->router_bias_rate,
                                .delta = {.key_heads = job->delta_key_heads,
                                          .value_heads = job->delta_value_heads,
                                          .key_width = job->delta_key_width,
                                          .value_width = job->delta_value_width,
                                          .conv_width = job->delta_conv_width},
                                .conv_width = job->conv_width,
                                .conv_bias = job->conv_bias,
                                .dropout_embedding = job->dropout_embedding,
                                .neftune_alpha = job->neftune_alpha,
                                .dropout_attention = job->dropout_attention,
                                .dropout_residual = job->dropout_residual,
                                .seed = (uint64_t)job->seed};
    enum hd_status st = family_from_job(job, &c.family);

    if (!st)
        st = layers_from_job(job, &c);
    if (!st)
        st = place_from_job(job, c.family, &c.place);
    if (!st)
        st = positions_from_job(job, c.family, &c.positions);
    if (!st)
        st = rope_from_job(job, c.family, &c.rope);
    if (st)
        return st;
    c.query_factor = (struct hd_query_factor){
        .beta = job->query_factor,
        .original =
            (double)(job->query_factor_step ? job->query_factor_step : job->rope_original_context),
        .floor_offset = c.family->query_factor_unrotated ? 1 : 0};
    c.router.gate_input = c.family->gate_input;
    c.router.form.score = c.family->router_sigmoid ? HD_ROUTE_SIGMOID : HD_ROUTE_SOFTMAX;
    c.router.form.rule = c.family->router_pairs ? HD_ROUTE_GROUPS_BEST_TWO : HD_ROUTE_GROUPS_BEST;
    if (c.router.E && (c.router.K < 1 || c.router.K > c.router.E))
        return hd_err(HD_INVALID, "model.experts_per_token: %lld; use 1 to model.experts = %lld",
                      (long long)c.router.K, (long long)c.router.E);
    if (c.H % c.G)
        return hd_err(HD_INVALID, "model.kv_heads: %lld does not divide model.heads = %lld",
                      (long long)c.G, (long long)c.H);
    if (c.D < 8 || c.D % 8 || c.D > 256)
        return hd_err(
            HD_INVALID,
            "model.head_width: a head of %lld channels; the attention kernels take multiples of 8 "
            "up to 256",
            (long long)c.D);
    st = hd_adapter_only(job, c.only);
    if (!st)
        st = hd_adapter_from_job(job, &c.adapter);
    if (st)
        return st;
    latents_from_job(job, &c);
    c.local_rope = c.rope;
    if (job->rope_local_theta > 0) {
        c.local_rope.kind = HD_ROPE_NONE;
        c.local_rope.theta = job->rope_local_theta;
    }
    c.lowest_trained = hd_model_lowest_trained(&c);
    *ret_config = c;
    return HD_OK;
}

/* Returns whether the block is one of those with the window or the chunks. */
static bool is_local(const struct hd_model_config *c, int64_t layer)
{
    return layer >= c->window_from && hd_layers_has(&c->window_layers, layer);
}

int64_t hd_model_window(const struct hd_model_config *c, int64_t layer)
{
    return is_local(c, layer) ? c->window : 0;
}

struct hd_layer hd_model_layer(const struct hd_model_config *c, int64_t number)
{
    const bool further = number >= c->L;
    const int64_t layer = further ? c->L - 1 : number;
    const bool experts = c->router.E && hd_layers_has(&c->experts_layers, layer);
    const bool delta = c->delta.value_heads && hd_layers_has(&c->delta_layers, layer) && !further;
    const bool conv = c->conv_width && hd_layers_has(&c->conv_layers, layer) && !further;
    const bool attends = !delta && !conv;
    const bool rotates =
        attends && c->positions == HD_POSITIONS_ROPE && hd_layers_has(&c->rope_layers, layer);
    struct hd_layer l = {.window = attends ? hd_model_window(c, layer) : 0,
                         .chunk = attends && is_local(c, layer) ? c->chunk : 0,
                         .experts = experts,
                         .delta = delta,
                         .conv = conv,
                         .F = c->router.E && !experts ? c->F_dense : c->F};

    if (rotates)
        l.rope = l.window ? &c->local_rope : &c->rope;
    return l;
}

int hd_model_layer_kind(const struct hd_model_config *c, int64_t layer)
{
    const struct hd_layer l = hd_model_layer(c, layer);
    const bool unrotated = c->positions == HD_POSITIONS_ROPE && !l.rope && !l.delta && !l.conv;

    return (l.window > 0 || l.chunk > 0 ? HD_LAYER_WINDOWED : 0) +
           (unrotated ? HD_LAYER_UNROTATED : 0) + (c->router.E && !l.experts ? HD_LAYER_DENSE : 0) +
           (l.delta || l.conv ? HD_LAYER_UNATTENDED : 0);
}

bool hd_model_tp_fits(const struct hd_model_config *c, int64_t tp)
{
    return c->H % tp == 0 && c->F % tp == 0 && c->F_shared % tp == 0 && c->F_dense % tp == 0 &&
           (c->G % tp == 0 || tp % c->G == 0) && c->delta.key_heads % tp == 0 &&
           (!c->conv_width || c->C % tp == 0);
}

int32_t hd_model_kv_replica(const struct hd_model_config *config, int64_t tp)
{
    return tp > config->G ? (int32_t)(tp / config->G) : 1;
}

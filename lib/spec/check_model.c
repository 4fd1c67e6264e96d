/* check_model: the rules of a model's keys: family, heads, layers, features and experts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/quant.h"
#include "job/family.h"
#include "job/pair_factors.h"
#include "plan/choose.h"
#include "spec_internal.h"

enum { HEAD_WIDTH_MULTIPLE = 8, HEAD_WIDTH_MAX = 256 };

enum hd_status spec_check_family(const struct hd_job *job)
{
    char list[HD_FAMILY_LIST_MAX], quoted[SPEC_QUOTE_MAX];
    const char *nearest;

    if (*job->from_dir && job->from_dir[0] != '/')
        return hd_err(HD_INVALID, "model.from: is not an absolute path");
    if (hd_family_named(job->family))
        return HD_OK;
    hd_family_list(list);
    if (!*job->family)
        return hd_err(HD_INVALID, "model.family: is missing; use %s", list);
    nearest = hd_family_nearest(job->family);
    return hd_err(HD_INVALID, "model.family: %s is not a family; %s%s%s",
                  spec_quote(job->family, quoted), nearest ? "did you mean " : "use ",
                  nearest ? nearest : list, nearest ? "?" : "");
}

static bool is_head_width(int64_t width)
{
    return width >= HEAD_WIDTH_MULTIPLE && width % HEAD_WIDTH_MULTIPLE == 0 &&
           width <= HEAD_WIDTH_MAX;
}

static bool is_possible_heads(const void *about, int64_t heads)
{
    const int64_t hidden = *(const int64_t *)about;

    return hidden % heads == 0 && is_head_width(hidden / heads);
}

/* Makes the error message for a hidden / heads that is no possible head width, when the job file
 * gives no head_width. */
static enum hd_status refuse_heads(const struct hd_job *job)
{
    const int64_t width = job->hidden / job->heads;
    char list[HD_TEXT_LIST_MAX], instead[HD_TEXT_LIST_MAX + 160];

    hd_text_list_near(is_possible_heads, &job->hidden, (int64_t)HD_KEY(heads)->max, job->heads,
                      list);
    (void)snprintf(instead, sizeof instead, "%s%s%s%d up to %d", *list ? "use " : "", list,
                   *list ? ", or give model.head_width, a multiple of "
                         : "no number of heads is possible with it: give model.head_width, a "
                           "multiple of ",
                   HEAD_WIDTH_MULTIPLE, HEAD_WIDTH_MAX);
    if (job->hidden % job->heads)
        return hd_err(HD_INVALID, "model.heads: %lld does not divide model.hidden = %lld; %s",
                      (long long)job->heads, (long long)job->hidden, instead);
    return hd_err(HD_INVALID,
                  "model.heads: %lld heads of model.hidden = %lld are %lld wide, but a width is a "
                  "multiple of %d (rotary pairs and vector registers) and at most %d (the "
                  "attention kernel's tile); %s",
                  (long long)job->heads, (long long)job->hidden, (long long)width,
                  HEAD_WIDTH_MULTIPLE, HEAD_WIDTH_MAX, instead);
}

/* Checks the head width: the value that the job file gives, else hidden / heads. */
static enum hd_status check_head_width(const struct hd_job *job)
{
    const bool derived = job->head_width == job->hidden / job->heads;

    if (is_head_width(job->head_width) && !(derived && job->hidden % job->heads))
        return HD_OK;
    if (derived)
        return refuse_heads(job);
    return hd_err(HD_INVALID,
                  "model.head_width: %lld is not possible; use a multiple of %d up to %d",
                  (long long)job->head_width, HEAD_WIDTH_MULTIPLE, HEAD_WIDTH_MAX);
}

/* Refuses keys about layers or positions that would have no effect, unless the family's own default
 * has the value. */
static enum hd_status check_unused(const struct hd_job *job)
{
    const struct hd_family *f = hd_family_named(job->family);
    const bool rotates = job->positions == HD_JOB_POSITIONS_ROPE;

    if (!job->window && !job->attention_chunk && strcmp(job->window_layers, "all") != 0 &&
        (!f->window_layers || strcmp(job->window_layers, f->window_layers) != 0))
        return hd_err(HD_INVALID, "model.window_layers: there is no window; give model.window, or "
                                  "remove the line");
    if ((job->window || job->attention_chunk) &&
        hd_layers_count(job->window_layers, job->layers) == 0)
        return hd_err(HD_INVALID,
                      "model.window_layers: %s picks none of the %lld blocks for the window; give "
                      "all or counts such as 5:1, or remove the window",
                      job->window_layers, (long long)job->layers);
    if (job->window && job->attention_chunk)
        return hd_err(HD_INVALID,
                      "model.attention_chunk: blocks have a window or chunks, and "
                      "model.window = %lld is given; remove one of the two lines",
                      (long long)job->window);
    if (!job->window && job->rope_local_theta > 0 && f->local_theta == 0)
        return hd_err(HD_INVALID,
                      "model.rope_local_theta: there is no window, so no block has these "
                      "angles; give model.window, or remove the line");
    if (!rotates && strcmp(job->rope_layers, "all") != 0 &&
        (!f->rope_layers || strcmp(job->rope_layers, f->rope_layers) != 0))
        return hd_err(HD_INVALID, "model.rope_layers: %s positions are not rotary; remove the line",
                      hd_job_positions_words[job->positions]);
    if (!rotates && job->rope_fraction != 1 && job->rope_fraction != f->rope_fraction)
        return hd_err(HD_INVALID,
                      "model.rope_fraction: %s positions are not rotary; remove the line",
                      hd_job_positions_words[job->positions]);
    return HD_OK;
}

/* Checks the keys of blocks with parallel branches and of queries scaled by position. */
static enum hd_status check_branches(const struct hd_job *job)
{
    const struct hd_family *f = hd_family_named(job->family);
    const char *form = job->parallel_residual;

    if (*form && strcmp(form, "none") != 0 && strcmp(form, "one_norm") != 0 &&
        strcmp(form, "two_norms") != 0)
        return hd_err(HD_INVALID,
                      "model.parallel_residual: %s is not known; use none, one_norm or two_norms",
                      form);
    if (*form && strcmp(form, "none") != 0 && !f->parallel)
        return hd_err(
            HD_INVALID,
            "model.parallel_residual: blocks of %s have no parallel branches; write none, "
            "or use a family such as gpt_neox",
            f->name);
    if (job->query_factor > 0 && (job->positions != HD_JOB_POSITIONS_ROPE || job->mla_kv_rank > 0))
        return hd_err(HD_INVALID, "model.query_factor: only queries with rotary positions and "
                                  "without latents have one; remove the line");
    if (job->query_factor > 0 && !job->rope_original_context && !job->query_factor_step)
        return hd_err(HD_INVALID,
                      "model.query_factor: grows by model.query_factor_step or "
                      "model.rope_scaling.original_context, which are missing; give one, such as "
                      "16384");
    if (job->query_factor_step && job->query_factor == 0)
        return hd_err(HD_INVALID, "model.query_factor_step: there is no factor; give "
                                  "model.query_factor, such as 0.1, or remove the line");
    return HD_OK;
}

/* Checks the rules that pick layers, and what depends on them. */
static enum hd_status check_layers(const struct hd_job *job)
{
    const struct {
        const char *key, *rule;
    } rules[] = {{"model.window_layers", job->window_layers},
                 {"model.rope_layers", job->rope_layers},
                 {"model.experts_layers", job->experts_layers},
                 {"model.delta.layers", job->delta_layers},
                 {"model.conv.layers", job->conv_layers}};
    const int64_t rotated = hd_job_rotated(job);
    struct hd_layers layers;
    enum hd_status st;

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (hd_layers_parse(rules[i].rule, &layers))
            return hd_err_prefix(HD_INVALID, "%s", rules[i].key);
    if (rotated < 2 || rotated % 2)
        return hd_err(
            HD_INVALID,
            "model.rope_fraction: %g of model.head_width = %lld are %lld channels; an even "
            "number of them is rotated",
            job->rope_fraction, (long long)job->head_width, (long long)rotated);
    if (job->rope_local_theta > 0 && job->rope_local_theta <= 1)
        return hd_err(
            HD_INVALID,
            "model.rope_local_theta: %g is not possible; give more than 1, such as 10000, "
            "or 0 for the angles of the other blocks",
            job->rope_local_theta);
    st = check_unused(job);
    if (!st)
        st = check_branches(job);
    if (st)
        return st;
    if ((job->glu_limit > 0) != (hd_family_named(job->family)->activation == HD_FFN_OSS))
        return hd_err(HD_INVALID,
                      job->glu_limit > 0
                          ? "model.glu_limit: the activation of %s has none; remove the line"
                          : "model.glu_limit: the activation of %s needs one, such as 7",
                      job->family);
    if (job->qkv_clip > 0 && job->mla_kv_rank > 0)
        return hd_err(HD_INVALID, "model.qkv_clip: latent attention has no bounds; remove it");
    if (job->attention_cap > 0 && job->positions == HD_JOB_POSITIONS_ALIBI)
        return hd_err(HD_INVALID, "model.attention_cap: is not possible with alibi; remove it");
    return HD_OK;
}

/* Checks the lists of LongRoPE, also the one that this context does not need. */
static enum hd_status check_pair_factors(const struct hd_job *job)
{
    const struct {
        const char *key, *text;
    } lists[] = {{"model.rope_scaling.short_factor", job->rope_short_factor},
                 {"model.rope_scaling.long_factor", job->rope_long_factor}};
    const bool longrope = job->rope_scaling == HD_JOB_ROPE_SCALING_LONGROPE;
    double factors[HD_PAIR_FACTORS_MAX];

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (!longrope && *lists[i].text)
            return hd_err(HD_INVALID, "%s: only the type longrope has it; remove it", lists[i].key);
        if (longrope && hd_pair_factors_parse(job, lists[i].text, factors))
            return hd_err_prefix(HD_INVALID, "%s", lists[i].key);
    }
    if (longrope && job->rope_original_context < 2)
        return hd_err(HD_INVALID,
                      "model.rope_scaling.original_context: longrope divides by its logarithm; "
                      "give more than 1, such as 4096");
    return HD_OK;
}

/* Refuses combinations of features that are not possible. */
static enum hd_status check_features(const struct hd_job *job)
{
    const bool none = job->rope_scaling == HD_JOB_ROPE_SCALING_NONE;
    const bool linear = job->rope_scaling == HD_JOB_ROPE_SCALING_LINEAR;
    const bool learned = hd_family_named(job->family)->learned;

    if (job->positions == (learned ? HD_JOB_POSITIONS_ROPE : HD_JOB_POSITIONS_LEARNED))
        return hd_err(HD_INVALID, "model.positions: %s has no %s positions; use %s or alibi",
                      job->family, learned ? "rotary" : "learned", learned ? "learned" : "rope");
    if (job->positions == HD_JOB_POSITIONS_ALIBI && !none)
        return hd_err(HD_INVALID,
                      "model.rope_scaling: alibi has no rotary positions; remove it, or "
                      "model.positions: alibi");
    if (learned && !none)
        return hd_err(HD_INVALID, "model.rope_scaling: %s has no rotary positions; remove it",
                      job->family);
    if (learned && job->qk_norm)
        return hd_err(HD_INVALID, "model.qk_norm: %s has no norms in attention; remove it",
                      job->family);
    if (job->window_from &&
        ((!job->window && !job->attention_chunk) || job->window_from >= job->layers))
        return hd_err(
            HD_INVALID,
            "model.window_from: %lld names no block with a window; give model.window, and "
            "a block below model.layers = %lld",
            (long long)job->window_from, (long long)job->layers);
    if (!none && !linear && !job->rope_original_context)
        return hd_err(HD_INVALID, "model.rope_scaling.original_context: is missing; give the "
                                  "context of pretraining");
    if (job->rope_untruncated && job->rope_scaling != HD_JOB_ROPE_SCALING_YARN)
        return hd_err(HD_INVALID,
                      "model.rope_scaling.untruncated: only the type yarn has it; remove it");
    if (job->rope_scaling == HD_JOB_ROPE_SCALING_YARN && job->rope_theta <= 1)
        return hd_err(HD_INVALID, "model.rope_theta: yarn divides by its logarithm; give more than "
                                  "1, such as 10000");
    if (job->rope_low_freq_factor > job->rope_high_freq_factor) /* Llama 4 Scout has equal ones */
        return hd_err(
            HD_INVALID,
            "model.rope_scaling.low_freq_factor: %g is above high_freq_factor = %g; lower "
            "it",
            job->rope_low_freq_factor, job->rope_high_freq_factor);
    if (job->rope_beta_slow > job->rope_beta_fast) /* Kimi K2 has equal ones */
        return hd_err(HD_INVALID,
                      "model.rope_scaling.beta_slow: %g is above beta_fast = %g; lower it",
                      job->rope_beta_slow, job->rope_beta_fast);
    return check_pair_factors(job);
}

/* Refuses keys of experts in a model without experts. */
static enum hd_status check_dense(const struct hd_job *job)
{
    const struct {
        const char *key;
        bool given;
    } keys[] = {{"model.experts", job->experts != 0},
                {"model.experts_per_token", job->experts_per_token != 0},
                {"model.shared_ffn_hidden", job->shared_ffn_hidden != 0},
                {"model.dense_ffn_hidden", job->dense_ffn_hidden != 0},
                {"model.experts_layers", strcmp(job->experts_layers, "all") != 0},
                {"model.router.renormalize", job->renormalize},
                {"model.router.groups", job->router_groups > 1},
                {"model.router.groups_kept", job->router_groups_kept > 1},
                {"model.router.scale", job->router_scale > 0 && job->router_scale != 1},
                {"model.router.bias_rate", job->router_bias_rate != 0},
                {"model.router.noisy", job->noisy},
                {"model.router.balance", job->balance != 0},
                {"model.router.z_loss", job->z_loss != 0},
                {"model.router.capacity_factor", job->capacity != 0},
                {"parallel.expert_rows", job->expert_rows != 0}};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].given)
            return hd_err(HD_INVALID,
                          "%s: %s has no experts; remove the line, or use a family with experts, "
                          "such as mixtral or qwen3_moe",
                          keys[i].key, job->family);
    return HD_OK;
}

/* Checks the keys of routers that not all families with experts have. */
static enum hd_status check_router(const struct hd_job *job, const struct hd_family *f)
{
    const int64_t groups = job->router_groups > 1 ? job->router_groups : 1;
    const int64_t kept = job->router_groups_kept > 1 ? job->router_groups_kept : 1;
    const bool scaled = job->router_scale > 0 && job->router_scale != 1;

    if (!f->router_groups && (groups != 1 || kept != 1 || scaled))
        return hd_err(HD_INVALID, "%s: routers of %s have none; remove the line",
                      groups != 1 ? "model.router.groups"
                      : kept != 1 ? "model.router.groups_kept"
                                  : "model.router.scale",
                      f->name);
    if (job->experts % groups || (f->router_pairs && groups > 1 && job->experts / groups < 2))
        return hd_err(
            HD_INVALID,
            "model.router.groups: %lld does not divide the %lld experts into groups of at "
            "least %d",
            (long long)groups, (long long)job->experts, f->router_pairs ? 2 : 1);
    if (kept > groups || job->experts_per_token > kept * (job->experts / groups))
        return hd_err(HD_INVALID,
                      "model.router.groups_kept: %lld of %lld groups of %lld experts cannot give a "
                      "token %lld experts",
                      (long long)kept, (long long)groups, (long long)(job->experts / groups),
                      (long long)job->experts_per_token);
    if (!f->select_bias && job->router_bias_rate > 0)
        return hd_err(HD_INVALID,
                      "model.router.bias_rate: routers of %s have no select bias; remove the line, "
                      "or balance with model.router.balance",
                      f->name);
    if (job->router_bias_rate > 0 && job->adapter != HD_JOB_ADAPTER_NONE)
        return hd_err(HD_INVALID,
                      "model.router.bias_rate: an adapter's files have no place for the "
                      "biases of its base; write 0");
    if (f->router_sigmoid && job->z_loss > 0)
        return hd_err(
            HD_INVALID,
            "model.router.z_loss: is a loss of softmax routers, and those of %s are sigmoids; "
            "write 0",
            f->name);
    return HD_OK;
}

static enum hd_status check_experts(const struct hd_job *job)
{
    const int64_t dense = job->layers - hd_layers_count(job->experts_layers, job->layers);

    if (!hd_family_named(job->family)->experts)
        return check_dense(job);
    if (dense == job->layers)
        return hd_err(
            HD_INVALID,
            "model.experts_layers: %s picks none of the %lld blocks; use a family without "
            "experts",
            job->experts_layers, (long long)job->layers);
    if (dense && !job->dense_ffn_hidden)
        return hd_err(HD_INVALID,
                      "model.dense_ffn_hidden: is missing; %lld of the %lld blocks have no experts "
                      "(model.experts_layers), give the width of their feed-forward layer",
                      (long long)dense, (long long)job->layers);
    if (!dense && job->dense_ffn_hidden)
        return hd_err(HD_INVALID,
                      "model.dense_ffn_hidden: every block has experts; remove the line, or give "
                      "model.experts_layers");
    if (job->experts_per_token > job->experts)
        return hd_err(HD_INVALID,
                      "model.experts_per_token: %lld is more than model.experts = %lld; use a "
                      "whole number from 1 to %lld",
                      (long long)job->experts_per_token, (long long)job->experts,
                      (long long)(job->experts < 64 ? job->experts : 64));
    if (job->mlp_bias && !hd_family_named(job->family)->mlp_bias)
        return hd_err(HD_INVALID, "model.mlp_bias: experts of %s have none; remove the line",
                      job->family);
    return check_router(job, hd_family_named(job->family));
}

/* Refuses keys of latent attention in a family without it. */
static enum hd_status check_no_latents(const struct hd_job *job)
{
    const struct {
        const char *key;
        bool given;
    } keys[] = {{"model.mla.q_rank", job->mla_q_rank != 0},
                {"model.mla.kv_rank", job->mla_kv_rank != 0},
                {"model.mla.nope_width", job->mla_nope != 0},
                {"model.mla.rope_width", job->mla_rope != 0},
                {"model.mla.value_width", job->mla_value != 0},
                {"model.rope_scaling.mscale_all_dim", job->rope_mscale_all_dim != 0}};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].given)
            return hd_err(HD_INVALID,
                          "%s: %s has no latent attention; remove the line, or use a family with "
                          "it, such as deepseek_v3",
                          keys[i].key, job->family);
    return HD_OK;
}

/* Checks the widths and the switches of latent attention. */
static enum hd_status check_latents(const struct hd_job *job)
{
    const int64_t width = job->mla_nope + job->mla_rope;
    const struct {
        const char *key;
        int64_t value;
    } widths[] = {{"nope_width", job->mla_nope},
                  {"rope_width", job->mla_rope},
                  {"value_width", job->mla_value}};

    if (!hd_family_named(job->family)->latent.kv_rank)
        return check_no_latents(job);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        if (widths[i].value % HEAD_WIDTH_MULTIPLE)
            return hd_err(HD_INVALID, "model.mla.%s: %lld is not possible; use a multiple of %d",
                          widths[i].key, (long long)widths[i].value, HEAD_WIDTH_MULTIPLE);
    if (width > HEAD_WIDTH_MAX || job->head_width != width)
        return hd_err(HD_INVALID,
                      "model.head_width: %lld; with model.mla it is nope_width + rope_width = "
                      "%lld, at most %d; remove the line, or change these",
                      (long long)job->head_width, (long long)width, HEAD_WIDTH_MAX);
    if (job->mla_value > width)
        return hd_err(HD_INVALID,
                      "model.mla.value_width: %lld is more than nope_width + rope_width = %lld, "
                      "which the attention kernels do not have; use at most that",
                      (long long)job->mla_value, (long long)width);
    if (job->kv_heads != job->heads)
        return hd_err(
            HD_INVALID,
            "model.kv_heads: with latent attention every head has keys and values; remove "
            "the line or write %lld",
            (long long)job->heads);
    if (job->qk_norm || job->qkv_bias || job->out_bias)
        return hd_err(HD_INVALID,
                      "model.%s: true is not possible with latent attention; remove the line",
                      job->qk_norm    ? "qk_norm"
                      : job->qkv_bias ? "qkv_bias"
                                      : "out_bias");
    if (job->rope_fraction != 1)
        return hd_err(HD_INVALID,
                      "model.rope_fraction: model.mla.rope_width says how many channels "
                      "are rotated; remove the line");
    if (job->rope_mscale_all_dim > 0 && job->rope_scaling != HD_JOB_ROPE_SCALING_YARN)
        return hd_err(HD_INVALID, "model.rope_scaling.mscale_all_dim: only the type yarn has it; "
                                  "remove it");
    return HD_OK;
}

/* Checks the sizes of gated delta layers. */
static enum hd_status check_delta(const struct hd_job *job)
{
    const bool has_keys = job->delta_key_heads || job->delta_value_heads || job->delta_key_width ||
                          job->delta_value_width || job->delta_conv_width;

    if (!hd_family_named(job->family)->delta.layers) {
        if (!has_keys && strcmp(job->delta_layers, "none") == 0)
            return HD_OK;
        return hd_err(HD_INVALID,
                      "model.delta: %s has no gated delta layers; remove its keys, or use a family "
                      "with them, such as qwen3_next",
                      job->family);
    }
    if (!job->qk_norm || job->qkv_bias || job->out_bias)
        return hd_err(HD_UNSUPPORTED, "model.%s: %s is not possible in %s; remove the line",
                      !job->qk_norm   ? "qk_norm"
                      : job->qkv_bias ? "qkv_bias"
                                      : "out_bias",
                      job->qk_norm ? "true" : "false", job->family);
    if (job->delta_key_heads < 1 || job->delta_value_heads % job->delta_key_heads)
        return hd_err(HD_INVALID,
                      "model.delta.value_heads: %lld is not a multiple of key_heads = %lld",
                      (long long)job->delta_value_heads, (long long)job->delta_key_heads);
    if (job->delta_key_width % HEAD_WIDTH_MULTIPLE || job->delta_value_width % HEAD_WIDTH_MULTIPLE)
        return hd_err(HD_INVALID, "model.delta.%s: %lld is not possible; use a multiple of %d",
                      job->delta_key_width % HEAD_WIDTH_MULTIPLE ? "key_width" : "value_width",
                      (long long)(job->delta_key_width % HEAD_WIDTH_MULTIPLE
                                      ? job->delta_key_width
                                      : job->delta_value_width),
                      HEAD_WIDTH_MULTIPLE);
    if (job->delta_conv_width < 2)
        return hd_err(HD_INVALID, "model.delta.conv_width: 1 tap is no convolution; use 2 to 8");
    return HD_OK;
}

/* Checks the keys of short convolutions. */
static enum hd_status check_conv(const struct hd_job *job)
{
    if (!hd_family_named(job->family)->conv.layers) {
        if (!job->conv_width && !job->conv_bias && strcmp(job->conv_layers, "none") == 0)
            return HD_OK;
        return hd_err(HD_INVALID,
                      "model.conv: %s has no short convolutions; remove its keys, or use a family "
                      "with them, such as lfm2",
                      job->family);
    }
    if (job->conv_width < 2)
        return hd_err(HD_INVALID, "model.conv.width: 1 tap is no convolution; use 2 to 8");
    return HD_OK;
}

static enum hd_status check_heads(const struct hd_job *job)
{
    char list[HD_TEXT_LIST_MAX];
    enum hd_status st = check_latents(job);

    if (!st)
        st = check_delta(job);
    if (!st)
        st = check_conv(job);
    if (!st)
        st = check_head_width(job);
    if (st)
        return st;
    if (job->heads % job->kv_heads) {
        spec_list_divisors(job->heads, job->heads, job->kv_heads, list);
        return hd_err(HD_INVALID, "model.kv_heads: %lld does not divide model.heads = %lld; use %s",
                      (long long)job->kv_heads, (long long)job->heads, list);
    }
    if (hd_family_named(job->family)->learned && job->kv_heads != job->heads)
        return hd_err(HD_INVALID,
                      "model.kv_heads: %s has one for each head; remove the line or write %lld",
                      job->family, (long long)job->heads);
    return HD_OK;
}

/* Checks the keys of layers that predict further tokens, which need the loss of next tokens and
 * weights that all train. */
static enum hd_status check_further(const struct hd_job *job)
{
    if (!job->mtp_layers && job->mtp_weight != HD_KEY(mtp_weight)->number)
        return hd_err(HD_INVALID, "model.mtp.loss_weight: there are no layers that predict further "
                                  "tokens; give model.mtp.layers, or remove the line");
    if (!job->mtp_layers)
        return HD_OK;
    if (hd_job_has_pairs(job))
        return hd_err(HD_INVALID,
                      "model.mtp.layers: with train.objective: %s answers are compared, and no "
                      "further tokens are predicted; remove the line",
                      hd_job_objective_words[job->objective]);
    if (job->adapter != HD_JOB_ADAPTER_NONE)
        return hd_err(HD_INVALID,
                      "model.mtp.layers: an adapter's files have no place for layers that predict "
                      "further tokens; remove the line, or train without train.adapter.type");
    if (job->model_weights != HD_JOB_MODEL_WEIGHTS_PLAIN)
        return hd_err(HD_INVALID,
                      "model.mtp.layers: its matrices train, which those in %s cannot; remove the "
                      "line, or use model.quantization: none",
                      hd_job_model_weights_words[job->model_weights]);
    if (job->context <= job->mtp_layers)
        return hd_err(
            HD_INVALID,
            "model.mtp.layers: %lld; a window of model.context = %lld tokens has no token "
            "so far ahead; give fewer layers, or a longer context",
            (long long)job->mtp_layers, (long long)job->context);
    return HD_OK;
}

enum hd_status spec_check_model(const struct hd_job *job)
{
    enum hd_status st = check_heads(job);

    if (!st)
        st = check_layers(job);
    if (!st)
        st = check_features(job);
    if (!st)
        st = check_further(job);
    return st ? st : check_experts(job);
}

/* defaults: sets absent keys, keys whose default depends on other keys, and keys for which zero
 * means "not given". docs/job-file.md lists the defaults. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "job/family.h"
#include "spec_internal.h"

/* ---- members for which zero or empty is no valid value ---- */

/* Returns the default ffn_hidden of a gated MLP: two thirds of 4 x hidden, so that the three
 * matrices of a gated MLP have as many weights as the two of gpt2, rounded up to a multiple of 32
 * for the kernels (Shazeer 2020, "GLU Variants Improve Transformer"; Llama). */
static int64_t gated_ffn_width(int64_t hidden)
{
    return (8 * hidden + 3 * 32 - 1) / (3 * 32) * 32;
}

/* Sets absent members of rope_scaling to the values of the papers and of published checkpoints. */
static void fill_rope_scaling(struct hd_job *job)
{
    if (!job->rope_scaling)
        job->rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    if (job->rope_factor == 0)
        job->rope_factor = 1;
    if (job->rope_low_freq_factor == 0)
        job->rope_low_freq_factor = 1;
    if (job->rope_high_freq_factor == 0)
        job->rope_high_freq_factor = 4;
    if (job->rope_beta_fast == 0)
        job->rope_beta_fast = 32;
    if (job->rope_beta_slow == 0)
        job->rope_beta_slow = 1;
}

/* Returns the row of the job's family; of llama if the job names none, which hd_spec_check
 * reports. */
static const struct hd_family *family_of(const struct hd_job *job)
{
    const struct hd_family *family = hd_family_named(job->family);

    return family ? family : hd_family_named("llama");
}

static void set_rule(const char **rule, const char *text)
{
    if (!**rule)
        *rule = text ? text : "all";
}

static void set_factor(double *factor, double value)
{
    if (*factor == 0)
        *factor = value;
}

/* Sets the keys of single switches for which 0 or an empty text is no value. */
static void fill_switches(struct hd_job *job, const struct hd_family *family)
{
    set_rule(&job->window_layers, family->window_layers);
    set_rule(&job->rope_layers, family->rope_layers);
    set_rule(&job->experts_layers, NULL);
    set_rule(&job->parallel_residual,
             family->parallel && !family->sequential ? family->parallel : "none");
    set_factor(&job->rope_fraction, family->rope_fraction > 0 ? family->rope_fraction : 1);
    set_factor(&job->embedding_scale,
               family->scales_embedding && job->hidden > 0 ? sqrt((double)job->hidden) : 1);
    set_factor(&job->residual_scale, 1);
    set_factor(&job->logit_divisor, 1);
}

static void set_size(int64_t *size, int64_t value)
{
    if (!*size)
        *size = value;
}

/* Sets the keys of latent attention for which 0 is no value. */
static void fill_latents(struct hd_job *job, const struct hd_family *family)
{
    set_size(&job->mla_kv_rank, family->latent.kv_rank);
    set_size(&job->mla_nope, family->latent.nope);
    set_size(&job->mla_rope, family->latent.rope);
    set_size(&job->mla_value, family->latent.value);
    if (family->latent.kv_rank)
        set_size(&job->head_width, job->mla_nope + job->mla_rope);
}

/* Sets the keys of gated delta layers and of short convolutions for which 0 or an empty text is no value. */
static void fill_mixers(struct hd_job *job, const struct hd_family *family)
{
    set_rule(&job->delta_layers, family->delta.layers ? family->delta.layers : "none");
    set_size(&job->delta_key_heads, family->delta.key_heads);
    set_size(&job->delta_value_heads, family->delta.value_heads);
    set_size(&job->delta_key_width, family->delta.key_width);
    set_size(&job->delta_value_width, family->delta.value_width);
    set_size(&job->delta_conv_width, family->delta.conv_width);
    set_rule(&job->conv_layers, family->conv.layers ? family->conv.layers : "none");
    set_size(&job->conv_width, family->conv.width);
}

static void fill_model(struct hd_job *job)
{
    const struct hd_family *family = family_of(job);
    const bool bytes = strcmp(job->tokenizer, "bytes") == 0;
    /* avoids overflow; hd_spec_check reports other values */
    const bool in_range = job->hidden > 0 && job->hidden <= 1 << 20;

    if (!job->kv_heads)
        job->kv_heads = job->heads;
    if (!job->ffn_hidden && in_range)
        job->ffn_hidden = family->gated ? gated_ffn_width(job->hidden) : 4 * job->hidden;
    if (!job->vocab && bytes)
        job->vocab = 256;
    if (!job->positions)
        job->positions = hd_family_positions(family);
    if (job->rope_theta == 0)
        job->rope_theta = 10000;
    if (job->norm_eps == 0)
        job->norm_eps = 1e-5;
    fill_latents(job, family);
    fill_mixers(job, family);
    if (!job->head_width && job->heads > 0)
        job->head_width = job->hidden / job->heads;
    if (!job->experts)
        job->experts = family->new_experts;
    if (!job->experts_per_token)
        job->experts_per_token = family->new_experts_per_token;
    fill_switches(job, family);
    fill_rope_scaling(job);
}

/* Sets data.documents to "bounded" if the data can mark ends of documents, by the names of the
 * files; plain text with bytes cannot. */
static void fill_documents(struct hd_job *job)
{
    bool knows = strcmp(job->tokenizer, "bytes") != 0 || job->end_of_text >= 0;

    if (job->documents)
        return;
    for (int64_t i = 0; !knows && i < job->train_count; i++)
        knows = hd_data_name_kind(job->train[i].path) != HD_DATA_TEXT;
    job->documents = knows ? HD_JOB_DOCUMENTS_BOUNDED : HD_JOB_DOCUMENTS_JOINED;
}

static void fill_lr(struct hd_job *job)
{
    const int64_t steps = job->steps - job->lr_after;
    const int64_t after_warmup = steps > job->lr_warmup_steps ? steps - job->lr_warmup_steps : 0;

    if (!job->lr_decay)
        job->lr_decay = HD_JOB_LR_DECAY_COSINE;
    if (!job->lr_decay_shape)
        job->lr_decay_shape = HD_JOB_LR_DECAY_SHAPE_LINEAR;
    if (job->lr_decay_steps || !spec_rate_has_decay_steps(job->lr_decay))
        return;
    job->lr_decay_steps = after_warmup; /* the decay ends with the last step */
    if (job->lr_decay == HD_JOB_LR_DECAY_WSD && steps / 10 < after_warmup)
        job->lr_decay_steps = steps / 10 ? steps / 10 : after_warmup;
}

void spec_fill_zero(struct hd_job *job)
{
    if (!*job->tokenizer)
        job->tokenizer = hd_spec_has_text(job) ? "bytes" : "none";
    if (!job->order)
        job->order = HD_JOB_ORDER_SHUFFLED;
    fill_documents(job);
    fill_model(job);
    fill_lr(job);
    spec_fill_order(job);
    if (job->init_std == 0)
        job->init_std = 0.02;
    if (!job->init_residual)
        job->init_residual = HD_JOB_INIT_RESIDUAL_SCALED;
    if (job->beta2 == 0)
        job->beta2 = job->optimizer == HD_JOB_OPTIMIZER_LION ? 0.99 : 0.95;
    if (job->adam_eps == 0)
        job->adam_eps = 1e-8;
    if (!job->devices_min)
        job->devices_min = 1;
    if (!job->devices_max)
        job->devices_max = job->devices_min;
}

/* ---- absent keys ---- */

static bool absent(struct spec_draft *draft, const char *path)
{
    return !*spec_given(draft, path);
}

/* Returns the default warmup: a twentieth of the steps, at most 2000, and at most the steps before
 * the learning rate's decay. */
static int64_t default_warmup(const struct hd_job *job)
{
    const int64_t all = job->steps - job->lr_after;
    const int64_t steps = all / 20 < 2000 ? all / 20 : 2000;
    const int64_t left = all - job->lr_decay_steps;

    return left < 0 ? 0 : left < steps ? left : steps;
}

bool spec_follows_steps(const struct hd_job *job, const char *path)
{
    struct hd_job plain = *job;
    bool decay;

    plain.lr_decay_steps = 0;
    fill_lr(&plain);
    decay = plain.lr_decay_steps == job->lr_decay_steps;
    if (strcmp(path, "train.lr.decay_steps") == 0)
        return decay;
    plain.lr_decay_steps = decay ? 0 : job->lr_decay_steps;
    if (strcmp(path, "train.lr.warmup") == 0)
        return default_warmup(&plain) == job->lr_warmup_steps;
    return strcmp(path, "train.lr.min") == 0 && job->lr_min == job->lr_peak / 10;
}

/* Sets keys whose default depends on the family and may be false or 0. */
static void fill_absent_of_family(struct spec_draft *draft, const struct hd_family *family)
{
    struct hd_job *job = draft->job;

    if (absent(draft, "model.tie_embeddings"))
        job->tie_embeddings = family->tied;
    if (absent(draft, "model.qkv_bias"))
        job->qkv_bias = family->qkv_bias;
    if (absent(draft, "model.out_bias"))
        job->out_bias = family->out_bias;
    if (absent(draft, "model.mlp_bias"))
        job->mlp_bias = family->mlp_bias;
    if (absent(draft, "model.qk_norm"))
        job->qk_norm = family->qk_norm;
    if (absent(draft, "model.rope_local_theta"))
        job->rope_local_theta = family->local_theta;
    if (absent(draft, "model.mla.q_rank"))
        job->mla_q_rank = family->latent.q_rank;
    if (absent(draft, "model.attention_cap"))
        job->attention_cap = family->attention_cap;
    if (absent(draft, "model.logit_cap"))
        job->logit_cap = family->logit_cap;
    if (absent(draft, "model.glu_limit"))
        job->glu_limit = family->glu_limit;
}

/* Sets the load-balancing loss and its weight to those of Switch Transformers (Fedus et al. 2021);
 * with a select bias, the weight to that of DeepSeek-V3 (2024) and, for new weights, its step of the
 * bias. */
static void fill_absent_of_router(struct spec_draft *draft, const struct hd_family *family)
{
    const bool begins = !*draft->job->init_from && draft->job->adapter == HD_JOB_ADAPTER_NONE;

    if (absent(draft, "model.router.renormalize"))
        draft->job->renormalize = family->renormalize;
    if (absent(draft, "model.router.balance"))
        draft->job->balance = family->select_bias ? 1e-4 : 0.01;
    if (absent(draft, "model.router.bias_rate"))
        draft->job->router_bias_rate = family->select_bias && begins ? 1e-3 : 0;
}

/* Sets the bounds of ratios to those of the papers of each loss. */
static void fill_absent_of_policy(struct spec_draft *draft)
{
    struct hd_job *job = draft->job;
    const bool gspo = job->policy_loss == HD_JOB_POLICY_LOSS_GSPO;

    if (absent(draft, "train.policy.clip_low"))
        job->policy_clip_low = gspo ? 3e-4 : 0.2;
    if (absent(draft, "train.policy.clip_high"))
        job->policy_clip_high = gspo                                          ? 4e-4
                                : job->policy_loss == HD_JOB_POLICY_LOSS_DAPO ? 0.28
                                                                              : 0.2;
    if (absent(draft, "train.policy.kl"))
        job->policy_kl = job->policy_kl_beta > 0 ? HD_JOB_POLICY_KL_K3 : HD_JOB_POLICY_KL_NONE;
    if (absent(draft, "train.policy.scale"))
        job->policy_scale = job->policy_loss == HD_JOB_POLICY_LOSS_DR_GRPO ||
                                    job->policy_loss == HD_JOB_POLICY_LOSS_RLOO
                                ? HD_JOB_POLICY_SCALE_NONE
                                : HD_JOB_POLICY_SCALE_GROUP;
}

void spec_fill_absent(struct spec_draft *draft)
{
    struct hd_job *job = draft->job;
    const bool gkd = job->objective == HD_JOB_OBJECTIVE_GKD;

    for (size_t i = 0; i < hd_job_key_count; i++)
        if (!draft->given[i] && !hd_job_keys[i].derived)
            hd_job_set_default(&hd_job_keys[i], job);
    if (!*job->from_dir) { /* model.from would have set these keys already */
        fill_absent_of_family(draft, family_of(job));
        if (family_of(job)->experts)
            fill_absent_of_router(draft, family_of(job));
    }
    if (absent(draft, "train.lr.warmup"))
        job->lr_warmup_steps = default_warmup(job);
    if (absent(draft, "train.lr.min"))
        job->lr_min = job->lr_peak / 10;
    if (absent(draft, "train.preference.gamma"))
        job->preference_gamma = job->objective == HD_JOB_OBJECTIVE_SIMPO ? 0.5 : 0;
    if (absent(draft, "train.preference.sft"))
        job->preference_sft = job->objective == HD_JOB_OBJECTIVE_CPO ? 1 : 0;
    fill_absent_of_policy(draft);
    if (absent(draft, "train.distill.loss"))
        job->distill_loss = gkd ? HD_JOB_DISTILL_LOSS_JSD : HD_JOB_DISTILL_LOSS_FORWARD;
    if (absent(draft, "train.distill.weight"))
        job->distill_weight = gkd ? 1 : 0.5;
    if (absent(draft, "validate.batches") &&
        (job->val_count || job->val_split > 0 ||
         /* also without data if the job asks for validation: the check then reports that data is
          * missing */
         (!absent(draft, "validate.every") && job->validate_every && !*job->choices &&
          !*job->tasks && !*job->samples)))
        job->validate_batches = 8;
}

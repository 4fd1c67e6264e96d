/* JobSpec + Plan + attempt -> the resolved job. Each member of struct hd_job is set here, once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/choose.h"
#include "spec_internal.h"

static enum hd_status set_word(char ret_word[HD_JOB_WORD_MAX], const char *what, const char *word)
{
    if (!*word || strlen(word) >= HD_JOB_WORD_MAX)
        return hd_err(HD_INVALID, "%s: has no name of 1 to %d bytes", what, HD_JOB_WORD_MAX - 1);
    memcpy(ret_word, word, strlen(word) + 1);
    return HD_OK;
}

static enum hd_status set_path(char ret_path[HD_JOB_PATH_MAX], const char *what, const char *path)
{
    if (strlen(path) >= HD_JOB_PATH_MAX)
        return hd_err(HD_INVALID, "%s: a path of more than %d bytes", what, HD_JOB_PATH_MAX - 1);
    memcpy(ret_path, path, strlen(path) + 1);
    return HD_OK;
}

static const char *decay_name(Heddle__V1__DecayKind decay)
{
    switch (decay) {
    case HEDDLE__V1__DECAY_KIND__DECAY_KIND_CONSTANT:
        return "constant";
    case HEDDLE__V1__DECAY_KIND__DECAY_KIND_LINEAR:
        return "linear";
    case HEDDLE__V1__DECAY_KIND__DECAY_KIND_WSD:
        return "wsd";
    case HEDDLE__V1__DECAY_KIND__DECAY_KIND_COSINE:
        return "cosine";
    default:
        return "";
    }
}

static enum hd_status resolve_rope_scaling(const Heddle__V1__RopeScaling *s, struct hd_job *job)
{
    const char *name;

    switch (s->type) {
    case HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_LINEAR:
        name = "linear";
        break;
    case HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_LLAMA3:
        name = "llama3";
        break;
    case HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_YARN:
        name = "yarn";
        break;
    default:
        name = "none";
    }
    job->rope_factor = s->factor;
    job->rope_original_context = s->original_context;
    job->rope_low_freq_factor = s->low_freq_factor;
    job->rope_high_freq_factor = s->high_freq_factor;
    job->rope_beta_fast = s->beta_fast;
    job->rope_beta_slow = s->beta_slow;
    job->rope_attention_factor = s->attention_factor;
    return set_word(job->rope_scaling, "model.rope_scaling.type", name);
}

static const char *positions_name(Heddle__V1__Positions positions)
{
    switch (positions) {
    case HEDDLE__V1__POSITIONS__POSITIONS_ROPE:
        return "rope";
    case HEDDLE__V1__POSITIONS__POSITIONS_LEARNED:
        return "learned";
    case HEDDLE__V1__POSITIONS__POSITIONS_ALIBI:
        return "alibi";
    default:
        return "";
    }
}

static enum hd_status resolve_model(const Heddle__V1__ModelSpec *m, struct hd_job *job)
{
    enum hd_status st = set_word(job->family, "model.family", m->family);

    job->layers = m->layers;
    job->hidden = m->hidden;
    job->heads = m->heads;
    job->kv_heads = m->kv_heads;
    job->ffn_hidden = m->ffn_hidden;
    job->vocab = m->vocab;
    job->context = m->context;
    job->rope_theta = m->rope_theta;
    job->norm_eps = m->norm_eps;
    job->tie_embeddings = m->tie_embeddings;
    job->head_width = m->head_width;
    job->qkv_bias = m->qkv_bias;
    job->out_bias = m->out_bias;
    job->mlp_bias = m->mlp_bias;
    job->qk_norm = m->qk_norm;
    job->window = m->window;
    job->window_from = m->window_from;
    job->experts = m->experts;
    job->experts_per_token = m->experts_per_token;
    job->shared_ffn_hidden = m->shared_ffn_hidden;
    job->renormalize = m->router->renormalize;
    job->noisy = m->router->noisy;
    job->balance = m->router->balance;
    job->z_loss = m->router->z;
    job->capacity = m->router->capacity;
    if (!st)
        st = set_word(job->positions, "model.positions", positions_name(m->positions));
    return st ? st : resolve_rope_scaling(m->rope_scaling, job);
}

static enum hd_status resolve_files(Heddle__V1__DataFile *const *files, size_t count,
                                    struct hd_arena *arena, struct hd_job_file **ret_files)
{
    *ret_files = hd_arena_array(arena, count ? count : 1, sizeof **ret_files);
    if (!*ret_files)
        return hd_err(HD_NO_MEMORY, "no memory for %zu data files", count);
    for (size_t i = 0; i < count; i++) {
        (*ret_files)[i].path = hd_arena_strdup(arena, files[i]->path);
        (*ret_files)[i].size_bytes = files[i]->size_bytes;
        (*ret_files)[i].source = files[i]->source;
    }
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for %zu data files", count)
                                  : HD_OK;
}

/* -2: the tokenizer knows; -1: nothing ends a document; else the id that hd_spec_check saw. */
static int64_t end_of_text(const char *text)
{
    return !*text ? -2 : strcmp(text, "none") == 0 ? -1 : strtoll(text, NULL, 10);
}

static enum hd_status resolve_weights(const Heddle__V1__DataSpec *d, struct hd_arena *arena,
                                      struct hd_job *job)
{
    job->weight_count = (int64_t)d->n_train_weights;
    if (!job->weight_count)
        return HD_OK;
    job->weights = hd_arena_array(arena, d->n_train_weights, sizeof *job->weights);
    if (!job->weights)
        return hd_err(HD_NO_MEMORY, "no memory for the weights of a mixture");
    memcpy(job->weights, d->train_weights, d->n_train_weights * sizeof *job->weights);
    return HD_OK;
}

static enum hd_status resolve_data(const Heddle__V1__DataSpec *d, struct hd_arena *arena,
                                   struct hd_job *job)
{
    bool bounded = d->documents == HEDDLE__V1__DOCUMENT_ENDS__DOCUMENT_ENDS_BOUNDED;
    bool sequential = d->order == HEDDLE__V1__DATA_ORDER__DATA_ORDER_SEQUENTIAL;
    enum hd_status st;

    job->val_split = d->val_split;
    job->train_count = (int64_t)d->n_train;
    job->val_count = (int64_t)d->n_val;
    st = set_path(job->tokenizer, "data.tokenizer", d->tokenizer);
    if (!st)
        st = set_word(job->order, "data.order", sequential ? "sequential" : "shuffled");
    if (!st)
        st = set_word(job->documents, "data.documents", bounded ? "bounded" : "joined");
    job->end_of_text = end_of_text(d->end_of_text);
    if (!st)
        st = resolve_weights(d, arena, job);
    if (!st)
        st = resolve_files(d->train, d->n_train, arena, &job->train);
    if (!st)
        st = resolve_files(d->val, d->n_val, arena, &job->val);
    return st;
}

static enum hd_status resolve_train(const Heddle__V1__JobSpec *spec, struct hd_job *job)
{
    const Heddle__V1__TrainSpec *t = spec->train;
    enum hd_status st;

    job->steps = t->steps;
    job->global_batch = t->global_batch;
    job->lr_peak = t->lr->peak;
    job->lr_min = t->lr->min;
    job->lr_warmup_steps = t->lr->warmup_steps;
    job->lr_decay_steps = t->lr->decay_steps;
    job->beta1 = t->beta1;
    job->beta2 = t->beta2;
    job->adam_eps = t->eps;
    job->weight_decay = t->weight_decay;
    job->clip = t->clip;
    job->dropout_embedding = t->dropout->embedding;
    job->dropout_attention = t->dropout->attention;
    job->dropout_residual = t->dropout->residual;
    job->profile_first = t->profile->first_step;
    job->profile_last = t->profile->last_step;
    job->seed = (int64_t)t->seed;
    job->tf32 = t->tf32;
    job->deterministic = t->deterministic;
    job->native_reduction = t->native_reduction;
    /* in the resolved job 0 means never, in the spec it means only before the first step and after
     * the last: a measurement every `steps` steps is just that */
    job->validate_batches = spec->validate->batches;
    job->validate_every = spec->validate->every ? spec->validate->every : t->steps;
    if (!job->validate_batches)
        job->validate_every = 0;
    job->checkpoint_every = spec->checkpoint->every;
    st = set_path(job->init_from, "train.init_from",
                  strcmp(t->init_from, SPEC_INIT_NONE) == 0 ? "" : t->init_from);
    if (!st)
        st = set_path(job->init_identity, "train.init_identity", t->init_identity);
    return st ? st : set_word(job->lr_decay, "train.lr.decay", decay_name(t->lr->decay));
}

/* The plan's sizes must be what the spec's wishes become, were they as definite as the plan. */
static enum hd_status check_sizes(const struct Heddle__V1__JobSpec *spec,
                                  const Heddle__V1__Plan *plan)
{
    int64_t world = (int64_t)plan->pp * plan->dp * plan->cp * plan->tp;
    struct hd_plan_wish wish;
    enum hd_status st;

    if (plan->pp < 1 || plan->dp < 1 || plan->cp < 1 || plan->tp < 1 ||
        world != (int64_t)plan->n_ranks)
        return hd_err(HD_INVALID, "plan: pp %d x dp %d x cp %d x tp %d is not its %zu ranks",
                      plan->pp, plan->dp, plan->cp, plan->tp, plan->n_ranks);
    if (plan->micro_batch < 1 || plan->ep < 1)
        return hd_err(HD_INVALID, "plan: %s %d is not possible",
                      plan->ep < 1 ? "ep" : "micro_batch",
                      plan->ep < 1 ? plan->ep : plan->micro_batch);
    hd_spec_wish(spec, &wish);
    wish.pp = plan->pp;
    wish.dp = plan->dp;
    wish.cp = plan->cp;
    wish.tp = plan->tp;
    wish.ep = plan->ep;
    wish.micro_batch = plan->micro_batch;
    wish.sequence = plan->sequence ? HD_PLAN_ON : HD_PLAN_OFF;
    st = hd_plan_check(&wish, (int32_t)world, (int32_t)world);
    return st ? hd_err_prefix(st, "plan") : HD_OK;
}

/* The word of the resolved job; NULL: none is known. */
static const char *device_name(Heddle__V1__DeviceKind device)
{
    switch (device) {
    case HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CPU:
        return "cpu";
    case HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA:
        return "cuda";
    default:
        return NULL;
    }
}

static enum hd_status resolve_plan(const struct Heddle__V1__JobSpec *spec,
                                   const Heddle__V1__Plan *plan, struct hd_job *job)
{
    bool bf16 = plan->precision == HEDDLE__V1__PRECISION__PRECISION_BF16;
    bool fp32 = plan->precision == HEDDLE__V1__PRECISION__PRECISION_FP32;
    enum hd_status st = check_sizes(spec, plan);

    if (st)
        return st;
    if (!device_name(plan->device) || (!bf16 && !fp32))
        return hd_err(HD_UNSUPPORTED, "plan: device %d with precision %d is not built",
                      plan->device, plan->precision);
    job->pp = plan->pp;
    job->dp = plan->dp;
    job->cp = plan->cp;
    job->tp = plan->tp;
    job->ep = plan->ep;
    job->expert_rows = spec->parallel->expert_rows;
    job->sequence = plan->sequence;
    job->micro_batch = plan->micro_batch;
    st = set_word(job->cp_exchange, "plan.cp_exchange",
                  hd_plan_exchange_name((enum hd_plan_exchange)plan->cp_exchange));
    if (!st)
        st = set_word(job->device, "plan.device", device_name(plan->device));
    return st ? st : set_word(job->precision, "plan.precision", bf16 ? "bf16" : "fp32");
}

static enum hd_status resolve_attempt(const struct hd_spec_attempt *attempt, struct hd_job *job)
{
    const char *base = attempt->base_checkpoint ? attempt->base_checkpoint : "";
    const char *hash = attempt->base_manifest_hash ? attempt->base_manifest_hash : "-";
    enum hd_status st;

    job->job_id = attempt->job_id;
    job->attempt = attempt->number;
    job->threads = attempt->threads;
    st = set_path(job->attempt_dir, "attempt.dir", attempt->dir);
    if (!st)
        st = set_path(job->base_checkpoint, "attempt.base", base);
    return st ? st : set_word(job->base_manifest_hash, "attempt.base_hash", hash);
}

enum hd_status hd_spec_resolve(const struct Heddle__V1__JobSpec *spec,
                               const struct Heddle__V1__Plan *plan,
                               const struct hd_spec_attempt *attempt, struct hd_arena *arena,
                               struct hd_job *ret_job)
{
    enum hd_status st;

    st = hd_spec_check(spec);
    if (st)
        return st;
    *ret_job = (struct hd_job){0};
    st = set_word(ret_job->name, "name", spec->name);
    if (!st)
        st = resolve_model(spec->model, ret_job);
    if (!st)
        st = resolve_data(spec->data, arena, ret_job);
    if (!st)
        st = resolve_train(spec, ret_job);
    if (!st)
        st = resolve_plan(spec, plan, ret_job);
    if (!st)
        st = resolve_attempt(attempt, ret_job);
    return st;
}

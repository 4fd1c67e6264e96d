/* The rules of a job. First each number by itself, through the table; then what keys demand of each
 * other; then what is a sensible wish but not built yet. A story names the key, what is wrong, and
 * what to write instead.
 */
#include <stdio.h>
#include <string.h>

#include "plan/choose.h"
#include "spec_internal.h"

enum { HEAD_WIDTH_MULTIPLE = 8, HEAD_WIDTH_MAX = 256 };

static enum hd_status unsupported(const char *path, const char *what, const char *instead)
{
    return hd_err(HD_UNSUPPORTED, "%s: %s is not supported yet; %s", path, what, instead);
}

/* ---- each value by itself ---- */

static enum hd_status check_number(const char *path, const struct spec_key *key,
                                   const ProtobufCMessage *message)
{
    const void *member = (const char *)message + key->offset;
    double value;

    switch (key->kind) {
    case SPEC_INT:
        value = (double)*(const int64_t *)member;
        break;
    case SPEC_INT32:
    case SPEC_AUTO:
        value = *(const int32_t *)member;
        break;
    case SPEC_SEED:
        value = *(const uint64_t *)member > INT64_MAX ? 0x1p64 : (double)*(const uint64_t *)member;
        break;
    case SPEC_REAL:
    case SPEC_AUTO_REAL:
        value = *(const double *)member;
        break;
    default:
        return HD_OK;
    }
    if ((key->kind == SPEC_AUTO || key->kind == SPEC_AUTO_REAL) && value == 0)
        return HD_OK;
    if (spec_number_in_range(key, value))
        return HD_OK;
    return value == 0 ? spec_err_missing(path, key) : spec_err_range(path, key, value);
}

static enum hd_status check_value(const char *path, const struct spec_key *key,
                                  const ProtobufCMessage *message)
{
    const void *member = (const char *)message + key->offset;
    const Heddle__V1__ParallelSpec *parallel = (const Heddle__V1__ParallelSpec *)message;

    if ((key->kind == SPEC_WORD || key->kind == SPEC_SWITCH) &&
        !spec_word_name(key, *(const int *)member))
        return hd_err(HD_INVALID, "%s: %d is not a value that this build knows", path,
                      *(const int *)member);
    if (key->kind == SPEC_ZERO && parallel->_zero_case == HEDDLE__V1__PARALLEL_SPEC___ZERO_ZERO &&
        !spec_number_in_range(key, parallel->zero))
        return spec_err_range(path, key, parallel->zero);
    if (key->kind == SPEC_TEXT || key->kind == SPEC_PATH || key->kind == SPEC_CHOICE)
        if (strpbrk(*(char *const *)member, "\n\r"))
            return hd_err(HD_INVALID, "%s: holds a line break; remove it", path);
    return check_number(path, key, message);
}

static enum hd_status check_section(const struct spec_section *section,
                                    const ProtobufCMessage *message)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < section->key_count && !st; i++) {
        const struct spec_key *key = &section->keys[i];
        char path[SPEC_PATH_TEXT_MAX];

        (void)snprintf(path, sizeof path, "%s%s%s", section->path, *section->path ? "." : "",
                       key->name);
        if (key->kind == SPEC_SECTION)
            st =
                check_section(key->section, *spec_member_message((ProtobufCMessage *)message, key));
        else
            st = check_value(path, key, message);
    }
    return st;
}

static bool is_complete(const ProtobufCMessage *message, const struct spec_section *section)
{
    for (size_t i = 0; i < section->key_count; i++) {
        const struct spec_key *key = &section->keys[i];
        const ProtobufCMessage *member;

        if (key->kind != SPEC_SECTION)
            continue;
        member = *spec_member_message((ProtobufCMessage *)message, key);
        if (!member || !is_complete(member, key->section))
            return false;
    }
    return true;
}

/* ---- name and model ---- */

static enum hd_status check_name(const Heddle__V1__JobSpec *spec)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    char quoted[SPEC_QUOTE_MAX];

    if (!*spec->name)
        return hd_err(HD_INVALID, "name: is missing; give the job a name, such as tiny-llama");
    if (strlen(spec->name) >= HD_JOB_WORD_MAX || spec->name[strspn(spec->name, letters)])
        return hd_err(HD_INVALID,
                      "name: %s is not possible; use 1 to %d letters, digits, '.', '_' and '-'",
                      spec_quote(spec->name, quoted), HD_JOB_WORD_MAX - 1);
    return HD_OK;
}

static enum hd_status check_family(const Heddle__V1__ModelSpec *m)
{
    static const char *const families[] = {"llama", "gpt2", "mistral", "qwen2", "qwen3", "mixtral"};
    enum { COUNT = sizeof families / sizeof families[0] };
    static const char use[] = "use llama, gpt2, mistral, qwen2, qwen3 or mixtral";
    char quoted[SPEC_QUOTE_MAX];
    const char *nearest;

    if (*m->from_dir && m->from_dir[0] != '/')
        return hd_err(HD_INVALID, "model.from: is not an absolute path");
    if (!*m->family)
        return hd_err(HD_INVALID, "model.family: is missing; %s", use);
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(m->family, families[i]) == 0)
            return HD_OK;
    nearest = hd_spec_nearest(m->family, families, COUNT);
    return hd_err(HD_INVALID, "model.family: %s is not a family; %s%s%s",
                  spec_quote(m->family, quoted), nearest ? "did you mean " : use,
                  nearest ? nearest : "", nearest ? "?" : "");
}

/* A width of its own, or hidden / heads. */
static enum hd_status check_head_width(const Heddle__V1__ModelSpec *m)
{
    char list[HD_TEXT_LIST_MAX];

    if (m->hidden % m->heads && m->head_width == m->hidden / m->heads) {
        spec_list_divisors(m->hidden, 4096, m->heads, list);
        return hd_err(HD_INVALID,
                      "model.heads: %lld does not divide model.hidden = %lld; use %s, or give "
                      "model.head_width",
                      (long long)m->heads, (long long)m->hidden, list);
    }
    if (m->head_width % HEAD_WIDTH_MULTIPLE == 0 && m->head_width <= HEAD_WIDTH_MAX)
        return HD_OK;
    if (m->head_width != m->hidden / m->heads)
        return hd_err(HD_INVALID,
                      "model.head_width: %lld is not possible; use a multiple of %d up to %d",
                      (long long)m->head_width, HEAD_WIDTH_MULTIPLE, HEAD_WIDTH_MAX);
    return hd_err(HD_INVALID,
                  "model.heads: %lld heads of model.hidden = %lld are %lld wide; choose both so "
                  "that hidden / heads is a multiple of %d (rotary pairs and vector registers) "
                  "and at most %d (the attention kernel's tile), such as 64",
                  (long long)m->heads, (long long)m->hidden, (long long)m->head_width,
                  HEAD_WIDTH_MULTIPLE, HEAD_WIDTH_MAX);
}

/* What the families cannot have together. */
static enum hd_status check_features(const Heddle__V1__ModelSpec *m)
{
    const Heddle__V1__RopeScaling *s = m->rope_scaling;
    const bool none = s->type == HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_NONE;
    const bool linear = s->type == HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_LINEAR;
    const bool gpt2 = strcmp(m->family, "gpt2") == 0;

    if (m->positions ==
        (gpt2 ? HEDDLE__V1__POSITIONS__POSITIONS_ROPE : HEDDLE__V1__POSITIONS__POSITIONS_LEARNED))
        return hd_err(HD_INVALID, "model.positions: %s has no %s positions; use %s or alibi",
                      m->family, gpt2 ? "rotary" : "learned", gpt2 ? "learned" : "rope");
    if (m->positions == HEDDLE__V1__POSITIONS__POSITIONS_ALIBI && !none)
        return hd_err(HD_INVALID, "model.rope_scaling: alibi rotates nothing; remove it, or "
                                  "model.positions: alibi");
    if (gpt2 && !none)
        return hd_err(HD_INVALID, "model.rope_scaling: gpt2 learns its positions and rotates "
                                  "nothing; remove it");
    if (gpt2 && m->qk_norm)
        return hd_err(HD_INVALID, "model.qk_norm: gpt2 has no norms in attention; remove it");
    if (m->window_from && (!m->window || m->window_from >= m->layers))
        return hd_err(
            HD_INVALID,
            "model.window_from: %lld names no block with a window; give model.window, and "
            "a block below model.layers = %lld",
            (long long)m->window_from, (long long)m->layers);
    if (!none && !linear && !s->original_context)
        return hd_err(HD_INVALID, "model.rope_scaling.original_context: is missing; give the "
                                  "context that the frequencies were made for");
    if (s->type == HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_YARN && m->rope_theta <= 1)
        return hd_err(HD_INVALID, "model.rope_theta: yarn finds frequencies by its logarithm; give "
                                  "more than 1, the usual is 10000");
    if (s->low_freq_factor >= s->high_freq_factor)
        return hd_err(HD_INVALID,
                      "model.rope_scaling.low_freq_factor: %g is not below high_freq_factor = %g",
                      s->low_freq_factor, s->high_freq_factor);
    if (s->beta_slow >= s->beta_fast)
        return hd_err(HD_INVALID, "model.rope_scaling.beta_slow: %g is not below beta_fast = %g",
                      s->beta_slow, s->beta_fast);
    return HD_OK;
}

/* What only a model with experts has, in one without. The first such key of the file format. */
static enum hd_status check_dense(const Heddle__V1__ModelSpec *m, double expert_rows)
{
    const struct {
        const char *key;
        bool given;
    } keys[] = {{"model.experts", m->experts != 0},
                {"model.experts_per_token", m->experts_per_token != 0},
                {"model.shared_ffn_hidden", m->shared_ffn_hidden != 0},
                {"model.router.renormalize", m->router->renormalize},
                {"model.router.noisy", m->router->noisy},
                {"model.router.balance", m->router->balance != 0},
                {"model.router.z", m->router->z != 0},
                {"model.router.capacity", m->router->capacity != 0},
                {"parallel.expert_rows", expert_rows != 0}};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].given)
            return hd_err(HD_INVALID,
                          "%s: %s has no experts; remove the line, or use model.family: mixtral",
                          keys[i].key, m->family);
    return HD_OK;
}

static enum hd_status check_experts(const Heddle__V1__JobSpec *spec)
{
    const Heddle__V1__ModelSpec *m = spec->model;

    if (strcmp(m->family, "mixtral") != 0)
        return check_dense(m, spec->parallel->expert_rows);
    if (m->experts_per_token > m->experts)
        return hd_err(HD_INVALID,
                      "model.experts_per_token: %lld is more than model.experts = %lld; use a "
                      "whole number from 1 to %lld",
                      (long long)m->experts_per_token, (long long)m->experts,
                      (long long)(m->experts < 64 ? m->experts : 64));
    if (m->mlp_bias)
        return hd_err(HD_INVALID, "model.mlp_bias: experts have none; remove the line");
    return HD_OK;
}

static enum hd_status check_heads(const Heddle__V1__ModelSpec *m)
{
    char list[HD_TEXT_LIST_MAX];
    enum hd_status st = check_head_width(m);

    if (st)
        return st;
    if (m->heads % m->kv_heads) {
        spec_list_divisors(m->heads, m->heads, m->kv_heads, list);
        return hd_err(HD_INVALID, "model.kv_heads: %lld does not divide model.heads = %lld; use %s",
                      (long long)m->kv_heads, (long long)m->heads, list);
    }
    if (strcmp(m->family, "gpt2") == 0 && m->kv_heads != m->heads)
        return hd_err(HD_INVALID,
                      "model.kv_heads: gpt2 has one for each head; remove the line or write %lld",
                      (long long)m->heads);
    return HD_OK;
}

/* ---- data ---- */

static enum hd_status check_tokenizer(const Heddle__V1__DataSpec *d)
{
    char quoted[SPEC_QUOTE_MAX];

    if (strcmp(d->tokenizer, "none") == 0 && spec_has_text(d))
        return hd_err(HD_INVALID, "data.tokenizer: none cannot read text; write bytes, or give "
                                  "token files (.npy, .bin) alone");
    if (strcmp(d->tokenizer, "bytes") == 0 || strcmp(d->tokenizer, "none") == 0)
        return HD_OK;
    if (d->tokenizer[0] == '/')
        return HD_OK;
    return hd_err(HD_INVALID, "data.tokenizer: %s is neither bytes, none nor a tokenizer.json",
                  spec_quote(d->tokenizer, quoted));
}

/* Every source has a weight and files, which stand together. */
static enum hd_status check_sources(const Heddle__V1__DataSpec *d)
{
    const struct spec_key *key = spec_find_key(spec_find_key(&spec_root, "data")->section, "train");
    const size_t sources = d->n_train_weights ? d->n_train_weights : 1;
    size_t source = 0;
    char path[64];

    for (size_t i = 0; i < d->n_train; i++) {
        const int64_t next = d->train[i]->source;

        if (next != (int64_t)source && (next != (int64_t)source + 1 || i == 0))
            return hd_err(HD_INVALID, "data.train: file %zu is of source %lld after one of %zu", i,
                          (long long)next, source);
        source = (size_t)next;
    }
    if (source + 1 != sources || sources > HD_JOB_SOURCES_MAX)
        return hd_err(HD_INVALID,
                      "data.train: %zu weights for the files of %zu sources; at most %d",
                      d->n_train_weights, source + 1, HD_JOB_SOURCES_MAX);
    for (size_t k = 0; k < d->n_train_weights; k++)
        if (!spec_number_in_range(key, d->train_weights[k])) {
            (void)snprintf(path, sizeof path, "data.train[%zu].weight", k);
            return spec_err_range(path, key, d->train_weights[k]);
        }
    if (d->n_train_weights && d->val_split > 0)
        return hd_err(HD_INVALID, "data.split: cannot cut a mixture; give data.val instead");
    return HD_OK;
}

/* "" (the tokenizer's), none, or an id that the model has. */
static enum hd_status check_end_of_text(const Heddle__V1__JobSpec *spec)
{
    const char *text = spec->data->end_of_text;
    char quoted[SPEC_QUOTE_MAX];
    int64_t id;

    if (!*text || strcmp(text, "none") == 0 ||
        !hd_text_to_int64(text, 0, spec->model->vocab - 1, &id))
        return HD_OK;
    return hd_err(HD_INVALID,
                  "data.end_of_text: %s is no token; write an id from 0 to %lld, none, or auto",
                  spec_quote(text, quoted), (long long)spec->model->vocab - 1);
}

static enum hd_status check_data(const Heddle__V1__JobSpec *spec)
{
    const Heddle__V1__DataSpec *d = spec->data;
    enum hd_status st;

    if (!d->n_train)
        return hd_err(HD_INVALID,
                      "data.train: is missing; give a list of text files, such as [corpus/*.txt]");
    if (d->n_val && d->val_split > 0)
        return hd_err(HD_INVALID,
                      "data.split: cannot stand beside data.val; remove one of the two");
    st = check_sources(d);
    if (!st)
        st = check_end_of_text(spec);
    if (st)
        return st;
    if (spec->model->vocab != 256 && spec_has_text(d) && strcmp(d->tokenizer, "bytes") == 0)
        return hd_err(HD_INVALID,
                      "model.vocab: %lld does not fit data.tokenizer = bytes, which has 256 "
                      "tokens; write 256 or remove the line",
                      (long long)spec->model->vocab);
    if (spec->validate->batches && !d->n_val && d->val_split == 0)
        return hd_err(HD_INVALID, "validate.batches: there is nothing to validate on; give "
                                  "data.val or data.split, or write 0");
    return HD_OK;
}

/* ---- recipe ---- */

static enum hd_status check_lr(const Heddle__V1__TrainSpec *t)
{
    const Heddle__V1__LearningRate *lr = t->lr;

    if (lr->min > lr->peak)
        return hd_err(HD_INVALID, "train.lr.min: %.6g is above train.lr.peak = %.6g; lower it",
                      lr->min, lr->peak);
    if (lr->warmup_steps > t->steps)
        return hd_err(HD_INVALID,
                      "train.lr.warmup: %lld steps are more than train.steps = %lld; lower it",
                      (long long)lr->warmup_steps, (long long)t->steps);
    if (lr->decay == HEDDLE__V1__DECAY_KIND__DECAY_KIND_CONSTANT && lr->decay_steps)
        return hd_err(HD_INVALID,
                      "train.lr.decay_steps: a constant rate does not fall; remove the line");
    if (lr->decay_steps > t->steps - lr->warmup_steps)
        return hd_err(HD_INVALID,
                      "train.lr.decay_steps: %lld steps do not fit after the warm-up; at most %lld "
                      "are left of train.steps",
                      (long long)lr->decay_steps, (long long)(t->steps - lr->warmup_steps));
    return HD_OK;
}

/* Absent is 0 and 0; steps beyond the end are simply never reached. */
static enum hd_status check_profile(const Heddle__V1__ProfileSpec *p)
{
    if (!p->first_step && !p->last_step)
        return HD_OK;
    if (p->first_step < 1 || p->last_step < p->first_step)
        return hd_err(HD_INVALID,
                      "train.profile.steps: from %lld to %lld is no interval of steps; write the "
                      "first and the last, such as [10, 12]",
                      (long long)p->first_step, (long long)p->last_step);
    if (p->last_step - p->first_step >= HD_JOB_PROFILE_STEPS_MAX)
        return hd_err(HD_INVALID,
                      "train.profile.steps: from %lld to %lld is more than %d steps; a few tell "
                      "the same",
                      (long long)p->first_step, (long long)p->last_step, HD_JOB_PROFILE_STEPS_MAX);
    return HD_OK;
}

static enum hd_status check_train(const Heddle__V1__TrainSpec *t)
{
    enum hd_status st = check_profile(t->profile);

    if (st)
        return st;
    if (*t->init_from && t->init_from[0] != '/' && strcmp(t->init_from, SPEC_INIT_NONE) != 0)
        return hd_err(HD_INVALID, "train.init_from: is not an absolute path");
    if (t->precision == HEDDLE__V1__PRECISION__PRECISION_FP16)
        return unsupported("train.precision", "fp16", "use auto, fp32 or bf16");
    if (t->precision == HEDDLE__V1__PRECISION__PRECISION_FP8)
        return unsupported("train.precision", "fp8", "use auto, fp32 or bf16");
    return check_lr(t);
}

/* ---- layout ---- */

void hd_spec_wish(const struct Heddle__V1__JobSpec *spec, struct hd_plan_wish *ret_wish)
{
    const Heddle__V1__ModelSpec *m = spec->model;
    const Heddle__V1__ParallelSpec *p = spec->parallel;
    const bool zero = p->_zero_case == HEDDLE__V1__PARALLEL_SPEC___ZERO_ZERO;

    *ret_wish = (struct hd_plan_wish){.global_batch = spec->train->global_batch,
                                      .heads = m->heads,
                                      .kv_heads = m->kv_heads,
                                      .ffn_hidden = m->ffn_hidden,
                                      .context = m->context,
                                      .experts = m->experts,
                                      .shared_ffn_hidden = m->shared_ffn_hidden,
                                      .vocab = m->vocab,
                                      .tp = p->tp,
                                      .pp = p->pp,
                                      .dp = p->dp,
                                      .cp = p->cp,
                                      .ep = p->ep,
                                      .zero = zero ? p->zero : -1,
                                      .micro_batch = p->micro_batch,
                                      .sequence = (enum hd_plan_switch)p->sequence,
                                      .cp_exchange = (enum hd_plan_exchange)p->cp_exchange};
}

static enum hd_status check_policies(const Heddle__V1__ParallelSpec *p)
{
    char quoted[SPEC_QUOTE_MAX];

    if (*p->schedule && strcmp(p->schedule, "none") != 0)
        return unsupported("parallel.schedule", spec_quote(p->schedule, quoted),
                           "use auto or none");
    if (*p->recompute && strcmp(p->recompute, "none") != 0)
        return unsupported("parallel.recompute", spec_quote(p->recompute, quoted),
                           "use auto or none");
    return HD_OK;
}

int32_t hd_spec_most_devices(const struct Heddle__V1__JobSpec *spec)
{
    struct hd_plan_wish wish;

    hd_spec_wish(spec, &wish);
    return hd_plan_most(&wish, spec->resources->devices_min, spec->resources->devices_max);
}

/* Checkpoints lie below the job's directory, where the attempt's number fences them. */
static enum hd_status check_checkpoint(const Heddle__V1__CheckpointSpec *c)
{
    if (*c->dir)
        return unsupported("checkpoint.dir", "another folder",
                           "remove the line; heddle-controller --jobs-dir decides for all jobs");
    return HD_OK;
}

static enum hd_status check_resources(const Heddle__V1__JobSpec *spec)
{
    const Heddle__V1__ResourceSpec *r = spec->resources;
    struct hd_plan_wish wish;

    if (r->devices_min < 1 || r->devices_min > 65536 || r->devices_max > 65536)
        return hd_err(HD_INVALID,
                      "resources.devices: %d is not possible; give a whole number "
                      "from 1 to 65536",
                      r->devices_min < 1 ? r->devices_min : r->devices_max);
    if (r->devices_max < r->devices_min)
        return hd_err(HD_INVALID, "resources.devices: min = %d is above max = %d; swap them",
                      r->devices_min, r->devices_max);
    hd_spec_wish(spec, &wish);
    return hd_plan_check(&wish, r->devices_min, r->devices_max);
}

enum hd_status hd_spec_check(const struct Heddle__V1__JobSpec *spec)
{
    enum hd_status st;

    if (!is_complete(&spec->base, &spec_root))
        return hd_err(HD_INVALID, "spec: a part of the job is missing; send a complete JobSpec");
    st = check_name(spec);
    if (!st)
        st = check_family(spec->model);
    if (!st) /* before numbers: the tokenizer decides the vocabulary */
        st = check_tokenizer(spec->data);
    if (!st)
        st = check_section(&spec_root, &spec->base);
    if (!st)
        st = check_heads(spec->model);
    if (!st)
        st = check_features(spec->model);
    if (!st)
        st = check_experts(spec);
    if (!st)
        st = check_data(spec);
    if (!st)
        st = check_train(spec->train);
    if (!st)
        st = check_policies(spec->parallel);
    if (!st)
        st = check_resources(spec);
    if (!st)
        st = check_checkpoint(spec->checkpoint);
    return st;
}

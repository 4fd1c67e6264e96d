/* check: the rules of a job: first each value alone, by the table of keys; then rules between keys,
 * and features that are not supported yet. An error message has the key, what is wrong, and what to
 * write instead. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "chat/conversation.h"
#include "chat/date.h"
#include "data/bad_rows.h"
#include "data/fingerprint.h"
#include "hub/s3.h"
#include "job/family.h"
#include "job/pair_factors.h"
#include "plan/choose.h"
#include "records/source.h"
#include "spec_internal.h"

static enum hd_status unsupported(const char *path, const char *what, const char *instead)
{
    return hd_err(HD_UNSUPPORTED, "%s: %s is not supported yet; %s", path, what, instead);
}

/* ---- each value by itself ---- */

static enum hd_status check_number(const struct hd_key *key, double value)
{
    if (hd_job_number_is_possible(key, value))
        return HD_OK;
    return value == 0 ? spec_err_missing(key->path, key) : spec_err_range(key->path, key, value);
}

static enum hd_status check_key(const struct hd_key *key, const struct hd_job *job)
{
    const void *member = hd_job_const_member(key, job);
    char quoted[SPEC_QUOTE_MAX];

    switch (key->kind) {
    case HD_KEY_INT:
        return check_number(key, (double)*(const int64_t *)member);
    case HD_KEY_REAL:
        return check_number(key, *(const double *)member);
    case HD_KEY_WORD:
        return *(const unsigned *)member ? HD_OK : spec_err_missing(key->path, key);
    case HD_KEY_NAME:
    case HD_KEY_PATH:
        if (spec_has_control(hd_job_text(key, job)))
            return hd_err(HD_INVALID,
                          "%s: %s holds a control character (a line break, an escape ...); remove "
                          "it",
                          key->path, spec_quote(hd_job_text(key, job), quoted));
        return HD_OK;
    default:
        return HD_OK;
    }
}

/* The keys whose defaults are no possible values, found once per process. */
static struct hd_key_set needed;
static void find_needed(void)
{
    struct hd_job defaults;

    hd_job_set_defaults(&defaults);
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (check_key(&hd_job_keys[i], &defaults))
            hd_key_set_add(&needed, &hd_job_keys[i]);
}

/* Checks each value by the limits of its key, except head_width: check_head_width checks it, since
 * its message depends on whether the job file gives it. */
static enum hd_status check_keys(const struct hd_job *job, struct spec_mistakes *mistakes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct hd_key_set keys;
    enum hd_status st = HD_OK;

    (void)pthread_once(&once, find_needed);
    keys = needed; /* other keys with their default are right */
    hd_job_add_given(job, &keys);
    for (const struct hd_key *key = NULL; !st && (key = hd_key_set_next(&keys, key));)
        if (!key->hidden && hd_job_const_member(key, job) != (const void *)&job->head_width)
            st = spec_pass(mistakes, check_key(key, job));
    return st;
}

enum hd_status spec_check_given(const struct spec_draft *draft, struct spec_mistakes *mistakes)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < hd_job_key_count && !st; i++)
        if (draft->given[i] && !hd_job_keys[i].hidden)
            st = spec_pass(mistakes, check_key(&hd_job_keys[i], draft->job));
    return st;
}

/* ---- name ---- */

static enum hd_status check_name(const struct hd_job *job)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    char quoted[SPEC_QUOTE_MAX];

    if (!*job->name)
        return hd_err(HD_INVALID, "name: is missing; give the job a name, such as tiny-llama");
    if (strlen(job->name) >= HD_JOB_WORD_MAX || job->name[strspn(job->name, letters)])
        return hd_err(HD_INVALID,
                      "name: %s is not possible; use 1 to %d letters, digits, '.', '_' and '-'",
                      spec_quote(job->name, quoted), HD_JOB_WORD_MAX - 1);
    if (job->name[0] == '.' || job->name[0] == '-')
        return hd_err(HD_INVALID,
                      "name: %s is not possible: the name of a folder or an option could be meant; "
                      "begin with a letter, a digit or '_'",
                      spec_quote(job->name, quoted));
    return HD_OK;
}

/* ---- data ---- */

static enum hd_status check_tokenizer(const struct hd_job *job)
{
    char quoted[SPEC_QUOTE_MAX];

    if (strcmp(job->tokenizer, "none") == 0 && hd_spec_has_text(job))
        return hd_err(HD_INVALID, "data.tokenizer: none cannot read text; write bytes, or give "
                                  "token files (.npy, .bin) alone");
    if (strcmp(job->tokenizer, "bytes") == 0 || strcmp(job->tokenizer, "none") == 0)
        return HD_OK;
    if (job->tokenizer[0] == '/')
        return HD_OK;
    return hd_err(HD_INVALID,
                  "data.tokenizer: %s is neither bytes, none nor a tokenizer.json "
                  "or tokenizer.model",
                  spec_quote(job->tokenizer, quoted));
}

/* Checks that every source of a mixture has a weight and files, and that the files of one source
 * are adjacent. */
static enum hd_status check_sources(const struct hd_job *job)
{
    const int64_t sources = job->weight_count ? job->weight_count : 1;
    const int64_t each = hd_job_weights_each(job);
    int64_t source = 0;
    char path[64];

    for (int64_t i = 0; i < job->train_count; i++) {
        const int64_t next = job->train[i].source;

        if (next != source && (next != source + 1 || i == 0))
            return hd_err(HD_INVALID, "data.train: file %lld is of source %lld after one of %lld",
                          (long long)i, (long long)next, (long long)source);
        source = next;
    }
    if (source + 1 != sources || sources > HD_JOB_SOURCES_MAX)
        return hd_err(HD_INVALID,
                      "data.train: %lld weights for the files of %lld sources; at most %d",
                      (long long)job->weight_count, (long long)source + 1, HD_JOB_SOURCES_MAX);
    for (int64_t i = 0; i < job->weight_count * each; i++)
        if (!(each > 1 && job->weights[i] == 0) &&
            !(job->weights[i] >= SPEC_WEIGHT_MIN && job->weights[i] <= SPEC_WEIGHT_MAX)) {
            static const struct hd_key weight = {
                .kind = HD_KEY_REAL, .min = SPEC_WEIGHT_MIN, .max = SPEC_WEIGHT_MAX};

            (void)snprintf(path, sizeof path, "data.train[%lld].weight", (long long)(i / each));
            return spec_err_range(path, &weight, job->weights[i]);
        }
    if (job->weight_count && job->val_split > 0)
        return hd_err(HD_INVALID, "data.val_split: cannot split a mixture; give data.val instead");
    return spec_check_data_stages(job);
}

/* Checks the names of validation sets, and that each has files. */
static enum hd_status check_val_sets(const struct hd_job *job)
{
    const int64_t sets = hd_job_val_set_count(job);
    char name[HD_JOB_VAL_NAME_MAX], quoted[SPEC_QUOTE_MAX];
    int64_t source = -1;

    if (sets > HD_JOB_VAL_SETS_MAX)
        return hd_err(HD_INVALID, "data.val: more than %d validation sets; join some",
                      HD_JOB_VAL_SETS_MAX);
    for (int64_t i = 0; *job->val_sets && i < sets; i++) {
        hd_job_val_set_name(job, i, name);
        if (!hd_job_val_name_is_possible(name))
            return hd_err(HD_INVALID, "data.val: %s is no name of a set; use " SPEC_SET_NAME_RULE,
                          spec_quote(name, quoted));
    }
    for (int64_t i = 0; i < job->val_count; i++) {
        if (job->val[i].source != source && job->val[i].source != source + 1)
            return hd_err(HD_INVALID, "data.val: file %lld is of set %lld after one of %lld",
                          (long long)i, (long long)job->val[i].source, (long long)source);
        source = job->val[i].source;
    }
    if (job->val_count && source + 1 != sets)
        return hd_err(HD_INVALID, "data.val: %lld sets have names, and %lld have files",
                      (long long)sets, (long long)source + 1);
    return HD_OK;
}

/* Checks that end_of_text is auto (-2), none (-1), or an id of the vocabulary. */
static enum hd_status check_end_of_text(const struct hd_job *job)
{
    if (job->end_of_text < job->vocab)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "data.end_of_text: %lld is no token; write an id from 0 to %lld, none, or auto",
                  (long long)job->end_of_text, (long long)job->vocab - 1);
}

static enum hd_status check_data(const struct hd_job *job)
{
    struct hd_bad_rule rule;
    enum hd_status st;

    if (!job->train_count)
        return hd_err(
            HD_INVALID,
            "data.train: is missing; give a list of text files, such as [corpus/*.txt], or "
            "data.stages");
    if (job->val_count && job->val_split > 0)
        return hd_err(HD_INVALID,
                      "data.val_split: cannot be used with data.val; remove one of the two");
    st = hd_records_check_columns(job->columns);
    if (st)
        return hd_err_prefix(st, "data.columns");
    st = hd_chat_check_roles(job->roles);
    if (st)
        return hd_err_prefix(st, "data.roles");
    st = hd_bad_rule_read(job->bad_rows, &rule);
    if (st)
        return hd_err_prefix(st, "data.bad_rows");
    st = check_sources(job);
    if (!st)
        st = check_val_sets(job);
    if (!st)
        st = check_end_of_text(job);
    if (st)
        return st;
    if (job->vocab != 256 && hd_spec_has_text(job) && strcmp(job->tokenizer, "bytes") == 0)
        return hd_err(HD_INVALID,
                      "model.vocab: %lld does not fit data.tokenizer = bytes, which has 256 "
                      "tokens; write 256 or remove the line",
                      (long long)job->vocab);
    if (job->validate_batches && !job->val_count && job->val_split == 0)
        return hd_err(HD_INVALID,
                      "validate.batches: there is nothing to validate on; give %s, or write 0",
                      hd_job_has_policy(job) ? "validate.tasks or validate.choices"
                                             : "data.val or data.val_split");
    st = spec_check_choices(job);
    return st ? st : spec_check_samples(job);
}

/* ---- training ---- */

static enum hd_status check_lr(const struct hd_job *job)
{
    const int64_t steps = job->steps - job->lr_after;

    if (job->lr_after && !*job->continue_from)
        return hd_err(HD_INVALID,
                      "train.lr.after: the schedule begins later only in a run that goes on from "
                      "another; remove it, or give train.continue_from");
    if (steps < 1)
        return hd_err(HD_INVALID,
                      "train.lr.after: %lld leaves no step of train.steps = %lld to the schedule; "
                      "lower it",
                      (long long)job->lr_after, (long long)job->steps);
    if (job->lr_min > job->lr_peak)
        return hd_err(HD_INVALID, "train.lr.min: %.6g is above train.lr.peak = %.6g; lower it",
                      job->lr_min, job->lr_peak);
    if (job->lr_warmup_steps > steps)
        return hd_err(HD_INVALID,
                      "train.lr.warmup: %lld steps are more than train.steps%s = %lld; lower it",
                      (long long)job->lr_warmup_steps, job->lr_after ? " - train.lr.after" : "",
                      (long long)steps);
    if (!spec_rate_has_decay_steps(job->lr_decay) && job->lr_decay_steps)
        return hd_err(HD_INVALID, "train.lr.decay_steps: %s; remove the line",
                      spec_rate_without_end(job->lr_decay));
    if (job->lr_decay != HD_JOB_LR_DECAY_WSD && job->lr_decay_shape &&
        job->lr_decay_shape != HD_JOB_LR_DECAY_SHAPE_LINEAR)
        return hd_err(HD_INVALID,
                      "train.lr.decay_shape: only the decay of wsd has a shape, and train.lr.decay "
                      "is %s; remove the line, or set train.lr.decay: wsd",
                      hd_job_lr_decay_words[job->lr_decay]);
    if (job->lr_decay_steps > steps - job->lr_warmup_steps)
        return hd_err(HD_INVALID,
                      "train.lr.decay_steps: %lld steps do not fit after the warm-up; at most %lld "
                      "are left of train.steps",
                      (long long)job->lr_decay_steps, (long long)(steps - job->lr_warmup_steps));
    return HD_OK;
}

/* Checks the steps of train.profile; first and last 0: not given. Steps after the job's last step
 * are allowed and have no effect. */
static enum hd_status check_profile(const struct hd_job *job)
{
    if (!job->profile_first && !job->profile_last)
        return HD_OK;
    if (job->profile_first < 1 || job->profile_last < job->profile_first)
        return hd_err(HD_INVALID,
                      "train.profile.steps: from %lld to %lld is no interval of steps; write the "
                      "first and the last, such as [10, 12]",
                      (long long)job->profile_first, (long long)job->profile_last);
    if (job->profile_last - job->profile_first >= HD_JOB_PROFILE_STEPS_MAX)
        return hd_err(
            HD_INVALID, "train.profile.steps: from %lld to %lld is more than %d steps; give fewer",
            (long long)job->profile_first, (long long)job->profile_last, HD_JOB_PROFILE_STEPS_MAX);
    return HD_OK;
}

static enum hd_status check_power(const char *path, int64_t value)
{
    int64_t below = 1;

    while (below * 2 <= value)
        below *= 2;
    if (below == value)
        return HD_OK;
    return hd_err(HD_INVALID, "%s: %lld is no power of two; use %lld or %lld", path,
                  (long long)value, (long long)below, (long long)below * 2);
}

static enum hd_status check_loss_scale(const struct hd_job *job)
{
    enum hd_status st = check_power("train.loss_scale.initial", job->loss_scale_initial);

    for (const struct hd_key *key = NULL; !st && job->precision != HD_JOB_PRECISION_FP16 &&
                                          (key = hd_job_next_key("train.loss_scale.", key));)
        if (!hd_job_is_default(key, job))
            return hd_err(HD_INVALID,
                          "%s: only fp16 has a loss scale, and train.precision is %s; remove it, "
                          "or set train.precision: fp16",
                          key->path, hd_job_precision_words[job->precision]);
    if (!st)
        st = check_power("train.loss_scale.floor", job->loss_scale_floor);
    if (!st && job->loss_scale_floor > job->loss_scale_initial)
        st = hd_err(
            HD_INVALID,
            "train.loss_scale.floor: %lld is above train.loss_scale.initial = %lld; lower it",
            (long long)job->loss_scale_floor, (long long)job->loss_scale_initial);
    return st;
}

static enum hd_status check_reduce(const struct hd_job *job)
{
    if (job->reduce == HD_JOB_REDUCE_BF16 && job->native_reduction)
        return hd_err(
            HD_INVALID,
            "train.grad_reduce_dtype: bf16 is for sums in rank order; with train.native_reduction "
            "NCCL would add in bf16; set one of the two");
    return HD_OK;
}

static enum hd_status check_fp8(const struct hd_job *job)
{
    const char *path = job->fp8_history != 16                           ? "train.fp8.history"
                       : job->fp8_scaling != HD_JOB_FP8_SCALING_DELAYED ? "train.fp8.scaling"
                                                                        : NULL;

    if (path && job->precision != HD_JOB_PRECISION_FP8)
        return hd_err(
            HD_INVALID,
            "%s: only fp8 has scales of tensors, and train.precision is %s; remove it, or "
            "set train.precision: fp8",
            path, hd_job_precision_words[job->precision]);
    if (job->fp8_history != 16 && job->fp8_scaling == HD_JOB_FP8_SCALING_CURRENT)
        return hd_err(HD_INVALID, "train.fp8.history: with train.fp8.scaling: current there is no "
                                  "history; remove one of the two");
    return HD_OK;
}

static bool has_base(const struct hd_job *job)
{
    return *job->init_from && strcmp(job->init_from, SPEC_INIT_NONE) != 0;
}

/* Returns the length in bytes of the first type name in the key's list of adapter types. */
static int first_type(const struct hd_key *key)
{
    return (int)strcspn(key->adapters ? key->adapters : "lora", " ");
}

/* Makes the error message for a key that adapters of this type do not have; it names the keys of
 * this type, and the type that has this key. */
static enum hd_status no_such_key(const struct hd_key *key, enum hd_job_adapter type)
{
    struct hd_text has = {0};
    enum hd_status st;

    for (size_t i = 0; i < hd_job_key_count; i++)
        if (hd_job_keys[i].adapters && hd_job_key_is_of_adapter(&hd_job_keys[i], type))
            hd_text_add(&has, "%s%s", has.len_bytes ? ", " : "", hd_job_keys[i].path);
    st = hd_err(HD_INVALID,
                "%s: an adapter of type %s has no such key, but %s; remove it, or set "
                "train.adapter.type: %.*s",
                key->path, hd_job_adapter_words[type], has.data ? has.data : "none of its own",
                first_type(key), key->adapters);
    hd_text_free(&has);
    return st;
}

/* Refuses keys of an adapter that is absent or of another type: they would have no effect. */
static enum hd_status check_adapter(const struct hd_job *job)
{
    const bool none = job->adapter == HD_JOB_ADAPTER_NONE;

    if (*job->adapter_from && !has_base(job))
        return hd_err(HD_INVALID,
                      "train.adapter.from: an adapter belongs to a base; add model.from, "
                      "the model that it was trained beside");

    if (job->adapter_init == HD_JOB_ADAPTER_INIT_PISSA && !has_base(job))
        return hd_err(HD_INVALID,
                      "train.adapter.init: pissa takes the singular directions of trained "
                      "weights; add model.from, or remove the line");
    if (job->adapter_init == HD_JOB_ADAPTER_INIT_PISSA && job->adapter_dora)
        return hd_err(HD_INVALID,
                      "train.adapter.dora: not with train.adapter.init: pissa; remove one "
                      "of the two");
    for (const struct hd_key *key = NULL; (key = hd_job_next_key("train.adapter.", key));) {
        if (hd_job_is_default(key, job))
            continue;
        if (none)
            return hd_err(HD_INVALID,
                          "%s: there is no adapter; add train.adapter.type: %.*s, or remove it",
                          key->path, first_type(key), key->adapters ? key->adapters : "lora");
        if (!hd_job_key_is_of_adapter(key, job->adapter))
            return no_such_key(key, job->adapter);
    }
    return HD_OK;
}

/* Refuses keys of new weights in a job that begins with others. */
static enum hd_status check_init(const struct hd_job *job)
{
    if (!has_base(job))
        return HD_OK;
    for (const struct hd_key *key = NULL; (key = hd_job_next_key("model.init.", key));)
        if (!hd_job_is_default(key, job))
            return hd_err(HD_INVALID,
                          "%s: no weight is new, they come from %s; remove it, or set "
                          "train.init_from: none",
                          key->path, job->init_from);
    return HD_OK;
}

/* Refuses train.precision: fp8 with quantized weights, whose products are computed in bf16. */
static enum hd_status check_weights(const struct hd_job *job)
{
    if (job->model_weights == HD_JOB_MODEL_WEIGHTS_PLAIN || job->precision != HD_JOB_PRECISION_FP8)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "train.precision: fp8 multiplies the matrices of blocks in fp8, but with "
                  "model.quantization: %s they are codes, which are multiplied in bf16; use bf16",
                  hd_job_model_weights_words[job->model_weights]);
}

/* Checks what train.continue_from cannot be used with. */
static enum hd_status check_continued(const struct hd_job *job)
{
    if (!*job->continue_from)
        return HD_OK;
    if (job->continue_from[0] != '/')
        return hd_err(HD_INVALID, "train.continue_from: is not an absolute path");
    if (strcmp(job->init_from, job->continue_from) != 0)
        return hd_err(HD_INVALID, "train.init_from: the weights come from train.continue_from; "
                                  "remove one of the two");
    if (*job->adapter_from)
        return hd_err(HD_INVALID, "train.adapter.from: the adapter comes from train.continue_from; "
                                  "remove one of the two");
    if (job->epochs > 0)
        return hd_err(HD_INVALID,
                      "train.epochs: a run that goes on counts its steps from the first of the run "
                      "before; give train.steps, or begin with train.init_from");
    if (job->objective == HD_JOB_OBJECTIVE_DPO)
        return hd_err(HD_INVALID,
                      "train.continue_from: the reference of dpo is the weights that a run begins "
                      "with, and this one has begun; resume that job, or begin with "
                      "train.init_from");
    return HD_OK;
}

/* Refuses settings of another optimizer, and Muon with its moments on the host. */
static enum hd_status check_optimizer_keys(const struct hd_job *job)
{
    if (job->optimizer == HD_JOB_OPTIMIZER_MUON) {
        if (job->offload == HD_JOB_OFFLOAD_OPTIMIZER)
            return hd_err(
                HD_INVALID,
                "parallel.offload: optimizer keeps moments in host memory, but muon needs "
                "whole matrices on the device; set it to none, or use adamw or lion");
        return HD_OK;
    }
    for (const struct hd_key *key = NULL; (key = hd_job_next_key("train.optimizer.", key));)
        if (strcmp(key->path, "train.optimizer.name") != 0 && !hd_job_is_default(key, job))
            return hd_err(HD_INVALID,
                          "%s: is a setting of muon, and train.optimizer.name is %s; remove one of "
                          "the two",
                          key->path, hd_job_optimizer_words[job->optimizer]);
    return HD_OK;
}

static enum hd_status check_ema(const struct hd_job *job)
{
    if (job->ema_decay > 0 && job->ema_half_life > 0)
        return hd_err(HD_INVALID,
                      "train.ema: decay and half_life_fraction are two ways to give the "
                      "same number; remove one of the two");
    if (job->validate_ema && !hd_job_has_ema(job))
        return hd_err(HD_INVALID, "validate.ema: the job keeps no average of its weights; give "
                                  "train.ema.decay, or remove the line");
    if (job->validate_ema && ((!job->val_count && job->val_split == 0) || !job->validate_batches))
        return hd_err(HD_INVALID, "validate.ema: no loss is validated; give data.val or "
                                  "data.val_split, and validate.batches, or remove the line");
    return HD_OK;
}

/* Refuses QK-clip where the weights of queries and keys do not decide how large scores become, or do
 * not all train. */
static enum hd_status check_qk_clip(const struct hd_job *job)
{
    const struct {
        const char *key, *why;
        bool refused, of_family; /* of_family: mostly the family's, and not in the job file */
    } others[] = {
        {"model.qk_norm", "norms of queries and keys undo what it does to their weights",
         job->qk_norm, true},
        {"model.attention_cap", "the cap bounds scores already", job->attention_cap > 0, true},
        {"train.adapter.type", "the weights of queries and keys do not train",
         job->adapter != HD_JOB_ADAPTER_NONE, false},
        {"train.trainable", "all queries and keys must train",
         !hd_job_is_default(HD_KEY(only), job), false},
    };

    if (!(job->qk_clip_threshold > 0))
        return hd_job_is_default(HD_KEY(qk_clip_alpha), job)
                   ? HD_OK
                   : hd_err(HD_INVALID, "train.qk_clip.alpha: nothing is clipped; give "
                                        "train.qk_clip.threshold, too, such as 100");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i].refused)
            return hd_err(HD_INVALID, "train.qk_clip.threshold: does not go with %s: %s; remove %s",
                          others[i].key, others[i].why,
                          others[i].of_family ? "train.qk_clip" : "one of the two");
    return HD_OK;
}

static enum hd_status check_train(const struct hd_job *job)
{
    enum hd_status st = check_profile(job);

    if (st)
        return st;
    if (*job->init_from && job->init_from[0] != '/' && strcmp(job->init_from, SPEC_INIT_NONE) != 0)
        return hd_err(HD_INVALID, "train.init_from: is not an absolute path");
    if (!st)
        st = check_continued(job);
    if (!st)
        st = spec_check_batch(job);
    if (!st)
        st = check_ema(job);
    if (!st)
        st = check_reduce(job);
    if (!st)
        st = check_optimizer_keys(job);
    if (!st)
        st = check_qk_clip(job);
    if (!st)
        st = check_loss_scale(job);
    if (!st)
        st = check_fp8(job);
    if (!st)
        st = check_adapter(job);
    if (!st)
        st = check_init(job);
    if (!st)
        st = check_weights(job);
    if (!st)
        st = spec_check_objective(job);
    if (!st)
        st = spec_check_policy(job);
    return st ? st : check_lr(job);
}

/* ---- the queue ---- */

static enum hd_status check_waiting(const struct hd_job *job)
{
    char quoted[SPEC_QUOTE_MAX];
    int64_t limit_ms;

    if (!hd_queue_name_is_possible(job->queue))
        return hd_err(HD_INVALID, "queue: %s is no name of a queue; " HD_QUEUE_NAME_RULE,
                      spec_quote(job->queue, quoted));
    if (!hd_after_is_possible(job->after))
        return hd_err(HD_INVALID,
                      "after: %s does not name jobs; write the number or name of one, such as 12, "
                      "or up to %d, such as [12, 13]",
                      spec_quote(job->after, quoted), HD_JOB_AFTER_MAX);
    if (hd_time_limit_read(job->time_limit, &limit_ms))
        return hd_err(HD_INVALID,
                      "time_limit: %s is no duration; write 90m, 12h, 1h30m or 2d, at least 1s, or "
                      "none",
                      spec_quote(job->time_limit, quoted));
    if (!hd_queue_name_is_possible(job->array_id))
        return hd_err(HD_INVALID, "array.id: %s is no name of an array; " HD_QUEUE_NAME_RULE,
                      spec_quote(job->array_id, quoted));
    if (job->array_at_once && strcmp(job->array_id, "none") == 0)
        return hd_err(
            HD_INVALID,
            "array.at_once: %lld limits the jobs of no array; give them a common array.id",
            (long long)job->array_at_once);
    return HD_OK;
}

/* ---- hang detection ---- */

static enum hd_status check_hang(const struct hd_job *job)
{
    const struct {
        const char *key, *text;
    } limits[] = {{"setup", job->hang_setup},
                  {"step", job->hang_step},
                  {"validation", job->hang_validation},
                  {"checkpoint", job->hang_checkpoint},
                  {"ending", job->hang_ending}};
    char quoted[SPEC_QUOTE_MAX];
    int64_t limit_ms;

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (hd_hang_limit_read(limits[i].text, &limit_ms))
            return hd_err(
                HD_INVALID,
                "hang.%s: %s is no duration; write 90s, 20m or 1h30m, at least 1s, or auto",
                limits[i].key, spec_quote(limits[i].text, quoted));
    return HD_OK;
}

/* ---- layout ---- */

static enum hd_status check_policies(const struct hd_job *job)
{
    char quoted[SPEC_QUOTE_MAX];
    int64_t units;

    if (strcmp(job->recompute, "auto") == 0)
        return HD_OK;
    if (hd_recompute_read(job->recompute, &units)) {
        if (units <= job->layers || units == 1)
            return HD_OK;
        return hd_err(HD_INVALID,
                      "parallel.recompute: full: %" PRId64 " is more than model.layers = %" PRId64
                      "; give at most %" PRId64,
                      units, job->layers, job->layers);
    }
    return hd_err(HD_INVALID,
                  "parallel.recompute: %s is not known; use auto, none, selective, full or "
                  "{full: LAYERS}",
                  spec_quote(job->recompute, quoted));
}

int32_t hd_spec_most_devices(const struct hd_job *job)
{
    struct hd_plan_request request, plain;
    int32_t most;

    hd_plan_request_of(job, &request);
    plain = request;
    plain.searched = false;
    most = hd_plan_most(&plain, (int32_t)job->devices_min, (int32_t)job->devices_max);
    return most ? most
                : hd_plan_most(&request, (int32_t)job->devices_min, (int32_t)job->devices_max);
}

/* Returns whether the text is s3://BUCKET/PREFIX. The daemon reads it by hd_s3_parse, too, when the
 * job has begun. */
static bool is_object_folder(const char *text)
{
    struct hd_s3_name name;

    return !hd_s3_parse(text, &name) && *name.key && !hd_text_ends(name.key, "/") &&
           !strpbrk(name.key, "*?[");
}

/* Refuses checkpoint.dir, which is not supported yet: checkpoints are below the job's directory, in
 * one folder per attempt, so that a stale attempt cannot write into a newer one's. */
static enum hd_status check_checkpoint(const struct hd_job *job)
{
    if (*job->checkpoint_dir)
        return unsupported("checkpoint.dir", "another folder",
                           "remove the line; heddle-controller --jobs-dir decides for all jobs");
    if (*job->checkpoint_copy_to && !is_object_folder(job->checkpoint_copy_to))
        return hd_err(HD_INVALID,
                      "checkpoint.copy_to: %.300s is no folder of an object store; write "
                      "s3://BUCKET/PREFIX, with a prefix of this job's own and no / at its end",
                      job->checkpoint_copy_to);
    return HD_OK;
}

static enum hd_status check_resources(const struct hd_job *job)
{
    struct hd_plan_request request;
    enum hd_status st = hd_plan_check_devices("resources.devices", job->device, job->only_planned,
                                              job->devices_min);

    /* limits of a job that came in a message; a job file allows fewer devices
     * (hd_plan_check_devices) */
    if (!st && (job->devices_max < 1 || job->devices_max > 65536))
        st = hd_plan_check_devices("resources.devices", job->device, job->only_planned,
                                   job->devices_max);
    if (st)
        return st;
    if (job->devices_max < job->devices_min)
        return hd_err(HD_INVALID, "resources.devices: min = %lld is above max = %lld; swap them",
                      (long long)job->devices_min, (long long)job->devices_max);
    if (job->layout_follows)
        return HD_OK;
    hd_plan_request_of(job, &request);
    return hd_plan_check(&request, (int32_t)job->devices_min, (int32_t)job->devices_max);
}

/* Checks that file names are absolute and have no control character: a rank's working directory is
 * not the user's folder, and a control character could end a line of the job's text or move the
 * cursor of a terminal that shows a log. */
static enum hd_status check_files(const char *list, const struct hd_job_file *files, int64_t count)
{
    char quoted[SPEC_QUOTE_MAX];

    for (int64_t i = 0; i < count; i++) {
        const char *path = files[i].path;

        if (path[0] != '/')
            return hd_err(HD_INVALID,
                          "%s[%lld]: %s is not an absolute path; give one that begins with / and "
                          "is the same on every node",
                          list, (long long)i, spec_quote(path, quoted));
        if (spec_has_control(path))
            return hd_err(HD_INVALID,
                          "%s[%lld]: %s holds a control character (a line break, an escape ...); "
                          "rename the file",
                          list, (long long)i, spec_quote(path, quoted));
        if (strlen(path) >= HD_JOB_PATH_MAX)
            return hd_err(HD_INVALID, "%s[%lld]: %s is longer than %d bytes; use a shorter path",
                          list, (long long)i, spec_quote(path, quoted), HD_JOB_PATH_MAX - 1);
        if (files[i].fingerprint && !hd_fingerprint_is_form(files[i].fingerprint))
            return hd_err(
                HD_INVALID,
                "%s[%lld]: the fingerprint %s is none; submit the job by heddle, or leave "
                "it out",
                list, (long long)i, spec_quote(files[i].fingerprint, quoted));
    }
    return HD_OK;
}

enum hd_status hd_spec_check(const struct hd_job *job)
{
    enum hd_status st = spec_check_draft(job, NULL);
    int64_t date_s;

    /* in a job file the path may be relative */
    if (!st && *job->template && job->template[0] != '/')
        st = hd_err(HD_INVALID, "data.template: is not an absolute path");
    if (!st && *job->date && hd_chat_date_read(job->date, &date_s))
        st = hd_err_prefix(HD_INVALID, "data.date");
    if (!st)
        st = check_files("data.train", job->train, job->train_count);
    return st ? st : check_files("data.val", job->val, job->val_count);
}

enum hd_status spec_check_draft(const struct hd_job *job, struct spec_mistakes *mistakes)
{
    /* groups of rules that do not depend on one another, once each value is possible */
    static enum hd_status (*const rules[])(const struct hd_job *) = {
        spec_check_model, check_data,       check_train,   check_policies, spec_check_order,
        check_resources,  check_checkpoint, check_waiting, check_hang};
    enum hd_status st = spec_pass(mistakes, check_name(job));

    if (!st)
        st = spec_pass(mistakes, spec_check_family(job));
    if (st || (mistakes && mistakes->count)) /* defaults of other keys depend on the family */
        return st;
    if (!st) /* checked before numbers: the tokenizer decides the vocabulary */
        st = spec_pass(mistakes, check_tokenizer(job));
    if (!st)
        st = check_keys(job, mistakes);
    if (st || (mistakes && mistakes->count))
        return st;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0] && !st; i++)
        st = spec_pass(mistakes, rules[i](job));
    return st;
}

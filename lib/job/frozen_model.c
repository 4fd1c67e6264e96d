#include "job/frozen_model.h"

#include <stdio.h>

#include "base/file.h"

/* Room of a reward model's windows beside that of answers: what its template writes around them. */
enum { TEMPLATE_TOKENS = 64 };

static const char teacher_path[] = "train.distill.teacher", reward_path[] = "train.rewards.model";

/* Returns whether a key describes the forward pass of a frozen model. Its windows are the job's, and it
 * predicts one token. */
static bool is_of_model(const struct hd_key *key)
{
    return hd_text_starts(key->path, "model.") && key->kind != HD_KEY_FORM &&
           strcmp(key->path, "model.from") != 0 && strcmp(key->path, "model.context") != 0 &&
           strcmp(key->path, "model.quantization") != 0 &&
           !hd_text_starts(key->path, "model.mtp.") && !hd_text_starts(key->path, "model.init.");
}

/* Returns whether a key says how a reward model reads a text. */
static bool is_of_text(const struct hd_key *key)
{
    static const char *const paths[] = {"model.from",    "model.context",    "data.tokenizer",
                                        "data.template", "data.end_of_text", "data.date"};
    bool is = false;

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        is |= strcmp(key->path, paths[i]) == 0;
    return is;
}

/* Writes the keys of a frozen model. texts: also those of its texts. path: of the model, for messages. */
static enum hd_status write_model(const struct hd_job *theirs, bool texts, const char *path,
                                  struct hd_job *job, const char **member)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        size_t value;

        if (!(is_of_model(key) || (texts && is_of_text(key))) || hd_job_is_default(key, theirs))
            continue;
        hd_text_add(&text, "%s%s ", text.len_bytes ? "\t" : "", key->path);
        value = text.len_bytes;
        st = hd_job_format(key, theirs, &text);
        if (!st && !text.failed && strchr(text.data + value, '\t'))
            st = hd_err(HD_INVALID,
                        "%s: %s of its model has a tab, which separates keys in the job; use a "
                        "path without one: %s",
                        path, key->path, text.data + value);
    }
    if (!st)
        st = hd_job_take_text(job, member, &text);
    hd_text_free(&text);
    return st != HD_LIMIT
               ? st
               : hd_err(HD_LIMIT,
                        "%s: the architecture of its model and the paths of its files take more "
                        "than %d bytes, the limit",
                        path, HD_JOB_PATH_MAX - 1);
}

enum hd_status hd_job_set_teacher_model(const struct hd_job *theirs, struct hd_job *job)
{
    return write_model(theirs, false, teacher_path, job, &job->distill_model);
}

enum hd_status hd_job_set_reward_model(const struct hd_job *theirs, struct hd_job *job)
{
    return write_model(theirs, true, reward_path, job, &job->reward_model);
}

/* Sets one key of the frozen model's job; item: "PATH VALUE". */
static enum hd_status set_item(const char *path, const char *item, size_t len,
                               struct hd_job *frozen)
{
    char text[HD_JOB_PATH_MAX];
    const struct hd_key *key;
    char *value;

    (void)snprintf(text, sizeof text, "%.*s", (int)len, item);
    value = strchr(text, ' ');
    if (value)
        *value++ = '\0';
    key = value ? hd_job_find_key(text) : NULL;
    if (!key || !(is_of_model(key) || is_of_text(key)))
        return hd_err(HD_INVALID, "%s: '%s' is no key of a frozen model", path, text);
    return hd_job_parse(key, value, frozen);
}

/* Gives the keys of these groups their defaults. texts: also those of the texts, which are the model's. */
static void clear(bool texts, struct hd_job *frozen)
{
    static const char *const groups[] = {
        "train.adapter.",  "train.trainable",    "train.ema.",          "train.optimizer.",
        "train.moments",   "train.dropout.",     "train.neftune_alpha", "train.profile.",
        "train.fp8.",      "train.qk_clip.",     "validate.",           "checkpoint.async",
        "checkpoint.best", "train.continue_from"};

    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        bool clears = is_of_model(key) || hd_text_starts(key->path, "model.quantization") ||
                      hd_text_starts(key->path, "model.mtp.") || (texts && is_of_text(key));

        for (size_t k = 0; !clears && k < sizeof groups / sizeof groups[0]; k++)
            clears = hd_text_starts(key->path, groups[k]);
        if (clears && key->kind != HD_KEY_FORM)
            hd_job_set_default(key, frozen);
    }
}

/* Makes the job of a frozen model, apart from what only a teacher or only a reward model has. texts: it reads
 * texts in its own way. */
static enum hd_status begin_frozen(const struct hd_job *job, const char *path, const char *model,
                                   bool texts, struct hd_arena *arena, struct hd_job *t)
{
    enum hd_status st = HD_OK;

    *t = hd_job_copy(job, arena);
    clear(texts, t);
    for (const char *at = model; !st && *at; at += *at == '\t') {
        const size_t len = strcspn(at, "\t");

        st = set_item(path, at, len, t);
        at += len;
    }
    t->distill_model = t->distill_teacher = t->base_checkpoint = "";
    t->reward_model = t->reward_dir = "";
    (void)snprintf(t->recompute, sizeof t->recompute, "none");
    (void)snprintf(t->stages, sizeof t->stages,
                   "auto"); /* the job's are of the layers that train */
    t->offload = HD_JOB_OFFLOAD_NONE;
    if (t->precision == HD_JOB_PRECISION_FP8)
        t->precision = HD_JOB_PRECISION_BF16;
    t->validate_batches = 1; /* as many rounds as a step of the job has micro-batches */
    return st;
}

enum hd_status hd_job_of_teacher(const struct hd_job *job, struct hd_arena *arena,
                                 struct hd_job *ret_teacher)
{
    struct hd_job *const t = ret_teacher;
    const enum hd_status st = begin_frozen(job, teacher_path, job->distill_model, false, arena, t);

    if (hd_job_has_policy(job)) { /* windows of completions are packed */
        t->documents = HD_JOB_DOCUMENTS_BOUNDED;
        t->objective = HD_JOB_OBJECTIVE_NEXT_TOKEN;
    }
    t->distill_write = true;
    t->distill_vocab = hd_job_distill_vocab(job);
    t->init_from = job->distill_teacher;
    t->init_identity = job->distill_identity;
    return st;
}

enum hd_status hd_job_of_reward_model(const struct hd_job *job, struct hd_arena *arena,
                                      struct hd_job *ret_model)
{
    const int64_t answers = job->rollout_prompts * job->rollout_group;
    const int64_t together = job->dp * job->micro_batch > 0 ? job->dp * job->micro_batch : 1;
    /* equal parts of a window: each cp rank takes two, and its tp ranks share their rows */
    const int64_t parts =
        (job->cp > 1 ? 2 * job->cp : 1) * (job->tp > 1 && job->sequence > 0 ? job->tp : 1);
    struct hd_job *const t = ret_model;
    const enum hd_status st = begin_frozen(job, reward_path, job->reward_model, true, arena, t);

    if (t->context > job->context + TEMPLATE_TOKENS)
        t->context = job->context + TEMPLATE_TOKENS;
    t->context -= t->context % parts;
    /* the windows that all answers may need, one each */
    t->global_batch = (answers + together - 1) / together * together;
    t->objective = HD_JOB_OBJECTIVE_REWARD;
    t->documents = HD_JOB_DOCUMENTS_BOUNDED;
    t->rewards = t->batch_schedule = "";
    t->policy_kl = HD_JOB_POLICY_KL_NONE;
    t->init_from = job->reward_dir;
    t->init_identity = job->reward_identity;
    return st;
}

enum hd_status hd_job_of_frozen(const struct hd_job *job, struct hd_arena *arena,
                                struct hd_job *ret_frozen)
{
    return hd_job_has_reward_model(job) ? hd_job_of_reward_model(job, arena, ret_frozen)
                                        : hd_job_of_teacher(job, arena, ret_frozen);
}

const char *hd_job_frozen_path(const struct hd_job *job)
{
    return hd_job_has_reward_model(job) ? reward_path : teacher_path;
}

enum hd_status hd_job_teacher_file(const struct hd_job *job, struct hd_text *path)
{
    hd_text_clear(path);
    hd_text_add(path, "%s", job->distill_teacher);
    if (hd_file_is_dir(job->distill_teacher)) {
        hd_text_add(path, "/1/tokens"); /* the job of a run of `heddle local` is number 1 */
        if (!path->failed && !hd_file_is_dir(path->data)) {
            hd_text_clear(path);
            hd_text_add(path, "%s/tokens", job->distill_teacher);
        }
        hd_text_add(path, "/teacher");
    }
    return path->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

#include "job/teacher_model.h"

#include <stdio.h>

#include "base/file.h"

/* Returns whether a key describes the forward pass of a teacher. Its windows are the student's, and it
 * predicts one token. */
static bool is_of_model(const struct hd_key *key)
{
    return hd_text_starts(key->path, "model.") && key->kind != HD_KEY_FORM &&
           strcmp(key->path, "model.from") != 0 && strcmp(key->path, "model.context") != 0 &&
           strcmp(key->path, "model.quantization") != 0 &&
           !hd_text_starts(key->path, "model.mtp.") && !hd_text_starts(key->path, "model.init.");
}

enum hd_status hd_job_set_teacher_model(const struct hd_job *theirs, struct hd_job *job)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (!is_of_model(key) || hd_job_is_default(key, theirs))
            continue;
        hd_text_add(&text, "%s%s ", text.len_bytes ? "\t" : "", key->path);
        st = hd_job_format(key, theirs, &text);
    }
    if (!st && text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the teacher's model");
    if (!st && text.len_bytes >= sizeof job->distill_model)
        st = hd_err(HD_LIMIT,
                    "train.distill.teacher: the architecture of its model takes %zu bytes, "
                    "and %zu are the limit; let it write a file: train.distill.write",
                    text.len_bytes, sizeof job->distill_model - 1);
    if (!st)
        memcpy(job->distill_model, text.data, text.len_bytes + 1);
    hd_text_free(&text);
    return st;
}

/* Sets one key of the teacher's job; item: "PATH VALUE". */
static enum hd_status set_item(const char *item, size_t len, struct hd_job *teacher)
{
    char text[HD_JOB_PATH_MAX];
    const struct hd_key *key;
    char *value;

    (void)snprintf(text, sizeof text, "%.*s", (int)len, item);
    value = strchr(text, ' ');
    if (value)
        *value++ = '\0';
    key = value ? hd_job_find_key(text) : NULL;
    if (!key || !is_of_model(key))
        return hd_err(HD_INVALID, "train.distill.model: '%s' is no key of a teacher's model", text);
    return hd_job_parse(key, value, teacher);
}

/* Gives the keys of these groups their defaults. */
static void clear(struct hd_job *teacher)
{
    static const char *const groups[] = {
        "train.adapter.",     "train.trainable", "train.ema.",          "train.optimizer.",
        "train.moments",      "train.dropout.",  "train.neftune_alpha", "train.profile.",
        "train.fp8.",         "validate.",       "checkpoint.async",    "checkpoint.best",
        "train.continue_from"};

    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        bool clears = is_of_model(key) || hd_text_starts(key->path, "model.quantization") ||
                      hd_text_starts(key->path, "model.mtp.");

        for (size_t k = 0; !clears && k < sizeof groups / sizeof groups[0]; k++)
            clears = hd_text_starts(key->path, groups[k]);
        if (clears && key->kind != HD_KEY_FORM)
            hd_job_set_default(key, teacher);
    }
}

enum hd_status hd_job_of_teacher(const struct hd_job *job, struct hd_job *ret_teacher)
{
    struct hd_job *const t = ret_teacher;
    enum hd_status st = HD_OK;

    *t = *job;
    clear(t);
    for (const char *at = job->distill_model; !st && *at; at += *at == '\t') {
        const size_t len = strcspn(at, "\t");

        st = set_item(at, len, t);
        at += len;
    }
    t->distill_write = true;
    t->distill_vocab = hd_job_distill_vocab(job);
    t->distill_model[0] = t->distill_teacher[0] = t->base_checkpoint[0] = '\0';
    memcpy(t->init_from, job->distill_teacher, sizeof t->init_from);
    memcpy(t->init_identity, job->distill_identity, sizeof t->init_identity);
    (void)snprintf(t->recompute, sizeof t->recompute, "none");
    (void)snprintf(t->stages, sizeof t->stages,
                   "auto"); /* the student's are of the student's layers */
    t->offload = HD_JOB_OFFLOAD_NONE;
    if (t->precision == HD_JOB_PRECISION_FP8)
        t->precision = HD_JOB_PRECISION_BF16;
    t->validate_batches = 1; /* as many rounds as a step of the student has micro-batches */
    return st;
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

#include "train/continued.h"

#include <string.h>

#include "job/batch_spans.h"

/* Returns the length of the list of file positions before the fingerprint's colon. */
static size_t places_of(const struct hd_job_file *file)
{
    return strcspn(file->fingerprint, ":");
}

static bool same_file(const struct hd_job_file *a, const struct hd_job_file *b)
{
    if (a->size_bytes != b->size_bytes || a->source != b->source)
        return false;
    /* fingerprints taken at different positions, and missing ones of an older build, say nothing */
    return a->fingerprint && b->fingerprint && places_of(a) == places_of(b)
               ? strcmp(a->fingerprint, b->fingerprint) == 0
               : strcmp(a->path, b->path) == 0;
}

static bool same_files(const struct hd_job *a, const struct hd_job *b)
{
    if (a->train_count != b->train_count)
        return false;
    for (int64_t i = 0; i < a->train_count; i++)
        if (!same_file(&a->train[i], &b->train[i]))
            return false;
    return true;
}

static bool same_mixture(const struct hd_job *a, const struct hd_job *b)
{
    if (a->weight_count != b->weight_count || hd_job_weights_each(a) != hd_job_weights_each(b))
        return false;
    for (int64_t i = 0; i < a->weight_count * hd_job_weights_each(a); i++)
        if (a->weights[i] != b->weights[i])
            return false;
    return true;
}

/* Returns whether the key decides which sample has which number. */
static bool is_of_order(const struct hd_key *key)
{
    if (key->kind == HD_KEY_FORM)
        return false;
    if (hd_text_starts(key->path, "data."))
        return !hd_text_starts(key->path, "data.val.");
    return strcmp(key->path, "model.context") == 0 || strcmp(key->path, "train.seed") == 0 ||
           strcmp(key->path, "train.objective") == 0;
}

/* Returns whether both jobs number the same samples alike. */
static bool same_order(const struct hd_job *then, const struct hd_job *now)
{
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (is_of_order(&hd_job_keys[i]) && !hd_job_members_equal(&hd_job_keys[i], then, now))
            return false;
    return same_files(then, now) && same_mixture(then, now);
}

bool hd_continued_skip(const struct hd_job *then, const struct hd_job *now, int64_t step,
                       int64_t *skipped, struct hd_text *ret_said)
{
    const bool same = same_order(then, now);
    const bool stages = hd_job_stage_count(now) > 0;
    const struct hd_batch_spans read_in = hd_job_batch_spans(then),
                                goes_on = hd_job_batch_spans(now);
    const int64_t batches =
        hd_batch_spans_steps(&goes_on, hd_batch_spans_before(&read_in, step + *skipped));

    if (same && (!stages || memcmp(&read_in, &goes_on, sizeof read_in) == 0)) {
        *skipped = batches - step;
        hd_text_add(ret_said, "reads on in its data behind %lld sequences",
                    (long long)hd_batch_spans_before(&goes_on, batches));
        return false;
    }
    *skipped = stages ? 0 : -step;
    hd_text_add(ret_said,
                stages ? "reads its data.stages from step %lld"
                       : "begins with other data at their first sequence",
                (long long)step + 1);
    return true;
}

/* batch_rules: the rules of train.batch_schedule. */
#include "job/batch_spans.h"
#include "job/data_stages.h"
#include "spec_internal.h"

/* batch of a job whose schedule cannot be read, so that rules about the batch find no further mistake:
 * a multiple of 1 to 16 */
enum { DIVISIBLE_BATCH = 720720 };

void spec_fill_batch(struct hd_job *job)
{
    struct hd_batch_spans spans;

    /* a context that is missing is told first */
    if (!*job->batch_schedule || job->global_batch || job->context < 1)
        return;
    job->global_batch = hd_batch_spans_read(job->batch_schedule, job->context, &spans)
                            ? DIVISIBLE_BATCH
                            : hd_batch_spans_largest(&spans);
}

enum hd_status spec_check_batch(const struct hd_job *job)
{
    struct hd_batch_spans spans;
    enum hd_status st;

    if (!*job->batch_schedule)
        return HD_OK;
    st = hd_batch_spans_read(job->batch_schedule, job->context, &spans);
    if (st)
        return hd_err_prefix(st, "train.batch_schedule");
    if (job->global_batch != hd_batch_spans_largest(&spans))
        return hd_err(HD_INVALID,
                      "train.global_batch: %lld is not the largest batch of train.batch_schedule, "
                      "%lld; remove the line, or make them equal",
                      (long long)job->global_batch, (long long)hd_batch_spans_largest(&spans));
    if (spans.list[spans.count - 1].first_step >= job->steps)
        return hd_err(
            HD_INVALID,
            "train.batch_schedule: the last span begins after %lld steps, and train.steps "
            "is %lld; remove the span, or let it begin earlier",
            (long long)spans.list[spans.count - 1].first_step, (long long)job->steps);
    if (hd_job_has_policy(job))
        return hd_err(
            HD_INVALID,
            "train.batch_schedule: with train.objective: %s the sampled completions decide "
            "how much a step reads; give train.global_batch alone",
            hd_job_objective_words[job->objective]);
    if (hd_job_has_spans(job))
        return hd_err(
            HD_INVALID,
            "train.batch_schedule: stages of data.stages have contexts, and so batches, of "
            "their own; give a global_batch to each stage instead");
    if (*job->continue_from)
        return hd_err(
            HD_INVALID,
            "train.batch_schedule: spans count from the first sequence of a run, and this "
            "one goes on from another (train.continue_from); give train.global_batch "
            "alone");
    if (job->steps > INT64_MAX / 2 / job->global_batch)
        return hd_err(HD_INVALID, "train.steps: %lld steps of %lld sequences are too many to count",
                      (long long)job->steps, (long long)job->global_batch);
    return HD_OK;
}

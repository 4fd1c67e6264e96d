#include "controller/services/seen.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORGETTING_STEPS = 32 }; /* of the mean duration: a step of so long ago counts 1/e */

void seen_init(struct seen *seen)
{
    *seen = (struct seen){.waits = {.bounds = &hd_prom_waits},
                          .commits = {.bounds = &hd_prom_latencies},
                          .delays = {.bounds = &hd_prom_latencies}};
}

void seen_done(struct seen *seen)
{
    free(seen->jobs);
    seen->jobs = NULL;
    seen->count = seen->size = 0;
}

/* The first place whose job is not lower. */
static size_t place_of(const struct seen *seen, uint64_t job)
{
    size_t low = 0, high = seen->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (seen->jobs[middle].job < job)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct seen_job *seen_find(const struct seen *seen, uint64_t job)
{
    const size_t at = place_of(seen, job);

    return at < seen->count && seen->jobs[at].job == job ? &seen->jobs[at] : NULL;
}

/* NULL: no memory; then this job has no numbers. */
static struct seen_job *add(struct seen *seen, const struct hd_job_record *record)
{
    size_t at = place_of(seen, record->job);
    struct seen_job *job = seen_find(seen, record->job);

    if (job)
        return job;
    if (seen->count == seen->size) {
        const size_t bigger = seen->size ? 2 * seen->size : 64;
        struct seen_job *moved = realloc(seen->jobs, bigger * sizeof *moved);

        if (!moved)
            return NULL;
        seen->jobs = moved;
        seen->size = bigger;
    }
    job = &seen->jobs[at];
    memmove(job + 1, job, (seen->count - at) * sizeof *job);
    seen->count++;
    *job = (struct seen_job){.job = record->job,
                             .attempt = record->attempt_count,
                             .attempts_ended = record->attempt_count,
                             .submitted_ms = record->submitted_ms,
                             .started_ms = record->started_ms,
                             .val_loss = NAN};
    (void)snprintf(job->label, sizeof job->label, "job_id=\"%" PRIu64 "\"", record->job);
    return job;
}

static void forget(struct seen *seen, struct seen_job *job)
{
    const size_t at = (size_t)(job - seen->jobs);

    memmove(job, job + 1, (seen->count - at - 1) * sizeof *job);
    seen->count--;
}

/* ---- what has happened ------------------------------------------------------------------------*/

static bool is_live(const struct hd_job_record *job)
{
    return job->state <= HD_JOB_STATE_STOPPING && job->removal == HD_REMOVAL_NONE;
}

static void take_step(struct seen_job *job, const struct hd_step_record *step)
{
    const double ms = step->metrics.step_ms;

    job->usual_step_ms = job->usual_step_ms > 0 && ms > 0
                             ? job->usual_step_ms + (ms - job->usual_step_ms) / FORGETTING_STEPS
                         : ms > 0 ? ms
                                  : job->usual_step_ms;
    job->has_step = true;
    job->step = step->step;
    job->step_time_ms = step->time_ms;
    job->metrics = step->metrics;
}

static void take_checkpoint(struct seen_job *job, const struct hd_checkpoint_record *checkpoint)
{
    if (checkpoint->state != HD_CHECKPOINT_STATE_PRESENT || checkpoint->missing ||
        checkpoint->time_ms < job->checkpoint_ms)
        return;
    job->checkpoint_step = checkpoint->step;
    job->checkpoint_ms = checkpoint->time_ms;
}

static void take_attempt(struct seen *seen, struct seen_job *job,
                         const struct hd_attempt_record *attempt)
{
    if (attempt->attempt > job->attempt) {
        job->attempt = attempt->attempt;
        seen->attempts_started++;
        if (job->has_step && job->step > attempt->base_step)
            seen->steps_lost += (uint64_t)(job->step - attempt->base_step);
        job->step = attempt->base_step; /* its steps begin there */
    }
    if (attempt->state == HD_ATTEMPT_STATE_ENDED && attempt->attempt > job->attempts_ended) {
        job->attempts_ended = attempt->attempt;
        seen->attempts_ended[(int)attempt->end.cause < SEEN_CAUSES ? attempt->end.cause : 0]++;
    }
}

static void take_job(struct seen *seen, const struct hd_job_record *record)
{
    struct seen_job *job = seen_find(seen, record->job);

    if (is_live(record)) {
        if (!job)
            job = add(seen, record); /* it was resumed */
        if (job && !job->started_ms && record->started_ms) {
            job->started_ms = record->started_ms;
            hd_prom_observe(&seen->waits,
                            (double)(record->started_ms - record->submitted_ms) / 1e3);
        }
    } else if (job) {
        seen->ended[(int)record->state < SEEN_STATES ? record->state : 0]++;
        forget(seen, job);
    }
}

/* Attempts come behind their job in a batch, so the jobs that have ended are forgotten last. */
void seen_take(struct seen *seen, const struct hd_batch *batch)
{
    struct seen_job *job;

    for (const struct hd_batch_op *op = batch->first; op; op = op->next) {
        switch (op->kind) {
        case HD_OP_JOB_NEW:
            seen->submitted++;
            (void)add(seen, &op->job);
            break;
        case HD_OP_ATTEMPT:
            if ((job = seen_find(seen, op->attempt.job)) != NULL)
                take_attempt(seen, job, &op->attempt);
            break;
        case HD_OP_STEP:
            seen->steps++;
            seen->tokens += (uint64_t)(op->step.metrics.tokens > 0 ? op->step.metrics.tokens : 0);
            if ((job = seen_find(seen, op->step.job)) != NULL)
                take_step(job, &op->step);
            break;
        case HD_OP_CHECKPOINT:
            if ((job = seen_find(seen, op->checkpoint.job)) != NULL)
                take_checkpoint(job, &op->checkpoint);
            break;
        case HD_OP_VALIDATION:
            if ((job = seen_find(seen, op->validation.job)) != NULL)
                job->val_loss = op->validation.loss;
            break;
        case HD_OP_EVENT:
            seen->cluster_changes += op->event.job == 0;
            break;
        case HD_OP_NODE:
        case HD_OP_QUEUE:
            seen->cluster_changes++;
            break;
        default:
            break;
        }
    }
    for (const struct hd_batch_op *op = batch->first; op; op = op->next)
        if (op->kind == HD_OP_JOB || op->kind == HD_OP_JOB_NEW)
            take_job(seen, &op->job);
}

/* ---- at start ---------------------------------------------------------------------------------*/

void seen_restore_job(struct seen *seen, const struct hd_job_record *job)
{
    if (is_live(job))
        (void)add(seen, job);
}

void seen_restore_attempt(struct seen *seen, const struct hd_attempt_record *attempt)
{
    struct seen_job *job = seen_find(seen, attempt->job);

    if (!job)
        return;
    if (attempt->state != HD_ATTEMPT_STATE_ENDED && job->attempts_ended >= attempt->attempt)
        job->attempts_ended = attempt->attempt - 1; /* its end is still to be counted */
}

void seen_restore_checkpoint(struct seen *seen, const struct hd_checkpoint_record *checkpoint)
{
    struct seen_job *job = seen_find(seen, checkpoint->job);

    if (job)
        take_checkpoint(job, checkpoint);
}

void seen_restore_step(struct seen *seen, const struct hd_step_record *step)
{
    struct seen_job *job = seen_find(seen, step->job);

    if (job)
        take_step(job, step);
}

double seen_goodput(const struct seen_job *job, int64_t now_ms)
{
    const double elapsed_ms = (double)(now_ms - job->started_ms);
    double ratio;

    if (!job->started_ms || !job->has_step || elapsed_ms <= 0 || !(job->usual_step_ms > 0))
        return NAN;
    ratio = (double)job->step * job->usual_step_ms / elapsed_ms;
    return ratio < 1 ? ratio : 1;
}

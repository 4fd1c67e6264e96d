#include "controller/services/job_stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* steps after which an old step's weight in the average step time is 1/e */
enum { FORGETTING_STEPS = 32 };

void stats_init(struct stats *stats)
{
    *stats = (struct stats){.waits = {.bounds = &hd_prom_waits},
                            .commits = {.bounds = &hd_prom_latencies},
                            .delays = {.bounds = &hd_prom_latencies}};
}

void stats_done(struct stats *stats)
{
    for (size_t i = 0; i < stats->count; i++)
        free(stats->jobs[i].validations);
    free(stats->jobs);
    stats->jobs = NULL;
    stats->count = stats->size = 0;
}

/* Returns the index of the first entry whose job number is not lower than `job`. */
static size_t index_of(const struct stats *stats, uint64_t job)
{
    size_t low = 0, high = stats->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (stats->jobs[middle].job < job)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct job_stats *stats_find(const struct stats *stats, uint64_t job)
{
    const size_t at = index_of(stats, job);

    return at < stats->count && stats->jobs[at].job == job ? &stats->jobs[at] : NULL;
}

/* Adds a live job; NULL: no memory, so the job has no metrics. */
static struct job_stats *insert_job(struct stats *stats, const struct hd_job_record *record)
{
    size_t at = index_of(stats, record->job);
    struct job_stats *job = stats_find(stats, record->job);

    if (job)
        return job;
    if (stats->count == stats->size) {
        const size_t bigger = stats->size ? 2 * stats->size : 64;
        struct job_stats *moved = realloc(stats->jobs, bigger * sizeof *moved);

        if (!moved)
            return NULL;
        stats->jobs = moved;
        stats->size = bigger;
    }
    job = &stats->jobs[at];
    memmove(job + 1, job, (stats->count - at) * sizeof *job);
    stats->count++;
    *job = (struct job_stats){.job = record->job,
                              .attempt = record->attempt_count,
                              .attempts_ended = record->attempt_count,
                              .submitted_ms = record->submitted_ms,
                              .started_ms = record->started_ms};
    (void)snprintf(job->label, sizeof job->label, "job_id=\"%" PRIu64 "\"", record->job);
    return job;
}

static void forget_job(struct stats *stats, struct job_stats *job)
{
    const size_t at = (size_t)(job - stats->jobs);

    free(job->validations);
    memmove(job, job + 1, (stats->count - at - 1) * sizeof *job);
    stats->count--;
}

/* ---- updates ----------------------------------------------------------------------------------*/

static bool is_live(const struct hd_job_record *job)
{
    return job->state <= HD_JOB_STATE_STOPPING && job->removal == HD_REMOVAL_NONE;
}

static void take_step(struct job_stats *job, const struct hd_step_record *step)
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

static void take_checkpoint(struct job_stats *job, const struct hd_checkpoint_record *checkpoint)
{
    if (checkpoint->state != HD_CHECKPOINT_STATE_PRESENT || checkpoint->missing ||
        checkpoint->time_ms < job->checkpoint_ms)
        return;
    job->checkpoint_step = checkpoint->step;
    job->checkpoint_ms = checkpoint->time_ms;
}

static void take_attempt(struct stats *stats, struct job_stats *job,
                         const struct hd_attempt_record *attempt)
{
    if (attempt->attempt > job->attempt) {
        job->attempt = attempt->attempt;
        stats->attempts_started++;
        if (job->has_step && job->step > attempt->base_step)
            stats->steps_lost += (uint64_t)(job->step - attempt->base_step);
        job->step = attempt->base_step; /* the attempt continues after this step */
        job->predicted_step_s = attempt->plan.step_s;
    }
    if (attempt->state == HD_ATTEMPT_STATE_ENDED && attempt->attempt > job->attempts_ended) {
        job->attempts_ended = attempt->attempt;
        stats->attempts_ended[(int)attempt->end.cause < STATS_CAUSES ? attempt->end.cause : 0]++;
    }
}

static void take_job(struct stats *stats, const struct hd_job_record *record)
{
    struct job_stats *job = stats_find(stats, record->job);

    if (is_live(record)) {
        if (!job)
            job = insert_job(stats, record); /* the job was resumed */
        if (job && !job->started_ms && record->started_ms) {
            job->started_ms = record->started_ms;
            hd_prom_observe(&stats->waits,
                            (double)(record->started_ms - record->submitted_ms) / 1e3);
        }
    } else if (job) {
        stats->ended[(int)record->state < STATS_STATES ? record->state : 0]++;
        forget_job(stats, job);
    }
}

/* Takes a validation's loss or score; without memory for a new set, the set has no metric. */
static void take_validation(struct job_stats *job, const struct hd_validation_record *validation)
{
    struct job_validation *moved;
    size_t i = 0;

    while (i < job->validation_count && strcmp(job->validations[i].set, validation->set) != 0)
        i++;
    if (i == HD_JOB_VAL_REPORTS_MAX)
        return; /* a job has no more sets; a rank that reports more is wrong */
    if (i == job->validation_count) {
        moved = realloc(job->validations, (i + 1) * sizeof *moved);
        if (!moved)
            return;
        job->validations = moved;
        job->validation_count++;
    }
    memcpy(job->validations[i].set, validation->set, sizeof validation->set);
    job->validations[i].loss = validation->loss;
}

/* Updates attempts and steps first and jobs last: a job's attempts come after the job in a batch,
 * and an ended job is removed. */
void stats_take(struct stats *stats, const struct hd_batch *batch)
{
    struct job_stats *job;

    for (const struct hd_batch_op *op = batch->first; op; op = op->next) {
        switch (op->kind) {
        case HD_OP_JOB_NEW:
            stats->submitted++;
            (void)insert_job(stats, &op->job);
            break;
        case HD_OP_ATTEMPT:
            if ((job = stats_find(stats, op->attempt.job)) != NULL)
                take_attempt(stats, job, &op->attempt);
            break;
        case HD_OP_STEP:
            stats->steps++;
            stats->tokens += (uint64_t)(op->step.metrics.tokens > 0 ? op->step.metrics.tokens : 0);
            if ((job = stats_find(stats, op->step.job)) != NULL)
                take_step(job, &op->step);
            break;
        case HD_OP_CHECKPOINT:
            if ((job = stats_find(stats, op->checkpoint.job)) != NULL)
                take_checkpoint(job, &op->checkpoint);
            break;
        case HD_OP_VALIDATION:
            if ((job = stats_find(stats, op->validation.job)) != NULL)
                take_validation(job, &op->validation);
            break;
        case HD_OP_EVENT:
            stats->cluster_changes += op->event.job == 0;
            break;
        case HD_OP_NODE:
        case HD_OP_QUEUE:
            stats->cluster_changes++;
            break;
        default:
            break;
        }
    }
    for (const struct hd_batch_op *op = batch->first; op; op = op->next)
        if (op->kind == HD_OP_JOB || op->kind == HD_OP_JOB_NEW)
            take_job(stats, &op->job);
}

/* ---- restore at start -------------------------------------------------------------------------*/

void stats_restore_job(struct stats *stats, const struct hd_job_record *job)
{
    if (is_live(job))
        (void)insert_job(stats, job);
}

void stats_restore_attempt(struct stats *stats, const struct hd_attempt_record *attempt)
{
    struct job_stats *job = stats_find(stats, attempt->job);

    if (!job)
        return;
    if (attempt->attempt == job->attempt)
        job->predicted_step_s = attempt->plan.step_s;
    if (attempt->state != HD_ATTEMPT_STATE_ENDED && job->attempts_ended >= attempt->attempt)
        /* the end of the newest attempt is counted when it comes */
        job->attempts_ended = attempt->attempt - 1;
}

void stats_restore_checkpoint(struct stats *stats, const struct hd_checkpoint_record *checkpoint)
{
    struct job_stats *job = stats_find(stats, checkpoint->job);

    if (job)
        take_checkpoint(job, checkpoint);
}

void stats_restore_step(struct stats *stats, const struct hd_step_record *step)
{
    struct job_stats *job = stats_find(stats, step->job);

    if (job)
        take_step(job, step);
}

double stats_goodput(const struct job_stats *job, int64_t now_ms)
{
    const double elapsed_ms = (double)(now_ms - job->started_ms);
    double ratio;

    if (!job->started_ms || !job->has_step || elapsed_ms <= 0 || !(job->usual_step_ms > 0))
        return NAN;
    ratio = (double)job->step * job->usual_step_ms / elapsed_ms;
    return ratio < 1 ? ratio : 1;
}

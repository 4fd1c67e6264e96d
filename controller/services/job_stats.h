/* job_stats: values of live jobs and counters for metrics, updated from the batches that go to the
 * store.
 *
 * The core keeps only what scheduling needs; the store keeps all, on disk; a scrape must read
 * memory alone. These values may be ahead of the disk by one commit: they are for display, not for
 * replies. Ended jobs are removed, so memory is bounded by the number of live jobs.
 *
 * Used by: the files of services.   Uses: core, prometheus.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_JOB_STATS_H
#define HD_CONTROLLER_SERVICES_JOB_STATS_H

#include "controller/core/record.h"
#include "prometheus/prometheus.h"

struct job_stats {
    uint64_t job;
    char label[40]; /* label of the job's metric series: job_id="7" */
    int32_t attempt, attempts_ended;
    int64_t submitted_ms, started_ms;
    bool has_step;
    int64_t step, step_time_ms;
    struct hd_step_metrics metrics; /* metrics of the training step `step` */
    double predicted_step_s;        /* predicted for the newest attempt; 0: unknown */
    double usual_step_ms;           /* moving average of the step time, ms; 0: no step yet */
    int64_t checkpoint_step, checkpoint_ms; /* step and time of the newest checkpoint; 0: none */
    struct job_validation *validations;     /* [validation_count] */
    size_t validation_count;
};

/* The newest loss of a validation set, or score of questions. */
struct job_validation {
    char set[HD_JOB_VAL_REPORT_MAX]; /* "": data.val is one list; of a score: NAME/acc */
    double loss;
};

enum { STATS_STATES = HD_JOB_STATE_CANCELLED + 1, STATS_CAUSES = HD_END_CAUSE_OOM + 1 };

struct stats {
    struct job_stats *jobs; /* sorted by job number */
    size_t count, size;
    uint64_t submitted, ended[STATS_STATES];
    uint64_t attempts_started, attempts_ended[STATS_CAUSES];
    uint64_t steps, tokens, steps_lost;
    struct hd_prom_histogram waits, commits, delays;
    /* number of changes so far of nodes and queues, and of cluster events */
    uint64_t cluster_changes;
};

void stats_init(struct stats *stats);
void stats_done(struct stats *stats);

/* Restore a job's values from the store, when the controller starts. */
void stats_restore_job(struct stats *stats, const struct hd_job_record *job);
void stats_restore_attempt(struct stats *stats, const struct hd_attempt_record *attempt);
void stats_restore_checkpoint(struct stats *stats, const struct hd_checkpoint_record *checkpoint);
void stats_restore_step(struct stats *stats, const struct hd_step_record *step);

/* Updates jobs' values and counters from a batch of records that is about to be committed. */
void stats_take(struct stats *stats, const struct hd_batch *batch);

/* Returns the values of a job; NULL: the job is not live. */
struct job_stats *stats_find(const struct stats *stats, uint64_t job);

/* Returns the job's goodput: (steps that were not lost in a restart x usual step time) / (time
 * since the first start); NaN: not computable yet. */
double stats_goodput(const struct job_stats *job, int64_t now_ms);

#endif

/* seen: what metrics tell of jobs, kept up to date from the batches that go to the store.
 *
 * The core keeps what scheduling needs and the store keeps all, on disk; a scrape may do no more
 * than read memory. So this keeps the newest numbers of each live job, and counts what happens.
 * What was seen may be ahead of the disk by one commit: numbers for people, not promises. Memory
 * follows live jobs: an ended one is forgotten.
 *
 * Used by: the files of services.   Uses: core, prometheus.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_JOB_STATS_H
#define HD_CONTROLLER_SERVICES_JOB_STATS_H

#include "controller/core/record.h"
#include "prometheus/prometheus.h"

struct job_stats {
    uint64_t job;
    char label[40]; /* job_id="7" */
    int32_t attempt, attempts_ended;
    int64_t submitted_ms, started_ms;
    bool has_step;
    int64_t step, step_time_ms;
    struct hd_step_metrics metrics;         /* of that step */
    double usual_step_ms;                   /* mean, the newest steps count most */
    int64_t checkpoint_step, checkpoint_ms; /* newest; 0: none */
    double val_loss;                        /* NaN: not known */
};

enum { STATS_STATES = HD_JOB_STATE_CANCELLED + 1, STATS_CAUSES = HD_END_CAUSE_OOM + 1 };

struct stats {
    struct job_stats *jobs; /* by number */
    size_t count, size;
    uint64_t submitted, ended[STATS_STATES];
    uint64_t attempts_started, attempts_ended[STATS_CAUSES];
    uint64_t steps, tokens, steps_lost;
    struct hd_prom_histogram waits, commits, delays;
    uint64_t cluster_changes; /* changes of nodes and queues, and events of the cluster */
};

void stats_init(struct stats *stats);
void stats_done(struct stats *stats);

/* At start, as the store loads. */
void stats_restore_job(struct stats *stats, const struct hd_job_record *job);
void stats_restore_attempt(struct stats *stats, const struct hd_attempt_record *attempt);
void stats_restore_checkpoint(struct stats *stats, const struct hd_checkpoint_record *checkpoint);
void stats_restore_step(struct stats *stats, const struct hd_step_record *step);

/* A batch, before it is committed. */
void stats_take(struct stats *stats, const struct hd_batch *batch);

/* NULL: the job does not live. */
struct job_stats *stats_find(const struct stats *stats, uint64_t job);

/* Steps that count x their usual duration / time since the first start; NaN: not known. */
double stats_goodput(const struct job_stats *job, int64_t now_ms);

#endif

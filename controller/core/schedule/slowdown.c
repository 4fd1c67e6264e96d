/* slowdown: order in which the waiting jobs of one priority are evaluated.
 *
 *   1. Jobs for which others were stopped (preempt.c).
 *   2. Jobs of the queue with the smallest share (queue.c).
 *   3. Within a queue, jobs that are expected to start soon: devices are being collected for such a
 *      job, and would stay idle to no use if another job came first.
 *   4. By expected slowdown (Feitelson et al. 1997, "Theory and Practice in Parallel Job
 *      Scheduling"): (wait + length) / length. A job that takes half an hour comes before one that
 *      takes a day, unless that one has waited 48 times as long; so none waits forever. Where no
 *      length is known, this is the order of age.
 *   5. By number.
 *
 * The order computed in a pass holds until the next pass, although slowdowns grow meanwhile.
 */
#include "controller/core/schedule/schedule.h"

enum {
    SOON_MS = 30 * 60 * 1000,         /* milliseconds; rule 3 applies to a job whose expected
                                       * start is at most this far away */
    SHORT_MS = 30 * 60 * 1000,        /* milliseconds; jobs of a shorter length count as this
                                       * long */
    UNKNOWN_MS = 24 * 60 * 60 * 1000, /* milliseconds; length assumed for a job whose length is
                                       * unknown */
    SLOWDOWN_MAX = 8000,              /* upper bound of the slowdown, (wait + length) / length */
    STEPS = 1024,                     /* resolution: units per 1 of slowdown in the key */
    JOB_BITS = 40,                    /* low bits of the key: job number; the rest: slowdown */
};

/* Returns the job's slowdown. The length is that of its class, so of two jobs of a group the older
 * one comes first. */
static double slowdown_of(const struct hd_core *core, const struct core_job *job)
{
    const int64_t known_ms = job->group->key.class->key.length_minutes * 60 * 1000;
    const int64_t length_ms = !known_ms ? UNKNOWN_MS : known_ms > SHORT_MS ? known_ms : SHORT_MS;
    const int64_t waited_ms = core->pass_wall_ms - job->rec.submitted_ms;
    const double slowdown = 1 + (double)(waited_ms > 0 ? waited_ms : 0) / (double)length_ms;

    return slowdown < SLOWDOWN_MAX ? slowdown : SLOWDOWN_MAX;
}

/* Returns whether the job comes before all others of its queue because it is expected to start soon
 * (rule 3), or because it ran before. Only for the oldest jobs of a group: a later one would only
 * take devices from the jobs of its class before it. */
static bool keeps_its_priority(const struct hd_core *core, const struct core_job *job)
{
    const bool soon =
        job->rec.planned_start_ms && job->rec.planned_start_ms - core->pass_wall_ms <= SOON_MS;

    return (soon || job->rec.attempt_count) &&
           (!job->before || (job->before->slowdown_priority.pass == core->pass &&
                             job->before->slowdown_priority.kept));
}

void core_set_slowdown_priority(struct hd_core *core, struct core_job *job)
{
    const uint64_t number = job->rec.job & (((uint64_t)1 << JOB_BITS) - 1);

    if (job->slowdown_priority.pass == core->pass)
        return;
    job->slowdown_priority.pass = core->pass;
    job->slowdown_priority.kept = keeps_its_priority(core, job);
    job->slowdown_priority.key = number;
    if (!job->slowdown_priority.kept)
        job->slowdown_priority.key |=
            (uint64_t)((SLOWDOWN_MAX + 1 - slowdown_of(core, job)) * STEPS) << JOB_BITS;
}

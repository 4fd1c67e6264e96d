/* pending: what a job keeps from pass to pass besides its place in the queue: the placement that
 * other jobs free for it (clearing.c), the one to which it migrates (defragment.c), and its expected
 * start (reserve.c). */
#include <stdlib.h>

#include "controller/core/state/state.h"

void core_pending_drop(struct core_job *job)
{
    if (job->pending)
        free(job->pending->members);
    free(job->pending);
    job->pending = NULL;
}

void core_pending_begin(struct hd_core *core, struct core_job *job)
{
    job->is_preemptor = true;
    core_jobs_add(core, &core->preemptors, job);
}

void core_pending_end(struct hd_core *core, struct core_job *job)
{
    core_due_if(
        core, CORE_DUE_REPEAT,
        job->is_preemptor); /* preemptors are evaluated first, so the order of evaluation has
                            * changed */
    job->is_preemptor = false;
    core_pending_drop(job);
    core_migration_end(core, job);
    core_jobs_remove(&core->preemptors, job);
}

void core_migration_target_drop(struct core_job *job)
{
    if (job->migration_target)
        free(job->migration_target->members);
    free(job->migration_target);
    job->migration_target = NULL;
}

void core_migration_end(struct hd_core *core, struct core_job *job)
{
    core_migration_target_drop(job);
    job->migration_group = 0;
    core_jobs_remove(&core->migrating, job);
}

void core_planned_start_end(struct hd_core *core, struct core_job *job)
{
    if (!job->rec.planned_start_ms)
        return;
    job->rec.planned_start_ms = 0;
    job->waits_for = 0;
    core_jobs_remove(&core->planned_to_start, job);
    core_dirty_job(core, job);
}

void core_migration_becomes_pending(struct hd_core *core, struct core_job *job)
{
    if (!job->migration_target)
        return;
    core_pending_drop(job);
    job->pending = job->migration_target;
    job->migration_target = NULL;
    core_pending_begin(core, job);
}

/* restore: rebuilds the core's memory from the store's records when the controller starts.
 *
 * State that is not stored (streams, observed sets, generations) starts empty; daemons send it when
 * they reconnect. A node is lost only after restart_grace_ms, because daemons could not connect
 * while the controller was down.
 */
#include <inttypes.h>

#include "controller/core/life/life.h"

static enum hd_status check_memory(const struct hd_core *core)
{
    if (core->no_memory)
        return hd_err(HD_NO_MEMORY, "no memory for the controller's state");
    return HD_OK;
}

enum hd_status hd_core_restore_node(struct hd_core *core, const struct hd_node_record *node)
{
    struct core_node *made = core_node_new(core, node);

    if (made)
        made->lost_after_ms = core->config.restart_grace_ms;
    return check_memory(core);
}

enum hd_status hd_core_restore_probe(struct hd_core *core, const struct hd_probe_record *probe)
{
    struct core_node *node = core_find_node(core, probe->node_uuid);

    if (node)
        core_probe_restore(core, node, probe);
    return check_memory(core);
}

enum hd_status hd_core_restore_queue(struct hd_core *core, const struct hd_queue_record *queue)
{
    (void)core_queue_put(core, queue);
    return check_memory(core);
}

enum hd_status hd_core_restore_request(struct hd_core *core, const char *request_id,
                                       const char *owner, uint64_t job, uint64_t hash,
                                       enum hd_job_state state)
{
    if (!core_request_put(core, request_id, owner, job, hash))
        core->no_memory = true;
    core_outcome_set(core, job, state);
    return check_memory(core);
}

enum hd_status hd_core_restore_job(struct hd_core *core, const struct hd_job_record *job,
                                   const struct hd_job_needs *needs, uint64_t sequence)
{
    struct core_job *made = core_job_new(core, job, needs);

    if (made)
        made->sequence = sequence;
    return check_memory(core);
}

static enum hd_status restore_allocs(struct hd_core *core, struct core_attempt *attempt)
{
    const struct hd_plan_record *plan = &attempt->rec.plan;

    for (size_t i = 0; i < attempt->alloc_count; i++) {
        attempt->allocs[i].listed = attempt->rec.running_ms > 0;
        attempt->allocs[i].stop_generation = 1; /* as if told to stop; the caller sets it to 0 if
                                                 * the attempt is to run */
        /* the allocation ended when its node was lost (I7 in core.c); the attempt's others may
         * still run */
        attempt->allocs[i].ended = attempt->allocs[i].node->rec.state == HD_NODE_STATE_LOST;
    }
    for (int32_t r = 0; r < plan->rank_count; r++) {
        struct core_node *node = core_find_node(core, plan->ranks[r].node_uuid);
        const int32_t d = node ? core_find_device(node, plan->ranks[r].device) : -1;

        if (d < 0)
            return hd_err(HD_CORRUPT,
                          "attempt %d of job %" PRIu64 " uses device %d of %s, which is unknown",
                          attempt->rec.attempt, attempt->rec.job, plan->ranks[r].device,
                          plan->ranks[r].node_name);
        node->holds[d] =
            (struct hd_device_hold){.job = attempt->rec.job, .attempt = attempt->rec.attempt};
        core_node_changed(core, node);
    }
    core_attempt_note_devices(attempt);
    return HD_OK;
}

/* Makes the job for which an attempt is stopping a preemptor again, so that it gets the devices. */
static void restore_pending(struct hd_core *core, uint64_t number)
{
    struct core_job *job = core_find_job(core, number);

    if (job && job->rec.state == HD_JOB_STATE_QUEUED)
        core_pending_begin(core, job);
}

enum hd_status hd_core_restore_attempt(struct hd_core *core, const struct hd_attempt_record *record)
{
    struct core_job *job = core_find_job(core, record->job);
    struct core_attempt *attempt;

    if (!job || record->attempt != job->rec.attempt_count + 1)
        return hd_err(HD_CORRUPT, "attempt %d of job %" PRIu64 " is not the next one",
                      record->attempt, record->job);
    attempt = core_attempt_new(core, job, record);
    if (!attempt)
        return check_memory(core);
    attempt->had_finite_step = true; /* not stored; true keeps the base checkpoint proven */
    attempt->failed = record->end.cause != HD_END_CAUSE_NONE;
    attempt->kill = attempt->failed && !core_is_stop(record->end.cause);
    /* `secondary` is not stored: in a gang, only a secondary failure is a rank_exit or hang without
     * a rank */
    attempt->rec.end.secondary =
        attempt->alloc_count > 1 && record->end.rank < 0 &&
        (record->end.cause == HD_END_CAUSE_RANK_EXIT || record->end.cause == HD_END_CAUSE_HANG);
    if (record->state != HD_ATTEMPT_STATE_ENDED) {
        enum hd_status st = restore_allocs(core, attempt);

        if (st)
            return st;
        core_quota_take(job, attempt->rec.plan.rank_count);
        if (core_wanted(job, attempt) == HD_WANTED_RUNNING) {
            for (size_t i = 0; i < attempt->alloc_count; i++)
                attempt->allocs[i].stop_generation = 0;
        }
    }
    return check_memory(core);
}

enum hd_status hd_core_restore_checkpoint(struct hd_core *core,
                                          const struct hd_checkpoint_record *checkpoint)
{
    struct core_job *job = core_find_job(core, checkpoint->job);
    struct hd_checkpoint_record record = *checkpoint;

    if (!job)
        return hd_err(HD_CORRUPT, "a checkpoint belongs to job %" PRIu64 ", which is unknown",
                      checkpoint->job);
    if (!core_grow_array(core, &job->checkpoints, job->checkpoint_count, &job->checkpoint_size,
                         sizeof record))
        return check_memory(core);
    core_own_texts(core, &hd_table_checkpoints, &record);
    job->checkpoints[job->checkpoint_count++] = record;
    if (record.state == HD_CHECKPOINT_STATE_DELETING)
        core_jobs_add(core, &core->deleting, job);
    else if (job->rec.state == HD_JOB_STATE_QUEUED)
        core_waiting_moved(core, job);
    return check_memory(core);
}

enum hd_status hd_core_restore_position(struct hd_core *core,
                                        const struct hd_position_record *position)
{
    const struct core_job *job = core_find_job(core, position->job);
    struct core_attempt *attempt = job ? core_find_attempt(job, position->attempt) : NULL;

    if (!attempt || position->rank < 0 || position->rank >= attempt->rec.plan.rank_count)
        return hd_err(HD_CORRUPT, "a report position of job %" PRIu64 " names an unknown rank",
                      position->job);
    attempt->seq[position->rank] = position->seq;
    return HD_OK;
}

enum hd_status hd_core_restore_step(struct hd_core *core, const struct hd_step_record *step)
{
    const struct core_job *found = core_find_job(core, step->job);
    struct core_attempt *of = found ? core_find_attempt(found, step->attempt) : NULL;

    if (!of)
        return hd_err(HD_CORRUPT, "a step of job %" PRIu64 " names an unknown attempt", step->job);
    of->last_step = step->step;
    of->last_step_ms = step->time_ms;
    core_predict_restore(of);
    return HD_OK;
}

/* Converts a job's stored wall-clock times to the monotonic clock, which has started anew. */
static void restore_times(struct hd_core *core, struct core_job *job)
{
    struct core_attempt *attempt = core_active(job);
    const int64_t behind_ms = core->now.wall_ms - core->now.mono_ms;

    attempt->state_since_mono_ms = core->now.mono_ms;
    attempt->last_step_mono_ms =
        attempt->last_step_ms ? attempt->last_step_ms - behind_ms : core->now.mono_ms;
    for (size_t i = 0; i < job->checkpoint_count; i++)
        if (job->checkpoints[i].attempt == attempt->rec.attempt && job->checkpoints[i].time_ms)
            attempt->saved_mono_ms = job->checkpoints[i].time_ms - behind_ms;
    if (attempt->rec.stop_cause == HD_END_CAUSE_PREEMPTED && attempt->rec.stop_job)
        restore_pending(core, attempt->rec.stop_job);
}

enum hd_status hd_core_restored(struct hd_core *core, uint64_t last_job, uint64_t cluster_sequence,
                                struct hd_now now)
{
    core->last_job = last_job;
    core->cluster_sequence = cluster_sequence;
    core->now = now;
    for (size_t i = 0; i < core->node_count; i++) {
        core->nodes[i]->seen_mono_ms = core->nodes[i]->silent_since_mono_ms = now.mono_ms;
        core->nodes[i]->silent_since_ms = now.wall_ms;
    }
    for (size_t i = 0; i < core->active.count; i++)
        restore_times(core, core->active.items[i]);
    core->limit_reported = core_reaches(core, HD_CTL_JOBS_WARN_PERCENT);
    for (struct core_job *job = core_table_next(&core->jobs, NULL); job;
         job = core_table_next(&core->jobs, job)) {
        if (job->rec.state == HD_JOB_STATE_QUEUED && core_wants_search(job))
            core_search_begin(core, job); /* a search of the disk from before the restart may be
                                           * unanswered */
        if (core_waits_for_deletion(job))
            core_jobs_add(core, &core->deleting, job);
        if (job->rec.state == HD_JOB_STATE_QUEUED && job->needs.after_count)
            core_waiting_again(core, job); /* the outcomes of the jobs that it waits for are known
                                            * only now */
        if (job->rec.state == HD_JOB_STATE_QUEUED && job->rec.planned_start_ms)
            core_jobs_add(core, &core->planned_to_start, job);
    }
    core_arrays_settle(core);
    core->due |=
        CORE_DUE_DEPENDENTS; /* notifies dependents of jobs that ended just before the stop */
    core->due |= CORE_DUE_PASS;
    return check_memory(core);
}

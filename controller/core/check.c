/* check: verifies the invariants I1 to I18, which core.c lists. Slow; only tests and simulations call
 * it. Where a cache or a shortcut of the scheduler is wrong, schedule_check.c finds it. */
#include "controller/core/schedule/schedule.h"

static enum hd_status check_holds(const struct hd_core *core)
{
    for (size_t n = 0; n < core->node_count; n++) {
        const struct core_node *node = core->nodes[n];

        for (int32_t d = 0; d < node->rec.device_count; d++) {
            const struct core_job *job = core_find_job(core, node->holds[d].job);
            const struct core_attempt *attempt = job ? core_active(job) : NULL;
            bool named = false;

            if (!node->holds[d].job)
                continue;
            for (int32_t r = 0; attempt && r < attempt->rec.plan.rank_count; r++)
                named |= attempt->rec.attempt == node->holds[d].attempt &&
                         core_same(attempt->rec.plan.ranks[r].node_uuid, node->rec.uuid) &&
                         attempt->rec.plan.ranks[r].device == node->rec.devices[d].index;
            if (!named || node->holds[d].by != attempt)
                return hd_err(HD_INTERNAL,
                              "I1: device %d of %s is held by job %llu, whose plan does not "
                              "name it",
                              d, node->rec.name, (unsigned long long)node->holds[d].job);
        }
    }
    return HD_OK;
}

static int32_t count_holds(const struct hd_core *core, const struct core_attempt *attempt)
{
    int32_t count = 0;

    for (size_t n = 0; n < core->node_count; n++) {
        for (int32_t d = 0; d < core->nodes[n]->rec.device_count; d++)
            count += core->nodes[n]->holds[d].job == attempt->rec.job &&
                     core->nodes[n]->holds[d].attempt == attempt->rec.attempt;
    }
    return count;
}

static bool has_split_tp_group(const struct hd_plan_record *plan)
{
    for (int32_t r = 0; r < plan->rank_count; r++)
        if (!core_same(plan->ranks[r].node_uuid, plan->ranks[r - r % plan->layout.tp].node_uuid))
            return true;
    return false;
}

static enum hd_status check_attempts(const struct hd_core *core, const struct core_job *job)
{
    const unsigned long long number = job->rec.job;

    for (int32_t k = 1; k <= job->rec.attempt_count; k++) {
        const struct core_attempt *attempt = core_find_attempt(job, k);

        if (has_split_tp_group(&attempt->rec.plan))
            return hd_err(HD_INTERNAL, "I11: attempt %d of job %llu has a tp group on two nodes", k,
                          number);
        if ((attempt == job->active) != (attempt->rec.state != HD_ATTEMPT_STATE_ENDED))
            return hd_err(HD_INTERNAL, "I12: attempt %d of job %llu is %sthe active one", k, number,
                          attempt == job->active ? "" : "not ");
        if (attempt->rec.state == HD_ATTEMPT_STATE_ENDED) {
            if (count_holds(core, attempt))
                return hd_err(HD_INTERNAL, "I1: ended attempt %d of job %llu holds devices", k,
                              number);
            continue;
        }
        if (k != job->rec.attempt_count)
            return hd_err(HD_INTERNAL, "I2: attempt %d of job %llu has not ended, %d exists", k,
                          number, job->rec.attempt_count);
        if (count_holds(core, attempt) != attempt->rec.plan.rank_count)
            return hd_err(HD_INTERNAL, "I3: attempt %d of job %llu holds %d devices for %d ranks",
                          k, number, count_holds(core, attempt), attempt->rec.plan.rank_count);
        for (size_t s = 0; s < attempt->alloc_count; s++) {
            if (attempt->allocs[s].node->rec.state == HD_NODE_STATE_LOST &&
                !attempt->allocs[s].ended)
                return hd_err(HD_INTERNAL, "I7: job %llu runs on %s, which is lost", number,
                              attempt->allocs[s].node->rec.name);
        }
    }
    return HD_OK;
}

static enum hd_status check_job(const struct hd_core *core, const struct core_job *job)
{
    const struct core_attempt *newest = core_newest(job), *active = core_active(job);
    const bool live = job->rec.state <= HD_JOB_STATE_STOPPING;
    const struct core_known_job *request =
        core_request_find(core, job->rec.request_id, job->rec.owner);

    if (live == job->ended)
        return hd_err(HD_INTERNAL, "I4: job %llu is %s but %s", (unsigned long long)job->rec.job,
                      hd_job_state_name(job->rec.state), job->ended ? "ended" : "not ended");
    if ((active != NULL) !=
        (job->rec.state == HD_JOB_STATE_RUNNING || job->rec.state == HD_JOB_STATE_STOPPING))
        return hd_err(HD_INTERNAL, "I4: job %llu is %s %s an attempt",
                      (unsigned long long)job->rec.job, hd_job_state_name(job->rec.state),
                      active ? "with" : "without");
    for (size_t i = 0; i < job->checkpoint_count; i++) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i];

        if (live && newest && c->attempt == newest->rec.base_attempt &&
            c->step == newest->rec.base_step && c->state != HD_CHECKPOINT_STATE_PRESENT &&
            !c->missing)
            return hd_err(HD_INTERNAL, "I6: the base of attempt %d of job %llu is being deleted",
                          newest->rec.attempt, (unsigned long long)job->rec.job);
    }
    if (!request || request->job != job->rec.job)
        return hd_err(HD_INTERNAL, "I10: request id %s does not belong to job %llu",
                      job->rec.request_id, (unsigned long long)job->rec.job);
    return check_attempts(core, job);
}

/* Returns whether the job is in the set `active` of every node that has ranks of it. */
static bool is_in_sets_of_nodes(const struct core_job *job)
{
    const struct core_attempt *attempt = core_active(job);
    bool is_in = true;

    for (size_t i = 0; attempt && i < attempt->alloc_count; i++)
        is_in = is_in && core_jobs_have(&attempt->allocs[i].node->active, job);
    return is_in;
}

static enum hd_status check_sets(const struct hd_core *core, const struct core_job *job)
{
    const bool queued = job->rec.state == HD_JOB_STATE_QUEUED;
    const char *set = NULL;

    if (core_jobs_have(&core->active, job) != (core_active(job) != NULL))
        set = "active";
    else if (!is_in_sets_of_nodes(job))
        set = "active on some node";
    else if (core_jobs_have(&core->deleting, job) != core_waits_for_deletion(job))
        set = "deleting";
    else if ((job->group != NULL) !=
             (queued && job->wait != CORE_WAIT_DELAY && job->wait != CORE_WAIT_SEARCH &&
              job->wait != CORE_WAIT_MISSING && job->wait != CORE_WAIT_HELD &&
              job->wait != CORE_WAIT_AFTER && job->wait != CORE_WAIT_ARRAY))
        set = "waiting";
    else if (job->group && core_lacks_checkpoint(job))
        set = "waiting, though its checkpoints are missing";
    else if (job->group && (job->rec.held || core_jobs_have(&core->dependents, job)))
        set = "held or after others";
    else if (core_jobs_have(&core->planned_to_start, job) !=
             (queued && job->rec.planned_start_ms != 0))
        set = "expected to start";
    else if (core_jobs_have(&core->preemptors, job) != job->is_preemptor ||
             (job->is_preemptor && !queued) || (job->pending && !job->is_preemptor))
        set = "waiting for devices of others";
    else if (core_jobs_have(&core->migrating, job) != (job->migration_group != 0) ||
             (job->migration_target && queued))
        set = "moving";
    else if (core_jobs_have(&core->searching, job) != (queued && job->search))
        set = "searching";
    return set ? hd_err(HD_INTERNAL,
                        "I12: job %llu, which is %s, is wrongly in, or missing from, "
                        "the set of those that are %s",
                        (unsigned long long)job->rec.job, hd_job_state_name((int)job->rec.state),
                        set)
               : HD_OK;
}

/* Checks that no node's set `active` has more jobs than belong in it; check_sets checks that those
 * that belong are in it. */
static enum hd_status count_sets(const struct hd_core *core)
{
    size_t live = 0, active = 0, deleting = 0, waiting = 0, linked = 0, allocs = 0, on_nodes = 0;

    for (const struct core_job *job = core_table_next(&core->jobs, NULL); job;
         job = core_table_next(&core->jobs, job)) {
        live += !job->ended;
        active += core_active(job) != NULL;
        allocs += core_active(job) ? core_active(job)->alloc_count : 0;
        deleting += core_waits_for_deletion(job);
        waiting += job->group != NULL;
    }
    for (size_t i = 0; i < core->group_count; i++) {
        for (const struct core_job *job = core->groups[i]->first; job; job = job->after) {
            if (job->group != core->groups[i] ||
                (job->after && job->after->rec.job <= job->rec.job))
                return hd_err(HD_INTERNAL, "I12: job %llu is in the wrong place of its group",
                              (unsigned long long)job->rec.job);
            linked++;
        }
    }
    for (size_t i = 0; i < core->node_count; i++)
        on_nodes += core->nodes[i]->active.count;
    if (allocs != on_nodes)
        return hd_err(HD_INTERNAL, "I12: attempts have %zu node allocations, nodes %zu", allocs,
                      on_nodes);
    if (live != core->live_count)
        return hd_err(HD_INTERNAL, "%zu jobs live, %zu are counted", live, core->live_count);
    if (active != core->active.count || deleting != core->deleting.count || waiting != linked)
        return hd_err(HD_INTERNAL,
                      "I12: %zu active, %zu deleting, %zu waiting; the sets have %zu, "
                      "%zu and %zu",
                      active, deleting, waiting, core->active.count, core->deleting.count, linked);
    return HD_OK;
}

enum hd_status hd_core_check(const struct hd_core *core)
{
    enum hd_status st = check_holds(core);

    for (const struct core_job *job = core_table_next(&core->jobs, NULL); !st && job;
         job = core_table_next(&core->jobs, job)) {
        st = check_job(core, job);
        if (!st)
            st = check_sets(core, job);
    }
    if (!st)
        st = count_sets(core);
    if (!st)
        st = core_check_quotas(core);
    if (!st)
        st = core_check_arrays(core);
    if (!st)
        st = core_check_free(core);
    if (!st)
        st = core_check_most(core);
    return st ? st : core_schedule_check(core);
}

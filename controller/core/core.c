/* core: the step, the lists of changed records, queries and the invariants.
 *
 * Invariants (the tests run hd_core_check, which verifies them, after every event):
 *
 *   I1  A device is held by an attempt if and only if the attempt has not ended and its plan names
 *       the device; so no device is held twice.
 *   I2  A job has at most one attempt that has not ended, and it is the newest.
 *   I3  All or nothing: an attempt that has not ended holds a device for each of its ranks.
 *   I4  A job is running or stopping if and only if it has such an attempt; queued, if it has none
 *       and has not ended.
 *   I5  Only checkpoints of the newest attempt are accepted. Once attempt k+1 is stored with its
 *       base checkpoint, later writes of attempts 1..k have no effect.
 *   I6  The base of the newest attempt of a live job is never deleted.
 *   I7  A lost node has no part in an attempt that has not ended.
 *   I8  An ended attempt and an ended job never change state again, with two exceptions: a user
 *       resumes a job (or removes it, and only its number stays); an attempt that ended because its
 *       only node was lost continues when that node returns before the next attempt has started.
 *   I9  The entries of a job's history are numbered 1, 2, 3 .. without a gap.
 *   I10 A request id belongs to one job and is never reused, nor accepted with another spec.
 *   I11 The ranks of a tensor-parallel group are on one node.
 *   I12 Each set of jobs that steps iterate over holds exactly the jobs that belong in it.
 *   I13 Evaluating every queued job one by one would start none and reserve the same nodes:
 *       evaluating whole classes, and a new job alone, misses nothing.
 *   I14 The devices counted as held by queues and users are those that their attempts hold.
 *   I15 The arrays that searches read (free devices, by node and by switch; marks) match the nodes.
 *   I16 The quick test for the existence of a placement agrees with a full search: now and after
 *       some ends, within each tier, and when others are preempted (for the first waiting jobs).
 *   I17 After as many ends as a search returns there is a placement; after one less there is none.
 *   I18 No more members of an array may start than may run, and no fewer if more of them wait; they
 *       are the first by priority and number of those that run in no attempt.
 *
 * Job:                                           core_submit
 *                                                     |
 *                  attempt_end (retry)                v          core_cancel
 *                ,------------------------------->  queued  ---------------------> cancelled
 *                |                                    | core_attempt_start             ^
 *                |                                    v          core_cancel           |
 *                '-------------------------------- running ----------> stopping -------'
 *                                                     |                    |   attempt_end
 *                                       attempt_end   |                    |
 *                                                     '--> succeeded <-----'  (finished first)
 *                                                     '--> failed
 *
 *             (retry: also after a preemption, core_attempt_stop_for; queued includes held jobs and
 *             jobs that wait for other jobs, waiting.c; a dependent of a job that did not succeed
 *             becomes cancelled)
 *
 * Attempt:    core_attempt_start      all node allocations run       core_attempt_fail, core_cancel
 *                   |                 (core_observed)
 *                   '---> starting ------> running ------> stopping
 *                            |                |               |      the last node allocation ended
 *                            '----------------'---------------'-------> ended (core_node_alloc_end)
 *
 * Node:       core_hello      silent (core_node_timers)    silent longer
 *                   '---> ready ---------> unreachable ---------> lost
 *                          ^ |                  |                  |      core_hello, any message
 *        core_drain(undo)  | | core_drain       '------------------'----> ready or draining
 *                          | v
 *                        draining ---> drained    (its last attempt has ended)
 *             core_node_remove: forgets a node without work that is drained, lost or not connected;
 *             its daemon may join again, as a new node
 */
#include <stdio.h>
#include <stdlib.h>

#include "controller/core/core_schedule.h"
#include "controller/core/core_texts.h"

const struct hd_core_config hd_core_config_default = {
    .unreachable_ms = 15 * 1000,
    .lost_ms = 180 * 1000,
    .search_timeout_ms = 60 * 1000,
    .lost_confirmed_ms = 60 * 1000,
    .restart_grace_ms = 300 * 1000,
    .start_timeout_ms = 600 * 1000,
    .stop_grace_ms = 300 * 1000,
    .retry_delay_ms = 1000,
    .retry_delay_max_ms = 60 * 1000,
    .jobs_live_max = HD_CTL_JOBS_LIVE_MAX,
};

/* ---- lists of changed records -----------------------------------------------------------------*/

static void flush_node(struct hd_core *core, struct core_node *node)
{
    struct hd_core_out *out = core->out;

    if (node->dirty)
        hd_batch_add_node(out->batch, &node->rec);
    if (node->desired_dirty && node->synced &&
        core_grow_array(core, &out->nodes, out->node_count, &out->node_size, sizeof *out->nodes))
        (void)snprintf(out->nodes[out->node_count++], sizeof *out->nodes, "%s", node->rec.uuid);
    node->dirty = node->desired_dirty = false;
}

static void flush_job(struct hd_core *core, struct core_job *job)
{
    struct hd_core_out *out = core->out;

    if (job->rec.removal == HD_REMOVAL_BEGUN && !core_waits_for_deletion(job))
        job->rec.removal = HD_REMOVAL_DONE;
    hd_batch_add_job(out->batch, job->is_new, &job->rec);
    for (int32_t i = 0; i < job->rec.attempt_count; i++) {
        if (job->attempts[i]->dirty)
            hd_batch_add_attempt(out->batch, &job->attempts[i]->rec);
        job->attempts[i]->dirty = false;
    }
    core_announce(core, job);
    job->dirty = job->is_new = job->rec.spec_changed = false;
    if (job->ended && !core_waits_for_deletion(job))
        core_job_forget(core, job);
}

/* Adds the records that the step has changed to its batch. Nodes go in the order of their first
 * change, because a name must be given up before another node takes it. */
static void flush(struct hd_core *core)
{
    while (core->dirty_nodes) {
        struct core_node *node = core->dirty_nodes;

        core->dirty_nodes = node->next_dirty;
        flush_node(core, node);
    }
    core->dirty_nodes_end = &core->dirty_nodes;
    while (core->dirty_jobs) {
        struct core_job *job = core->dirty_jobs;

        core->dirty_jobs = job->next_dirty;
        flush_job(core, job);
    }
    core->dirty_jobs_end = &core->dirty_jobs;
}

/* ---- the step ---------------------------------------------------------------------------------*/

static enum hd_status tick(struct hd_core *core)
{
    core_report_away(core);
    for (size_t i = 0; i < core->node_count; i++)
        core_node_timers(core, core->nodes[i]);
    for (size_t i = 0; i < core->active.count; i++)
        core_attempt_timers(core, core->active.items[i]);
    for (size_t i = core->searching.count; i > 0; i--) /* from the end: a search that ends leaves
                                                        * the set core->searching */
        core_search_timers(core, core->searching.items[i - 1]);
    core->schedule_due |= core_waiting_due(core) || core->unsettled;
    core_planned_start_timers(core);
    return HD_OK;
}

static enum hd_status dispatch(struct hd_core *core, const struct hd_core_event *event)
{
    switch (event->kind) {
    case HD_CORE_TICK:
        return tick(core);
    case HD_CORE_SUBMIT:
        return core_submit(core, event);
    case HD_CORE_CANCEL:
        return core_cancel(core, event);
    case HD_CORE_RESUME:
        return core_resume(core, event);
    case HD_CORE_REQUEUE:
        return core_requeue(core, event);
    case HD_CORE_CHECKPOINT_NOW:
        return core_checkpoint_now(core, event);
    case HD_CORE_HOLD:
    case HD_CORE_RELEASE:
        return core_hold(core, event);
    case HD_CORE_SET_QUEUE:
        return core_set_queue(core, event);
    case HD_CORE_REMOVE_QUEUE:
        return core_remove_queue(core, event);
    case HD_CORE_DRAIN:
    case HD_CORE_UNDRAIN:
        return core_drain(core, event);
    case HD_CORE_REMOVE_NODE:
        return core_node_remove(core, event);
    case HD_CORE_HELLO:
        return core_hello(core, event);
    case HD_CORE_ALIVE:
        return core_alive(core, event);
    case HD_CORE_COPY:
        return core_copy(core, event);
    case HD_CORE_NOTE:
        core_event(core, NULL, event->note.kind, 0, -1, event->note.node, "%s",
                   event->note.message);
        return HD_OK;
    case HD_CORE_DISCONNECTED:
        return core_disconnected(core, event);
    case HD_CORE_OBSERVED:
        return core_observed(core, event);
    case HD_CORE_REPORT:
        return core_report(core, event);
    case HD_CORE_FOUND:
        return core_found(core, event);
    case HD_CORE_END_ALL:
        return core_end_all(core, event);
    case HD_CORE_REMOVE:
        return core_remove(core, event);
    case HD_CORE_PLANNED:
        return core_planned(core, event);
    case HD_CORE_PROBE:
        return core_probe_ask(core, event);
    case HD_CORE_JOBS_DIR:
        return core_jobs_dir(core, event);
    case HD_CORE_PROBED:
        return core_probed(core, event);
    }
    return hd_err(HD_INTERNAL, "unknown core event %d", (int)event->kind);
}

enum hd_status hd_core_step(struct hd_core *core, const struct hd_core_event *event,
                            struct hd_now now, struct hd_core_out *out)
{
    const struct hd_now before = core->now;
    enum hd_status st;

    core->out = out;
    core->now = now;
    core_away(core, before.mono_ms);
    core_follow_clock(core, before, event->kind == HD_CORE_TICK);
    st = dispatch(core, event);
    if (!st) {
        core_notify_dependents(core);
        core_arrays_settle(core);
        core_schedule(core);
        flush(core);
    }
    core->out = NULL;
    if (core->no_memory || hd_batch_failed(out->batch))
        return hd_err(HD_NO_MEMORY, "out of memory for the controller's state");
    return st;
}

void hd_core_out_clear(struct hd_core_out *out)
{
    out->node_count = out->job_count = out->search_count = out->asked_count = 0;
    out->job = 0;
    out->repeated = false;
    out->waits_for = NULL;
    out->evaluated = 0;
}

void hd_core_out_done(struct hd_core_out *out)
{
    free(out->nodes);
    free(out->jobs);
    free(out->searches);
    free(out->asked);
    *out = (struct hd_core_out){0};
}

struct hd_core *hd_core_new(const struct hd_core_config *config)
{
    struct hd_core *core = calloc(1, sizeof *core);

    if (!core)
        return NULL;
    core->config = *config;
    core->free_due = true;
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT; kind++)
        core->least_memory[kind] = INT64_MAX;
    core->dirty_jobs_end = &core->dirty_jobs;
    core->dirty_nodes_end = &core->dirty_nodes;
    if (!core_queue_put(core, &(struct hd_queue_record){.name = "default", .weight = 1})) {
        hd_core_free(core);
        return NULL;
    }
    return core;
}

void hd_core_free(struct hd_core *core)
{
    if (!core)
        return;
    for (struct core_job *job = core_table_next(&core->jobs, NULL), *next; job; job = next) {
        next = core_table_next(&core->jobs, job);
        core_job_free(job);
    }
    for (size_t i = 0; i < core->class_count; i++)
        free(core->classes[i]);
    for (size_t i = 0; i < core->group_count; i++)
        free(core->groups[i]);
    for (size_t i = 0; i < core->node_count; i++) {
        core_links_drop(core, core->nodes[i]);
        core_node_free(core->nodes[i]);
    }
    core_free_text(&core->jobs_dir_problem);
    free(core->links);
    free(core->medians);
    free(core->jobs.buckets);
    free(core->active.items);
    free(core->searching.items);
    free(core->price_unpredicted.items);
    free(core->deleting.items);
    free(core->delayed.items);
    free(core->classes);
    free(core->groups);
    core_arrays_done(core);
    free(core->dependents.items);
    free(core->preemptors.items);
    free(core->migrating.items);
    free(core->reservers.items);
    free(core->planned_to_start.items);
    free(core->resize_candidates.items);
    core_layout_cache_done(core);
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT; kind++) {
        free(core->reaches[kind]);
        free(core->reach_of[kind]);
    }
    core_arrays_free(core);
    free(core->allocations.items);
    free(core->free_slots);
    free(core->outcomes);
    core_queues_free(core);
    free(core->nodes);
    free(core->reserved);
    free(core->leaving);
    core_map_done(&core->node_by_uuid);
    core_map_done(&core->by_request);
    free(core->requests);
    free(core);
}

/* ---- queries ----------------------------------------------------------------------------------*/

static enum hd_status add_desired_attempts(const struct core_node *node, struct hd_arena *arena,
                                           struct hd_desired *desired)
{
    desired->attempts = hd_arena_array(arena, node->active.count + 1, sizeof *desired->attempts);
    if (!desired->attempts)
        return hd_err(HD_NO_MEMORY, "no memory for a desired set");
    for (size_t i = 0; i < node->active.count; i++) {
        const struct core_job *job = node->active.items[i];
        const struct core_attempt *attempt = core_active(job);

        desired->attempts[desired->attempt_count++] =
            (struct hd_desired_attempt){.job = &job->rec,
                                        .attempt = &attempt->rec,
                                        .wanted = core_wanted(job, attempt),
                                        .ran = attempt->rec.running_ms != 0 ||
                                               core_attempt_progressed(job, attempt->rec.attempt),
                                        .saves_asked = attempt->saves_asked};
    }
    return HD_OK;
}

static bool is_deletion_for(const struct hd_core *core,
                            const struct hd_checkpoint_record *checkpoint,
                            const struct core_node *node)
{
    return checkpoint->state == HD_CHECKPOINT_STATE_DELETING &&
           core_checkpoint_deleter(core, checkpoint) == node;
}

static enum hd_status add_deletions(const struct hd_core *core, const struct core_node *node,
                                    struct hd_arena *arena, struct hd_desired *desired)
{
    size_t count = 0;

    for (size_t i = 0; i < core->deleting.count; i++) {
        for (size_t k = 0; k < core->deleting.items[i]->checkpoint_count; k++)
            count += is_deletion_for(core, &core->deleting.items[i]->checkpoints[k], node);
        count += core_removes(core, core->deleting.items[i], node);
    }
    desired->deletions = hd_arena_array(arena, count + 1, sizeof *desired->deletions);
    if (!desired->deletions)
        return hd_err(HD_NO_MEMORY, "no memory for a desired set");
    for (size_t i = 0; i < core->deleting.count; i++) {
        for (size_t k = 0; k < core->deleting.items[i]->checkpoint_count; k++) {
            const struct hd_checkpoint_record *c = &core->deleting.items[i]->checkpoints[k];

            if (is_deletion_for(core, c, node))
                desired->deletions[desired->deletion_count++] =
                    (struct hd_deletion){.job = c->job,
                                         .attempt = c->attempt,
                                         .step = c->step,
                                         .path = c->path,
                                         .hash = c->hash};
        }
        if (core_removes(core, core->deleting.items[i], node))
            desired->deletions[desired->deletion_count++] =
                (struct hd_deletion){.job = core->deleting.items[i]->rec.job};
    }
    return HD_OK;
}

enum hd_status hd_core_desired(const struct hd_core *core, const char *uuid, struct hd_arena *arena,
                               struct hd_desired *ret_desired)
{
    const struct core_node *node = core_find_node(core, uuid);
    struct hd_desired desired = {0};
    enum hd_status st;

    if (!node || !node->synced)
        return hd_err(HD_CONFLICT, "node %s has not sent its observed set yet", uuid);
    desired.generation = node->generation;
    st = add_desired_attempts(node, arena, &desired);
    if (!st)
        st = add_deletions(core, node, arena, &desired);
    if (!st)
        *ret_desired = desired;
    return st;
}

const struct hd_job_record *hd_core_job(const struct hd_core *core, uint64_t number)
{
    const struct core_job *job = core_find_job(core, number);

    return job && !job->ended ? &job->rec : NULL;
}

const struct hd_attempt_record *hd_core_attempt(const struct hd_core *core, uint64_t number,
                                                int32_t attempt)
{
    const struct core_job *job = core_find_job(core, number);
    const struct core_attempt *found;

    if (!job || job->ended)
        return NULL;
    found = attempt ? core_find_attempt(job, attempt) : core_newest(job);
    return found ? &found->rec : NULL;
}

size_t hd_core_live_jobs(const struct hd_core *core)
{
    return core->live_count;
}

uint64_t hd_core_job_sequence(const struct hd_core *core, uint64_t number)
{
    const struct core_job *job = core_find_job(core, number);

    return job && !job->ended ? job->sequence : 0;
}

/* ---- invariants -------------------------------------------------------------------------------*/

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
    const struct core_request *request =
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

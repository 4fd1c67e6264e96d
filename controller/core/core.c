/* core: the step, the lists of changed records and queries.
 *
 * Invariants (the tests run hd_core_check in check.c, which verifies them, after every event):
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
 *       some ends, within each tier (for the first waiting jobs).
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
 *             (retry: also after a preemption, core_evict; queued includes held jobs and
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

#include "controller/core/schedule/schedule.h"
#include "controller/core/state/texts.h"

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

static enum hd_status tick(struct hd_core *core, const struct hd_core_event *event)
{
    (void)event;
    core_report_away(core);
    core_node_timers(core);
    for (size_t i = 0; i < core->active.count; i++)
        core_attempt_timers(core, core->active.items[i]);
    for (size_t i = core->searching.count; i > 0; i--) /* from the end: a search that ends leaves
                                                        * the set core->searching */
        core_search_timers(core, core->searching.items[i - 1]);
    core_due_if(core, CORE_DUE_PASS, core_waiting_due(core) || (core->due & CORE_DUE_TICK));
    core_planned_start_timers(core);
    return HD_OK;
}

static enum hd_status note(struct hd_core *core, const struct hd_core_event *event)
{
    core_event(core, NULL, event->note.kind, 0, -1, event->note.node, "%s", event->note.message);
    return HD_OK;
}

static enum hd_status (*const handlers[])(struct hd_core *,
                                          const struct hd_core_event *) = {[HD_CORE_TICK] = tick,
                                                                           [HD_CORE_NOTE] = note,
#define X(kind, function) [HD_CORE_##kind] = function,
                                                                           CORE_HANDLERS(X)
#undef X
};

enum hd_status hd_core_step(struct hd_core *core, const struct hd_core_event *event,
                            struct hd_now now, struct hd_core_out *out)
{
    const struct hd_now before = core->now;
    enum hd_status st;

    core->out = out;
    core->now = now;
    core_away(core, before.mono_ms);
    core_follow_clock(core, before, event->kind == HD_CORE_TICK);
    st = handlers[event->kind](core, event);
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
    out->evaluated = out->forecasts = 0;
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
    core->due |= CORE_DUE_ARRAYS;
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
    core_queues_free(core);
    free(core->nodes);
    free(core->reserved);
    free(core->leaving);
    core_map_done(&core->node_by_uuid);
    core_map_done(&core->by_request);
    free(core->known_jobs);
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

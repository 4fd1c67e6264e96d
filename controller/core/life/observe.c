/* observe: processes the complete observed sets in which nodes report their attempts. */
#include <stdlib.h>
#include <string.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

/* Shortens the lease of another node that this node's report names as the cause of a failure. */
static void suspect_named_node(struct hd_core *core, const struct core_node *node,
                               const struct hd_end_record *end)
{
    struct core_node *other;

    if (!end->node || !*end->node || core_same(end->node, node->rec.name))
        return;
    other = core_find_node_named(core, end->node);
    if (other)
        other->suspect = true;
    core->due |= CORE_DUE_SILENCE;
}

static void alloc_runs(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       struct core_node_alloc *alloc)
{
    alloc->running = true;
    if (attempt->rec.state != HD_ATTEMPT_STATE_STARTING)
        return;
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        if (!attempt->allocs[i].running)
            return;
    }
    attempt->rec.state = HD_ATTEMPT_STATE_RUNNING;
    attempt->rec.running_ms = core->now.wall_ms;
    (void)core_note_running(core, attempt);
    core_dirty_attempt(core, job, attempt);
    core_event_running(core, job, attempt);
}

/* Replaces a secondary failure (a consequence of another node's) by its cause, if a node of the
 * attempt waits because its disk accepts no writes. */
static void blame_the_wait(const struct core_attempt *attempt, struct hd_end_record *end)
{
    for (size_t i = 0; end->secondary && i < attempt->alloc_count; i++) {
        const struct core_node_alloc *alloc = &attempt->allocs[i];

        if (alloc->ended || !alloc->waits)
            continue;
        *end = (struct hd_end_record){.cause = HD_END_CAUSE_STORAGE,
                                      .rank = -1,
                                      .node = alloc->node->rec.name,
                                      .message = alloc->problem};
    }
}

/* Replaces the cause of an attempt's end by a network failure if the ranks on every node stopped
 * only because those of another node were gone, and no node reports a failed rank. */
static void blame_the_network(struct hd_core *core, struct core_job *job,
                              struct core_attempt *attempt)
{
    struct hd_end_record end = attempt->rec.end;
    struct hd_text message = {0};

    for (size_t i = 0; i < attempt->alloc_count; i++)
        if (!attempt->allocs[i].secondary)
            return;
    core_add_disconnection(attempt, &message);
    end.secondary = false;
    end.node = "";
    end.message = core_text(core, &message);
    core_attempt_fail(core, job, attempt, &end);
    hd_text_free(&message);
}

static void alloc_ended(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                        struct core_node_alloc *alloc, const struct hd_observed *observed)
{
    struct hd_end_record end = observed->end;

    if (!end.node || !*end.node)
        end.node = alloc->node->rec.name;
    if (end.secondary && end.rank >= 0 && end.rank < attempt->rec.plan.rank_count)
        end.node =
            attempt->rec.plan.ranks[end.rank].node_name; /* node of that rank, for which the others
                                                          * waited */
    suspect_named_node(core, alloc->node, &end);
    core_due_if(core, CORE_DUE_SILENCE, end.secondary);
    /* a secondary failure names no culprit: suspect all other nodes; a node's next message clears
     * it */
    for (size_t i = 0; end.secondary && i < attempt->alloc_count; i++)
        attempt->allocs[i].node->suspect |=
            !attempt->allocs[i].ended && &attempt->allocs[i] != alloc;
    blame_the_wait(attempt, &end);
    alloc->secondary =
        end.secondary && end.cause == HD_END_CAUSE_RANK_EXIT && attempt->alloc_count > 1;
    if (end.cause == HD_END_CAUSE_COMPLETED && end.exit_code == HD_END_EXIT_EARLY) {
        attempt->early = true;
        core_set_text(core, &attempt->rec.end.message, end.message);
    }
    if (end.cause != HD_END_CAUSE_COMPLETED)
        core_attempt_fail(core, job, attempt, &end);
    blame_the_network(core, job, attempt);
    core_node_alloc_end(core, job, attempt, alloc);
}

/* Returns whether an attempt that ended because its node was lost can continue: no other attempt of
 * the job was started since, the node still runs it, and other jobs do not use up its quota. Only
 * for an attempt on one node: the ranks of a gang were stopped on the other nodes. */
static bool may_revive(const struct core_job *job, const struct core_attempt *attempt,
                       const struct core_node *node, const struct hd_observed *observed)
{
    const struct hd_plan_record *plan = &attempt->rec.plan;
    bool by_user;

    if (attempt != core_newest(job) || job->ended || job->rec.cancel ||
        attempt->rec.state != HD_ATTEMPT_STATE_ENDED ||
        attempt->rec.end.cause != HD_END_CAUSE_NODE_LOST || attempt->alloc_count != 1 ||
        attempt->allocs[0].node != node || observed->state < HD_ATTEMPT_STATE_RUNNING ||
        observed->end.cause == HD_END_CAUSE_NODE_LOST || /* the node also reports the attempt as
                                                          * lost */
        core_quota_left(job->account, &by_user) < plan->rank_count)
        return false;
    for (int32_t r = 0; r < plan->rank_count; r++) {
        const int32_t d = core_find_device(node, plan->ranks[r].device);

        if (d < 0 || node->holds[d].job)
            return false;
    }
    return true;
}

static void revive(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    struct core_node_alloc *alloc = &attempt->allocs[0];
    struct core_node *node = alloc->node;

    attempt->failed = attempt->kill = false;
    core_attempt_set_end(core, attempt, &(struct hd_end_record){.rank = -1});
    attempt->rec.ended_ms = 0;
    attempt->rec.state = HD_ATTEMPT_STATE_RUNNING;
    if (!attempt->rec.running_ms)
        attempt->rec.running_ms = core->now.wall_ms;
    alloc->listed = alloc->running = true;
    alloc->ended = false;
    alloc->stop_generation = 0;
    for (int32_t r = 0; r < attempt->rec.plan.rank_count; r++)
        node->holds[core_find_device(node, attempt->rec.plan.ranks[r].device)] =
            (struct hd_device_hold){.job = attempt->rec.job,
                                    .attempt = attempt->rec.attempt,
                                    .start = attempt->start_number}; /* may_revive found it */
    core_node_changed(core, node);
    core_quota_take(job, attempt->rec.plan.rank_count);
    core->due |= CORE_DUE_PASS;
    core_set_job_state(core, job, HD_JOB_STATE_RUNNING);
    core_active_add(core, job);
    job->rec.devices = attempt->rec.plan.rank_count;
    core_dirty_attempt(core, job, attempt);
    core_dirty_desired(core, node);
    core_node_refresh(core, node);
    core_event_attempt_back(core, job, attempt, node);
}

/* Returns whether two problem texts have the same part before the colon, as in "waits to start: no
 * space"; the details behind it may change. */
static bool is_same_problem(const char *a, const char *b)
{
    const size_t n = strcspn(a, ":");

    return *a && n == strcspn(b, ":") && strncmp(a, b, n) == 0;
}

static void take_problem(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                         struct core_node_alloc *alloc, const char *problem)
{
    const char *before = alloc->problem ? alloc->problem : "";
    const bool is_new = *problem && !is_same_problem(before, problem);

    if (core_same(before, problem))
        return;
    core_set_text(core, &alloc->problem, problem);
    if (is_new)
        core_event_problem(core, job, attempt, alloc);
    core_announce(core, job);
}

static void take_observed_attempt(struct hd_core *core, struct core_node *node,
                                  const struct hd_observed *observed)
{
    struct core_job *job = core_find_job(core, observed->job);
    struct core_attempt *attempt = job ? core_find_attempt(job, observed->attempt) : NULL;
    struct core_node_alloc *alloc = NULL;

    if (attempt && may_revive(job, attempt, node, observed))
        revive(core, job, attempt);
    for (size_t i = 0; attempt && i < observed->checkpoint_count; i++)
        core_checkpoint_take(core, job, attempt, node, &observed->checkpoints[i]);
    if (attempt && attempt->rec.state != HD_ATTEMPT_STATE_ENDED)
        alloc = core_find_node_alloc(attempt, node);
    if (!alloc || alloc->ended) {
        if (observed->state != HD_ATTEMPT_STATE_ENDED) {
            node->stale_count++;
            node->stale_job = observed->job;
            node->stale_attempt = observed->attempt;
        }
        return;
    }
    alloc->listed = true;
    take_problem(core, job, attempt, alloc, observed->problem ? observed->problem : "");
    alloc->waits = observed->waits && alloc->problem && *alloc->problem;
    if (observed->state == HD_ATTEMPT_STATE_RUNNING)
        alloc_runs(core, job, attempt, alloc);
    else if (observed->state == HD_ATTEMPT_STATE_ENDED)
        alloc_ended(core, job, attempt, alloc, observed);
}

static bool is_listed(const struct hd_core_event *event, const struct core_attempt *attempt)
{
    for (size_t i = 0; i < event->observed.attempt_count; i++) {
        if (event->observed.attempts[i].job == attempt->rec.job &&
            event->observed.attempts[i].attempt == attempt->rec.attempt)
            return true;
    }
    return false;
}

/* Returns whether the node has applied a desired set that stops its part of the attempt. */
static bool is_stopped_there(const struct hd_core_event *event, const struct core_node_alloc *alloc)
{
    return alloc->stop_generation && event->observed.generation >= alloc->stop_generation;
}

/* Handles an attempt that the node's observed set should list and does not: the node has not
 * applied the desired set yet (no action), has stopped the attempt before its start, or has lost
 * it. */
static void end_unlisted(struct hd_core *core, struct core_node *node,
                         const struct hd_core_event *event, struct core_job *job)
{
    struct core_attempt *attempt = core_active(job);
    struct core_node_alloc *alloc = core_find_node_alloc(attempt, node);
    struct hd_end_record end = {.rank = -1, .node = node->rec.name};

    core->out->evaluated++;
    if (alloc->ended || is_listed(event, attempt))
        return;
    if (alloc->listed && !(alloc->waits && is_stopped_there(event, alloc))) {
        end.cause = HD_END_CAUSE_NODE_LOST;
        end.message = core_end_message(CORE_END_ATTEMPT_GONE);
    } else if (is_stopped_there(event, alloc)) {
        end.cause = HD_END_CAUSE_USER;
        end.message = core_end_message(CORE_END_NOT_STARTED);
    } else {
        return;
    }
    core_attempt_fail(core, job, attempt, &end);
    core_node_alloc_end(core, job, attempt, alloc);
}

/* Returns who does not see the jobs directory, so that the node may start no job although it
 * reports no problem: files written into an unmounted directory would be hidden after the mount,
 * and existing files cannot be read. */
static enum core_no_jobs_dir find_no_jobs_dir(const struct hd_core *core,
                                              const struct core_node *node)
{
    if (!node->synced || node->leaves)
        return CORE_NO_JOBS_DIR_NONE;
    if (core->jobs_dir_problem && *core->jobs_dir_problem)
        return CORE_NO_JOBS_DIR_ON_CONTROLLER;
    if (node->rec.saw_jobs_dir && !node->jobs_dir_visible)
        return CORE_NO_JOBS_DIR_ON_NODE;
    return CORE_NO_JOBS_DIR_NONE;
}

/* Recomputes whether the node accepts new attempts; adds an event on a change. */
static void update_refusal(struct hd_core *core, struct core_node *node)
{
    const bool before = node->refuses_attempts && *node->refuses_attempts,
               lacked = node->lacks_jobs_dir;
    const enum core_no_jobs_dir where = find_no_jobs_dir(core, node);
    const char *now = node->reported_refusal ? node->reported_refusal : "";
    struct hd_text text = {0};

    node->lacks_jobs_dir = where != CORE_NO_JOBS_DIR_NONE;
    if (where == CORE_NO_JOBS_DIR_ON_CONTROLLER || (node->lacks_jobs_dir && !*now)) {
        core_add_no_jobs_dir(core, node, where, &text);
        now = core_text(core, &text);
    }
    core_set_text(core, &node->refuses_attempts, now);
    if (node->lacks_jobs_dir ? !lacked : *now && !before && !node->leaves)
        core_event_refuses_jobs(core, node);
    else if (!*now && before)
        core_event_takes_jobs(core, node, lacked);
    core_due_if(core, CORE_DUE_PASS, node->lacks_jobs_dir != lacked);
    hd_text_free(&text);
}

/* Records whether the controller sees its jobs directory. Whether a node sees it is in the node's
 * observed set. */
enum hd_status core_jobs_dir(struct hd_core *core, const struct hd_core_event *event)
{
    core_set_text(core, &core->jobs_dir_problem, event->jobs_dir.problem);
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];

        if (node->rec.retired || !node->synced)
            continue;
        update_refusal(core, node);
        core_node_note(core, node);
        core_node_refresh(core, node);
    }
    core->due |= CORE_DUE_PASS;
    return HD_OK;
}

static void take_refusal(struct hd_core *core, struct core_node *node, const char *refuses_attempts,
                         bool leaves)
{
    core_set_text(core, &node->reported_refusal, refuses_attempts);
    core_due_if(core, CORE_DUE_PASS, leaves != node->leaves);
    if (leaves && !node->leaves)
        core_event_node_leaves(core, node, refuses_attempts);
    node->leaves = leaves;
    update_refusal(core, node);
    if (leaves)
        core_node_leaves(core, node);
}

/* ---- attempts that a restored database lacks --------------------------------------------------*/

/* Most attempts of one job that were begun after the backup of the database that was restored. */
enum { UNKNOWN_ATTEMPTS_MAX = 64 };

/* Fills in the plan that a job's first attempt would have had on this node, for an attempt whose
 * plan is unknown. False: the job does not fit there. */
static bool guess_plan(const struct core_job *job, const struct core_node *node,
                       struct hd_plan_record *ret_plan)
{
    const int32_t count = job->needs.devices_min;

    if (count < 1 || count > node->rec.device_count ||
        hd_core_plan(&job->needs, node->rec.devices[0].kind, count, ret_plan))
        return false;
    ret_plan->ranks = calloc((size_t)count, sizeof *ret_plan->ranks);
    if (!ret_plan->ranks)
        return false;
    ret_plan->rank_count = count;
    for (int32_t r = 0; r < count; r++)
        ret_plan->ranks[r] = (struct hd_rank_location){.node_uuid = node->rec.uuid,
                                                       .node_name = node->rec.name,
                                                       .device = node->rec.devices[r].index};
    return true;
}

/* Adds an ended placeholder attempt, so that no new attempt gets its number and folder. It copies
 * the plan of the attempt before it. NULL: no plan is possible, or no memory. */
static struct core_attempt *add_placeholder(struct hd_core *core, struct core_job *job,
                                            const struct core_node *node)
{
    const struct core_attempt *before = core_newest(job);
    struct hd_plan_record guessed = {0};
    struct hd_attempt_record record = {.job = job->rec.job,
                                       .attempt = job->rec.attempt_count + 1,
                                       .state = HD_ATTEMPT_STATE_ENDED,
                                       .created_ms = core->now.wall_ms,
                                       .ended_ms = core->now.wall_ms,
                                       .end = {.cause = HD_END_CAUSE_USER,
                                               .rank = -1,
                                               .node = node->rec.name,
                                               .message = core_end_message(CORE_END_PLACEHOLDER)}};
    struct core_attempt *made;

    if (before) {
        record.plan = before->rec.plan;
        record.base_attempt = before->rec.base_attempt;
        record.base_step = before->rec.base_step;
        record.base_path = before->rec.base_path;
        record.base_hash = before->rec.base_hash;
        record.run_as = before->rec.run_as;
    } else if (guess_plan(job, node, &guessed)) {
        record.plan = guessed;
    } else {
        return NULL;
    }
    made = core_attempt_new(core, job, &record);
    free(guessed.ranks);
    if (!made)
        return NULL;
    for (size_t i = 0; i < made->alloc_count; i++)
        made->allocs[i].ended = true;
    made->failed = made->kill = made->had_finite_step = true;
    core_dirty_attempt(core, job, made);
    return made;
}

/* Adds an attempt that a restored database does not know, if its node followed the controller from
 * before the restore. The attempt is stopped, because its base and plan are unknown. The job waits
 * until its folder is searched: the attempt's checkpoints become the job's, and the node may list
 * only some of them while the attempt runs. Attempts of other nodes are ignored. */
static void take_unknown(struct hd_core *core, struct core_node *node,
                         const struct hd_observed *observed)
{
    struct core_job *job = core_find_job(core, observed->job);
    struct core_attempt *made = NULL;

    if (!node->obeyed_before || !job || job->ended || core_active(job) ||
        observed->attempt <= job->rec.attempt_count ||
        observed->attempt > job->rec.attempt_count + UNKNOWN_ATTEMPTS_MAX ||
        observed->attempt > HD_CTL_ATTEMPTS_MAX)
        return;
    while (job->rec.attempt_count < observed->attempt) {
        made = add_placeholder(core, job, node);
        if (!made)
            return;
    }
    core_dirty_job(core, job);
    for (size_t i = 0; i < observed->checkpoint_count; i++)
        core_checkpoint_take(core, job, made, node, &observed->checkpoints[i]);
    core_event_attempt_unknown(core, job, observed->attempt, node);
    if (job->rec.state == HD_JOB_STATE_QUEUED)
        core_search_begin(core, job);
}

/* Adds an event for a running attempt that this controller did not start. Called once per stream of
 * the node. */
static void report_unknown(struct hd_core *core, const struct core_node *node,
                           const struct hd_observed *observed)
{
    struct core_job *job = core_find_job(core, observed->job);

    if (observed->state == HD_ATTEMPT_STATE_ENDED)
        return;
    if (job && observed->attempt > job->rec.attempt_count)
        core_event_attempt_refused(core, job, observed->attempt, node);
    else if (!job)
        core_event_job_unknown(core, node, observed->job, observed->attempt);
}

/* Makes an event of each copy that is newer than those known. Copies that the first observed set
 * after a start of the controller has may have an event already, so they get none. The core has
 * forgotten a job that has ended: what is copied then is told in the cluster's history. */
static void take_copies(struct hd_core *core, struct core_node *node,
                        const struct hd_core_event *event)
{
    for (size_t i = 0; i < event->observed.copied_count; i++) {
        const struct hd_copied *c = &event->observed.copied[i];
        struct core_job *job = core_find_job(core, c->job);

        if (c->time_ms <= node->copied_ms)
            continue;
        node->copied_ms = c->time_ms;
        if (node->knows_copies && job)
            core_event_checkpoint_copied(core, job, c, node);
        else if (node->knows_copies)
            core_event_ended_checkpoint_copied(core, node, c);
    }
    node->knows_copies = true;
}

enum hd_status core_observed(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = NULL;
    enum hd_status st = core_find_stream(core, event->observed.uuid, event->observed.stream, &node);
    bool was_usable, was_visible, is_first;

    if (st)
        return st;
    is_first = !node->synced;
    was_usable = core_node_usable(node);
    was_visible = node->jobs_dir_visible;
    core_node_renew(core, node);
    if (!node->synced)
        core_dirty_desired(core, node); /* the new desired set answers the first observed set of the
                                         * stream */
    node->synced = true;
    node->stale_count = 0;
    core_due_if(core, CORE_DUE_REACH, node->jobs_dir_visible != event->observed.jobs_dir_visible);
    node->jobs_dir_visible = event->observed.jobs_dir_visible;
    core_set_text(core, &node->jobs_dir_problem, event->observed.jobs_dir_problem);
    if (node->jobs_dir_visible && !node->rec.saw_jobs_dir) {
        node->rec.saw_jobs_dir = true;
        core_dirty_node(core, node);
    }
    take_refusal(core, node,
                 event->observed.refuses_attempts ? event->observed.refuses_attempts : "",
                 event->observed.leaves);

    for (size_t i = 0; i < event->observed.deleted_count; i++) {
        const struct hd_deletion *deletion = &event->observed.deleted[i];

        if (deletion->attempt)
            core_checkpoint_deleted(core, node, deletion);
        else
            core_removed(core, node, deletion->job, deletion->left);
    }
    take_copies(core, node, event);
    for (size_t i = 0; i < event->observed.attempt_count; i++)
        take_observed_attempt(core, node, &event->observed.attempts[i]);
    for (size_t i = 0; i < node->active.count;) {
        struct core_job *job = node->active.items[i];

        end_unlisted(core, node, event, job);
        i += core_active(job) != NULL; /* a job whose attempt ended has left the set */
    }
    for (size_t i = 0; i < event->observed.attempt_count; i++) {
        take_unknown(core, node, &event->observed.attempts[i]);
        if (is_first)
            report_unknown(core, node, &event->observed.attempts[i]);
    }
    node->told_all = true;
    core_node_rename(core, node);
    core_node_note(core, node);
    core_node_refresh(core, node);
    /* Ranks that came up change nothing for waiting jobs, and a gang reports that once per node. An
     * attempt that failed, ended or was revived has requested a pass itself. */
    core_due_if(core, CORE_DUE_PASS,
                (core->due & CORE_DUE_TICK) || core_node_usable(node) != was_usable ||
                    node->jobs_dir_visible != was_visible);
    return HD_OK;
}

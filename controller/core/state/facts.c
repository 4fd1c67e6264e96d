/* facts: what the records of a job, its attempts and its checkpoints say. Nothing here changes
 * anything; nothing is stored but the records. */
#include "controller/core/state/state.h"
#include "controller/core/state/texts.h"
#include "link/link.h"

/* ---- attempts ---------------------------------------------------------------------------------*/

enum hd_wanted core_wanted(const struct core_job *job, const struct core_attempt *attempt)
{
    if (attempt->kill || job->rec.cancel_now)
        return HD_WANTED_STOPPED;
    return job->rec.cancel || attempt->rec.stop_cause ? HD_WANTED_STOPPING : HD_WANTED_RUNNING;
}

bool core_is_stop(enum hd_end_cause cause)
{
    return cause == HD_END_CAUSE_USER || cause == HD_END_CAUSE_PREEMPTED ||
           cause == HD_END_CAUSE_TIME_LIMIT || cause == HD_END_CAUSE_RESIZED;
}

/* Returns whether an attempt's end by this cause counts as a failure of the job. A disk that
 * accepts no writes (STORAGE) does not: the job is retried until the disk recovers. */
bool core_is_failure(enum hd_end_cause cause)
{
    return cause == HD_END_CAUSE_RANK_EXIT || cause == HD_END_CAUSE_HANG ||
           cause == HD_END_CAUSE_LAUNCH_FAILED || cause == HD_END_CAUSE_INCOMPLETE ||
           cause == HD_END_CAUSE_OOM;
}

int64_t core_job_ran_ms(const struct hd_core *core, const struct core_job *job)
{
    int64_t ran_ms = 0;

    for (int32_t k = job->rec.attempt_count; k > job->rec.resumed_attempt; k--) {
        const struct hd_attempt_record *attempt = &core_find_attempt(job, k)->rec;

        if (attempt->running_ms)
            ran_ms +=
                (attempt->ended_ms ? attempt->ended_ms : core->now.wall_ms) - attempt->running_ms;
    }
    return ran_ms;
}

int64_t core_steps_left(const struct core_job *job)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);

    return job->rec.steps - (base ? base->step : 0);
}

bool core_has_failed(const struct core_job *job)
{
    const struct core_attempt *newest = core_newest(job);

    if (!newest || newest->rec.state != HD_ATTEMPT_STATE_ENDED)
        return false;
    switch (newest->rec.end.cause) {
    case HD_END_CAUSE_RANK_EXIT:
    case HD_END_CAUSE_NODE_LOST:
    case HD_END_CAUSE_HANG:
    case HD_END_CAUSE_LAUNCH_FAILED:
    case HD_END_CAUSE_STORAGE:
    case HD_END_CAUSE_INCOMPLETE:
        return true;
    default:
        return false;
    }
}

/* Returns whether the attempt ended because a rank could not load its base checkpoint: exit_code
 * HD_LINK_EXIT_BAD_BASE (damaged) or HD_LINK_EXIT_NO_BASE (missing). */
static bool refused_base(const struct core_attempt *attempt, int32_t exit_code)
{
    return attempt->rec.base_attempt && attempt->rec.state == HD_ATTEMPT_STATE_ENDED &&
           attempt->rec.end.cause == HD_END_CAUSE_RANK_EXIT &&
           attempt->rec.end.exit_code == exit_code;
}

bool core_attempt_found_base_damaged(const struct core_attempt *attempt)
{
    return refused_base(attempt, HD_LINK_EXIT_BAD_BASE);
}

bool core_attempt_lacked_base(const struct core_attempt *attempt)
{
    return attempt && refused_base(attempt, HD_LINK_EXIT_NO_BASE);
}

bool core_attempt_missed_base(const struct core_job *job, const struct core_attempt *attempt)
{
    if (!core_attempt_lacked_base(attempt))
        return false;
    for (int32_t k = attempt->rec.attempt - 1; k > job->rec.resumed_attempt; k--) {
        const struct core_attempt *before = core_find_attempt(job, k);

        if (core_attempt_lacked_base(before) &&
            before->rec.base_attempt == attempt->rec.base_attempt &&
            before->rec.base_step == attempt->rec.base_step)
            return false;
    }
    return true;
}

bool core_attempt_is_placeholder(const struct core_attempt *attempt)
{
    return attempt->rec.state == HD_ATTEMPT_STATE_ENDED &&
           attempt->rec.end.cause == HD_END_CAUSE_USER &&
           core_same(attempt->rec.end.message, core_end_message(CORE_END_PLACEHOLDER));
}

/* ---- checkpoints ------------------------------------------------------------------------------*/

bool core_checkpoint_is_newer(const struct hd_checkpoint_record *a,
                              const struct hd_checkpoint_record *b)
{
    return a->step != b->step ? a->step > b->step : a->attempt > b->attempt;
}

bool core_checkpoint_is_damaged(const struct core_job *job,
                                const struct hd_checkpoint_record *checkpoint)
{
    for (int32_t k = job->rec.attempt_count; k > checkpoint->attempt; k--) {
        const struct core_attempt *attempt = core_find_attempt(job, k);

        if (attempt && core_attempt_found_base_damaged(attempt) &&
            attempt->rec.base_attempt == checkpoint->attempt &&
            attempt->rec.base_step == checkpoint->step)
            return true;
    }
    return false;
}

/* Returns whether the checkpoint's weights may be broken: the checkpoint is not proven, and its
 * attempt, or one that started from it, diverged. */
static bool is_suspect(const struct core_job *job, const struct hd_checkpoint_record *checkpoint)
{
    for (int32_t k = checkpoint->attempt; !checkpoint->proven && k <= job->rec.attempt_count; k++) {
        const struct core_attempt *attempt = core_find_attempt(job, k);

        if (attempt && attempt->rec.end.cause == HD_END_CAUSE_DIVERGED &&
            (k == checkpoint->attempt || (attempt->rec.base_attempt == checkpoint->attempt &&
                                          attempt->rec.base_step == checkpoint->step)))
            return true;
    }
    return false;
}

bool core_checkpoint_is_there(const struct hd_checkpoint_record *checkpoint)
{
    return checkpoint->state == HD_CHECKPOINT_STATE_PRESENT && !checkpoint->missing;
}

/* Returns the newest checkpoint of the job from which an attempt may start; or_damaged: includes
 * those that an attempt found damaged; proven: only those that are. */
static const struct hd_checkpoint_record *find_newest(const struct core_job *job, bool or_damaged,
                                                      bool proven)
{
    const struct hd_checkpoint_record *newest = NULL;

    for (size_t i = 0; i < job->checkpoint_count; i++) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i];

        if (core_checkpoint_is_there(c) && (!newest || core_checkpoint_is_newer(c, newest)) &&
            (c->proven || !proven) && !is_suspect(job, c) &&
            (or_damaged || !core_checkpoint_is_damaged(job, c)))
            newest = c;
    }
    return newest;
}

const struct hd_checkpoint_record *core_checkpoint_sound(const struct core_job *job)
{
    return find_newest(job, false, false);
}

bool core_lacks_checkpoint(const struct core_job *job)
{
    bool lacks = false;

    for (size_t i = 0; i < job->checkpoint_count; i++) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i];

        if (c->state != HD_CHECKPOINT_STATE_PRESENT || is_suspect(job, c))
            continue;
        if (!c->missing)
            return false;
        lacks = true;
    }
    return lacks;
}

const struct hd_checkpoint_record *core_checkpoint_newest(const struct core_job *job)
{
    const struct hd_checkpoint_record *undamaged = find_newest(job, false, false);

    return undamaged ? undamaged : find_newest(job, true, false);
}

const struct hd_checkpoint_record *core_checkpoint_fallback(const struct core_job *job,
                                                            const struct core_attempt *attempt)
{
    return core_attempt_found_base_damaged(attempt) ? find_newest(job, false, false) : NULL;
}

bool core_checkpoint_is_final(const struct core_job *job, const struct core_attempt *attempt,
                              int64_t last_step)
{
    for (size_t i = 0; i < job->checkpoint_count; i++) {
        if (job->checkpoints[i].attempt == attempt->rec.attempt &&
            job->checkpoints[i].step >= last_step)
            return true;
    }
    return false;
}

bool core_attempt_progressed(const struct core_job *job, int32_t attempt)
{
    /* Callers go back from the newest attempt and stop at the first that progressed. That attempt's
     * last checkpoint is the newest of the job, which is deleted only after it was missing and a
     * user gave it up; then an attempt had started from it. */
    for (size_t i = 0; i < job->checkpoint_count; i++) {
        if (job->checkpoints[i].attempt == attempt)
            return true;
    }
    for (int32_t k = job->rec.attempt_count; k > attempt; k--) {
        const struct core_attempt *later = core_find_attempt(job, k);

        if (later && later->rec.base_attempt == attempt)
            return true;
    }
    return false;
}

struct hd_checkpoint_record *core_checkpoint_listed(struct core_job *job, int32_t attempt,
                                                    int64_t step)
{
    for (size_t i = 0; i < job->checkpoint_count; i++)
        if (job->checkpoints[i].attempt == attempt && job->checkpoints[i].step == step)
            return &job->checkpoints[i];
    return NULL;
}

const struct hd_checkpoint_record *core_checkpoint_best(const struct core_job *job)
{
    const struct hd_checkpoint_record *best = NULL;

    for (size_t i = 0; i < job->checkpoint_count && job->needs.keep_best; i++) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i];

        if (core_checkpoint_is_there(c) && hd_record_is_better(c, best) &&
            !core_checkpoint_is_damaged(job, c))
            best = c;
    }
    return best;
}

const struct hd_checkpoint_record *core_checkpoint_proven(const struct core_job *job)
{
    return find_newest(job, false, true);
}

bool core_can_read_base(const struct hd_checkpoint_record *base, const struct core_node *node)
{
    return !base || core_same(base->node_uuid, node->rec.uuid) ||
           (base->shared && node->jobs_dir_visible);
}

bool core_may_span(const struct hd_checkpoint_record *base)
{
    return !base || base->shared;
}

bool core_search_is_whole(const struct core_job *job)
{
    const struct core_attempt *newest = core_newest(job);
    bool whole =
        newest && (core_attempt_lacked_base(newest) || core_attempt_found_base_damaged(newest) ||
                   core_attempt_is_placeholder(newest));

    for (size_t i = 0; !whole && i < job->checkpoint_count; i++)
        whole = job->checkpoints[i].missing;
    return whole;
}

bool core_wants_search(const struct core_job *job)
{
    const struct core_attempt *newest = core_newest(job);

    return newest && (newest->rec.end.cause == HD_END_CAUSE_NODE_LOST ||
                      core_attempt_lacked_base(newest) || core_attempt_found_base_damaged(newest) ||
                      core_attempt_is_placeholder(newest) || core_lacks_checkpoint(job));
}

/* ---- nodes, jobs ------------------------------------------------------------------------------*/

bool core_node_has_come(const struct core_node *node)
{
    return node->connected || node->stream;
}

bool core_node_is_held(const struct core_node *node)
{
    for (int32_t i = 0; i < node->rec.device_count; i++) {
        if (node->holds[i].job)
            return true;
    }
    return false;
}

size_t hd_core_node_count(const struct hd_core *core)
{
    size_t count = core->node_count;

    while (count > 0 && core->nodes[count - 1]->rec.retired)
        count--;
    return count;
}

bool core_reaches(const struct hd_core *core, size_t percent)
{
    return core->live_count * 100 >= core->config.jobs_live_max * percent;
}

bool core_is_on(const struct core_placement *placement, const struct core_attempt *attempt)
{
    for (size_t m = 0; m < placement->member_count; m++)
        if (core_find_node_alloc(attempt, placement->members[m].node))
            return true;
    return false;
}

bool core_yields_to(const struct hd_core *core, const struct core_attempt *attempt,
                    const struct core_job *job)
{
    return attempt->rec.borrows && job->rec.job < attempt->rec.job &&
           core_find_job(core, attempt->rec.job)->rec.priority <= job->rec.priority;
}

bool core_waits_for_success(const struct hd_core *core, const struct core_job *job)
{
    for (int32_t i = 0; i < job->needs.after_count; i++)
        if (core_outcome_of(core, job->needs.after[i]) != HD_JOB_STATE_SUCCEEDED)
            return true;
    return false;
}

bool core_has_started(const struct core_job *job)
{
    return job->rec.attempt_count > job->rec.resumed_attempt;
}

struct core_node_alloc *core_next_unremoved(const struct core_job *job, int32_t *attempt,
                                            size_t *index)
{
    for (; *attempt <= job->rec.attempt_count; (*attempt)++, *index = 0) {
        const struct core_attempt *a = core_find_attempt(job, *attempt);

        while (*index < a->alloc_count) {
            struct core_node_alloc *alloc = &a->allocs[(*index)++];

            if (!alloc->removed)
                return alloc;
        }
    }
    return NULL;
}

/* Returns whether some node has still to confirm that it deleted the folder of this removed job. */
static bool waits_for_removal(const struct core_job *job)
{
    int32_t attempt = 1;
    size_t index = 0;

    return job->rec.removal == HD_REMOVAL_BEGUN && core_next_unremoved(job, &attempt, &index);
}

bool core_waits_for_deletion(const struct core_job *job)
{
    for (size_t i = 0; i < job->checkpoint_count; i++) {
        if (job->checkpoints[i].state == HD_CHECKPOINT_STATE_DELETING)
            return true;
    }
    return waits_for_removal(job);
}

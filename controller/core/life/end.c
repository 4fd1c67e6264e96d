/* end: how attempts and jobs end (told to stop, failed, complete, out of time), and how a job
 * continues after an attempt. */
#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

enum {
    WORTH_MS = 5 * 60 * 1000, /* milliseconds; an attempt that ran for less hardly repaid its start
                               * and stop */
    PREEMPTED_MAX = 2, /* limit of consecutive attempts that were preempted before they had run for
                        * WORTH_MS; the job's next start is then delayed */
};

/* ---- stop -------------------------------------------------------------------------------------*/

static void stop_allocs(struct hd_core *core, struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        struct core_node_alloc *alloc = &attempt->allocs[i];

        core_dirty_desired(core, alloc->node);
        if (!alloc->stop_generation)
            alloc->stop_generation = alloc->node->generation;
    }
}

void core_attempt_stop(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    stop_allocs(core, attempt);
    if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING)
        return;
    attempt->rec.state = HD_ATTEMPT_STATE_STOPPING;
    attempt->state_since_mono_ms = core->now.mono_ms;
    core->due |= CORE_DUE_OPENED;
    core_dirty_attempt(core, job, attempt);
}

void core_evict(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                enum hd_end_cause cause, uint64_t for_job)
{
    if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING || job->rec.cancel)
        return;
    attempt->rec.stop_cause = cause;
    attempt->rec.stop_job = for_job;
    core->due |= CORE_DUE_REPEAT;
    core_attempt_stop(core, job, attempt);
}

/* ---- failures ---------------------------------------------------------------------------------*/

void core_attempt_fail(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       const struct hd_end_record *end)
{
    const bool as_requested = end->cause == HD_END_CAUSE_USER;
    struct hd_end_record reported = *end;

    if (as_requested && attempt->rec.stop_cause && !job->rec.cancel) {
        reported.cause = attempt->rec.stop_cause; /* a daemon reports USER for every stop; the
                                                   * controller knows the cause */
        end = &reported;
    }
    /* only the first failure counts, because later ones are its consequences; but a secondary
     * failure is replaced by its cause */
    if (!attempt->failed || (attempt->rec.end.secondary && !end->secondary && !as_requested)) {
        attempt->failed = true;
        core_attempt_set_end(core, attempt, end);
        core_dirty_attempt(core, job, attempt);
        core_event_attempt_end(core, job, attempt, end, as_requested);
    }
    if (!as_requested) /* a requested stop kills no rank: others may still be writing a
                        * checkpoint */
        attempt->kill = true;
    /* the attempt's devices become free soon */
    core_due_if(core, CORE_DUE_PASS, attempt->rec.state != HD_ATTEMPT_STATE_STOPPING);
    core_attempt_stop(core, job, attempt);
}

/* Returns whether the attempt counts as a failure of the job. An attempt that found its base
 * checkpoint damaged does not if there is an undamaged one, nor does the first that found its base
 * missing. Each such attempt rules out one checkpoint, so this cannot repeat forever. */
static bool is_failure(const struct core_job *job, const struct core_attempt *attempt)
{
    return core_is_failure(attempt->rec.end.cause) && !core_checkpoint_fallback(job, attempt) &&
           !core_attempt_missed_base(job, attempt);
}

/* Returns the number of attempts since the last one that wrote a checkpoint: of all, on which the
 * retry delay depends, or of those that failed. */
static int32_t count_without_progress(const struct core_job *job, bool failed_only)
{
    int32_t count = 0;

    for (int32_t k = job->rec.attempt_count;
         k > job->rec.resumed_attempt && !core_attempt_progressed(job, k); k--)
        count += !failed_only || is_failure(job, core_find_attempt(job, k));
    return count;
}

static int64_t retry_delay_ms(const struct hd_core *core, const struct core_job *job)
{
    int64_t delay_ms = core->config.retry_delay_ms;
    int32_t attempts = count_without_progress(job, false);

    if (attempts < 2)
        return 0;
    while (attempts-- > 2 && delay_ms < core->config.retry_delay_max_ms)
        delay_ms *= 2;
    return delay_ms < core->config.retry_delay_max_ms ? delay_ms : core->config.retry_delay_max_ms;
}

bool core_is_thrashing(const struct core_job *job)
{
    int32_t count = 0;

    for (int32_t k = job->rec.attempt_count; k > job->rec.resumed_attempt; k--) {
        const struct hd_attempt_record *attempt = &core_find_attempt(job, k)->rec;
        const bool ran = attempt->running_ms && attempt->ended_ms - attempt->running_ms >= WORTH_MS;

        if (ran || attempt->end.cause != HD_END_CAUSE_PREEMPTED || !attempt->stop_job)
            return false;
        count += !attempt->borrows; /* borrowed devices are usually given back soon */
        if (count == PREEMPTED_MAX)
            return true;
    }
    return false;
}

static int64_t next_start_ms(const struct hd_core *core, const struct core_job *job)
{
    const int64_t delay_ms = retry_delay_ms(core, job);

    return core->now.mono_ms +
           (core_is_thrashing(job) && delay_ms < WORTH_MS ? WORTH_MS : delay_ms);
}

/* ---- how the job continues --------------------------------------------------------------------*/

void core_finish_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                     const char *reason)
{
    core_set_job_state(core, job, state);
    core_outcome_set(core, job->rec.job, state);
    core->due |= CORE_DUE_DEPENDENTS;
    job->rec.ended_ms = core->now.wall_ms;
    job->ended = true;
    core->live_count--;
    core->limit_reported &= core_reaches(core, HD_CTL_JOBS_CALM_PERCENT);
    core_set_text(core, &job->rec.reason, reason);
    core_dirty_job(core, job);
    core_event_finished(core, job);
    core_checkpoint_prune(core, job);
    core->due |= CORE_DUE_PASS;
}

void core_end_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                  const struct core_job_end *end)
{
    struct hd_text reason = {0};

    core_add_job_end(core, job, end, &reason);
    core_finish_job(core, job, state, core_text(core, &reason));
    hd_text_free(&reason);
}

/* Ends a job as succeeded: its last step had a finite loss. The reason is that of early stopping. */
static void succeed(struct hd_core *core, struct core_job *job, const struct core_attempt *attempt)
{
    core_checkpoint_prove(core, job, job->rec.attempt_count, job->rec.steps);
    core_finish_job(core, job, HD_JOB_STATE_SUCCEEDED,
                    attempt->early ? attempt->rec.end.message : "");
}

/* Returns why the newest attempt, which has just ended without success, is the job's last one.
 * False: it is not; the job is queued again. */
static bool is_last_attempt(const struct hd_core *core, const struct core_job *job,
                            const struct core_attempt *attempt, struct core_job_end *ret_end)
{
    const struct hd_end_record *end = &attempt->rec.end;
    const int32_t failures = count_without_progress(job, true), max = job->needs.restart_max;

    *ret_end = (struct core_job_end){.attempt = attempt,
                                     .ran_ms = core_job_ran_ms(core, job),
                                     .has_failed = !core_is_stop(end->cause),
                                     .failures = failures};
    if (job->rec.cancel)
        ret_end->kind = CORE_JOB_END_CANCELLED;
    else if (end->cause == HD_END_CAUSE_TIME_LIMIT ||
             (job->needs.time_limit_ms && ret_end->ran_ms >= job->needs.time_limit_ms))
        ret_end->kind = CORE_JOB_END_TIME;
    else if (end->bad_input)
        ret_end->kind = CORE_JOB_END_ATTEMPT;
    else if (end->cause == HD_END_CAUSE_DIVERGED) /* a retry would repeat the same steps */
        ret_end->kind = CORE_JOB_END_DIVERGED;
    else if (is_failure(job, attempt) && (max == 0 || failures > max))
        ret_end->kind = CORE_JOB_END_RESTARTS;
    else if (job->rec.attempt_count >= HD_CTL_ATTEMPTS_MAX)
        ret_end->kind = CORE_JOB_END_ATTEMPTS;
    else
        return false;
    return true;
}

static void requeue(struct hd_core *core, struct core_job *job, const struct core_attempt *attempt)
{
    core_announce_fallback(core, job, attempt);
    job->rec.devices = job->needs.devices_max;
    job->not_before_mono_ms = next_start_ms(core, job);
    if (core_wants_search(job))
        core_search_begin(core, job);
    core_set_job_state(core, job, HD_JOB_STATE_QUEUED);
    core_dirty_job(core, job);
}

/* Ends or requeues a job whose newest attempt has just ended. */
static void end_or_requeue(struct hd_core *core, struct core_job *job,
                           const struct core_attempt *attempt)
{
    struct core_job_end end;

    core_note_missed_base(core, job, attempt);
    if (attempt->rec.end.cause == HD_END_CAUSE_COMPLETED) {
        succeed(core, job, attempt);
    } else if (is_last_attempt(core, job, attempt, &end)) {
        if (end.kind == CORE_JOB_END_DIVERGED && !attempt->had_finite_step)
            core_checkpoint_disprove_base(core, job, attempt);
        end.checkpoint = end.kind == CORE_JOB_END_DIVERGED ? core_checkpoint_proven(job)
                                                           : core_checkpoint_newest(job);
        core_end_job(core, job, job->rec.cancel ? HD_JOB_STATE_CANCELLED : HD_JOB_STATE_FAILED,
                     &end);
    } else {
        requeue(core, job, attempt);
    }
}

static void release_devices(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt)
{
    core_quota_take(job, -(int64_t)attempt->rec.plan.rank_count);
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        struct core_node *node = attempt->allocs[i].node;

        for (int32_t d = 0; d < node->rec.device_count; d++) {
            if (node->holds[d].job == attempt->rec.job)
                node->holds[d] = (struct hd_device_hold){0};
        }
        core_node_changed(core, node);
        core_dirty_desired(core, node); /* the node's desired set no longer contains the attempt */
        core_node_refresh(core, node);
    }
}

/* Sets the end of an attempt of which all nodes report that their ranks have completed. That report
 * is not enough: without a checkpoint of the last step (with early stopping, of the last step that
 * was reported) the end is INCOMPLETE. An attempt that ends early without a step has no weights to
 * save: it wrote a teacher's file (train.distill.write). The last step report
 * may be missing, because a killed supervisor can lose it. */
static void complete(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    struct hd_end_record end = {.cause = HD_END_CAUSE_COMPLETED, .rank = -1};
    const int64_t last = attempt->early ? attempt->last_step : job->rec.steps;
    const bool had_all_before = attempt->rec.base_attempt && attempt->rec.base_step >= last;
    const bool trained = !attempt->early || last > 0;
    const bool has_all = !trained || had_all_before || core_checkpoint_is_final(job, attempt, last);
    struct hd_text message = {0};

    if (!has_all) {
        core_add_incomplete(job, attempt, &message);
        end.cause = HD_END_CAUSE_INCOMPLETE;
        end.node = attempt->rec.plan.ranks[0].node_name;
        end.message = core_text(core, &message);
    } else if (attempt->early) {
        end.exit_code = HD_END_EXIT_EARLY;
        end.message = attempt->rec.end.message;
    }
    core_attempt_set_end(core, attempt, &end);
    if (!has_all)
        core_event_attempt_end(core, job, attempt, &end, false);
    hd_text_free(&message);
}

static void attempt_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    if (!attempt->failed)
        complete(core, job, attempt);
    attempt->rec.state = HD_ATTEMPT_STATE_ENDED;
    core_active_remove(core, job);
    attempt->rec.ended_ms = core->now.wall_ms;
    core_dirty_attempt(core, job, attempt);
    release_devices(core, job, attempt);
    core_event_ended(core, job, attempt);
    end_or_requeue(core, job, attempt);
    core->due |= CORE_DUE_PASS;
}

void core_node_alloc_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                         struct core_node_alloc *alloc)
{
    alloc->ended = true;
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        if (!attempt->allocs[i].ended)
            return;
    }
    attempt_end(core, job, attempt);
}

/* ---- timers -----------------------------------------------------------------------------------*/

static void fail_slow_start(struct hd_core *core, struct core_job *job,
                            struct core_attempt *attempt)
{
    struct hd_end_record end = {.cause = HD_END_CAUSE_LAUNCH_FAILED, .rank = -1};
    struct hd_text message = {0};

    for (size_t i = 0; i < attempt->alloc_count; i++) {
        if (!attempt->allocs[i].running && !end.node)
            end.node = attempt->allocs[i].node->rec.name;
    }
    core_add_slow_start(core->config.start_timeout_ms, &message);
    end.message = core_text(core, &message);
    core_attempt_fail(core, job, attempt, &end);
    hd_text_free(&message);
}

static bool any_waits(const struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->alloc_count; i++)
        if (!attempt->allocs[i].ended && attempt->allocs[i].waits)
            return true;
    return false;
}

static void stop_out_of_time(struct hd_core *core, struct core_job *job,
                             struct core_attempt *attempt)
{
    core_event_time_limit(core, job, attempt);
    core_evict(core, job, attempt, HD_END_CAUSE_TIME_LIMIT, 0);
    core->due |= CORE_DUE_PASS; /* the attempt's devices become free soon */
}

void core_attempt_timers(struct hd_core *core, struct core_job *job)
{
    struct core_attempt *attempt = core_active(job);
    int64_t spent_ms;

    core->out->evaluated++;
    if (attempt->rec.state == HD_ATTEMPT_STATE_STARTING && any_waits(attempt))
        attempt->state_since_mono_ms = core->now.mono_ms; /* the time for which the node held the
                                                           * ranks back does not count as starting
                                                           * time */
    spent_ms = core->now.mono_ms - attempt->state_since_mono_ms;
    if (attempt->rec.state == HD_ATTEMPT_STATE_STARTING &&
        spent_ms >= core->config.start_timeout_ms) {
        fail_slow_start(core, job, attempt);
    } else if (attempt->rec.state == HD_ATTEMPT_STATE_RUNNING && job->needs.time_limit_ms &&
               core_job_ran_ms(core, job) >= job->needs.time_limit_ms) {
        stop_out_of_time(core, job, attempt);
    } else if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING &&
               core_wanted(job, attempt) == HD_WANTED_STOPPING &&
               spent_ms >= core->config.stop_grace_ms) {
        attempt->kill = true;
        stop_allocs(core, attempt);
        core_event_killed(core, job, attempt);
    }
}

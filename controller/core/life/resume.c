/* resume: ended jobs that are resumed; running jobs that are requeued or told to write a
 * checkpoint. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

/* ---- resume -----------------------------------------------------------------------------------*/

enum hd_status core_recall(struct hd_core *core, const struct hd_core_event *event,
                           struct core_job **ret_job)
{
    const uint64_t number = event->resume.job->job;
    enum hd_status st =
        hd_core_restore_job(core, event->resume.job, &event->resume.needs, event->resume.sequence);

    for (size_t i = 0; !st && i < event->resume.attempt_count; i++)
        st = hd_core_restore_attempt(core, &event->resume.attempts[i]);
    for (size_t i = 0; !st && i < event->resume.checkpoint_count; i++)
        st = hd_core_restore_checkpoint(core, &event->resume.checkpoints[i]);
    for (size_t i = 0; !st && i < event->resume.position_count; i++)
        st = hd_core_restore_position(core, &event->resume.positions[i]);
    *ret_job = core_find_job(core, number);
    if (st && *ret_job)
        core_job_forget(core, *ret_job);
    return st;
}

static void take_spec(struct hd_core *core, struct core_job *job, const struct hd_core_event *event)
{
    void *spec = malloc(event->resume.spec_bytes + 1);
    struct core_queue *queue;

    if (!spec) {
        core->no_memory = true;
        return;
    }
    memcpy(spec, event->resume.spec, event->resume.spec_bytes);
    free((void *)(uintptr_t)job->rec.spec);
    job->rec.spec = spec;
    job->rec.spec_bytes = event->resume.spec_bytes;
    job->rec.spec_changed = true;
    core_set_text(core, &job->rec.name, event->resume.needs.name);
    core_array_leave(core, job);
    job->needs = event->resume.needs;
    core_array_join(core, job);
    job->needs.name = job->rec.name;
    /* core_check_request has already found that this queue exists */
    queue = core_find_queue(core, job->needs.queue);
    job->account = queue ? core_account_of(core, queue, job->rec.owner) : job->account;
    core_set_text(core, &job->rec.queue, job->account ? job->account->queue->rec.name : "");
    job->needs.queue = job->rec.queue;
    job->rec.priority = job->needs.priority;
    job->rec.steps = job->needs.steps;
}

/* Checks that a job to resume may have another attempt and has steps left to do. */
static enum hd_status check_resume(const struct hd_core *core, const struct core_job *job,
                                   int64_t steps)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);

    if (core->live_count >= core->config.jobs_live_max)
        return hd_err(HD_LIMIT, "%zu jobs are queued or running already; try again later",
                      core->live_count);
    if (job->rec.attempt_count >= HD_CTL_ATTEMPTS_MAX)
        return hd_err(HD_LIMIT, "job %" PRIu64 " has had %d attempts, which is the limit",
                      job->rec.job, HD_CTL_ATTEMPTS_MAX);
    if (base && base->step >= steps)
        return hd_err(HD_INVALID,
                      "job %" PRIu64 " has done all its %lld steps; ask for more: --set "
                      "train.steps=N",
                      job->rec.job, (long long)base->step);
    return HD_OK;
}

static void queue_again(struct hd_core *core, struct core_job *job, const char *by)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);

    job->rec.resumed_attempt = job->rec.attempt_count;
    job->rec.cancel = job->rec.cancel_now = false;
    job->rec.held = false;
    core_outcome_set(core, job->rec.job, HD_JOB_STATE_QUEUED);
    job->rec.ended_ms = 0;
    job->rec.devices = job->needs.devices_max;
    core_set_text(core, &job->rec.reason, "");
    job->ended = false;
    job->not_before_mono_ms = core->now.mono_ms;
    core->live_count++;
    if (core_wants_search(job))
        core_search_begin(core, job);
    core_set_job_state(core, job, HD_JOB_STATE_QUEUED);
    core->due |= CORE_DUE_PASS;
    core_dirty_job(core, job);
    core_event_resumed(core, job, base, core_lacks_checkpoint(job), by);
}

enum hd_status core_resume(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_job *job = core_find_job(core, event->resume.job->job);
    const bool is_recalled = !job;
    enum hd_status st = HD_OK;

    core->out->job = event->resume.job->job;
    if (job && !job->ended)
        return hd_err(HD_CONFLICT, "job %" PRIu64 " is %s: only a job that has ended is resumed",
                      job->rec.job, hd_job_state_name((int)job->rec.state));
    if (job && job->rec.removal)
        return hd_err(HD_NOT_FOUND, "job %" PRIu64 " was removed", job->rec.job);
    st = core_check_request(core, &event->resume.needs);
    if (!st)
        st = core_check_circle(core, event->resume.job->job, &event->resume.needs);
    if (!st && is_recalled)
        st = core_recall(core, event, &job);
    if (!st) {
        st = check_resume(core, job, event->resume.needs.steps);
        if (st && is_recalled)
            core_job_forget(core, job);
    }
    if (st)
        return st;
    take_spec(core, job, event);
    queue_again(core, job, event->resume.by);
    return HD_OK;
}

/* ---- requeue and checkpoint -------------------------------------------------------------------*/

static enum hd_status find_running(struct hd_core *core, uint64_t number, const char *what,
                                   struct core_job **ret_job, struct core_attempt **ret_attempt)
{
    struct core_job *job = core_find_job(core, number);
    struct core_attempt *attempt = job && !job->ended ? core_active(job) : NULL;

    core->out->job = number;
    if (!job || job->ended)
        return hd_err(HD_NOT_FOUND, "there is no job %" PRIu64 " that has not ended", number);
    if (job->rec.cancel)
        return hd_err(HD_CONFLICT, "job %" PRIu64 " is being cancelled", number);
    if (!attempt || attempt->rec.state == HD_ATTEMPT_STATE_STARTING)
        return hd_err(HD_CONFLICT, "job %" PRIu64 " does not train yet: there is nothing to %s",
                      number, what);
    *ret_job = job;
    *ret_attempt = attempt;
    return HD_OK;
}

enum hd_status core_requeue(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_job *job;
    struct core_attempt *attempt;
    enum hd_status st = find_running(core, event->again.job, "queue again", &job, &attempt);

    if (st || attempt->rec.state == HD_ATTEMPT_STATE_STOPPING)
        return st;
    core_event_requeue(core, job, attempt, event->again.by);
    core_evict(core, job, attempt, HD_END_CAUSE_USER, 0);
    core->due |= CORE_DUE_PASS; /* the attempt's devices become free soon */
    return HD_OK;
}

enum hd_status core_checkpoint_now(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_job *job;
    struct core_attempt *attempt;
    enum hd_status st = find_running(core, event->again.job, "save", &job, &attempt);

    if (st)
        return st;
    if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING)
        return HD_OK; /* the attempt's last checkpoint is being written */
    attempt->saves_asked++;
    core_event_checkpoint_asked(core, job, attempt, event->again.by);
    for (size_t i = 0; i < attempt->alloc_count; i++)
        core_dirty_desired(core, attempt->allocs[i].node);
    return HD_OK;
}

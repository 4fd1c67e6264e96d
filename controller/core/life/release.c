/* release: queued jobs that wait for something other than devices: for other jobs, for members of
 * their array, for a user, for the answer of a search. */
#include <inttypes.h>
#include <stdlib.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

void core_search_timers(struct hd_core *core, struct core_job *job)
{
    struct hd_core_out *out = core->out;

    if (job->search == CORE_SEARCH_DUE) {
        if (!core_grow_array(core, &out->searches, out->search_count, &out->search_size,
                             sizeof *out->searches))
            return;
        out->searches[out->search_count++] = (struct hd_core_search){
            job->rec.job, job->rec.attempt_count, core_search_is_whole(job)};
        job->search = CORE_SEARCH_OUT;
        job->search_since_mono = core->now.mono_ms;
    } else if (job->search == CORE_SEARCH_OUT &&
               core->now.mono_ms - job->search_since_mono >= core->config.search_timeout_ms) {
        struct hd_text problem = {0};

        core_add_search_timeout(core->config.search_timeout_ms, &problem);
        core_search_note(core, job, core_text(core, &problem));
        hd_text_free(&problem);
        core_tell_missing(core, job);
        core_search_end(core, job);
    }
}

enum hd_status core_hold(struct hd_core *core, const struct hd_core_event *event)
{
    const bool held = event->kind == HD_CORE_HOLD;
    struct core_job *job = core_find_job(core, event->again.job);

    core->out->job = event->again.job;
    if (!job || job->ended)
        return hd_err(HD_NOT_FOUND, "there is no job %" PRIu64 " that has not ended",
                      event->again.job);
    if (held && job->rec.cancel)
        return hd_err(HD_CONFLICT, "job %" PRIu64 " is being cancelled: it does not start again",
                      event->again.job);
    if (job->rec.held == held)
        return HD_OK;
    job->rec.held = held;
    core_due_if(core, CORE_DUE_PASS,
                job->migration_group != 0); /* reservations for the job are dropped while
                                                      * it is held */
    core_dirty_job(core, job);
    core_event_held(core, job, event->again.by);
    if (!held && job->wait == CORE_WAIT_HELD && core_lacks_checkpoint(job))
        core_look_again(core, job);
    else if (job->rec.state == HD_JOB_STATE_QUEUED)
        core_waiting_again(core, job);
    return HD_OK;
}

/* ---- jobs that wait for other jobs ----------------------------------------------------------*/

/* Finds a cycle by following `after` from waiting job to waiting job; visits each once. */
enum hd_status core_check_circle(struct hd_core *core, uint64_t number,
                                 const struct hd_job_needs *needs)
{
    struct core_job **chain = malloc((core->live_count + 1) * sizeof *chain);
    size_t count = 0, at = 0;
    bool circle = false;

    if (!chain)
        return hd_err(HD_NO_MEMORY, "no memory to follow the jobs that job %" PRIu64 " comes after",
                      number);
    core->circle_look++;
    while (needs && !circle) {
        for (int32_t i = 0; i < needs->after_count; i++) {
            struct core_job *next = core_find_job(core, needs->after[i]);

            circle |= needs->after[i] == number;
            if (!next || next->circle_look == core->circle_look ||
                next->rec.state != HD_JOB_STATE_QUEUED || core_has_started(next))
                continue;
            next->circle_look = core->circle_look;
            chain[count++] = next;
        }
        needs = at < count ? &chain[at++]->needs : NULL;
    }
    free(chain);
    return circle ? hd_err(HD_INVALID,
                           "after: job %" PRIu64 " would wait for itself; name jobs that do not "
                           "wait for it, or none: --set after=",
                           number)
                  : HD_OK;
}

/* Checks the jobs named in `after`. HD_NOT_FOUND: one does not exist. HD_INVALID: one has failed or
 * was cancelled. */
static enum hd_status check_after(const struct hd_core *core, const struct hd_job_needs *needs)
{
    for (int32_t i = 0; i < needs->after_count; i++) {
        const uint64_t number = needs->after[i];
        const enum hd_job_state outcome = core_outcome_of(core, number);

        if (!number || number > core->last_job || (!outcome && !core_find_job(core, number)))
            return hd_err(HD_NOT_FOUND, "after: there is no job %" PRIu64 " (heddle jobs)", number);
        if (outcome == HD_JOB_STATE_FAILED || outcome == HD_JOB_STATE_CANCELLED)
            return hd_err(HD_INVALID,
                          "after: job %" PRIu64 " %s%s; let it go on first: heddle resume %" PRIu64
                          ", or do not wait for it: --set after=",
                          number, outcome == HD_JOB_STATE_FAILED ? "" : "was ",
                          hd_job_state_name((int)outcome), number);
    }
    return HD_OK;
}

enum hd_status core_check_request(const struct hd_core *core, const struct hd_job_needs *needs)
{
    enum hd_status st = core_check_needs(needs);

    if (!st)
        st = core_check_quota(core, needs);
    return st ? st : check_after(core, needs);
}

/* Releases one job that waits for others to succeed, cancels it, or lets it wait on. */
static void notify_dependent(struct hd_core *core, struct core_job *job)
{
    for (int32_t i = 0; i < job->needs.after_count; i++) {
        const enum hd_job_state outcome = core_outcome_of(core, job->needs.after[i]);

        if (outcome != HD_JOB_STATE_FAILED && outcome != HD_JOB_STATE_CANCELLED)
            continue;
        core_end_job(core, job, HD_JOB_STATE_CANCELLED,
                     &(struct core_job_end){.kind = CORE_JOB_END_AFTER,
                                            .after = job->needs.after[i],
                                            .outcome = outcome});
        return;
    }
    if (!core_waits_for_success(core, job))
        core_waiting_again(core, job);
}

/* Notifies dependents of ended jobs. A job that is cancelled here has dependents of its own: they
 * are notified in the next iteration. */
void core_notify_dependents(struct hd_core *core)
{
    while (core_take_due(core, CORE_DUE_DEPENDENTS)) {
        for (size_t i = core->dependents.count; i > 0; i--)
            if (i <= core->dependents.count)
                notify_dependent(core, core->dependents.items[i - 1]);
    }
}

/* ---- arrays ---------------------------------------------------------------------------------*/

/* Takes the limit of the newest member that has not ended: one that has is not there after a restart
 * of the controller, which must not change the limit. */
static void take_limit(struct core_array *array)
{
    const struct core_job *newest = NULL;

    for (size_t i = 0; i < array->members.count; i++) {
        const struct core_job *job = array->members.items[i];

        if (!job->ended && (!newest || job->rec.job > newest->rec.job))
            newest = job;
    }
    if (newest)
        array->at_once = newest->needs.array_at_once;
}

static void settle(struct hd_core *core, struct core_array *array)
{
    int32_t most, open = core_array_open(array);
    struct core_job *job, *last;

    take_limit(array);
    most = array->at_once ? array->at_once : INT32_MAX;
    array->due = false;
    while (open < most && (job = core_array_first_kept(array)) != NULL) {
        core_waiting_again(core, job);
        open += core_array_is_open(job);
    }
    for (; open > most && (job = core_array_last_open(array)) != NULL; open--)
        core_waiting_again(core, job);
    while ((job = core_array_first_kept(array)) && (last = core_array_last_open(array)) &&
           core_array_precedes(job, last)) {
        core_waiting_again(core, last); /* is kept, for `job` comes before it */
        core_waiting_again(core, job);
    }
    array->due = false; /* the members that were moved have set it */
}

void core_arrays_settle(struct hd_core *core)
{
    for (size_t i = 0; i < core->array_count; i++)
        if (core->arrays[i]->due)
            settle(core, core->arrays[i]);
}

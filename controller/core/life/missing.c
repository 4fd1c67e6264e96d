/* missing: checkpoints that are listed but not on the disk, for example after the jobs directory
 * was restored from a snapshot.
 *
 * A rank that does not find its base checkpoint exits with a status of its own, and its attempt
 * does not count against restart.max. The controller then lists the checkpoints of the job's folder
 * (out->searches, HD_CORE_FOUND). Listed ones that are not found become `missing`, which is stored.
 * If no sound one is left in the list, other checkpoints on the disk are listed again, even if they
 * were once deleted. If there are none, the job waits and the search is repeated every minute; it
 * never restarts at step 0 because of a missing checkpoint.
 *
 * A checkpoint on a node's own disk (not `shared`) cannot be found by the controller's search: only
 * ranks report it missing.
 */
#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"
#include "link/link.h"

/* ---- attempts ---------------------------------------------------------------------------------*/

static void set_missing(struct hd_core *core, struct core_job *job,
                        struct hd_checkpoint_record *checkpoint, bool missing)
{
    checkpoint->missing = missing;
    job->missing_due |= missing;
    hd_batch_add_checkpoint(core->out->batch, checkpoint);
    core_announce(core, job);
}

void core_note_missed_base(struct hd_core *core, struct core_job *job,
                           const struct core_attempt *attempt)
{
    struct hd_checkpoint_record *base =
        core_attempt_lacked_base(attempt)
            ? core_checkpoint_listed(job, attempt->rec.base_attempt, attempt->rec.base_step)
            : NULL;

    if (base && base->state == HD_CHECKPOINT_STATE_PRESENT && !base->missing)
        set_missing(core, job, base, true);
}

/* ---- results of a search ----------------------------------------------------------------------*/

void core_checkpoints_moved(struct hd_core *core, struct core_job *job)
{
    if (job->wait == CORE_WAIT_MISSING && !core_lacks_checkpoint(job)) {
        job->not_before_mono_ms = core->now.mono_ms;
        core_waiting_again(core, job);
    } else {
        core_waiting_moved(core, job);
    }
}

void core_look_again(struct hd_core *core, struct core_job *job)
{
    for (size_t i = 0; i < job->checkpoint_count; i++)
        if (job->checkpoints[i].missing && !job->checkpoints[i].shared)
            set_missing(core, job, &job->checkpoints[i], false);
    job->not_before_mono_ms = core->now.mono_ms; /* in place of the time of the next search */
    if (core_lacks_checkpoint(job))
        core_search_begin(core, job);
    else
        core_waiting_again(core, job);
}

void core_checkpoint_is_back(struct hd_core *core, struct core_job *job,
                             struct hd_checkpoint_record *listed,
                             const struct hd_checkpoint_record *seen)
{
    if (!listed->missing || listed->state != HD_CHECKPOINT_STATE_PRESENT || !seen->path ||
        !core_same(seen->hash, listed->hash))
        return;
    core_set_text(core, &listed->path, seen->path); /* the jobs directory may have moved */
    listed->shared |= seen->shared; /* its file may have been copied into that directory */
    set_missing(core, job, listed, false);
    core_event_checkpoint_back(core, job, listed);
    if (job->rec.state == HD_JOB_STATE_QUEUED)
        core_checkpoints_moved(core, job);
}

static const struct hd_checkpoint_record *find_found(const struct hd_core_event *event,
                                                     const struct hd_checkpoint_record *listed)
{
    for (size_t i = 0; i < event->found.checkpoint_count; i++) {
        const struct hd_checkpoint_record *c = &event->found.checkpoints[i];

        if (c->attempt == listed->attempt && c->step == listed->step &&
            core_same(c->hash, listed->hash))
            return c;
    }
    return NULL;
}

/* Compares the job's list of checkpoints with those found on the disk: marks listed ones that are
 * missing, if the list of found ones is complete, and lists others if no sound one is left. After a
 * failed search only checkpoints that are back are taken, because newer ones may be unreadable. */
static void take_whole(struct hd_core *core, struct core_job *job,
                       const struct hd_core_event *event)
{
    const bool has_failed = *event->found.problem != 0;
    const struct hd_checkpoint_record *sound;
    int64_t step;

    for (size_t i = 0; i < job->checkpoint_count; i++) {
        struct hd_checkpoint_record *c = &job->checkpoints[i];
        const struct hd_checkpoint_record *found = find_found(event, c);

        if (c->state != HD_CHECKPOINT_STATE_PRESENT)
            continue;
        if (found) {
            struct hd_checkpoint_record seen = *found;

            seen.shared = true; /* it is in the jobs directory that the controller sees */
            core_checkpoint_is_back(core, job, c, &seen);
        } else if (c->shared && !c->missing && !has_failed && !event->found.cut) {
            set_missing(core, job, c, true);
        }
    }
    sound = core_checkpoint_sound(job);
    if (has_failed || (sound && !core_attempt_is_placeholder(core_newest(job))))
        return;
    step = sound ? sound->step : 0;
    for (size_t i = 0; i < event->found.checkpoint_count; i++) {
        struct hd_checkpoint_record found = event->found.checkpoints[i];
        struct core_attempt *attempt = core_find_attempt(job, found.attempt);

        found.shared = true; /* the checkpoint is in the jobs directory that the controller sees */
        if (attempt && found.step > step)
            core_checkpoint_adopt(core, job, attempt, &found);
    }
    core_announce_fallback(core, job, core_newest(job));
}

/* Adds checkpoints of the newest attempt that its lost node could not report. */
static void take_unreported(struct hd_core *core, struct core_job *job,
                            struct core_attempt *attempt, const struct hd_core_event *event)
{
    const size_t before = job->checkpoint_count;

    for (size_t i = 0; i < event->found.checkpoint_count && attempt->alloc_count; i++) {
        struct hd_checkpoint_record found = event->found.checkpoints[i];

        found.shared = true; /* the checkpoint is in the jobs directory that the controller sees */
        if (found.attempt == attempt->rec.attempt)
            core_checkpoint_take(core, job, attempt, attempt->allocs[0].node, &found);
    }
    if (job->checkpoint_count > before)
        core_event_checkpoints_found(core, job, attempt, job->checkpoint_count - before,
                                     core_checkpoint_newest(job)->step);
}

void core_search_note(struct hd_core *core, struct core_job *job, const char *problem)
{
    const bool is_news = *problem && !core_same(problem, job->search_problem);

    core_set_text(core, &job->search_problem, problem);
    if (is_news) /* a job that waits for a missing checkpoint searches every minute */
        core_event_search_failed(core, job);
}

enum hd_status core_found(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_job *job = core_find_job(core, event->found.job);
    struct core_attempt *attempt = job ? core_newest(job) : NULL;

    if (!attempt || job->ended || job->search != CORE_SEARCH_OUT ||
        attempt->rec.attempt != event->found.attempt)
        return HD_OK; /* the search was answered too late */
    core_search_note(core, job, event->found.problem);
    if (attempt->rec.end.cause == HD_END_CAUSE_NODE_LOST)
        take_unreported(core, job, attempt, event);
    if (event->found.whole)
        take_whole(core, job, event);
    core_tell_missing(core, job);
    core_search_end(core, job);
    return HD_OK;
}

/* ---- the event --------------------------------------------------------------------------------*/

void core_tell_missing(struct hd_core *core, struct core_job *job)
{
    bool due = false;

    for (size_t i = 0; job->missing_due && i < job->checkpoint_count; i++)
        due |= job->checkpoints[i].missing;
    job->missing_due = false;
    if (due) /* a checkpoint is still missing */
        core_event_checkpoint_missing(core, job, core_checkpoint_newest(job));
}

void core_announce_fallback(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt)
{
    const struct hd_checkpoint_record *fallback = core_checkpoint_fallback(job, attempt);

    if (fallback)
        core_event_checkpoint_damaged(core, job, attempt, fallback);
}

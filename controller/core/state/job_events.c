/* job_events: the sentence of every event that the core adds to the history of a job, in the order
 * of a job's life. An event that a rank reports brings its own text (checkpoint.c). */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "controller/core/state/texts.h"

/* ---- requests of users ------------------------------------------------------------------------*/

void core_event_submitted(struct hd_core *core, struct core_job *job)
{
    core_event(core, job, HD_EVENT_SUBMITTED, 0, -1, "", "submitted by %s", job->rec.owner);
}

void core_event_cancel(struct hd_core *core, struct core_job *job, const char *by, bool now)
{
    core_event(core, job, HD_EVENT_CANCEL, job->rec.attempt_count, -1, "",
               "cancel requested by %s%s", by, now ? ", without a checkpoint" : "");
}

void core_event_held(struct hd_core *core, struct core_job *job, const char *by)
{
    const char *rest =
        core_active(job) ? ": the running attempt continues, no further one starts" : "";

    if (job->rec.held)
        core_event(core, job, HD_EVENT_HELD, job->rec.attempt_count, -1, "", "held by %s%s", by,
                   rest);
    else
        core_event(core, job, HD_EVENT_RELEASED, job->rec.attempt_count, -1, "", "released by %s",
                   by);
}

void core_event_requeue(struct hd_core *core, struct core_job *job,
                        const struct core_attempt *attempt, const char *by)
{
    core_event(core, job, HD_EVENT_REQUEUE, attempt->rec.attempt, -1, "",
               "%s asked for the job to be queued again: attempt %d stops at a checkpoint", by,
               attempt->rec.attempt);
}

void core_event_checkpoint_asked(struct hd_core *core, struct core_job *job,
                                 const struct core_attempt *attempt, const char *by)
{
    core_event(core, job, HD_EVENT_CHECKPOINT_ASKED, attempt->rec.attempt, -1, "",
               "%s asked for a checkpoint", by);
}

void core_event_resumed(struct hd_core *core, struct core_job *job,
                        const struct hd_checkpoint_record *base, bool is_missing, const char *by)
{
    const int32_t attempt = job->rec.attempt_count;

    if (base)
        core_event(core, job, HD_EVENT_RESUMED, attempt, -1, "",
                   "resumed by %s, from step %lld of attempt %d", by, (long long)base->step,
                   base->attempt);
    else if (is_missing)
        core_event(core, job, HD_EVENT_RESUMED, attempt, -1, "",
                   "resumed by %s; its checkpoints are missing", by);
    else
        core_event(core, job, HD_EVENT_RESUMED, attempt, -1, "",
                   "resumed by %s, from scratch: it has no checkpoint", by);
}

void core_event_finished(struct hd_core *core, struct core_job *job)
{
    const enum hd_job_state state = job->rec.state;
    const enum hd_event_kind kind = state == HD_JOB_STATE_SUCCEEDED ? HD_EVENT_SUCCEEDED
                                    : state == HD_JOB_STATE_FAILED  ? HD_EVENT_FAILED
                                                                    : HD_EVENT_CANCELLED;
    const char *reason = job->rec.reason ? job->rec.reason : "";

    core_event(core, job, kind, job->rec.attempt_count, -1, "", "job %s%s%s",
               hd_job_state_name((int)state), *reason ? ": " : "", reason);
}

/* ---- expected starts --------------------------------------------------------------------------*/

static void add_start_cause(const struct hd_core *core, const struct core_job *job,
                            const struct core_start_cause *cause, struct hd_text *text)
{
    switch (cause->kind) {
    case CORE_START_CLOCK_SET:
        hd_text_add(text, "the clock of the controller's machine was set");
        break;
    case CORE_START_HELD:
        hd_text_add(text, "it is held");
        break;
    case CORE_START_QUEUE_CLOSED:
        hd_text_add(text, "its queue is closed");
        break;
    case CORE_START_QUOTA:
        hd_text_add(text, "the device limit of its queue or of its owner is reached");
        break;
    case CORE_START_BETTER:
        core_add_choice(core, &job->choice, true, text);
        break;
    case CORE_START_BEHIND:
        hd_text_add(text, "job %" PRIu64 " comes before it", cause->job);
        break;
    case CORE_START_PREEMPTS:
        hd_text_add(text, "job %" PRIu64 " writes a checkpoint and frees its devices then",
                    cause->job);
        break;
    case CORE_START_PACE:
        hd_text_add(text, "job %" PRIu64 " runs faster or slower than predicted", cause->job);
        break;
    case CORE_START_OTHER_JOB:
        hd_text_add(text, "it waits for job %" PRIu64 " now, and no longer for job %" PRIu64,
                    cause->job, cause->before);
        break;
    case CORE_START_FREES:
        hd_text_add(text, "job %" PRIu64 " frees its devices then", cause->job);
        break;
    case CORE_START_END_UNKNOWN:
        hd_text_add(text, "it is not known when job %" PRIu64 " or others free devices",
                    cause->job);
        break;
    case CORE_START_NODES:
        hd_text_add(text, "the nodes that it was to start on have changed");
        break;
    }
    if (!cause->takes_later)
        return;
    hd_text_add(text, "; ");
    core_add_choice(core, &job->choice, true, text);
}

/* Returns the text, or "" and notes that memory ran out. */
static const char *text_of(struct hd_core *core, const struct hd_text *text)
{
    core->no_memory |= text->failed;
    return text->failed || !text->data ? "" : text->data;
}

void core_event_start(struct hd_core *core, struct core_job *job, int64_t before_ms, int64_t now_ms,
                      const struct core_start_cause *cause)
{
    char was[HD_CLOCK_TEXT_MAX], is[HD_CLOCK_TEXT_MAX];
    struct hd_text why = {0};

    add_start_cause(core, job, cause, &why);
    hd_clock_format_utc(before_ms, was);
    hd_clock_format_utc(now_ms, is);
    if (!before_ms)
        core_event(core, job, HD_EVENT_START_EXPECTED, job->rec.attempt_count, -1, "",
                   "expected to start at %s: %s", is, text_of(core, &why));
    else
        core_event(core, job, HD_EVENT_START_MOVED, job->rec.attempt_count, -1, "",
                   "the expected start moved from %s to %s: %s", was,
                   now_ms ? is : "an unknown time", text_of(core, &why));
    hd_text_free(&why);
}

/* ---- starts -----------------------------------------------------------------------------------*/

void core_event_weighed(struct hd_core *core, struct core_job *job)
{
    struct hd_text text = {0};

    core_add_choice(core, &job->choice, false, &text);
    core_event(core, job, HD_EVENT_WEIGHED, job->rec.attempt_count, -1, "", "%s",
               text_of(core, &text));
    hd_text_free(&text);
}

void core_event_no_fit(struct hd_core *core, struct core_job *job, const char *why)
{
    core_event(core, job, HD_EVENT_NO_FIT, job->rec.attempt_count, -1, "", "%s", why);
}

void core_event_layout(struct hd_core *core, struct core_job *job,
                       const struct hd_attempt_record *attempt, const char *why)
{
    core_event(core, job, HD_EVENT_LAYOUT, attempt->attempt, -1, "", "%s", why);
}

/* Appends the sizes of a layout, such as "tp 2 x cp 1 x dp 4, zero 1, micro-batch 8". */
static void add_layout(const struct hd_layout_sizes *layout, struct hd_text *text)
{
    if (layout->pp > 1)
        hd_text_add(text, "tp %d x cp %d x dp %d x pp %d (%s)", (int)layout->tp, (int)layout->cp,
                    (int)layout->dp, (int)layout->pp, layout->schedule);
    else if (layout->tp * layout->cp > 1)
        hd_text_add(text, "tp %d x cp %d x dp %d", (int)layout->tp, (int)layout->cp,
                    (int)layout->dp);
    else
        hd_text_add(text, "dp %d", (int)layout->dp);
    if (layout->ep > 1)
        hd_text_add(text, ", ep %d", (int)layout->ep);
    if (layout->zero > 0)
        hd_text_add(text, ", zero %d", (int)layout->zero);
    hd_text_add(text, ", micro-batch %d", (int)layout->micro_batch);
}

void core_event_starting(struct hd_core *core, struct core_job *job,
                         const struct hd_attempt_record *attempt)
{
    const struct hd_plan_record *plan = &attempt->plan;
    struct hd_text text = {0};

    for (int32_t r = 0; r < plan->rank_count; r++) /* the ranks of a node are consecutive */
        if (!r || !core_same(plan->ranks[r].node_uuid, plan->ranks[r - 1].node_uuid))
            hd_text_add(&text, "%s%s", r ? ", " : "", plan->ranks[r].node_name);
    hd_text_add(&text, ": %d %s device%s, ", plan->rank_count,
                hd_job_device_words[plan->layout.device], plan->rank_count == 1 ? "" : "s");
    add_layout(&plan->layout, &text);
    if (attempt->base_attempt)
        hd_text_add(&text, ", from step %lld of attempt %d", (long long)attempt->base_step,
                    attempt->base_attempt);
    else
        hd_text_add(&text, ", from scratch");
    core_event(core, job, HD_EVENT_STARTING, attempt->attempt, -1, plan->ranks[0].node_name,
               "attempt %d on %s", attempt->attempt, text_of(core, &text));
    hd_text_free(&text);
}

void core_event_running(struct hd_core *core, struct core_job *job,
                        const struct core_attempt *attempt)
{
    core_event(core, job, HD_EVENT_RUNNING, attempt->rec.attempt, -1, "",
               "attempt %d: all %d ranks are up", attempt->rec.attempt,
               attempt->rec.plan.rank_count);
}

void core_event_borrowing(struct hd_core *core, struct core_job *job,
                          const struct core_attempt *attempt)
{
    core_event(core, job, HD_EVENT_BORROWING, attempt->rec.attempt, -1, "",
               "attempt %d runs on devices that are reserved for older jobs; when one of these can "
               "start with them, it writes a checkpoint, gives them back and waits again",
               attempt->rec.attempt);
}

void core_event_problem(struct hd_core *core, struct core_job *job,
                        const struct core_attempt *attempt, const struct core_node_alloc *alloc)
{
    const char *node = alloc->node->rec.name;

    core_event(core, job, HD_EVENT_PROBLEM, attempt->rec.attempt, -1, node, "attempt %d on %s: %s",
               attempt->rec.attempt, node, alloc->problem);
}

/* ---- attempts that stop for a gain ------------------------------------------------------------*/

void core_job_list_add(struct core_job_list *list, uint64_t job)
{
    hd_text_add(&list->numbers, "%s%" PRIu64, list->count++ ? ", " : "", job);
}

void core_event_preempting(struct hd_core *core, struct core_job *job,
                           const struct core_job_list *victims, int32_t devices)
{
    const bool one = victims->count == 1;

    core_event(core, job, HD_EVENT_PREEMPTING, job->rec.attempt_count, -1, "",
               "job%s %s, of lower priority or on borrowed devices, stop%s at a checkpoint, "
               "which frees %d device%s",
               one ? "" : "s", text_of(core, &victims->numbers), one ? "s" : "", devices,
               devices == 1 ? "" : "s");
}

void core_event_preempted(struct hd_core *core, struct core_job *victim,
                          const struct core_attempt *attempt, const struct core_job *job)
{
    if (victim->rec.priority == job->rec.priority)
        core_event(core, victim, HD_EVENT_PREEMPTED, attempt->rec.attempt, -1, "",
                   "attempt %d is preempted by job %" PRIu64
                   ": it writes a checkpoint and frees the devices that it borrowed",
                   attempt->rec.attempt, job->rec.job);
    else
        core_event(core, victim, HD_EVENT_PREEMPTED, attempt->rec.attempt, -1, "",
                   "attempt %d is preempted by job %" PRIu64
                   ", whose priority is %d (this job's is %d): it writes a checkpoint and frees "
                   "its devices",
                   attempt->rec.attempt, job->rec.job, job->rec.priority, victim->rec.priority);
}

void core_event_leaves_node(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt, const struct core_node *node,
                            enum core_leave_cause cause)
{
    static const char *const causes[] = {
        [CORE_LEAVE_DAEMON_ENDS] = "whose heddled ends",
        [CORE_LEAVE_DEADLINE] = "which is drained: the deadline is over",
        [CORE_LEAVE_FITS_ELSEWHERE] = "which is drained: it fits on other nodes",
    };

    core_event(core, job, HD_EVENT_PREEMPTED, attempt->rec.attempt, -1, node->rec.name,
               "attempt %d writes a checkpoint and leaves %s, %s", attempt->rec.attempt,
               node->rec.name, causes[cause]);
}

void core_event_gathering(struct hd_core *core, struct core_job *job,
                          const struct core_job_list *moved, const struct core_placement *now,
                          const struct core_placement *later)
{
    const bool one = moved->count == 1;
    struct hd_text text = {0};

    hd_text_add(&text, "could start now on ");
    core_add_placement_text(core, (int32_t)now->member_count, now->tier, &text);
    hd_text_add(&text, " at %.3g s a step, but waits for ", now->plan.step_s);
    core_add_placement_text(core, (int32_t)later->member_count, later->tier, &text);
    hd_text_add(&text,
                " at %.3g s a step: job%s %s write%s a checkpoint and move%s from there to "
                "other nodes",
                later->plan.step_s, one ? "" : "s", text_of(core, &moved->numbers), one ? "s" : "",
                one ? "s" : "");
    core_event(core, job, HD_EVENT_GATHERING, job->rec.attempt_count, -1, "", "%s",
               text_of(core, &text));
    hd_text_free(&text);
}

void core_event_moving(struct hd_core *core, struct core_job *job,
                       const struct core_attempt *attempt, uint64_t for_job, int32_t devices)
{
    core_event(core, job, HD_EVENT_MOVING, attempt->rec.attempt, -1, "",
               "attempt %d writes a checkpoint and moves to other nodes, so that the %d devices "
               "of job %" PRIu64 " span fewer switches",
               attempt->rec.attempt, devices, for_job);
}

void core_event_growing(struct hd_core *core, struct core_job *job,
                        const struct core_attempt *attempt, int32_t devices, int64_t gain_ms,
                        int64_t cost_ms)
{
    char gain[HD_CLOCK_TEXT_MAX], cost[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(gain_ms, gain);
    hd_clock_format_span(cost_ms, cost);
    core_event(core, job, HD_EVENT_GROWING, attempt->rec.attempt, -1, "",
               "attempt %d stops at a checkpoint, and the job continues on %d devices instead of "
               "%d: that saves about %s and costs a restart of %s",
               attempt->rec.attempt, devices, attempt->rec.plan.rank_count, gain, cost);
}

/* ---- ends of attempts -------------------------------------------------------------------------*/

void core_event_time_limit(struct hd_core *core, struct core_job *job,
                           const struct core_attempt *attempt)
{
    char limit[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(job->needs.time_limit_ms, limit);
    core_event(core, job, HD_EVENT_TIME_LIMIT, attempt->rec.attempt, -1, "",
               "the job has run for %s, its time_limit: attempt %d writes a checkpoint and ends",
               limit, attempt->rec.attempt);
}

void core_event_killed(struct hd_core *core, struct core_job *job,
                       const struct core_attempt *attempt)
{
    core_event(core, job, HD_EVENT_KILLED, attempt->rec.attempt, -1, "",
               "attempt %d did not stop within %lld s and is killed", attempt->rec.attempt,
               (long long)(core->config.stop_grace_ms / 1000));
}

static void add_end(struct hd_core *core, struct core_job *job, enum hd_event_kind kind,
                    const struct core_attempt *attempt, const struct hd_end_record *end)
{
    struct hd_text why = {0};

    core_add_end(attempt, end, &why);
    core_event(core, job, kind, attempt->rec.attempt, end->rank, end->node, "attempt %d: %s",
               attempt->rec.attempt, text_of(core, &why));
    hd_text_free(&why);
}

void core_event_attempt_stopped(struct hd_core *core, struct core_job *job,
                                const struct core_attempt *attempt, const struct hd_end_record *end)
{
    add_end(core, job, HD_EVENT_ATTEMPT_STOPPED, attempt, end);
}

void core_event_attempt_failed(struct hd_core *core, struct core_job *job,
                               const struct core_attempt *attempt, const struct hd_end_record *end)
{
    add_end(core, job, HD_EVENT_ATTEMPT_FAILED, attempt, end);
}

void core_event_ended(struct hd_core *core, struct core_job *job,
                      const struct core_attempt *attempt)
{
    core_event(core, job, HD_EVENT_ENDED, attempt->rec.attempt, -1, "", "attempt %d ended: %s",
               attempt->rec.attempt, hd_end_cause_name((int)attempt->rec.end.cause));
}

void core_event_attempt_back(struct hd_core *core, struct core_job *job,
                             const struct core_attempt *attempt, const struct core_node *node)
{
    core_event(core, job, HD_EVENT_ATTEMPT_BACK, attempt->rec.attempt, -1, node->rec.name,
               "node %s answers again before another attempt was started: attempt %d goes on",
               node->rec.name, attempt->rec.attempt);
}

void core_event_attempt_unknown(struct hd_core *core, struct core_job *job, int32_t attempt,
                                const struct core_node *node)
{
    core_event(core, job, HD_EVENT_ATTEMPT_UNKNOWN, attempt, -1, node->rec.name,
               "node %s has attempt %d, which began after the backup from which the controller was "
               "restored: it is ended there, and the job goes on from the newest checkpoint on the "
               "disk, in attempt %d",
               node->rec.name, attempt, attempt + 1);
}

void core_event_attempt_refused(struct hd_core *core, struct core_job *job, int32_t attempt,
                                const struct core_node *node)
{
    core_event(core, job, HD_EVENT_ATTEMPT_REFUSED, 0, -1, node->rec.name,
               "node %s runs attempt %d, which this controller did not start (the newest is "
               "attempt %d): the node ends it and keeps its files",
               node->rec.name, attempt, job->rec.attempt_count);
}

/* ---- checkpoints and files --------------------------------------------------------------------*/

void core_event_checkpoint_damaged(struct hd_core *core, struct core_job *job,
                                   const struct core_attempt *attempt,
                                   const struct hd_checkpoint_record *fallback)
{
    const struct hd_attempt_record *rec = &attempt->rec;

    core_event(core, job, HD_EVENT_CHECKPOINT_DAMAGED, rec->attempt, rec->end.rank, rec->end.node,
               "the checkpoint of step %lld of attempt %d is damaged; going back to that of "
               "step %lld of attempt %d",
               (long long)rec->base_step, rec->base_attempt, (long long)fallback->step,
               fallback->attempt);
}

void core_event_checkpoint_missing(struct hd_core *core, struct core_job *job,
                                   const struct hd_checkpoint_record *next)
{
    struct hd_text text = {0};

    hd_text_add(&text, "listed checkpoints are not on the disk: ");
    core_add_missing_names(core, job, false, &text);
    if (next)
        hd_text_add(&text, "; the job goes on from step %lld of attempt %d", (long long)next->step,
                    next->attempt);
    else
        hd_text_add(&text, "; none is left, and the job waits until one is back");
    core_event(core, job, HD_EVENT_CHECKPOINT_MISSING, job->rec.attempt_count, -1, "", "%s",
               text_of(core, &text));
    hd_text_free(&text);
}

void core_event_checkpoint_back(struct hd_core *core, struct core_job *job,
                                const struct hd_checkpoint_record *checkpoint)
{
    core_event(core, job, HD_EVENT_CHECKPOINT_BACK, checkpoint->attempt, -1, "",
               "the checkpoint of step %lld of attempt %d is on the disk again: %s",
               (long long)checkpoint->step, checkpoint->attempt, checkpoint->path);
}

void core_event_checkpoint_removed(struct hd_core *core, struct core_job *job, int64_t step,
                                   const char *by)
{
    core_event(core, job, HD_EVENT_CHECKPOINT_REMOVED, 0, -1, "",
               "the checkpoint of step %lld was removed by %s", (long long)step, by);
}

void core_event_checkpoint_copied(struct hd_core *core, struct core_job *job,
                                  const struct hd_copied *copied, const struct core_node *node)
{
    if (job)
        core_event(core, job, HD_EVENT_CHECKPOINT_COPIED, copied->attempt, -1, node->rec.name,
                   "the checkpoint of step %lld was copied to %s", (long long)copied->step,
                   copied->to);
    else
        core_event(core, NULL, HD_EVENT_CHECKPOINT_COPIED, 0, -1, node->rec.name,
                   "job %llu, which has ended: the checkpoint of step %lld was copied to %s",
                   (unsigned long long)copied->job, (long long)copied->step, copied->to);
}

void core_event_checkpoints_found(struct hd_core *core, struct core_job *job,
                                  const struct core_attempt *attempt, size_t count,
                                  int64_t newest_step)
{
    core_event(core, job, HD_EVENT_CHECKPOINTS_FOUND, attempt->rec.attempt, -1, "",
               "attempt %d had written %zu checkpoints that its lost node could not report; the "
               "newest is of step %lld",
               attempt->rec.attempt, count, (long long)newest_step);
}

void core_event_search_failed(struct hd_core *core, struct core_job *job)
{
    core_event(core, job, HD_EVENT_SEARCH_FAILED, job->rec.attempt_count, -1, "",
               "cannot search the checkpoints of the job: %s", job->search_problem);
}

void core_event_files_left(struct hd_core *core, struct core_job *job, const struct core_node *node,
                           const char *left)
{
    if (left && *left)
        core_event(core, job, HD_EVENT_FILES_LEFT, 0, -1, node->rec.name,
                   "node %s did not delete all files: %s", node->rec.name, left);
}

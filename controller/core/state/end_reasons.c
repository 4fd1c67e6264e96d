/* end_reasons: why attempts and jobs have ended, in sentences. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "controller/core/state/texts.h"

/* ---- ends of attempts -------------------------------------------------------------------------*/

/* Appends rank, node and exit status of a failure; for a hang also the device, which may be the
 * cause. */
static void add_rank(const struct core_attempt *attempt, const struct hd_end_record *end,
                     struct hd_text *text)
{
    const struct hd_plan_record *plan = &attempt->rec.plan;

    if (end->rank >= 0)
        hd_text_add(text, ": rank %d", end->rank);
    if (end->node && *end->node)
        hd_text_add(text, "%s %s", end->rank >= 0 ? " on" : ": node", end->node);
    if (end->cause == HD_END_CAUSE_HANG && end->rank >= 0 && end->rank < plan->rank_count)
        hd_text_add(text, ", device %d", plan->ranks[end->rank].device);
    if (end->cause == HD_END_CAUSE_HANG)
        return; /* the rank's exit status only reflects that it was killed */
    if (end->signal)
        hd_text_add(text, ": killed by signal %d", end->signal);
    else if (end->exit_code)
        hd_text_add(text, ": exit code %d", end->exit_code);
}

/* Cuts an empty text to which a message was added to the length of a message. */
static void cut(struct hd_text *text)
{
    if (!text->data)
        return;
    text->len_bytes = hd_record_fit(text->data, HD_CTL_MESSAGE_BYTES_MAX - 1);
    text->data[text->len_bytes] = '\0';
}

void core_add_end(const struct core_attempt *attempt, const struct hd_end_record *end,
                  struct hd_text *text)
{
    struct hd_text all = {0};

    hd_text_add(&all, "%s", hd_end_cause_name((int)end->cause));
    if (end->cause != HD_END_CAUSE_DIVERGED) /* divergence is not the fault of one rank */
        add_rank(attempt, end, &all);
    if (end->message && *end->message)
        hd_text_add(&all, ": %s", end->message);
    cut(&all);
    hd_text_add(text, "%s", all.data ? all.data : "");
    text->failed |= all.failed;
    hd_text_free(&all);
}

const char *core_end_message(enum core_known_end end)
{
    static const char *const messages[] = {
#define X(name, message) message,
        CORE_END_LIST(X)
#undef X
    };

    return messages[end];
}

void core_add_disconnection(const struct core_attempt *attempt, struct hd_text *text)
{
    const struct core_node_alloc *allocs = attempt->allocs;

    hd_text_add(text,
                "its nodes (%s, %s%s) lost the connection to each other, and on none of them a "
                "rank was killed or crashed: look at the network between their data addresses (the "
                "first message: %s)",
                allocs[0].node->rec.name, allocs[1].node->rec.name,
                attempt->alloc_count > 2 ? ", .." : "", attempt->rec.end.message);
    cut(text);
}

void core_add_incomplete(const struct core_job *job, const struct core_attempt *attempt,
                         struct hd_text *text)
{
    hd_text_add(text, "its ranks ended as if the run were complete, but ");
    if (!attempt->early && attempt->last_step < job->rec.steps)
        hd_text_add(text, "the last step that they reported is %lld of %lld",
                    (long long)attempt->last_step, (long long)job->rec.steps);
    else
        hd_text_add(text, "they reported no checkpoint of step %lld, the last one",
                    (long long)(attempt->early ? attempt->last_step : job->rec.steps));
}

/* ---- ends of jobs -----------------------------------------------------------------------------*/

static void add_diverged(const struct core_job_end *end, struct hd_text *text)
{
    const struct hd_checkpoint_record *sound = end->checkpoint;

    core_add_end(end->attempt, &end->attempt->rec.end, text);
    if (sound)
        hd_text_add(text, "; the newest checkpoint from before that is step %lld of attempt %d",
                    (long long)sound->step, sound->attempt);
    else
        hd_text_add(text, "; no checkpoint is from before that");
}

/* Appends how an attempt that has used up its job's time ended without the checkpoint that it was
 * to write; nothing if it wrote one. */
static void add_unsaved_end(const struct hd_core *core, const struct core_job *job,
                            const struct core_job_end *end, struct hd_text *text)
{
    const struct core_attempt *attempt = end->attempt;

    if (end->has_failed) {
        hd_text_add(text, "attempt %d wrote no checkpoint at its end (", attempt->rec.attempt);
        core_add_end(attempt, &attempt->rec.end, text);
        hd_text_add(text, "); ");
    } else if (attempt->kill) {
        hd_text_add(
            text,
            "attempt %d did not stop within %lld s and was killed: its ranks did not reach "
            "the end of a step, or could not write a checkpoint (heddle events %" PRIu64 "); ",
            attempt->rec.attempt, (long long)(core->config.stop_grace_ms / 1000), job->rec.job);
    }
}

static void add_out_of_time(const struct hd_core *core, const struct core_job *job,
                            const struct core_job_end *end, struct hd_text *text)
{
    const struct hd_checkpoint_record *newest = end->checkpoint;
    const int64_t last_step = end->attempt->last_step;
    const int64_t saved = newest ? newest->step : 0;
    char limit[HD_CLOCK_TEXT_MAX], ran[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(job->needs.time_limit_ms, limit);
    hd_clock_format_span(end->ran_ms, ran);
    hd_text_add(text, "time_limit: it has run for %s of %s; ", ran, limit);
    add_unsaved_end(core, job, end, text);
    if (newest)
        hd_text_add(text, "its newest checkpoint is of step %lld of %lld; ", (long long)saved,
                    (long long)job->rec.steps);
    else
        hd_text_add(text, "it has no checkpoint; ");
    if (last_step > saved && !saved)
        hd_text_add(text, "all its steps are lost; ");
    else if (last_step > saved) /* the ranks may have run further than they reported */
        hd_text_add(text, "the steps after that are lost; ");
    hd_text_add(text, "heddle resume %" PRIu64 " lets it run for another %s%s", job->rec.job, limit,
                newest ? "" : ", from its first step");
}

/* Appends which steps of a cancelled job are lost; nothing if its last step is saved. */
static void add_cancelled(const struct core_job *job, const struct core_job_end *end,
                          struct hd_text *text)
{
    const struct core_attempt *attempt = end->attempt;
    const int64_t saved = end->checkpoint ? end->checkpoint->step : 0;

    if (job->rec.cancel_now || attempt->last_step <= saved)
        return;
    hd_text_add(text, "without a checkpoint of its last step; steps %lld to %s%lld are lost: ",
                (long long)saved + 1,
                /* a full disk also keeps ranks from reporting steps */
                attempt->rec.end.cause == HD_END_CAUSE_STORAGE ? "at least " : "",
                (long long)attempt->last_step);
    core_add_end(attempt, &attempt->rec.end, text);
}

void core_add_job_end(const struct hd_core *core, const struct core_job *job,
                      const struct core_job_end *end, struct hd_text *text)
{
    switch (end->kind) {
    case CORE_JOB_END_ATTEMPT:
        core_add_end(end->attempt, &end->attempt->rec.end, text);
        break;
    case CORE_JOB_END_DIVERGED:
        add_diverged(end, text);
        break;
    case CORE_JOB_END_RESTARTS:
        core_add_end(end->attempt, &end->attempt->rec.end, text);
        hd_text_add(text, " (%d failures in a row without a new checkpoint, restart.max is %d)",
                    end->failures, job->needs.restart_max);
        break;
    case CORE_JOB_END_ATTEMPTS:
        core_add_end(end->attempt, &end->attempt->rec.end, text);
        hd_text_add(text, " (after %d attempts)", HD_CTL_ATTEMPTS_MAX);
        break;
    case CORE_JOB_END_TIME:
        add_out_of_time(core, job, end, text);
        break;
    case CORE_JOB_END_CANCELLED:
        add_cancelled(job, end, text);
        break;
    case CORE_JOB_END_AFTER:
        hd_text_add(text,
                    "after: job %" PRIu64 " %s%s, and this one was to start when it had succeeded",
                    end->after, end->outcome == HD_JOB_STATE_FAILED ? "" : "was ",
                    hd_job_state_name((int)end->outcome));
        break;
    }
}

/* events: the functions of events.def, and the events whose sentence is put together from parts. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "controller/core/state/texts.h"

static const char *text_or_empty(const char *text)
{
    return text ? text : "";
}

/* Adds an event of the job whose sentence was put together in `text`, which it frees. */
static void add_text(struct hd_core *core, struct core_job *job, enum hd_event_kind kind,
                     struct hd_text *text)
{
    core_event(core, job, kind, job->rec.attempt_count, -1, "", "%s", core_text(core, text));
    hd_text_free(text);
}

/* Writes a span of time into `text`, and returns it. */
static const char *span_of(int64_t span_ms, char text[HD_CLOCK_TEXT_MAX])
{
    hd_clock_format_span(span_ms, text);
    return text;
}

/* Writes a time into `text`, and returns it. */
static const char *utc_of(int64_t time_ms, char text[HD_CLOCK_TEXT_MAX])
{
    hd_clock_format_utc(time_ms, text);
    return text;
}

static const char *const leave_causes[] = {
    [CORE_LEAVE_DAEMON_ENDS] = "whose heddled ends",
    [CORE_LEAVE_DEADLINE] = "which is drained: the deadline is over",
    [CORE_LEAVE_FITS_ELSEWHERE] = "which is drained: it fits on other nodes",
};

#define SPAN(span_ms) span_of(span_ms, (char[HD_CLOCK_TEXT_MAX]){0})
#define UTC(time_ms)  utc_of(time_ms, (char[HD_CLOCK_TEXT_MAX]){0})
#define JOBS_LIMIT \
    "%zu jobs are queued or running; at %zu new ones are refused: let some end, or cancel some"
#define R(id, params, ...)              \
    void core_add_##id params           \
    {                                   \
        hd_text_add(text, __VA_ARGS__); \
    }
#define E(id, params, kind, of, attempt, rank, about, ...)             \
    void core_event_##id params                                        \
    {                                                                  \
        core_event(core, of, kind, attempt, rank, about, __VA_ARGS__); \
    }
#define J(id, params, kind, attempt, ...) \
    E(id, params, HD_EVENT_##kind, job, attempt, -1, "", __VA_ARGS__)
#define N(id, params, kind, ...) \
    E(id, params, HD_EVENT_##kind, NULL, 0, -1, node->rec.name, __VA_ARGS__)
#include "controller/core/state/events.def"

/* ---- jobs -------------------------------------------------------------------------------------*/

void core_event_resumed(struct hd_core *core, struct core_job *job,
                        const struct hd_checkpoint_record *base, bool is_missing, const char *by)
{
    struct hd_text text = {0};

    hd_text_add(&text, "resumed by %s", by);
    if (base)
        hd_text_add(&text, ", from step %lld of attempt %d", (long long)base->step, base->attempt);
    else
        hd_text_add(&text, is_missing ? "; its checkpoints are missing"
                                      : ", from scratch: it has no checkpoint");
    add_text(core, job, HD_EVENT_RESUMED, &text);
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

static void add_start_cause(const struct hd_core *core, const struct core_job *job,
                            const struct core_start_cause *cause, struct hd_text *text)
{
    static const struct core_sentence sentences[] = {
#define X(name, ...) [CORE_START_##name] = {__VA_ARGS__},
        CORE_START_LIST(X)
#undef X
    };

    core_add_sentence(&sentences[cause->kind], cause->job, text);
    if (cause->kind == CORE_START_OTHER_JOB)
        hd_text_add(text, "%" PRIu64, cause->before);
    if (cause->takes_later)
        hd_text_add(text, "; ");
    if (cause->kind == CORE_START_BETTER || cause->takes_later)
        core_add_choice(core, &job->choice, true, text);
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
                   "expected to start at %s: %s", is, core_text(core, &why));
    else
        core_event(core, job, HD_EVENT_START_MOVED, job->rec.attempt_count, -1, "",
                   "the expected start moved from %s to %s: %s", was,
                   now_ms ? is : "an unknown time", core_text(core, &why));
    hd_text_free(&why);
}

void core_event_weighed(struct hd_core *core, struct core_job *job)
{
    struct hd_text text = {0};

    core_add_choice(core, &job->choice, false, &text);
    add_text(core, job, HD_EVENT_WEIGHED, &text);
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
               "attempt %d on %s", attempt->attempt, core_text(core, &text));
    hd_text_free(&text);
}

void core_job_list_add(struct core_job_list *list, uint64_t job)
{
    hd_text_add(&list->numbers, "%s%" PRIu64, list->count++ ? ", " : "", job);
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
                later->plan.step_s, one ? "" : "s", core_text(core, &moved->numbers),
                one ? "s" : "", one ? "s" : "");
    add_text(core, job, HD_EVENT_GATHERING, &text);
}

void core_event_attempt_end(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt, const struct hd_end_record *end,
                            bool as_requested)
{
    struct hd_text why = {0};

    core_add_end(attempt, end, &why);
    core_event(core, job, as_requested ? HD_EVENT_ATTEMPT_STOPPED : HD_EVENT_ATTEMPT_FAILED,
               attempt->rec.attempt, end->rank, end->node, "attempt %d: %s", attempt->rec.attempt,
               core_text(core, &why));
    hd_text_free(&why);
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
    add_text(core, job, HD_EVENT_CHECKPOINT_MISSING, &text);
}

/* ---- the cluster ------------------------------------------------------------------------------*/

void core_event_drain(struct hd_core *core, const struct core_node *node, const char *by,
                      int64_t void_ms)
{
    const char *reason = text_or_empty(node->rec.drain_reason);
    const bool has_deadline = node->rec.drain_deadline_ms != 0;
    char deadline[HD_CLOCK_TEXT_MAX], before[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(node->rec.drain_deadline_ms, deadline);
    hd_clock_format_utc(void_ms, before);
    if (!node->rec.drain)
        core_event(core, NULL, HD_EVENT_UNDRAIN, 0, -1, node->rec.name, "%s was undrained by %s",
                   node->rec.name, by);
    else
        core_event(core, NULL, HD_EVENT_DRAIN, 0, -1, node->rec.name,
                   "%s was drained by %s%s%s%s%s%s%s", node->rec.name, by, *reason ? ": " : "",
                   reason, has_deadline ? "; its jobs leave it by " : "",
                   has_deadline ? deadline : "", void_ms ? "; this replaces the deadline " : "",
                   void_ms ? before : "");
}

static void add_limit(struct hd_text *text, const char *before, int32_t limit, const char *after)
{
    if (limit)
        hd_text_add(text, "%sat most %d device%s%s", before, limit, limit == 1 ? "" : "s", after);
    else
        hd_text_add(text, "%sno limit of devices%s", before, after);
}

void core_event_queue_set(struct hd_core *core, const struct hd_queue_record *queue, const char *by)
{
    struct hd_text limits = {0};

    add_limit(&limits, "", queue->devices_max, " in all");
    add_limit(&limits, ", ", queue->user_devices_max, " for a user");
    core_event(core, NULL, HD_EVENT_QUEUE_SET, 0, -1, "", "queue %s: %s, weight %d%s; set by %s",
               queue->name, core_text(core, &limits), queue->weight,
               queue->closed ? ", closed" : "", by);
    hd_text_free(&limits);
}

/* predict: when running attempts will end, and how long waiting jobs will run.
 *
 * The pace of an attempt is the time per step between its first and its newest reported step, by
 * the rank's clock; validation and checkpoints in between are included. After a restart of the
 * controller it is measured anew; until then the pace since the attempt's start counts. Without a
 * measured pace and without a time limit the end is unknown, except for a job that runs on devices
 * reserved for others: its predicted step time counts (layout_cache.c). A wrong prediction never
 * ends a job; it moves expected starts, which is reported (reserve.c).
 *
 * A pace that differs twofold from the prediction is an event, once per attempt. All later predictions
 * for the job on such devices are multiplied by the ratio (core_price_factor), until one of the nodes
 * is measured anew. An attempt's record has the factor that its prediction contains, since after a
 * restart of the controller only the newest step of a job is known.
 */
#include "controller/core/state/state.h"
#include "controller/core/state/texts.h"

enum {
    STEPS_MEASURED_MIN = 3, /* steps that must be measured before the pace counts */
    STEPS_JUDGED_MIN = 10, /* steps that must be measured before the prediction is judged by them */
    SLACK_MS = 60 * 1000,  /* milliseconds added to a predicted end, for the start of the job and
                               * its last checkpoint */
    DRIFT_MIN_MS = 60 * 1000, /* milliseconds: predictions are stale if one is off by more than
                               * this, and by more than 1/DRIFT_DIVISOR of the time left */
    DRIFT_DIVISOR = 10,       /* divisor of the time left, for DRIFT_MIN_MS */
    LATE_MS = 1000,           /* milliseconds by which a report that ranks run counts as late */
    LATE_DIVISOR = 5,         /* a pace measured since such a late report counts after this many
                               * times LATE_MS */
};

/* Ratio of a measured step time to the predicted one, or the reverse, from which on the prediction was
 * wrong. */
#define WRONG_RATIO 2

/* Factor by which steps may exceed their predicted time; rates.c derives it for speeds from data
 * sheets. */
#define PRICE_BAND 1.25

/* Returns the milliseconds per step after step `first`, which ended at first_ms; 0: too few
 * steps. */
static double pace_since(const struct core_attempt *attempt, int64_t first, int64_t first_ms)
{
    const int64_t steps = attempt->last_step - first;

    if (!first_ms || steps < STEPS_MEASURED_MIN || attempt->last_step_ms <= first_ms)
        return 0;
    return (double)(attempt->last_step_ms - first_ms) / (double)steps;
}

double core_step_ms(const struct core_attempt *attempt)
{
    const double measured = pace_since(attempt, attempt->first_step, attempt->first_step_ms);

    return measured > 0 ? measured : attempt->restored_step_ms;
}

/* Returns measured / predicted step time where these differ by WRONG_RATIO or more; 1: they do not, or
 * one is unknown. */
static double wrong_by(const struct core_attempt *attempt)
{
    const double planned_ms = 1000 * attempt->rec.plan.step_s;
    int64_t steps = attempt->last_step - attempt->first_step;
    double ms = pace_since(attempt, attempt->first_step, attempt->first_step_ms);

    /* until enough steps are measured after a restart, the pace from before it counts */
    if (attempt->restored_step_ms > 0 && (!attempt->first_step_ms || steps < STEPS_JUDGED_MIN)) {
        ms = attempt->restored_step_ms;
        steps = (attempt->first_step_ms ? attempt->first_step : attempt->last_step) -
                attempt->rec.base_step;
    }
    if (ms <= 0 || planned_ms <= 0 || steps < STEPS_JUDGED_MIN ||
        (ms < WRONG_RATIO * planned_ms && planned_ms < WRONG_RATIO * ms))
        return 1;
    return ms / planned_ms;
}

/* Returns whether a node of the attempt was measured after the attempt began. */
static bool is_measured_since(const struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->alloc_count; i++)
        if (attempt->allocs[i].node->probe.measured_ms > attempt->rec.created_ms)
            return true;
    return false;
}

double core_price_factor(const struct core_job *job, enum hd_job_device device)
{
    for (int32_t i = job ? job->rec.attempt_count : 0; i > 0; i--) {
        const struct core_attempt *attempt = job->attempts[i - 1];
        const struct hd_plan_record *plan = &attempt->rec.plan;
        const bool has_ended = attempt->rec.state == HD_ATTEMPT_STATE_ENDED;

        if (plan->layout.device == device && plan->step_s > 0)
            return is_measured_since(attempt) ? 1
                                              : (plan->step_factor > 0 ? plan->step_factor : 1) *
                                                    (has_ended ? wrong_by(attempt) : 1);
    }
    return 1;
}

void core_predict_judge(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    if (attempt->judged_wrong || wrong_by(attempt) == 1)
        return;
    attempt->judged_wrong = true;
    core_event_step_time(core, job, attempt, core_step_ms(attempt) / 1000);
}

void core_predict_restore(struct core_attempt *attempt)
{
    if (attempt->last_step_ms - attempt->rec.running_ms >= LATE_DIVISOR * LATE_MS)
        attempt->restored_step_ms =
            pace_since(attempt, attempt->rec.base_step, attempt->rec.running_ms);
    attempt->judged_wrong = wrong_by(attempt) != 1; /* the event is in the history */
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Returns the end of the attempt predicted by its remaining steps; INT64_MAX: unknown. Before a
 * pace is measured, the predicted step time is used only for attempts on devices reserved for
 * others; if it was used for all, expected starts would move more often. */
static int64_t end_of_steps(const struct core_job *job, const struct core_attempt *attempt)
{
    const double step_ms = core_step_ms(attempt), step_s = attempt->rec.plan.step_s;

    if (step_ms <= 0 && !(step_s > 0 && attempt->backfilled))
        return INT64_MAX;
    if (step_ms <= 0)
        return attempt->state_since_mono_ms + SLACK_MS +
               (int64_t)(PRICE_BAND * 1000 * step_s *
                         (double)(job->rec.steps - attempt->rec.base_step));
    return attempt->last_step_mono_ms +
           (int64_t)(step_ms * (double)(job->rec.steps - attempt->last_step));
}

/* Returns the end of the attempt predicted by the job's time limit; INT64_MAX: it has none. */
static int64_t end_of_time(const struct hd_core *core, const struct core_job *job,
                           const struct core_attempt *attempt)
{
    int64_t left_ms;

    if (!job->needs.time_limit_ms)
        return INT64_MAX;
    left_ms = job->needs.time_limit_ms - core_job_ran_ms(core, job);
    if (attempt->rec.state == HD_ATTEMPT_STATE_STARTING)
        return attempt->state_since_mono_ms + left_ms + SLACK_MS;
    return core->now.mono_ms + left_ms + SLACK_MS / 2;
}

int64_t core_predict_end(const struct hd_core *core, const struct core_job *job,
                         const struct core_attempt *attempt)
{
    int64_t end = earlier(end_of_steps(job, attempt), end_of_time(core, job, attempt));

    if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING)
        end = earlier(end, attempt->state_since_mono_ms + CORE_STOP_MS);
    /* an attempt past its time limit is assumed to end in CORE_STOP_MS from now */
    return end < core->now.mono_ms ? core->now.mono_ms + CORE_STOP_MS : end;
}

struct core_stop_cost core_stop_cost_of(const struct hd_core *core,
                                        const struct core_attempt *attempt)
{
    const int64_t since_ms = attempt->saved_mono_ms > attempt->state_since_mono_ms
                                 ? attempt->saved_mono_ms
                                 : attempt->state_since_mono_ms;
    const int64_t restart_ms = attempt->rec.running_ms - attempt->rec.created_ms + CORE_STOP_MS;
    const int32_t devices = attempt->rec.plan.rank_count;

    return (struct core_stop_cost){.lost_ms = (core->now.mono_ms - since_ms) * devices,
                                   .idle_ms = restart_ms * devices,
                                   .restart_ms = restart_ms};
}

/* Returns the milliseconds that a queued job will run if a step takes step_ms; 0: unknown. */
static int64_t length_of(const struct hd_core *core, const struct core_job *job, double step_ms)
{
    int64_t length_ms = INT64_MAX;

    if (job->needs.time_limit_ms)
        length_ms = job->needs.time_limit_ms - core_job_ran_ms(core, job) + SLACK_MS;
    if (step_ms > 0)
        length_ms =
            earlier(length_ms, (int64_t)(step_ms * (double)core_steps_left(job)) + SLACK_MS);
    if (length_ms == INT64_MAX)
        return 0;
    return length_ms > 0 ? length_ms : 1;
}

int64_t core_predict_length_ms(const struct hd_core *core, const struct core_job *job)
{
    const struct core_attempt *newest = core_newest(job);
    const double open_ms = PRICE_BAND * 1000 * job->open_s;
    double step_ms = newest ? core_step_ms(newest) : 0;

    if (step_ms <= 0 || newest->rec.plan.rank_count > job->needs.devices_min)
        step_ms = PRICE_BAND * 1000 * job->predicted_step_s;
    return length_of(core, job, step_ms > 0 && step_ms < open_ms ? open_ms : step_ms);
}

int64_t core_predict_length_at(const struct hd_core *core, const struct core_job *job,
                               double step_s)
{
    return length_of(core, job, PRICE_BAND * 1000 * step_s);
}

bool core_note_running(const struct hd_core *core, struct core_attempt *attempt)
{
    /* since when the ranks run at least: now, minus the time between two steps by the rank's clock,
     * which may differ from this one */
    const int64_t since_ms = core->now.wall_ms - (attempt->last_step_ms - attempt->first_step_ms);
    const int64_t created_ms = attempt->rec.created_ms;

    if (!attempt->first_step_ms || attempt->rec.running_ms - since_ms < LATE_MS)
        return false;
    attempt->rec.running_ms = since_ms > created_ms ? since_ms : created_ms;
    return true;
}

bool core_predict_step(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       int64_t step, int64_t time_ms)
{
    int64_t end, off_ms, left_ms;

    if (!attempt->first_step_ms) {
        attempt->first_step = step;
        attempt->first_step_ms = time_ms;
    }
    if (step <= attempt->last_step)
        return false;
    attempt->last_step = step;
    attempt->last_step_ms = time_ms;
    attempt->last_step_mono_ms = core->now.mono_ms;
    if (core_note_running(core, attempt))
        core_dirty_attempt(core, job, attempt);
    end = core_predict_end(core, job, attempt);
    if (end == INT64_MAX || attempt->ends_mono_ms == INT64_MAX)
        return end != attempt->ends_mono_ms;
    off_ms =
        end > attempt->ends_mono_ms ? end - attempt->ends_mono_ms : attempt->ends_mono_ms - end;
    left_ms = end - core->now.mono_ms;
    return off_ms > DRIFT_MIN_MS && off_ms * DRIFT_DIVISOR > left_ms;
}

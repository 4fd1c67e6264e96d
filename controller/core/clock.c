/* clock: follows a wall clock that was set while the controller ran, or a machine that slept, which
 * the monotonic clock does not count.
 *
 * Times shown to users are wall-clock times; timers run on the monotonic clock. When the wall clock
 * jumps relative to the monotonic clock, the stored times of everything that is still going on are
 * shifted by the same amount: starts of attempts, drain deadlines, expected starts, begins of
 * silence. Running times therefore stay correct: otherwise a clock set an hour ahead would fail all
 * jobs with a time limit, and a clock set back would let them run too long. Times of finished
 * things, and of submissions, are not changed. The shift is applied at the next tick; until then
 * the core keeps using the old clock.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "controller/core/core_internal.h"

/* Milliseconds between the two clocks that count as a step; a smaller difference is a clock that is
 * being slewed. */
enum { STEP_MS = 2000 };

static void move_attempt(struct hd_core *core, struct core_job *job, int64_t step_ms)
{
    struct core_attempt *attempt = core_active(job);

    attempt->rec.created_ms += step_ms;
    if (attempt->rec.running_ms)
        attempt->rec.running_ms += step_ms;
    core_dirty_attempt(core, job, attempt);
}

static void move_node(struct hd_core *core, struct core_node *node, int64_t step_ms)
{
    node->silent_since_ms += step_ms;
    if (core_node_has_come(node))
        node->rec.seen_ms += step_ms;
    if (!node->rec.drain_deadline_ms)
        return;
    node->rec.drain_deadline_ms += step_ms;
    core_dirty_node(core, node);
}

/* Shifts a job's expected start by step_ms; adds an event, as for every move of an expected
 * start. */
static void shift_planned_start(struct hd_core *core, struct core_job *job, int64_t step_ms)
{
    char was[HD_CLOCK_TEXT_MAX], is[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(job->rec.planned_start_ms, was);
    job->rec.planned_start_ms += step_ms;
    hd_clock_format_utc(job->rec.planned_start_ms, is);
    core_event(core, job, HD_EVENT_START_MOVED, job->rec.attempt_count, -1, "",
               "the expected start moved from %s to %s: the clock of the controller's machine was "
               "set",
               was, is);
    core_dirty_job(core, job);
}

void core_follow_clock(struct hd_core *core, struct hd_now before, bool ticks)
{
    const int64_t step_ms =
        core->now.wall_ms - before.wall_ms - (core->now.mono_ms - before.mono_ms);
    char span[HD_CLOCK_TEXT_MAX];

    if (!before.wall_ms || llabs(step_ms) < STEP_MS)
        return;
    if (!ticks) {
        core->now.wall_ms -= step_ms;
        return;
    }
    hd_clock_format_span(llabs(step_ms), span);
    core_event(core, NULL, HD_EVENT_CLOCK_SET, 0, -1, "",
               "the clock of the controller's machine was set %s by %s%s: time limits, deadlines "
               "of drains and expected starts move with it",
               step_ms > 0 ? "ahead" : "back", span, step_ms > 0 ? ", or the machine slept" : "");
    for (size_t i = 0; i < core->node_count; i++)
        move_node(core, core->nodes[i], step_ms);
    for (size_t i = 0; i < core->active.count; i++)
        move_attempt(core, core->active.items[i], step_ms);
    for (size_t i = 0; i < core->planned_to_start.count; i++)
        shift_planned_start(core, core->planned_to_start.items[i], step_ms);
}

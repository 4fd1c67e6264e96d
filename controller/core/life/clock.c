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

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

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
    const struct core_start_cause cause = {.kind = CORE_START_CLOCK_SET};
    const int64_t before_ms = job->rec.planned_start_ms;

    job->rec.planned_start_ms += step_ms;
    core_event_start(core, job, before_ms, job->rec.planned_start_ms, &cause);
    core_dirty_job(core, job);
}

void core_follow_clock(struct hd_core *core, struct hd_now before, bool ticks)
{
    const int64_t step_ms =
        core->now.wall_ms - before.wall_ms - (core->now.mono_ms - before.mono_ms);

    if (!before.wall_ms || llabs(step_ms) < STEP_MS)
        return;
    if (!ticks) {
        core->now.wall_ms -= step_ms;
        return;
    }
    core_event_clock_set(core, step_ms);
    for (size_t i = 0; i < core->node_count; i++)
        move_node(core, core->nodes[i], step_ms);
    for (size_t i = 0; i < core->active.count; i++)
        move_attempt(core, core->active.items[i], step_ms);
    for (size_t i = 0; i < core->planned_to_start.count; i++)
        shift_planned_start(core, core->planned_to_start.items[i], step_ms);
}

/* keep: what the policy says of old history is done, a little at a time; on a full disk, too, from
 * the reserve: it makes room in the database. The settled clock (base/clock.h) decides what is
 * old: a clock that is set ahead by mistake for a moment must not delete anything. */
#include "base/clock.h"
#include "controller/services/internal.h"

enum { EVERY_MS = 10000 };

void keep_tick(struct controller *c)
{
    const struct hd_keep keep = hd_policy_keep(c->policy);
    const struct hd_prune_record prune = {.now_ms = c->settled.wall_ms,
                                          .history_ms = keep.history_ms,
                                          .history_jobs = keep.history_jobs,
                                          .step_lines = keep.step_lines,
                                          .step_lines_ms = keep.step_lines_ms};

    if ((!keep.history_ms && !keep.history_jobs && !keep.step_lines) ||
        hd_clock_now_ms() < c->keep_due_ms || hd_store_room(c->store) == HD_STORE_STUCK)
        return;
    c->keep_due_ms = hd_clock_now_ms() + EVERY_MS;
    turn_begin(c);
    if (c->turn)
        hd_batch_add_prune(c->turn->batch, &prune);
    turn_end(c);
}

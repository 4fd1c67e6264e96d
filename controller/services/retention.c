/* retention: deletes old history as the policy says, a little at a time; on a full disk, too, from
 * the disk reserve, because it frees space in the database. The settled clock (base/clock.h)
 * decides what is old, so that a clock that is briefly set ahead by mistake deletes nothing. */
#include "base/clock.h"
#include "controller/services/internal.h"

enum { EVERY_MS = 10000 };

void retention_tick(struct controller *c)
{
    const struct hd_retention retention = hd_policy_retention(c->policy);
    const struct hd_prune_record prune = {.now_ms = c->settled.wall_ms,
                                          .history_ms = retention.history_ms,
                                          .history_jobs = retention.history_jobs,
                                          .step_lines = retention.step_lines,
                                          .step_lines_ms = retention.step_lines_ms};

    if ((!retention.history_ms && !retention.history_jobs && !retention.step_lines) ||
        hd_clock_now_ms() < c->retention_due_ms || hd_store_disk_state(c->store) == HD_STORE_STUCK)
        return;
    c->retention_due_ms = hd_clock_now_ms() + EVERY_MS;
    transaction_begin(c);
    if (c->transaction)
        hd_batch_add_prune(c->transaction->batch, &prune);
    transaction_end(c);
}

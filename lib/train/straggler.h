/* straggler: ranks that are slower than their peers, found in what each rank tells of its steps.
 *
 * A rank tells for how long it was busy in a step: the step's duration without its waits for other
 * ranks. Peers are the ranks of one pipeline stage, which do the same work. A rank is *late* in a
 * step if it was busy for longer than the median of its peers, by a tenth of the step or more. It
 * is a straggler if it was late in 20 of the last 30 steps, until it was in less than 10; and only
 * where the ranks that are no stragglers were late in at most 2 of them: on a machine where all are
 * late now and then, none is named.
 *
 * Steps of less than half a second are judged together, as many as last so long: what the machine
 * does beside them for a moment would count as much as a step.
 *
 * Pure: no clock, no I/O.   Used by: worker, tests.   Uses: base.   Threads: one owner.
 */
#ifndef HD_TRAIN_STRAGGLER_H
#define HD_TRAIN_STRAGGLER_H

#include <stdbool.h>

#include "base/status.h"

enum {
    HD_STRAGGLER_STEPS = 30, /* that are looked at */
    HD_STRAGGLER_LATE_MIN = 20,
    HD_STRAGGLER_OVER = 10, /* late in fewer: no straggler any more */
    HD_STRAGGLER_NOISE_MAX = 2,
    HD_STRAGGLER_SPAN_MS = 500, /* shorter steps are judged together */
};

struct hd_stragglers;

/* stage_of: [world] of each rank. Memory: HD_STRAGGLER_STEPS + 42 bytes per rank. */
enum hd_status hd_stragglers_new(int world, const int *stage_of, struct hd_stragglers **ret_watch);
void hd_stragglers_free(struct hd_stragglers *watch); /* NULL is fine */

/* What all ranks told of one step: busy_ms[world]; less than 0: not known, then the step does not
 * count. True: a rank has become a straggler, or is none any more. */
bool hd_stragglers_add(struct hd_stragglers *watch, const double *busy_ms, double step_ms);

struct hd_straggler {
    bool is;
    bool changed;              /* by the newest hd_stragglers_add that was true */
    int late, of;              /* late in so many of so many looks */
    double steps;              /* of the newest look */
    double busy_ms, others_ms; /* per step, of the newest look; others: the median of its peers */
};
struct hd_straggler hd_stragglers_get(const struct hd_stragglers *watch, int rank);

#endif

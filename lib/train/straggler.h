/* straggler: finds ranks that are slower than their peers, from the busy time that each rank
 * reports.
 *
 * Busy time is the step's duration without the rank's waits for other ranks. Peers are the ranks of
 * one pipeline stage, which do the same work. A rank is *late* in a step if its busy time exceeds
 * the median of its peers by a tenth of the step or more. It becomes a straggler when it was late
 * in 20 of the last 30 steps, and stops being one when it was late in less than 10. It becomes one
 * only if the ranks that are not stragglers were late in at most 2 of these steps: on a machine
 * where all ranks are late now and then, no rank is named.
 *
 * Steps shorter than half a second are judged together, in groups that last half a second: else a
 * short disturbance by other processes would count as much as a whole step.
 *
 * Pure: no clock, no I/O.   Used by: worker, tests.   Uses: base.   Threads: one owner.
 */
#ifndef HD_TRAIN_STRAGGLER_H
#define HD_TRAIN_STRAGGLER_H

#include <stdbool.h>

#include "base/status.h"

enum {
    /* number of newest judged steps (or groups of short steps) that are remembered */
    HD_STRAGGLER_STEPS = 30,
    HD_STRAGGLER_LATE_MIN = 20,
    HD_STRAGGLER_OVER = 10, /* steps; a straggler that was late in fewer of them is no longer one */
    HD_STRAGGLER_NOISE_MAX = 2,
    /* ms; shorter steps are judged together, in groups of this duration */
    HD_STRAGGLER_SPAN_MS = 500,
};

struct hd_stragglers;

/* Makes the state that watches `world` ranks for stragglers. stage_of: [world], the pipeline stage
 * of each rank. Memory: HD_STRAGGLER_STEPS + 42 bytes per rank. */
enum hd_status hd_stragglers_new(int world, const int *stage_of, struct hd_stragglers **ret_watch);
void hd_stragglers_free(struct hd_stragglers *watch); /* NULL is ignored */

/* Adds one step. busy_ms: [world], each rank's time without waits for other ranks; a value below 0
 * is unknown, and the step is then ignored. Returns true if a rank has become a straggler, or has
 * stopped being one. */
bool hd_stragglers_add(struct hd_stragglers *watch, const double *busy_ms, double step_ms);

struct hd_straggler {
    bool is;
    bool changed; /* true: `is` was changed by the newest hd_stragglers_add that returned true */
    int late, of; /* the rank was late in `late` of the last `of` judgements */
    double steps; /* steps that the newest judgement covers, more than 1 if steps are short */
    /* busy time of this rank (busy_ms) and median of its peers (others_ms), in ms per step of the
     * newest judgement */
    double busy_ms, others_ms;
};
struct hd_straggler hd_stragglers_get(const struct hd_stragglers *watch, int rank);

#endif

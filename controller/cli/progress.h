/* progress: a job's progress as one line, a pure function of what is known.
 *
 *      42% ██████████████░░░░░░░░░░░░░░░░░░░░  210/500  loss 2.3142  98.1k tok/s  mfu 44%  2m05s
 * left
 *
 * On a narrow terminal the least important parts go first (mfu, rate, time left, the bar itself),
 * never step and loss. The line is at most `columns` - 1 wide, so that it never wraps.
 *
 * Used by: watch.c, tests.   Uses: base.   Threads: any; no state but struct progress.
 */
#ifndef HD_CLI_PROGRESS_H
#define HD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

struct progress {
    int64_t step, steps;
    double loss, tokens_per_s, mfu; /* mfu 0: not known */
    /* how fast steps come, from the times at which they ended */
    int64_t first_step, first_unix_ms, last_unix_ms;
    double ms_per_step; /* 0: not known yet */
};

struct progress_style {
    int columns;
    bool colour, utf8;
};

/* Takes a step's report in. The pace is a moving average over the last twenty steps or so, of wall
 * time: checkpoints and validation are in it. */
void progress_step(struct progress *p, int64_t step, int64_t time_unix_ms);
void progress_restart(struct progress *p); /* another attempt: the pace is measured anew */

/* -1: not known yet */
int64_t progress_left_ms(const struct progress *p);

/* Adds the line, without line break and cursor movement. */
void progress_render(const struct progress *p, const struct progress_style *style,
                     struct hd_text *out);

#endif

/* progress: a job's progress as one line, a pure function of what is known.
 *
 *      50% ############............  250/500  loss 2.3142  val 2.4012  lr 3.00e-04  grad 0.81
 *      98.1k tok/s  mfu 44%  ETA 2m05s                            (one line; here it is broken)
 *
 * The line is at most `columns` - 1 wide, so that it never wraps. What does not fit is left out,
 * the last of this list first: percent, step, loss, ETA, bar, validation loss, tokens per second,
 * learning rate, gradient norm, mfu. A value that was not reported has no place in the line; an ETA
 * that is not known yet is "-". The bar takes the columns that are left, 8 to 40.
 *
 * Used by: watch.c, lines.c, tests.   Uses: base.   Threads: any; no state.
 */
#ifndef HD_CLI_PROGRESS_H
#define HD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

/* The latest reports. */
struct progress {
    int64_t step, steps;                 /* step 0: none was reported */
    double loss, lr;                     /* of that step */
    double grad_norm, tokens_per_s, mfu; /* of that step; 0: not reported */
    bool validated;
    int64_t validation_step; /* if validated: after so many steps */
    double validation_loss;
    int64_t left_ms; /* until the job's end; -1: not known */
};

struct progress_style {
    int columns; /* of the terminal */
    bool colour;
    bool utf8; /* block characters, each one column wide; else # and . */
};

/* Adds the line, without line break and cursor movement. */
void progress_render(const struct progress *p, const struct progress_style *style,
                     struct hd_text *out);

#endif

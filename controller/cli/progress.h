/* progress: a job's progress as one line, a pure function of its reports.
 *
 *      50% ############............  250/500  loss 2.3142  val 2.4012  lr 3.00e-04  grad 0.81
 *      98.1k tok/s  mfu 44%  ETA 2m05s                            (one line; here it is broken)
 *
 * The line is at most `columns` - 1 wide, so that it never wraps. If it is too long, parts are left
 * out, the last of this list first: percent, step, loss, ETA, bar, validation loss, tokens per
 * second, learning rate, gradient norm, mfu. A value that was not reported is left out; an unknown
 * ETA is "-". The bar takes the remaining columns, 8 to 40.
 *
 * Used by: watch.c, lines.c, tests.   Uses: base, job.   Threads: any; no state.
 */
#ifndef HD_CLI_PROGRESS_H
#define HD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "job/job.h"

/* Values of the latest reports. */
struct progress {
    /* latest step, and total steps of the job; step 0: none reported */
    int64_t step, steps;
    double loss, lr;                     /* loss and learning rate of `step` */
    double grad_norm, tokens_per_s, mfu; /* values of `step`; 0: not reported */
    int64_t validation_step;             /* step of the latest validation, if there was one */
    /* [validation_count], the losses and scores of the latest validation, in the order of their
     * reports: first the set that checkpoint.best names; count 0: no validation so far */
    struct {
        char set
            [HD_JOB_VAL_REPORT_MAX]; /* of the set, "": data.val is one list; of a score: NAME/acc */
        double loss;
    } validations[HD_JOB_VAL_REPORTS_MAX];
    int validation_count;
    int64_t left_ms; /* remaining time of the job; -1: unknown */
};

struct progress_style {
    int columns; /* width of the terminal */
    bool colour;
    bool utf8; /* the bar is drawn with block characters, each one column wide; else with # and . */
};

/* Takes the loss of a validation set. */
void progress_validate(struct progress *p, int64_t step, const char *set, double loss);

/* Appends a sentence for a log without a bar, such as "step 250 of 500 (50%), 98.1k tok/s, about
 * 2m05s left"; nothing if no step was reported. */
void progress_summarize(const struct progress *p, struct hd_text *out);

/* Appends the progress line, without line break and cursor movement. */
void progress_render(const struct progress *p, const struct progress_style *style,
                     struct hd_text *out);

#endif

/* lines: a job's history as plain lines for people, a pure function of its entries.
 *
 * stdout gets the training's results: steps, validations, checkpoints, the end. They are equal for
 * two equal runs, so that diff compares them: times, rates, job numbers and absolute paths are left
 * out; with `times`, rates and times are the last columns of steps. stderr gets the circumstances
 * of this run: where its ranks run, what it waits for, notes, warnings, failed attempts. Events
 * that only explain how Heddle works (a rank has ended, an attempt has ended) are in `heddle
 * events`.
 *
 * Used by: watch.c, tests.   Uses: cli.h, progress.   Threads: one; no state.
 */
#ifndef HD_CLI_LINES_H
#define HD_CLI_LINES_H

#include "controller/cli/cli.h"
#include "controller/cli/progress.h"

struct lines {
    uint64_t job; /* named in the line of the end; 0: not named */
    const char
        *directory;   /* checkpoints are named by their path below it; "": by their whole path */
    bool times;       /* rates and times of steps, in the last columns */
    bool one_machine; /* `heddle local`: nodes are not named */
    bool colour, error_colour;       /* on stdout, on stderr */
    const struct progress *progress; /* the latest reports */
};

/* Whether the line of this step is printed: the first, the last, and every `every` steps. With 0
 * that is every 1, 2 or 5 times a power of ten, the smallest that makes at most 100 lines. The rule
 * looks at no clock, so that two runs of a job print the same steps. */
bool hd_cli_log_step(int64_t step, int64_t steps, int64_t every);

/* Adds the line of an entry, without line break; nothing where people need none. True: for stdout.
 */
bool lines_add(struct hd_text *out, const struct lines *lines,
               const Heddle__V1__WatchJobResponse *entry);

/* "running on 2 cpu devices, 1 thread each: dp 2, micro-batch 4 x 1, fp32, from step 20". The
 * attempt has a plan. */
void lines_add_placement(struct hd_text *out, const struct lines *lines,
                         const Heddle__V1__AttemptStatus *attempt);

#endif

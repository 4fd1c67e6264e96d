/* lines: a job's history as plain lines for people, a pure function of its entries.
 *
 * stdout gets the training's results: steps, validations, checkpoints, the end. They are equal for
 * two equal runs, so that diff can compare them: times, rates, job numbers and absolute paths are
 * left out; with `times`, rates and times are the last columns of steps. stderr gets facts about
 * this run: where its ranks run, why it waits, notes, warnings, failed attempts. Events that only
 * trace Heddle's own work (a rank has ended, an attempt has ended) are in `heddle events`.
 *
 * Used by: watch.c, tests.   Uses: cli.h, progress.   Threads: one; no state.
 */
#ifndef HD_CLI_LINES_H
#define HD_CLI_LINES_H

#include "controller/cli/cli.h"
#include "controller/cli/progress.h"

struct lines {
    /* job's number in the line about its end; 0: the line has no number */
    uint64_t job;
    const char *directory;     /* prefix removed from checkpoint paths; "": paths are shown whole */
    bool times;                /* lines of steps have rates and times in their last columns */
    bool one_machine;          /* for `heddle local`: lines have no node names */
    bool colour, error_colour; /* colour of lines on stdout; on stderr */
    const struct progress *progress; /* latest reports of the job */
};

/* Returns whether a line about this step is printed. Printed are the first, the last, and every
 * `every` steps. every 0: every 1, 2 or 5 times a power of ten, the smallest that makes at most 100
 * lines. Time plays no part, so that two runs of a job print the same steps. */
bool hd_cli_log_step(int64_t step, int64_t steps, int64_t every);

/* Appends the line about an entry of the history, without line break; nothing if the entry is not
 * for people. Returns whether the line is for stdout (false: stderr). */
bool lines_add(struct hd_text *out, const struct lines *lines,
               const Heddle__V1__WatchJobResponse *entry);

/* Appends "running on 2 cpu devices, 1 thread each: dp 2, micro-batch 4 x 1, fp32, from step 20".
 * The attempt must have a plan. */
void lines_add_placement(struct hd_text *out, const struct lines *lines,
                         const Heddle__V1__AttemptStatus *attempt);

#endif

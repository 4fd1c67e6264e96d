/* eta: how long a job still takes, from the times at which its reports were made.
 *
 * left = steps left x time of a step + validations left x time of one + checkpoints left x time of
 * one
 *
 * The time of a step is a mean over the recent ones (the last ten seconds, but at least 20 and at
 * most 1000 steps), so that it follows a change of speed. A rank does one thing after the other:
 * what passes between a report and the one before it is the time of what is reported. So a step's
 * time contains no validation and no checkpoint; these are added by how many are still due, once
 * one was observed. The first step of an attempt is not counted: it touches memory for the first
 * time.
 *
 * Used by: watch.c, tests.   Uses: libc.   Threads: any; no state but struct eta.
 */
#ifndef HD_CLI_ETA_H
#define HD_CLI_ETA_H

#include <stdbool.h>
#include <stdint.h>

/* From the job file. */
struct eta_plan {
    int64_t steps;            /* the job has so many; 0: not known */
    int64_t validate_every;   /* steps between validations; 0: only after the last step */
    int64_t checkpoint_every; /* steps between checkpoints; 0: only after the last step */
    bool validates;           /* false: the job has no validation at all */
    bool checkpoints;         /* false: not known, none is counted */
};

struct eta_pause {   /* a validation, or a checkpoint */
    int64_t at_step; /* of the latest one; -1: none yet in this attempt */
    double ms;       /* mean of the latest and those before it, halved each time; < 0: not known */
};

struct eta {
    struct eta_plan plan;
    int64_t step;        /* the latest reported one */
    int64_t reported_ms; /* when the latest report was made, Unix time; 0: none in this attempt */
    int64_t timed_steps; /* that step_ms is made of; -1: the attempt's first step is to come */
    double step_ms;
    struct eta_pause validation, checkpoint;
};

void eta_init(struct eta *eta, const struct eta_plan *plan);
void eta_restart(struct eta *eta); /* another attempt: everything is measured anew */

/* Each report in its order; time_unix_ms: when it was made. */
void eta_step(struct eta *eta, int64_t step, int64_t time_unix_ms);
void eta_validation(struct eta *eta, int64_t step, int64_t time_unix_ms);
void eta_checkpoint(struct eta *eta, int64_t step, int64_t time_unix_ms);

/* Milliseconds from the latest report to the job's end; -1: not known yet. */
int64_t eta_left_ms(const struct eta *eta);

#endif

/* eta: estimates a job's remaining time from the times of its reports.
 *
 * left = steps left x time of a step + validations left x time of one + checkpoints left x time of
 * one
 *
 * The time of a step is a mean over recent steps (the last ten seconds, but at least 20 and at
 * most 1000 steps), so that it follows a change of speed. A rank works sequentially: the time
 * between two reports is the duration of what the later one reports. So a step's time contains no
 * validation and no checkpoint; these are added by their remaining number once one was measured.
 * The first step of an attempt is not counted: it touches memory for the first time.
 *
 * Used by: watch.c, tests.   Uses: libc.   Threads: any; no state but struct eta.
 */
#ifndef HD_CLI_ETA_H
#define HD_CLI_ETA_H

#include <stdbool.h>
#include <stdint.h>

/* Numbers from the job file. */
struct eta_plan {
    int64_t steps;            /* total steps of the job; 0: unknown */
    int64_t validate_every;   /* steps between two validations; 0: only after the last step */
    int64_t checkpoint_every; /* steps between two checkpoints; 0: only after the last step */
    bool validates;           /* the job has validations; false: none at all */
    /* false: it is unknown whether the job saves checkpoints, and they are not counted */
    bool checkpoints;
};

struct eta_pause {   /* Measured duration of a kind of pause: validations, or checkpoints. */
    int64_t at_step; /* step of the latest pause; -1: none yet in this attempt */
    /* running mean of the pauses, ms; each older pause weighs half of the next; < 0: unknown */
    double ms;
    /* running mean before the latest pause, ms, < 0: unknown; and the length of the latest pause so
     * far, ms, which grows because the sets of one validation are reported one by one */
    double earlier_ms, latest_ms;
};

struct eta {
    struct eta_plan plan;
    int64_t step;        /* latest reported step */
    int64_t reported_ms; /* time of the latest report, Unix ms; 0: none in this attempt */
    /* number of steps averaged in step_ms; -1: the attempt's first step is still to come */
    int64_t timed_steps;
    double step_ms;
    struct eta_pause validation, checkpoint;
};

void eta_init(struct eta *eta, const struct eta_plan *plan);
void eta_restart(struct eta *eta); /* starts an attempt: drops all measurements */

/* Take one report of the job each, in order. time_unix_ms: when the report was made. */
void eta_step(struct eta *eta, int64_t step, int64_t time_unix_ms);
void eta_validation(struct eta *eta, int64_t step, int64_t time_unix_ms);
void eta_checkpoint(struct eta *eta, int64_t step, int64_t time_unix_ms);

/* Returns the milliseconds from the latest report to the job's end; -1: not known yet. */
int64_t eta_left_ms(const struct eta *eta);

#endif

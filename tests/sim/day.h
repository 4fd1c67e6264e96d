/* day: one policy lives through one trace, and what came of it.
 *
 * Used by: the programs and tests of this folder.   Uses: fleet, reference.   Threads: any.
 */
#ifndef HD_SIM_DAY_H
#define HD_SIM_DAY_H

#include "tests/sim/trace.h"

#define SIM_POLICY_LIST(X)                                  \
    X(FIFO, "fifo", "strict FIFO, first fit")               \
    X(EASY, "easy", "EASY, users' estimates, first fit")    \
    X(EASY_OURS, "easy-predicted", "EASY, our predictions") \
    X(HEDDLE, "heddle", "Heddle's core")
#define X(name, word, text) SIM_BY_##name,
enum sim_policy_kind { SIM_POLICY_LIST(X) SIM_POLICIES };
#undef X

enum {
    SIM_TAU_MS = 10 * 60 * 1000, /* of the bounded slowdown: a shorter job counts as so long. The
                                  * usual 10 s are for jobs of seconds; a start takes a minute */
};

struct sim_score {
    size_t jobs, done, failed, cancelled, unfinished;
    double utilisation; /* held over available, until the horizon */
    double goodput;     /* useful over available, until the horizon */
    /* device-hours that were held and not useful, until the horizon: in all; of starts; of attempts
     * that computed no more; the rest are steps made twice, and slower ones on too many nodes */
    double lost_hours, starting_hours, dead_hours;
    double slowdown;       /* mean bounded slowdown of the jobs that were done */
    double leaves_spanned; /* leaf switches over the fewest that would do, by devices */
    size_t told;           /* jobs that were told when they would start before they did */
    double kept;     /* share of those that started no later than they were first told, by at most a
                  * minute or a tenth of the wait told */
    double told_off; /* mean of the minutes between the start first told and the start */
    /* from when a job may start until it starts, in minutes, by class; of jobs after others and of
     * cancelled ones nothing */
    double wait_p50[SIM_CLASSES], wait_p95[SIM_CLASSES];
    size_t counted[SIM_CLASSES];
    uint64_t events;
    /* of HEDDLE alone */
    uint64_t digest, core_steps;
    size_t starts, starts_moved, preempted, grown;
    double core_seconds, core_longest_ms;
    char broken[512]; /* the first rule of watch.h that did not hold; "": all did */
};

/* checks_core: the core's own invariants as well, now and then; dear on a large cluster. False: no
 * memory. */
bool sim_day(const struct sim_trace *trace, enum sim_policy_kind policy, bool checks_core,
             struct sim_score *ret_score);
const char *sim_policy_word(enum sim_policy_kind policy);
const char *sim_policy_text(enum sim_policy_kind policy);

#endif

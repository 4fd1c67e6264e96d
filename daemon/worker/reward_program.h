/* reward_program: a program of the user that rates answers (train.rewards: {program: ..}).
 *
 *     {"id": 7, "prompt": .., "completion": .., ..}  --lines on its standard input-->
 *     {"id": 7, "reward": 0.5}                       <--lines on its standard output--
 *
 * The program runs as long as the rank; answers may come in any order. A reward of null, NaN or an
 * infinity means that the answer cannot be rated. Its standard error is that of the rank, the job's
 * log. If it is silent for its timeout while answers wait (a minute more for its first answer), or
 * ends, or closes its output, the oldest answer that it has got and not rated cannot be rated; the
 * program is killed with its children, started again, and gets the others again. Lines that are no
 * answer are left out, with a warning.
 *
 * With a control group of its own the program and whatever it starts are bounded together, and killed together.
 *
 * Used by: reward_keeper, tests.   Uses: base, job, isolation (cgroup.h).   Threads: one owner.
 */
#ifndef HD_WORKER_REWARD_PROGRAM_H
#define HD_WORKER_REWARD_PROGRAM_H

#include "daemon/isolation/cgroup.h"
#include "job/rewards.h"

/* starts in a row without any answer, after which the program counts as broken */
enum { REWARD_PROGRAM_STARTS_MAX = 5 };

struct reward_program;

/* Bounds of a program. */
struct reward_bounds {
    struct hd_cgroup_files group; /* procs -1: it has no group of its own */
    /* RLIMIT_DATA of each of its processes, where no group bounds its memory; 0: none */
    int64_t data_bytes;
};

/* Makes the program's record; the first call of reward_program_rate starts it. The reward is
 * borrowed. first_s: seconds that its first answer after a start may take longer. */
enum hd_status reward_program_new(const struct hd_reward *reward, double first_s,
                                  const struct reward_bounds *bounds,
                                  struct reward_program **ret_program);
/* Returns how the program ended last, and which limit it met; "": it did not end yet. */
const char *reward_program_ended(const struct reward_program *program);

/* Kills the program and its children; NULL is fine. */
void reward_program_free(struct reward_program *program);

/* Rates answers: lines[count] are JSON objects without `id`. asker: a socket on which nothing comes
 * while answers are rated, until the process behind it ends; -1: none. ret_rewards: NaN where an
 * answer cannot be rated. HD_INVALID: the program is broken. HD_ABORTED: the asker has ended. */
enum hd_status reward_program_rate(struct reward_program *program, const char *const *lines,
                                   int64_t count, int asker, double *ret_rewards);

#endif

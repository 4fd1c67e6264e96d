/* reward_keeper: a process that runs the reward programs of a rank.
 *
 * A rank may start no programs once it is in its sandbox, so it makes this process before. The
 * keeper and its programs are in a sandbox of their own: they may start programs, read the files
 * that the arguments name and the folders for data, write in the attempt's folder `rewards` alone,
 * and make no sockets (rank_lock.c). They end with the rank. Where ranks are in a control group, each program
 * is in one of its own beside them, with the limits that the job gives it.
 *
 * Used by: rank.   Uses: reward_program.   Threads: the rank's.
 */
#ifndef HD_WORKER_REWARD_KEEPER_H
#define HD_WORKER_REWARD_KEEPER_H

#include "job/rewards.h"

struct reward_keeper;

/* Makes the process of rank `rank` while this thread is the only one. enter: called in it, before any program
 * starts, to restrict it; a failure is reported by the first rating. `rewards` must outlive the
 * keeper. */
enum hd_status reward_keeper_start(const struct hd_rewards *rewards, int64_t rank,
                                   enum hd_status (*enter)(const void *of), const void *of,
                                   struct reward_keeper **ret_keeper);
void reward_keeper_stop(struct reward_keeper *keeper); /* NULL is fine */

/* Has reward `index`, a program, rate answers (reward_program_rate); the result comes with
 * reward_keeper_wait, which must end before the next call. */
enum hd_status reward_keeper_rate(struct reward_keeper *keeper, int64_t index,
                                  const char *const *lines, int64_t count);
/* Waits at most timeout_ms. *ret_done: whether the rewards, one per line, are there. */
enum hd_status reward_keeper_wait(struct reward_keeper *keeper, int timeout_ms, bool *ret_done,
                                  double *ret_rewards);

#endif

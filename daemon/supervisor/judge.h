/* judge: decides which rank is to blame when ranks have been silent for too long.
 *
 * A pure function of the states of this node's ranks. A rank that waits for another one is not to
 * blame: the chain of waits is followed to its end. There it finds a rank that waits for none and
 * gives no sign of life, a rank of another node, or a circle. Each chain of all nodes ends at the
 * rank to blame, and the supervisor of that rank's node finds it: so nodes need not ask each other.
 *
 * Used by: supervisor, tests.   Uses: libc.   Threads: any.
 */
#ifndef HD_DAEMON_SUPERVISOR_JUDGE_H
#define HD_DAEMON_SUPERVISOR_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

enum sup_doing {
    SUP_UNSEEN, /* the rank's waits are not visible here: it waits for its peers on a device */
    /* the rank is about to connect to others and has reported no wait yet; it is to blame only if
     * another rank waits for it */
    SUP_CONNECTS,
    SUP_COMPUTES, /* the rank waits for no other: it computes, or waits for its device or a disk */
    SUP_WAITS,    /* the rank waits for rank `waits_for` */
    SUP_STOPPED,  /* the rank's process is stopped by a signal */
    SUP_EXITED,
};

struct sup_rank_state {
    int64_t rank;
    int64_t silent_ms; /* ms since the rank's last sign of life */
    enum sup_doing doing;
    /* number, within the attempt, of the rank that this one waits for; -1: unknown */
    int64_t waits_for;
};

enum sup_finding {
    SUP_FOUND,           /* the rank to blame is on this node */
    SUP_FOUND_ELSEWHERE, /* the rank to blame is on another node */
    SUP_FOUND_CIRCLE,    /* ranks wait for each other; the returned rank is one of them */
    SUP_FOUND_ALIVE,     /* the rank that is waited for gave a recent sign of life: nothing hangs */
    SUP_FOUND_NOTHING,   /* the chain of waits ends at a rank whose own waits are not visible */
};

/* Finds the rank to blame: follows the chain of waits of each silent rank, from the longest silent
 * one on. Ranks that have been silent for less than half as long as that one do not count. Sets
 * *ret_rank to the rank that was found; for SUP_FOUND_NOTHING to the longest silent one. `count` is
 * at least 1. */
enum sup_finding sup_judge(const struct sup_rank_state *states, int count, int64_t *ret_rank);

/* Returns true if the rank of states[index] waits for rank `rank`, directly or through other ranks;
 * false if it is that rank itself. */
bool sup_judge_leads_to(const struct sup_rank_state *states, int count, int index, int64_t rank);

#endif

/* judge: which rank is to blame when ranks have been silent for too long.
 *
 * A pure function of what is known of each rank of this node. A rank that waits for another one is
 * not to blame: the chain of waits is followed to its end. There is a rank that waits for none and
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
    SUP_UNSEEN,   /* its waits are not seen: it awaits its peers on a device */
    SUP_CONNECTS, /* it is about to connect to others, and has told no wait yet: to blame if one
                   * waits for it */
    SUP_COMPUTES, /* waits for no rank: it computes, or waits for its device or a disk */
    SUP_WAITS,    /* for waits_for */
    SUP_STOPPED,  /* by a signal */
    SUP_EXITED,
};

struct sup_rank_state {
    int64_t rank;
    int64_t silent_ms; /* since its last sign of life */
    enum sup_doing doing;
    int64_t waits_for; /* a rank of the attempt; -1: not known which */
};

enum sup_finding {
    SUP_FOUND,           /* the rank to blame is here */
    SUP_FOUND_ELSEWHERE, /* it is on another node */
    SUP_FOUND_CIRCLE,    /* ranks wait for each other; the rank is one of them */
    SUP_FOUND_ALIVE,     /* the rank that is waited for was heard lately: nothing hangs */
    SUP_FOUND_NOTHING,   /* the chain ends at a rank whose waits are not seen */
};

/* Follows the waits of the ranks that are silent, the one that is so longest first: a rank that is
 * silent for less than half as long does not count. *ret_rank: the rank that was found; NOTHING:
 * the one that is silent longest. `count` is at least 1. */
enum sup_finding sup_judge(const struct sup_rank_state *states, int count, int64_t *ret_rank);

/* Whether told[index] waits for the rank, or for one that does; false for the rank itself. */
bool sup_judge_leads_to(const struct sup_rank_state *states, int count, int index, int64_t rank);

#endif

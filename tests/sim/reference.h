/* reference: the schedulers that ours is compared with, over the same world.
 *
 * Strict FIFO: jobs start in the order of their submission. While the oldest one does not fit, no
 * other job starts.
 *
 * EASY: the oldest job that does not fit gets a reservation: where and when it will fit by the
 * expected ends of running jobs. Younger ones start if they fit and do not delay it (Lifka 1995,
 * "The ANL/IBM SP scheduling system").
 *
 * Expected ends are the users' estimates, or, as ours, the steps left times the pace of the steps
 * that were made; how long a waiting job runs is its user's estimate either way, until it has run.
 *
 * Both are first fit: a job of up to 8 devices goes to the first node that has as many free,
 * a larger one to the first nodes that are free as a whole. Jobs beyond a limit of their queue, and
 * jobs after others, hold up none. Neither knows priorities, shares of queues, or fewer devices
 * than a job may use. Time limits, drains and cancellations let a job write a checkpoint, and it
 * is noticed 90 s after a failure of a node, as with ours.
 *
 * Used by: day.   Uses: world.   Threads: one owner.
 */
#ifndef HD_SIM_REFERENCE_H
#define HD_SIM_REFERENCE_H

#include "tests/sim/world.h"

struct sim_reference {
    struct sim_world *world;
    bool backfills, predicts;
    struct sim_ref_node {
        int32_t free;
        bool down, drained;
        int32_t kept, later; /* of the reservation: devices that it needs; free by its start */
    } * nodes;
    size_t *waiting, waiting_count; /* jobs in the order of their submission */
    size_t *running, running_count;
    struct sim_ref_job {
        enum sim_outcome wish; /* what it comes to when it has stopped; NONE: it waits again */
        int64_t ends_ms;       /* scratch of a pass */
        double known_step_ms;  /* of an earlier attempt; 0: not known */
    } * jobs;
    int32_t queue_held[SIM_QUEUES], user_held[SIM_QUEUES][SIM_OWNERS];
    int64_t free_devices;
    bool asked;                     /* a pass is due at this time */
    struct sim_location *locations; /* scratch */
};

extern const struct sim_policy sim_reference_policy; /* of: a struct sim_reference */

bool sim_reference_init(struct sim_reference *reference, struct sim_world *world, bool backfills,
                        bool predicts);
void sim_reference_done(struct sim_reference *reference);

#endif

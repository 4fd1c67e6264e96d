/* watch: what must hold of the controller's decisions, checked from the records that it writes.
 *
 * A second account of the cluster, kept from the batches alone (jobs, attempts, nodes, events), so
 * that a mistake in the core's own account is seen. After each event what it touched is checked:
 *
 *   W1  no device belongs to two attempts;
 *   W2  no attempt begins with fewer devices than its job's least number or more than its most, nor
 *       on a node that is lost, drained or unreachable;
 *   W3  no queue and no user in it gets beyond the limit by a start;
 *   W4  jobs and attempts go from state to state as core.c says;
 *   W5  an expected start changes only in a batch with the event start_expected or start_moved, or
 *       when the job waits no longer;
 *
 * and by sim_watch_all, from time to time:
 *
 *   W6  the devices that the core says are held are those of this account, and of the world's;
 *   W7  no job waits on beyond its expected start, by more than a minute and three beats, while all
 *       nodes answer;
 *   W8  the bound on waiting: the oldest urgent job that may start waits at most
 *       SIM_URGENT_WAIT_MS while free devices and those of lower priority would do; one that waits
 *       for a place where it ends sooner, from its expected start on. Its victims
 *       have stop_grace_ms for their last checkpoint, then they are killed; should one of their
 *       nodes fail meanwhile, others are chosen, once; a minute is for the messages.
 *   W9  no attempt is killed before it has written its last checkpoint (fleet.c);
 *   W10 no attempt that computes no more, as one of its nodes failed or it was told to stop, holds
 * its devices for longer than SIM_DEAD_MS: a node is lost after lost_ms (180 s), and a stop has
 *       stop_grace_ms (300 s).
 *
 * The first broken one is kept in `broken`; nothing is checked after it.
 *
 * Used by: fleet.   Uses: controller/core (records), world.   Threads: one owner.
 */
#ifndef HD_SIM_WATCH_H
#define HD_SIM_WATCH_H

#include "controller/core/core.h"
#include "tests/sim/world.h"

#define SIM_URGENT_WAIT_MS (2 * (int64_t)300 * 1000 + SIM_MINUTE_MS)
#define SIM_DEAD_MS        ((int64_t)300 * 1000 + SIM_MINUTE_MS)

struct sim_watch {
    struct sim_world *world; /* is told the expected starts; else only read */
    struct sim_watched_job { /* by index of job */
        enum hd_job_state state;
        enum hd_attempt_state attempt_state;
        int32_t attempt, devices;
        struct sim_held {
            int32_t node, device;
        } * held;
        int64_t planned_start_ms;
        bool chooses; /* it could start now, and says that it waits for a place where it ends sooner
                       */
    } * jobs;
    size_t *job_of; /* by the core's number */
    uint64_t last_number;
    uint64_t *holders; /* [node * SIM_DEVICES + device]: number of the job; 0: free */
    enum hd_node_state *nodes;
    int32_t queue_held[SIM_QUEUES], user_held[SIM_QUEUES][SIM_OWNERS];
    uint64_t *reported; /* numbers of jobs that this batch tells a start */
    size_t reported_count, reported_size;
    uint64_t *planned; /* jobs that may have an expected start; some no longer have */
    size_t planned_count, planned_size;
    uint64_t urgent; /* number of the oldest urgent job that waits and could start; 0: none */
    int64_t urgent_since_ms; /* it has been so since then */
    size_t starts, starts_moved, preempted, grown;
    uint64_t digest;
    char broken[512]; /* "": nothing */
};

bool sim_watch_init(struct sim_watch *watch, struct sim_world *world); /* false: no memory */
void sim_watch_done(struct sim_watch *watch);
/* The core has given the job this number; before sim_watch_batch. */
void sim_watch_number(struct sim_watch *watch, size_t job, uint64_t number);
void sim_watch_batch(struct sim_watch *watch, const struct hd_batch *batch, int64_t wall_ms);
/* All of it. silent: some node has failed and the core may not know yet. */
void sim_watch_all(struct sim_watch *watch, const struct hd_core *core, int64_t wall_ms,
                   bool silent);
/* W7 and W8 alone, which are cheap. */
void sim_watch_waits(struct sim_watch *watch, int64_t wall_ms, bool silent);
void sim_watch_break(struct sim_watch *watch, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* "u00042" -> 42 */
int32_t sim_node_of(const char *uuid);

#endif

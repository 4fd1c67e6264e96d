/* fleet: the controller's own core, unmodified, in the simulated world: it drives hd_core_step with
 * what the services would pass on, and models the daemons that apply desired sets.
 *
 * What is simpler than the real thing: a batch is durable at once; streams do not break but with
 * their node; checkpoints are never deleted (checkpoint.keep 0); all nodes see the jobs directory;
 * a report of a step comes with each checkpoint, and twice at the start, not at each step.
 *
 * A beat is every 10 simulated seconds: each node says that it is alive. That is less than the
 * shortest of the core's timers (15 s until a node is unreachable). These run every 2.5 s, where
 * the services have 1 s: a core that hears nothing for 5 s takes itself for stopped, and nodes for
 * heard.
 *
 * Used by: day.   Uses: controller/core, watch, world.   Threads: one owner.
 */
#ifndef HD_SIM_FLEET_H
#define HD_SIM_FLEET_H

#include "tests/sim/watch.h"

enum { SIM_BEAT_MS = 10 * 1000, SIM_TICK_MS = 2500 };

struct sim_fleet {
    struct hd_core *core;
    struct hd_node_tree tree; /* the world's switches, as the core knows them */
    struct sim_world *world;
    struct sim_watch watch;
    struct hd_core_out out;
    struct hd_batch *batch;
    struct sim_daemon {
        uint64_t stream, generation;
        bool due;    /* a desired set is on its way */
        bool silent; /* it has failed, and the core does not say lost yet */
        struct sim_alloc {
            uint64_t job;
            int32_t attempt;
            enum hd_attempt_state state;
            struct hd_end_record end;
        } * allocs;
        size_t alloc_count, alloc_size;
        char uuid[16], name[16], address[24], boot[24];
    } * daemons;
    struct sim_command { /* by index of job */
        uint64_t number; /* the core's; 0: not submitted, or refused */
        uint64_t seq;
        size_t arrived; /* daemons that have begun the newest attempt */
        int64_t stop_since_ms;
    } * commands;
    struct sim_question { /* that the core asked, in order */
        char *key;
        struct hd_layout_sizes layout;
        double step_s;
    } * questions;
    size_t question_count, question_size;
    bool *drained;     /* by node */
    size_t submitting; /* the index of the job that is being submitted */
    bool checks_core;  /* hd_core_check at each 1,000th step: for small clusters */
    uint64_t steps, ticks;
    int64_t spent_ns, longest_ns; /* in hd_core_step */
    size_t silent;                /* nodes that have failed, and may not be lost yet */
};

extern const struct sim_policy sim_fleet_policy; /* of: a struct sim_fleet */

/* All nodes connect, and the queues are set. The world's policy is sim_fleet_policy of this fleet.
 * False: no memory; sim_fleet_done is called either way. */
bool sim_fleet_init(struct sim_fleet *fleet, struct sim_world *world, bool checks_core);
void sim_fleet_done(struct sim_fleet *fleet);

#endif

/* world: the cluster that every policy of this folder schedules: a clock, nodes that fail, and jobs
 * that train, write checkpoints, stop and start again. It knows no scheduler.
 *
 * Time goes from event to event (a heap): what happens to a job between two events is arithmetic.
 * The model of a job:
 *
 *   - a step takes step_ms x devices_max / devices; on more nodes than would do it takes
 *     SPREAD times as long (Jeon et al. 2019, table 4: ResNet-50 on two GPUs of one server 114.8
 *     images/s, of two servers 98.0); for each tier of switches that its nodes are further apart
 *     than so many nodes need to be, APART times as long (He et al. 2025, "Efficient Pre-Training
 * of LLMs via Topology-Aware Communication Alignment on More Than 9600 GPUs": a job whose groups
 *     cross fewer switches was 10.6 % faster from end to end);
 *   - ranks come up a minute after the last node has begun, and 15 s more for each doubling of
 *     nodes; a checkpoint is complete every half an hour and costs no time; a graceful stop
 *     writes one and takes 20 s;
 *   - when one of its nodes fails, the attempt computes nothing more; what it did since its last
 *     checkpoint is lost.
 *
 * The world puts no node out of use by itself and holds no devices: a policy begins and ends
 * attempts, and is told of what happens (struct sim_policy).
 *
 * Used by: the files of this folder.   Uses: trace.   Threads: one owner.
 */
#ifndef HD_SIM_WORLD_H
#define HD_SIM_WORLD_H

#include "tests/sim/trace.h"

#define SIM_SPREAD (114.8 / 98.0)
#define SIM_APART  1.106

/* Tiers of switches, from the nodes upwards: how many adjacent nodes are at one of them. */
#define SIM_TIER_LIST(X)   \
    X(LEAF, "leaf", 32)    \
    X(SPINE, "spine", 256) \
    X(CORE, "core", 16384) /* all of them */
#define X(name, text, nodes) SIM_TIER_##name,
enum sim_tier { SIM_TIER_LIST(X) SIM_TIERS };
#undef X

enum sim_run_state { SIM_RUN_AWAY, SIM_RUN_WAITING, SIM_RUN_HOLDING, SIM_RUN_OVER };
enum sim_outcome { SIM_OUTCOME_NONE, SIM_OUTCOME_DONE, SIM_OUTCOME_CANCELLED, SIM_OUTCOME_FAILED };

struct sim_location {
    int32_t node, count; /* devices of it */
};

/* A job as the world sees it. */
struct sim_run {
    enum sim_run_state state;
    enum sim_outcome outcome;
    int32_t attempt; /* the newest; 0: none yet */
    struct sim_location *locations;
    size_t location_count;
    int32_t devices;
    double step_ms;                     /* of the attempt */
    int64_t begun_ms, up_ms, frozen_ms; /* of the attempt; up: its ranks are connected; frozen: it
                                         * computes no more; 0: not yet */
    bool stopping;                      /* a graceful stop has begun */
    int64_t base_step, saved_step;      /* saved: of the newest checkpoint */
    int64_t ran_ms;                     /* of earlier attempts, up to their ends */
    int64_t first_begun_ms, over_ms;
    int64_t told_ms, told_start_ms; /* when a policy first said when the job would start, and the
                                     * start that it said; 0: it never did before the job began */
};

struct sim_world;

/* Calls that a policy receives; is its own. All are given. */
struct sim_policy {
    void (*submit)(void *of, size_t job);
    void (*cancel)(void *of, size_t job);    /* of a job that is not over */
    void (*up)(void *of, size_t job);        /* all ranks of the attempt are connected */
    void (*saved)(void *of, size_t job);     /* a checkpoint is complete: run->saved_step */
    void (*done)(void *of, size_t job);      /* the last step was made, and saved */
    void (*stopped)(void *of, size_t job);   /* a graceful stop is complete */
    void (*timed_out)(void *of, size_t job); /* it has run for its time_limit */
    void (*node_failed)(void *of, int32_t node);
    void (*node_back)(void *of, int32_t node); /* from a failure or a drain */
    void (*node_drained)(void *of, int32_t node, int64_t deadline_ms);
    void (*timer)(void *of, int32_t what, uint64_t about); /* sim_world_at */
};

/* Integrals over time, in device-milliseconds. */
struct sim_sums {
    double available; /* devices of nodes that have not failed */
    double held;      /* by attempts */
    double starting;  /* from the beginning of an attempt until its ranks are up */
    double dead;      /* held while it computes no more: until the loss is noticed, and stops */
};

struct sim_world {
    const struct sim_trace *trace;
    const struct sim_policy *policy;
    void *of_policy;
    int64_t now_ms;
    struct sim_node {
        bool failed;
        int32_t held; /* devices */
    } * nodes;
    int32_t node_count;
    struct sim_run *runs; /* by index of job */
    size_t over_count;
    struct sim_sums sums;
    int64_t devices_up, devices_held;
    struct sim_event {
        int64_t at_ms;
        uint64_t number; /* of equal times the earlier made comes first */
        int32_t kind, attempt;
        uint64_t about;
    } * events; /* a heap */
    size_t event_count, event_size;
    uint64_t made, happened;
    /* spans of attempts, weighted by devices */
    double spanned, spanned_least;
    bool no_memory;
};

struct sim_world *sim_world_new(const struct sim_trace *trace, const struct sim_policy *policy,
                                void *of_policy); /* NULL: no memory */
void sim_world_free(struct sim_world *world);

/* Takes the next event and sets the clock to its time. False: there is none before until_ms, to
 * which the clock is set. */
bool sim_world_step(struct sim_world *world, int64_t until_ms);
void sim_world_at(struct sim_world *world, int64_t at_ms, int32_t what, uint64_t about);

const char *sim_tier_name(enum sim_tier tier);
int32_t sim_tier_nodes(enum sim_tier tier); /* of one switch */
/* A step of the job on so many devices of so many nodes; tier: 0: it is one node; n: they are at
 * one switch of the n-th tier, and at none of a lower one. */
double sim_world_step_ms(const struct sim_job *job, int32_t devices, int32_t nodes, int32_t tier);
/* The job gets these devices (copied). Its ranks come up after sim_world_launch. */
void sim_world_begin(struct sim_world *world, size_t job, const struct sim_location *locations,
                     size_t count);
/* Notes the start that the policy expects of a job; only the first one before it begins counts. */
void sim_world_tell(struct sim_world *world, size_t job, int64_t start_ms);
void sim_world_launch(struct sim_world *world, size_t job);
void sim_world_stop(struct sim_world *world, size_t job);   /* gracefully; `stopped` follows */
void sim_world_freeze(struct sim_world *world, size_t job); /* its ranks were killed */
/* The attempt is over, its devices are free. The job waits. */
void sim_world_end(struct sim_world *world, size_t job);
void sim_world_over(struct sim_world *world, size_t job, enum sim_outcome outcome);

/* The last step that the attempt has made by now; the saved one, if there is no attempt. */
int64_t sim_world_step_of(const struct sim_world *world, size_t job);
/* Device-milliseconds of all steps that were made and not lost, at the pace of the ideal place. */
double sim_world_useful(const struct sim_world *world);

#endif

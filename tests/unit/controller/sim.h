/* sim: a whole cluster in one process, on a simulated clock and one seed.
 *
 * The controller is the real core; around it stand models of what surrounds it in the world: a
 * store that makes batches durable later and can lose what is not durable, streams that delay and
 * break, daemons that apply desired sets, ranks that train, fail and write checkpoints, and a disk.
 * Training is modelled by a number: the state after step s follows from the state after s - 1, so a
 * job that ends in the right number did every step once, from the right checkpoint. The shares of
 * an attempt on several nodes step together: none begins a step before all have ended the one
 * before, and none goes on without the others.
 *
 * Every rule that the model can see is asserted as it goes: the core's invariants after every
 * event, no two attempts on one device of a real node, no start from a checkpoint that was deleted
 * (unless the test has moved checkpoints away: sim_move_checkpoint).
 */
#ifndef HD_TEST_CONTROLLER_SIM_H
#define HD_TEST_CONTROLLER_SIM_H

#include "controller/core/core.h"

enum {
    SIM_NODES = 4, /* at most; sim.node_count of them exist */
    SIM_DEVICES = 2,
    SIM_ATTEMPTS = 16,
    SIM_JOBS = 256,
    SIM_EVERY = 5,   /* steps between checkpoints */
    SIM_SPOOL = 512, /* reports of one attempt */
    SIM_QUESTIONS = 64,
    SIM_AT_ONCE = 2, /* jobs of the array SIM_ARRAY that may run at a time */
};

#define SIM_ARRAY "sweep" /* array of jobs in worlds with policies */

/* Faults of the ranks' processes; set per node. */
struct sim_faults {
    int fail_at_step;   /* a rank here of any attempt dies when this step begins; 0: never */
    int fail_count;     /* so many times */
    bool claims;        /* then it does not die either, but ends as if the run were complete */
    bool early;         /* with `claims`: as validate.stop ends a run */
    bool keeps_last;    /* the checkpoint of the last step is not reported */
    bool hangs;         /* it does not die but stands still, which its supervisor sees */
    bool bad_input;     /* and says that trying again is useless */
    int diverges_at;    /* losses from this step on are not finite, and the attempt gives up 7 steps
                           later; 0: never */
    int64_t damaged[2]; /* the checkpoints of these steps that attempt 1 wrote cannot be loaded */
    bool misses;        /* attempts that start from a checkpoint do not find it */
    int no_start;       /* so many attempts cannot be launched */
    bool never_meet;    /* ranks start, but do not meet */
    bool full_disk; /* attempts wait before their start; a rank that dies (fail_at_step) says why */
    bool ignore_stop; /* graceful stops are not answered */
    bool unaware;     /* ranks here do not notice that those of other nodes have left */
    int save_s;       /* rank 0 here writes the checkpoint of a stop for so many seconds */
};

struct sim_attempt {
    bool used;
    uint64_t job;
    int32_t attempt;
    enum hd_attempt_state state;
    struct hd_end_record end;
    int32_t devices[SIM_DEVICES], device_count;
    bool on[SIM_NODES]; /* the nodes that the attempt is on */
    int32_t rank;       /* the first of this node's */
    int64_t step, steps;
    uint64_t value; /* of the training state */
    bool bad_base;  /* what it is to start from is damaged */
    bool no_base;   /* what it is to start from is not on the disk */
    int saving_s;   /* it has been writing the checkpoint of a stop for so long */
    enum hd_wanted wanted;
    bool doomed; /* the desired set does not have it: to be forgotten once it has ended */
    struct sim_report {
        enum hd_report_kind kind;
        int64_t step, time_ms;
    } spool[SIM_SPOOL]; /* report number seq stands at seq - 1 */
    uint64_t seq, sent, acked;
};

struct sim_node {
    char uuid[16], name[8], boot_id[16];
    char data_address[16], compute[16], compute_cuda[32]; /* compute_cuda "": no NCCL */
    int64_t memory_bytes;                                 /* of each device; 0: not known */
    int gpus;                 /* so many of its devices, the first ones, are of the kind cuda */
    bool broken[SIM_DEVICES]; /* it says so of them when it connects */
    bool obeyed_before;       /* it says so when it connects */
    bool blind;               /* it does not see the jobs directory */
    bool full;                /* its disk is nearly full: it takes no new attempts */
    bool leaves;         /* its daemon ends: it takes none, and those that it has are to stop */
    bool cut;            /* the network is broken: nothing arrives, nothing is noticed */
    uint64_t stream;     /* 0: not connected */
    bool introduced;     /* an observed set went over it: reports may follow */
    uint64_t generation; /* applied on this stream */
    struct sim_attempt attempts[SIM_ATTEMPTS];
    struct sim_faults faults;
    bool changed; /* the observed set is to be sent */
    struct hd_deletion deleted[32];
    size_t deleted_count;
    const char *leaves_files;   /* what it says of what it deletes: a part stays; NULL: all goes */
    struct sim_node *in_flight; /* a delayed observed set: the node as it was */
    int in_flight_s;            /* seconds until it arrives */
};

/* A reply that leaves when everything before it is durable. */
struct sim_pending {
    struct hd_batch *batch;
    uint64_t submitted_job;           /* 0: none */
    struct hd_position_record report; /* to acknowledge, new or old; job 0: none */
    struct sim_desired *desired[SIM_NODES];
    struct sim_pending *next;
};

struct sim {
    struct hd_core *core;
    struct hd_core_config config;
    struct hd_core_out out;
    struct hd_now now;
    struct sim_node nodes[SIM_NODES];
    int node_count; /* 2; more may be set before the first second */
    bool shared_disk;
    struct sim_pending *pending, **pending_end;
    bool slow_store; /* durable only when sim_commit is called */
    int max_delay_s; /* of observed sets */
    uint64_t next_stream, next_request, key, draws;
    uint64_t idle_events;        /* ticks and signs of life that changed no record (is_checked) */
    bool acknowledged[SIM_JOBS]; /* by job number: the submitter got its reply */
    /* If set: takes each batch that has become durable, e.g. into a real store. */
    void (*on_durable)(void *user, struct hd_batch *batch);
    void *on_durable_user;
    struct sim_db *db; /* what is durable */
    struct sim_disk *disk;
    bool loses_checkpoints; /* a test has moved some away: ranks may not find theirs */
    const char *unlistable; /* why the controller cannot list checkpoints; NULL: it can */
    int starts;             /* attempts that daemons have started */
    /* Finds layouts, if config.asks_layouts is set (sim_ask_layouts); answers come after up to
     * plan_delay_s seconds, or at once (0). `why` is empty or a constant. */
    void (*plan)(const struct hd_core_asked *asked, struct hd_core_answer *answer);
    int plan_delay_s;
    struct sim_question {
        struct hd_core_asked asked; /* its strings and spec: the members below, and "" */
        char key[512], device_name[32], traits[32];
        int64_t due_mono_ms;
    } questions[SIM_QUESTIONS];
    int question_count;
    const char *owner; /* of jobs that are submitted */
};

void sim_init(struct sim *sim, uint64_t seed);
void sim_done(struct sim *sim);
struct sim *sim_new(uint64_t seed, int node_count); /* on the heap */
void sim_free(struct sim *sim);
struct sim *sim_joined(int node_count); /* of seed 1, when its nodes have joined */

/* Makes a new core that asks for layouts; before the first second. */
void sim_ask_layouts(struct sim *sim,
                     void (*plan)(const struct hd_core_asked *asked, struct hd_core_answer *answer),
                     int delay_s);

/* One second: daemons and ranks act, messages arrive, timers run. */
void sim_second(struct sim *sim);
void sim_run(struct sim *sim, int seconds);
/* Runs until the job has ended; fails the test after limit_s. */
void sim_run_until_ended(struct sim *sim, uint64_t job, int limit_s);

struct hd_job_needs sim_needs(int devices, int steps);
enum hd_status sim_submit(struct sim *sim, const struct hd_job_needs *needs, uint64_t *ret_job);
uint64_t sim_submitted(struct sim *sim,
                       const struct hd_job_needs *needs); /* fails the test if refused */
enum hd_status sim_submit_as(struct sim *sim, const struct hd_job_needs *needs,
                             const char *request_id, uint64_t *ret_job, bool *ret_repeated);
enum hd_status sim_cancel(struct sim *sim, uint64_t job, bool now);
/* An ended job, from all that is durable of it. */
enum hd_status sim_resume(struct sim *sim, uint64_t job, const struct hd_job_needs *needs);
enum hd_status sim_remove(struct sim *sim, uint64_t job, const struct hd_job_needs *needs);
/* The checkpoints of one step alone. */
enum hd_status sim_remove_checkpoint(struct sim *sim, uint64_t job,
                                     const struct hd_job_needs *needs, int64_t step);
enum hd_status sim_hold(struct sim *sim, uint64_t job, bool hold);
enum hd_status sim_requeue(struct sim *sim, uint64_t job);
/* -1: as it is. */
enum hd_status sim_set_queue(struct sim *sim, const char *name, int devices_max,
                             int user_devices_max, int weight);
enum hd_status sim_close_queue(struct sim *sim, const char *name, bool closed);
enum hd_status sim_remove_queue(struct sim *sim, const char *name);
enum hd_status sim_event(struct sim *sim, const struct hd_core_event *event);
/* To change and send: number 1 of what a rank of attempt 1 reports, over n1's stream. */
struct hd_core_event sim_report(const struct sim *sim, uint64_t job, int32_t rank,
                                enum hd_report_kind kind);
/* A daemon that says over a new stream that it is n1, of the same machine, with this one device. */
struct hd_core_event sim_hello(const struct hd_device_record *device);

void sim_commit(struct sim *sim);           /* everything pending becomes durable */
void sim_controller_crash(struct sim *sim); /* what is not durable is gone; starts again */
void sim_daemon_restart(struct sim *sim, struct sim_node *node); /* its ranks go on */
void sim_reboot(struct sim *sim, struct sim_node *node);         /* its ranks are gone */

/* The durable record of a job or attempt; fails the test when it is not there. */
const struct hd_job_record *sim_job(const struct sim *sim, uint64_t job);
const struct hd_attempt_record *sim_attempt(const struct sim *sim, uint64_t job, int32_t attempt);
void sim_assert_reason(const struct sim *sim, uint64_t job, const char *expected);
/* Checks the ranks of an attempt on their nodes: "cuda n1:0 n1:1 n2:0". */
void sim_assert_places(const struct sim *sim, uint64_t job, int32_t attempt, const char *expected);
/* The job has succeeded, with every step done once from the right state. */
void sim_assert_undisturbed(const struct sim *sim, uint64_t job, int64_t steps);
size_t sim_count_events(const struct sim *sim, uint64_t job, const char *kind);
size_t sim_count_steps(const struct sim *sim, uint64_t job, int64_t step);
/* Durable records of the job's checkpoints that are in this state. */
size_t sim_count_checkpoints(const struct sim *sim, uint64_t job, enum hd_checkpoint_state state);
/* Takes a checkpoint from the disk, or puts it back (one that was never written: as it would be).
 */
void sim_move_checkpoint(struct sim *sim, uint64_t job, int32_t attempt, int64_t step, bool there);
/* Checkpoint directories of the job that are on the disk. */
size_t sim_count_on_disk(const struct sim *sim, uint64_t job);
/* The state of the job's newest checkpoint on disk, against steps done without disturbance. */
uint64_t sim_final_value(const struct sim *sim, uint64_t job);
uint64_t sim_undisturbed_value(uint64_t job, int64_t steps);

/* Breaks things at random for an hour around random jobs, then mends all and expects every job that
 * was acknowledged to end as it should. With more than two nodes jobs go over several. */
void sim_live_through(uint64_t seed, int node_count);
/* Lives through likewise, with priorities, queues with limits, held jobs, time limits and jobs
 * after jobs. */
void sim_live_with_policies(uint64_t seed, int node_count);
void sim_live_among_switches(uint64_t seed, int node_count); /* with policies, too */
/* So for the seeds 1 to seed_count, on fewest_nodes to most_nodes in transaction; or only for the
 * seed that HEDDLE_SIM_SEED says. */
void sim_live_through_all(uint64_t seed_count, int fewest_nodes, int most_nodes);

uint64_t sim_draw(struct sim *sim, uint64_t below); /* a random number of this seed */

#endif

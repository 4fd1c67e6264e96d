/* core: the scheduler's state machine for jobs, attempts and nodes.
 *
 * hd_core_step takes an event and the time, updates the core's memory and returns: records to write
 * (a batch), nodes whose desired set changed, jobs that changed. The core does no I/O, reads no
 * clock and starts no thread, so the tests simulate a whole cluster in one process. Rules for the
 * caller (services):
 *
 *   1. Send nothing that depends on a step (replies, desired sets, notices to watchers) before the
 *      step's batch is durable. Build desired sets right after the step, send them later.
 *   2. Commit batches in the order of their steps.
 *   3. After HD_NO_MEMORY from hd_core_step, core and batch may disagree: drop both and build a new
 *      core from the store. Any other failure changed nothing.
 *
 * The core holds all jobs that have not ended, and those ended jobs that still wait for the
 * deletion of checkpoints or of their folder. The store holds all jobs.
 *
 * Used by: services, tests.   Uses: record, base.   Threads: one owner.
 */
#ifndef HD_CONTROLLER_CORE_H
#define HD_CONTROLLER_CORE_H

#include "base/text.h"
#include "controller/core/record.h"
#include "plan/choose.h"
#include "plan/node_tree.h"

struct hd_core;

/* A request for a layout (hd_core_out.asked): find the best layout of an attempt on the devices
 * that the scheduler has selected. The answer is a pure function of the request, so jobs with equal
 * requests share one answer. */
struct hd_core_asked {
    const char *key;  /* key of this request in the layout cache: equal for equal requests */
    const void *spec; /* packed JobSpec, as submitted */
    size_t spec_bytes;
    struct hd_plan_request wish; /* layout sizes that the job file fixes, and the device kind */
    int32_t devices;
    int32_t together; /* consecutive ranks per node: ranks 0 to together - 1 run on one node, the
                       * next `together` on the next node, and so on; equal to `devices`: all run on
                       * one node */
    /* Network distance between the attempt's nodes. 0: one node; n: all are below one switch of the
     * n-th tier of config.tree, and below no common switch of a lower tier; number of tiers + 1 (1
     * without a tree): no common switch, or a node is not in the tree. */
    int32_t tier;
    /* The attempt's device with the least memory: its memory in bytes (> 0), its model name, and
     * the CPU properties of its node in encoded form ("": unknown). */
    int64_t memory_bytes;
    const char *device_name, *traits;
    int32_t threads; /* smallest number of CPU threads of any of these devices */
    bool bf16;       /* true: all devices compute bf16 natively */
    bool ahead;      /* true: prefetch; no job waits for this layout yet; when one does, the request
                      * is repeated */
    /* UUID of the node that holds all devices and whose probe gives their speed; "": no probe
     * applies */
    const char *probe_uuid;
};

struct hd_core_answer {
    const char *key;
    bool failed; /* true: the layout search itself failed; the core takes the layout of
                  * plan/choose.h, and if that has a fault, the ranks report it */
    bool fits;
    struct hd_layout_sizes layout; /* valid if `fits` */
    double step_s;                 /* predicted seconds per step; 0: unknown */
    int64_t memory_bytes;          /* bytes of the rank that needs most; 0: unknown */
    bool preliminary;              /* true: the layout search was cut short; the layout was chosen
                                    * by its memory need alone */
    const char *why;               /* text for users: the chosen layout, or why none fits; may be
                                    * "" */
};

/* Limits and durations (milliseconds) of the scheduler. */
struct hd_core_config {
    /* True: the core requests layouts (hd_core_out.asked) and gets answers as HD_CORE_PLANNED.
     * False: attempts get the layout of plan/choose.h. */
    bool asks_layouts;
    const struct hd_node_tree *tree; /* network switches, with the nodes below them by name; the
                                      * caller owns it; NULL: unknown */
    int64_t unreachable_ms;          /* silence after which a node becomes unreachable */
    int64_t lost_ms;                 /* silence after which a node becomes lost */
    int64_t lost_confirmed_ms;       /* silence after which a node is lost if a peer reported it
                                      * dead */
    int64_t restart_grace_ms;        /* silence after which a node is lost if it has sent no message
                                      * since the controller started or resumed after a pause */
    int64_t start_timeout_ms;        /* time within which all ranks must connect; else the attempt
                                      * fails */
    int64_t stop_grace_ms;      /* time after which a cancelled attempt that still runs is killed */
    int64_t search_timeout_ms;  /* time limit for listing a job's checkpoints on the disk */
    int64_t retry_delay_ms;     /* delay before the third attempt without progress; each further
                                 * attempt doubles it */
    int64_t retry_delay_max_ms; /* upper bound of that retry delay */
    size_t jobs_live_max;       /* number of jobs that have not ended; a submission beyond it is
                                 * refused */
    int32_t spare_nodes; /* nodes of each kind that are kept free as hot spares, for jobs whose
                          * attempt has failed */
    /* Returns the system user of the ranks of `owner` (hd_attempt_record.run_as); called when an
     * attempt starts; the text is valid until the next call. NULL: ranks run as the daemon's own
     * user. */
    const char *(*run_as)(void *user, const char *owner);
    void *run_as_user;
};
extern const struct hd_core_config hd_core_config_default;

/* Time of an event: mono_ms (monotonic) drives all timers; wall_ms is stored and shown. */
struct hd_now {
    int64_t mono_ms, wall_ms;
};

/* The part of a JobSpec that the core uses. */
struct hd_job_needs {
    const char *name;
    enum hd_device_kind device; /* HD_DEVICE_KIND_ANY: the scheduler chooses */
    int32_t devices_min, devices_max;
    int64_t steps;
    struct hd_plan_request wish; /* layout sizes that the job file fixes */
    int32_t keep;                /* number of newest checkpoints kept; 0: all */
    bool keep_best;              /* true: the checkpoint with the lowest validation loss is kept,
                                  * too */
    int64_t memory_min;          /* bytes of memory per device; 0: any. Only the core raises it
                                  * (fit.c) */
    int32_t restart_max;         /* consecutive failures without a new checkpoint that are
                                  * retried */
    const char *queue;           /* NULL: "default" */
    int32_t priority;
    int64_t time_limit_ms;            /* limit of the total running time of all attempts; 0: none */
    uint64_t after[HD_JOB_AFTER_MAX]; /* jobs that must succeed before this job starts */
    int32_t after_count;
    const char *array;     /* name of the array of which the job is a member; NULL: none */
    int32_t array_at_once; /* most members of the array that run at a time; 0: any number */
    uint64_t shape;        /* hash of everything besides `wish` that decides the best layout
                     * (plan/identity.h); jobs with equal hashes share answers; 0: shared with no
                     * other job */
};

/* ---- events -----------------------------------------------------------------------------------*/

enum hd_core_event_kind {
    /* Runs the timers; send at least one per second. A gap of 5 s between events means that the
     * controller or its machine was suspended: silence of nodes during the gap is not counted. */
    HD_CORE_TICK,
    HD_CORE_SUBMIT,
    HD_CORE_CANCEL,
    HD_CORE_RESUME,         /* continues an ended job */
    HD_CORE_REQUEUE,        /* stops a job at a checkpoint and queues it again */
    HD_CORE_CHECKPOINT_NOW, /* writes a checkpoint; training continues */
    HD_CORE_HOLD,           /* keeps a job from starting until HD_CORE_RELEASE */
    HD_CORE_RELEASE,
    HD_CORE_SET_QUEUE,    /* creates or changes a queue */
    HD_CORE_REMOVE_QUEUE, /* removes a queue; uses only `name` and `by` of event.queue */
    HD_CORE_DRAIN,
    HD_CORE_UNDRAIN,
    HD_CORE_REMOVE_NODE,  /* deletes from the node list a node that is gone */
    HD_CORE_HELLO,        /* a node's daemon opened its stream */
    HD_CORE_ALIVE,        /* any message of a node: renews its lease */
    HD_CORE_COPY,         /* a second daemon that uses a copy of a node's identity was refused */
    HD_CORE_NOTE,         /* adds an event to the cluster's history; nothing changes otherwise */
    HD_CORE_DISCONNECTED, /* a node's stream broke; its attempts continue */
    HD_CORE_OBSERVED,     /* the complete list of attempts that a node's daemon has observed */
    HD_CORE_REPORT,       /* a rank's report (step, validation, checkpoint or event) */
    HD_CORE_FOUND,        /* the checkpoints found by a search of the disk that hd_core_out.searches
                           * requested */
    HD_CORE_END_ALL,      /* sent right after hd_core_restored when none of the old nodes and ranks
                           * exists any more: every node becomes lost, every live job fails */
    HD_CORE_REMOVE,       /* removes an ended job and its folder */
    HD_CORE_PLANNED,      /* the layout computed for one entry of hd_core_out.asked */
    HD_CORE_PROBE,        /* a user requests a probe of a node */
    HD_CORE_PROBED,       /* a node reports its probe's results */
    HD_CORE_JOBS_DIR,     /* the controller sees its jobs directory again, or does not see it any
                           * more */
};

/* One attempt in a node's observed set: the state of its ranks on this node. */
struct hd_observed {
    uint64_t job;
    int32_t attempt;
    enum hd_attempt_state state;
    struct hd_end_record end;                 /* valid if state is ENDED */
    const char *problem;                      /* problem of an attempt that has not ended;
                                               * NULL or "": nothing */
    bool waits;                               /* true: the node lets the attempt neither start nor
                                               * end until `problem` is over */
    struct hd_checkpoint_record *checkpoints; /* valid members: attempt, step, path, hash, time_ms,
                                               * size_bytes */
    size_t checkpoint_count;
};

struct hd_deletion {
    uint64_t job;
    int32_t attempt; /* attempt whose checkpoint was deleted; 0: the whole job folder was, and step,
                      * path and hash are unused */
    int64_t step;
    const char *path, *hash;
    const char *left; /* part of the files that the node could not delete, and why; NULL or "": all
                       * is deleted */
};

struct hd_copied { /* a checkpoint that a node has copied to an object store */
    uint64_t job;
    int32_t attempt;
    int64_t step;
    const char *to;  /* name of the copy */
    int64_t time_ms; /* larger for each later copy of the node */
};

enum hd_report_kind {
    HD_REPORT_STEP,
    HD_REPORT_VALIDATION,
    HD_REPORT_CHECKPOINT,
    HD_REPORT_EVENT,
};

/* The texts that a node's daemon sends in each hello. "", and NULL in a hello: unknown, or none. It has no other
 * members: life/node.c copies and frees them as an array. */
struct hd_node_facts {
    const char *host;         /* host name of the node's machine, if it is not the node's name */
    const char *data_address; /* address at which other nodes reach its ranks */
    const char *traits;       /* properties of its CPU devices, encoded for the layout search */
    /* by device kind: numerics class: nodes with equal texts compute equal bits. Without one for GPUs,
     * these join no attempt with GPUs of other nodes */
    const char *compute[HD_DEVICE_KIND_COUNT];
    struct hd_isolation {
        const char *mode, *tier, *locks, *lacks, *users;
    } isolation; /* how it isolates jobs from one another (NodeIsolation); only displayed */
};

struct hd_core_event {
    enum hd_core_event_kind kind;
    union {
        struct {
            const char *request_id, *owner;
            struct hd_job_needs needs;
            const void *spec;
            size_t spec_bytes;
        } submit;
        struct {
            uint64_t job;
            bool now;
            const char *by;
        } cancel;
        struct { /* RESUME, REMOVE: all records of the job, as hd_core_restore_* takes them */
            const struct hd_job_record *job;
            const struct hd_attempt_record *attempts;
            size_t attempt_count;
            const struct hd_checkpoint_record *checkpoints;
            size_t checkpoint_count;
            const struct hd_position_record *positions;
            size_t position_count;
            uint64_t sequence;
            struct hd_job_needs needs; /* needs and spec: new ones for RESUME, unchanged for
                                        * REMOVE */
            const void *spec;
            size_t spec_bytes;
            int64_t checkpoint_step; /* with REMOVE: step whose checkpoints are deleted, and nothing
                                      * else; 0: remove the whole job */
            const char *by;
        } resume;
        struct {
            uint64_t job;
            const char *by;
        } again; /* REQUEUE, CHECKPOINT_NOW, HOLD, RELEASE */
        struct {
            struct hd_queue_record to; /* the queue's name and its new settings */
            uint32_t
                given; /* bit HD_QUEUE_member: `to` has a new value of it; else it is unchanged,
                             * and in a new queue: no limit, weight 1, open */
            const char *by;
        } queue;
        struct {
            const char *reason; /* reason of failure given to all jobs */
        } end_all;
        struct {
            const char *node, *reason; /* node: its name, not its UUID */
            int64_t deadline_ms;       /* milliseconds until jobs must have left the node; 0: they
                                        * may run to their end */
            const char *by;
        } drain; /* DRAIN and UNDRAIN; UNDRAIN has no reason and no deadline */
        struct {
            const char *node, *by; /* node: its name, not its UUID */
        } remove;
        struct {
            const char *node, *by; /* node: its name, not its UUID */
        } probe;
        struct {
            uint64_t stream, request; /* request: number of the newest probe request that these
                                       * results answer; 0: none */
            struct hd_probe_record record;
        } probed;
        struct {
            const char *uuid, *name, *boot_id, *build;
            struct hd_node_facts facts;
            uint64_t stream; /* the caller's number of this stream, never reused */
            const struct hd_device_record *devices;
            int32_t device_count;
            bool probes;        /* true: the node answers HD_CORE_PROBE */
            bool obeyed_before; /* the controller that it last followed was in charge before this
                                 * database was restored from a backup: the node may run attempts
                                 * that this database lacks */
            const struct hd_node_links *links; /* links between its devices, in their order; NULL:
                                                * unknown */
        } hello;
        struct {
            const char *uuid;
            uint64_t stream;
        } node; /* ALIVE and DISCONNECTED */
        struct {
            const char *uuid, *from; /* from: network address of the daemon that uses the copy */
        } copy;
        struct {
            enum hd_event_kind kind;
            const char *node, *message;
        } note;
        struct {
            const char *uuid;
            uint64_t stream;
            uint64_t generation;
            const struct hd_observed *attempts;
            size_t attempt_count;
            const struct hd_deletion *deleted;
            size_t deleted_count;
            const struct hd_copied *copied; /* newest copies since the daemon's start, in order */
            size_t copied_count;
            bool jobs_dir_visible;
            const char *jobs_dir_problem;
            const char
                *refuses_attempts; /* why the node accepts no new attempts; NULL or "": it accepts
                                    * them */
            bool leaves;           /* true: the node's daemon exits soon and takes all ranks down */
        } observed;
        struct {
            const char *problem; /* why the controller does not see the directory; "": it sees it */
        } jobs_dir;
        struct {
            const char *uuid; /* UUID of the sending node */
            uint64_t stream;
            uint64_t job;
            int32_t attempt, rank;
            uint64_t seq;
            enum hd_report_kind kind;
            union {
                struct hd_step_record step;
                struct hd_validation_record validation;
                struct hd_checkpoint_record checkpoint;
                struct hd_event_record event;
            };
        } report;
        struct {
            uint64_t job;
            int32_t attempt;
            const struct hd_checkpoint_record *checkpoints; /* members as in hd_observed */
            size_t checkpoint_count;
            const char *problem; /* why the attempt's checkpoint folder could not be read; "": it
                                  * was read */
            bool whole;          /* true: the search covered the folders of all attempts */
            bool cut; /* true: there are more complete checkpoints than the list holds; it has
                         * those of the newest attempts */
        } found;
        struct hd_core_answer planned;
    };
};

/* ---- steps ------------------------------------------------------------------------------------*/

/* Output of a step. Initialise with {0}; reusable after hd_core_out_clear. */
struct hd_core_out {
    struct hd_batch *batch;                   /* owned by the caller; several steps may append to
                                               * one batch */
    char (*nodes)[HD_CTL_NAME_BYTES_MAX + 1]; /* UUIDs of nodes whose desired set changed */
    size_t node_count, node_size;
    uint64_t *jobs; /* jobs whose status or history changed */
    size_t job_count, job_size;
    /* Searches of the disk that the caller must make and answer with HD_CORE_FOUND: for attempts of
     * lost nodes, which may have written checkpoints that were not reported; and for jobs whose
     * listed checkpoint is missing (whole: search the folders of all attempts up to this one). The
     * job waits for the answer for at most search_timeout_ms. */
    struct hd_core_search {
        uint64_t job;
        int32_t attempt;
        bool whole;
    } * searches;
    size_t search_count, search_size;
    /* Layout requests, to be computed outside the event loop and answered with HD_CORE_PLANNED;
     * jobs wait for the answers. Strings are valid until the next step. */
    struct hd_core_asked *asked;
    size_t asked_count, asked_size;
    uint64_t job;          /* number of the job that the event was about; 0: not about a single
                            * job */
    bool repeated;         /* SUBMIT: the request id was used before; `job` is that earlier job */
    const char *waits_for; /* REMOVE: name of a disconnected node that must delete files; valid
                            * until the next step; NULL: none */
    size_t evaluated;      /* number of queued jobs that the scheduler evaluated in this step; tests
                            * bound the cost of a step by it and by `forecasts` */
    size_t forecasts;      /* number of times that this step copied the free devices of all nodes */
};

void hd_core_out_clear(struct hd_core_out *out); /* keeps the allocated arrays and the batch */
void hd_core_out_done(struct hd_core_out *out);  /* frees the arrays, not the batch */

struct hd_core *hd_core_new(const struct hd_core_config *config); /* NULL: out of memory */
void hd_core_free(struct hd_core *core);

/* Applies one event. HD_INVALID, HD_NOT_FOUND, HD_EXISTS, HD_CONFLICT, HD_LIMIT, HD_UNSUPPORTED:
 * the event was refused; the message says why. HD_CONFLICT on an event of a node's stream: a newer
 * stream has replaced it, or the node was lost; close the stream. A report whose seq is a duplicate
 * returns HD_OK and changes nothing; acknowledge it like a new one, after all steps so far are
 * durable. */
enum hd_status hd_core_step(struct hd_core *core, const struct hd_core_event *event,
                            struct hd_now now, struct hd_core_out *out);

/* ---- rebuilding from the store ----------------------------------------------------------------*/

/* Adds one record to a new core. Call order: all nodes; their probes; all queues; all request ids;
 * for each job that has not ended, has a checkpoint being deleted or is being removed: the job, its
 * attempts from 1 on, its checkpoints that are not deleted, its report positions, its newest step
 * if there is one; then hd_core_restored once. HD_CORRUPT: the records contradict each other. */
enum hd_status hd_core_restore_node(struct hd_core *core, const struct hd_node_record *node);
/* Adds a node's probe; call it after that node's record. A probe of an unknown node is ignored. */
enum hd_status hd_core_restore_probe(struct hd_core *core, const struct hd_probe_record *probe);
enum hd_status hd_core_restore_queue(struct hd_core *core, const struct hd_queue_record *queue);
enum hd_status hd_core_restore_request(struct hd_core *core, const char *request_id,
                                       const char *owner, uint64_t job, uint64_t hash,
                                       enum hd_job_state state);
enum hd_status hd_core_restore_job(struct hd_core *core, const struct hd_job_record *job,
                                   const struct hd_job_needs *needs, uint64_t sequence);
enum hd_status hd_core_restore_attempt(struct hd_core *core,
                                       const struct hd_attempt_record *attempt);
enum hd_status hd_core_restore_checkpoint(struct hd_core *core,
                                          const struct hd_checkpoint_record *checkpoint);
enum hd_status hd_core_restore_position(struct hd_core *core,
                                        const struct hd_position_record *position);
enum hd_status hd_core_restore_step(struct hd_core *core, const struct hd_step_record *step);
enum hd_status hd_core_restored(struct hd_core *core, uint64_t last_job, uint64_t cluster_sequence,
                                struct hd_now now);

/* ---- queries ----------------------------------------------------------------------------------*/

enum hd_wanted { HD_WANTED_RUNNING = 1, HD_WANTED_STOPPING = 2, HD_WANTED_STOPPED = 3 };

struct hd_desired_attempt {
    const struct hd_job_record *job; /* record of the attempt's job, with its spec; valid until the
                                      * next step */
    const struct hd_attempt_record *attempt;
    enum hd_wanted wanted;
    bool ran; /* the attempt's ranks were running once or left a checkpoint: the daemon must never
               * start this attempt again */
    int32_t saves_asked; /* number of extra checkpoints that users requested of this attempt since
                          * the controller started */
};

/* The complete desired set of a node. Arrays live in `arena`; strings are valid until the next
 * step. HD_CONFLICT: the node has not sent its observed set on its stream yet; send nothing. */
struct hd_desired {
    uint64_t generation;
    struct hd_desired_attempt *attempts;
    size_t attempt_count;
    struct hd_deletion *deletions;
    size_t deletion_count;
};
enum hd_status hd_core_desired(const struct hd_core *core, const char *uuid, struct hd_arena *arena,
                               struct hd_desired *ret_desired);

/* Returns whether `owner` has already submitted a job with this request id; a repeat creates no
 * job. */
bool hd_core_knows_request(const struct hd_core *core, const char *request_id, const char *owner);
/* Returns whether `owner` owns the job; false also if the job does not exist. */
bool hd_core_job_is_of(const struct hd_core *core, uint64_t job, const char *owner);

/* Returns the state in which the job ended, also if it was removed since; 0: it has not ended, or
 * does not exist. */
enum hd_job_state hd_core_outcome(const struct hd_core *core, uint64_t job);

/* Returns the record of a job that has not ended, else NULL. Valid until the next step. */
const struct hd_job_record *hd_core_job(const struct hd_core *core, uint64_t job);
const struct hd_attempt_record *hd_core_attempt(const struct hd_core *core, uint64_t job,
                                                int32_t attempt); /* attempt 0: the newest */
size_t hd_core_live_jobs(const struct hd_core *core);
/* Returns the sequence number of the newest entry in a live job's history; 0: the core does not
 * hold the job. */
uint64_t hd_core_job_sequence(const struct hd_core *core, uint64_t job);
/* Appends a warning when the number of live jobs exceeds HD_CTL_JOBS_WARN_PERCENT of
 * config.jobs_live_max; else appends nothing. */
void hd_core_warn(const struct hd_core *core, struct hd_text *ret_warning);

/* Returns the expected start of a queued job for display (wall clock, ms): never earlier than now,
 * although the planned start may be up to a minute in the past before it is moved (reserve.c). 0:
 * unknown, or the job is not queued. */
int64_t hd_core_expected_start_ms(const struct hd_job_record *job, struct hd_now now);
/* Appends to ret_reason why a queued job waits, or what is wrong with a running one; nothing for a
 * job that runs well or has ended. */
void hd_core_explain(const struct hd_core *core, uint64_t job, struct hd_now now,
                     struct hd_text *ret_reason);

/* Comparison of two placements for a job: the one available first (now) and a better one available
 * later. step_now_s 0: no comparison was made. Tiers as in hd_core_asked. */
struct hd_core_choice {
    int32_t nodes_now, tier_now, nodes_later, tier_later;
    double step_now_s, step_later_s;
    int64_t now_ms, later_ms; /* wall-clock times at which the two placements become available */
    int64_t gain_ms;          /* milliseconds of training time saved by the later placement */
    int64_t saved_ms;         /* how much earlier the job ends with the later placement; negative:
                               * it ends later */
    bool taken;               /* true: the job, which does not fit now, waits for the later
                               * placement */
};

/* Returns the comparison behind the wait of a queued job for a better placement; NULL: it does not
 * wait for one. Valid until the next step. */
const struct hd_core_choice *hd_core_choice_of(const struct hd_core *core, uint64_t job);

/* Reasons why a queued job waits: enumerator, stable word, text for users. */
#define HD_CORE_WAIT_LIST(X)                                                                    \
    X(HELD, "held", "a user holds it (heddle release)")                                         \
    X(AFTER, "after", "jobs that its `after` names have not succeeded yet")                     \
    X(ARRAY, "array", "as many jobs of its array run as `array.at_once` allows")                \
    X(DELAY, "delay", "its last attempt failed or was preempted; the next one is delayed")      \
    X(SEARCH, "search", "its checkpoints are being searched on the disk")                       \
    X(MISSING, "missing", "its checkpoints are not on the disk (heddle show)")                  \
    X(PLAN, "plan", "the best layout for its devices is being computed")                        \
    X(BETTER, "better_place", "devices on which its steps take less time are free soon")        \
    X(CLOSED, "closed", "its queue is closed (heddle queue set NAME --open)")                   \
    X(QUOTA, "quota", "the device limit of its queue leaves too few devices")                   \
    X(USER_QUOTA, "user_quota", "its owner's device limit in the queue leaves too few devices") \
    X(DEVICES, "devices", "the devices that it needs are held by other jobs")                   \
    X(JOBS_DIR, "jobs_dir",                                                                     \
      "the controller or a node does not see the jobs directory (heddle nodes)")                \
    X(NODES, "nodes", "nodes with the devices that it needs accept no jobs now (heddle nodes)") \
    X(RESERVED, "reserved", "free devices are reserved for a job before it")                    \
    X(PREEMPTING, "preempting",                                                                 \
      "other jobs are being preempted for it; they write checkpoints first")                    \
    X(CAPACITY, "capacity", "no nodes that are known and not drained have enough devices")
#define X(name, word, meaning) HD_CORE_WAITS_##name,
enum hd_core_blocker { HD_CORE_WAIT_LIST(X) HD_CORE_BLOCKERS_MAX };
#undef X
const char *hd_core_blocker_word(enum hd_core_blocker blocker);
const char *hd_core_blocker_meaning(enum hd_core_blocker blocker);
/* Lists all reasons why a queued job waits, the first one that applies first; returns their
 * number. */
size_t hd_core_blockers(const struct hd_core *core, uint64_t job,
                        enum hd_core_blocker ret_blockers[HD_CORE_BLOCKERS_MAX]);

/* Does what hd_core_explain does, for a job that is not submitted. *out may get layout requests
 * (`asked`), as in a step, and nothing else. HD_UNSUPPORTED or HD_INVALID: the job could not start
 * on any cluster. */
struct hd_core_readiness {
    bool later;    /* the layout is being computed: call again after HD_CORE_PLANNED */
    bool fits_now; /* true: the job would start at once */
    /* why no nodes that are known can ever run the job, however idle; "": they can. The caller
     * frees the text. */
    struct hd_text never_fits;
    struct hd_text reason; /* why the job would wait; or the chosen layout, if there was a choice.
                            * The caller frees the text. */
};
enum hd_status hd_core_explain_needs(struct hd_core *core, const struct hd_job_needs *needs,
                                     const void *spec, size_t spec_bytes, struct hd_now now,
                                     struct hd_core_out *out, struct hd_core_readiness *ret);

/* Appends why the nodes that are known can never run a queued job: it needs more devices than all
 * of them have together, drained and unreachable ones included, lost ones not. Appends nothing if
 * they can, if no node is known, or if the job is not queued. */
void hd_core_add_never_fits(const struct hd_core *core, uint64_t job, struct hd_text *text);

/* The attempt that holds one device (struct hd_device_hold); job 0: the device is free. */
struct core_attempt;
struct hd_device_hold {
    uint64_t job;
    int32_t attempt;
    uint64_t start;                /* sequence number of that attempt among those started by this
                                    * controller */
    const struct core_attempt *by; /* private to the core */
};

/* A queue, found by its index in the order of names; the queue `default` always exists. */
struct hd_queue_view {
    const struct hd_queue_record *record;
    int64_t devices_held;
    size_t jobs_waiting;
};
size_t hd_core_queue_count(const struct hd_core *core);
void hd_core_queue_at(const struct hd_core *core, size_t index, struct hd_queue_view *ret_view);
bool hd_core_queue_find(const struct hd_core *core, const char *name, size_t *ret_index);

/* A node, found by its index in the order of names; retired nodes are left out. */
struct hd_node_view {
    const struct hd_node_record *record;
    const struct hd_node_facts *facts;
    bool is_away; /* true: not connected, because its stream has ended, or because it has not
                   * connected since the controller started */
    bool jobs_dir_visible;
    const char *jobs_dir_problem;
    const char *asked_name; /* new name that its daemon requests, applied when no job runs on the
                               * node; "": none */
    int64_t position;       /* index in config.tree; -1: not in the tree */
    const struct hd_device_hold *holds;        /* holder of each device, in the order of
                                                * record->devices */
    bool probe_pending;                        /* true: a probe of the node was requested and is not
                                                * answered yet */
    int64_t probe_ended_ms, probe_measured_ms; /* end of the newest probe, and time of its
                                                * calibration (hd_probe_record); 0: none */
    const char *probe_problem, *probe_measured_on;
};
/* Returns the state for display: a node is shown as ready only while it is connected. */
enum hd_node_state hd_node_view_state(const struct hd_node_view *view);
size_t hd_core_node_count(const struct hd_core *core);
void hd_core_node_at(const struct hd_core *core, size_t index, struct hd_node_view *ret_view);
/* Appends why a node accepts no new job to ret_reason; nothing for a node that accepts jobs. */
void hd_core_node_reason(const struct hd_core *core, size_t index, struct hd_now now,
                         struct hd_text *ret_reason);
/* Returns the milliseconds since the last message of a node that is unreachable, lost or
 * disconnected; 0 for any other node. */
int64_t hd_core_node_silent_ms(const struct hd_core *core, size_t index, struct hd_now now);
/* Returns the number of the probe request that the node has not answered yet; 0: none. */
uint64_t hd_core_probe_asked(const struct hd_core *core, const char *uuid);
/* Returns the end time of the node's newest probe (its own clock, ms); 0: never probed. */
int64_t hd_core_probe_ended(const struct hd_core *core, const char *uuid);
/* Returns whether the node has ever seen the cluster's jobs directory; false also for an unknown
 * node. */
bool hd_core_saw_jobs_dir(const struct hd_core *core, const char *uuid);
/* Appends which measured rate of device number `device` is far below the median of equal devices;
 * nothing if none is, or if no rate is known. */
void hd_core_slow_device(struct hd_core *core, size_t index, int32_t device,
                         struct hd_text *ret_why);
bool hd_core_node_find(const struct hd_core *core, const char *name, size_t *ret_index);

/* Checks the invariants that are numbered and listed at the top of core.c; for tests. HD_INTERNAL
 * names the first broken one. The cost grows with the size of the whole state. */
enum hd_status hd_core_check(const struct hd_core *core);

/* ---- planning (plan.c) ------------------------------------------------------------------------*/

/* Chooses the layout of `needs` on `count` devices of one kind: fills ret_plan->layout and sets no
 * ranks. HD_INVALID: `count` devices cannot share the work evenly; HD_UNSUPPORTED: no communication
 * engine of this build connects them. The message names counts that would work. */
enum hd_status hd_core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind,
                            int32_t count, struct hd_plan_record *ret_plan);

#endif

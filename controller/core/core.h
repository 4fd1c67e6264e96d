/* core: the scheduler's state machine for jobs, attempts and nodes.
 *
 * hd_core_step takes an event and the time, updates the core's memory and returns: records to write
 * (a batch), nodes whose desired set changed, jobs that changed. The core does no I/O, reads no
 * clock and starts no thread, so the tests simulate a whole cluster in one process. Rules for the
 * caller (services):
 *
 *   - Send nothing that depends on a step (replies, desired sets, notices to watchers) before the
 *     step's batch is durable. Build desired sets right after the step, send them later.
 *   - Commit batches in the order of their steps.
 *   - After HD_NO_MEMORY from hd_core_step, core and batch may disagree: drop both and build a new
 *     core from the store. Any other failure changed nothing.
 *
 * The core holds the jobs that have not ended, and ended jobs that still have checkpoints to
 * delete, or whose folder is. The store holds all jobs.
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

/* A question that the core asks (hd_core_out.asked): the best layout of an attempt on the devices
 * that were found for it. The answer follows from the question alone, and jobs that ask the same
 * share it. */
struct hd_core_asked {
    const char *key;  /* equal for equal questions */
    const void *spec; /* the job's, as it was submitted */
    size_t spec_bytes;
    struct hd_plan_request wish; /* with the kind of device */
    int32_t devices;
    int32_t together; /* ranks 0 to together - 1 are on one node, so are the next ones ...; devices:
                       * all are */
    /* How far apart the nodes are. 0: it is one node; n: they are at one switch of the n-th tier of
     * config.tree, and at none of a lower tier; one more than it has tiers (1 without a tree): they
     * share no switch, or are not in the tree. */
    int32_t tier;
    /* of the device that has least memory: its memory (> 0), its model, the traits of its node's
     * CPU devices as a word ("": not known) */
    int64_t memory_bytes;
    const char *device_name, *traits;
    int32_t threads; /* the fewest that a device has */
    bool bf16;       /* all compute it natively */
    bool ahead; /* nothing waits for the answer yet; the question comes once more when a job does */
    /* The node whose probe says how fast the devices are, which are all on it; "": none does */
    const char *probe_uuid;
};

struct hd_core_answer {
    const char *key;
    bool failed; /* nothing could be laid out: the layout of plan/choose.h is taken, and the ranks
                  * will say what is wrong with it */
    bool fits;
    struct hd_layout_sizes layout; /* if it fits */
    double step_s;                 /* predicted; 0: not known */
    int64_t memory_bytes;          /* of the rank that takes most; 0: not known */
    bool preliminary;              /* the search was cut short, and the layout chosen by memory */
    const char *why;               /* what was chosen, or why nothing fits; may be "" */
};

/* Durations in milliseconds, and limits. */
struct hd_core_config {
    /* Layouts are asked for (hd_core_out.asked), and answered with HD_CORE_PLANNED. False: attempts
     * get the layout of plan/choose.h. */
    bool asks_layouts;
    const struct hd_node_tree *tree; /* switches by names of nodes; the caller's; NULL: not known */
    int64_t unreachable_ms;          /* a node that is silent this long becomes unreachable */
    int64_t lost_ms;                 /* a node that is silent this long becomes lost */
    int64_t lost_confirmed_ms;       /* the same for a node that a peer has reported dead */
    int64_t restart_grace_ms;   /* the same for a node not heard since the controller started, or
                                 * since it was stopped for a while */
    int64_t start_timeout_ms;   /* an attempt fails if its ranks are not connected by then */
    int64_t stop_grace_ms;      /* a cancelled attempt is killed if it still runs then */
    int64_t search_timeout_ms;  /* for listing the checkpoints of a job that are on the disk */
    int64_t retry_delay_ms;     /* delay before the third attempt without progress; doubles */
    int64_t retry_delay_max_ms; /* with each further one, up to this */
    size_t jobs_live_max;       /* jobs that have not ended; more are refused */
    int32_t spare_nodes; /* of each kind of node, kept free for jobs whose attempt has failed */
    /* The system user of the ranks of an owner's jobs (hd_attempt_record.run_as), asked when an
     * attempt begins; the text is valid until the next call. NULL: the daemons' own. */
    const char *(*run_as)(void *user, const char *owner);
    void *run_as_user;
};
extern const struct hd_core_config hd_core_config_default;

/* mono_ms (monotonic) drives all timers; wall_ms is stored and shown. */
struct hd_now {
    int64_t mono_ms, wall_ms;
};

/* The part of a JobSpec that the core uses. */
struct hd_job_needs {
    const char *name;
    enum hd_device_kind device; /* ANY: auto */
    int32_t devices_min, devices_max;
    int64_t steps;
    struct hd_plan_request wish; /* the layout's sizes that the job file fixes */
    int32_t keep;                /* newest checkpoints kept; 0: all */
    bool keep_best;              /* the one with the lowest validation loss as well */
    int64_t memory_min;          /* bytes of a device; 0: any. Only the core raises it (fit.c) */
    int32_t restart_max;         /* failures in a row without a new checkpoint that are retried */
    const char *queue;           /* NULL: "default" */
    int32_t priority;
    int64_t time_limit_ms;            /* of the running time of all attempts; 0: none */
    uint64_t after[HD_JOB_AFTER_MAX]; /* jobs that must have succeeded before it starts */
    int32_t after_count;
    uint64_t shape; /* a hash of what the best layout depends on, besides the wish
                     * (plan/identity.h); 0: that job's alone */
};

/* ---- events -----------------------------------------------------------------------------------*/

enum hd_core_event_kind {
    /* Runs the timers; send at least one per second. If no event came for 5 s, the controller was
     * stopped, or its machine was: what nodes are silent for in that time does not count. */
    HD_CORE_TICK,
    HD_CORE_SUBMIT,
    HD_CORE_CANCEL,
    HD_CORE_RESUME,         /* an ended job goes on */
    HD_CORE_REQUEUE,        /* stops at a checkpoint and waits for a place again */
    HD_CORE_CHECKPOINT_NOW, /* writes a checkpoint and trains on */
    HD_CORE_HOLD,           /* is not started until it is released */
    HD_CORE_RELEASE,
    HD_CORE_SET_QUEUE,    /* makes or changes a queue */
    HD_CORE_REMOVE_QUEUE, /* of its `queue` name and by alone */
    HD_CORE_DRAIN,
    HD_CORE_UNDRAIN,
    HD_CORE_REMOVE_NODE,  /* forgets a node that is gone */
    HD_CORE_HELLO,        /* a node opened its stream */
    HD_CORE_ALIVE,        /* any message of a node: renews its lease */
    HD_CORE_COPY,         /* another daemon with a copy of a node's identity was refused */
    HD_CORE_NOTE,         /* an event of the cluster that changes nothing else */
    HD_CORE_DISCONNECTED, /* a node's stream broke; the node's attempts go on */
    HD_CORE_OBSERVED,     /* a node's complete observed set */
    HD_CORE_REPORT,       /* a rank's report */
    HD_CORE_FOUND,        /* the answer to hd_core_out.searches */
    HD_CORE_END_ALL,      /* right after hd_core_restored: no node and no rank of before exists any
                           * more, so every node is lost and every live job has failed */
    HD_CORE_REMOVE,       /* an ended job goes, with its folder */
    HD_CORE_PLANNED,      /* the answer to one of hd_core_out.asked */
    HD_CORE_PROBE,        /* a user asks for a probe of a node */
    HD_CORE_PROBED,       /* a node says what it has measured */
    HD_CORE_JOBS_DIR,     /* the controller sees its jobs directory, or does not */
};

/* One attempt in a node's observed set: the state of this node's share. */
struct hd_observed {
    uint64_t job;
    int32_t attempt;
    enum hd_attempt_state state;
    struct hd_end_record end;                 /* valid if state is ENDED */
    const char *problem;                      /* of one that has not ended; NULL or "": none */
    bool waits;                               /* it does not start or end until that is over */
    struct hd_checkpoint_record *checkpoints; /* attempt, step, path, hash, time_ms, size_bytes */
    size_t checkpoint_count;
};

struct hd_deletion {
    uint64_t job;
    int32_t attempt; /* 0: the folder of the whole job, without step, path and hash */
    int64_t step;
    const char *path, *hash;
    const char *left; /* part that stays of a deletion that is done, and why; NULL or "": none */
};

enum hd_report_kind {
    HD_REPORT_STEP,
    HD_REPORT_VALIDATION,
    HD_REPORT_CHECKPOINT,
    HD_REPORT_EVENT,
};

/* How a node keeps jobs apart, as its daemon says (NodeIsolation); only shown. */
struct hd_isolation {
    const char *mode, *tier, *locks, *lacks, *users;
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
            struct hd_job_needs needs; /* with spec: how it goes on; REMOVE: as it was */
            const void *spec;
            size_t spec_bytes;
            int64_t checkpoint_step; /* REMOVE: only the checkpoints of this step; 0: the job */
            const char *by;
        } resume;
        struct {
            uint64_t job;
            const char *by;
        } again; /* requeue, checkpoint now, hold, release */
        struct {
            const char *name;
            /* -1: as it is; of a new queue: no limit, weight 1 */
            int64_t devices_max, user_devices_max, weight;
            bool closes, opens; /* neither: as it is; a new queue is open */
            const char *by;
        } queue;
        struct {
            const char *reason; /* of the jobs' failure */
        } end_all;
        struct {
            const char *node, *reason; /* node: its name */
            int64_t deadline_ms;       /* jobs leave it within so many milliseconds; 0: they run to
                                        * their end */
            const char *by;
        } drain; /* DRAIN and UNDRAIN; UNDRAIN has no reason and no deadline */
        struct {
            const char *node, *by; /* node: its name */
        } remove;
        struct {
            const char *node, *by; /* node: its name */
        } probe;
        struct {
            uint64_t stream, request; /* request: the newest that it answers; 0: none */
            struct hd_probe_record record;
        } probed;
        struct {
            const char *uuid, *name, *boot_id, *build;
            const char *data_address; /* where other nodes reach its ranks; "": none */
            const char *host;    /* the machine's host name, if not `name`; "" or NULL: it is */
            const char *compute; /* nodes with equal strings compute equal bits on the CPU */
            const char *compute_cuda; /* on GPUs; "": these cannot work with GPUs of other nodes */
            const char *traits;       /* of its CPU devices, as a word; "": not known */
            uint64_t stream;          /* the caller's number of this stream, never reused */
            const struct hd_device_record *devices;
            int32_t device_count;
            bool probes;        /* it answers HD_CORE_PROBE */
            bool obeyed_before; /* the last controller that it obeyed led before this database was
                                 * put back: it may have attempts that began after the backup */
            struct hd_isolation isolation;     /* texts may be NULL: not known */
            const struct hd_node_links *links; /* between them, in their order; NULL: not known */
        } hello;
        struct {
            const char *uuid;
            uint64_t stream;
        } node; /* ALIVE and DISCONNECTED */
        struct {
            const char *uuid, *from; /* from: the address of the copy */
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
            bool jobs_dir_visible;
            const char *jobs_dir_problem;
            const char
                *refuses_attempts; /* why it takes no new attempts; NULL or "": it takes them */
            bool leaves;           /* its daemon ends soon, with all ranks */
        } observed;
        struct {
            const char *problem; /* why the controller does not see it; "": it does */
        } jobs_dir;
        struct {
            const char *uuid; /* of the node that sent it */
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
            const struct hd_checkpoint_record *checkpoints; /* as in hd_observed */
            size_t checkpoint_count;
            const char *problem; /* why the folder could not be read; "": it was */
            bool whole; /* as asked: they are all complete ones of the job that are on the disk */
        } found;
        struct hd_core_answer planned;
    };
};

/* ---- steps ------------------------------------------------------------------------------------*/

/* Output of a step. Start with {0}; may be reused after hd_core_out_clear. */
struct hd_core_out {
    struct hd_batch *batch;                   /* the caller's; several steps may add to one batch */
    char (*nodes)[HD_CTL_NAME_BYTES_MAX + 1]; /* uuids of nodes whose desired set changed */
    size_t node_count, node_size;
    uint64_t *jobs; /* jobs whose status or history changed */
    size_t job_count, job_size;
    /* Attempts of lost nodes whose folders may hold complete checkpoints that were not reported,
     * and jobs of which a listed checkpoint is not on the disk (whole: the folders of all attempts
     * up to this one): to be listed, and answered with HD_CORE_FOUND. The job waits for the answer,
     * at most search_timeout_ms. */
    struct hd_core_search {
        uint64_t job;
        int32_t attempt;
        bool whole;
    } * searches;
    size_t search_count, search_size;
    /* Layouts to be found beside the loop, and answered with HD_CORE_PLANNED. Jobs wait for the
     * answers. Strings are valid until the next step. */
    struct hd_core_asked *asked;
    size_t asked_count, asked_size;
    uint64_t job;          /* events about one job: the job's number */
    bool repeated;         /* SUBMIT: the request id is that of an earlier job */
    const char *waits_for; /* REMOVE: the name of a node that is to delete files and is away; valid
                            * until the next step; NULL: none */
    size_t evaluated;      /* jobs that the step looked at: for tests of what a step costs */
};

void hd_core_out_clear(struct hd_core_out *out); /* keeps the allocated arrays and the batch */
void hd_core_out_done(struct hd_core_out *out);  /* frees memory, not the batch */

struct hd_core *hd_core_new(const struct hd_core_config *config); /* NULL: out of memory */
void hd_core_free(struct hd_core *core);

/* HD_INVALID, HD_NOT_FOUND, HD_EXISTS, HD_CONFLICT, HD_LIMIT, HD_UNSUPPORTED: the event was
 * refused; the message says why. HD_CONFLICT on an event of a node's stream: a newer stream has
 * replaced this one, or the node was lost; close the stream. A report whose seq was seen before is
 * HD_OK and adds nothing; acknowledge it like a new one, after all steps so far are durable. */
enum hd_status hd_core_step(struct hd_core *core, const struct hd_core_event *event,
                            struct hd_now now, struct hd_core_out *out);

/* ---- rebuilding from the store ----------------------------------------------------------------*/

/* Call in this order: all nodes; their probes; all queues; all request ids; for each job that has
 * not ended, has a checkpoint being deleted or is being removed: the job, its attempts from 1 on,
 * its checkpoints that are not deleted, its report positions, its newest step if there is one; then
 * hd_core_restored once. HD_CORRUPT: the records contradict each other.
 */
enum hd_status hd_core_restore_node(struct hd_core *core, const struct hd_node_record *node);
/* After its node; one whose node does not exist is ignored. */
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
    const struct hd_job_record *job; /* with spec; valid until the next step */
    const struct hd_attempt_record *attempt;
    enum hd_wanted wanted;
    bool ran; /* its ranks were up once, or left a checkpoint: it is never started a second time */
    int32_t saves_asked; /* checkpoints asked for since the controller's start */
};

/* The complete desired set of a node; arrays live in `arena`, strings are valid until the next
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

/* The owner has submitted a job with this request id: another submission of that owner with it
 * makes none. */
bool hd_core_knows_request(const struct hd_core *core, const char *request_id, const char *owner);
/* False also where there is no such job. */
bool hd_core_job_is_of(const struct hd_core *core, uint64_t job, const char *owner);

/* Records of a job that has not ended, else NULL. Valid until the next step. */
const struct hd_job_record *hd_core_job(const struct hd_core *core, uint64_t job);
const struct hd_attempt_record *hd_core_attempt(const struct hd_core *core, uint64_t job,
                                                int32_t attempt); /* 0: the newest */
size_t hd_core_live_jobs(const struct hd_core *core);
/* Of the newest entry in a live job's history; 0: the core does not hold the job. */
uint64_t hd_core_job_sequence(const struct hd_core *core, uint64_t job);
/* Appends a sentence while so many jobs live that new ones may soon be refused
 * (HD_CTL_JOBS_WARN_PERCENT of config.jobs_live_max), else nothing. */
void hd_core_warn(const struct hd_core *core, struct hd_text *ret_warning);

/* When a queued job is expected to start, as people are told: not before now, though the promise
 * may be up to a minute late before it moves (reserve.c). 0: not known, or it is not queued. */
int64_t hd_core_expected_start_ms(const struct hd_job_record *job, struct hd_now now);
/* Appends to ret_reason what a queued job waits for, or what is wrong with a running one; nothing
 * for a job that runs well or has ended. */
void hd_core_explain(const struct hd_core *core, uint64_t job, struct hd_now now,
                     struct hd_text *ret_reason);

/* The place that opens first to a job, and the better one that opens later; step_now_s 0: nothing
 * was weighed. Tiers: as in hd_core_asked. */
struct hd_core_choice {
    int32_t nodes_now, tier_now, nodes_later, tier_later;
    double step_now_s, step_later_s;
    int64_t now_ms, later_ms; /* when they open, by the wall clock */
    int64_t gain_ms;          /* what its steps take less in the later place */
    int64_t saved_ms;         /* how much earlier it ends there; below 0: later */
    bool taken;               /* of a job that does not fit now: it waits for the later one */
};

/* What a queued job that waits for a better place was weighed between; NULL: it does not. Valid
 * until the next step. */
const struct hd_core_choice *hd_core_choice_of(const struct hd_core *core, uint64_t job);

/* Things that a queued job may wait for: enumerator, stable word, meaning for users. */
#define HD_CORE_WAIT_LIST(X)                                                                  \
    X(HELD, "held", "a user holds it (heddle release)")                                       \
    X(AFTER, "after", "jobs that it comes after have not succeeded yet")                      \
    X(DELAY, "delay", "its last attempt failed or gave way, and the next one is delayed")     \
    X(SEARCH, "search", "its checkpoints are being looked for on the disk")                   \
    X(MISSING, "missing", "its checkpoints are not on the disk (heddle show)")                \
    X(PLAN, "plan", "the best layout for its devices is being looked for")                    \
    X(BETTER, "better_place", "a place where its steps take less time is free soon")          \
    X(CLOSED, "closed", "its queue is closed (heddle queue set NAME --open)")                 \
    X(QUOTA, "quota", "its queue may not hold so many devices more")                          \
    X(USER_QUOTA, "user_quota", "its owner may not hold so many devices more in its queue")   \
    X(DEVICES, "devices", "the devices that it needs are held by other jobs")                 \
    X(JOBS_DIR, "jobs_dir", "the cluster's jobs directory is not seen (heddle nodes)")        \
    X(NODES, "nodes", "nodes with the devices that it needs take no jobs now (heddle nodes)") \
    X(RESERVED, "reserved", "free devices are kept for a job that comes before it")           \
    X(PREEMPTING, "preempting", "other jobs write checkpoints and give devices back")         \
    X(CAPACITY, "capacity", "no nodes that are known and not drained have enough devices")
#define X(name, word, meaning) HD_CORE_WAITS_##name,
enum hd_core_blocker { HD_CORE_WAIT_LIST(X) HD_CORE_BLOCKERS_MAX };
#undef X
const char *hd_core_blocker_word(enum hd_core_blocker blocker);
const char *hd_core_blocker_meaning(enum hd_core_blocker blocker);
/* All that a queued job waits for, the first reason first; returns their number. */
size_t hd_core_blockers(const struct hd_core *core, uint64_t job,
                        enum hd_core_blocker ret_blockers[HD_CORE_BLOCKERS_MAX]);

/* hd_core_explain for a job that is not submitted. As in a step, *out may get questions (`asked`)
 * and nothing else. HD_UNSUPPORTED or HD_INVALID: it could not start on any cluster. */
struct hd_core_readiness {
    bool later;            /* the layout is being found: call again after HD_CORE_PLANNED */
    bool fits_now;         /* it would start at once */
    struct hd_text reason; /* what it would wait for; or which layout was chosen, if there was a
                            * choice. The caller frees it. */
};
enum hd_status hd_core_explain_needs(struct hd_core *core, const struct hd_job_needs *needs,
                                     const void *spec, size_t spec_bytes, struct hd_now now,
                                     struct hd_core_out *out, struct hd_core_readiness *ret);

/* The attempt that holds a device; job 0: the device is free. */
struct core_attempt;
struct hd_device_hold {
    uint64_t job;
    int32_t attempt;
    uint64_t start;                /* the attempt's number among those started by this controller */
    const struct core_attempt *by; /* the core's own; not for others */
};

/* Queues by index, sorted by name; there is always one of the name `default`. */
struct hd_queue_view {
    const struct hd_queue_record *record;
    int64_t devices_held;
    size_t jobs_waiting;
};
size_t hd_core_queue_count(const struct hd_core *core);
void hd_core_queue_at(const struct hd_core *core, size_t index, struct hd_queue_view *ret_view);
bool hd_core_queue_find(const struct hd_core *core, const char *name, size_t *ret_index);

/* Nodes by index, sorted by name, without retired nodes. */
struct hd_node_view {
    struct hd_isolation isolation; /* texts "": not known, or none */
    const struct hd_node_record *record;
    bool
        is_away; /* it is not connected: its stream has ended, or it has not come since the start */
    bool jobs_dir_visible;
    const char *jobs_dir_problem;
    const char *asked_name; /* name that its daemon gives, taken over when no job runs; "": none */
    const char *host;       /* host name of its machine; "": the node's name */
    const char *data_address;                  /* where other nodes reach its ranks; "": none */
    const char *traits;                        /* of its CPU devices, as a word; "": not known */
    int64_t position;                          /* in config.tree; -1: not in it */
    const struct hd_device_hold *holds;        /* per device, in the order of record->devices */
    bool probe_pending;                        /* one was asked for, and is not answered */
    int64_t probe_ended_ms, probe_measured_ms; /* as in hd_probe_record */
    const char *probe_problem, *probe_measured_on;
};
/* As it is shown: only a node that is connected is ready. */
enum hd_node_state hd_node_view_state(const struct hd_node_view *view);
size_t hd_core_node_count(const struct hd_core *core);
void hd_core_node_at(const struct hd_core *core, size_t index, struct hd_node_view *ret_view);
/* Appends why a node takes no new job to ret_reason; nothing for a node that does. */
void hd_core_node_reason(const struct hd_core *core, size_t index, struct hd_now now,
                         struct hd_text *ret_reason);
/* The time since the last message of a node that is unreachable or lost, or whose stream has ended;
 * 0: a node that answers. */
int64_t hd_core_node_silent_ms(const struct hd_core *core, size_t index, struct hd_now now);
/* The number of the question that the node has not answered yet; 0: none. */
uint64_t hd_core_probe_asked(const struct hd_core *core, const char *uuid);
/* When its newest probe ended, by its own clock; 0: none has. */
int64_t hd_core_probe_ended(const struct hd_core *core, const char *uuid);
/* Returns whether the node has ever seen the cluster's jobs directory. */
bool hd_core_saw_jobs_dir(const struct hd_core *core, const char *uuid);
/* Appends in what the device at `placement` is far slower than the median of its kind; nothing if
 * it is not, or if that is not known. */
void hd_core_slow_device(struct hd_core *core, size_t index, int32_t device,
                         struct hd_text *ret_why);
bool hd_core_node_find(const struct hd_core *core, const char *name, size_t *ret_index);

/* For tests: checks the invariants that core.c numbers. HD_INTERNAL names the first broken one. The
 * cost grows with the size of the whole state. */
enum hd_status hd_core_check(const struct hd_core *core);

/* ---- planning (plan.c) ------------------------------------------------------------------------*/

/* The layout of `needs` on `count` devices of one kind: fills ret_plan->layout and sets no ranks.
 * HD_INVALID: `count` devices cannot share the work evenly; HD_UNSUPPORTED: no communication engine
 * of this build connects them. The message says which numbers would work. */
enum hd_status hd_core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind,
                            int32_t count, struct hd_plan_record *ret_plan);

#endif

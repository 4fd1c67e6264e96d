/* record: the controller's persistent state as plain structs, and batches of them.
 *
 * The core produces these records, the store writes and reads them; core and store do not know each
 * other. A *batch* holds the records that one or several core steps write, in order. It is written
 * in one transaction: all of it or nothing.
 *
 * Enum numbers are those of proto/heddle/v1 (asserted in services). The strings are API: they are
 * in the database, in JSON and in messages to users, and must not change.
 *
 * Used by: core, store, services.   Uses: base, job.
 * Threads: a batch belongs to the loop until it is committed, then to the writer thread.
 */
#ifndef HD_CONTROLLER_RECORD_H
#define HD_CONTROLLER_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "controller/core/event_kinds.h"
#include "controller/core/identity_record.h"
#include "job/job.h"
#include "job/metrics.h"

/* States of a job: enumerator, number, stable string. The lists below have the same form. */
#define HD_JOB_STATE_LIST(X)     \
    X(QUEUED, 1, "queued")       \
    X(RUNNING, 2, "running")     \
    X(STOPPING, 3, "stopping")   \
    X(SUCCEEDED, 4, "succeeded") \
    X(FAILED, 5, "failed")       \
    X(CANCELLED, 6, "cancelled")

#define HD_ATTEMPT_STATE_LIST(X) \
    X(STARTING, 1, "starting")   \
    X(RUNNING, 2, "running")     \
    X(STOPPING, 3, "stopping")   \
    X(ENDED, 4, "ended")

#define HD_END_CAUSE_LIST(X)             \
    X(NONE, 0, "none")                   \
    X(COMPLETED, 1, "completed")         \
    X(RANK_EXIT, 2, "rank_exit")         \
    X(NODE_LOST, 3, "node_lost")         \
    X(HANG, 4, "hang")                   \
    X(USER, 5, "user")                   \
    X(PREEMPTED, 6, "preempted")         \
    X(LAUNCH_FAILED, 7, "launch_failed") \
    X(DIVERGED, 8, "diverged")           \
    X(STORAGE, 9, "storage")             \
    X(INCOMPLETE, 10, "incomplete")      \
    X(TIME_LIMIT, 11, "time_limit")      \
    X(RESIZED, 12, "resized")            \
    X(OOM, 13, "oom")

#define HD_NODE_STATE_LIST(X)        \
    X(READY, 1, "ready")             \
    X(UNREACHABLE, 2, "unreachable") \
    X(LOST, 3, "lost")               \
    X(DRAINING, 4, "draining")       \
    X(DRAINED, 5, "drained")

#define HD_DEVICE_KIND_LIST(X) \
    X(ANY, 0, "auto")          \
    X(CPU, 1, "cpu")           \
    X(CUDA, 2, "cuda")

#define HD_CHECKPOINT_STATE_LIST(X)                               \
    X(PRESENT, 1, "present")   /* an attempt may start from it */ \
    X(DELETING, 2, "deleting") /* a node is told to delete it */  \
    X(DELETED, 3, "deleted")

#define X(name, number, text) HD_JOB_STATE_##name = number,
enum hd_job_state { HD_JOB_STATE_LIST(X) };
#undef X
#define X(name, number, text) HD_ATTEMPT_STATE_##name = number,
enum hd_attempt_state { HD_ATTEMPT_STATE_LIST(X) };
#undef X
#define X(name, number, text) HD_END_CAUSE_##name = number,
enum hd_end_cause { HD_END_CAUSE_LIST(X) };
#undef X
#define X(name, number, text) HD_NODE_STATE_##name = number,
enum hd_node_state { HD_NODE_STATE_LIST(X) };
#undef X
#define X(name, number, text) HD_DEVICE_KIND_##name = number,
enum hd_device_kind { HD_DEVICE_KIND_LIST(X) HD_DEVICE_KIND_COUNT };
#undef X
#define X(name, number, text) HD_CHECKPOINT_STATE_##name = number,
enum hd_checkpoint_state { HD_CHECKPOINT_STATE_LIST(X) };
#undef X

/* Returns the stable string of an enum number; "unknown" for a number that is not in the list. */
const char *hd_job_state_name(int state);
const char *hd_attempt_state_name(int state);
const char *hd_end_cause_name(int cause);
const char *hd_node_state_name(int state);
const char *hd_device_kind_name(int kind);
enum hd_device_kind hd_device_kind_of(const char *word); /* returns HD_DEVICE_KIND_ANY for "auto"
                                                          * and for an unknown word */

/* Precisions as bits: bit n is the Precision with number n in job.proto. */
enum { HD_PRECISION_FP32 = 1, HD_PRECISION_BF16 = 2 };

/* Limits of the controller. */
enum {
    HD_CTL_JOBS_LIVE_MAX = 100000,      /* jobs that have not ended */
    HD_CTL_JOBS_WARN_PERCENT = 90,      /* percent of HD_CTL_JOBS_LIVE_MAX from which on users are
                                         * warned */
    HD_CTL_JOBS_CALM_PERCENT = 80,      /* percent of that limit below which the warning is armed
                                         * again */
    HD_CTL_NODES_MAX = 10000,           /* nodes in the node list */
    HD_CTL_QUEUES_MAX = 256,            /* queues, `default` included */
    HD_CTL_WEIGHT_MAX = 1000,           /* largest weight of a queue */
    HD_CTL_DEVICES_PER_NODE_MAX = 256,  /* devices of one node */
    HD_CTL_ATTEMPTS_MAX = 10000,        /* attempts of one job */
    HD_CTL_CHECKPOINTS_MAX = 4096,      /* checkpoints of one job that are held in memory; the
                                         * oldest are dropped */
    HD_CTL_WORLD_MAX = 65536,           /* ranks of one attempt */
    HD_CTL_SPEC_BYTES_MAX = 256 * 1024, /* bytes of one packed JobSpec */
    HD_CTL_NAME_BYTES_MAX = 128,        /* bytes of a name, an owner or an id */
    HD_CTL_PATH_BYTES_MAX = 4096,       /* bytes of a path */
    HD_CTL_MESSAGE_BYTES_MAX = 2048,    /* bytes of one message of a daemon or rank; longer ones are
                                         * cut */
};

/* Returns the number of bytes, at most bytes_max, to which a UTF-8 text can be cut without
 * splitting a character. (A protobuf message with half a character in it cannot be decoded.) */
size_t hd_record_fit(const char *text, size_t bytes_max);

/* How far the removal of a job by a user has come. */
enum hd_removal {
    HD_REMOVAL_NONE,
    HD_REMOVAL_BEGUN, /* nodes are deleting the job's folder; no list shows the job any more */
    HD_REMOVAL_DONE,  /* only the job's number and request id are left, so that neither is reused */
};

/* A job. In all records: a NULL string means "", times are wall-clock milliseconds, 0: not yet. The
 * creator of a record owns its strings and arrays. */
struct hd_job_record {
    uint64_t job;
    const char *request_id, *owner, *name;
    uint64_t request_hash; /* hash of the spec and its owner, as submitted; 0: unknown */
    enum hd_job_state state;
    const char *reason; /* why the job failed; "" in other states */
    bool cancel, cancel_now;
    int32_t attempt_count;
    int64_t steps;   /* steps of the whole run */
    int32_t devices; /* devices of the newest attempt; while queued: devices_max */
    int64_t submitted_ms, started_ms, ended_ms;
    const void *spec; /* the JobSpec, packed (protobuf) */
    size_t spec_bytes;
    bool spec_changed;       /* true: the spec was changed since it was stored, and with it name and
                              * steps */
    int32_t resumed_attempt; /* newest attempt at the time of the last resume; 0: never resumed */
    enum hd_removal removal;
    const char *queue; /* queue in which it waits and against whose limits its devices count */
    int32_t priority;
    bool held;                /* true: the job is not started until a user releases it */
    int64_t planned_start_ms; /* while queued: expected start, as shown to users; 0: unknown */
};

/* A queue. A limit of 0 means no limit. */
struct hd_queue_record {
    const char *name;
    int32_t devices_max;      /* devices held by all jobs of the queue together */
    int32_t user_devices_max; /* devices held by the jobs of one user in the queue */
    int32_t weight;           /* 1 to HD_CTL_WEIGHT_MAX: weight in fair share */
    bool closed;              /* true: no job of the queue starts */
    bool removed;             /* true: the store deletes the queue's row */
};

/* The node and device of one rank. */
struct hd_rank_location {
    const char *node_uuid, *node_name;
    int32_t device;
};

struct hd_plan_record {
    struct hd_layout_sizes layout;  /* the layout of the attempt, complete: no member is "auto" */
    struct hd_rank_location *ranks; /* array by rank */
    int32_t rank_count;
    double step_s;        /* predicted seconds per step; 0: unknown */
    int64_t memory_bytes; /* device memory in bytes of the rank that needs most; 0: unknown */
};

/* exit_code of ranks that completed before the last step, as validate.stop says (HD_LINK_EXIT_EARLY) */
enum { HD_END_EXIT_EARLY = 11 };
struct hd_end_record {
    enum hd_end_cause cause;
    int32_t rank; /* rank that failed first; -1: none, or unknown */
    const char *node, *message;
    int32_t exit_code, signal;
    bool bad_input; /* true: the job cannot succeed with its input: no retry */
    bool secondary; /* true: only a consequence of a failure on another node; not stored */
};

/* Value of run_as if the policy names no system user for the owner. */
#define HD_RUN_AS_NONE "-"

struct hd_attempt_record {
    uint64_t job;
    int32_t attempt;
    enum hd_attempt_state state;
    struct hd_plan_record plan;
    int32_t base_attempt; /* base: the checkpoint from which the attempt starts; base_attempt 0: it
                           * starts from scratch */
    int64_t base_step;
    const char *base_path, *base_hash;
    struct hd_end_record end;
    int64_t created_ms, running_ms, ended_ms;
    enum hd_end_cause stop_cause; /* why the controller stops the attempt at a checkpoint; NONE: it
                                   * does not, or the job is cancelled */
    uint64_t stop_job;            /* with PREEMPTED: number of the job that gets the devices; 0: the
                                   * node is drained */
    bool borrows; /* true: the attempt holds devices that are reserved for older jobs, which may
                   * preempt it */
    const char *run_as; /* system user of the attempt's ranks, from the policy at its start; NULL,
                         * "": the user of each node's daemon; HD_RUN_AS_NONE: the policy names
                         * none */
};

struct hd_device_record {
    int32_t index;
    enum hd_device_kind kind;
    const char *name, *uuid;
    int64_t memory_bytes;
    int32_t threads;
    uint32_t precisions; /* precisions (HD_PRECISION_*) that the device computes natively */
    const char *problem; /* why no job may start on the device; "": none. Not stored: reported by
                          * the daemon */
};

struct hd_node_record {
    const char *uuid, *name, *boot_id, *build;
    enum hd_node_state state;
    bool drain;
    const char *drain_reason;
    int64_t drain_deadline_ms; /* wall-clock time by which jobs must have left; 0: they run to their
                                * end */
    bool retired; /* true: the node was lost and another uuid has taken its name, or it was
                   * removed */
    bool removed; /* true: the store deletes the node's row, unless jobs that ran there refer to it;
                   * not stored */
    int64_t seen_ms;
    bool saw_jobs_dir; /* true: the node has seen the jobs directory at least once; another folder
                        * in its place then means a lost mount */
    struct hd_device_record *devices;
    int32_t device_count;
};

/* Measured rates of one device per second, while the other devices of its node were busy too; 0:
 * unknown. */
struct hd_device_figures {
    double single_flops, half_flops, memory_bytes_per_s;
};

/* Returns the kind of device that a node's probe measures: its GPUs, or its CPU devices if it has
 * none. */
enum hd_device_kind hd_probed_kind(const struct hd_node_record *node);

/* The newest probe of a node. */
struct hd_probe_record {
    const char *node_uuid;
    int64_t ended_ms;        /* time at which the probe ended, by the node's clock; 0: never probed,
                              * nothing is stored */
    const char *problem;     /* why nothing was measured; "": the probe succeeded */
    const char *measured_on; /* conditions under which the figures hold */
    int64_t measured_ms;     /* time at which the calibration was measured; 0: there is none */
    const void *calibration; /* measured speeds as text in the format of plan/calibration.h */
    size_t calibration_bytes;
    struct hd_device_figures
        *devices; /* one entry per device of hd_probed_kind, in order; not stored: part of
                   * `calibration` */
    int32_t device_count;
};

struct hd_checkpoint_record {
    uint64_t job;
    int32_t attempt;
    int64_t step;
    const char *path, *hash, *node_uuid; /* hash: of the checkpoint's manifest; node_uuid: node that
                                          * reported the checkpoint */
    bool shared;                         /* true: readable from every node that sees the jobs
                                          * directory */
    int64_t time_ms, size_bytes;
    enum hd_checkpoint_state state;
    bool missing; /* with PRESENT: the checkpoint was not on the disk at the last search; no attempt
                   * starts from it */
    bool proven;  /* true: a step after the checkpoint had a finite loss and gradient, or the job
                   * succeeded with it */
    double val_loss; /* validation loss, for jobs with checkpoint.best; NaN: not validated */
    uint64_t sequence;
};

/* Returns whether the checkpoint has a known validation loss that is lower than that of `than`
 * (NULL: none), or equal at an earlier step. */
bool hd_record_is_better(const struct hd_checkpoint_record *checkpoint,
                         const struct hd_checkpoint_record *than);

struct hd_event_record {
    uint64_t job; /* number of the job that the event is about; 0: the cluster */
    uint64_t sequence;
    int64_t time_ms;
    int32_t attempt, rank; /* attempt 0: about no attempt; rank -1: about no rank */
    const char *kind;      /* word of event_kinds.h; other builds may have stored other words */
    const char *node, *message;
};

struct hd_step_record {
    uint64_t job;
    uint64_t sequence;
    int32_t attempt;
    int64_t step, time_ms;
    struct hd_step_metrics metrics;
    const int64_t *expert_load; /* [expert_count], number of choices of each expert */
    size_t expert_count;        /* 0: the model has no experts */
};

struct hd_validation_record {
    uint64_t job;
    uint64_t sequence;
    int32_t attempt;
    int64_t step, tokens, time_ms;
    double loss;
    /* name of the validation set, "": data.val is one list; or of a score, NAME/acc, whose value
     * is in `loss` and number of questions in `tokens` */
    char set[HD_JOB_VAL_REPORT_MAX];
};

/* The report position of a rank: all its reports up to seq are accepted. */
struct hd_position_record {
    uint64_t job;
    int32_t attempt, rank;
    uint64_t seq;
};

/* ---- batches ----------------------------------------------------------------------------------*/

enum hd_batch_op_kind {
    HD_OP_JOB_NEW, /* inserts the row of a new job */
    HD_OP_JOB,     /* updates a job's row, except its identity, spec and submission; with `removal`,
                    * deletes its history (BEGUN) and its attempts (DONE) */
    HD_OP_ATTEMPT, /* inserts or updates an attempt; plan and base are written only on insert */
    HD_OP_NODE,    /* inserts or updates a node, with all its devices */
    HD_OP_QUEUE,   /* inserts, updates or deletes a queue */
    HD_OP_CHECKPOINT,
    HD_OP_EVENT,
    HD_OP_STEP,
    HD_OP_VALIDATION,
    HD_OP_POSITION,
    HD_OP_PROBE,      /* inserts, updates, or (ended_ms 0) deletes a node's probe */
    HD_OP_CREDENTIAL, /* inserts a credential, or marks it as ended */
    HD_OP_AUDIT,
    HD_OP_PRUNE, /* deletes a bounded part of the history that the retention limits give up */
    HD_OP_META,  /* inserts or updates a value of the cluster itself (key and value of meta) */
};

struct hd_batch_op {
    enum hd_batch_op_kind kind;
    struct hd_batch_op *next;
    union {
        struct hd_job_record job;
        struct hd_attempt_record attempt;
        struct hd_node_record node;
        struct hd_queue_record queue;
        struct hd_checkpoint_record checkpoint;
        struct hd_event_record event;
        struct hd_step_record step;
        struct hd_validation_record validation;
        struct hd_position_record position;
        struct hd_probe_record probe;
        struct hd_credential_record credential;
        struct hd_audit_record audit;
        struct hd_prune_record prune;
        struct {
            const char *key, *value;
        } meta;
    };
};

struct hd_batch {
    struct hd_batch_op *first, **end;
    size_t count;
    struct hd_arena arena;
};

struct hd_batch *hd_batch_new(void); /* NULL: out of memory */
void hd_batch_free(struct hd_batch *batch);
bool hd_batch_failed(const struct hd_batch *batch); /* true: out of memory, the batch is
                                                     * incomplete */

/* Append a deep copy of the record, which the caller may free afterwards. */
void hd_batch_add_job(struct hd_batch *batch, bool is_new, const struct hd_job_record *job);
void hd_batch_add_attempt(struct hd_batch *batch, const struct hd_attempt_record *attempt);
void hd_batch_add_node(struct hd_batch *batch, const struct hd_node_record *node);
void hd_batch_add_queue(struct hd_batch *batch, const struct hd_queue_record *queue);
void hd_batch_add_checkpoint(struct hd_batch *batch, const struct hd_checkpoint_record *checkpoint);
void hd_batch_add_event(struct hd_batch *batch, const struct hd_event_record *event);
void hd_batch_add_step(struct hd_batch *batch, const struct hd_step_record *step);
void hd_batch_add_validation(struct hd_batch *batch, const struct hd_validation_record *validation);
void hd_batch_add_position(struct hd_batch *batch, const struct hd_position_record *position);
void hd_batch_add_probe(struct hd_batch *batch, const struct hd_probe_record *probe);
void hd_batch_add_credential(struct hd_batch *batch, const struct hd_credential_record *credential);
void hd_batch_add_audit(struct hd_batch *batch, const struct hd_audit_record *audit);
void hd_batch_add_prune(struct hd_batch *batch, const struct hd_prune_record *prune);
void hd_batch_add_meta(struct hd_batch *batch, const char *key, const char *value);
/* Stores the id of the cluster's jobs directory (services/jobs_dir.c), replacing the old one. */
enum { HD_JOBS_SHARE_MAX = 40 };
void hd_batch_add_jobs_share(struct hd_batch *batch, const char *share);

/* Copy a record; strings and arrays are allocated in `arena`; NULL strings become "". */
struct hd_job_record hd_record_copy_job(struct hd_arena *arena, const struct hd_job_record *job);
struct hd_attempt_record hd_record_copy_attempt(struct hd_arena *arena,
                                                const struct hd_attempt_record *attempt);
struct hd_node_record hd_record_copy_node(struct hd_arena *arena,
                                          const struct hd_node_record *node);
const int64_t *hd_record_copy_loads(struct hd_arena *arena, const struct hd_step_record *step);
struct hd_checkpoint_record
hd_record_copy_checkpoint(struct hd_arena *arena, const struct hd_checkpoint_record *checkpoint);

#endif

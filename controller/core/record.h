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
#include "controller/core/records.def"
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
const char *hd_end_cause_name(int cause);
const char *hd_node_state_name(int state);
const char *hd_device_kind_name(int kind);
enum hd_device_kind hd_device_kind_of(enum hd_job_device device);

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

/* Types of a field: type, and the declaration of a member m of it. */
#define HD_FIELD_TYPES(X)                     \
    X(TEXT)                                   \
    X(INT)                                    \
    X(LONG)                                   \
    X(NUMBER)                                 \
    X(BOOL)                                   \
    X(REAL)                                   \
    X(BITS)                                   \
    X(REMOVAL)                                \
    X(INT_OR_NULL)  /* 0 is stored as NULL */ \
    X(LONG_OR_NULL) /* 0 is stored as NULL */ \
    X(BYTES)                                  \
    X(LOADS)                                  \
    X(LAYOUT)                                 \
    X(METRICS)                                \
    X(SET)                                    \
    X(HASH)                                   \
    HD_FIELD_WORD_TYPES(X)
/* Types that are an enum here and its word in the database. */
#define HD_FIELD_WORD_TYPES(X) \
    X(JOB_STATE)               \
    X(ATTEMPT_STATE)           \
    X(END_CAUSE)               \
    X(NODE_STATE)              \
    X(DEVICE_KIND)             \
    X(CHECKPOINT_STATE)        \
    X(CREDENTIAL_KIND)

#define HD_MEMBER_TEXT(m)         const char *m;
#define HD_MEMBER_INT(m)          int32_t m;
#define HD_MEMBER_LONG(m)         int64_t m;
#define HD_MEMBER_NUMBER(m)       uint64_t m;
#define HD_MEMBER_BOOL(m)         bool m;
#define HD_MEMBER_REAL(m)         double m;
#define HD_MEMBER_BITS(m)         uint32_t m;
#define HD_MEMBER_REMOVAL(m)      enum hd_removal m;
#define HD_MEMBER_INT_OR_NULL(m)  int32_t m;
#define HD_MEMBER_LONG_OR_NULL(m) int64_t m;
#define HD_MEMBER_BYTES(m) \
    const void *m;         \
    size_t m##_bytes;
#define HD_MEMBER_LOADS(m) \
    const int64_t *m;      \
    size_t expert_count;
#define HD_MEMBER_LAYOUT(m)                 struct hd_layout_sizes m;
#define HD_MEMBER_METRICS(m)                struct hd_step_metrics m;
#define HD_MEMBER_SET(m)                    char m[HD_JOB_VAL_REPORT_MAX];
#define HD_MEMBER_HASH(m)                   unsigned char m[HD_CREDENTIAL_HASH_BYTES];
#define HD_MEMBER_JOB_STATE(m)              enum hd_job_state m;
#define HD_MEMBER_ATTEMPT_STATE(m)          enum hd_attempt_state m;
#define HD_MEMBER_END_CAUSE(m)              enum hd_end_cause m;
#define HD_MEMBER_NODE_STATE(m)             enum hd_node_state m;
#define HD_MEMBER_DEVICE_KIND(m)            enum hd_device_kind m;
#define HD_MEMBER_CHECKPOINT_STATE(m)       enum hd_checkpoint_state m;
#define HD_MEMBER_CREDENTIAL_KIND(m)        enum hd_credential_kind m;
#define HD_MEMBER(R, P, when, type, m, ...) HD_MEMBER_##type(m)

/* The records; records.def says what each member means. In all of them a NULL string means "",
 * times are wall-clock milliseconds, 0: not yet. The creator of a record owns its strings and
 * arrays. */
struct hd_job_record {
    HD_JOB_FIELDS(HD_MEMBER, , )
};

struct hd_queue_record {
    HD_QUEUE_FIELDS(HD_MEMBER, , )
};

/* A bit for each member of a queue. */
#define HD_BIT(R, P, when, type, member, ...) HD_QUEUE_##member,
enum hd_queue_member { HD_QUEUE_FIELDS(HD_BIT, , ) };
#undef HD_BIT

/* The node and device of one rank. */
struct hd_rank_location {
    const char *node_uuid, *node_name;
    int32_t device;
};

struct hd_plan_record {
    HD_PLAN_FIELDS(HD_MEMBER, , )
    struct hd_rank_location *ranks; /* array by rank */
    int32_t rank_count;
};

/* exit_code of ranks that completed before the last step, as validate.stop says (HD_LINK_EXIT_EARLY) */
enum { HD_END_EXIT_EARLY = 11 };
struct hd_end_record {
    HD_END_FIELDS(HD_MEMBER, , )
};

/* Value of run_as if the policy names no system user for the owner. */
#define HD_RUN_AS_NONE "-"

struct hd_attempt_record {
    HD_ATTEMPT_FIELDS(HD_MEMBER, , )
    struct hd_plan_record plan;
    struct hd_end_record end;
};

struct hd_device_record {
    HD_DEVICE_FIELDS(HD_MEMBER, , )
};

struct hd_node_record {
    HD_NODE_FIELDS(HD_MEMBER, , )
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
    HD_PROBE_FIELDS(HD_MEMBER, , )
    struct hd_device_figures
        *devices; /* one entry per device of hd_probed_kind, in order; not stored: part of
                   * `calibration` */
    int32_t device_count;
};

struct hd_checkpoint_record {
    HD_CHECKPOINT_FIELDS(HD_MEMBER, , )
};

/* Returns whether the checkpoint has a known validation loss that is lower than that of `than`
 * (NULL: none), or equal at an earlier step. */
bool hd_record_is_better(const struct hd_checkpoint_record *checkpoint,
                         const struct hd_checkpoint_record *than);

struct hd_event_record {
    HD_EVENT_FIELDS(HD_MEMBER, , )
};

struct hd_step_record {
    HD_STEP_FIELDS(HD_MEMBER, , )
};

struct hd_validation_record {
    HD_VALIDATION_FIELDS(HD_MEMBER, , )
};

struct hd_position_record {
    HD_POSITION_FIELDS(HD_MEMBER, , )
};

/* A credential of a person or node. Its life ends once: it is revoked, or used up (an
 * invitation). */
struct hd_credential_record {
    HD_CREDENTIAL_FIELDS(HD_MEMBER, , )
};

/* ---- tables -----------------------------------------------------------------------------------*/

/* Tables of the database that hold a record a row: name of the table and of the record's struct. */
#define HD_TABLE_LIST(X)          \
    X(jobs, job)                  \
    X(queues, queue)              \
    X(attempts, attempt)          \
    X(nodes, node)                \
    X(devices, device)            \
    X(probes, probe)              \
    X(checkpoints, checkpoint)    \
    X(events, event)              \
    X(step_metrics, step)         \
    X(validations, validation)    \
    X(report_positions, position) \
    X(credentials, credential)

enum hd_field_when { HD_FIELD_KEY, HD_FIELD_NEW, HD_FIELD_PUT, HD_FIELD_SPEC };
#define X(type) HD_FIELD_##type,
enum hd_field_type { HD_FIELD_TYPES(X) };
#undef X

struct hd_field {
    const char *column;
    enum hd_field_when when;
    enum hd_field_type type;
    size_t offset; /* of the member in the record */
};

/* Returns the count that stands directly behind a member of type BYTES (of bytes) or LOADS (of
 * items). */
static inline size_t *hd_field_count(void *member)
{
    return (size_t *)((void **)member + 1);
}

struct hd_table {
    const char *name;
    const struct hd_field *fields;
    size_t count;
};
#define X(table, record) extern const struct hd_table hd_table_##table;
HD_TABLE_LIST(X)
#undef X

/* Returns the word of an enum number, and the number of a word, of a type that is one of
 * HD_FIELD_WORD_TYPES; "unknown" and 0: the type has no such number or word. */
const char *hd_field_word(enum hd_field_type type, int number);
int hd_field_number(enum hd_field_type type, const char *word);

/* ---- batches ----------------------------------------------------------------------------------*/

/* Records of a batch whose copies are made by their fields alone: name of the record, its operation and
 * table. */
#define HD_BATCH_LIST(X)                    \
    X(queue, QUEUE, queues)                 \
    X(checkpoint, CHECKPOINT, checkpoints)  \
    X(event, EVENT, events)                 \
    X(step, STEP, step_metrics)             \
    X(validation, VALIDATION, validations)  \
    X(position, POSITION, report_positions) \
    X(credential, CREDENTIAL, credentials)

/* A record is inserted, or updated if its key is there. A removed queue is deleted, and a probe whose
 * ended_ms is 0. */
enum hd_batch_op_kind {
    HD_OP_JOB_NEW, /* inserts the row of a new job */
    HD_OP_JOB,     /* updates a job's row, except its identity, spec and submission; with `removal`,
                    * deletes its history (BEGUN) and its attempts (DONE) */
    HD_OP_ATTEMPT, /* plan and base are written only on insert */
    HD_OP_NODE,    /* with all its devices */
    HD_OP_PROBE,
    HD_OP_AUDIT,
    HD_OP_PRUNE, /* deletes a bounded part of the history that the retention limits give up */
    HD_OP_META,  /* a value of the cluster itself (key and value of meta) */
#define X(record, operation, table) HD_OP_##operation,
    HD_BATCH_LIST(X)
#undef X
};

struct hd_batch_op {
    enum hd_batch_op_kind kind;
    struct hd_batch_op *next;
    union {
        struct hd_job_record job;
        struct hd_attempt_record attempt;
        struct hd_node_record node;
        struct hd_probe_record probe;
        struct hd_audit_record audit;
        struct hd_prune_record prune;
        struct {
            const char *key, *value;
        } meta;
#define X(record, operation, table) struct hd_##record##_record record;
        HD_BATCH_LIST(X)
#undef X
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
#define X(record, operation, table) \
    void hd_batch_add_##record(struct hd_batch *batch, const struct hd_##record##_record *added);
HD_BATCH_LIST(X)
#undef X
void hd_batch_add_job(struct hd_batch *batch, bool is_new, const struct hd_job_record *job);
void hd_batch_add_attempt(struct hd_batch *batch, const struct hd_attempt_record *attempt);
void hd_batch_add_node(struct hd_batch *batch, const struct hd_node_record *node);
void hd_batch_add_probe(struct hd_batch *batch, const struct hd_probe_record *probe);
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

#endif

/* core: decides what becomes of jobs, attempts and nodes.
 *
 * One pure state machine: hd_core_step takes an event and the time, changes the core's memory, and
 * says what must be written (a batch), which nodes must be told their desired set, and which jobs
 * changed. It does no I/O, reads no clock and starts no thread, so a whole cluster can be simulated
 * in one process. What the shell around it (services) must keep:
 *
 *   - Everything of a step becomes visible outside (replies, desired sets, announcements) only
 *     after the step's batch is durable. Desired sets are built right after the step, sent later.
 *   - Steps and batches keep their order.
 *   - HD_NO_MEMORY from hd_core_step means that memory and batch may have parted: drop both and
 *     build a new core from the store. Any other failure left everything as it was.
 *
 * The core holds jobs that have not ended (and ended ones that still have checkpoints to delete);
 * the store holds all.
 *
 * Used by: services, tests.   Uses: record, base.   Threads: one owner.
 */
#ifndef HD_CONTROLLER_CORE_H
#define HD_CONTROLLER_CORE_H

#include "base/text.h"
#include "controller/core/record.h"
#include "plan/choose.h"

struct hd_core;

/* Durations in milliseconds, and a limit. */
struct hd_core_config {
    int64_t unreachable_ms;     /* silence of a node until it is shown as unreachable */
    int64_t lost_ms;            /* until it is lost */
    int64_t lost_confirmed_ms;  /* the same when a peer has reported it dead as well */
    int64_t restart_grace_ms;   /* after a start of the controller, silence until lost */
    int64_t start_timeout_ms;   /* an attempt whose ranks have not met by then has failed */
    int64_t stop_grace_ms;      /* a cancelled attempt that still runs then is killed */
    int64_t retry_delay_ms;     /* before the third attempt without progress; doubles, */
    int64_t retry_delay_max_ms; /* up to this */
    size_t jobs_live_max;       /* jobs that have not ended; more are refused */
};
extern const struct hd_core_config hd_core_config_default;

/* Two clocks: mono_ms never jumps and drives all timers; wall_ms is what people read. */
struct hd_now {
    int64_t mono_ms, wall_ms;
};

/* What the core must know of a JobSpec. */
struct hd_job_needs {
    const char *name;
    enum hd_device_kind device; /* ANY: auto */
    int32_t devices_min, devices_max;
    int64_t steps;
    struct hd_plan_wish wish; /* about the layout */
    int32_t keep;             /* newest checkpoints kept; 0: all */
    int32_t restart_max;
};

/* ---- events -----------------------------------------------------------------------------------*/

enum hd_core_event_kind {
    HD_CORE_TICK, /* time has passed; at least every second */
    HD_CORE_SUBMIT,
    HD_CORE_CANCEL,
    HD_CORE_DRAIN,
    HD_CORE_UNDRAIN,
    HD_CORE_HELLO,        /* a node opened its stream */
    HD_CORE_ALIVE,        /* a node said anything */
    HD_CORE_DISCONNECTED, /* a node's stream broke; by itself this means nothing but that */
    HD_CORE_OBSERVED,     /* a node's complete observed set */
    HD_CORE_REPORT,       /* a rank's report */
};

/* One attempt as a node sees its share of it. */
struct hd_observed {
    uint64_t job;
    int32_t attempt;
    enum hd_attempt_state state;
    struct hd_end_record end;                 /* ENDED */
    struct hd_checkpoint_record *checkpoints; /* attempt, step, path, hash, time_ms, size_bytes */
    size_t checkpoint_count;
};

struct hd_deletion {
    uint64_t job;
    int32_t attempt;
    int64_t step;
    const char *path, *hash;
};

enum hd_report_kind {
    HD_REPORT_STEP,
    HD_REPORT_VALIDATION,
    HD_REPORT_CHECKPOINT,
    HD_REPORT_EVENT,
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
        struct {
            const char *node, *reason; /* name */
        } drain;                       /* and undrain */
        struct {
            const char *uuid, *name, *boot_id, *build;
            const char *data_address; /* where other nodes reach its ranks; "": nowhere */
            const char *compute;      /* equal words: equal bits from equal work */
            uint64_t stream;          /* the shell's number of this stream, never used twice */
            const struct hd_device_record *devices;
            int32_t device_count;
        } hello;
        struct {
            const char *uuid;
            uint64_t stream;
        } node; /* alive, gone */
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
        } observed;
        struct {
            const char *uuid; /* of the node that delivers it */
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
    };
};

/* ---- steps ------------------------------------------------------------------------------------*/

/* What a step wants done. Start with {0}; may be reused after hd_core_out_clear. */
struct hd_core_out {
    struct hd_batch *batch; /* given by the caller; several steps may add to one */
    char (*nodes)[HD_CTL_NAME_BYTES_MAX + 1]; /* uuids of nodes whose desired set changed */
    size_t node_count, node_size;
    uint64_t *jobs; /* jobs whose status or history changed */
    size_t job_count, job_size;
    uint64_t job;  /* submit: the job, cancel: the job */
    bool repeated; /* submit: the request id was known */
    size_t looked; /* jobs that the step looked at: for tests of what a step costs */
};

void hd_core_out_clear(struct hd_core_out *out); /* keeps memory and batch */
void hd_core_out_done(struct hd_core_out *out);  /* frees memory, not the batch */

struct hd_core *hd_core_new(const struct hd_core_config *config); /* NULL: out of memory */
void hd_core_free(struct hd_core *core);

/* HD_INVALID, HD_NOT_FOUND, HD_EXISTS, HD_CONFLICT, HD_LIMIT, HD_UNSUPPORTED: the event was refused
 * with a story. HD_CONFLICT on an event of a node's stream: another stream has taken its place, or
 * the node was lost meanwhile; close it. A report that is old news (its seq was seen) is HD_OK and
 * adds nothing; acknowledge it like a new one, when all steps so far are durable. */
enum hd_status hd_core_step(struct hd_core *core, const struct hd_core_event *event,
                            struct hd_now now, struct hd_core_out *out);

/* ---- rebuilding from the store ----------------------------------------------------------------*/

/* In this order: nodes, all request ids, then for each job that has not ended or has a checkpoint
 * being deleted: the job, its attempts from 1 on, its checkpoints that are not deleted, its
 * positions; then hd_core_restored once. */
enum hd_status hd_core_restore_node(struct hd_core *core, const struct hd_node_record *node);
enum hd_status hd_core_restore_request(struct hd_core *core, const char *request_id, uint64_t job);
enum hd_status hd_core_restore_job(struct hd_core *core, const struct hd_job_record *job,
                                   const struct hd_job_needs *needs, uint64_t sequence);
enum hd_status hd_core_restore_attempt(struct hd_core *core,
                                       const struct hd_attempt_record *attempt);
enum hd_status hd_core_restore_checkpoint(struct hd_core *core,
                                          const struct hd_checkpoint_record *checkpoint);
enum hd_status hd_core_restore_position(struct hd_core *core,
                                        const struct hd_position_record *position);
enum hd_status hd_core_restored(struct hd_core *core, uint64_t last_job, uint64_t cluster_sequence,
                                struct hd_now now);

/* ---- questions --------------------------------------------------------------------------------*/

enum hd_wanted { HD_WANTED_RUNNING = 1, HD_WANTED_STOPPING = 2, HD_WANTED_STOPPED = 3 };

struct hd_desired_attempt {
    const struct hd_job_record *job; /* with spec; valid until the next step */
    const struct hd_attempt_record *attempt;
    enum hd_wanted wanted;
};

/* The complete desired set of a node; arrays live in `arena`. HD_CONFLICT: the node is not
 * connected or has not sent its observed set yet, so nothing may be sent. */
struct hd_desired {
    uint64_t generation;
    struct hd_desired_attempt *attempts;
    size_t attempt_count;
    struct hd_deletion *deletions;
    size_t deletion_count;
};
enum hd_status hd_core_desired(const struct hd_core *core, const char *uuid, struct hd_arena *arena,
                               struct hd_desired *ret_desired);

/* A live job's records, NULL when the core does not hold it. Valid until the next step. */
const struct hd_job_record *hd_core_job(const struct hd_core *core, uint64_t job);
const struct hd_attempt_record *hd_core_attempt(const struct hd_core *core, uint64_t job,
                                                int32_t attempt); /* 0: the newest */
size_t hd_core_live_jobs(const struct hd_core *core);
/* Of the newest entry in a live job's history; 0: the core does not hold the job. */
uint64_t hd_core_job_sequence(const struct hd_core *core, uint64_t job);
/* Appends a sentence while so many jobs live that new ones may soon be refused
 * (HD_CTL_JOBS_WARN_PERCENT of config.jobs_live_max), else nothing. */
void hd_core_warn(const struct hd_core *core, struct hd_text *ret_warning);

/* Exactly what a queued job waits for, appended to ret_reason; nothing for other jobs. */
void hd_core_explain(const struct hd_core *core, uint64_t job, struct hd_now now,
                     struct hd_text *ret_reason);

/* The same for a job that might be submitted; *ret_fits_now: it would start at once. HD_UNSUPPORTED
 * or HD_INVALID: it never could. */
enum hd_status hd_core_explain_needs(const struct hd_core *core, const struct hd_job_needs *needs,
                                     struct hd_now now, bool *ret_fits_now,
                                     struct hd_text *ret_reason);

/* Who holds a device; job 0: nobody. */
struct hd_device_hold {
    uint64_t job;
    int32_t attempt;
};

/* Nodes by index, in the order of their names; retired ones are left out. */
struct hd_node_view {
    const struct hd_node_record *record;
    bool jobs_dir_visible;
    const char *jobs_dir_problem;
    const char *data_address;           /* where other nodes reach its ranks; "": nowhere */
    const struct hd_device_hold *holds; /* per device, in the order of record->devices */
};
size_t hd_core_node_count(const struct hd_core *core);
void hd_core_node_at(const struct hd_core *core, size_t index, struct hd_node_view *ret_view);
/* Why a node takes no new job, appended to ret_reason; nothing for a node that does. */
void hd_core_node_reason(const struct hd_core *core, size_t index, struct hd_now now,
                         struct hd_text *ret_reason);
bool hd_core_node_find(const struct hd_core *core, const char *name, size_t *ret_index);

/* Checks every invariant that core.c numbers; HD_INTERNAL names the first that does not hold. For
 * tests; costs time in proportion to everything. */
enum hd_status hd_core_check(const struct hd_core *core);

/* ---- planning (core_plan.c) -------------------------------------------------------------------*/

/* The layout of `needs` on `count` devices of one kind, without placement: fills all of ret_plan
 * but ranks. HD_INVALID: these devices cannot share the work, HD_UNSUPPORTED: no engine of this
 * build can; the story says why and what would. Strings are static. */
enum hd_status hd_core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind,
                            int32_t count, struct hd_plan_record *ret_plan);

#endif

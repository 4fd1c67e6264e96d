/* core_internal: the core's memory, shared by its own files and nobody else.
 *
 *   core.c             step, timers, flush, questions, invariants
 *   core_map.c         strings to numbers
 *   core_node.c        nodes: streams, leases, observed sets
 *   core_job.c         jobs and attempts: submit, cancel, start, end, what comes next
 *   core_schedule.c    who waits, who starts, and why
 *   core_gang.c        one job on several nodes
 *   core_resume.c      jobs that go on, are queued again, or save now
 *   core_checkpoint.c  reports, checkpoints, what is kept
 *   core_restore.c     from records back to memory
 *   core_plan.c        layouts
 */
#ifndef HD_CONTROLLER_CORE_INTERNAL_H
#define HD_CONTROLLER_CORE_INTERNAL_H

#include "controller/core/core.h"

/* ---- maps -------------------------------------------------------------------------------------*/

/* A hash map from strings to numbers that only grows. */
struct core_map {
    struct core_map_slot {
        char *key;
        uint64_t value;
    } * slots;
    size_t count, size; /* size is a power of two, or 0 */
};

void core_map_done(struct core_map *map);
bool core_map_get(const struct core_map *map, const char *key, uint64_t *ret_value);
bool core_map_put(struct core_map *map, const char *key, uint64_t value); /* false: no memory */

/* ---- memory -----------------------------------------------------------------------------------*/

struct core_node {
    struct hd_node_record rec; /* strings are the core's own (core_set) */
    uint64_t stream;
    bool connected;        /* has a stream, the one numbered so */
    bool synced;           /* and has sent its observed set on it */
    bool jobs_dir_visible; /* as last told */
    const char *jobs_dir_problem;
    const char *data_address; /* where other nodes reach its ranks; "": nowhere */
    const char *compute;      /* equal words: equal bits from equal work */
    bool suspect;             /* a peer reported it dead */
    int64_t seen_mono_ms;     /* last sign of life */
    int64_t lost_after_ms;    /* silence until lost: longer after a start of the controller */
    size_t stale_count;       /* attempts that still run there and should not */
    uint64_t stale_job;       /* one of them */
    int32_t stale_attempt;
    uint64_t generation;          /* of its desired set */
    struct hd_device_hold *holds; /* per device, in the order of rec.devices */
    uint64_t reserved_by;         /* kept free for this waiting job; 0: none (schedule only) */
    bool dirty, desired_dirty;
    struct core_node *next_dirty;
};

/* A node's part of an attempt. */
struct core_share {
    struct core_node *node;
    bool seen;    /* the node has listed it: it exists there, or has */
    bool running; /* its ranks have met */
    bool ended;
    uint64_t stop_generation; /* first desired set that asked to stop it; 0: none did */
    const char *problem;      /* what its node says is wrong with it; "" or NULL: nothing */
};

struct core_attempt {
    struct hd_attempt_record rec; /* strings and ranks are the core's own */
    struct core_share *shares;
    size_t share_count;
    uint64_t *seq;               /* per rank: reports taken in up to here */
    int64_t state_since_mono_ms; /* start, or begin of stopping */
    bool kill;                   /* wanted stopped, whatever the job wants */
    bool failed;                 /* rec.end holds the first failure */
    bool requeue;                /* it is to stop, and the job to wait for a place again */
    int32_t saves_asked;         /* checkpoints, beside those that are due */
    bool dirty;
};

enum core_wait {
    CORE_WAIT_NONE,
    CORE_WAIT_DELAY,    /* retries are spaced out */
    CORE_WAIT_SEARCH,   /* for the list of the checkpoints that a lost node has written */
    CORE_WAIT_BUSY,     /* would fit, but devices are held or a node is away; nodes are kept free */
    CORE_WAIT_RESERVED, /* would fit on nodes that are kept for wait_job */
    CORE_WAIT_NEVER,    /* does not fit on the nodes as they are now */
};

struct core_job {
    struct hd_job_record rec;
    struct hd_job_needs needs;
    struct core_attempt **attempts; /* by number - 1 */
    size_t attempt_size;
    struct hd_checkpoint_record *checkpoints; /* not deleted, in order of acceptance */
    size_t checkpoint_count, checkpoint_size;
    uint64_t sequence;          /* of the newest entry of its history */
    int64_t not_before_mono_ms; /* no attempt before this */
    enum core_search { CORE_SEARCH_NONE, CORE_SEARCH_DUE, CORE_SEARCH_OUT } search;
    int64_t search_since_mono; /* OUT */
    enum core_wait wait;
    uint64_t wait_job;
    bool dirty, is_new, ended; /* over: ended; stays while checkpoints wait for deletion */
    struct core_job *next_dirty;
};

struct hd_core {
    struct hd_core_config config;
    struct core_job **jobs; /* by number */
    size_t job_count, job_size, live_count;
    struct core_node **nodes; /* by name, retired ones last */
    size_t node_count, node_size;
    struct core_map node_by_uuid, job_by_request;
    uint64_t last_job, cluster_sequence;
    bool schedule_due; /* something changed that may let a job start */
    bool no_memory;    /* sticky */
    struct core_job *dirty_jobs, **dirty_jobs_end;
    struct core_node *dirty_nodes, **dirty_nodes_end;
    /* of the step in progress */
    struct hd_core_out *out;
    struct hd_now now;
};

/* Where an attempt might run. */
struct core_member {
    struct core_node *node;
    size_t index;  /* in the order of nodes */
    bool ready;    /* usable now */
    int32_t count; /* of its devices */
};
struct core_placement {
    struct core_member *members; /* on the heap */
    size_t member_count;
    int32_t device_count; /* of all members; 0: there is no placement */
    int32_t unused_count; /* free devices of the members that it does not take */
    struct hd_plan_record plan;
};

/* ---- core.c -----------------------------------------------------------------------------------*/

/* *slot = a copy of text, cut at HD_CTL_MESSAGE_BYTES_MAX or HD_CTL_PATH_BYTES_MAX, whichever is
 * larger; the old text is freed. Without memory the slot becomes "" for readers: NULL. */
void core_set(struct hd_core *core, const char **slot, const char *text);
void core_unset(const char **slot);
bool core_same(const char *a, const char *b); /* equal strings; NULL is "" */

void core_dirty_job(struct hd_core *core, struct core_job *job);
void core_dirty_attempt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
void core_dirty_node(struct hd_core *core, struct core_node *node);
/* The node's desired set changed: a new generation, to be sent after this step. */
void core_dirty_desired(struct hd_core *core, struct core_node *node);
/* Something that watchers of the job should see. */
void core_announce(struct hd_core *core, const struct core_job *job);

/* Adds to the history of a job, or of the cluster (job NULL). */
void core_event(struct hd_core *core, struct core_job *job, const char *kind, int32_t attempt,
                int32_t rank, const char *node, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

struct core_job *core_find_job(const struct hd_core *core, uint64_t number);
struct core_attempt *core_find_attempt(const struct core_job *job, int32_t number);
struct core_attempt *core_newest(const struct core_job *job); /* NULL: none yet */
struct core_attempt *core_active(const struct core_job *job); /* the one that has not ended */
/* Grows *array so that one more item fits behind `count`; false: no memory. */
bool core_reserve(struct hd_core *core, void *array, size_t count, size_t *size, size_t item_bytes);

/* ---- core_job.c -------------------------------------------------------------------------------*/

enum hd_status core_submit(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_cancel(struct hd_core *core, const struct hd_core_event *event);
struct core_job *core_job_new(struct hd_core *core, const struct hd_job_record *record,
                              const struct hd_job_needs *needs);
void core_job_free(struct core_job *job);
void core_job_forget(struct hd_core *core, struct core_job *job); /* out of memory, stays stored */
struct core_attempt *core_attempt_new(struct hd_core *core, struct core_job *job,
                                      const struct hd_attempt_record *record);
/* Starts an attempt on devices that are free: of each member, in order, the first ones of the
 * plan's kind. Ranks are numbered in this order. */
void core_attempt_start(struct hd_core *core, struct core_job *job,
                        const struct core_placement *place);
/* The first failure of an attempt: its ranks are to be stopped everywhere. */
/* Its ranks write a checkpoint and end. */
void core_attempt_stop(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
/* Copies the strings. */
void core_attempt_set_end(struct hd_core *core, struct core_attempt *attempt,
                          const struct hd_end_record *end);
void core_attempt_fail(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       const struct hd_end_record *end);
/* A share is gone; when it was the last one, the attempt ends and the job goes on from there. */
void core_share_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                    struct core_share *share);
void core_attempt_timers(struct hd_core *core, struct core_job *job);
enum hd_wanted core_wanted(const struct core_job *job, const struct core_attempt *attempt);
struct core_share *core_find_share(const struct core_attempt *attempt,
                                   const struct core_node *node);

/* ---- core_node.c ------------------------------------------------------------------------------*/

struct core_node *core_find_node(const struct hd_core *core, const char *uuid);
struct core_node *core_find_node_named(const struct hd_core *core, const char *name);
struct core_node *core_node_new(struct hd_core *core, const struct hd_node_record *record);
void core_node_free(struct core_node *node);
bool core_device_works(const struct core_node *node, int32_t place); /* place in rec.devices */
enum hd_status core_hello(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_alive(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_disconnected(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_observed(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_drain(struct hd_core *core, const struct hd_core_event *event);
void core_node_timers(struct hd_core *core, struct core_node *node);
void core_node_refresh(struct hd_core *core, struct core_node *node); /* draining, drained, ready */
bool core_node_usable(const struct core_node *node);
void core_node_reason(const struct core_node *node, struct hd_now now,
                      struct hd_text *text); /* why it is not usable */

/* ---- core_schedule.c --------------------------------------------------------------------------*/

void core_schedule(struct hd_core *core);
/* The smallest number of devices that can share the work, 0: none within the bounds. */
int32_t core_devices_needed(const struct hd_job_needs *needs, enum hd_device_kind kind);
/* The kinds that a job may use, best first; returns their count. */
size_t core_kinds(const struct hd_job_needs *needs,
                  enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT]);
/* HD_INVALID or HD_UNSUPPORTED: no cluster of this build could ever run it. */
enum hd_status core_check_needs(const struct hd_job_needs *needs);

/* The most of `available` devices that can share the work; 0: too few. */
int32_t core_pick_count(const struct hd_job_needs *needs, enum hd_device_kind kind,
                        int32_t available, struct hd_plan_record *ret_plan);
/* Of so many devices of a node those that hold whole tensor-parallel groups. */
int32_t core_whole_groups(const struct hd_job_needs *needs, int32_t devices);
/* Those that work. */
int32_t core_count_devices(const struct core_node *node, enum hd_device_kind kind, bool free_only);
bool core_node_may_come_back(const struct core_node *node);

/* ---- core_gang.c ------------------------------------------------------------------------------*/

/* Puts a placement on several nodes into *best if it is better than what stands there. */
void core_gang_find(struct hd_core *core, const struct hd_job_needs *needs,
                    enum hd_device_kind kind, struct core_placement *best);
/* Keeps the nodes free on which the job would fit if nothing else ran; false: there are none. Then
 * *ret_blocking_job, unless set before, becomes a job that keeps such nodes. */
bool core_gang_reserve(struct hd_core *core, const struct hd_job_needs *needs,
                       enum hd_device_kind kind, uint64_t job, uint64_t *ret_blocking_job);
/* Why a node may not be part of any gang; nothing for one that may. */
void core_gang_obstacle(const struct hd_core *core, const struct core_node *node,
                        struct hd_text *text);

/* ---- core_resume.c ----------------------------------------------------------------------------*/

enum hd_status core_resume(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_requeue(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_checkpoint_now(struct hd_core *core, const struct hd_core_event *event);

/* ---- core_checkpoint.c ------------------------------------------------------------------------*/

enum hd_status core_report(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_found(struct hd_core *core, const struct hd_core_event *event);
/* Takes in a complete checkpoint that is not known yet. Where a newer attempt exists, or the job
 * has ended, none will start from it: then it is deleted, if the job keeps a limited number. */
void core_checkpoint_take(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                          const struct core_node *node,
                          const struct hd_checkpoint_record *checkpoint);
/* Deletes all but the newest job->needs.keep checkpoints, the newest attempt's base and the newest
 * proven one. */
void core_checkpoint_prune(struct hd_core *core, struct core_job *job);
/* The weights that `attempt` had after `step` gave a finite loss and a finite gradient: so the
 * checkpoints up to there are proven, the attempt's base among them. */
void core_checkpoint_prove(struct hd_core *core, struct core_job *job, int32_t attempt,
                           int64_t step);
/* The newest proven checkpoint that no attempt found damaged; NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_proven(const struct core_job *job);
/* The node that is to delete it: the one that wrote it or, where all see the jobs directory and
 * that one is lost, another. NULL: none can. */
struct core_node *core_checkpoint_deleter(const struct hd_core *core,
                                          const struct hd_checkpoint_record *checkpoint);
void core_checkpoint_deleted(struct hd_core *core, const struct core_node *node,
                             const struct hd_deletion *deletion);
/* What the next attempt starts from: the newest that no attempt found damaged; where all were found
 * so, the newest. NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_newest(const struct core_job *job);

/* It ended because the checkpoint that it was to start from is damaged. */
bool core_attempt_found_base_damaged(const struct core_attempt *attempt);
/* Where to go back to from an attempt that blames its base: the newest sound checkpoint. NULL: it
 * does not blame it, or there is no sound one. */
const struct hd_checkpoint_record *core_checkpoint_fallback(const struct core_job *job,
                                                            const struct core_attempt *attempt);
bool core_attempt_progressed(const struct core_job *job, int32_t attempt);

/* ---- core_plan.c ------------------------------------------------------------------------------*/

bool core_kind_spans_nodes(enum hd_device_kind kind); /* one attempt may use several nodes */
/* hd_core_plan without a story: whether there is a layout. */
bool core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind, int32_t count,
               struct hd_plan_record *ret_plan);

#endif

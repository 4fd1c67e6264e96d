/* core_internal: the core's memory, shared by its own files and nobody else.
 *
 *   core.c             step, timers, flush, questions, invariants
 *   core_map.c         strings to numbers
 *   core_index.c       jobs by number, and the sets of jobs that steps walk over
 *   core_node.c        nodes: streams, leases, observed sets
 *   core_job.c         jobs and attempts: submit, cancel, start, end, what comes next
 *   core_waiting.c     queued jobs, in classes of jobs that wait for the same
 *   core_schedule.c    who waits, who starts, and why
 *   core_gang.c        one job on several nodes
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

/* All jobs, by number. */
struct core_table {
    struct core_job **buckets;
    size_t count, size; /* size is a power of two, or 0 */
};

bool core_table_add(struct core_table *table, struct core_job *job); /* false: no memory */
struct core_job *core_table_find(const struct core_table *table, uint64_t number);
void core_table_remove(struct core_table *table, struct core_job *job);
/* The job behind `job`, in no order that means anything; NULL stands for the beginning and the end.
 * For the end of the core and its invariants: it costs time in proportion to all jobs. */
struct core_job *core_table_next(const struct core_table *table, const struct core_job *job);

/* Some jobs, in the order of their numbers, each once. */
struct core_jobs {
    struct core_job **items;
    size_t count, size;
};

void core_jobs_add(struct hd_core *core, struct core_jobs *jobs, struct core_job *job);
void core_jobs_remove(struct core_jobs *jobs, const struct core_job *job);
bool core_jobs_have(const struct core_jobs *jobs, const struct core_job *job);

/* Values by key; the item with the smallest key comes first. */
struct core_heap {
    struct core_heap_item {
        uint64_t key, value;
    } * items;
    size_t count, size;
};

void core_heap_put(struct hd_core *core, struct core_heap *heap, uint64_t key, uint64_t value);
void core_heap_take(struct core_heap *heap); /* removes the first item */

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
};

struct core_attempt {
    struct hd_attempt_record rec; /* strings and ranks are the core's own */
    struct core_share *shares;
    size_t share_count;
    uint64_t *seq;               /* per rank: reports taken in up to here */
    int64_t state_since_mono_ms; /* start, or begin of stopping */
    bool kill;                   /* wanted stopped, whatever the job wants */
    bool failed;                 /* rec.end holds the first failure */
    bool dirty;
};

enum core_wait {
    CORE_WAIT_NONE,
    CORE_WAIT_DELAY,    /* retries are spaced out */
    CORE_WAIT_BUSY,     /* would fit, but devices are held or a node is away; nodes are kept free */
    CORE_WAIT_RESERVED, /* would fit on nodes that are kept for wait_job */
    CORE_WAIT_NEVER,    /* does not fit on the nodes as they are now */
};

/* Queued jobs for which the scheduler decides alike: the key holds all that a placement depends on
 * besides the cluster. */
struct core_class {
    struct core_class_key {
        enum hd_device_kind device;
        int32_t devices_min, devices_max;
        uint32_t possible; /* set of kinds of devices on which there is a layout at all */
        struct hd_plan_shape shape;
        bool has_base, base_shared;        /* the checkpoint that the next attempt starts from */
        const struct core_node *base_node; /* where it was written; NULL: none, or not known */
    } key;
    struct core_job *first, *last; /* by number */
    uint64_t closed_in;            /* in this pass one found no place and kept no nodes; then: */
    enum core_wait wait;           /* of the jobs that the pass skipped for that */
    uint64_t wait_job;
};

struct core_job {
    struct hd_job_record rec; /* state: changed by core_set_job_state alone */
    struct hd_job_needs needs;
    struct core_attempt **attempts; /* by number - 1 */
    size_t attempt_size;
    struct hd_checkpoint_record *checkpoints; /* not deleted, in order of acceptance */
    size_t checkpoint_count, checkpoint_size;
    uint64_t sequence;          /* of the newest entry of its history */
    int64_t not_before_mono_ms; /* no attempt before this */
    enum core_wait wait;        /* core_wait_of says whether it is this one or the class's */
    uint64_t wait_job;
    struct core_class *class;        /* NULL: it is not queued, or waits for its retry delay */
    struct core_job *before, *after; /* in the class */
    uint64_t looked_in;              /* the last pass that tried to place it */
    bool dirty, is_new, ended;       /* over: ended; stays while checkpoints wait for deletion */
    struct core_job *next_dirty, *next_in_table;
};

struct hd_core {
    struct hd_core_config config;
    struct core_table jobs;
    struct core_jobs active;     /* those with an attempt that has not ended */
    struct core_jobs deleting;   /* those with a checkpoint that is being deleted */
    struct core_heap delayed;    /* job numbers by the time of their retry; some are out of date */
    struct core_class **classes; /* of queued jobs, by key */
    size_t class_count, class_size, live_count;
    bool class_emptied;       /* some class has no job left */
    bool limit_told;          /* of live jobs: the event that says so is out */
    struct core_node **nodes; /* by name, retired ones last */
    size_t node_count, node_size;
    struct core_map node_by_uuid, job_by_request;
    uint64_t last_job, cluster_sequence;
    bool schedule_due;         /* something changed that may let a job start, or keep other nodes */
    bool unsettled;            /* the same, but it can wait for the next pass */
    struct core_job *newcomer; /* nothing changed but that this job came, behind all others */
    uint64_t pass;             /* number of the newest pass over all classes */
    bool no_memory;            /* sticky */
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
bool core_reaches(const struct hd_core *core, size_t percent); /* of the limit of live jobs */
/* Puts the job where jobs of this state wait, or takes it from there. */
void core_set_job_state(struct hd_core *core, struct core_job *job, enum hd_job_state state);
void core_job_free(struct core_job *job);
void core_job_forget(struct hd_core *core, struct core_job *job); /* out of memory, stays stored */
struct core_attempt *core_attempt_new(struct hd_core *core, struct core_job *job,
                                      const struct hd_attempt_record *record);
/* Starts an attempt on devices that are free: of each member, in order, the first ones of the
 * plan's kind. Ranks are numbered in this order. */
void core_attempt_start(struct hd_core *core, struct core_job *job,
                        const struct core_placement *place);
/* The first failure of an attempt: its ranks are to be stopped everywhere. */
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

/* ---- core_waiting.c ---------------------------------------------------------------------------*/

void core_waiting_add(struct hd_core *core, struct core_job *job);
void core_waiting_remove(struct hd_core *core, struct core_job *job);
/* What a queued job would start from has changed. */
void core_waiting_moved(struct hd_core *core, struct core_job *job);
/* Whether the retry delay of some job is over; such jobs enter their classes. */
bool core_waiting_due(struct hd_core *core);
void core_waiting_release(struct hd_core *core);
/* Frees classes without jobs. */
void core_waiting_sweep(struct hd_core *core);
/* Why a queued job waits; *ret_blocking_job: the job that it waits behind, or 0. */
enum core_wait core_wait_of(const struct hd_core *core, const struct core_job *job,
                            uint64_t *ret_blocking_job);

/* ---- core_schedule.c --------------------------------------------------------------------------*/

/* Starts what can start now, after a step that may have changed that. */
void core_schedule(struct hd_core *core);
/* What a look at each queued job, one after another, would decide: HD_INTERNAL if that starts a job
 * or keeps other nodes free than are kept. Costs time in proportion to everything. */
enum hd_status core_schedule_check(const struct hd_core *core);
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

/* ---- core_checkpoint.c ------------------------------------------------------------------------*/

enum hd_status core_report(struct hd_core *core, const struct hd_core_event *event);
/* Takes in a complete checkpoint, unless a newer attempt exists or it is known. */
void core_checkpoint_take(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                          const struct core_node *node,
                          const struct hd_checkpoint_record *checkpoint);
void core_checkpoint_prune(struct hd_core *core, struct core_job *job);
bool core_waits_for_deletion(const struct core_job *job); /* of some checkpoint */
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

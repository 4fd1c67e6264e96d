/* core_internal: the core's state; only for the files of this folder.
 *
 *   core.c        the step, dirty lists, queries, invariants
 *   map.c         hash map from strings to numbers
 *   index.c       jobs by number, and the sets of jobs that steps walk over
 *   node.c        nodes: streams, leases, observed sets
 *   job.c         jobs and attempts: submit, cancel, start, end, retry
 *   resume.c      jobs that are resumed, queued again, or asked for a checkpoint
 *   remove.c      ended jobs that are removed with their folders
 *   queue.c       queues, their limits and shares
 *   waiting.c     queued jobs, in classes of jobs that wait for the same
 *   schedule.c    the pass: which queued job is looked at when, and what becomes of it
 *   place.c       where a job finds a place
 *   reserve.c     places that are kept for jobs that do not fit now, and expected starts
 *   predict.c     when running attempts will end
 *   preempt.c     which running jobs give way
 *   move.c        running jobs that go on elsewhere, or with more devices
 *   explain.c     why jobs wait
 *   gang.c        one job on several nodes
 *   links.c       which devices of its nodes an attempt takes; nodes of one switch
 *   checkpoint.c  reports, the list of checkpoints, which ones are deleted
 *   restore.c     memory rebuilt from the store's records
 *   plan.c        layouts
 *   probe.c       what nodes have measured of their devices, and which are slow
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
/* Walks over all jobs, in the order of the hash table: NULL gives the first one, the last one gives
 * NULL. Only for freeing the core and for checking its invariants, because it visits every job. */
struct core_job *core_table_next(const struct core_table *table, const struct core_job *job);

/* Some jobs, in the order of their numbers, each once. */
struct core_jobs {
    struct core_job **items;
    size_t count, size;
};

void core_jobs_add(struct hd_core *core, struct core_jobs *jobs, struct core_job *job);
void core_jobs_remove(struct core_jobs *jobs, const struct core_job *job);
bool core_jobs_have(const struct core_jobs *jobs, const struct core_job *job);
/* The table of outcomes; a job that is resumed has none again. */
void core_outcome_set(struct hd_core *core, uint64_t job, enum hd_job_state state);
enum hd_job_state core_outcome_of(const struct hd_core *core, uint64_t job); /* 0: not ended */

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

enum { NO_POSITION = -1 };

/* What some nodes have said of their devices, each the same. */
struct core_links {
    struct hd_node_links links;
    size_t nodes; /* so many */
};

struct core_node {
    struct hd_node_record rec; /* its strings are copies that the core owns (core_set) */
    uint64_t stream;           /* number of its newest stream */
    bool connected;            /* that stream is open */
    bool synced;               /* an observed set arrived on that stream */
    bool jobs_dir_visible;     /* as in the newest observed set */
    const char *jobs_dir_problem;
    const char *data_address;                  /* where other nodes reach its ranks; "": none */
    const char *compute[HD_DEVICE_KIND_COUNT]; /* equal strings compute equal bits on this kind */
    const char *traits;    /* of its CPU devices, as a word; "" or NULL: not known */
    bool suspect;          /* a peer reported it dead */
    bool deadline_met;     /* of its drain; its jobs have been told to leave */
    int64_t seen_mono_ms;  /* when its newest message arrived */
    int64_t lost_after_ms; /* silence until lost; longer after a start of the controller */
    size_t stale_count;    /* attempts that run there and are not wanted any more */
    uint64_t stale_job;    /* one of them */
    int32_t stale_attempt;
    /* Gangs that it may be in, by number; 0: none (gang.c). near: of the nodes of its machine; far:
     * of those that others reach, if it is one. */
    uint32_t near[HD_DEVICE_KIND_COUNT], far[HD_DEVICE_KIND_COUNT];
    size_t index;             /* in core->nodes, unless core->free_due */
    uint64_t generation;      /* of its desired set */
    struct core_links *links; /* between its devices, by their positions; NULL: they are alike */
    int64_t position;         /* in config.tree; NO_POSITION: far from all others */
    struct hd_device_hold *holds; /* per device, in the order of rec.devices */
    struct core_counts {
        int32_t free, all;    /* that work; free: not held, or lent */
        int64_t least_memory; /* of those; unknown memory counts as any */
    } counts[HD_DEVICE_KIND_COUNT];
    struct core_reservation {
        uint64_t by;           /* the queued job that devices here are kept for; 0: none */
        int64_t start_mono_ms; /* when that job is expected to start; INT64_MAX: not known */
        int32_t spare;         /* so many devices it will not need: others may hold them then */
        enum hd_device_kind kind;
    } reserved;
    bool probes;          /* its daemon answers questions for a probe */
    uint64_t probe_asked; /* the number of the one without an answer; 0: none */
    struct core_probe {   /* the newest: as in hd_probe_record */
        int64_t ended_ms, measured_ms;
        const char *problem, *measured_on;
        struct hd_device_figures *devices;
        int32_t device_count;
    } probe;
    bool dirty, desired_dirty;
    struct core_node *next_dirty;
};

enum { CORE_RATES = 3 };

/* What a kind of device does, of which one is at this place; valid until a result, a node or its
 * devices change (core.medians_due). */
struct core_median {
    const struct core_node *node;
    int32_t place;
    double value[CORE_RATES];
    size_t count[CORE_RATES]; /* devices whose rate is known */
};

/* The ranks of one attempt on one node. */
struct core_share {
    struct core_node *node;
    bool listed;  /* an observed set of the node has listed it */
    bool running; /* its ranks are connected to all others */
    bool ended;
    bool removed;             /* the job is being removed: its files here are deleted */
    uint64_t stop_generation; /* first desired set that says to stop it; 0: none yet */
    const char *problem;      /* reported by its node; "" or NULL: none */
    bool waits;               /* its node lets it wait until that is over */
};

struct core_attempt {
    struct hd_attempt_record rec; /* its strings and ranks are copies that the core owns */
    struct core_share *shares;
    size_t share_count;
    uint64_t *seq;               /* per rank: seq of the newest accepted report */
    int64_t state_since_mono_ms; /* when it started, or when stopping began */
    bool kill;                   /* wanted STOPPED even if the job is not cancelled */
    bool failed;                 /* rec.end holds the first failure */
    bool had_finite_step;        /* one of its steps had a finite loss and gradient */
    int64_t last_step;           /* the newest that was reported; 0: none */
    int32_t saves_asked;         /* checkpoints, beside those that are due */
    uint64_t start_number; /* attempts are numbered as they start; 0: before this controller */
    int64_t saved_mono_ms; /* when its newest checkpoint was reported; 0: none yet */
    /* Measured steps: the first and the newest report of a step, by the rank's clock. */
    int64_t first_step, first_step_ms, last_step_ms, last_step_mono_ms;
    int64_t ends_mono_ms; /* its predicted end, as the newest pass took it; INT64_MAX: not known */
    bool borrows; /* it holds devices that were kept for older jobs, and gives way to these */
    bool dirty;
};

enum { CORE_AVOIDED_MAX = 8, CORE_RESERVERS_MAX = 8 };

enum core_wait {
    CORE_WAIT_NONE,
    CORE_WAIT_HELD,     /* for a user to release it */
    CORE_WAIT_AFTER,    /* for other jobs to succeed */
    CORE_WAIT_DELAY,    /* for the retry delay */
    CORE_WAIT_SEARCH,   /* for the list of checkpoints that a lost node has written */
    CORE_WAIT_PLAN,     /* for the layout of its place to be found; it may have reserved nodes */
    CORE_WAIT_QUOTA,    /* for devices that others of its queue hold */
    CORE_WAIT_BUSY,     /* for held devices or disconnected nodes; it has reserved nodes */
    CORE_WAIT_RESERVED, /* for nodes that are reserved by wait_job */
    CORE_WAIT_NEVER,    /* would not fit even if its nodes were idle */
};

/* Queued jobs for which the scheduler decides alike: the key holds all that a placement depends on
 * besides the cluster. */
struct core_class {
    struct core_class_key {
        enum hd_device_kind device;
        int32_t devices_min, devices_max;
        int64_t memory_min;
        uint32_t possible; /* set of kinds of devices on which there is a layout at all */
        struct hd_plan_shape shape;
        bool has_base, base_shared;        /* the checkpoint that the next attempt starts from */
        const struct core_node *base_node; /* where it was written; NULL: none, or not known */
        int64_t length_minutes; /* it runs at most so long, as far as is known; 0: not known */
        uint64_t avoids;        /* the job, if it avoids nodes that failed it; 0: none */
    } key;
    size_t line_count;
    uint64_t closed_in;  /* in this pass one found no place and kept no nodes; then: */
    enum core_wait wait; /* of the jobs that the pass skipped for that */
    uint64_t wait_job;
};

/* A queue with what its jobs hold. */
struct core_queue {
    struct hd_queue_record rec; /* its name is a copy that the core owns */
    int64_t held;               /* devices */
    size_t waiting;             /* queued jobs */
    struct core_heap next;      /* of the pass: lines by the number of their next job */
};

/* What one user has of one queue. */
struct core_account {
    struct core_queue *queue;
    int64_t held; /* devices */
};

/* Queued jobs of one class, account and priority: a pass takes them in the order of numbers. */
struct core_line {
    struct core_line_key {
        int32_t priority;
        struct core_account *account;
        struct core_class *class;
    } key;
    struct core_job *first, *last; /* by number */
    uint64_t closed_in;            /* in this pass its account had no devices left */
};

struct core_job {
    struct hd_job_record rec; /* state: changed by core_set_job_state alone */
    struct hd_job_needs needs;
    struct core_attempt **attempts; /* by number - 1 */
    size_t attempt_size;
    struct hd_checkpoint_record *checkpoints; /* not deleted, in order of acceptance */
    size_t checkpoint_count, checkpoint_size;
    uint64_t sequence;          /* of the newest entry of its history */
    int64_t not_before_mono_ms; /* the next attempt starts no earlier */
    enum core_search { CORE_SEARCH_NONE, CORE_SEARCH_DUE, CORE_SEARCH_OUT } search;
    int64_t search_since_mono; /* with OUT: when it was sent */
    enum core_wait wait; /* while queued; core_wait_of says whether it is this or the class's */
    uint64_t wait_job;   /* with CORE_WAIT_RESERVED */
    const char *misfit;  /* why needs ask for larger or more devices than the job; NULL: nothing */
    int32_t asked_min;   /* devices_min of the job, while misfit is set */
    struct core_account *account;
    struct core_line *line; /* NULL: not queued, or not to be started yet (core_waiting_add) */
    struct core_job *before, *after; /* in the line */
    bool claims;                     /* others were stopped so that it can start: it comes first */
    uint64_t blocked_at;  /* core->starts when it first reserved nodes; attempts that start later
                           * hold only what it can spare */
    uint64_t reserved_in; /* the last pass in which it reserved nodes */
    const struct core_node *avoided[CORE_AVOIDED_MAX]; /* that failed it twice */
    size_t avoided_count;
    uint64_t waits_for; /* with rec.promised_ms: the job whose end it waits for; 0: not known */
    uint64_t looked_in; /* the last pass that tried to place it */
    const struct core_menu_entry *planning; /* while it waits for that; NULL: it does not */
    bool dirty, is_new, ended; /* an ended job stays here until its deletions are confirmed */
    struct core_job *next_dirty, *next_in_table;
};

/* An answer to a question about a layout (menu.c), or the question alone. */
struct core_menu_entry {
    char *key;
    bool known, failed, fits; /* failed, fits and the rest: as in hd_core_answer, once known */
    struct hd_layout_sizes layout;
    double step_s;
    int64_t memory_bytes;
    const char *why;
};

struct hd_core {
    struct hd_core_config config;
    struct core_menu_entry **menu; /* menu.c */
    size_t menu_count, menu_size, menu_known;
    struct core_map menu_by_key; /* index in menu */
    struct core_table jobs;
    struct core_jobs active;    /* those with an attempt that has not ended */
    struct core_jobs deleting;  /* those with a checkpoint that is being deleted, or their folder */
    struct core_jobs searching; /* queued ones with job->search */
    struct core_heap delayed;   /* job numbers by the time of their retry; some are out of date */
    struct core_class **classes; /* of queued jobs, by key */
    size_t class_count, class_size, live_count;
    struct core_line **lines; /* highest priority first */
    size_t line_count, line_size;
    bool line_emptied;          /* some line has no job left */
    struct core_queue **queues; /* by name */
    size_t queue_count, queue_size;
    struct core_account **accounts;
    size_t account_count, account_size;
    struct core_map account_by_name; /* "QUEUE OWNER" -> index in accounts */
    struct core_jobs dependents;     /* queued jobs that wait for others to succeed */
    struct core_jobs claimants;      /* queued jobs with `claims` */
    struct core_jobs reservers;      /* of the newest pass */
    struct core_jobs promised;       /* queued jobs with an expected start */
    struct core_jobs growers;        /* that have just written a checkpoint, and may have more
                                      * devices */
    struct core_outcome {            /* of every job ever, by number */
        uint64_t job;
        enum hd_job_state state; /* how it ended; 0: it has not */
    } * outcomes;
    size_t outcome_count, outcome_size;
    bool just_ended; /* some job; the dependents have not been told */
    /* Working devices of all nodes that no attempt holds, or that a search counts as given back;
     * reserved ones included. */
    int64_t free_devices[HD_DEVICE_KIND_COUNT];
    bool reach_due;                          /* some node can be in other gangs than gang.c knows */
    uint32_t *reaches[HD_DEVICE_KIND_COUNT]; /* the numbers of gangs, by their first nodes */
    size_t reach_count[HD_DEVICE_KIND_COUNT], reach_size[HD_DEVICE_KIND_COUNT];
    /* By index in nodes: free devices of a kind, so that a search passes over full nodes without a
     * look at them. Made anew when nodes have come or moved (free_due). */
    uint16_t *free_of[HD_DEVICE_KIND_COUNT];
    size_t free_size;
    bool free_due;
    int32_t lowest_priority;         /* of the jobs that run, or lower */
    struct core_attempt **borrowers; /* attempts that borrow, in the order of their jobs */
    size_t borrower_count, borrower_size;
    struct core_member *members; /* scratch for placements on several nodes */
    size_t member_size;
    struct core_attempt **ends; /* those whose end is known, by their ends; of the newest pass */
    size_t end_count, end_size;
    bool ends_due;            /* an attempt has started since */
    uint64_t starts;          /* attempts started */
    bool changed_in_pass;     /* an attempt was started or stopped: one more pass is needed */
    bool limit_told;          /* of live jobs: the event that says so is out */
    struct core_node **nodes; /* by name, retired ones last */
    size_t node_count, node_size;
    struct core_links **links; /* all that nodes have */
    size_t link_count, link_size;
    struct core_median *medians; /* probe.c */
    size_t median_count, median_size;
    bool medians_due;
    uint64_t probe_number; /* of the newest question */
    struct core_map node_by_uuid;
    struct core_map by_request; /* request id -> index in requests */
    struct core_request {
        uint64_t job, hash; /* as in hd_job_record */
    } * requests;
    size_t request_count, request_size;
    uint64_t last_job, cluster_sequence;
    bool misfits;              /* some job has asked for larger or more devices (fit.c) */
    bool schedule_due;         /* something changed that may let a job start, or keep other nodes */
    bool unsettled;            /* the same, but it can wait for the next pass */
    struct core_job *newcomer; /* nothing changed but that this job came, behind all others */
    uint64_t pass;             /* number of the newest pass over all classes */
    bool no_memory;            /* sticky */
    struct core_job *dirty_jobs, **dirty_jobs_end;
    struct core_node *dirty_nodes, **dirty_nodes_end;
    /* of the current step */
    struct hd_core_out *out;
    struct hd_now now;
};

/* A node of a placement. */
struct core_member {
    struct core_node *node;
    size_t index;  /* in core->nodes */
    bool ready;    /* usable now */
    int32_t count; /* devices that the job may use or takes there */
};
/* For whom a place is looked for, and in what state of the cluster. */
struct core_view {
    const struct hd_job_needs *needs;
    const struct hd_checkpoint_record *base; /* that it must read; NULL: none */
    const struct core_job *job;              /* NULL: it is not submitted */
    int64_t length_ms; /* it runs at most so long: it may use devices that are kept for later; 0:
                        * not known */
    bool avoids;       /* not on nodes that failed it */
    bool reserves;     /* no nodes that are reserved by others, not even what these can spare */
    bool borrows;      /* also devices that are kept for older jobs for a while yet */
};
struct core_placement {
    struct core_member *members; /* on the heap */
    size_t member_count;
    int32_t device_count; /* of all members; 0: there is no placement */
    int32_t unused_count; /* devices of the members that stay free */
    struct hd_plan_record plan;
};

/* ---- core.c -----------------------------------------------------------------------------------*/

/* Frees *slot and sets it to a copy of text, cut to HD_CTL_PATH_BYTES_MAX. Out of memory: NULL,
 * which readers treat as "", and core->no_memory is set. */
void core_set(struct hd_core *core, const char **slot, const char *text);
void core_unset(const char **slot);
bool core_same(const char *a, const char *b); /* equal strings; NULL equals "" */

/* Dirty records are added to the batch when the step ends. */
void core_dirty_job(struct hd_core *core, struct core_job *job);
void core_dirty_attempt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
void core_dirty_node(struct hd_core *core, struct core_node *node);
/* The node's desired set changed: raises its generation and reports it in out->nodes. */
void core_dirty_desired(struct hd_core *core, struct core_node *node);
/* Reports the job in out->jobs. */
void core_announce(struct hd_core *core, const struct core_job *job);

/* Adds to the history of a job, or of the cluster (job NULL). */
void core_event(struct hd_core *core, struct core_job *job, const char *kind, int32_t attempt,
                int32_t rank, const char *node, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

struct core_job *core_find_job(const struct hd_core *core, uint64_t number);
struct core_attempt *core_find_attempt(const struct core_job *job, int32_t number);
struct core_attempt *core_newest(const struct core_job *job); /* NULL: none yet */
struct core_attempt *core_active(const struct core_job *job); /* the newest if it has not ended */
/* Grows *array (`array`: address of a typed pointer) to count + 1 items; false: out of memory. */
bool core_reserve(struct hd_core *core, void *array, size_t count, size_t *size, size_t item_bytes);

/* ---- job.c ------------------------------------------------------------------------------------*/

enum hd_status core_submit(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_cancel(struct hd_core *core, const struct hd_core_event *event);
struct core_job *core_job_new(struct hd_core *core, const struct hd_job_record *record,
                              const struct hd_job_needs *needs);
/* The request id that a job was submitted with. False: no memory. */
bool core_request_put(struct hd_core *core, const char *id, uint64_t job, uint64_t hash);
const struct core_request *core_request_find(const struct hd_core *core, const char *id);
bool core_reaches(const struct hd_core *core, size_t percent); /* of the limit of live jobs */
/* Ends it: succeeded, failed or cancelled. */
void core_finish_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                     const char *reason);
/* Puts the job where jobs of this state wait, or takes it from there. */
void core_set_job_state(struct hd_core *core, struct core_job *job, enum hd_job_state state);
void core_job_free(struct core_job *job);
void core_job_forget(struct hd_core *core, struct core_job *job); /* frees it; the store keeps it */
struct core_attempt *core_attempt_new(struct hd_core *core, struct core_job *job,
                                      const struct hd_attempt_record *record);
/* Starts an attempt; why: what was chosen so that it fits, "": nothing. Ranks are numbered in the
 * order of members; which device each has is core_choose_devices' choice. */
void core_attempt_start(struct hd_core *core, struct core_job *job,
                        const struct core_placement *place, const char *why);
/* Its ranks write a checkpoint and end. */
void core_attempt_stop(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
/* The same for a cause of the controller's, which becomes the cause of its end; for_job: whom it
 * gives way to, or 0. Does nothing if it is to stop already. */
void core_attempt_stop_for(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                           enum hd_end_cause cause, uint64_t for_job);
/* Running time since the job was submitted or resumed. */
bool core_is_failure(enum hd_end_cause cause); /* counted by restart.max */
int64_t core_job_ran_ms(const struct hd_core *core, const struct core_job *job);
bool core_is_stop(enum hd_end_cause cause); /* of an attempt that ended because it was told to */
/* Copies the strings. */
void core_attempt_set_end(struct hd_core *core, struct core_attempt *attempt,
                          const struct hd_end_record *end);
/* Records a failure of an attempt (the first one is kept) and stops its ranks on all nodes. */
void core_attempt_fail(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       const struct hd_end_record *end);
/* Ends a share. With the last share the attempt ends, and the job ends or is queued again. */
void core_share_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                    struct core_share *share);
void core_attempt_timers(struct hd_core *core, struct core_job *job);
enum hd_wanted core_wanted(const struct core_job *job, const struct core_attempt *attempt);
struct core_share *core_find_share(const struct core_attempt *attempt,
                                   const struct core_node *node);

/* ---- probe.c ----------------------------------------------------------------------------------*/

enum hd_status core_probe_ask(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_probed(struct hd_core *core, const struct hd_core_event *event);
void core_probe_restore(struct hd_core *core, struct core_node *node,
                        const struct hd_probe_record *record);
void core_probe_drop(struct core_node *node); /* frees what it has */

/* ---- node.c -----------------------------------------------------------------------------------*/

struct core_node *core_find_node(const struct hd_core *core, const char *uuid);
struct core_node *core_find_node_named(const struct hd_core *core, const char *name);
struct core_node *core_node_new(struct hd_core *core, const struct hd_node_record *record);
void core_node_free(struct core_node *node);
bool core_device_works(const struct core_node *node, int32_t place); /* index in rec.devices */
enum hd_status core_hello(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_alive(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_disconnected(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_observed(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_drain(struct hd_core *core, const struct hd_core_event *event);
void core_node_lose(struct hd_core *core, struct core_node *node, const char *why);
enum hd_status core_node_remove(struct hd_core *core, const struct hd_core_event *event);
void core_node_timers(struct hd_core *core, struct core_node *node);
void core_node_refresh(struct hd_core *core, struct core_node *node); /* READY, DRAINING, DRAINED */
void core_node_changed(struct hd_core *core, struct core_node *node); /* other devices or holds */
bool core_node_usable(const struct core_node *node); /* may take a new attempt now */
/* Appends why the node is not usable; nothing if it is. */
void core_node_reason(const struct core_node *node, struct hd_now now, struct hd_text *text);

/* ---- waiting.c --------------------------------------------------------------------------------*/

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

/* The job waits for a search of its checkpoints, and is in no class until core_search_end. */
void core_search_begin(struct hd_core *core, struct core_job *job);
void core_search_end(struct hd_core *core, struct core_job *job);
/* Starts the job over in the queue: what it waits for has changed. */
void core_waiting_again(struct hd_core *core, struct core_job *job);
enum hd_status core_hold(struct hd_core *core, const struct hd_core_event *event);
/* HD_INVALID: a job that it comes after does not exist, or has not succeeded and never will. */
enum hd_status core_check_after(const struct hd_core *core, const struct hd_job_needs *needs);
/* Lets jobs go that waited for the success of jobs that have ended, or cancels them. */
void core_tell_dependents(struct hd_core *core);
void core_search_timers(struct hd_core *core, struct core_job *job);

/* ---- queue.c ----------------------------------------------------------------------------------*/

enum hd_status core_set_queue(struct hd_core *core, const struct hd_core_event *event);
struct core_queue *core_find_queue(const struct hd_core *core, const char *name); /* NULL: none */
struct core_queue *core_queue_put(struct hd_core *core, const struct hd_queue_record *record);
/* What `owner` has of the queue. NULL: no memory. */
struct core_account *core_account_of(struct hd_core *core, struct core_queue *queue,
                                     const char *owner);
/* Devices that a job of this account may still get; *ret_wait_user: its own limit is the nearest.
 */
int64_t core_quota_left(const struct core_account *account, bool *ret_by_user);
/* HD_NOT_FOUND: there is no such queue; HD_INVALID: the job needs more than its limits. */
enum hd_status core_check_quota(const struct hd_core *core, const struct hd_job_needs *needs);
void core_quota_take(struct core_job *job, int64_t devices); /* negative: gives back */
bool core_queue_is_behind(const struct core_queue *a,
                          const struct core_queue *b); /* by its share */
void core_queues_free(struct hd_core *core);
enum hd_status core_check_quotas(const struct hd_core *core); /* for hd_core_check */

/* ---- schedule.c -------------------------------------------------------------------------------*/

/* Starts what can start now, after a step that may have changed that. */
void core_schedule(struct hd_core *core);
/* What a look at each queued job, one after another, would decide: HD_INTERNAL if that starts a job
 * or keeps other nodes free than are kept. Costs time in proportion to everything. */
enum hd_status core_schedule_check(const struct hd_core *core);

/* ---- place.c ----------------------------------------------------------------------------------*/

/* The smallest number within devices_min and devices_max that can share the work; 0: none. */
int32_t core_devices_needed(const struct hd_job_needs *needs, enum hd_device_kind kind);
/* The kinds of device that a job may use, in order of preference; returns their count. */
size_t core_kinds(const struct hd_job_needs *needs,
                  enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT]);
/* HD_INVALID or HD_UNSUPPORTED: the job cannot run on any cluster of this build. */
enum hd_status core_check_needs(const struct hd_job_needs *needs);

/* The largest number up to `available` and devices_max that can share the work, with its layout;
 * 0: none. */
int32_t core_pick_count(const struct hd_job_needs *needs, enum hd_device_kind kind,
                        int32_t available, struct hd_plan_record *ret_plan);
/* `devices` rounded down to a multiple of a tensor-parallel group. */
int32_t core_whole_groups(const struct hd_job_needs *needs, int32_t devices);
/* Devices of a node that have no problem and the memory that `needs` (NULL: any) asks for;
 * free_only: without those that an attempt holds. */
int32_t core_count_devices(const struct hd_job_needs *needs, const struct core_node *node,
                           enum hd_device_kind kind, bool free_only);
/* The node may become usable without a user's action: not retired, not draining, not lost. */
bool core_node_may_come_back(const struct core_node *node);
/* The node can read the base checkpoint: it wrote it, or both see the jobs directory. */
bool core_can_read_base(const struct hd_checkpoint_record *base, const struct core_node *node);
bool core_may_span(const struct hd_checkpoint_record *base); /* several nodes can read the base */

struct core_view core_view_of(struct hd_core *core, const struct core_job *job);
/* Free devices of this kind by index of node: no node has more for a job. NULL: no memory. */
const uint16_t *core_free_by_node(struct hd_core *core, enum hd_device_kind kind);
/* Devices of this kind that the job may take on the node now. */
int32_t core_available(const struct hd_core *core, const struct core_view *view,
                       const struct core_node *node, enum hd_device_kind kind);
bool core_avoids(const struct core_view *view, const struct core_node *node);
/* The attempt runs on borrowed devices, and gives way to the job. */
bool core_lends_to(const struct hd_core *core, const struct core_attempt *attempt,
                   const struct core_job *lender);
/* While lent, the devices of these attempts count as free. */
void core_lend(struct hd_core *core, struct core_attempt *const *attempts, size_t count, bool lent);
/* The best placement with the devices that are free now; the caller frees its members. */
struct core_placement core_find_place(struct hd_core *core, const struct core_view *view);
bool core_has_place(struct hd_core *core, const struct core_view *view);
/* A node on which the job would fit if the node were idle; preferably usable, then with the most
 * free devices. *ret_blocking_job: a job that has reserved such a node; 0: none. */
struct core_node *core_find_idle_node(struct hd_core *core, const struct core_view *view,
                                      enum hd_device_kind *ret_kind, uint64_t *ret_blocking_job);
/* The job would fit on some nodes if all were idle. */
bool core_fits_when_idle(struct hd_core *core, const struct core_view *view);
/* Finds the nodes that have failed the job twice: it avoids them if it fits elsewhere. */
void core_learn_failures(struct core_job *job);

/* ---- reserve.c --------------------------------------------------------------------------------*/

/* When a job can start, as far as is known. */
struct core_start {
    int64_t mono_ms; /* INT64_MAX: not known */
    uint64_t after;  /* the job whose end decides that; 0: not known */
};

/* Keeps devices for a job that does not fit now, where it will start first as far as is known.
 * False: there are none to keep; job->wait and wait_job say why. */
bool core_reserve_place(struct hd_core *core, struct core_job *job, const struct core_view *view,
                        struct core_start *ret_start);
/* Keeps a place that was found, for a job that cannot start there yet; unless there are many. */
void core_reserve_found(struct hd_core *core, struct core_job *job,
                        const struct core_placement *place);
void core_reserve_node(struct core_node *node, uint64_t job, enum hd_device_kind kind,
                       int64_t start_mono_ms, int32_t spare);
void core_reserve_none(struct hd_core *core); /* forgets all reservations */
void core_list_ends(struct hd_core *core);    /* for a pass, after core_predict_all */
/* The needs of a job that takes as few devices of this kind as it may. False: no number will do. */
bool core_least_needs(const struct hd_job_needs *needs, enum hd_device_kind kind,
                      struct hd_job_needs *ret_least);
/* Tells a job's expected start if it is news, with the cause. */
void core_promise(struct hd_core *core, struct core_job *job, struct core_start start);
/* After a pass: jobs that had an expected start and have no reservation any more. */
void core_promise_sweep(struct hd_core *core);
void core_promise_end(struct hd_core *core, struct core_job *job); /* it is not queued any more */
void core_promise_timers(struct hd_core *core);

/* ---- predict.c --------------------------------------------------------------------------------*/

/* When the attempt will have ended, as far as is known now; INT64_MAX: not known. */
int64_t core_predict_end(const struct hd_core *core, const struct core_job *job,
                         const struct core_attempt *attempt);
void core_predict_all(struct hd_core *core); /* for a pass */
/* How long a queued job will hold its devices, as far as is known; 0: not known. */
int64_t core_predict_length_ms(const struct hd_core *core, const struct core_job *job);
/* A step was reported: true if predictions have to be made anew. */
bool core_predict_step(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       int64_t step, int64_t time_ms);
double core_step_ms(const struct core_attempt *attempt); /* measured; 0: not yet */

/* ---- preempt.c --------------------------------------------------------------------------------*/

/* Asks attempts of lower priority to stop, if the job then has a place. True: it waits for some. */
bool core_preempt(struct hd_core *core, struct core_job *job, const struct core_view *view);
void core_claim_end(struct hd_core *core, struct core_job *job); /* it needs no victims any more */

/* ---- move.c -----------------------------------------------------------------------------------*/

/* Lets jobs stop at a checkpoint that leave nodes which are drained with a deadline. */
void core_leave_nodes(struct hd_core *core);
void core_leave_timers(struct hd_core *core, struct core_node *node);
/* Jobs of core->growers stop at a checkpoint if they can go on with more devices, and it pays. */
void core_grow(struct hd_core *core);

/* ---- explain.c: core.h ------------------------------------------------------------------------*/

/* ---- fit.c ------------------------------------------------------------------------------------*/

/* The device has the memory that `needs` asks for; NULL: any. */
bool core_device_suits(const struct hd_job_needs *needs, const struct core_node *node,
                       int32_t device);
/* The first device of the kind, from `from` on, that is free, works and suits; -1: none. */
int32_t core_free_device(const struct hd_job_needs *needs, const struct core_node *node,
                         enum hd_device_kind kind, int32_t from);
/* No layout fits so many devices of which the smallest has so much memory. Makes the needs ask for
 * larger devices, if some node has any, else for more. False: there is nothing more to ask for. */
bool core_need_more(const struct hd_core *core, int32_t devices, int64_t memory_bytes,
                    struct hd_job_needs *needs);
/* The same for a job: it waits for them, or fails. True: it waits. */
bool core_take_misfit(struct hd_core *core, struct core_job *job, int32_t devices,
                      int64_t memory_bytes, const char *why);
/* A node has other devices now: jobs that wait for larger or more ones ask for their own again. */
void core_forget_misfits(struct hd_core *core);

/* ---- menu.c -----------------------------------------------------------------------------------*/

enum core_layout { CORE_LAYOUT_FITS, CORE_LAYOUT_MISFITS, CORE_LAYOUT_LATER };

/* Who wants a layout: a job, or one that is not submitted (job 0). */
struct core_wisher {
    uint64_t job;
    const struct hd_job_needs *needs;
    const void *spec;
    size_t spec_bytes;
};
static inline struct core_wisher core_wisher_of(const struct core_job *job,
                                                const struct hd_job_needs *needs)
{
    return (struct core_wisher){job->rec.job, needs, job->rec.spec, job->rec.spec_bytes};
}

/* Chooses place->plan.layout, if the job leaves members of it open. FITS: it starts there; *ret_why
 * then says what was chosen, if there was a choice. MISFITS: no layout fits the devices, of which
 * the smallest has *ret_memory_bytes; *ret_why says why. LATER: *ret_entry was asked for, or
 * (NULL) will be, when fewer questions wait. */
enum core_layout core_choose_layout(struct hd_core *core, const struct core_wisher *wisher,
                                    struct core_placement *place, int64_t *ret_memory_bytes,
                                    const struct core_menu_entry **ret_entry,
                                    struct hd_text *ret_why);
/* Asks for the layout that the job will need where it is expected to start. */
void core_foresee_layout(struct hd_core *core, const struct core_job *job,
                         struct core_placement *place);
enum hd_status core_planned(struct hd_core *core, const struct hd_core_event *event);
void core_menu_done(struct hd_core *core); /* frees it */

/* ---- gang.c -----------------------------------------------------------------------------------*/

/* Replaces *best by a placement on several nodes if that is better; frees the old members. */
void core_gang_find(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                    struct core_placement *best);
bool core_gang_fits_when_idle(struct hd_core *core, const struct core_view *view,
                              enum hd_device_kind kind);
/* Reserves for view->job the nodes on which it would fit if they were idle. False: there are none;
 * then *ret_blocking_job, if it was 0, becomes a job that has reserved such nodes, if any. */
bool core_gang_reserve(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                       uint64_t *ret_blocking_job);
/* Appends why a node's devices of this kind cannot share a job with those of some or all other
 * nodes; nothing if they can. */
void core_gang_obstacle(const struct hd_core *core, const struct core_node *node,
                        enum hd_device_kind kind, struct hd_text *text);

/* ---- links.c ----------------------------------------------------------------------------------*/

/* What a node says of the links between its devices; NULL: nothing. After set_devices. */
void core_links_take(struct hd_core *core, struct core_node *node,
                     const struct hd_node_links *said);
void core_links_drop(struct hd_core *core, struct core_node *node);          /* the node goes */
void core_find_position(const struct hd_core *core, struct core_node *node); /* its name is new */
/* The device of each rank of a placement that has its layout, as positions on its node. False: no
 * memory. */
bool core_choose_devices(struct hd_core *core, const struct hd_job_needs *needs,
                         const struct core_placement *place, int32_t *ret_devices);
/* Members that give `need` devices on as few nodes as possible if taken from the front: sorts them
 * so that these nodes span as few switches as possible. Returns how many members are left: those of
 * one switch, if one has enough on as few nodes. */
size_t core_prefer_switches(struct hd_core *core, struct core_member *members, size_t count,
                            int32_t need);

/* ---- resume.c ---------------------------------------------------------------------------------*/

/* Brings an ended job back to memory from its records. On failure nothing of it stays. */
enum hd_status core_recall(struct hd_core *core, const struct hd_core_event *event,
                           struct core_job **ret_job);
enum hd_status core_resume(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_requeue(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_checkpoint_now(struct hd_core *core, const struct hd_core_event *event);

/* ---- remove.c ---------------------------------------------------------------------------------*/

enum hd_status core_remove(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_end_all(struct hd_core *core, const struct hd_core_event *event);
/* Some node has not yet confirmed that it has deleted the job's folder. */
bool core_waits_for_removal(const struct core_job *job);
/* The node is to delete the job's folder. */
bool core_removes(const struct hd_core *core, const struct core_job *job,
                  const struct core_node *node);
/* The node has done so. */
void core_removed(struct hd_core *core, const struct core_node *node, uint64_t number);

/* ---- checkpoint.c -----------------------------------------------------------------------------*/

enum hd_status core_report(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_found(struct hd_core *core, const struct hd_core_event *event);
/* Adds a complete checkpoint to the job's list, unless it is known. If a newer attempt exists,
 * none will start from it: it is then marked for deletion, if `keep` is limited. */
void core_checkpoint_take(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                          const struct core_node *node,
                          const struct hd_checkpoint_record *checkpoint);
/* Marks for deletion all but the newest `keep`, the base of the newest attempt, and the newest
 * proven one. */
/* Someone asks that the checkpoints of a step go. HD_NOT_FOUND: there is none; HD_CONFLICT: the job
 * has not ended, and may go on from it. */
enum hd_status core_checkpoint_remove(struct hd_core *core, struct core_job *job, int64_t step,
                                      const char *by);
void core_checkpoint_prune(struct hd_core *core, struct core_job *job);
/* The weights that `attempt` had after `step` gave a finite loss and a finite gradient: so the
 * checkpoints up to there are proven, the attempt's base among them. */
void core_checkpoint_prove(struct hd_core *core, struct core_job *job, int32_t attempt,
                           int64_t step);
/* The attempt diverged from its first step on: so the weights that it started from are not sound.
 */
void core_checkpoint_disprove_base(struct hd_core *core, struct core_job *job,
                                   const struct core_attempt *attempt);
/* The newest proven checkpoint that no attempt found damaged; NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_proven(const struct core_job *job);
/* With checkpoint.best: the undamaged one with the lowest validation loss, the oldest of equals;
 * NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_best(const struct core_job *job);
/* The node that is to delete it: the one that wrote it or, where all see the jobs directory and
 * that one is lost, another. NULL: none can. */
struct core_node *core_checkpoint_deleter(const struct hd_core *core,
                                          const struct hd_checkpoint_record *checkpoint);
bool core_waits_for_deletion(const struct core_job *job); /* of a checkpoint, or of its folder */
void core_checkpoint_forget_all(struct hd_core *core, struct core_job *job);
/* The node is gone for good: what only it could delete counts as deleted. */
void core_checkpoint_abandon(struct hd_core *core, struct core_node *node);
void core_checkpoint_deleted(struct hd_core *core, const struct core_node *node,
                             const struct hd_deletion *deletion);
/* What the next attempt starts from: the newest one that no attempt found damaged, or the newest if
 * all were found damaged. NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_newest(const struct core_job *job);

/* The attempt ended because its base checkpoint is damaged. */
bool core_attempt_found_base_damaged(const struct core_attempt *attempt);
/* For an attempt that found its base damaged: the newest undamaged checkpoint, which the next
 * attempt starts from. NULL: its base was not damaged, or there is no other. */
const struct hd_checkpoint_record *core_checkpoint_fallback(const struct core_job *job,
                                                            const struct core_attempt *attempt);
/* The attempt has reported a checkpoint of the job's last step. */
bool core_checkpoint_is_final(const struct core_job *job, const struct core_attempt *attempt);
bool core_attempt_progressed(const struct core_job *job, int32_t attempt); /* has a checkpoint */

/* ---- plan.c -----------------------------------------------------------------------------------*/

/* The job's wish with the device kind filled in: the limits on ranks depend on it. */
struct hd_plan_request core_wish_on(const struct hd_job_needs *needs, enum hd_device_kind kind);
/* hd_core_plan without an error message; false: there is no layout. */
bool core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind, int32_t count,
               struct hd_plan_record *ret_plan);

#endif

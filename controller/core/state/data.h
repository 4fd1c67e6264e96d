/* data: the core's state in memory and its containers (map.c, index.c). Private to
 * controller/core. */
#ifndef HD_CONTROLLER_CORE_DATA_H
#define HD_CONTROLLER_CORE_DATA_H

#include "controller/core/core.h"

/* ---- maps -------------------------------------------------------------------------------------*/

/* A hash map from strings to numbers. Entries are never removed. */
struct core_map {
    struct core_map_slot {
        char *key;
        uint64_t hash, value; /* hash: of the key, so that other keys are rarely read */
    } * slots;
    size_t count, size; /* size: number of slots, a power of two, or 0 */
};

void core_map_done(struct core_map *map);
bool core_map_get(const struct core_map *map, const char *key, uint64_t *ret_value);
bool core_map_put(struct core_map *map, const char *key, uint64_t value); /* false: no memory */

/* A hash table of all jobs, by job number. */
struct core_table {
    struct core_job **buckets;
    size_t count, size; /* size: number of buckets, a power of two, or 0 */
};

bool core_table_add(struct core_table *table, struct core_job *job); /* false: no memory */
void core_table_remove(struct core_table *table, struct core_job *job);
/* Returns the job after `job` in the order of the hash table; NULL gives the first, the last gives
 * NULL. Visits every job: only for freeing the core and for checking invariants. */
struct core_job *core_table_next(const struct core_table *table, const struct core_job *job);

/* A set of jobs, sorted by job number. */
struct core_jobs {
    struct core_job **items;
    size_t count, size;
};

void core_jobs_add(struct hd_core *core, struct core_jobs *jobs, struct core_job *job);
void core_jobs_remove(struct core_jobs *jobs, const struct core_job *job);
bool core_jobs_have(const struct core_jobs *jobs, const struct core_job *job);
struct core_known_job *core_find_known_job(const struct hd_core *core, uint64_t job);
/* Records how a job ended; a live state (a resumed job) clears the outcome. */
void core_outcome_set(struct hd_core *core, uint64_t job, enum hd_job_state state);
enum hd_job_state core_outcome_of(const struct hd_core *core, uint64_t job); /* 0: not ended */

/* A binary min-heap of (key, value). */
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

/* Links between the devices of one node, stored once for all nodes that report equal links. */
struct core_links {
    struct hd_node_links links;
    size_t nodes; /* reference count: nodes that use this entry */
};

/* Cost of stopping an attempt at a checkpoint, so that its job continues later or elsewhere
 * (core_stop_cost_of). Losses are in milliseconds of one device, times the attempt's devices. */
struct core_stop_cost {
    int64_t lost_ms;    /* work since its last checkpoint, lost if it cannot write another one */
    int64_t idle_ms;    /* time in which its devices do not train: restart_ms of each */
    int64_t restart_ms; /* milliseconds that the stop and the next start are assumed to take */
};

/* Devices that an attempt uses, or that are reserved for a job. `core->allocations` holds all that
 * the scheduler reckons with; core_allowance is the only rule who may use them besides their job. */
struct core_allocation {
    enum core_allocation_why {
        CORE_RUNS,      /* an attempt holds the devices, until the predicted end until_mono_ms */
        CORE_BORROWS,   /* an attempt holds them that stops when an older job needs them */
        CORE_PLANNED,   /* the job cannot start there yet, or its layout is being computed */
        CORE_CLEARING,  /* attempts are stopping there for the job */
        CORE_MIGRATING, /* the job stops elsewhere, and continues there */
        CORE_SEARCHING, /* the job failed there, and its checkpoints are being searched */
        CORE_SPARE,     /* kept free for jobs that fail (hot_spare.c); the number of its job is 0 */
    } why;
    enum hd_device_kind kind;
    uint64_t job;                 /* number of the job; with MIGRATING: its migration_group */
    struct core_attempt *attempt; /* with RUNS and BORROWS; else NULL */
    int64_t from_mono_ms;       /* start of use (time of the pass with RUNS); INT64_MAX: unknown */
    int64_t until_mono_ms;      /* predicted end of use; INT64_MAX: unknown */
    int32_t priority;           /* with `attempt`: its job's */
    struct core_stop_cost cost; /* only in the lists of preempt.c */
};

/* The list of allocations: first RUNS with a predicted end, in the order of these ends; behind them
 * the other attempts, and what this pass starts or reserves, in the order in which it does. */
struct core_allocations {
    struct core_allocation *items;
    size_t count, size, run_count; /* run_count: RUNS with a predicted end */
};

struct core_node {
    /* Members that are read by searches for a placement, on thousands of nodes; kept within one or
     * two cache lines. */
    size_t index; /* index of the node in core->nodes; stale with CORE_DUE_ARRAYS */
    int64_t leaf; /* number of the leaf switch (lowest tier) to which the node is attached; -1:
                   * unknown */
    struct core_reserved {   /* the newest pass's reservation of this node's devices */
        uint32_t allocation; /* 1 + index in core->allocations; 0: none */
        int32_t surplus;     /* devices of this node that its job will not need; other jobs may
                              * hold them past its start */
    } reserved;
    struct core_counts {
        int32_t free, all;    /* working devices of one kind on the node; free: those that no
                               * attempt holds */
        int64_t least_memory; /* bytes of memory of the smallest device among `all`; INT64_MAX: none
                               * is known */
    } counts[HD_DEVICE_KIND_COUNT];

    struct hd_node_record rec; /* strings are copies owned by the core (core_set_text) */
    uint64_t stream;           /* number of its newest stream; 0: no stream since the controller
                                * started */
    bool connected;            /* the newest stream is open */
    bool synced;               /* an observed set arrived on the node's newest stream */
    bool jobs_dir_visible;     /* the newest observed set says that the node sees the jobs
                                * directory */
    const char *jobs_dir_problem;
    const char
        *reported_refusal; /* why the node's daemon accepts no new attempts, by the newest observed
                            * set; NULL, "": it accepts them */
    const char *refuses_attempts; /* effective reason: reported_refusal, or the missing jobs
                                   * directory (observe.c); NULL, "": none */
    bool lacks_jobs_dir;          /* true: refuses_attempts is about the missing jobs directory */
    bool leaves;            /* the newest observed set says that its daemon exits soon; its attempts
                             * then stop at a checkpoint */
    const char *asked_name; /* new name that its daemon requests, applied when no job runs on the
                             * node; "", NULL: none */
    struct hd_node_facts facts; /* the texts are owned by the core */
    bool obeyed_before; /* obeyed_before of the node's hello (core.h); once set, cleared only by a
                         * later hello without it, and only after told_all was set */
    bool knows_copies;  /* an observed set arrived since the controller started; copied_ms is set */
    int64_t copied_ms;  /* time of its newest copy of a checkpoint that has an event, or that was
                         * there when the controller started; 0: none */
    bool told_all;      /* an observed set of the node arrived after its newest hello */
    bool suspect;       /* another node reported this node dead */
    bool deadline_met;  /* true: the drain deadline has passed, and its jobs were told to
                                    * leave */
    int64_t seen_mono_ms;         /* arrival of the node's newest message */
    int64_t silent_since_mono_ms; /* start of its silence: seen_mono_ms, or later if the controller
                                    * started or was paused since */
    int64_t silent_since_ms;      /* start of the node's silence, by the wall clock */
    int64_t lost_after_ms;        /* milliseconds of silence after which the node is lost; longer
                                    * while a reconnect is still expected */
    size_t stale_count;           /* number of running attempts that the node should not have and
                                    * is stopping (stale attempts) */
    uint64_t stale_job;           /* job and attempt of one stale attempt */
    int32_t stale_attempt;
    uint64_t generation;          /* generation of the node's desired set */
    struct core_links *links;     /* links between its devices, in their order; NULL: all links are
                                   * equal */
    int64_t position;             /* index in config.tree; NO_POSITION: not in the tree */
    struct hd_device_hold *holds; /* holder of each device, in the order of rec.devices */
    bool alike;                   /* true: all devices are equal in every property that a layout
                                   * depends on */
    struct core_jobs active;      /* subset of core->active: jobs with ranks on this node */
    bool probes;                  /* the node's daemon answers probe requests */
    uint64_t probe_asked;         /* number of the unanswered probe request; 0: none */
    struct core_probe {           /* the node's newest probe; members as in hd_probe_record */
        int64_t ended_ms, measured_ms;
        const char *problem, *measured_on;
        struct hd_device_figures *devices;
        int32_t device_count;
    } probe;
    bool dirty, desired_dirty;
    struct core_node *next_dirty;
};

/* Flags of one node (bits of core->marks); searches for a placement test them instead of reading
 * the node itself. */
enum core_mark {
    CORE_MARK_USABLE = 1,   /* core_node_usable is true */
    CORE_MARK_RESERVED = 2, /* the node has a reservation */
};

enum { CORE_RATES = 3 };

/* Median rates of one class of equal devices, represented by one device; recomputed when
 * CORE_DUE_MEDIANS is set. */
struct core_median {
    const struct core_node *node;
    int32_t device;
    double value[CORE_RATES];
    size_t count[CORE_RATES]; /* for each kind of rate: number of devices whose rate is known */
};

/* The ranks of one attempt on one node. */
struct core_node_alloc {
    struct core_node *node;
    int32_t devices; /* number of its ranks, one device each */
    int32_t works;   /* how many of its devices have no problem */
    bool listed;     /* an observed set of the node has contained the attempt */
    bool running;    /* all its ranks are connected to the attempt's other ranks */
    bool ended;
    bool secondary; /* the attempt's ranks on this node stopped only because ranks on another node
                     * were gone; none failed here */
    bool removed;   /* the job is being removed by a user, and its files on this node are deleted
                     * already */
    uint64_t stop_generation; /* generation of the first desired set that tells the node to stop the
                               * attempt; 0: none yet */
    const char *problem;      /* problem reported by its node; "" or NULL: none */
    bool waits;               /* true: the node lets the ranks neither start nor end until `problem`
                               * is over */
};

struct core_attempt {
    /* Members that are read by searches for a placement, on thousands of attempts; kept within one
     * cache line. */
    struct core_node_alloc *allocs;
    size_t alloc_count;
    enum hd_device_kind kind; /* kind of its devices */
    uint32_t slot;            /* number that no other active attempt has (core_forecast.ended) */
    int64_t ends_mono_ms;     /* predicted end, computed by the newest pass; INT64_MAX: unknown */

    struct hd_attempt_record rec; /* strings and ranks are copies owned by the core */
    uint64_t *seq;                /* for each rank: sequence number of its newest accepted report */
    int64_t state_since_mono_ms;  /* time at which the attempt started or, once it is stopping,
                                   * began to stop */
    bool backfilled;       /* the attempt runs on devices that are reserved for other jobs, and is
                            * predicted to end before those need them */
    bool kill;             /* true: nodes must kill its ranks (wanted state STOPPED) although the
                            * job is not cancelled */
    bool failed;           /* true: the attempt has failed, and rec.end holds its first failure */
    bool early;            /* true: a node reported that its ranks ended before the last step, as
                            * validate.stop says; rec.end.message has the reason */
    bool had_finite_step;  /* a rank reported a step with finite loss and gradient */
    int64_t last_step;     /* newest step that a rank has reported; 0: none */
    int32_t saves_asked;   /* number of extra checkpoints requested by users */
    uint64_t start_number; /* sequence number of its start; 0: it started before this controller
                            * process */
    int64_t saved_mono_ms; /* arrival of its newest checkpoint report; 0: none yet */
    /* Measurement of the attempt's pace: first and newest reported step, with their times by the
     * rank's clock (last_step_mono_ms: by the controller's). */
    int64_t first_step, first_step_ms, last_step_ms, last_step_mono_ms;
    double restored_step_ms; /* milliseconds per step, measured before this controller process
                              * started; used until a new pace is measured; 0: none */
    bool judged_wrong;       /* the event that its predicted step time is wrong was added */
    bool dirty;
};

enum { CORE_AVOIDED_MAX = 8, CORE_RESERVERS_MAX = 8 };

enum core_wait {
    CORE_WAIT_NONE,
    CORE_WAIT_HELD,     /* a user holds the job */
    CORE_WAIT_AFTER,    /* other jobs must succeed first */
    CORE_WAIT_ARRAY,    /* as many members of its array are open as may run (array.c) */
    CORE_WAIT_DELAY,    /* the retry delay is running */
    CORE_WAIT_SEARCH,   /* the disk is being searched for the job's checkpoints */
    CORE_WAIT_MISSING,  /* all listed checkpoints of the job are missing on the disk */
    CORE_WAIT_PLAN,     /* the layout of the job's placement is being computed; the job may have
                         * reserved nodes */
    CORE_WAIT_BETTER,   /* the job waits for a better placement than the one available now
                         * (job->choice) */
    CORE_WAIT_QUOTA,    /* the device limit of the job's queue, or of its user there, is used up */
    CORE_WAIT_BUSY,     /* devices that the job needs are held, or their nodes disconnected; the job
                         * has reserved nodes */
    CORE_WAIT_RESERVED, /* the nodes that the job could use are reserved for the job wait_job */
    CORE_WAIT_NEVER,    /* the job would not fit even if its nodes were idle */
};

/* A class of queued jobs that the scheduler treats alike: the key holds everything, besides the
 * cluster's state, that a placement depends on. */
struct core_class {
    struct core_class_key {
        enum hd_device_kind device;
        int32_t devices_min, devices_max;
        int64_t memory_min;
        uint32_t possible; /* bit set of the device kinds for which a layout exists */
        struct hd_plan_shape shape;
        bool has_base, base_shared;        /* has_base: the next attempt starts from a checkpoint;
                                            * base_shared: every node can read that checkpoint */
        const struct core_node *base_node; /* node that wrote the base checkpoint; NULL: no base, or
                                            * node unknown */
        int64_t length_minutes; /* upper bound of the job's running time, in minutes; 0: unknown */
        bool hot_spares;        /* these jobs may use hot spares, because their last attempt
                                 * failed */
        uint64_t avoids;        /* number of the job, if it avoids nodes where it failed; 0: avoids
                                 * none */
    } key;
    size_t group_count;
    uint64_t closed_in;  /* last pass in which a job of this class found neither a placement nor
                          * nodes to reserve; wait and wait_job belong to that pass */
    enum core_wait wait; /* why the jobs of this class wait that the pass closed_in has skipped */
    uint64_t wait_job;
    uint64_t sought_in; /* last pass in which explain.c looked for nodes with suitable devices;
                          * the next members belong to that pass */
    bool is_held;       /* jobs hold suitable devices on nodes that accept this class */
    bool is_away;       /* nodes that now accept no jobs have suitable devices */
    bool one_would_do;  /* one absent node has enough devices by itself */
    bool all_would_do;  /* absent and present nodes together have enough devices */
};

/* A queue and the devices held by its jobs. */
struct core_queue {
    struct hd_queue_record rec; /* the queue's record; its name is a copy owned by the core */
    int64_t held;               /* devices held by its jobs */
    size_t waiting;             /* number of queued jobs */
    struct core_heap next;      /* during a pass of the scheduler: next job of each group of this
                                 * queue, by priority key */
    struct core_queue *next_removed;
};

/* The devices that one user holds in one queue. */
struct core_account {
    struct core_queue *queue;
    int64_t held; /* devices */
};

/* Queued jobs with equal class, account and priority, in the order of their numbers. */
struct core_job_group {
    struct core_job_group_key {
        int32_t priority;
        struct core_account *account;
        struct core_class *class;
    } key;
    struct core_job *first, *last; /* doubly linked list, by job number */
    uint64_t closed_in;            /* last pass in which the group's account had no device quota
                                    * left */
};

/* Jobs of one owner with the same array.id (array.c). */
struct core_array {
    const char *owner, *id;
    struct core_jobs members; /* also those that have ended and are still in core->jobs */
    int32_t at_once; /* most members that run at a time; 0: any number. array.at_once of the
                      * newest member that has not ended, taken by core_arrays_settle */
    bool due;        /* true: a member was changed since core_arrays_settle */
};

struct core_job {
    struct hd_job_record rec; /* rec.state is changed by core_set_job_state only */
    struct hd_job_needs needs;
    struct core_attempt *active;    /* newest attempt while it has not ended; else NULL */
    struct core_attempt **attempts; /* the job's attempts; index: attempt number - 1 */
    size_t attempt_size;
    struct hd_checkpoint_record *checkpoints; /* checkpoints that are not deleted, in the order of
                                               * their reports */
    size_t checkpoint_count, checkpoint_size;
    uint64_t sequence;          /* sequence number of the newest entry of the job's history */
    int64_t not_before_mono_ms; /* earliest start of the job's next attempt; with CORE_WAIT_MISSING:
                                 * time of the next search of the disk */
    enum core_search { CORE_SEARCH_NONE, CORE_SEARCH_DUE, CORE_SEARCH_OUT } search;
    int64_t search_since_mono;  /* when `search` is CORE_SEARCH_OUT: time at which the search of the
                                * disk was requested */
    const char *search_problem; /* why the last search of the disk failed; NULL or "": it did not */
    bool missing_due;           /* a listed checkpoint was found missing on the disk, and the event
                                * about it is still to be added */
    enum core_wait wait;        /* why the queued job waits; stale if the newest pass skipped the
                                * job's class: core_wait_of decides */
    uint64_t wait_job; /* with CORE_WAIT_RESERVED: number of the job for which the nodes are
                                * reserved */
    const char
        *infeasible;   /* why `needs` were raised above what the job asked for (memory or devices);
                        * NULL: they were not */
    int32_t asked_min; /* devices_min as submitted, while `infeasible` is set */
    struct core_account *account;
    struct core_array *array;        /* NULL: the job is no member of an array */
    struct core_job_group *group;    /* NULL: not queued, or not startable yet (core_waiting_add) */
    struct core_job *before, *after; /* neighbours in the group's list */
    struct hd_core_choice choice;    /* comparison of two placements, made when a pass last
                                      * evaluated the job */
    bool price_predicted;    /* true: a prediction of the job's step time on its fewest devices was
                              * requested */
    double predicted_step_s; /* predicted seconds per step in the best placement; 0: unknown */
    double open_s;         /* longest step time in seconds among the placements that the job refused
                      * because it would have overrun a reservation there; 0: none */
    bool backfilled;       /* set when it starts: copied to the attempt's `backfilled` */
    int64_t price_mono_ms; /* deadline of waiting for predicted step times of better placements; 0:
                            * not waited yet (better.c) */
    int64_t better_until_mono_ms; /* deadline of waiting for a better placement; 0: not waited yet
                                   * (better.c) */
    bool is_preemptor;            /* other jobs were preempted for this job: it is evaluated
                                   * first */
    struct core_placement *
        pending; /* placement that preempted jobs make free for this job (clearing.c); NULL: unknown,
                  * or none */
    struct core_placement *migration_target; /* placement to which it moves, until its attempt has
                                              * stopped (defragment.c) */
    uint64_t migration_group;   /* job number under which the migration targets of its gang are
                                 * reserved; 0: it does not migrate */
    int64_t defragment_mono_ms; /* earliest time at which running jobs may be moved for it again */
    uint64_t blocked_at;  /* value of core->starts when the job first reserved nodes; attempts with
                           * a later start number use only the surplus devices of its reservation */
    uint64_t reserved_in; /* last pass of the scheduler in which the job reserved nodes */
    /* Expected start of the job, found in pass number expected_in and not reported to users yet;
     * expected_in 0: nothing to report. */
    uint64_t expected_in, expected_after;
    int64_t expected_mono_ms;
    const struct core_node *avoided[CORE_AVOIDED_MAX]; /* nodes on which the job failed twice */
    size_t avoided_count;
    uint64_t waits_for;    /* while rec.planned_start_ms is set: number of the job whose end that
                            * start depends on; 0: unknown */
    uint64_t evaluated_in; /* last pass of the scheduler that evaluated the job */
    uint64_t circle_look;  /* number of the newest check for cycles of `after` that visited the job
                            * (hd_core.circle_look) */
    struct core_slowdown_priority { /* place of the job in the evaluation order of one pass
                                     * (slowdown.c) */
        uint64_t pass, key;         /* the job with the smaller key is evaluated first */
        bool kept;                  /* true: the job keeps its turn: it is evaluated before the jobs
                                     * that do not */
    } slowdown_priority;
    const struct core_cached_layout *planning; /* cached layout, or open request for one, that the
                                                * job waits for; NULL: none */
    bool dirty, is_new, ended; /* ended: the job stays here until its deletions are confirmed */
    struct core_job *next_dirty, *next_in_table;
};

/* A cached layout, or a layout request without an answer yet (layout_cache.c). */
struct core_cached_layout {
    char *key;
    bool known, failed, fits; /* known: the request is answered; the members from `failed` on are
                               * then as in hd_core_answer */
    struct hd_layout_sizes layout;
    double step_s;
    int64_t memory_bytes;
    const char *why;
    bool ahead;            /* prefetch: no job waits for the answer yet (hd_core_asked) */
    bool preliminary;      /* the layout search was cut short, and chose by memory need alone
                            * (hd_core_answer) */
    bool improves;         /* the layout search runs again after a preliminary answer, which stays
                            * in use meanwhile */
    int64_t known_mono_ms; /* time at which the answer came */
    uint64_t *waiters;     /* numbers of jobs to notify when the answer comes */
    size_t waiter_count, waiter_size;
};

/* Free devices: now (core->present), or as if some attempts had ended (forecast.c). */
struct core_forecast {
    struct core_free {
        uint64_t *nodes;   /* one bit per node that has free devices (core_next_free) */
        int32_t *below;    /* sums over the nodes of each leaf switch, by core_node.leaf */
        uint16_t *of_node; /* free devices by node index, so that searches skip full nodes without
                            * reading them */
        int64_t total;     /* working devices that no attempt holds; includes reserved devices */
    } free[HD_DEVICE_KIND_COUNT];
    const struct core_allocation *list; /* allocations that it can end, in their order */
    size_t count, at;                   /* at: number of leading ones that have ended */
    uint64_t *ended;                    /* bits by core_attempt.slot: attempts that have ended */
    size_t ended_count;
    void *memory; /* all arrays */
};

/* Kinds of change that are looked at later: bits of hd_core.due, cleared by core_take_due. */
enum core_due {
    CORE_DUE_PASS = 1 << 0,   /* this step runs a pass: a job may start, or reservations change */
    CORE_DUE_TICK = 1 << 1,   /* the next tick runs a pass, if no other event does before */
    CORE_DUE_REPEAT = 1 << 2, /* this pass started or stopped an attempt: another pass follows */
    CORE_DUE_LONE = 1 << 3, /* in this pass a queued job became one that could start some day, or is
                             * no longer one */
    CORE_DUE_DEVICES = 1 << 4, /* a node has joined, or its devices have changed: raised needs are
                                * reset, and prices predicted again */
    CORE_DUE_DEPENDENTS =
        1 << 5,                 /* a job has ended: jobs that wait for it (`after`) are notified */
    CORE_DUE_ENDS = 1 << 6,     /* core.allocations lacks an attempt that has started since */
    CORE_DUE_ARRAYS = 1 << 7,   /* the arrays by node index are stale (free.c) */
    CORE_DUE_REACH = 1 << 8,    /* so are the sets of nodes that can form a gang (gang.c) */
    CORE_DUE_MEDIANS = 1 << 9,  /* so are the median rates of equal devices (probe.c) */
    CORE_DUE_SWEEP = 1 << 10,   /* some group is empty (core_waiting_sweep) */
    CORE_DUE_SILENCE = 1 << 11, /* a node's silence may be too long before silence_mono_ms */
    CORE_DUE_OPENED = 1 << 12,  /* core.opened is stale: a pass begins, or an attempt has started or
                                 * is stopping */
};

struct hd_core {
    struct hd_core_config config;
    uint32_t due;                 /* bits: enum core_due */
    const char *jobs_dir_problem; /* why the controller does not see the jobs directory; NULL or "":
                                   * it sees it */
    struct core_cached_layout **layout_cache; /* answers and open requests (layout_cache.c) */
    size_t cached_layout_count, cached_layout_size, cached_layout_known;
    struct core_map cached_layout_by_key; /* key -> index in layout_cache */
    struct core_table jobs;
    struct core_jobs active;    /* jobs with an attempt that has not ended */
    struct core_jobs deleting;  /* jobs with a checkpoint, or a folder, that is being deleted */
    struct core_jobs searching; /* queued jobs for which a search of the disk is due or under way
                                 * (core_job.search) */
    struct core_jobs
        price_unpredicted;       /* queued jobs, in a group, for which no prediction of step time
                                  * was requested yet */
    struct core_heap delayed;    /* numbers of jobs that wait for a time (retry delay, next search
                                  * of the disk), by that time; stale entries are skipped */
    struct core_class **classes; /* classes of queued jobs, by key */
    size_t class_count, class_size, live_count;
    struct core_job_group **groups; /* highest priority first */
    size_t group_count, group_size;
    struct core_queue **queues; /* all queues, sorted by name */
    struct core_queue *removed_queues;
    size_t queue_count, queue_size;
    struct core_account **accounts;
    size_t account_count, account_size;
    struct core_map account_by_name; /* "QUEUE OWNER" -> index in accounts */
    struct core_array **arrays;      /* arrays with a member in `jobs`, in no order */
    size_t array_count, array_size;
    struct core_jobs dependents;        /* queued jobs that wait for other jobs to succeed */
    struct core_jobs preemptors;        /* queued jobs with `is_preemptor` */
    struct core_jobs migrating;         /* jobs that migrate to another placement (migration_group
                                         * is set) */
    struct core_jobs reservers;         /* jobs that reserved nodes in the newest pass */
    struct core_jobs planned_to_start;  /* queued jobs with an expected start */
    struct core_jobs resize_candidates; /* running jobs that have just written a checkpoint and may
                                         * use more devices */
    uint32_t *reaches[HD_DEVICE_KIND_COUNT]; /* for each device kind: numbers of all its reach sets
                                              * (nodes that can form a gang), in the order of their
                                              * first nodes */
    /* Numbers of the reach sets (nodes that can form a gang) that each node belongs to, by node
     * index; 0: none. near: set of nodes of the same machine; far: set of nodes that other machines
     * reach. */
    struct core_reach {
        uint32_t near, far;
    } * reach_of[HD_DEVICE_KIND_COUNT];
    size_t reach_count[HD_DEVICE_KIND_COUNT], reach_size[HD_DEVICE_KIND_COUNT];
    /* Free devices now. Its totals always hold; its arrays are rebuilt when nodes were added or moved
     * (CORE_DUE_ARRAYS). */
    struct core_forecast present;
    /* Devices that are free when all attempts have ended that a job may preempt (preempt.c); kept for
     * the next job, until CORE_DUE_OPENED or the end of core_schedule. memory NULL: not made. */
    struct core_forecast opened;
    struct {
        int32_t priority;     /* of the job */
        uint64_t borrowed_by; /* number of the job, if it may also preempt those that borrow its
                               * devices; 0: it may not */
    } opened_for;
    int64_t leaf_count; /* length of core_free.below */
    /* Number of each node's switch in each tier from 1 on, by node index; -1: none. switch_of[0] is
     * 0 for all nodes, for sums over the whole cluster. Rebuilt with `present`. */
    int32_t *switch_of[HD_CLUSTER_TIERS_MAX + 1];
    uint8_t *marks; /* flags (enum core_mark) of each node, by node index; rebuilt with `present` */
    int32_t largest[HD_DEVICE_KIND_COUNT];      /* largest number of working devices that any node
                                                 * has ever had */
    int64_t least_memory[HD_DEVICE_KIND_COUNT]; /* smallest device memory ever seen, in bytes;
                                                 * unknown memory does not count */
    struct {                                    /* better.c: cached maximum over all nodes that may
                                                 * come back without a user's action */
        enum hd_device_kind kind;
        int64_t memory_min;
        int32_t devices; /* most devices on one node; 0: stale, because a node changed */
    } most;
    int64_t not_hot_spares
        [HD_DEVICE_KIND_COUNT];          /* working devices of all nodes that are not hot spares,
                                      * whether held or not */
    int32_t lowest_priority;             /* lower bound of the priorities of running jobs */
    struct core_allocations allocations; /* made anew by each pass (allocation.c) */
    uint64_t starts;                     /* number of attempts started by this process */
    bool limit_reported;                 /* the event about the limit of live jobs was added */
    /* True once every node known at the controller's start has reported its devices and attempts or
     * counts as unreachable (after unreachable_ms). Until then free devices are not reliably
     * known. */
    bool assembled;
    struct core_node **nodes; /* all nodes, sorted by name, retired nodes last */
    size_t node_count, node_size;
    struct core_node **reserved; /* nodes with a reservation */
    size_t reserved_count, reserved_size;
    int64_t silence_mono_ms;    /* time at which the next node may have been silent for too long */
    struct core_node **leaving; /* nodes whose daemon exits or that have a drain deadline, by
                                 * name */
    size_t leaving_count, leaving_size;
    struct core_links **links; /* the distinct links of all nodes */
    size_t link_count, link_size;
    struct core_median *medians; /* probe.c: one entry per class of equal devices */
    size_t median_count, median_size;
    uint64_t probe_number; /* number of the newest probe request */
    struct core_map node_by_uuid;
    struct core_map by_request;    /* request id and owner -> index in known_jobs */
    struct core_known_job {        /* one entry per job that ever existed, by number */
        uint64_t job, hash;        /* number of the job, and its request_hash (hd_job_record) */
        uint64_t owner;            /* hash of the owner's name */
        enum hd_job_state outcome; /* final state of the job; 0: not ended */
    } * known_jobs;
    size_t known_job_count, known_job_size;
    uint64_t last_job, cluster_sequence;
    bool any_infeasible;      /* true: the needs of some job were raised because no layout fitted
                               * (fit.c) */
    struct core_job *new_job; /* set when the only change is this newly submitted job, last in its
                               * group */
    uint64_t pass;            /* number of the newest pass over all classes */
    uint64_t circle_look;     /* number of the newest check for cycles among jobs that wait for one
                               * another (`after`) */
    int64_t pass_wall_ms;     /* wall-clock time of the newest pass */
    bool listens;             /* true: a tick was received, so pauses of the controller are detected
                               * from now on */
    int64_t away_ms;          /* length of a pause that no event has reported yet; 0: none
                               * (away.c) */
    bool no_memory;           /* sticky: an allocation has failed */
    struct core_job *dirty_jobs, **dirty_jobs_end;
    struct core_node *dirty_nodes, **dirty_nodes_end;
    uint32_t *free_slots; /* slots of attempts that have ended; room for slot_count */
    size_t free_slot_count, slot_count, slot_size;
    /* Output and time of the step that is running; out is set only for its duration. */
    struct hd_core_out *out;
    struct hd_now now;
};

static inline void core_due_if(struct hd_core *core, enum core_due what, bool is_due)
{
    core->due |= is_due ? what : 0;
}
/* Clears the bits; returns whether any was set. */
static inline bool core_take_due(struct hd_core *core, uint32_t what)
{
    const bool was_due = core->due & what;

    core->due &= ~what;
    return was_due;
}

/* ---- placements -------------------------------------------------------------------------------*/

/* One node of a placement, or a candidate for it. */
struct core_member {
    struct core_node *node;
    size_t index;    /* index of the node in core->nodes */
    bool ready;      /* the node is usable now */
    int32_t count;   /* devices that the job may use, or takes, on the node */
    int32_t surplus; /* free devices of the node that the placement does not use */
};
/* The parameters of a search for a placement of one job: the job, and which devices it may use. */
struct core_view {
    const struct hd_job_needs *needs;
    const struct hd_checkpoint_record *base; /* base checkpoint that the nodes must be able to read;
                                              * NULL: none */
    const struct core_job *job;              /* NULL: the job is not submitted */
    int64_t length_ms; /* upper bound of the job's running time in milliseconds, so that it may use
                        * devices that are reserved for later; 0: unknown */
    bool avoids;       /* exclude nodes on which the job failed twice */
    bool reserves;     /* true: exclude reserved nodes altogether, even their surplus devices */
    bool borrows;      /* true: include devices that are reserved for older jobs and that those do
                        * not need soon */
    bool hot_spares;   /* include hot spares */
    const struct core_forecast *forecast; /* free devices; NULL: core->present */
    /* Upper bounds of the placement: number of nodes, and network distance between them (tier of
     * hd_core_asked); 0: no bound. */
    int32_t nodes_max, tier_max;
};
struct core_placement {
    struct core_member *members; /* array on the heap; the owner of the placement frees it */
    size_t member_count;
    int32_t device_count; /* sum over all members; 0: there is no placement */
    int32_t unused_count; /* free devices of the member nodes that the placement leaves unused */
    int32_t tier;         /* network distance between the members, as `tier` of hd_core_asked */
    bool idle;            /* true: found as if all nodes were idle; its devices may be held by
                           * others */
    struct hd_plan_record plan;
};
/* Reason for which a node's devices of one kind cannot join a gang with those of some or all other
 * nodes; NONE: they can. */
enum core_gang_obstacle {
    CORE_GANG_OBSTACLE_NONE,
    CORE_GANG_OBSTACLE_JOBS_DIR, /* the node does not see the jobs directory */
    CORE_GANG_OBSTACLE_ADDRESS,  /* the node has no data address */
    CORE_GANG_OBSTACLE_ENGINE,   /* the node has no library for GPUs across nodes */
    CORE_GANG_OBSTACLE_LOOPBACK, /* its data address is reached only from its own machine */
    CORE_GANG_OBSTACLE_NUMERICS, /* some nodes compute other bits */
};

#endif

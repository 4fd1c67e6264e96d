/* core_state: the core's state in memory and its containers (map.c, index.c). Private to the files
 * of this folder. */
#ifndef HD_CONTROLLER_CORE_STATE_H
#define HD_CONTROLLER_CORE_STATE_H

#include "controller/core/core.h"

/* ---- maps -------------------------------------------------------------------------------------*/

/* A hash map from strings to numbers. Entries are never removed. */
struct core_map {
    struct core_map_slot {
        char *key;
        uint64_t value;
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
struct core_job *core_table_find(const struct core_table *table, uint64_t number);
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
/* Records how a job ended in the table of outcomes; a live state (a resumed job) clears the
 * outcome. */
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

/* Links between devices, shared by all nodes that report equal links. */
struct core_links {
    struct hd_node_links links;
    size_t nodes; /* reference count: nodes that use this entry */
};

enum { CORE_RESERVATION_OWNERS_MAX = 64, CORE_FIT_BOUNDS = 32, CORE_PRIORITIES = 16 };

/* A distinct (job, planned start, device kind) among the reservations; many reserved nodes refer to
 * one entry. */
struct core_reservation_owner {
    uint64_t by;
    int64_t start_mono_ms;
    enum hd_device_kind kind;
};

/* Upper bound on the devices that a set of jobs can use (fit_bound.c); one cache entry. */
struct core_fit_bound {
    uint64_t changes; /* value of core->changes when the bound was computed; a different value:
                       * stale */
    uint64_t
        usable; /* bit set over core->reservation_owners: reservations whose devices the jobs may
                 * use */
    enum hd_device_kind kind;
    int32_t unit;              /* devices per tensor-parallel group */
    bool hot_spares, reserves; /* as in core_view */
    int32_t devices;           /* usable free devices on all nodes */
    int32_t total;             /* sum over nodes, rounded down per node to whole groups */
    int32_t largest;           /* usable free devices of the node that has most */
};

struct core_node {
    /* Members that searches read on thousands of nodes, kept within one or two cache lines. */
    size_t index; /* index in core->nodes; stale while core->free_due */
    int64_t leaf; /* switch of the lowest tier to which the node is attached; -1: unknown */
    struct core_counts {
        int32_t free, all;    /* working devices; free: not held, or assumed freed */
        int64_t least_memory; /* bytes, smallest among `all`; INT64_MAX: none is known */
    } counts[HD_DEVICE_KIND_COUNT];

    struct hd_node_record rec; /* strings are copies owned by the core (core_set_text) */
    uint64_t stream;           /* number of its newest stream; 0: no stream since the controller
                                * started */
    bool connected;            /* the newest stream is open */
    bool synced;               /* an observed set arrived on that stream */
    bool jobs_dir_visible;     /* from the newest observed set */
    const char *jobs_dir_problem;
    const char
        *reported_refusal; /* from the newest observed set: why its daemon accepts no new attempts;
                            * NULL, "": it accepts them */
    const char *refuses_attempts; /* effective reason: reported_refusal, or the missing jobs
                                   * directory (core_node_update_refusal); NULL, "": none */
    bool lacks_jobs_dir;          /* true: refuses_attempts is about the missing jobs directory */
    bool leaves;            /* from the newest observed set: its daemon exits soon, so its attempts
                             * stop at a checkpoint */
    const char *asked_name; /* new name that its daemon requests, applied when no job runs on the
                             * node; "", NULL: none */
    const char *host;       /* host name of its machine; "", NULL: equal to the node's name */
    const char *data_address; /* address at which other nodes reach its ranks; "": none */
    const char *compute[HD_DEVICE_KIND_COUNT]; /* per device kind: numerics class; nodes with equal
                                                * strings compute equal bits */
    const char *traits;            /* traits of its CPU devices, as one word; "" or NULL: unknown */
    struct hd_isolation isolation; /* texts are owned by the core */
    bool obeyed_before; /* as in the hello; cleared by a later hello without it, once told_all was
                         * set */
    bool told_all;      /* an observed set arrived after the newest hello */
    bool suspect;       /* a peer reported it dead */
    bool hot_spare, was_hot_spare; /* hot spare in the newest pass, and in the pass before
                                    * (hot_spare.c) */
    bool deadline_met;             /* the drain deadline has passed and its jobs were told to
                                    * leave */
    int64_t seen_mono_ms;          /* arrival of its newest message */
    int64_t silent_since_mono_ms;  /* start of its silence: seen_mono_ms, or later if the controller
                                    * started or was paused since */
    int64_t silent_since_ms;       /* start of its silence, by the wall clock */
    int64_t lost_after_ms;         /* silence until it is lost; longer while a reconnect is still
                                    * expected */
    size_t stale_count;            /* running attempts that the node should not have and is
                                    * stopping */
    uint64_t stale_job;            /* job and attempt of one stale attempt */
    int32_t stale_attempt;
    uint64_t generation;          /* generation of its desired set */
    struct core_links *links;     /* links between its devices, in their order; NULL: all links are
                                   * equal */
    int64_t position;             /* index in config.tree; NO_POSITION: not in the tree */
    struct hd_device_hold *holds; /* holder of each device, in the order of rec.devices */
    bool alike;                   /* true: all devices are equal in every property that a layout
                                   * depends on */
    struct core_jobs active;      /* subset of core->active: jobs with ranks on this node */
    struct core_reservation {
        uint64_t by;           /* number of the queued job for which devices are reserved; 0: no
                                * reservation */
        int64_t start_mono_ms; /* expected start of that job; INT64_MAX: unknown */
        int32_t surplus;       /* devices of this node that the job will not need; other jobs may
                                * hold them past its start */
        enum hd_device_kind kind;
        uint16_t owner_index; /* 1 + index in core->reservation_owners; 0: the table was full */
    } reserved;
    bool probes;          /* its daemon answers probe requests */
    uint64_t probe_asked; /* number of the unanswered probe request; 0: none */
    struct core_probe {   /* newest probe; members as in hd_probe_record */
        int64_t ended_ms, measured_ms;
        const char *problem, *measured_on;
        struct hd_device_figures *devices;
        int32_t device_count;
    } probe;
    bool dirty, desired_dirty;
    struct core_node *next_dirty;
};

/* Flags per node that searches test instead of reading the node itself. */
enum core_mark {
    CORE_MARK_USABLE = 1, /* core_node_usable is true */
    CORE_MARK_HOT_SPARE = 2,
    CORE_MARK_RESERVED = 4, /* the node has a reservation */
};

enum { CORE_RATES = 3 };

/* Median rates of one class of equal devices, represented by one device; recomputed when
 * core.medians_due is set. */
struct core_median {
    const struct core_node *node;
    int32_t device;
    double value[CORE_RATES];
    size_t count[CORE_RATES]; /* devices whose rate is known, per rate */
};

/* The ranks of one attempt on one node. */
struct core_node_alloc {
    struct core_node *node;
    int32_t devices; /* number of its ranks, one device each */
    int32_t works;   /* how many of its devices have no problem */
    bool listed;     /* an observed set of the node has contained it */
    bool running;    /* all its ranks are connected to the others */
    bool ended;
    bool secondary; /* its ranks stopped only because ranks on another node were gone; none failed
                     * here */
    bool removed;   /* the job is being removed, and its files on this node are deleted */
    uint64_t stop_generation; /* generation of the first desired set that says to stop it; 0: none
                               * yet */
    const char *problem;      /* problem reported by its node; "" or NULL: none */
    bool waits;               /* true: its node holds it back until `problem` is over */
};

struct core_attempt {
    /* Members that searches read on thousands of attempts, kept within one cache line. */
    struct core_node_alloc *allocs;
    size_t alloc_count;
    enum hd_device_kind kind; /* kind of its devices */
    bool assumed_freed;       /* true while a search counts its devices as free */
    int64_t ends_mono_ms;     /* predicted end, computed by the newest pass; INT64_MAX: unknown */

    struct hd_attempt_record rec; /* strings and ranks are copies owned by the core */
    uint64_t *seq;                /* per rank: seq of the newest accepted report */
    int64_t state_since_mono_ms;  /* time of the start, or of the begin of stopping */
    bool backfilled;       /* it runs on devices that are reserved for others, and is predicted to
                            * end before they need them */
    bool kill;             /* true: the wanted state is STOPPED although the job is not cancelled */
    bool failed;           /* rec.end holds the first failure */
    bool had_finite_step;  /* a step with finite loss and gradient was reported */
    int64_t last_step;     /* newest reported step; 0: none */
    int32_t saves_asked;   /* number of extra checkpoints requested by users */
    uint64_t start_number; /* sequence number of its start; 0: it started before this controller
                            * process */
    int64_t saved_mono_ms; /* arrival of its newest checkpoint report; 0: none yet */
    /* Pace measurement: first and newest reported step, with times by the rank's clock
     * (last_step_mono_ms: by the core's). */
    int64_t first_step, first_step_ms, last_step_ms, last_step_mono_ms;
    double restored_step_ms; /* milliseconds per step, from before this controller process; used
                              * until a new pace is measured */
    bool dirty;
};

enum { CORE_AVOIDED_MAX = 8, CORE_RESERVERS_MAX = 8 };

enum core_wait {
    CORE_WAIT_NONE,
    CORE_WAIT_HELD,     /* a user holds it */
    CORE_WAIT_AFTER,    /* other jobs must succeed first */
    CORE_WAIT_DELAY,    /* the retry delay is running */
    CORE_WAIT_SEARCH,   /* its checkpoints are being listed on the disk */
    CORE_WAIT_MISSING,  /* all its listed checkpoints are missing on the disk */
    CORE_WAIT_PLAN,     /* the layout of its placement is being computed; it may have reserved
                         * nodes */
    CORE_WAIT_BETTER,   /* a better placement than the one available now (job->choice) */
    CORE_WAIT_QUOTA,    /* the quota of its queue or user is used up */
    CORE_WAIT_BUSY,     /* devices are held, or nodes disconnected; it has reserved nodes */
    CORE_WAIT_RESERVED, /* the nodes it could use are reserved by wait_job */
    CORE_WAIT_NEVER,    /* it would not fit even if its nodes were idle */
};

/* A class of queued jobs that are equal to the scheduler: the key holds everything, besides the
 * cluster's state, that a placement depends on. */
struct core_class {
    struct core_class_key {
        enum hd_device_kind device;
        int32_t devices_min, devices_max;
        int64_t memory_min;
        uint32_t possible; /* bit set of the device kinds for which a layout exists */
        struct hd_plan_shape shape;
        bool has_base, base_shared;        /* the next attempt has a base checkpoint; it is readable
                                            * from every node */
        const struct core_node *base_node; /* node that wrote the base checkpoint; NULL: no base, or
                                            * node unknown */
        int64_t length_minutes; /* upper bound of the job's running time, in minutes; 0: unknown */
        bool hot_spares;        /* may use hot spares, because its last attempt failed */
        uint64_t avoids;        /* number of the job, if it avoids nodes where it failed; 0: avoids
                                 * none */
    } key;
    size_t group_count;
    uint64_t closed_in;  /* last pass in which a job of the class found neither a placement nor
                          * nodes to reserve; wait and wait_job belong to that pass */
    enum core_wait wait; /* why the jobs wait that this pass skipped */
    uint64_t wait_job;
    uint64_t sought_in;  /* last pass in which explain.c looked for nodes with suitable devices;
                          * is_held and is_away belong to that pass */
    bool is_held;        /* suitable devices are held on nodes that accept the class */
    bool is_away;        /* other nodes with suitable devices accept no jobs */
    uint64_t awaited_in; /* last pass in which explain.c checked whether returning nodes would help;
                          * the next two members belong to that pass */
    bool one_would_do;   /* one absent node has enough devices by itself */
    bool all_would_do;   /* absent and present nodes together have enough devices */
};

/* A queue and the devices held by its jobs. */
struct core_queue {
    struct hd_queue_record rec; /* its name is a copy owned by the core */
    int64_t held;               /* devices held by its jobs */
    size_t waiting;             /* number of queued jobs */
    struct core_heap next;      /* used in a pass: next job of each group, by priority key */
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
    uint64_t closed_in;            /* last pass in which its account had no quota left */
};

struct core_job {
    struct hd_job_record rec; /* rec.state is changed by core_set_job_state only */
    struct hd_job_needs needs;
    struct core_attempt *active;    /* newest attempt while it has not ended; else NULL */
    struct core_attempt **attempts; /* by attempt number - 1 */
    size_t attempt_size;
    struct hd_checkpoint_record *checkpoints; /* checkpoints that are not deleted, in the order of
                                               * their reports */
    size_t checkpoint_count, checkpoint_size;
    uint64_t sequence;          /* sequence number of the newest entry of its history */
    int64_t not_before_mono_ms; /* earliest start of the next attempt; with CORE_WAIT_MISSING: time
                                 * of the next search of the disk */
    enum core_search { CORE_SEARCH_NONE, CORE_SEARCH_DUE, CORE_SEARCH_OUT } search;
    int64_t search_since_mono; /* with OUT: when the search was requested */
    bool search_newer;         /* the search also adds checkpoints that are newer than the list */
    bool missing_due;          /* a checkpoint was found missing; its event is still to be added */
    enum core_wait wait;       /* why it waits; stale if the pass skipped its class: core_wait_of
                                * decides */
    uint64_t wait_job;         /* with CORE_WAIT_RESERVED: the job that holds the reservation */
    const char
        *infeasible;   /* why `needs` were raised above what the job asked for (memory or devices);
                        * NULL: they were not */
    int32_t asked_min; /* devices_min as submitted, while `infeasible` is set */
    struct core_account *account;
    struct core_job_group *group;    /* NULL: not queued, or not startable yet (core_waiting_add) */
    struct core_job *before, *after; /* neighbours in the group's list */
    struct hd_core_choice choice;    /* comparison made by the newest evaluation */
    bool price_predicted;    /* a prediction of its step time was requested (for its smallest device
                              * count) */
    double predicted_step_s; /* predicted seconds per step in the best placement; 0: unknown */
    double open_s;   /* longest step time (s) among the placements that it refused because it would
                      * have overrun a reservation there; 0: none */
    bool backfilled; /* set when it starts: copied to the attempt's `backfilled` */
    int64_t price_mono_ms; /* deadline of waiting for predicted step times of better placements; 0:
                            * not waited yet (better.c) */
    int64_t better_until_mono_ms; /* deadline of waiting for a better placement; 0: not waited yet
                                   * (better.c) */
    bool is_preemptor;            /* other jobs were stopped for it: it is evaluated first */
    struct core_placement *
        pending; /* the placement that stopping jobs make free for it (pending.c); NULL: unknown, or
                  * none */
    struct core_placement *migration_target; /* placement to which it moves, until its attempt has
                                              * stopped (defragment.c) */
    uint64_t migration_group;   /* job number under which the migration targets of its gang are
                                 * reserved; 0: it does not migrate */
    int64_t defragment_mono_ms; /* earliest time at which running jobs may be moved for it again */
    uint64_t blocked_at;  /* core->starts when it first reserved nodes; attempts with a later number
                           * use only its surplus */
    uint64_t reserved_in; /* last pass in which it reserved nodes */
    /* Expected start found by pass expected_in and not yet reported; expected_in 0: nothing to
     * report. */
    uint64_t expected_in, expected_after;
    int64_t expected_mono_ms;
    const struct core_node *avoided[CORE_AVOIDED_MAX]; /* nodes on which it failed twice */
    size_t avoided_count;
    uint64_t waits_for;    /* with rec.planned_start_ms: the job whose end the start depends on; 0:
                            * unknown */
    uint64_t evaluated_in; /* last pass that evaluated it */
    uint64_t circle_look;  /* last cycle check of `after` that visited it */
    struct core_slowdown_priority { /* its place in the order of one pass (slowdown.c) */
        uint64_t pass, key;         /* the job with the smaller key is evaluated first */
        bool kept;                  /* true: it keeps its turn, and is evaluated before jobs that do
                                     * not */
    } slowdown_priority;
    const struct core_cached_layout *planning; /* layout that it waits for; NULL: none */
    bool dirty, is_new, ended; /* ended: the job stays here until its deletions are confirmed */
    struct core_job *next_dirty, *next_in_table;
};

/* A cached layout, or a layout request without an answer yet (layout_cache.c). */
struct core_cached_layout {
    char *key;
    bool known, failed, fits; /* known: answered; the members from `failed` on are then as in
                               * hd_core_answer */
    struct hd_layout_sizes layout;
    double step_s;
    int64_t memory_bytes;
    const char *why;
    bool ahead;            /* as in hd_core_asked */
    bool preliminary;      /* as in hd_core_answer */
    bool improves;         /* a preliminary answer is being recomputed; it stays in use meanwhile */
    int64_t known_mono_ms; /* time of the answer */
    uint64_t *waiters;     /* numbers of jobs to notify when the answer comes */
    size_t waiter_count, waiter_size;
};

/* Scratch memory of one search or sort. Contents are invalid afterwards; the arrays are reused by
 * the next search (core_arrays_free). */
struct core_scratch {
    struct core_member *members; /* used for placements on several nodes */
    size_t member_size;
    uint16_t *sum_free_of;  /* ends.c: free devices per node index */
    int64_t *sum_of_switch; /* ends.c: sums per switch number */
    /* Copies of free_of and has_free of one kind, taken while no end was assumed freed (ends.c). */
    uint16_t *actual_free_of;
    uint64_t *actual_has_free;
    struct core_switch *switches[HD_CLUSTER_TIERS_MAX]; /* links.c: per tier, by switch number */
    uint64_t switches_filled;                           /* number of times `switches` was filled;
                                                         * entries with another number are stale */
    struct core_end *end_keys;                          /* sort keys of hd_core.ends */
    size_t end_key_size;
    size_t ends_assumed_freed; /* number of leading entries of hd_core.ends that are assumed freed
                                * (ends.c) */
    bool keeps_assumptions; /* true between core_find_first and core_find_first_end: assumptions are
                             * kept for the next search */
    size_t assumed_freed;   /* number of attempts whose devices currently count as free */
    bool ignores_fit_bounds; /* set by checks: search even where the fit bound excludes a
                              * placement */
};

struct hd_core {
    struct hd_core_config config;
    const char *jobs_dir_problem; /* why the controller does not see the jobs directory; NULL or "":
                                   * it sees it */
    struct core_cached_layout **layout_cache; /* answers and open requests (layout_cache.c) */
    size_t cached_layout_count, cached_layout_size, cached_layout_known;
    struct core_map cached_layout_by_key; /* key -> index in layout_cache */
    struct core_table jobs;
    struct core_jobs active;    /* jobs with an attempt that has not ended */
    struct core_jobs deleting;  /* jobs with a checkpoint, or a folder, that is being deleted */
    struct core_jobs searching; /* queued jobs whose `search` is set */
    struct core_jobs
        price_unpredicted;       /* jobs in a group for which no step time prediction was requested
                                  * yet */
    struct core_heap delayed;    /* job numbers by retry time; stale entries are skipped */
    struct core_class **classes; /* classes of queued jobs, by key */
    size_t class_count, class_size, live_count;
    struct core_job_group **groups; /* highest priority first */
    size_t group_count, group_size;
    bool group_emptied;         /* a group has become empty: core_waiting_sweep frees it */
    struct core_queue **queues; /* by name */
    struct core_queue *removed_queues;
    size_t queue_count, queue_size;
    struct core_account **accounts;
    size_t account_count, account_size;
    struct core_map account_by_name;    /* "QUEUE OWNER" -> index in accounts */
    struct core_jobs dependents;        /* queued jobs that wait for other jobs to succeed */
    struct core_jobs preemptors;        /* queued jobs with `is_preemptor` */
    struct core_jobs migrating;         /* jobs with `migration_group` */
    struct core_jobs reservers;         /* jobs that reserved nodes in the newest pass */
    struct core_jobs planned_to_start;  /* queued jobs with an expected start */
    struct core_jobs resize_candidates; /* running jobs that have just written a checkpoint and may
                                         * use more devices */
    struct core_outcome {               /* one entry per job that ever existed, by number */
        uint64_t job;
        enum hd_job_state state; /* final state; 0: not ended */
    } * outcomes;
    size_t outcome_count, outcome_size;
    bool just_ended; /* a job has ended since its dependents were last notified */
    /* Working devices per kind, on all nodes, that no attempt holds or that a search assumes freed;
     * reserved devices included. */
    int64_t free_devices[HD_DEVICE_KIND_COUNT];
    bool reach_due;                          /* a node has changed in a way that may change which
                                              * nodes can form a gang (gang.c) */
    uint32_t *reaches[HD_DEVICE_KIND_COUNT]; /* the numbers of all reach sets, in the order of their
                                              * first nodes */
    /* By node index: numbers of the reach sets (nodes that can form a gang) that the node belongs
     * to; 0: none. near: nodes of the same machine; far: nodes that other machines reach. */
    struct core_reach {
        uint32_t near, far;
    } * reach_of[HD_DEVICE_KIND_COUNT];
    size_t reach_count[HD_DEVICE_KIND_COUNT], reach_size[HD_DEVICE_KIND_COUNT];
    /* By node index: free devices of each kind, so that searches skip full nodes without reading
     * them. Rebuilt when nodes were added or moved (free_due). */
    uint16_t *free_of[HD_DEVICE_KIND_COUNT];
    uint64_t
        *has_free[HD_DEVICE_KIND_COUNT]; /* one bit per node with free devices (core_next_free) */
    int32_t *free_below[HD_DEVICE_KIND_COUNT]; /* sums of free_of per leaf switch
                                                * (core_node.leaf) */
    int64_t leaf_count;                        /* length of free_below */
    bool free_due;
    /* By node index, rebuilt with free_of: the node's switch in each tier from 1 on; -1: none.
     * switch_of[0] is 0 for all nodes, for sums over the whole cluster. */
    int32_t *switch_of[HD_CLUSTER_TIERS_MAX + 1];
    uint8_t *marks; /* enum core_mark, by node index, rebuilt with free_of */
    struct core_reserved_devices {
        uint16_t owner_index, surplus; /* copies from core_reservation, for nodes with
                                        * CORE_MARK_RESERVED */
    } * reserved_of;
    int32_t largest[HD_DEVICE_KIND_COUNT];      /* largest number of working devices that any node
                                                 * has ever had */
    int64_t least_memory[HD_DEVICE_KIND_COUNT]; /* smallest device memory ever seen, in bytes;
                                                 * unknown memory does not count */
    struct {                                    /* better.c: cached maximum over nodes that may come
                                                 * back */
        enum hd_device_kind kind;
        int64_t memory_min;
        int32_t devices; /* most devices on one node; 0: stale, because a node changed */
    } most;
    int64_t not_hot_spares
        [HD_DEVICE_KIND_COUNT];      /* working devices of nodes that are not hot spares, held or
                                      * not */
    int32_t lowest_priority;         /* lower bound of the priorities of running jobs */
    struct core_attempt **borrowers; /* attempts that borrow reserved devices, in the order of their
                                      * jobs */
    size_t borrower_count, borrower_size;
    struct core_attempt **ends; /* attempts with a known end, sorted by predicted end; from the
                                 * newest pass */
    size_t end_count, end_size;
    struct core_gain *gains; /* devices that become free with the first `gained` ends, in order */
    size_t *gains_until;     /* by end: index behind its last gain */
    size_t gain_count, gain_size, gained, gained_size;
    bool ends_due;        /* an attempt has started since `ends` was built */
    uint64_t starts;      /* number of attempts started by this process */
    bool changed_in_pass; /* an attempt was started or stopped in this pass: another pass follows */
    bool queue_changed;   /* a job became startable some day, or stopped being so */
    bool limit_reported;  /* the event about the limit of live jobs was added */
    /* True once every node known at the controller's start has reported its devices and attempts or
     * counts as unreachable (after unreachable_ms). Until then free devices are not reliably
     * known. */
    bool assembled;
    struct core_node **nodes; /* by name, retired nodes last */
    size_t node_count, node_size;
    struct core_node **reserved; /* nodes with a reservation */
    size_t reserved_count, reserved_size;
    struct core_reservation_owner
        reservation_owners[CORE_RESERVATION_OWNERS_MAX]; /* distinct owners of the reservations */
    size_t reservation_owner_count;
    bool reservation_owners_overflow; /* the table was too small for all owners */
    uint64_t changes; /* counter: incremented when devices become free or held, and when a node's
                       * usability or reservation changes */
    struct core_fit_bound fit_bounds[CORE_FIT_BOUNDS];
    size_t next_fit_bound;
    /* Devices held in this pass: by attempts of each priority, by stopping attempts, by borrowers;
     * the sums overlap (preempt.c). */
    struct core_held {
        int32_t priority;
        int64_t devices;
    } held[CORE_PRIORITIES];
    size_t held_count;
    bool held_lacks; /* more than CORE_PRIORITIES priorities exist: `held` is incomplete */
    int64_t held_by_stopping, held_by_borrowers;
    struct core_node **leaving; /* nodes whose daemon exits or that have a drain deadline, by
                                 * name */
    size_t leaving_count, leaving_size;
    struct core_links **links; /* the distinct links of all nodes */
    size_t link_count, link_size;
    struct core_median *medians; /* probe.c: one entry per class of equal devices */
    size_t median_count, median_size;
    bool medians_due;
    uint64_t probe_number; /* number of the newest probe request */
    struct core_map node_by_uuid;
    struct core_map by_request; /* request id and owner -> index in requests */
    struct core_request {       /* one entry per job that ever existed, by number */
        uint64_t job, hash;     /* as in hd_job_record */
        uint64_t owner;         /* hash of the owner's name */
    } * requests;
    size_t request_count, request_size;
    uint64_t last_job, cluster_sequence;
    bool any_infeasible;      /* some job's needs were raised (fit.c) */
    bool schedule_due;        /* something changed that may let a job start or change reservations:
                               * run a pass in this step */
    bool unsettled;           /* something changed that a pass must consider, but the next tick or
                               * pass is soon enough */
    struct core_job *new_job; /* set when the only change is this newly submitted job, last in its
                               * group */
    uint64_t pass;            /* number of the newest pass over all classes */
    uint64_t circle_look;     /* number of the newest cycle check of `after` */
    int64_t pass_wall_ms;     /* wall-clock time of the newest pass */
    bool listens;             /* a tick has been received: pauses are detected from then on */
    int64_t away_ms;          /* length of a pause that no event has reported yet; 0: none
                               * (away.c) */
    bool no_memory;           /* sticky: an allocation has failed */
    struct core_job *dirty_jobs, **dirty_jobs_end;
    struct core_node *dirty_nodes, **dirty_nodes_end;
    struct core_scratch scratch;
    /* Set for the duration of one step. */
    struct hd_core_out *out;
    struct hd_now now;
};

#endif

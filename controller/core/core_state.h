/* core_state: the core's memory, and the containers that it is made of (map.c, index.c); only for
 * the files of this folder. */
#ifndef HD_CONTROLLER_CORE_STATE_H
#define HD_CONTROLLER_CORE_STATE_H

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

enum { CORE_RESERVATION_OWNERS_MAX = 64, CORE_FIT_BOUNDS = 32, CORE_PRIORITIES = 16 };

/* What reservations are for: nodes that are kept for one job have this in common. */
struct core_reservation_owner {
    uint64_t by;
    int64_t start_mono_ms;
    enum hd_device_kind kind;
};

/* What is open to some jobs (fit_bound.c). */
struct core_fit_bound {
    uint64_t changes; /* core->changes when it was summed up */
    uint64_t
        usable; /* set of the places in core->reservation_owners whose devices these jobs may use */
    enum hd_device_kind kind;
    int32_t unit;              /* of whole tensor-parallel groups */
    bool hot_spares, reserves; /* as in core_view */
    int32_t devices;           /* of all nodes */
    int32_t total;             /* those in whole groups of a node */
    int32_t largest;           /* devices of the node that has most */
};

struct core_node {
    /* What searches read and change of thousands of nodes, in a line of the cache or two. */
    size_t index; /* in core->nodes, unless core->free_due */
    int64_t leaf; /* the switch of the lowest tier that it is at; -1: none is known */
    struct core_counts {
        int32_t free, all;    /* that work; free: not held, or assumed freed */
        int64_t least_memory; /* of those; unknown memory counts as any */
    } counts[HD_DEVICE_KIND_COUNT];

    struct hd_node_record rec; /* its strings are copies that the core owns (core_set_text) */
    uint64_t stream;           /* number of its newest stream */
    bool connected;            /* that stream is open */
    bool synced;               /* an observed set arrived on that stream */
    bool jobs_dir_visible;     /* as in the newest observed set */
    const char *jobs_dir_problem;
    const char
        *reported_refusal; /* likewise: why its daemon takes no new attempts; NULL, "": it does */
    const char *refuses_attempts; /* reported_refusal, or that it lacks the jobs directory
                                     (core_node_update_refusal) */
    bool lacks_jobs_dir;          /* refuses_attempts says so */
    bool leaves; /* likewise: its daemon ends soon, so its attempts stop at a checkpoint */
    const char *asked_name;   /* name that its daemon gives, taken over when no job runs there; "",
                               * NULL: none */
    const char *host;         /* host name of its machine; "", NULL: the node's name */
    const char *data_address; /* where other nodes reach its ranks; "": none */
    const char *compute[HD_DEVICE_KIND_COUNT]; /* equal strings compute equal bits on this kind */
    const char *traits;            /* of its CPU devices, as a word; "" or NULL: not known */
    struct hd_isolation isolation; /* its texts are the core's */
    bool obeyed_before; /* as in its hello, until it has said so no more and has told all */
    bool told_all;      /* an observed set came after the hello that said so */
    bool suspect;       /* a peer reported it dead */
    bool hot_spare, was_hot_spare; /* in the newest pass, in the one before (hot_spare.c) */
    bool deadline_met;             /* of its drain; its jobs have been told to leave */
    int64_t seen_mono_ms;          /* when its newest message arrived */
    int64_t silent_since_mono_ms;  /* the same, or later: when the controller began to listen */
    int64_t silent_since_ms;       /* by the wall clock, as it was then */
    int64_t lost_after_ms;         /* silence until lost; longer while it may still connect again */
    size_t stale_count;            /* attempts that run there and are not wanted any more */
    uint64_t stale_job;            /* one of them */
    int32_t stale_attempt;
    uint64_t generation;      /* of its desired set */
    struct core_links *links; /* between its devices, by their positions; NULL: they are alike */
    int64_t position;         /* in config.tree; NO_POSITION: far from all others */
    struct hd_device_hold *holds; /* per device, in the order of rec.devices */
    bool alike;                   /* its devices differ in nothing that a layout depends on */
    struct core_jobs active;      /* of core->active, those with ranks here */
    struct core_reservation {
        uint64_t by;           /* the queued job that devices here are kept for; 0: none */
        int64_t start_mono_ms; /* when that job is expected to start; INT64_MAX: not known */
        int32_t surplus;       /* so many devices it will not need: others may hold them then */
        enum hd_device_kind kind;
        uint16_t owner_index; /* its place in core->reservation_owners, from 1 on; 0: it has none
                                 there */
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

/* What a search asks of a node before it looks at it. */
enum core_mark {
    CORE_MARK_USABLE = 1, /* core_node_usable */
    CORE_MARK_HOT_SPARE = 2,
    CORE_MARK_RESERVED = 4, /* devices are kept there */
};

enum { CORE_RATES = 3 };

/* What a kind of device does, of which one is at this place; valid until a result, a node or its
 * devices change (core.medians_due). */
struct core_median {
    const struct core_node *node;
    int32_t device;
    double value[CORE_RATES];
    size_t count[CORE_RATES]; /* devices whose rate is known */
};

/* The ranks of one attempt on one node. */
struct core_node_alloc {
    struct core_node *node;
    int32_t devices; /* of its ranks */
    int32_t works;   /* so many of these work */
    bool listed;     /* an observed set of the node has listed it */
    bool running;    /* its ranks are connected to all others */
    bool ended;
    bool
        secondary; /* its ranks gave up because those of another node were gone; none failed here */
    bool removed;  /* the job is being removed: its files here are deleted */
    uint64_t stop_generation; /* first desired set that says to stop it; 0: none yet */
    const char *problem;      /* reported by its node; "" or NULL: none */
    bool waits;               /* its node lets it wait until that is over */
};

struct core_attempt {
    /* What searches read of thousands of attempts, in a line of the cache. */
    struct core_node_alloc *allocs;
    size_t alloc_count;
    enum hd_device_kind kind; /* of its devices */
    bool assumed_freed;       /* while a search counts its devices as free */
    int64_t ends_mono_ms; /* its predicted end, as the newest pass took it; INT64_MAX: not known */

    struct hd_attempt_record rec; /* its strings and ranks are copies that the core owns */
    uint64_t *seq;                /* per rank: seq of the newest accepted report */
    int64_t state_since_mono_ms;  /* when it started, or when stopping began */
    bool backfilled;       /* it holds devices that are kept for others, as it ends in time */
    bool kill;             /* wanted STOPPED even if the job is not cancelled */
    bool failed;           /* rec.end holds the first failure */
    bool had_finite_step;  /* one of its steps had a finite loss and gradient */
    int64_t last_step;     /* the newest that was reported; 0: none */
    int32_t saves_asked;   /* checkpoints, beside those that are due */
    uint64_t start_number; /* attempts are numbered as they start; 0: before this controller */
    int64_t saved_mono_ms; /* when its newest checkpoint was reported; 0: none yet */
    /* Measured steps: the first and the newest report of a step, by the rank's clock. */
    int64_t first_step, first_step_ms, last_step_ms, last_step_mono_ms;
    double restored_step_ms; /* from before this controller, until it has measured */
    bool dirty;
};

enum { CORE_AVOIDED_MAX = 8, CORE_RESERVERS_MAX = 8 };

enum core_wait {
    CORE_WAIT_NONE,
    CORE_WAIT_HELD,     /* for a user to release it */
    CORE_WAIT_AFTER,    /* for other jobs to succeed */
    CORE_WAIT_DELAY,    /* for the retry delay */
    CORE_WAIT_SEARCH,   /* for the list of its checkpoints that are on the disk */
    CORE_WAIT_MISSING,  /* for a checkpoint that is on the disk: none of those listed is */
    CORE_WAIT_PLAN,     /* for the layout of its place to be found; it may have reserved nodes */
    CORE_WAIT_BETTER,   /* for a better place than it could have now (job->choice) */
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
        bool hot_spares;        /* it may use hot spares, as its attempt failed */
        uint64_t avoids;        /* the job, if it avoids nodes that failed it; 0: none */
    } key;
    size_t group_count;
    uint64_t closed_in;  /* in this pass one found no place and kept no nodes; then: */
    enum core_wait wait; /* of the jobs that the pass skipped for that */
    uint64_t wait_job;
    uint64_t sought_in;  /* in this pass its nodes were looked at (explain.c); then: */
    bool is_held;        /* jobs hold devices on nodes that take jobs of the class, */
    bool is_away;        /* and other nodes with such devices take none */
    uint64_t awaited_in; /* in this pass it was looked whether a return of nodes would do; then: */
    bool one_would_do;   /* one of them has enough devices, */
    bool all_would_do;   /* or all nodes together have, with theirs */
};

/* A queue with what its jobs hold. */
struct core_queue {
    struct hd_queue_record rec; /* its name is a copy that the core owns */
    int64_t held;               /* devices */
    size_t waiting;             /* queued jobs */
    struct core_heap next;      /* of the pass: groups by the number of their next job */
    struct core_queue *next_removed;
};

/* What one user has of one queue. */
struct core_account {
    struct core_queue *queue;
    int64_t held; /* devices */
};

/* Queued jobs of one class, account and priority: a pass takes them in the order of numbers. */
struct core_job_group {
    struct core_job_group_key {
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
    struct core_attempt *active;    /* the newest attempt, until it has ended; else NULL */
    struct core_attempt **attempts; /* by number - 1 */
    size_t attempt_size;
    struct hd_checkpoint_record *checkpoints; /* not deleted, in order of acceptance */
    size_t checkpoint_count, checkpoint_size;
    uint64_t sequence;          /* of the newest entry of its history */
    int64_t not_before_mono_ms; /* the next attempt starts no earlier; with CORE_WAIT_MISSING: the
                                 * next look at the disk */
    enum core_search { CORE_SEARCH_NONE, CORE_SEARCH_DUE, CORE_SEARCH_OUT } search;
    int64_t search_since_mono; /* with OUT: when it was sent */
    bool search_newer;         /* the search adds newer checkpoints that are not in the list */
    bool missing_due;          /* a checkpoint was found missing, and no event has said so yet */
    enum core_wait wait; /* while queued; core_wait_of says whether it is this or the class's */
    uint64_t wait_job;   /* with CORE_WAIT_RESERVED */
    const char
        *infeasible;   /* why needs ask for larger or more devices than the job; NULL: nothing */
    int32_t asked_min; /* devices_min of the job, while misfit is set */
    struct core_account *account;
    struct core_job_group
        *group; /* NULL: not queued, or not to be started yet (core_waiting_add) */
    struct core_job *before, *after; /* in the group */
    struct hd_core_choice choice;    /* of the newest look at it */
    bool price_predicted; /* it has asked how long a step will take, on as few devices as it may use
                           */
    double predicted_step_s; /* so long, in the best place; 0: not known */
    double open_s;   /* the price of a step in the worst place that was open to it while it waits,
                      * and where it would have held for too long what is kept for others; 0: none */
    bool backfilled; /* of the place that it starts in: as of its attempt */
    int64_t price_mono_ms; /* it waits for prices of better places until then at most; 0: it has not
                            * yet (better.c) */
    int64_t
        better_until_mono_ms; /* it waits for a better place until then at most; 0: it has not yet
                               * (better.c) */
    bool is_preemptor;        /* others were stopped so that it can start: it comes first */
    struct core_placement *
        pending; /* with pending allocations: where (pending.c); NULL: that is not known any more */
    struct core_placement *migration_target; /* the place that it moves to, until it has stopped
                                  * (defragment.c) */
    uint64_t migration_group;   /* its room is reserved under the number of this job; 0: it does not
                                   move */
    int64_t defragment_mono_ms; /* running jobs are asked to move for it no earlier than this */
    uint64_t blocked_at;  /* core->starts when it first reserved nodes; attempts that start later
                             * hold only what it can spare */
    uint64_t reserved_in; /* the last pass in which it reserved nodes */
    /* Its expected start as that pass found it, until it is told; expected_in 0: it is. */
    uint64_t expected_in, expected_after;
    int64_t expected_mono_ms;
    const struct core_node *avoided[CORE_AVOIDED_MAX]; /* that failed it twice */
    size_t avoided_count;
    uint64_t
        waits_for; /* with rec.planned_start_ms: the job whose end it waits for; 0: not known */
    uint64_t evaluated_in; /* the last pass that tried to place it */
    uint64_t circle_look;  /* the last look for a circle of jobs after jobs that has seen it */
    struct core_slowdown_priority { /* of that pass (slowdown.c) */
        uint64_t pass, key;         /* the job with the smaller key comes first */
        bool kept;                  /* it comes before those that do not keep their turn */
    } slowdown_priority;
    const struct core_cached_layout *planning; /* while it waits for that; NULL: it does not */
    bool dirty, is_new, ended; /* an ended job stays here until its deletions are confirmed */
    struct core_job *next_dirty, *next_in_table;
};

/* An answer to a question about a layout (layout_cache.c), or the question alone. */
struct core_cached_layout {
    char *key;
    bool known, failed, fits; /* failed, fits and the rest: as in hd_core_answer, once known */
    struct hd_layout_sizes layout;
    double step_s;
    int64_t memory_bytes;
    const char *why;
    bool ahead;            /* as in hd_core_asked */
    bool preliminary;      /* as in hd_core_answer */
    bool improves;         /* known and hasty: it is being asked for once more */
    int64_t known_mono_ms; /* when it was answered */
    uint64_t *waiters;     /* numbers of jobs that asked ahead */
    size_t waiter_count, waiter_size;
};

/* Memory of one search or one sort: its values mean nothing after that, its arrays are kept for the
 * next one (core_arrays_free). */
struct core_scratch {
    struct core_member *members; /* for placements on several nodes */
    size_t member_size;
    uint16_t *sum_free_of;  /* ends.c: by index in nodes */
    int64_t *sum_of_switch; /* likewise: by number of a switch */
    /* free_of and has_free of a kind while none of the ends was assumed freed (ends.c) */
    uint16_t *actual_free_of;
    uint64_t *actual_has_free;
    struct core_switch *switches[HD_CLUSTER_TIERS_MAX]; /* links.c: by number of a switch */
    uint64_t switches_filled;                           /* so many times */
    struct core_end *end_keys;                          /* what hd_core.ends are sorted by */
    size_t end_key_size;
    size_t
        ends_assumed_freed; /* so many of hd_core.ends are assumed freed, from the first (ends.c) */
    bool keeps_assumptions; /* between core_find_first and core_find_first_end */
    size_t assumed_freed;   /* attempts whose devices count as free for a search */
    bool ignores_fit_bounds; /* while checks ask: places are looked for even where there is no room
                              */
};

struct hd_core {
    struct hd_core_config config;
    const char *jobs_dir_problem; /* why the controller does not see it; NULL or "": it does */
    struct core_cached_layout **layout_cache; /* layout_cache.c */
    size_t cached_layout_count, cached_layout_size, cached_layout_known;
    struct core_map cached_layout_by_key; /* index in layout cache */
    struct core_table jobs;
    struct core_jobs active;    /* those with an attempt that has not ended */
    struct core_jobs deleting;  /* those with a checkpoint that is being deleted, or their folder */
    struct core_jobs searching; /* queued ones with job->search */
    struct core_jobs
        price_unpredicted;       /* in a group, and have not asked how long a step will take */
    struct core_heap delayed;    /* job numbers by the time of their retry; some are out of date */
    struct core_class **classes; /* of queued jobs, by key */
    size_t class_count, class_size, live_count;
    struct core_job_group **groups; /* highest priority first */
    size_t group_count, group_size;
    bool group_emptied;         /* some group has no job left */
    struct core_queue **queues; /* by name */
    struct core_queue *removed_queues;
    size_t queue_count, queue_size;
    struct core_account **accounts;
    size_t account_count, account_size;
    struct core_map account_by_name;    /* "QUEUE OWNER" -> index in accounts */
    struct core_jobs dependents;        /* queued jobs that wait for others to succeed */
    struct core_jobs preemptors;        /* queued jobs with `is_preemptor` */
    struct core_jobs migrating;         /* those with `migration_group` */
    struct core_jobs reservers;         /* of the newest pass */
    struct core_jobs planned_to_start;  /* queued jobs with an expected start */
    struct core_jobs resize_candidates; /* that have just written a checkpoint, and may have more
                                      * devices */
    struct core_outcome {               /* of every job ever, by number */
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
    /* By index in nodes: the numbers of gangs that it may be in; 0: none. near: of the nodes of its
     * machine; far: of those that others reach, if it is one. */
    struct core_reach {
        uint32_t near, far;
    } * reach_of[HD_DEVICE_KIND_COUNT];
    size_t reach_count[HD_DEVICE_KIND_COUNT], reach_size[HD_DEVICE_KIND_COUNT];
    /* By index in nodes: free devices of a kind, so that a search passes over full nodes without a
     * look at them. Made anew when nodes have come or moved (free_due). */
    uint16_t *free_of[HD_DEVICE_KIND_COUNT];
    uint64_t
        *has_free[HD_DEVICE_KIND_COUNT]; /* a bit for each node that has some (core_next_free) */
    int32_t *free_below[HD_DEVICE_KIND_COUNT]; /* the sums of that, by core_node.leaf */
    int64_t leaf_count;                        /* of those sums */
    bool free_due;
    /* By index in nodes, made anew with free_of: the node's switch in each tier from 1 on; -1: it
     * is at none. switch_of[0] puts all nodes at one switch, 0, for sums over the whole cluster. */
    int32_t *switch_of[HD_CLUSTER_TIERS_MAX + 1];
    uint8_t *marks; /* enum core_mark, likewise */
    struct core_reserved_devices {
        uint16_t owner_index, surplus; /* as in core_reservation, of nodes that are reserved */
    } * reserved_of;
    int32_t largest[HD_DEVICE_KIND_COUNT];      /* no node has ever had more devices that work */
    int64_t least_memory[HD_DEVICE_KIND_COUNT]; /* of any such device, ever; not known: any */
    struct {                                    /* better.c: of nodes that may come back */
        enum hd_device_kind kind;
        int64_t memory_min;
        int32_t devices; /* that one has, at most; 0: not known, as some node has changed */
    } most;
    int64_t not_hot_spares
        [HD_DEVICE_KIND_COUNT];      /* devices of nodes that are no hot spares, held or not */
    int32_t lowest_priority;         /* of the jobs that run, or lower */
    struct core_attempt **borrowers; /* attempts that borrow, in the order of their jobs */
    size_t borrower_count, borrower_size;
    struct core_attempt **ends; /* those whose end is known, by their ends; of the newest pass */
    size_t end_count, end_size;
    struct core_gain *gains; /* what the first `gained` ends give back, in their order */
    size_t *gains_until;     /* by end: the first gain that is of a later one */
    size_t gain_count, gain_size, gained, gained_size;
    bool ends_due;        /* an attempt has started since */
    uint64_t starts;      /* attempts started */
    bool changed_in_pass; /* an attempt was started or stopped: one more pass is needed */
    bool queue_changed;   /* a job can start some day that could not before, or the reverse */
    bool limit_reported;  /* of live jobs: the event that says so is out */
    /* After the controller's start: every node of its records has reported its devices and
     * attempts, or counts as unreachable (after unreachable_ms, 15 s). Until then free devices are
     * not known.
     */
    bool assembled;
    struct core_node **nodes; /* by name, retired ones last */
    size_t node_count, node_size;
    struct core_node **reserved; /* those with a reservation */
    size_t reserved_count, reserved_size;
    struct core_reservation_owner
        reservation_owners[CORE_RESERVATION_OWNERS_MAX]; /* of these reservations */
    size_t reservation_owner_count;
    bool reservation_owners_overflow; /* some reservation has no place there */
    uint64_t changes; /* counts up when devices become free or held, nodes usable, kept, or not */
    struct core_fit_bound fit_bounds[CORE_FIT_BOUNDS];
    size_t next_fit_bound;
    /* Of the pass: devices held by attempts of each priority, of those that stop, and of borrowers;
     * some are counted twice (preempt.c). */
    struct core_held {
        int32_t priority;
        int64_t devices;
    } held[CORE_PRIORITIES];
    size_t held_count;
    bool held_lacks; /* there are more priorities */
    int64_t held_by_stopping, held_by_borrowers;
    struct core_node **leaving; /* all that leave or are drained until a deadline; by name */
    size_t leaving_count, leaving_size;
    struct core_links **links; /* all that nodes have */
    size_t link_count, link_size;
    struct core_median *medians; /* probe.c */
    size_t median_count, median_size;
    bool medians_due;
    uint64_t probe_number; /* of the newest question */
    struct core_map node_by_uuid;
    struct core_map by_request; /* request id and owner -> index in requests */
    struct core_request {       /* of every job ever, by number */
        uint64_t job, hash;     /* as in hd_job_record */
        uint64_t owner;         /* a hash of its name */
    } * requests;
    size_t request_count, request_size;
    uint64_t last_job, cluster_sequence;
    bool any_infeasible;      /* some job has asked for larger or more devices (fit.c) */
    bool schedule_due;        /* something changed that may let a job start, or keep other nodes */
    bool unsettled;           /* the same, but it can wait for the next pass, or tick */
    struct core_job *new_job; /* nothing changed but that this job came, behind all others */
    uint64_t pass;            /* number of the newest pass over all classes */
    uint64_t circle_look;     /* number of the newest look for a circle of jobs after jobs */
    int64_t pass_wall_ms;     /* when it was made */
    bool listens;             /* ticks have begun */
    int64_t away_ms;          /* it was stopped for so long, and no event says so yet (away.c) */
    bool no_memory;           /* sticky */
    struct core_job *dirty_jobs, **dirty_jobs_end;
    struct core_node *dirty_nodes, **dirty_nodes_end;
    struct core_scratch scratch;
    /* of the current step */
    struct hd_core_out *out;
    struct hd_now now;
};

#endif

/* core_internal: what the files of this folder offer to one another; what they node allocation is in
 * core_state.h. Only for these files.
 *
 *   core.c        the step, queries, invariants
 *   memory.c      strings and arrays; jobs, attempts, node allocations and nodes are found
 *   mark.c        changed records, entries of histories
 *   map.c         hash map from strings to numbers
 *   index.c       jobs by number, and the sets of jobs that steps walk over
 *   node.c        nodes in memory: devices, states, leases
 *   membership.c  nodes that come, answer, are drained, and go
 *   observe.c     what nodes say of their attempts
 *   job.c         jobs and attempts in memory
 *   submit.c      jobs that are submitted and cancelled
 *   start.c       attempts that start
 *   end.c         attempts that stop, fail and end; retries; ends of jobs
 *   resume.c      jobs that are resumed, queued again, or asked for a checkpoint
 *   remove.c      ended jobs that are removed with their folders
 *   queue.c       queues, their limits and node allocations
 *   waiting.c     queued jobs, in classes of jobs that wait for the same; nodes that failed a job
 *   schedule.c    the pass: which queued job is looked at when, and what becomes of it
 *   schedule_check.c  what the pass should have decided, found out in the simplest way
 *   slowdown.c       the turn of a job among those of its queue
 *   place.c       where a job finds a place
 *   free.c        what searches read of all nodes
 *   fit_bound.c        how many devices a job could have at most
 *   better.c       whether a job waits for a better place than it could have now
 *   reserve.c     places that are kept for jobs that do not fit now, and expected starts
 *   hot_spare.c       nodes that are held back for jobs that fail
 *   predict.c     when running attempts will end
 *   ends.c        after how many of these ends a job has a place
 *   preempt.c     which running jobs are preempted
 *   pending.c       the place that they make free for a job
 *   defragment.c running jobs that move so that a gang can be together
 *   move.c        running jobs that go on elsewhere, or with more devices
 *   explain.c     why jobs wait
 *   gang.c        one job on several nodes
 *   links.c       which devices of its nodes an attempt takes; nodes of one switch
 *   checkpoint.c  reports, the list of checkpoints, which ones are deleted
 *   missing.c     checkpoints that are listed and not on the disk
 *   away.c        a controller that was stopped for a while blames no node for what it missed
 *   clock.c       times that are awaited follow a wall clock that is set
 *   restore.c     memory rebuilt from the store's records
 *   plan.c        layouts
 *   probe.c       what nodes have measured of their devices, and which are slow
 */
#ifndef HD_CONTROLLER_CORE_INTERNAL_H
#define HD_CONTROLLER_CORE_INTERNAL_H

#include "controller/core/core_state.h"

/* ---- placements -------------------------------------------------------------------------------*/

/* A node of a placement. */
struct core_member {
    struct core_node *node;
    size_t index;    /* in core->nodes */
    bool ready;      /* usable now */
    int32_t count;   /* devices that the job may use or takes there */
    int32_t surplus; /* core_find_first: devices that it does not need */
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
    bool hot_spares;   /* also hot spares */
    /* Only a place on so few nodes, and at one switch of so low a tier, as in hd_core_asked; 0: any
     * place. */
    int32_t nodes_max, tier_max;
};
struct core_placement {
    struct core_member *members; /* on the heap */
    size_t member_count;
    int32_t device_count; /* of all members; 0: there is no placement */
    int32_t unused_count; /* devices of the members that stay free */
    int32_t tier;         /* as in hd_core_asked */
    bool idle;            /* its devices may be held by others */
    struct hd_plan_record plan;
};

/* ---- memory.c ---------------------------------------------------------------------------------*/

/* Frees *slot and sets it to a copy of text, cut to HD_CTL_PATH_BYTES_MAX. Out of memory: NULL,
 * which readers treat as "", and core->no_memory is set. */
void core_set_text(struct hd_core *core, const char **slot, const char *text);
void core_free_text(const char **slot);
bool core_same(const char *a, const char *b); /* equal strings; NULL equals "" */
/* Grows *array (`array`: address of a typed pointer) to count + 1 items; false: out of memory. */
bool core_grow_array(struct hd_core *core, void *array, size_t count, size_t *size,
                     size_t item_bytes);

struct core_job *core_find_job(const struct hd_core *core, uint64_t number);
struct core_attempt *core_find_attempt(const struct core_job *job, int32_t number);
struct core_attempt *core_newest(const struct core_job *job); /* NULL: none yet */
static inline struct core_attempt *core_active(const struct core_job *job)
{
    return job->active;
}
/* It was told to stop at a checkpoint, for another job or a drain. Of no job (NULL): no. */
static inline bool core_is_being_preempted(const struct core_job *job)
{
    return job && job->active && job->active->rec.state == HD_ATTEMPT_STATE_STOPPING &&
           job->active->rec.stop_cause == HD_END_CAUSE_PREEMPTED;
}
struct core_node_alloc *core_find_node_alloc(const struct core_attempt *attempt,
                                             const struct core_node *node);
struct core_node *core_find_node(const struct hd_core *core, const char *uuid);
struct core_node *core_find_node_named(const struct hd_core *core, const char *name);
/* The node failed the job twice, and the view avoids such nodes. */
bool core_avoids(const struct core_view *view, const struct core_node *node);

/* ---- mark.c -----------------------------------------------------------------------------------*/

/* Dirty records are added to the batch when the step ends. */
void core_dirty_job(struct hd_core *core, struct core_job *job);
void core_dirty_attempt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
void core_dirty_node(struct hd_core *core, struct core_node *node);
/* The node's desired set changed: raises its generation and reports it in out->nodes. */
void core_dirty_desired(struct hd_core *core, struct core_node *node);
/* Reports the job in out->jobs. */
void core_announce(struct hd_core *core, const struct core_job *job);

/* Adds to the history of a job, or of the cluster (job NULL). */
void core_event(struct hd_core *core, struct core_job *job, enum hd_event_kind kind,
                int32_t attempt, int32_t rank, const char *node, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

/* ---- job.c ------------------------------------------------------------------------------------*/

struct core_job *core_job_new(struct hd_core *core, const struct hd_job_record *record,
                              const struct hd_job_needs *needs);
/* Puts the job where jobs of this state wait, or takes it from there. */
void core_set_job_state(struct hd_core *core, struct core_job *job, enum hd_job_state state);
void core_job_free(struct core_job *job);
void core_job_forget(struct hd_core *core, struct core_job *job); /* frees it; the store keeps it */
struct core_attempt *core_attempt_new(struct hd_core *core, struct core_job *job,
                                      const struct hd_attempt_record *record);
/* Copies the strings. */
void core_attempt_set_end(struct hd_core *core, struct core_attempt *attempt,
                          const struct hd_end_record *end);
/* Says in the holds of its devices whose they are, and counts those that work. */
void core_attempt_note_devices(struct core_attempt *attempt);
/* The job's newest attempt has not ended: it is in the sets of active jobs. And takes it out. */
void core_active_add(struct hd_core *core, struct core_job *job);
void core_active_remove(struct hd_core *core, struct core_job *job);
enum hd_wanted core_wanted(const struct core_job *job, const struct core_attempt *attempt);
bool core_is_failure(enum hd_end_cause cause); /* counted by restart.max */
bool core_is_stop(enum hd_end_cause cause);    /* of an attempt that ended because it was told to */
/* Running time since the job was submitted or resumed. */
int64_t core_job_ran_ms(const struct hd_core *core, const struct core_job *job);
bool core_has_failed(const struct core_job *job); /* its newest attempt ended by a fault */

/* ---- submit.c ---------------------------------------------------------------------------------*/

enum hd_status core_submit(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_cancel(struct hd_core *core, const struct hd_core_event *event);
/* The request id that a job was submitted with. False: no memory. */
bool core_request_put(struct hd_core *core, const char *id, const char *owner, uint64_t job,
                      uint64_t hash);
const struct core_request *core_request_find(const struct hd_core *core, const char *id,
                                             const char *owner);
bool core_reaches(const struct hd_core *core, size_t percent); /* of the limit of live jobs */

/* ---- start.c ----------------------------------------------------------------------------------*/

/* Starts an attempt; why: what was chosen so that it fits, "": nothing. Ranks are numbered in the
 * order of members; which device each has is core_choose_devices' choice. */
void core_attempt_start(struct hd_core *core, struct core_job *job,
                        const struct core_placement *placement, const char *why);

/* ---- end.c ------------------------------------------------------------------------------------*/

/* Ends it: succeeded, failed or cancelled. */
void core_finish_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                     const char *reason);
/* Its ranks write a checkpoint and end. */
void core_attempt_stop(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
/* The same for a cause of the controller's, which becomes the cause of its end; for_job: whom it
 * is preempted to, or 0. Does nothing if it is to stop already. */
void core_attempt_stop_for(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                           enum hd_end_cause cause, uint64_t for_job);
/* Records a failure of an attempt (the first one is kept) and stops its ranks on all nodes. */
void core_attempt_fail(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       const struct hd_end_record *end);
/* Says which checkpoint the job goes back to, if the attempt found its base damaged and there is
 * one.
 */
void core_announce_fallback(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt);
/* Ends a node allocation. With the last node allocation the attempt ends, and the job ends or is
 * queued again. */
void core_node_alloc_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                         struct core_node_alloc *alloc);
void core_attempt_timers(struct hd_core *core, struct core_job *job);
/* The newest attempts was preempted to other jobs soon after they had started, one after another,
 * on devices that they had not borrowed: the next one is delayed. */
bool core_is_thrashing(const struct core_job *job);

/* ---- probe.c ----------------------------------------------------------------------------------*/

enum hd_status core_probe_ask(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_probed(struct hd_core *core, const struct hd_core_event *event);
void core_probe_restore(struct hd_core *core, struct core_node *node,
                        const struct hd_probe_record *record);
void core_probe_drop(struct core_node *node); /* frees what it has */
/* The node is lost, and does not answer. */
void core_probe_give_up(struct hd_core *core, struct core_node *node);

/* ---- node.c -----------------------------------------------------------------------------------*/

struct core_node *core_node_new(struct hd_core *core, const struct hd_node_record *record);
void core_node_free(struct core_node *node);
/* device: index in rec.devices */
static inline bool core_device_works(const struct core_node *node, int32_t device)
{
    const char *problem = node->rec.devices[device].problem;

    return !problem || !*problem;
}
/* Puts the node where its name belongs in core->nodes, and takes it out. */
void core_node_list(struct hd_core *core, struct core_node *node);
void core_node_unlist(struct hd_core *core, const struct core_node *node);
/* Replaces the device list; a device whose index stays keeps its holder. */
void core_node_set_devices(struct hd_core *core, struct core_node *node,
                           const struct hd_device_record *devices, int32_t count);
/* A search counts the device as free. */
static inline bool core_is_assumed_freed(const struct hd_device_hold *hold)
{
    return hold->by && hold->by->assumed_freed;
}
/* Gives the node the name that its daemon asked for, if no job runs there. */
void core_node_rename(struct hd_core *core, struct core_node *node);
bool core_node_is_held(const struct core_node *node); /* some attempt has a device of it */
void core_node_set_state(struct hd_core *core, struct core_node *node, enum hd_node_state state);
void core_node_renew(struct hd_core *core, struct core_node *node); /* a message of it arrived */
/* Ends this node's node allocation of every attempt. */
void core_node_end_allocs(struct hd_core *core, struct core_node *node, const char *message);
/* HD_NOT_FOUND: there is no such node; HD_CONFLICT: this is not its newest stream. */
enum hd_status core_find_stream(const struct hd_core *core, const char *uuid, uint64_t stream,
                                struct core_node **ret_node);
void core_node_lose(struct hd_core *core, struct core_node *node, const char *why);
/* The last away_ms are no silence of it, and it has as long to be heard as after a start. */
void core_node_pardon(struct hd_core *core, struct core_node *node, int64_t away_ms);
/* Silence of the node until it is lost: less if ranks of other nodes say that it is gone. */
int64_t core_node_lost_after_ms(const struct hd_core *core, const struct core_node *node);
/* When it will be lost, by the wall clock. */
int64_t core_node_lost_at_ms(const struct hd_core *core, const struct core_node *node);
/* It has connected since the controller's start. */
bool core_node_has_come(const struct core_node *node);
void core_node_timers(struct hd_core *core, struct core_node *node);
void core_node_refresh(struct hd_core *core, struct core_node *node); /* READY, DRAINING, DRAINED */
/* Finds out anew whether the node takes new attempts, and tells a change. */
void core_node_update_refusal(struct hd_core *core, struct core_node *node);
/* It may take a new attempt now. */
static inline bool core_node_usable(const struct core_node *node)
{
    return !node->rec.retired && node->rec.state == HD_NODE_STATE_READY && node->synced &&
           !node->stale_count && !(node->refuses_attempts && *node->refuses_attempts);
}
/* Appends why the node is not usable; nothing if it is. */
void core_node_reason(const struct core_node *node, struct hd_now now, struct hd_text *text);

/* ---- clock.c ----------------------------------------------------------------------------------*/

/* before: of the last event; ticks: this one is a tick. */
void core_follow_clock(struct hd_core *core, struct hd_now before, bool ticks);

/* ---- away.c -----------------------------------------------------------------------------------*/

/* At the begin of a step; before_ms: core->now.mono_ms of the step before. */
void core_away(struct hd_core *core, int64_t before_ms);
void core_report_away(struct hd_core *core); /* an event, if it was away since the last call */

/* ---- observe.c --------------------------------------------------------------------------------*/

enum hd_status core_jobs_dir(struct hd_core *core, const struct hd_core_event *event);

/* ---- membership.c -----------------------------------------------------------------------------*/

enum hd_status core_hello(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_alive(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_copy(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_disconnected(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_drain(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_node_remove(struct hd_core *core, const struct hd_core_event *event);

/* ---- observe.c --------------------------------------------------------------------------------*/

enum hd_status core_observed(struct hd_core *core, const struct hd_core_event *event);

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
/* For a job that is resumed, after which others may come already. HD_INVALID: it would wait for
 * itself. */
enum hd_status core_check_circle(struct hd_core *core, uint64_t number,
                                 const struct hd_job_needs *needs);
/* Lets jobs go that waited for the success of jobs that have ended, or cancels them. */
void core_notify_dependents(struct hd_core *core);
void core_search_timers(struct hd_core *core, struct core_job *job);
/* Finds the nodes that have failed the job twice: it avoids them if it fits elsewhere. */
void core_learn_failures(struct core_job *job);

/* ---- queue.c ----------------------------------------------------------------------------------*/

enum hd_status core_set_queue(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_remove_queue(struct hd_core *core, const struct hd_core_event *event);
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
                          const struct core_queue *b); /* by its node allocation */
void core_queues_free(struct hd_core *core);
enum hd_status core_check_quotas(const struct hd_core *core); /* for hd_core_check */
/* What the job may ask for within the limits of its queue. False: nothing, or it is
 * closed. */
bool core_within_quota(const struct core_job *job, struct hd_job_needs *ret_needs);

/* ---- slowdown.c -------------------------------------------------------------------------------*/

/* Of a job in a group: its turn in the newest pass (job->slowdown_priority), if it has none yet. */
void core_set_slowdown_priority(struct hd_core *core, struct core_job *job);

/* ---- schedule.c -------------------------------------------------------------------------------*/

/* Starts what can start now, after a step that may have changed that. */
void core_schedule(struct hd_core *core);
/* The view sees no place of more devices or nodes, or further apart. *needs are those of the view.
 */
void core_limit_to(struct core_view *view, struct hd_job_needs *needs,
                   const struct core_placement *placement);
/* Keeps the place of a job whose layout is being found, if few places are kept. */
void core_reserve_while_planning(struct hd_core *core, struct core_job *job,
                                 const struct core_placement *placement);

/* ---- schedule_check.c -------------------------------------------------------------------------*/

/* What a look at each queued job, one after another, would decide: HD_INTERNAL if that starts a job
 * or keeps other nodes free than are kept. Costs time in proportion to everything. */
enum hd_status core_schedule_check(const struct hd_core *core);

/* ---- place.c ----------------------------------------------------------------------------------*/

/* The kinds of device that a job may use, in order of preference; returns their count. */
size_t core_kinds(const struct hd_job_needs *needs,
                  enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT]);
/* HD_INVALID or HD_UNSUPPORTED: the job cannot run on any cluster of this build. */
enum hd_status core_check_needs(const struct hd_job_needs *needs);

/* Devices of a node that have no problem and the memory that `needs` (NULL: any) asks for;
 * free_only: without those that an attempt holds. */
int32_t core_count_devices(const struct hd_job_needs *needs, const struct core_node *node,
                           enum hd_device_kind kind, bool free_only);
/* The node may become usable without a user's action: not retired, not draining, not lost. */
static inline bool core_node_may_come_back(const struct core_node *node)
{
    return !node->rec.retired && !node->rec.drain && node->rec.state != HD_NODE_STATE_LOST;
}
/* The node can read the base checkpoint: it wrote it, or both see the jobs directory. */
bool core_can_read_base(const struct hd_checkpoint_record *base, const struct core_node *node);
bool core_may_span(const struct hd_checkpoint_record *base); /* several nodes can read the base */

struct core_view core_view_of(struct hd_core *core, const struct core_job *job);
/* Devices of this kind that the job may take on the node now. */
int32_t core_available(const struct hd_core *core, const struct core_view *view,
                       const struct core_node *node, enum hd_device_kind kind);
/* The attempt has ranks on a node of the place. */
bool core_is_on(const struct core_placement *placement, const struct core_attempt *attempt);
/* The attempt runs on borrowed devices, and is preempted to the job. */
bool core_yields_to(const struct hd_core *core, const struct core_attempt *attempt,
                    const struct core_job *job);
/* The same of the node with this index, for searches: free_of is core_free_by_node's. */
int32_t core_available_at(const struct hd_core *core, const struct core_view *view, size_t i,
                          enum hd_device_kind kind, const uint16_t *free_of);
/* The best placement with the devices that are free now; the caller frees its members. */
struct core_placement core_find_placement(struct hd_core *core, const struct core_view *view);
bool core_has_placement(struct hd_core *core, const struct core_view *view);
/* A node on which the job would fit if the node were idle; preferably usable, then with the most
 * free devices. *ret_blocking_job: a job that has reserved such a node; 0: none. */
struct core_node *core_find_idle_node(struct hd_core *core, const struct core_view *view,
                                      enum hd_device_kind *ret_kind, uint64_t *ret_blocking_job);
/* The job would fit on some nodes if all were idle. */
bool core_fits_when_idle(struct hd_core *core, const struct core_view *view);

/* ---- layout_cache.c ---------------------------------------------------------------------------*/

enum core_layout { CORE_LAYOUT_FITS, CORE_LAYOUT_INFEASIBLE, CORE_LAYOUT_LATER };

/* Who wants a layout: a job, or one that is not submitted (job 0). */
struct core_layout_client {
    uint64_t job;
    const struct hd_job_needs *needs;
    const void *spec;
    size_t spec_bytes;
    const struct core_job *before; /* whose attempts had layouts; NULL: it is not submitted */
};
static inline struct core_layout_client core_layout_client_of(const struct core_job *job,
                                                              const struct hd_job_needs *needs)
{
    return (struct core_layout_client){job->rec.job, needs, job->rec.spec, job->rec.spec_bytes,
                                       job};
}

bool core_asks_no_more(const struct hd_core *core); /* too many questions wait for answers */
/* Chooses place->plan.layout, if the job leaves members of it open: that of the newest attempt on
 * as many devices of the kind, if it fits the place, so that the job goes on with the same bits;
 * else the best. FITS: it starts there; *ret_why then says what was chosen, if there was a choice.
 * MISFITS: no layout fits the devices, of which the smallest has *ret_memory_bytes; *ret_why says
 * why. LATER: *ret_entry was asked for, or (NULL) will be, when fewer questions wait. */
enum core_layout core_choose_layout(struct hd_core *core, const struct core_layout_client *client,
                                    struct core_placement *placement, int64_t *ret_memory_bytes,
                                    const struct core_cached_layout **ret_entry,
                                    struct hd_text *ret_why);
/* The same for the attempt of a job that runs: with LATER it is one of core->resize_candidates when
 * the answer comes. */
enum core_layout core_ask_for(struct hd_core *core, const struct core_layout_client *client,
                              struct core_placement *placement, struct hd_text *ret_why);
/* Asks how long a step of waiting jobs will take, some of them in each step of the core. */
void core_predict_prices(struct hd_core *core);
/* The nodes or their devices have changed: jobs for which nothing could be asked ask again. */
void core_predict_prices_again(struct hd_core *core);
enum hd_status core_planned(struct hd_core *core, const struct hd_core_event *event);
void core_layout_cache_done(struct hd_core *core); /* frees it */

/* ---- reserve.c --------------------------------------------------------------------------------*/

/* When a job can start, as far as is known. */
struct core_start {
    int64_t mono_ms;     /* INT64_MAX: not known */
    uint64_t after;      /* the job whose end decides that; 0: not known */
    int32_t nodes, tier; /* of the place that is kept, as in core_view; 0: not known */
    bool unpriced;       /* its price, or that of a better place, is being found */
};

/* The place that opens first, as far as is known. */
struct core_first {
    struct core_placement placement; /* device_count 0: none; the caller frees its members */
    struct core_start start;
    enum core_layout layout; /* of the place; FITS: place.plan has its price, if that is known */
    const struct core_cached_layout *entry; /* with LATER */
};
/* The search lends what will be free then, and leaves that assumed freed for the next search for
 * the same job; core_find_first_end takes it back. */
void core_find_first(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                     struct core_first *ret_first);
void core_find_first_end(struct hd_core *core);
/* Keeps such a place for a queued job, which is one of core->reservers then. */
void core_reserve_members(struct hd_core *core, struct core_job *job,
                          const struct core_placement *placement, int64_t start_mono_ms);
/* The same, in place of all that was kept for it in this pass. */
void core_reserve_instead(struct hd_core *core, struct core_job *job,
                          const struct core_placement *placement, int64_t start_mono_ms);
/* Keeps devices for a job that does not fit now, where it will start first as far as is known.
 * False: there are none to keep; job->wait and wait_job say why. */
bool core_reserve_earliest(struct hd_core *core, struct core_job *job, const struct core_view *view,
                           struct core_start *ret_start);
/* Keeps a place that was found, for a job that cannot start there yet; unless there are many. */
void core_reserve_placement(struct hd_core *core, struct core_job *job,
                            const struct core_placement *placement);
void core_reserve_node(struct hd_core *core, struct core_node *node, uint64_t job,
                       enum hd_device_kind kind, int64_t start_mono_ms, int32_t surplus);
/* Says of each member how many free (or assumed freed) devices of the node the place does not take.
 */
void core_count_surplus(const struct hd_job_needs *needs, enum hd_device_kind kind,
                        struct core_placement *placement);
void core_unreserve_job(struct hd_core *core, uint64_t job); /* forgets those of one job, */
void core_unreserve_all(struct hd_core *core);               /* and all */
/* The needs of a job that takes as few devices of this kind as it may. False: no number will do. */
bool core_least_needs(const struct hd_job_needs *needs, enum hd_device_kind kind,
                      struct hd_job_needs *ret_least);
/* A look's expected start. It is told when the passes are over: what was expected before another
 * job started, or turned out to fit never, is never told. */
void core_expect(struct hd_core *core, struct core_job *job, struct core_start start);
/* Tells what looks expected, if it is news, with the cause. */
void core_report_planned_starts(struct hd_core *core);
/* After a pass: jobs that had an expected start and have no reservation any more. */
void core_sweep_planned_starts(struct hd_core *core);
void core_planned_start_end(struct hd_core *core,
                            struct core_job *job); /* it is not queued any more */
void core_planned_start_timers(struct hd_core *core);

/* ---- hot_spare.c ------------------------------------------------------------------------------*/

/* Chooses the nodes that are hot spares in a pass, before it forgets the reservations of the last.
 */
void core_choose_hot_spares(struct hd_core *core);
/* After the reservations were forgotten: keeps nodes for failed jobs whose checkpoints are looked
 * for. */
void core_reserve_for_failed(struct hd_core *core);
/* It needs more devices than the nodes have that are no hot spares. */
bool core_needs_hot_spares(const struct hd_core *core, const struct hd_job_needs *needs);

/* ---- free.c -----------------------------------------------------------------------------------*/

/* Free devices of this kind by index of node: no node has more for a job. NULL: no memory. With it
 * the other arrays of core_state.h are made. */
const uint16_t *core_free_by_node(struct hd_core *core, enum hd_device_kind kind);
void core_arrays_free(struct hd_core *core);                          /* frees them */
void core_node_changed(struct hd_core *core, struct core_node *node); /* other devices or holds */
/* What marks_of in free.c reads of the node may have changed. */
void core_node_note(struct hd_core *core, const struct core_node *node);
/* The same of its reservation alone. The caller counts core->changes up. */
void core_reservation_changed(struct hd_core *core, const struct core_node *node);
/* The first set bit, from this one on, of one for each node; core->node_count: none. */
static inline size_t core_next_bit(const struct hd_core *core, const uint64_t *set, size_t i)
{
    size_t word = i / 64;
    uint64_t bits = set[word] >> i % 64 << i % 64;

    while (!bits && (word + 1) * 64 < core->node_count)
        bits = set[++word];
    return bits ? word * 64 + (size_t)__builtin_ctzll(bits) : core->node_count;
}
/* The first node, from this one on, that has free devices; core->node_count: none. After
 * core_free_by_node. In a busy cluster few have. */
static inline size_t core_next_free(const struct hd_core *core, enum hd_device_kind kind, size_t i)
{
    return core_next_bit(core, core->has_free[kind], i);
}
/* While assumed freed, the devices of these attempts count as free. */
void core_assume_freed(struct hd_core *core, struct core_attempt *const *attempts, size_t count,
                       bool freed);
enum hd_status core_check_free(const struct hd_core *core); /* I15 */

/* ---- fit_bound.c ------------------------------------------------------------------------------*/

/* The place of a reservation in core->reservation_owners, from 1 on; 0: there are too many. */
size_t core_reservation_owner_of(struct hd_core *core, const struct core_reservation *reserved);
/* The job may use what is kept so: it ends before, it may borrow it, or it is kept for it. */
bool core_may_use_reserved(const struct hd_core *core, const struct core_view *view,
                           enum hd_device_kind kind, const struct core_reservation_owner *owner);
/* What is open to the view on this kind of device, at most. False: that is not known. */
bool core_fit_bound_of(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                       struct core_fit_bound *ret_bound);
/* There is no place for it on this kind of device. False: there may be one. */
bool core_exceeds_fit_bound(struct hd_core *core, const struct core_view *view,
                            enum hd_device_kind kind);

/* ---- better.c ---------------------------------------------------------------------------------*/

/* A queued job that waits for devices, and not for its quota or for a node that does not exist. */
bool core_waits_for_devices(const struct hd_core *core, const struct core_job *job);
/* `first` is the place that opens first to the job, maybe now, with its layout and price.
 * TAKE_LATER: *first has become a better one that opens later (the members are those of the new
 * one). WAIT_FOR_PRICE: that of a better one is being found, first->entry. job->choice says what
 * was weighed. */
enum core_start_choice { CORE_TAKE_FIRST, CORE_WAIT_FOR_PRICE, CORE_TAKE_LATER };
enum core_start_choice core_choose_start(struct hd_core *core, struct core_job *job,
                                         const struct hd_job_needs *needs,
                                         struct core_first *first);
/* The new job is the second job that waits for devices: the first weighs otherwise now. */
bool core_ends_lone_wait(const struct hd_core *core, const struct core_job *new_job);
/* The price of a better place is being found: the job waits for that, for a while. */
bool core_waits_for_price(const struct hd_core *core, struct core_job *job);
/* On no more nodes than necessary, and at one switch of the lowest tier that has so many, or of the
 * next one. */
bool core_is_near(struct hd_core *core, const struct hd_job_needs *needs,
                  const struct core_placement *placement);
/* The view sees no place that is worse than the best one for the least devices that it needs. */
void core_limit_to_best(struct hd_core *core, struct core_view *view, enum hd_device_kind kind);
/* The best place that so many devices of a kind could have, were all idle; device_count 0: there is
 * none. The caller frees the members. */
struct core_placement core_best_placement(struct hd_core *core, const struct hd_job_needs *needs,
                                          enum hd_device_kind kind, int32_t devices);
enum hd_status core_check_most(const struct hd_core *core); /* I15 */
/* "2 nodes at one switch of tier leaf" */
void core_add_placement_text(const struct hd_core *core, int32_t nodes, int32_t tier,
                             struct hd_text *text);
/* What was weighed, of a job that waits or has started. */
void core_add_choice(const struct hd_core *core, const struct hd_core_choice *choice, bool waits,
                     struct hd_text *text);

/* ---- predict.c --------------------------------------------------------------------------------*/

/* When the attempt will have ended, as far as is known now; INT64_MAX: not known. */
int64_t core_predict_end(const struct hd_core *core, const struct core_job *job,
                         const struct core_attempt *attempt);
void core_predict_all(struct hd_core *core); /* for a pass */
/* How long a queued job will hold its devices, as far as is known; 0: not known. */
int64_t core_predict_length_ms(const struct hd_core *core, const struct core_job *job);
/* The same in a place where a step has this price; 0: not known. */
int64_t core_predict_length_at(const struct hd_core *core, const struct core_job *job,
                               double step_s);
/* A step was reported: true if predictions have to be made anew. */
bool core_predict_step(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       int64_t step, int64_t time_ms);
double core_step_ms(const struct core_attempt *attempt); /* measured; 0: not yet */
void core_predict_restore(struct core_attempt *attempt); /* its newest step was restored */
/* A controller that was away hears late that the ranks run: from their first step to the newest one
 * they have run at least, and rec.running_ms becomes that. True: it was later. */
bool core_note_running(const struct hd_core *core, struct core_attempt *attempt);
/* The attempt's devices are among those that others could be given (core->held). */
void core_note_held(struct hd_core *core, const struct core_job *job,
                    const struct core_attempt *attempt);

/* ---- ends.c -----------------------------------------------------------------------------------*/

void core_list_ends(struct hd_core *core); /* for a pass, after core_predict_all */
/* Lends the devices of the fewest attempts, in the order of their ends, that give the job a place
 * on devices of this kind, and returns how many they are; the caller frees the place's members.
 * More than core->end_count: all of them give none, and none is assumed freed. What the search
 * before has assumed freed stays assumed freed as far as it is needed; core_assume_ends_freed(core,
 * 0) takes all back. */
size_t core_assume_fewest_freed(struct hd_core *core, const struct core_view *view,
                                enum hd_device_kind kind, struct core_placement *ret_placement);
void core_assume_ends_freed(struct hd_core *core, size_t ends); /* so many, from the first */

/* ---- preempt.c --------------------------------------------------------------------------------*/

/* Asks attempts of lower priority to stop, if the job then has a place; borrowed: and those that
 * borrow what is kept for it. True: it waits for some. */
bool core_preempt(struct hd_core *core, struct core_job *job, const struct core_view *view,
                  bool borrowed);
/* I16: for the job enough attempts could are preempted, unless their devices are said to be too
 * few. */
enum hd_status core_check_victims(struct hd_core *core, const struct core_job *job);

/* ---- pending.c --------------------------------------------------------------------------------*/

/* Others stop so that the job can start in this place, which is copied; its layout is asked for. */
void core_pending_set(struct hd_core *core, struct core_job *job, const struct hd_job_needs *needs,
                      const struct core_placement *placement);
/* Whether all devices of that place are free, or will be when those who stop have stopped.
 * *ret_start: when that is. NONE: it has no such place, or others have devices of it. */
enum core_pending_state { CORE_PENDING_NONE, CORE_PENDING_CLEARING, CORE_PENDING_CLEAR };
enum core_pending_state core_pending_check(const struct hd_core *core, const struct core_job *job,
                                           struct core_start *ret_start);
/* Jobs that were asked to stop for it are on a node that is connecting, so that its place is not
 * known now. */
bool core_pending_awaits_nodes(const struct hd_core *core, const struct core_job *job);
void core_assemble(struct hd_core *core);     /* sets core->assembled, if it is so */
void core_pending_drop(struct core_job *job); /* the place; the job still comes first */
void core_pending_end(struct hd_core *core,
                      struct core_job *job); /* it needs no victims any more */
void core_migration_end(struct hd_core *core, struct core_job *job); /* it moves no more */
void core_migration_target_drop(struct core_job *job);

/* ---- defragment.c -----------------------------------------------------------------------------*/

/* The job could start in the place `now`, and would be at fewer switches if others moved. GATHERS:
 * they do; the place that they leave is its pending allocation. LATER: the price of that place is
 * being found, *ret_entry. */
enum core_defragmented { CORE_DEFRAGMENTS_NOT, CORE_DEFRAGMENTS, CORE_DEFRAGMENTS_LATER };
enum core_defragmented core_defragment(struct hd_core *core, struct core_job *job,
                                       const struct core_placement *now,
                                       const struct core_cached_layout **ret_entry);
/* After the reservations were forgotten: keeps the places to which jobs move. */
void core_reserve_migration_targets(struct hd_core *core);
/* The job has stopped, and waits: the place that is kept for it is its pending allocation now. */
void core_migration_becomes_pending(struct hd_core *core, struct core_job *job);
/* Kept for this job, or for it and others that move with it. */
static inline bool core_is_reserved_for(const struct core_job *job, uint64_t by)
{
    return by == job->rec.job || (job->migration_group && by == job->migration_group);
}

/* ---- move.c -----------------------------------------------------------------------------------*/

/* Lets jobs stop at a checkpoint that leave nodes which are drained with a deadline. */
void core_leave_nodes(struct hd_core *core);
/* The node leaves (its daemon ends), or is drained until a deadline: core_leave_nodes looks at it.
 */
void core_node_leaves(struct hd_core *core, struct core_node *node);
void core_leave_timers(struct hd_core *core, struct core_node *node);
/* Jobs of core->resize_candidates stop at a checkpoint if they can go on with more devices, and it
 * pays. */
void core_resize_jobs(struct hd_core *core);

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
bool core_take_infeasible(struct hd_core *core, struct core_job *job, int32_t devices,
                          int64_t memory_bytes, const char *why);
/* A node has other devices now: jobs that wait for larger or more ones ask for their own again. */
void core_forget_infeasible(struct hd_core *core);

/* ---- gang.c -----------------------------------------------------------------------------------*/

/* Replaces *best by a placement on several nodes if that is better; frees the old members. */
void core_gang_find(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                    struct core_placement *best);
/* core_gang_find would find one, wherever. */
bool core_gang_is_there(struct hd_core *core, const struct core_view *view,
                        enum hd_device_kind kind);
bool core_gang_fits_when_idle(struct hd_core *core, const struct core_view *view,
                              enum hd_device_kind kind);
/* Reserves for view->job the nodes on which it would fit if they were idle. False: there are none;
 * then *ret_blocking_job, if it was 0, becomes a job that has reserved such nodes, if any. */
bool core_gang_reserve(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                       uint64_t *ret_blocking_job);
/* Appends why a node's devices of this kind cannot node allocation a job with those of some or all
 * other nodes; nothing if they can. */
void core_gang_obstacle(const struct hd_core *core, const struct core_node *node,
                        enum hd_device_kind kind, struct hd_text *text);

/* ---- links.c ----------------------------------------------------------------------------------*/

/* What a node says of the links between its devices; NULL: nothing. After set_devices. */
void core_links_take(struct hd_core *core, struct core_node *node,
                     const struct hd_node_links *reported);
void core_links_drop(struct hd_core *core, struct core_node *node);          /* the node goes */
void core_find_position(const struct hd_core *core, struct core_node *node); /* its name is new */
/* The device of each rank of a placement that has its layout, as positions on its node. False: no
 * memory. */
bool core_choose_devices(struct hd_core *core, const struct hd_job_needs *needs,
                         const struct core_placement *placement, int32_t *ret_devices);
/* How far apart the nodes of so many members are: as in hd_core_asked. */
int32_t core_tier_of(const struct hd_core *core, const struct core_member *members, size_t count);
int32_t
core_tiers(const struct hd_core *core); /* of nodes that node allocation no switch: the largest */
/* What members at one switch give. */
struct core_switch {
    uint64_t filled;        /* core->scratch.switches_filled; else all is 0 */
    int32_t total, reached; /* devices of all its members; of the first ones, until they suffice */
    uint32_t nodes;         /* so many members were needed for that */
};
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
/* Notes that the node has deleted the job's folder. left: which part stays, and why; NULL or "":
 * none. */
void core_removed(struct hd_core *core, const struct core_node *node, uint64_t number,
                  const char *left);
/* Adds an event if a part of what was to be deleted stays on the node. left: which part, and why;
 * NULL or "": none. */
void core_files_left(struct hd_core *core, struct core_job *job, const struct core_node *node,
                     const char *left);

/* ---- checkpoint.c -----------------------------------------------------------------------------*/

enum hd_status core_report(struct hd_core *core, const struct hd_core_event *event);
/* Adds a complete checkpoint to the job's list, unless it is known. If a newer attempt exists,
 * none will start from it: it is then marked for deletion, if `keep` is limited. */
void core_checkpoint_take(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                          const struct core_node *node,
                          const struct hd_checkpoint_record *checkpoint);
/* Someone asks that the checkpoints of a step go. HD_NOT_FOUND: there is none; HD_CONFLICT: the job
 * has not ended, and may go on from it. */
enum hd_status core_checkpoint_remove(struct hd_core *core, struct core_job *job, int64_t step,
                                      const char *by);
/* Marks for deletion all but the newest `keep`, the base of the newest attempt, and the newest
 * proven one. */
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
/* The newest that is on the disk, as far as is known, and that no attempt found damaged; NULL. */
const struct hd_checkpoint_record *core_checkpoint_sound(const struct core_job *job);
/* The checkpoint in the job's list; NULL: it is not there. */
struct hd_checkpoint_record *core_checkpoint_listed(struct core_job *job, int32_t attempt,
                                                    int64_t step);
/* Adds a checkpoint that a look at the disk found, though a newer attempt has begun or it was
 * deleted once: no listed one is left. */
void core_checkpoint_adopt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                           const struct hd_checkpoint_record *checkpoint);
/* Checkpoints are listed, and each of them is missing: the job must not start from scratch. */
bool core_lacks_checkpoint(const struct core_job *job);
/* For an attempt that found its base damaged: the newest undamaged checkpoint, which the next
 * attempt starts from. NULL: its base was not damaged, or there is no other. */
const struct hd_checkpoint_record *core_checkpoint_fallback(const struct core_job *job,
                                                            const struct core_attempt *attempt);
/* The attempt has reported a checkpoint of the job's last step. */
bool core_checkpoint_is_final(const struct core_job *job, const struct core_attempt *attempt);
bool core_attempt_progressed(const struct core_job *job, int32_t attempt); /* has a checkpoint */

/* ---- missing.c --------------------------------------------------------------------------------*/

/* The attempt ended because its base checkpoint is not on the disk, and no attempt before it since
 * the job was submitted or resumed missed the same one. It is no failure then, and no fault of its
 * node. */
bool core_attempt_missed_base(const struct core_job *job, const struct core_attempt *attempt);
/* Notes that the base of the attempt, which has just ended, is missing, if that ended it. */
void core_note_missed_base(struct hd_core *core, struct core_job *job,
                           const struct core_attempt *attempt);
/* Before the job starts again, the disk is to be looked at: its node was lost, its base could not
 * be loaded, or its checkpoints are missing. */
bool core_wants_search(const struct core_job *job);
/* The look is at the folders of all its attempts, not only of the newest one. */
bool core_search_is_whole(const struct core_job *job);
enum hd_status core_found(struct hd_core *core, const struct hd_core_event *event);
/* Adds the event about missing checkpoints that is due. */
void core_tell_missing(struct hd_core *core, struct core_job *job);
/* A listed checkpoint, which may be missing, was seen on the disk as `seen` says. */
void core_checkpoint_is_back(struct hd_core *core, struct core_job *job,
                             struct hd_checkpoint_record *listed,
                             const struct hd_checkpoint_record *seen);
/* Looks at the disk at once for a queued job that lacks a checkpoint; what only a rank can see is
 * tried again. */
void core_look_again(struct hd_core *core, struct core_job *job);
/* The list of a queued job has changed: what it waits for may have, too. */
void core_checkpoints_moved(struct hd_core *core, struct core_job *job);
/* Adds what is missing, and what may be done, to the reason of a job that lacks a checkpoint. */
void core_add_missing(const struct hd_core *core, const struct core_job *job, struct hd_text *text);

/* ---- plan.c -----------------------------------------------------------------------------------*/

/* The job's wish with the device kind filled in: the limits on ranks depend on it. */
struct hd_plan_request core_plan_request_on(const struct hd_job_needs *needs,
                                            enum hd_device_kind kind);
/* hd_core_plan without an error message; false: there is no layout. */
bool core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind, int32_t count,
               struct hd_plan_record *ret_plan);
/* The smallest number within devices_min and devices_max that can node allocation the work; 0:
 * none. */
int32_t core_devices_needed(const struct hd_job_needs *needs, enum hd_device_kind kind);
/* The largest number up to `available` and devices_max that can node allocation the work, with its
 * layout; 0: none. */
int32_t core_pick_count(const struct hd_job_needs *needs, enum hd_device_kind kind,
                        int32_t available, struct hd_plan_record *ret_plan);
/* `devices` rounded down to a multiple of a tensor-parallel group. */
int32_t core_whole_groups(const struct hd_job_needs *needs, int32_t devices);

#endif

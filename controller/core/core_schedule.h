/* core_schedule: functions of the scheduler that the files of this folder offer to one another: the
 * pass over the queued jobs, the search for a placement, reservations, preemption, migration.
 * Private to this folder.
 *
 *   schedule.c    the pass: evaluates queued jobs in order, and starts or reserves
 *   schedule_check.c  recomputes the result of a pass in the simplest way and compares
 *   slowdown.c    order of the jobs of one queue
 *   place.c       search for a placement
 *   free.c        per-node arrays that searches read
 *   fit_bound.c   upper bound on the devices that a job could get
 *   better.c      whether a job waits for a better placement
 *   allocation.c  the list of devices used or reserved; who may use them
 *   reserve.c     reservations for jobs that do not fit now, and expected starts
 *   hot_spare.c   nodes kept free for jobs that fail
 *   predict.c     predicted ends of running attempts
 *   forecast.c    the cluster after some ends, and how many ends a placement needs
 *   preempt.c     choice of the running jobs to preempt
 *   pending.c     the placement that preempted jobs free for a job
 *   defragment.c  running jobs that move so that a gang spans fewer switches
 *   move.c        running jobs that leave a node or get more devices
 *   explain.c     why jobs wait (in words: wait_reasons.c, core_texts.h)
 *   gang.c        placement of one job on several nodes
 *   links.c       which devices of its nodes an attempt takes; nodes of one switch
 *   layout_cache.c  layouts of attempts: requests and answers
 *   fit.c         jobs for which no layout fits the devices that were found
 */
#ifndef HD_CONTROLLER_CORE_SCHEDULE_H
#define HD_CONTROLLER_CORE_SCHEDULE_H

#include "controller/core/core_internal.h"

/* ---- slowdown.c -------------------------------------------------------------------------------*/

/* Computes the job's place in the order of the newest pass (job->slowdown_priority), once per pass.
 * The job must be in a group. */
void core_set_slowdown_priority(struct hd_core *core, struct core_job *job);

/* ---- schedule.c -------------------------------------------------------------------------------*/

/* Runs a pass of the scheduler over the queued jobs, if this step has changed anything that may let
 * one start. */
void core_schedule(struct hd_core *core);
/* Restricts the search to placements with no more nodes, no larger distance and no more devices
 * than `placement`. *needs are the needs of the view. */
void core_limit_to(struct core_view *view, struct hd_job_needs *needs,
                   const struct core_placement *placement);
/* Reserves the placement of a job whose layout is being computed, unless CORE_RESERVERS_MAX jobs
 * have reservations already. */
void core_reserve_while_planning(struct hd_core *core, struct core_job *job,
                                 const struct core_placement *placement);

/* ---- schedule_check.c -------------------------------------------------------------------------*/

/* Evaluates every queued job without classes or caches. HD_INTERNAL: a job would start, or other
 * nodes would be reserved. The cost grows with nodes times jobs. */
enum hd_status core_schedule_check(const struct hd_core *core);

/* ---- place.c ----------------------------------------------------------------------------------*/

/* Sets ret_kinds to the device kinds that a job may use, preferred first; returns their number. */
size_t core_kinds(const struct hd_job_needs *needs,
                  enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT]);
/* Checks that some layout exists for these needs. HD_INVALID or HD_UNSUPPORTED: the job cannot run
 * on any cluster of this build. */
enum hd_status core_check_needs(const struct hd_job_needs *needs);

/* Counts the node's devices that work and have the memory that `needs` asks for (NULL: any);
 * free_only: without those that attempts hold now. */
int32_t core_count_devices(const struct hd_job_needs *needs, const struct core_node *node,
                           enum hd_device_kind kind, bool free_only);
/* Counts those that are free in the forecast. Valid after core_arrays_ready. */
int32_t core_count_free(const struct core_forecast *forecast, const struct hd_job_needs *needs,
                        const struct core_node *node, enum hd_device_kind kind);
/* Returns whether the node may become usable without a user's action: not retired, not drained, not
 * lost. */
static inline bool core_node_may_come_back(const struct core_node *node)
{
    return !node->rec.retired && !node->rec.drain && node->rec.state != HD_NODE_STATE_LOST;
}
/* Returns whether the node can read the base checkpoint: it wrote the checkpoint, or both see the
 * jobs directory. */
bool core_can_read_base(const struct hd_checkpoint_record *base, const struct core_node *node);
bool core_may_span(const struct hd_checkpoint_record *base); /* true if several nodes can read the
                                                              * base checkpoint */

struct core_view core_view_of(struct hd_core *core, const struct core_job *job);
/* Returns how many devices of this kind the job of the view may take on the node with index i now.
 * Valid after core_arrays_ready. */
int32_t core_available(const struct hd_core *core, const struct core_view *view, size_t i,
                       enum hd_device_kind kind);
/* Returns whether the attempt has ranks on a node of the placement. */
bool core_is_on(const struct core_placement *placement, const struct core_attempt *attempt);
/* Returns whether the attempt runs on borrowed devices that the job may reclaim by preemption. */
bool core_yields_to(const struct hd_core *core, const struct core_attempt *attempt,
                    const struct core_job *job);
/* Finds the best placement on free devices (device_count 0: none); the caller frees its members. */
struct core_placement core_find_placement(struct hd_core *core, const struct core_view *view);
bool core_has_placement(struct hd_core *core, const struct core_view *view);
/* Finds a node on which the job would fit if the node were idle: a usable one first, then the one
 * with the most free devices. Sets *ret_blocking_job to a job that has reserved such a node, or
 * 0. */
struct core_node *core_find_idle_node(struct hd_core *core, const struct core_view *view,
                                      enum hd_device_kind *ret_kind, uint64_t *ret_blocking_job);
/* Returns whether the job would fit if all nodes were idle. */
bool core_fits_when_idle(struct hd_core *core, const struct core_view *view);

/* ---- layout_cache.c ---------------------------------------------------------------------------*/

enum core_layout { CORE_LAYOUT_FITS, CORE_LAYOUT_INFEASIBLE, CORE_LAYOUT_LATER };

/* The party that requests a layout: a job, or a job description that is not submitted (job 0). */
struct core_layout_client {
    uint64_t job;
    const struct hd_job_needs *needs;
    const void *spec;
    size_t spec_bytes;
    const struct core_job *before; /* job whose earlier layouts are preferred; NULL: not
                                    * submitted */
    const struct core_forecast
        *forecast; /* in which the placement was found; NULL: core->present */
};
static inline struct core_layout_client core_layout_client_of(const struct core_job *job,
                                                              const struct hd_job_needs *needs)
{
    return (struct core_layout_client){.job = job->rec.job,
                                       .needs = needs,
                                       .spec = job->rec.spec,
                                       .spec_bytes = job->rec.spec_bytes,
                                       .before = job};
}

bool core_asks_no_more(const struct hd_core *core); /* too many layout requests are unanswered:
                                                     * request no more */
/* Chooses placement->plan.layout where the job file leaves sizes open: the layout of the newest
 * attempt on as many devices of this kind, if it fits, so that results stay bit-identical; else the
 * best layout.
 *
 *   FITS        the layout is set; *ret_why explains it, if there was a choice
 *   INFEASIBLE  no layout fits; *ret_memory_bytes: memory of the smallest device; *ret_why says why
 *   LATER       no answer yet; *ret_entry: its request; NULL: not requested yet, because too
 *               many requests are unanswered
 */
enum core_layout core_choose_layout(struct hd_core *core, const struct core_layout_client *client,
                                    struct core_placement *placement, int64_t *ret_memory_bytes,
                                    const struct core_cached_layout **ret_entry,
                                    struct hd_text *ret_why);
/* Does what core_choose_layout does, for a job that runs and may get more devices; after LATER the
 * job is put into core->resize_candidates when the answer comes. */
enum core_layout core_ask_for(struct hd_core *core, const struct core_layout_client *client,
                              struct core_placement *placement, struct hd_text *ret_why);
/* Requests layouts, with predicted step times, ahead for queued jobs; a bounded number per core
 * step. */
void core_predict_prices(struct hd_core *core);
/* Requests predictions again for jobs that had no possible placement before; called when nodes or
 * devices have changed. */
void core_predict_prices_again(struct hd_core *core);
enum hd_status core_planned(struct hd_core *core, const struct hd_core_event *event);
void core_layout_cache_done(struct hd_core *core); /* frees the cache of layouts */

/* ---- reserve.c --------------------------------------------------------------------------------*/

/* The earliest start of one job that is known. */
struct core_start {
    int64_t mono_ms;     /* INT64_MAX: unknown */
    uint64_t after;      /* number of the job whose end it depends on; 0: unknown */
    int32_t nodes, tier; /* size of the reserved placement: number of nodes, and network distance as
                          * in core_view; 0: unknown */
    bool unpriced;       /* the step time of this placement, or of a better one, is not predicted
                          * yet */
};

/* The placement of a job that becomes available first, as far as the ends of running attempts can
 * be predicted. */
struct core_first {
    struct core_placement placement; /* the placement; device_count 0: none; the caller of
                                      * core_find_first frees its members */
    struct core_start start;
    enum core_layout layout; /* FITS: placement.plan has the predicted step time, if known */
    const struct core_cached_layout *entry; /* with layout LATER: the open request for it */
};
/* Makes the forecast for core_find_first; the caller ends it with core_forecast_done. False: no
 * memory. */
bool core_forecast_for(struct hd_core *core, const struct core_job *job,
                       struct core_forecast *ret_forecast);
/* Sets *ret_first to the placement that becomes available first. The forecast has reached that time
 * then, so the next search for the same job is cheap. */
void core_find_first(struct hd_core *core, struct core_forecast *forecast,
                     const struct core_view *view, enum hd_device_kind kind,
                     struct core_first *ret_first);
/* Reserves the placement for a queued job, which joins core->reservers. */
void core_reserve_members(struct hd_core *core, struct core_job *job,
                          const struct core_placement *placement, enum core_allocation_why why,
                          int64_t start_mono_ms);
/* Reserves for a job that does not fit now the placement where it can start first. False: nothing
 * can be reserved; job->wait and wait_job say why. */
bool core_reserve_earliest(struct hd_core *core, struct core_job *job, const struct core_view *view,
                           struct core_start *ret_start);
/* Reserves a placement for a job that cannot start there yet; does nothing if CORE_RESERVERS_MAX
 * jobs have reservations already. */
void core_reserve_placement(struct hd_core *core, struct core_job *job,
                            const struct core_placement *placement);
/* Sets `surplus` of each member of the placement: devices of its node that are free in the forecast
 * and that the placement does not use. */
void core_count_surplus(const struct core_forecast *forecast, const struct hd_job_needs *needs,
                        enum hd_device_kind kind, struct core_placement *placement);
/* Reduces the needs to the fewest devices of this kind for which a layout exists. False: there is
 * none. */
bool core_least_needs(const struct hd_job_needs *needs, enum hd_device_kind kind,
                      struct hd_job_needs *ret_least);
/* Notes the expected start that this pass has found for the job. It is reported only after the last
 * pass of the step, so that intermediate results are never shown. */
void core_expect(struct hd_core *core, struct core_job *job, struct core_start start);
/* Adds an event, with the cause, for each job whose expected start has moved by more than reserve.c
 * tolerates. */
void core_report_planned_starts(struct hd_core *core);
/* Reports the expected starts after a pass; withdraws those of jobs that have no reservation any
 * more. */
void core_sweep_planned_starts(struct hd_core *core);
void core_planned_start_end(struct hd_core *core,
                            struct core_job *job); /* the job is not queued any more */
void core_planned_start_timers(struct hd_core *core);

/* ---- hot_spare.c ------------------------------------------------------------------------------*/

/* Chooses the hot spares for this pass; call it before the reservations of the last pass are
 * dropped. */
void core_choose_hot_spares(struct hd_core *core);
/* Reserves nodes for failed jobs whose checkpoints are being searched; call it after reservations
 * were dropped. */
void core_reserve_for_failed(struct hd_core *core);
/* Returns whether the job needs more devices than the nodes that are not hot spares have. */
bool core_needs_hot_spares(const struct hd_core *core, const struct hd_job_needs *needs);

/* ---- free.c -----------------------------------------------------------------------------------*/

/* Rebuilds the arrays by node index of core_state.h if they are stale. False: no memory. */
bool core_arrays_ready(struct hd_core *core);
/* Frees all arrays by node index. */
void core_arrays_free(struct hd_core *core);
/* Updates the arrays by node index after a change of the node's devices or of their holders. */
void core_node_changed(struct hd_core *core, struct core_node *node);
/* Updates the arrays by node index after a change of the node's usability, hot spare flag or
 * reservation. */
void core_node_note(struct hd_core *core, const struct core_node *node);
/* Updates the arrays by node index after a change of the node's reservation alone. The caller
 * increments core->changes. */
void core_reservation_changed(struct hd_core *core, const struct core_node *node);
/* Returns the index of the first set bit at or after i in a bit set over nodes; core->node_count:
 * none. */
static inline size_t core_next_bit(const struct hd_core *core, const uint64_t *set, size_t i)
{
    size_t word = i / 64;
    uint64_t bits = set[word] >> i % 64 << i % 64;

    while (!bits && (word + 1) * 64 < core->node_count)
        bits = set[++word];
    return bits ? word * 64 + (size_t)__builtin_ctzll(bits) : core->node_count;
}
/* Returns the index of the first node at or after i that has free devices; core->node_count: none.
 * Valid after core_arrays_ready. Few nodes of a busy cluster have any. */
static inline size_t core_next_free(const struct hd_core *core,
                                    const struct core_forecast *forecast, enum hd_device_kind kind,
                                    size_t i)
{
    return core_next_bit(core, forecast->free[kind].nodes, i);
}
enum hd_status core_check_free(const struct hd_core *core); /* checks invariant I15 of core.c: these
                                                             * arrays match the nodes */

/* ---- fit_bound.c ------------------------------------------------------------------------------*/

/* Computes an upper bound on the devices that the job of the view may use, from free devices and
 * reservations. False: no bound is known. */
bool core_fit_bound_of(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                       struct core_fit_bound *ret_bound);
/* Returns whether that upper bound excludes a placement on this device kind. False: a search is
 * needed. */
bool core_exceeds_fit_bound(struct hd_core *core, const struct core_view *view,
                            enum hd_device_kind kind);

/* ---- better.c ---------------------------------------------------------------------------------*/

/* Returns whether a queued job waits for devices, rather than for its quota or for a node that does
 * not exist. */
bool core_waits_for_devices(const struct hd_core *core, const struct core_job *job);
/* Decides between the first available placement (`first`, perhaps available now; with layout and
 * step time) and better ones. job->choice describes the comparison.
 *
 *   TAKE_FIRST      *first is unchanged
 *   TAKE_LATER      *first has become the better, later placement, with its own members
 *   WAIT_FOR_PRICE  the step time of a better placement is being predicted: first->entry
 *
 * forecast: that of the search for `first`; NULL: none was made. */
enum core_start_choice { CORE_TAKE_FIRST, CORE_WAIT_FOR_PRICE, CORE_TAKE_LATER };
enum core_start_choice core_choose_start(struct hd_core *core, struct core_forecast *forecast,
                                         struct core_job *job, const struct hd_job_needs *needs,
                                         struct core_first *first);
/* Returns whether the new job is the second one that waits for devices: the first one, which so far
 * waited alone, must then be evaluated again. */
bool core_ends_lone_wait(const struct hd_core *core, const struct core_job *new_job);
/* Returns whether the job still waits for the predicted step time of a better placement; false once
 * its deadline (price_mono_ms) has passed. */
bool core_waits_for_price(const struct hd_core *core, struct core_job *job);
/* Bounds of a placement: number of nodes, and tier of their common switch. */
struct core_aim {
    int32_t nodes, tier;
};
/* Returns the bounds of the best placement of as many devices as `now` has. */
struct core_aim core_best_aim(struct hd_core *core, const struct hd_job_needs *needs,
                              const struct core_placement *now);
/* Returns whether the placement uses the fewest possible nodes, at one switch of the lowest tier
 * that can hold them or of the next tier. */
bool core_is_near(struct hd_core *core, const struct hd_job_needs *needs,
                  const struct core_placement *placement);
/* Restricts the search to placements as near as the best one for the job's smallest device
 * count. */
void core_limit_to_best(struct hd_core *core, struct core_view *view, enum hd_device_kind kind);
/* Returns the best placement of `devices` devices of a kind if all nodes were idle; device_count 0:
 * none. The caller frees the members. */
struct core_placement core_best_placement(struct hd_core *core, const struct hd_job_needs *needs,
                                          enum hd_device_kind kind, int32_t devices);
enum hd_status core_check_most(const struct hd_core *core); /* checks invariant I15 of core.c for
                                                             * the maxima that better.c caches */

/* ---- allocation.c -----------------------------------------------------------------------------*/

/* Begins the list of allocations of a pass: drops the reservations, and lists the running attempts
 * by their predicted ends. Call it after core_predict_all. */
void core_list_allocations(struct hd_core *core);
/* Adds an attempt that has just started on devices reserved for other jobs. */
void core_allocation_borrow(struct hd_core *core, struct core_attempt *attempt);
/* Returns whether the attempt borrows its devices, and therefore stops when their owner needs
 * them. */
static inline bool core_is_borrower(const struct core_attempt *attempt)
{
    return attempt->rec.borrows && attempt->rec.state != HD_ATTEMPT_STATE_STOPPING;
}
/* Reserves the node from from_mono_ms on; an earlier reservation of the node ends. */
void core_reserve_node(struct hd_core *core, struct core_node *node, enum core_allocation_why why,
                       uint64_t job, enum hd_device_kind kind, int64_t from_mono_ms,
                       int32_t surplus);
void core_set_reserved(struct hd_core *core, struct core_node *node, struct core_reserved reserved);
void core_unreserve_job(struct hd_core *core, uint64_t job); /* drops all reservations for one
                                                              * job */
void core_unreserve_all(struct hd_core *core);               /* drops the reservations for all
                                                              * jobs */
/* Returns the node's reservation; NULL: none. */
static inline const struct core_allocation *core_reservation_of(const struct hd_core *core,
                                                                const struct core_node *node)
{
    return node->reserved.allocation ? &core->allocations.items[node->reserved.allocation - 1]
                                     : NULL;
}
static inline uint64_t core_reserved_by(const struct hd_core *core, const struct core_node *node)
{
    return node->reserved.allocation ? core_reservation_of(core, node)->job : 0;
}
/* Returns whether the job of the view may use devices of this reservation: it is the job's own, is
 * for another device kind, begins after the job's predicted end, or may be borrowed. */
bool core_may_use(const struct hd_core *core, const struct core_view *view,
                  enum hd_device_kind kind, const struct core_allocation *reservation);
/* Returns how many devices of the node with index i the job of the view may use at most, by the
 * node's marks and its reservation; INT32_MAX: all that are free. Valid after core_arrays_ready. */
int32_t core_allowance(const struct hd_core *core, const struct core_view *view, size_t i,
                       enum hd_device_kind kind);

/* ---- predict.c --------------------------------------------------------------------------------*/

/* Returns the predicted end of the attempt (monotonic, ms); INT64_MAX: unknown. */
int64_t core_predict_end(const struct hd_core *core, const struct core_job *job,
                         const struct core_attempt *attempt);
void core_predict_all(struct hd_core *core); /* updates the predicted ends of all attempts, for a
                                              * pass of the scheduler */
/* Returns how long a queued job will hold its devices, in milliseconds; 0: unknown. */
int64_t core_predict_length_ms(const struct hd_core *core, const struct core_job *job);
/* Returns how long the job would hold devices on which a step takes step_s; 0: unknown. */
int64_t core_predict_length_at(const struct hd_core *core, const struct core_job *job,
                               double step_s);
/* Updates the attempt's pace by a reported step. Returns whether predicted ends are now stale, so
 * that a pass is needed. */
bool core_predict_step(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       int64_t step, int64_t time_ms);
double core_step_ms(const struct core_attempt *attempt); /* measured milliseconds per step; 0: not
                                                          * measured yet */
void core_predict_restore(struct core_attempt *attempt); /* restores the attempt's pace; call it
                                                          * after its newest step was restored */
/* Moves rec.running_ms back when the controller learned late that the ranks run: they have run at
 * least from their first to their newest reported step. True: it was changed. */
bool core_note_running(const struct hd_core *core, struct core_attempt *attempt);
/* Adds the attempt's devices to the sums of preemptible devices (core->held). */
void core_note_held(struct hd_core *core, const struct core_job *job,
                    const struct core_attempt *attempt);

/* ---- forecast.c -------------------------------------------------------------------------------*/

static inline const struct core_forecast *core_forecast_of(const struct hd_core *core,
                                                           const struct core_view *view)
{
    return view->forecast ? view->forecast : &core->present;
}
/* Makes *ret a copy of the present, over a list of RUNS, of which none has ended in it. False: no
 * memory. The list must live as long. */
bool core_forecast_init(struct hd_core *core, const struct core_allocation *list, size_t count,
                        struct core_forecast *ret);
void core_forecast_done(struct core_forecast *forecast);
/* Counts the devices of the attempt as free (ended true), or as held again. */
void core_forecast_end(struct core_forecast *forecast, const struct core_attempt *attempt,
                       bool ended);
static inline bool core_forecast_has_ended(const struct core_forecast *forecast,
                                           const struct core_attempt *attempt)
{
    return forecast->ended && forecast->ended[attempt->slot / 64] >> attempt->slot % 64 & 1;
}
/* Lets exactly the first `ends` attempts of the list have ended. */
void core_forecast_advance(struct core_forecast *forecast, size_t ends);
/* Finds the smallest number of leading attempts of the list, at least `least`, whose end gives the
 * job a placement. Returns that number, which have then ended; the caller frees the placement's
 * members. A result above forecast->count: all are too few, and none has ended. Bisects, because
 * more free devices never remove a placement. */
size_t core_forecast_fewest(struct hd_core *core, struct core_forecast *forecast,
                            const struct core_view *view, size_t least,
                            struct core_placement *ret_placement);
/* Returns a lower bound for the result of core_forecast_fewest, by sums of devices. */
size_t core_least_ends(struct hd_core *core, const struct core_forecast *forecast,
                       const struct core_view *view, enum hd_device_kind kind);

/* ---- preempt.c --------------------------------------------------------------------------------*/

/* Preempts attempts of lower priority if that gives the job a placement; borrowed: also attempts
 * that borrow devices reserved for the job. True: the job waits until preempted attempts have
 * stopped. */
bool core_preempt(struct hd_core *core, struct core_job *job, const struct core_view *view,
                  bool borrowed);
/* Checks invariant I16 of core.c for this job: where the upper bound of fit_bound.c says that
 * preemption cannot free enough devices, a full search agrees. */
enum hd_status core_check_victims(struct hd_core *core, const struct core_job *job);

/* ---- pending.c --------------------------------------------------------------------------------*/

/* Stores a copy of the placement that preempted jobs free for this job as its pending placement,
 * and requests its layout. */
void core_pending_set(struct hd_core *core, struct core_job *job, const struct hd_job_needs *needs,
                      const struct core_placement *placement);
/* Returns the state of the job's pending placement; sets *ret_start to the time when its last
 * device is expected free.
 *
 *   NONE      there is none, or its devices are not all available to the job any more
 *   CLEARING  some of its devices are held by attempts that are stopping
 *   CLEAR     all its devices are free
 */
enum core_pending_state { CORE_PENDING_NONE, CORE_PENDING_CLEARING, CORE_PENDING_CLEAR };
enum core_pending_state core_pending_check(const struct hd_core *core, const struct core_job *job,
                                           struct core_start *ret_start);
/* Returns whether jobs that stop for this job run on a node that is reconnecting, so that the freed
 * devices are unknown for now. */
bool core_pending_awaits_nodes(const struct hd_core *core, const struct core_job *job);
void core_assemble(struct hd_core *core);     /* sets core->assembled if no node is still connecting
                                               * after a start of the controller */
void core_pending_drop(struct core_job *job); /* drops the job's pending placement; the job is still
                                               * evaluated before others */
void core_pending_end(struct hd_core *core,
                      struct core_job *job); /* the job is no preemptor any more: drops its pending
                                              * placement and its migration */
/* Ends the job's migration to another placement: it keeps no target. */
void core_migration_end(struct hd_core *core, struct core_job *job);
void core_migration_target_drop(struct core_job *job);

/* ---- defragment.c -----------------------------------------------------------------------------*/

/* Checks whether the job, which could start in `now`, would span fewer switches if running jobs
 * moved, and makes them move if that pays.
 *
 *   DEFRAGMENTS        jobs move; the placement that they free is the job's pending one
 *   DEFRAGMENTS_LATER  the step time of that placement is being predicted: *ret_entry
 *   DEFRAGMENTS_NOT    neither
 */
enum core_defragmented { CORE_DEFRAGMENTS_NOT, CORE_DEFRAGMENTS, CORE_DEFRAGMENTS_LATER };
enum core_defragmented core_defragment(struct hd_core *core, struct core_job *job,
                                       const struct core_placement *now,
                                       const struct core_cached_layout **ret_entry);
/* Reserves for each migrating job the placement to which it moves; call it after reservations were
 * dropped. */
void core_reserve_migration_targets(struct hd_core *core);
/* Makes the placement to which a stopped job migrates its pending placement. */
void core_migration_becomes_pending(struct hd_core *core, struct core_job *job);
/* Returns whether a reservation by job number `by` is for this job, or for the migrations that it
 * is part of. */
static inline bool core_is_reserved_for(const struct core_job *job, uint64_t by)
{
    return by == job->rec.job || (job->migration_group && by == job->migration_group);
}

/* ---- move.c -----------------------------------------------------------------------------------*/

/* Stops attempts at a checkpoint on nodes that are drained with a deadline or whose daemon
 * exits. */
void core_leave_nodes(struct hd_core *core);
/* Adds the node to core->leaving, whose jobs core_leave_nodes stops: its daemon exits, or it has a
 * drain deadline. */
void core_node_leaves(struct hd_core *core, struct core_node *node);
void core_leave_timers(struct hd_core *core, struct core_node *node);
/* Stops jobs of core->resize_candidates at a checkpoint if they can continue on more devices and
 * the gain exceeds the cost. */
void core_resize_jobs(struct hd_core *core);

/* ---- explain.c: core.h ------------------------------------------------------------------------*/

/* ---- fit.c ------------------------------------------------------------------------------------*/

/* Returns whether the device has at least the memory that `needs` asks for (NULL: any device
 * has). */
bool core_device_suits(const struct hd_job_needs *needs, const struct core_node *node,
                       int32_t device);
/* Returns the index of the node's first device of the kind, at or after `from`, that is free in the
 * forecast, works
 * and has the memory that `needs` asks for; -1: none. */
int32_t core_free_device(const struct core_forecast *forecast, const struct hd_job_needs *needs,
                         const struct core_node *node, enum hd_device_kind kind, int32_t from);
/* Raises the needs after no layout fitted `devices` devices with memory_bytes on the smallest: asks
 * for larger devices, if a node has any, else for more devices. False: neither exists. */
bool core_need_more(const struct hd_core *core, int32_t devices, int64_t memory_bytes,
                    struct hd_job_needs *needs);
/* Raises the needs of a job for which no layout fitted, and requeues it; or fails the job. True:
 * the job waits again. */
bool core_take_infeasible(struct hd_core *core, struct core_job *job, int32_t devices,
                          int64_t memory_bytes, const char *why);
/* Resets the needs of all jobs that were raised because no layout fitted to those of the job file;
 * called when a node's devices have changed. */
void core_forget_infeasible(struct hd_core *core);

/* ---- gang.c -----------------------------------------------------------------------------------*/

/* Replaces *best by a placement of the job on several nodes if that is better; frees the old
 * members. */
void core_gang_find(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                    struct core_placement *best);
/* Returns whether core_gang_find would find any placement; cheaper than the search. */
bool core_gang_is_there(struct hd_core *core, const struct core_view *view,
                        enum hd_device_kind kind);
bool core_gang_fits_when_idle(struct hd_core *core, const struct core_view *view,
                              enum hd_device_kind kind);
/* Reserves for view->job the nodes on which it would fit if they were idle. False: there are none;
 * *ret_blocking_job, if it was 0, is then set to a job that has reserved such nodes, if any. */
bool core_gang_reserve(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                       uint64_t *ret_blocking_job);
/* Returns why a node's devices of this kind cannot join a gang with those of some or all other
 * nodes; NONE: they can. */
enum core_gang_obstacle {
    CORE_GANG_OBSTACLE_NONE,
    CORE_GANG_OBSTACLE_JOBS_DIR, /* the node does not see the jobs directory */
    CORE_GANG_OBSTACLE_ADDRESS,  /* the node has no data address */
    CORE_GANG_OBSTACLE_ENGINE,   /* the node has no library for GPUs across nodes */
    CORE_GANG_OBSTACLE_LOOPBACK, /* its data address is reached only from its own machine */
    CORE_GANG_OBSTACLE_NUMERICS, /* some nodes compute other bits */
};
enum core_gang_obstacle core_find_gang_obstacle(const struct hd_core *core,
                                                const struct core_node *node,
                                                enum hd_device_kind kind);

/* ---- links.c ----------------------------------------------------------------------------------*/

/* Stores the links between a node's devices; NULL: none reported. Call it after
 * core_node_set_devices. */
void core_links_take(struct hd_core *core, struct core_node *node,
                     const struct hd_node_links *reported);
/* Releases the node's links (core_links_take). */
void core_links_drop(struct hd_core *core, struct core_node *node);
/* Sets the position and the leaf switch of the node in config.tree by its name; NO_POSITION: it is
 * not in the tree. */
void core_find_position(const struct hd_core *core, struct core_node *node);
/* Sets ret_devices to the device of each rank of a placement that has its layout, as an index in
 * the device list of the rank's node. False: no memory. */
bool core_choose_devices(struct hd_core *core, const struct hd_job_needs *needs,
                         const struct core_placement *placement, int32_t *ret_devices);
/* Returns the network distance of the nodes of `count` members, as in hd_core_asked. */
int32_t core_tier_of(const struct hd_core *core, const struct core_member *members, size_t count);
int32_t
core_tiers(const struct hd_core *core); /* distance of nodes without a common switch: the largest
                                         * possible one */
/* Sorts candidate nodes so that the first ones give `need` devices on as few nodes, and of these as
 * few switches, as possible. Returns how many candidates remain: only those of one switch, if one
 * switch suffices with as few nodes. */
size_t core_prefer_switches(struct hd_core *core, struct core_member *members, size_t count,
                            int32_t need);

#endif

/* schedule: the pass over the queued jobs: who starts, who waits for what, who is stopped for
 * whom.
 *
 *   schedule.c      the pass: evaluates queued jobs in order, and starts or reserves
 *   schedule_check.c recomputes the result of a pass in the simplest way and compares
 *   slowdown.c      order of the jobs of one queue
 *   layout_cache.c  layouts of attempts: requests and answers
 *   first.c         the placement of a job that becomes available first
 *   better.c        whether a job waits for a better placement
 *   reserve.c       reservations for jobs that do not fit now, and expected starts
 *   clearing.c      the placement that preempted jobs free for a job
 *   preempt.c       choice of the running jobs to preempt
 *   defragment.c    running jobs that move so that a gang spans fewer switches
 *   move.c          running jobs that leave a node or get more devices
 *   explain.c       why jobs wait
 *
 * Used by: core.c. Private to controller/core. */
#ifndef HD_CONTROLLER_CORE_SCHEDULE_H
#define HD_CONTROLLER_CORE_SCHEDULE_H

#include "controller/core/life/life.h"

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

/* ---- slowdown.c -------------------------------------------------------------------------------*/

/* Computes the job's place in the order of the newest pass (job->slowdown_priority), once per pass.
 * The job must be in a group. */
void core_set_slowdown_priority(struct hd_core *core, struct core_job *job);

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
void core_layout_cache_done(struct hd_core *core); /* frees the cache of layouts */

/* ---- first.c ----------------------------------------------------------------------------------*/

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
    size_t least, ends;      /* predicted ends that it depends on; least: a lower bound by sums */
    enum core_layout layout; /* FITS: placement.plan has the predicted step time, if known */
    const struct core_cached_layout *entry; /* with layout LATER: the open request for it */
};
/* Makes the forecast for core_find_first; the caller ends it with core_forecast_done. False: no
 * memory. */
bool core_forecast_for(struct hd_core *core, const struct core_job *job,
                       struct core_forecast *ret_forecast);
/* Sets *ret_first to the placement that becomes available first. wider: the result of a search with
 * fewer limits, which this one begins with; NULL: none. The forecast has reached the time of the
 * placement then, so the next search for the same job is cheap. */
void core_find_first(struct hd_core *core, struct core_forecast *forecast,
                     const struct core_view *view, enum hd_device_kind kind,
                     const struct core_first *wider, struct core_first *ret_first);
/* Sets `surplus` of each member of the placement: devices of its node that are free in the forecast
 * and that the placement does not use. */
void core_count_surplus(const struct hd_core *core, const struct core_forecast *forecast,
                        const struct hd_job_needs *needs, enum hd_device_kind kind,
                        struct core_placement *placement);
/* Reduces the needs to the fewest devices of this kind for which a layout exists. False: there is
 * none. */
bool core_least_needs(const struct hd_job_needs *needs, enum hd_device_kind kind,
                      struct hd_job_needs *ret_least);

/* ---- better.c ---------------------------------------------------------------------------------*/

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

/* ---- reserve.c --------------------------------------------------------------------------------*/

/* Reserves the placement for a queued job, which joins core->reservers. */
void core_reserve_members(struct hd_core *core, struct core_job *job,
                          const struct core_placement *placement, enum core_allocation_why why,
                          int64_t start_mono_ms);
/* Reserves for a job that does not fit now the placement where it can start first. False: nothing
 * can be reserved; job->wait and wait_job say why. */
bool core_reserve_earliest(struct hd_core *core, struct core_job *job, const struct core_view *view,
                           struct core_start *ret_start);
/* Reserves from now on the nodes of a placement where the job will start as soon as its layout, or a
 * step time, is known; leaves out nodes that are reserved already. Does nothing if
 * CORE_RESERVERS_MAX jobs have reservations already. */
void core_reserve_placement(struct hd_core *core, struct core_job *job,
                            const struct core_placement *placement);
/* Notes the expected start that this pass has found for the job. It is reported only after the last
 * pass of the step, so that intermediate results are never shown. */
void core_expect(struct hd_core *core, struct core_job *job, struct core_start start);
/* Adds an event, with the cause, for each job whose expected start has moved by more than reserve.c
 * tolerates. */
void core_report_planned_starts(struct hd_core *core);
/* Reports the expected starts after a pass; withdraws those of jobs that have no reservation any
 * more. */
void core_sweep_planned_starts(struct hd_core *core);
void core_planned_start_timers(struct hd_core *core);

/* ---- clearing.c -------------------------------------------------------------------------------*/

/* Stores a copy of the placement that preempted jobs free for this job as its pending placement,
 * and requests its layout, so that it is known when the devices are free. The placement is one of the
 * forecast, in which those jobs have ended. */
void core_pending_set(struct hd_core *core, struct core_job *job, const struct hd_job_needs *needs,
                      const struct core_forecast *forecast, const struct core_placement *placement);
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
/* Returns whether jobs that stop for this job run on a node that is reconnecting: until it has
 * reported, the core does not know which of its devices they still hold. */
bool core_pending_awaits_nodes(const struct hd_core *core, const struct core_job *job);
void core_assemble(struct hd_core *core); /* sets core->assembled if no node is still connecting
                                               * after a start of the controller */

/* ---- preempt.c --------------------------------------------------------------------------------*/

/* Preempts attempts of lower priority if that gives the job a placement; borrowed: also attempts
 * that borrow devices reserved for the job. True: the job waits until preempted attempts have
 * stopped. */
bool core_preempt(struct hd_core *core, struct core_job *job, const struct core_view *view,
                  bool borrowed);

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

/* ---- move.c -----------------------------------------------------------------------------------*/

/* Stops attempts at a checkpoint on nodes that are drained with a deadline or whose daemon
 * exits. */
void core_leave_nodes(struct hd_core *core);
/* Stops jobs of core->resize_candidates at a checkpoint if they can continue on more devices and
 * the gain exceeds the cost. */
void core_resize_jobs(struct hd_core *core);

#endif

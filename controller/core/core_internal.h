/* core_internal: functions that the files of this folder offer to one another; their data is in
 * core_state.h; the scheduler's functions are in core_schedule.h. Private to this folder.
 *
 *   core.c        the step, queries, invariants
 *   memory.c      strings, arrays; lookup of jobs, attempts, node allocations and nodes
 *   mark.c        changed records, entries of histories
 *   map.c         hash map from strings to numbers
 *   index.c       jobs by number; the sets of jobs that steps iterate over
 *   node.c        nodes in memory: devices, states, leases
 *   membership.c  nodes that join, reconnect, are drained or removed
 *   observe.c     observed sets: the attempts that nodes report
 *   job.c         jobs and attempts in memory
 *   submit.c      submitted and cancelled jobs
 *   start.c       attempts that start
 *   end.c         attempts that stop, fail and end; retries; ends of jobs
 *   resume.c      jobs that are resumed, requeued, or told to write a checkpoint
 *   remove.c      ended jobs that are removed with their folders
 *   queue.c       queues, their limits and fair shares
 *   array.c       arrays of jobs, of which some run at a time
 *   waiting.c     queued jobs, in classes that the scheduler treats alike; nodes where a job failed
 *   checkpoint.c  reports, the list of checkpoints, deletions
 *   missing.c     checkpoints that are listed but not on the disk
 *   away.c        pauses of the controller, during which nodes are not to blame for silence
 *   clock.c       steps of the wall clock
 *   restore.c     rebuilds the memory from the store's records
 *   plan.c        layouts
 *   probe.c       measured speeds of devices, and which devices are slow
 *
 * The sentences of events and reasons are declared in core_texts.h.
 */
#ifndef HD_CONTROLLER_CORE_INTERNAL_H
#define HD_CONTROLLER_CORE_INTERNAL_H

#include "controller/core/core_state.h"

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
    bool ignores_bounds; /* search even where fit_bound.c excludes a placement (self-checks) */
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

/* ---- memory.c ---------------------------------------------------------------------------------*/

/* Frees *slot and sets it to a copy of text, cut to HD_CTL_PATH_BYTES_MAX. Out of memory: sets it
 * to NULL, which readers treat as "", and sets core->no_memory. */
void core_set_text(struct hd_core *core, const char **slot, const char *text);
void core_free_text(const char **slot);
bool core_same(const char *a, const char *b); /* string equality; NULL equals "" */
/* Grows *array (`array`: address of a typed pointer) to hold at least count + 1 items. False: out
 * of memory. */
bool core_grow_array(struct hd_core *core, void *array, size_t count, size_t *size,
                     size_t item_bytes);

struct core_job *core_find_job(const struct hd_core *core, uint64_t number);
struct core_attempt *core_find_attempt(const struct core_job *job, int32_t number);
struct core_attempt *core_newest(const struct core_job *job); /* NULL: none yet */
static inline struct core_attempt *core_active(const struct core_job *job)
{
    return job->active;
}
/* Returns whether the job's attempt is stopping at a checkpoint because of a preemption or a drain;
 * job may be NULL: false. */
static inline bool core_is_being_preempted(const struct core_job *job)
{
    return job && job->active && job->active->rec.state == HD_ATTEMPT_STATE_STOPPING &&
           job->active->rec.stop_cause == HD_END_CAUSE_PREEMPTED;
}
struct core_node_alloc *core_find_node_alloc(const struct core_attempt *attempt,
                                             const struct core_node *node);
struct core_node *core_find_node(const struct hd_core *core, const char *uuid);
struct core_node *core_find_node_named(const struct hd_core *core, const char *name);
/* Returns whether the search excludes the node because the job failed there twice. */
bool core_avoids(const struct core_view *view, const struct core_node *node);

/* ---- mark.c -----------------------------------------------------------------------------------*/

/* Marks the record as changed in this step; the end of the step appends it to the batch. */
void core_dirty_job(struct hd_core *core, struct core_job *job);
void core_dirty_attempt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
void core_dirty_node(struct hd_core *core, struct core_node *node);
/* Increments the generation of the node's desired set; the end of the step lists the node in
 * out->nodes. */
void core_dirty_desired(struct hd_core *core, struct core_node *node);
/* Lists the job in out->jobs: its status or history has changed. */
void core_announce(struct hd_core *core, const struct core_job *job);

/* ---- job.c ------------------------------------------------------------------------------------*/

struct core_job *core_job_new(struct hd_core *core, const struct hd_job_record *record,
                              const struct hd_job_needs *needs);
/* Changes the job's state; moves the job into or out of the sets of queued jobs. */
void core_set_job_state(struct hd_core *core, struct core_job *job, enum hd_job_state state);
void core_job_free(struct core_job *job);
/* Frees the job's memory; the store keeps its records. */
void core_job_forget(struct hd_core *core, struct core_job *job);
struct core_attempt *core_attempt_new(struct hd_core *core, struct core_job *job,
                                      const struct hd_attempt_record *record);
/* Sets the attempt's end; copies the strings. */
void core_attempt_set_end(struct hd_core *core, struct core_attempt *attempt,
                          const struct hd_end_record *end);
/* Marks the attempt as the holder of its devices, and counts the ones without a problem. */
void core_attempt_note_devices(struct core_attempt *attempt);
/* Adds the job to, or removes it from, core->active and the sets `active` of its nodes. */
void core_active_add(struct hd_core *core, struct core_job *job);
void core_active_remove(struct hd_core *core, struct core_job *job);
enum hd_wanted core_wanted(const struct core_job *job, const struct core_attempt *attempt);
bool core_is_failure(enum hd_end_cause cause); /* the end counts against restart.max */
bool core_is_stop(enum hd_end_cause cause);    /* the attempt ended because it was told to stop */
/* Returns the milliseconds for which attempts of the job have run since it was submitted or last
 * resumed. */
int64_t core_job_ran_ms(const struct hd_core *core, const struct core_job *job);
bool core_has_failed(const struct core_job *job); /* true if the job's newest attempt ended by a
                                                   * fault */

/* ---- submit.c ---------------------------------------------------------------------------------*/

enum hd_status core_submit(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_cancel(struct hd_core *core, const struct hd_core_event *event);
/* Records that this owner's request id belongs to this job. False: no memory. */
bool core_request_put(struct hd_core *core, const char *id, const char *owner, uint64_t job,
                      uint64_t hash);
const struct core_request *core_request_find(const struct hd_core *core, const char *id,
                                             const char *owner);
/* Returns whether the number of live jobs has reached this percentage of its limit. */
bool core_reaches(const struct hd_core *core, size_t percent);

/* ---- start.c ----------------------------------------------------------------------------------*/

/* Starts an attempt. why: explanation of the layout for users, or "". Ranks are numbered in the
 * order of the members; core_choose_devices assigns their devices. */
void core_attempt_start(struct hd_core *core, struct core_job *job,
                        const struct core_placement *placement, const char *why);

/* ---- end.c ------------------------------------------------------------------------------------*/

/* Ends the job: succeeded, failed or cancelled. */
void core_finish_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                     const char *reason);
/* Ends the job with the reason that `end` describes. */
struct core_job_end;
void core_end_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                  const struct core_job_end *end);
/* Makes all ranks of the attempt write a checkpoint and exit. */
void core_attempt_stop(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
/* Stops the attempt at a checkpoint for a reason of the controller; `cause` becomes the cause of
 * its end. for_job: the job that gets the devices, or 0. Does nothing if the attempt is stopping
 * already. */
void core_attempt_stop_for(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                           enum hd_end_cause cause, uint64_t for_job);
/* Records a failure of an attempt (the first one is kept) and stops its ranks on all nodes. */
void core_attempt_fail(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       const struct hd_end_record *end);
/* Adds an event that names the older checkpoint from which the job continues; does nothing unless
 * the attempt found its base checkpoint damaged and an older one exists. */
void core_announce_fallback(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt);
/* Ends an attempt's allocation on one node. With the last one the attempt ends, and the job ends or
 * is queued again. */
void core_node_alloc_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                         struct core_node_alloc *alloc);
void core_attempt_timers(struct hd_core *core, struct core_job *job);
/* Returns whether the newest attempts were preempted, one after another, soon after they started
 * and on devices that were not borrowed: the next start is then delayed. */
bool core_is_thrashing(const struct core_job *job);

/* ---- probe.c ----------------------------------------------------------------------------------*/

enum hd_status core_probe_ask(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_probed(struct hd_core *core, const struct hd_core_event *event);
void core_probe_restore(struct hd_core *core, struct core_node *node,
                        const struct hd_probe_record *record);
void core_probe_drop(struct core_node *node); /* frees the result of the node's probe */
/* Withdraws an unanswered probe request of a node that is lost. */
void core_probe_give_up(struct hd_core *core, struct core_node *node);

/* ---- node.c -----------------------------------------------------------------------------------*/

struct core_node *core_node_new(struct hd_core *core, const struct hd_node_record *record);
void core_node_free(struct core_node *node);
/* Returns whether the device works: it has no problem. device: index in rec.devices. */
static inline bool core_device_works(const struct core_node *node, int32_t device)
{
    const char *problem = node->rec.devices[device].problem;

    return !problem || !*problem;
}
/* Inserts the node into, or removes it from, core->nodes, which is sorted by name. */
void core_node_list(struct hd_core *core, struct core_node *node);
void core_node_unlist(struct hd_core *core, const struct core_node *node);
/* Replaces the node's device list; a device whose index stays keeps its holder. */
void core_node_set_devices(struct hd_core *core, struct core_node *node,
                           const struct hd_device_record *devices, int32_t count);
/* Renames the node as its daemon requested, if no job runs on the node. */
void core_node_rename(struct hd_core *core, struct core_node *node);
bool core_node_is_held(const struct core_node *node); /* whether an attempt holds one of its
                                                       * devices */
void core_node_set_state(struct hd_core *core, struct core_node *node, enum hd_node_state state);
/* Renews the node's lease, because a message of it has arrived. */
void core_node_renew(struct hd_core *core, struct core_node *node);
/* Ends the allocation on this node of every attempt that has one there. */
void core_node_end_allocs(struct hd_core *core, struct core_node *node, const char *message);
/* Finds the node that sent an event on this stream. HD_NOT_FOUND: there is no such node;
 * HD_CONFLICT: the stream is not its newest. */
enum hd_status core_find_stream(const struct hd_core *core, const char *uuid, uint64_t stream,
                                struct core_node **ret_node);
void core_node_lose(struct hd_core *core, struct core_node *node, const char *why);
/* Does not count the last away_ms, a pause of the controller, as silence of the node, and gives it
 * the grace period of a controller start. */
void core_node_pardon(struct hd_core *core, struct core_node *node, int64_t away_ms);
/* Returns the milliseconds of silence after which the node is lost; fewer if ranks of other nodes
 * report it gone. */
int64_t core_node_lost_after_ms(const struct hd_core *core, const struct core_node *node);
/* Returns the wall-clock time (ms) at which the node will be lost if it stays silent. */
int64_t core_node_lost_at_ms(const struct hd_core *core, const struct core_node *node);
/* Returns whether the node has connected since the controller started. */
bool core_node_has_come(const struct core_node *node);
void core_node_timers(struct hd_core *core, struct core_node *node);
/* Recomputes the node's state: READY, DRAINING or DRAINED. */
void core_node_refresh(struct hd_core *core, struct core_node *node);
/* Recomputes whether the node accepts new attempts; adds an event on a change. */
void core_node_update_refusal(struct hd_core *core, struct core_node *node);
/* Returns whether the node can take a new attempt now. */
static inline bool core_node_usable(const struct core_node *node)
{
    return !node->rec.retired && node->rec.state == HD_NODE_STATE_READY && node->synced &&
           !node->stale_count && !(node->refuses_attempts && *node->refuses_attempts);
}
/* Appends why the node is not usable; nothing if it is. */
void core_node_reason(const struct core_node *node, struct hd_now now, struct hd_text *text);

/* ---- clock.c ----------------------------------------------------------------------------------*/

/* Shifts stored times when the wall clock was set. before: time of the previous event; ticks: this
 * event is a tick. */
void core_follow_clock(struct hd_core *core, struct hd_now before, bool ticks);

/* ---- away.c -----------------------------------------------------------------------------------*/

/* Detects a pause of the controller at the start of a step. before_ms: core->now.mono_ms of the
 * previous step. */
void core_away(struct hd_core *core, int64_t before_ms);
void core_report_away(struct hd_core *core); /* adds an event if a pause of the controller was
                                              * detected since the last call */

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
/* Reclassifies a queued job after its base checkpoint, or another part of its class key, has
 * changed. */
void core_waiting_moved(struct hd_core *core, struct core_job *job);
/* Returns whether some job's retry delay is over, or its next search for missing checkpoints
 * due. */
bool core_waiting_due(struct hd_core *core);
void core_waiting_release(struct hd_core *core);
/* Frees empty groups and classes. */
void core_waiting_sweep(struct hd_core *core);
/* Returns why a queued job waits; sets *ret_blocking_job to the job whose reservation blocks it, or
 * 0. */
enum core_wait core_wait_of(const struct hd_core *core, const struct core_job *job,
                            uint64_t *ret_blocking_job);

/* Starts a search of the disk for the job's checkpoints; until core_search_end no pass evaluates
 * the job. */
void core_search_begin(struct hd_core *core, struct core_job *job);
void core_search_end(struct hd_core *core, struct core_job *job);
/* Removes and re-adds the job among the queued jobs, because the reason for its wait has
 * changed. */
void core_waiting_again(struct hd_core *core, struct core_job *job);
enum hd_status core_hold(struct hd_core *core, const struct hd_core_event *event);
/* Checks the jobs named in `after`. HD_NOT_FOUND: one does not exist. HD_INVALID: one has failed or
 * was cancelled. */
enum hd_status core_check_after(const struct hd_core *core, const struct hd_job_needs *needs);
/* Checks that resuming a job creates no cycle through `after`. HD_INVALID: the job would wait for
 * itself. */
enum hd_status core_check_circle(struct hd_core *core, uint64_t number,
                                 const struct hd_job_needs *needs);
/* Releases, or cancels, the jobs that waited for the success of jobs that have now ended. */
void core_notify_dependents(struct hd_core *core);
void core_search_timers(struct hd_core *core, struct core_job *job);
/* Finds the nodes on which the job failed twice; the job avoids them if it fits elsewhere. */
void core_learn_failures(struct core_job *job);

/* ---- array.c ----------------------------------------------------------------------------------*/

/* Makes a new or resumed job a member of the array that its needs name, if they name one. Takes
 * needs.array, which becomes NULL. */
void core_array_join(struct hd_core *core, struct core_job *job);
void core_array_leave(struct hd_core *core, struct core_job *job);
void core_arrays_done(struct hd_core *core); /* frees all arrays */
/* Returns how many members run or may start. */
int32_t core_array_open(const struct core_array *array);
/* Returns whether the job's array lets it wait: as many members as may run are open, or one that
 * comes before it waits. */
bool core_array_keeps(const struct core_job *job);
/* Lets members of changed arrays start, as many as may run, and takes others back. */
void core_arrays_settle(struct hd_core *core);
/* Checks invariant I18. */
enum hd_status core_check_arrays(const struct hd_core *core);

/* ---- queue.c ----------------------------------------------------------------------------------*/

enum hd_status core_set_queue(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_remove_queue(struct hd_core *core, const struct hd_core_event *event);
struct core_queue *core_find_queue(const struct hd_core *core, const char *name); /* NULL: none */
struct core_queue *core_queue_put(struct hd_core *core, const struct hd_queue_record *record);
/* Returns the account of `owner` in the queue; creates it. NULL: no memory. */
struct core_account *core_account_of(struct hd_core *core, struct core_queue *queue,
                                     const char *owner);
/* Returns the number of further devices that the account may hold (INT64_MAX: no limit); sets
 * *ret_by_user to true if the user's limit is tighter than the queue's. */
int64_t core_quota_left(const struct core_account *account, bool *ret_by_user);
/* Checks that the queue's limits can hold the job at all. HD_NOT_FOUND: there is no such queue;
 * HD_INVALID: the job needs more than the limits. */
enum hd_status core_check_quota(const struct hd_core *core, const struct hd_job_needs *needs);
void core_quota_take(struct core_job *job, int64_t devices); /* counts `devices` as held by the
                                                              * job's queue and user; negative:
                                                              * gives them back */
bool core_queue_is_behind(const struct core_queue *a,
                          const struct core_queue *b); /* queue a holds more devices for its weight
                                                        * than queue b */
void core_queues_free(struct hd_core *core);
enum hd_status core_check_quotas(const struct hd_core *core); /* checks invariant I14 of core.c
                                                               * (held devices per queue and user),
                                                               * for hd_core_check */
/* Sets *ret_needs to the job's needs, reduced to the device quota that is left. False: too little
 * is left, or the queue is closed. */
bool core_within_quota(const struct core_job *job, struct hd_job_needs *ret_needs);

/* ---- resume.c ---------------------------------------------------------------------------------*/

/* Loads an ended job into memory from its records in the event. On failure nothing of it stays in
 * memory. */
enum hd_status core_recall(struct hd_core *core, const struct hd_core_event *event,
                           struct core_job **ret_job);
enum hd_status core_resume(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_requeue(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_checkpoint_now(struct hd_core *core, const struct hd_core_event *event);

/* ---- remove.c ---------------------------------------------------------------------------------*/

enum hd_status core_remove(struct hd_core *core, const struct hd_core_event *event);
enum hd_status core_end_all(struct hd_core *core, const struct hd_core_event *event);
/* Returns whether some node has still to confirm that it deleted the folder of this removed job. */
bool core_waits_for_removal(const struct core_job *job);
/* Returns whether this node must delete the job's folder. */
bool core_removes(const struct hd_core *core, const struct core_job *job,
                  const struct core_node *node);
/* Notes that the node has deleted the job's folder. left: the part that it could not delete, and
 * why; NULL or "": none. */
void core_removed(struct hd_core *core, const struct core_node *node, uint64_t number,
                  const char *left);

/* ---- checkpoint.c -----------------------------------------------------------------------------*/

enum hd_status core_report(struct hd_core *core, const struct hd_core_event *event);
/* Adds a complete checkpoint, reported by a rank or node, to the job's list, unless it is listed.
 * If a newer attempt exists, no attempt will start from this checkpoint: it is marked for deletion,
 * if `keep` is limited. */
void core_checkpoint_take(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                          const struct core_node *node,
                          const struct hd_checkpoint_record *checkpoint);
/* Deletes the checkpoints of a step on a user's request. HD_NOT_FOUND: there is none; HD_CONFLICT:
 * the job has not ended and may continue from it. */
enum hd_status core_checkpoint_remove(struct hd_core *core, struct core_job *job, int64_t step,
                                      const char *by);
/* Marks for deletion all checkpoints but the newest `keep`, the base of the newest attempt, the
 * newest proven one and the best one (checkpoint.best). */
void core_checkpoint_prune(struct hd_core *core, struct core_job *job);
/* Marks checkpoints as proven: training after `step` of `attempt` had a finite loss and gradient,
 * so the checkpoints up to that step, and the attempt's base, hold sound weights. */
void core_checkpoint_prove(struct hd_core *core, struct core_job *job, int32_t attempt,
                           int64_t step);
/* Clears `proven` of the attempt's base: the attempt diverged from its first step on. */
void core_checkpoint_disprove_base(struct hd_core *core, struct core_job *job,
                                   const struct core_attempt *attempt);
/* Returns the newest proven checkpoint that no attempt found damaged; NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_proven(const struct core_job *job);
/* Returns the undamaged checkpoint with the lowest validation loss, the oldest of equals; NULL:
 * there is none, or checkpoint.best is off. */
const struct hd_checkpoint_record *core_checkpoint_best(const struct core_job *job);
/* Returns the node that must delete a checkpoint: its writer or, if that is lost and the checkpoint
 * is shared, another node that sees the jobs directory. NULL: none can. */
struct core_node *core_checkpoint_deleter(const struct hd_core *core,
                                          const struct hd_checkpoint_record *checkpoint);
bool core_waits_for_deletion(const struct core_job *job); /* true while some node has still to
                                                           * confirm that it deleted a checkpoint,
                                                           * or the job's folder */
void core_checkpoint_forget_all(struct hd_core *core, struct core_job *job);
/* Counts checkpoints that only this node could delete as deleted: the node is removed. */
void core_checkpoint_abandon(struct hd_core *core, struct core_node *node);
void core_checkpoint_deleted(struct hd_core *core, const struct core_node *node,
                             const struct hd_deletion *deletion);
/* Returns the base checkpoint of the next attempt: the newest that no attempt found damaged; the
 * newest of all if every one was found damaged. NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_newest(const struct core_job *job);

/* Returns whether the attempt ended because a rank could not load its base checkpoint: exit_code
 * HD_LINK_EXIT_BAD_BASE (damaged) or HD_LINK_EXIT_NO_BASE (missing). */
bool core_attempt_refused_base(const struct core_attempt *attempt, int32_t exit_code);
/* Returns whether the attempt was added to the list in place of one that a restored database does
 * not know (observe.c). The job's folder may have checkpoints of it that are not listed. */
bool core_attempt_is_placeholder(const struct core_attempt *attempt);
/* Returns whether the attempt ended because its base checkpoint is damaged. */
bool core_attempt_found_base_damaged(const struct core_attempt *attempt);
/* Returns the newest checkpoint that is not missing and that no attempt found damaged; NULL:
 * none. */
const struct hd_checkpoint_record *core_checkpoint_sound(const struct core_job *job);
/* Returns the checkpoint in the job's list; NULL: it is not listed. */
struct hd_checkpoint_record *core_checkpoint_listed(struct core_job *job, int32_t attempt,
                                                    int64_t step);
/* Lists a checkpoint that a search found on the disk although a newer attempt has begun or it was
 * once deleted; used when no listed one is left, or after a restore. */
void core_checkpoint_adopt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                           const struct hd_checkpoint_record *checkpoint);
/* Returns whether checkpoints are listed and all of them are missing: the job must not start from
 * scratch then. */
bool core_lacks_checkpoint(const struct core_job *job);
/* Returns the newest undamaged checkpoint, to which the job falls back after an attempt that found
 * its base damaged. NULL: its base was not damaged, or there is no other. */
const struct hd_checkpoint_record *core_checkpoint_fallback(const struct core_job *job,
                                                            const struct core_attempt *attempt);
/* Returns whether the attempt has reported a checkpoint of the last step of the run. */
bool core_checkpoint_is_final(const struct core_job *job, const struct core_attempt *attempt,
                              int64_t last_step);
/* Returns whether the attempt with this number wrote a checkpoint. */
bool core_attempt_progressed(const struct core_job *job, int32_t attempt);

/* ---- missing.c --------------------------------------------------------------------------------*/

/* Returns whether the attempt ended because its base checkpoint is not on the disk, and no earlier
 * attempt since the job was submitted or resumed missed the same one. Such an end is no failure,
 * and not the node's fault. */
bool core_attempt_missed_base(const struct core_job *job, const struct core_attempt *attempt);
/* Marks the base of an attempt that has just ended as missing, if that was the cause. */
void core_note_missed_base(struct hd_core *core, struct core_job *job,
                           const struct core_attempt *attempt);
/* Returns whether the disk must be searched for the job's checkpoints before it starts again: its
 * node was lost, its base checkpoint could not be loaded, or its checkpoints are missing. */
bool core_wants_search(const struct core_job *job);
/* Returns whether the search of the disk for this job covers the folders of all attempts, not only
 * of the newest. */
bool core_search_is_whole(const struct core_job *job);
enum hd_status core_found(struct hd_core *core, const struct hd_core_event *event);
/* Stores why a search failed; "": it did not. Adds an event when the reason is another one than
 * that of the search before. */
void core_search_note(struct hd_core *core, struct core_job *job, const char *problem);
/* Adds the event about the job's missing checkpoints that is still due (missing_due). */
void core_tell_missing(struct hd_core *core, struct core_job *job);
/* Clears `missing` of a listed checkpoint that was found on the disk; `seen` is what was found. */
void core_checkpoint_is_back(struct hd_core *core, struct core_job *job,
                             struct hd_checkpoint_record *listed,
                             const struct hd_checkpoint_record *seen);
/* Searches the disk at once for a queued job that lacks a checkpoint; checkpoints that only a rank
 * can see are tried again. */
void core_look_again(struct hd_core *core, struct core_job *job);
/* Reclassifies a queued job after its list of checkpoints has changed. */
void core_checkpoints_moved(struct hd_core *core, struct core_job *job);
/* ---- plan.c -----------------------------------------------------------------------------------*/

/* Returns the job's layout request with its device kind set to `kind`, on which the limits on ranks
 * depend. */
struct hd_plan_request core_plan_request_on(const struct hd_job_needs *needs,
                                            enum hd_device_kind kind);
/* Does what hd_core_plan does, without an error message; false: there is no layout. */
bool core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind, int32_t count,
               struct hd_plan_record *ret_plan);
/* Returns the smallest device count within devices_min and devices_max for which a layout exists;
 * 0: none. */
int32_t core_devices_needed(const struct hd_job_needs *needs, enum hd_device_kind kind);
/* Returns the largest device count up to `available` and devices_max for which a layout exists,
 * with the layout; 0: none. */
int32_t core_pick_count(const struct hd_job_needs *needs, enum hd_device_kind kind,
                        int32_t available, struct hd_plan_record *ret_plan);
/* Returns `devices` rounded down to a multiple of the tensor-parallel group size. */
int32_t core_whole_groups(const struct hd_job_needs *needs, int32_t devices);

/* ---- facts.c ----------------------------------------------------------------------------------*/

/* Returns whether checkpoint a is newer than b: by step, then by attempt. */
bool core_checkpoint_is_newer(const struct hd_checkpoint_record *a,
                              const struct hd_checkpoint_record *b);
/* Returns whether a later attempt found this checkpoint damaged. */
bool core_checkpoint_is_damaged(const struct core_job *job,
                                const struct hd_checkpoint_record *checkpoint);
/* Returns whether the checkpoint's state allows an attempt to start from it. */
bool core_checkpoint_is_there(const struct hd_checkpoint_record *checkpoint);
/* Returns whether the attempt ended because its base checkpoint is not on the disk; attempt may be
 * NULL: false. */
bool core_attempt_lacked_base(const struct core_attempt *attempt);
/* Returns whether a job of `after` has not succeeded yet. */
bool core_waits_for_success(const struct hd_core *core, const struct core_job *job);
/* Returns whether the job has had an attempt since it was submitted or resumed. */
bool core_has_started(const struct core_job *job);
/* Returns the next node allocation of the job, from *attempt and *index on, whose files no node has
 * confirmed deleted; NULL: none. */
struct core_node_alloc *core_next_unremoved(const struct core_job *job, int32_t *attempt,
                                            size_t *index);
/* Returns whether the node has a drain deadline. */
bool core_node_has_deadline(const struct core_node *node);

/* Return whether a member of an array runs or may start; whether member a is let in before b; the
 * first of the members that the array keeps waiting, and the last of those that may start and have no
 * attempt (NULL: none). */
bool core_array_is_open(const struct core_job *job);
bool core_array_precedes(const struct core_job *a, const struct core_job *b);
struct core_job *core_array_first_kept(const struct core_array *array);
struct core_job *core_array_last_open(const struct core_array *array);

#endif

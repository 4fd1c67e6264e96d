/* life: how jobs, attempts and nodes come, change state and go. It never searches for a
 * placement: it notes in core->due what the next pass has to consider.
 *
 *   job.c           jobs and attempts in memory
 *   submit.c        submitted and cancelled jobs
 *   start.c         attempts that start
 *   end.c           attempts that stop, fail and end; retries; ends of jobs
 *   node.c          nodes in memory: devices, states
 *   lease.c         nodes that fall silent and are lost
 *   membership.c    nodes that join, reconnect, are drained or removed
 *   observe.c       observed sets: the attempts that nodes report
 *   waiting.c       queued jobs, in classes that the scheduler treats alike; nodes where a job failed
 *   release.c       queued jobs that wait for other jobs, for a user, for a search
 *   array.c         arrays of jobs, of which some run at a time
 *   queue.c         queues, their limits and fair shares
 *   checkpoint.c    reports, the list of checkpoints, deletions
 *   missing.c       checkpoints that are listed but not on the disk
 *   resume.c        jobs that are resumed, requeued, or told to write a checkpoint
 *   remove.c        ended jobs that are removed with their folders
 *   restore.c       rebuilds the memory from the store's records
 *   probe.c         measured speeds of devices, and which devices are slow
 *   fit.c           jobs for which no layout fits the devices that were found
 *   away.c          pauses of the controller, during which nodes are not to blame for silence
 *   clock.c         steps of the wall clock
 *
 * Used by: schedule, core.c. Private to controller/core. */
#ifndef HD_CONTROLLER_CORE_LIFE_H
#define HD_CONTROLLER_CORE_LIFE_H

#include "controller/core/place/place.h"

/* X(kind, function): what handles an event HD_CORE_kind. Those of jobs are in submit.c,
 * resume.c, release.c, remove.c; of nodes in membership.c, observe.c; core_planned in layout_cache.c. */
/* clang-format off */
#define CORE_HANDLERS(X)                                                      \
    X(SUBMIT, core_submit)                 X(CANCEL, core_cancel)             \
    X(RESUME, core_resume)                 X(REQUEUE, core_requeue)           \
    X(CHECKPOINT_NOW, core_checkpoint_now) X(HOLD, core_hold)                 \
    X(RELEASE, core_hold)                  X(SET_QUEUE, core_set_queue)       \
    X(REMOVE_QUEUE, core_remove_queue)     X(DRAIN, core_drain)               \
    X(UNDRAIN, core_drain)                 X(REMOVE_NODE, core_node_remove)   \
    X(HELLO, core_hello)                   X(ALIVE, core_alive)               \
    X(COPY, core_copy)                     X(DISCONNECTED, core_disconnected) \
    X(OBSERVED, core_observed)             X(REPORT, core_report)             \
    X(FOUND, core_found)                   X(END_ALL, core_end_all)           \
    X(REMOVE, core_remove)                 X(PLANNED, core_planned)           \
    X(PROBE, core_probe_ask)               X(PROBED, core_probed)             \
    X(JOBS_DIR, core_jobs_dir)
/* clang-format on */
#define X(kind, function) \
    enum hd_status function(struct hd_core *core, const struct hd_core_event *event);
CORE_HANDLERS(X)
#undef X

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

/* ---- submit.c ---------------------------------------------------------------------------------*/

/* Records that this owner's request id belongs to this job, which has the highest number so far.
 * False: no memory. */
bool core_request_put(struct hd_core *core, const char *id, const char *owner, uint64_t job,
                      uint64_t hash);
const struct core_known_job *core_request_find(const struct hd_core *core, const char *id,
                                               const char *owner);

/* ---- start.c ----------------------------------------------------------------------------------*/

/* Starts an attempt. why: explanation of the layout for users, or "". Ranks are numbered in the
 * order of the members; core_choose_devices assigns their devices. */
void core_attempt_start(struct hd_core *core, struct core_job *job,
                        const struct core_placement *placement, const char *why);

/* ---- end.c ------------------------------------------------------------------------------------*/

/* Ends the job: succeeded, failed or cancelled. */
void core_finish_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                     const char *reason);
struct core_job_end; /* texts.h */
/* Ends the job with the reason that `end` describes. */
void core_end_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                  const struct core_job_end *end);
/* Makes all ranks of the attempt write a checkpoint and exit. */
void core_attempt_stop(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
/* Stops the attempt at a checkpoint, so that its job continues later or elsewhere, or because its
 * time is over; `cause` becomes the cause of its end. for_job: the job that gets the devices, or 0.
 * Does nothing if the attempt is stopping already. The caller adds the event that says why. */
void core_evict(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                enum hd_end_cause cause, uint64_t for_job);
/* Records a failure of an attempt (the first one is kept) and stops its ranks on all nodes. */
void core_attempt_fail(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       const struct hd_end_record *end);
/* Ends an attempt's allocation on one node. With the last one the attempt ends, and the job ends or
 * is queued again. */
void core_node_alloc_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                         struct core_node_alloc *alloc);
void core_attempt_timers(struct hd_core *core, struct core_job *job);
/* Returns whether the newest attempts were preempted, one after another, soon after they started
 * and on devices that were not borrowed: the next start is then delayed. */
bool core_is_thrashing(const struct core_job *job);

/* ---- node.c -----------------------------------------------------------------------------------*/

void core_probe_drop(struct core_node *node); /* frees the result of the node's probe */
struct core_node *core_node_new(struct hd_core *core, const struct hd_node_record *record);
void core_node_free(struct core_node *node);
/* Replaces the facts of the node by copies of those of a hello. */
void core_node_set_facts(struct hd_core *core, struct core_node *node,
                         const struct hd_node_facts *facts);
/* Inserts the node into, or removes it from, core->nodes, which is sorted by name. */
void core_node_list(struct hd_core *core, struct core_node *node);
void core_node_unlist(struct hd_core *core, const struct core_node *node);
/* Replaces the node's device list; a device whose index stays keeps its holder. */
void core_node_set_devices(struct hd_core *core, struct core_node *node,
                           const struct hd_device_record *devices, int32_t count);
void core_node_set_state(struct hd_core *core, struct core_node *node, enum hd_node_state state);
/* Renews the node's lease, because a message of it has arrived. */
void core_node_renew(struct hd_core *core, struct core_node *node);
/* Finds the node that sent an event on this stream. HD_NOT_FOUND: there is no such node;
 * HD_CONFLICT: the stream is not its newest. */
enum hd_status core_find_stream(const struct hd_core *core, const char *uuid, uint64_t stream,
                                struct core_node **ret_node);
/* Recomputes the node's state: READY, DRAINING or DRAINED. */
void core_node_refresh(struct hd_core *core, struct core_node *node);
/* Appends why the node is not usable; nothing if it is. */
void core_node_reason(const struct core_node *node, struct hd_now now, struct hd_text *text);
/* Returns whether the node has a drain deadline. */
bool core_node_has_deadline(const struct core_node *node);
/* Adds the node to core->leaving, whose jobs core_leave_nodes stops: its daemon exits, or it has a
 * drain deadline. */
void core_node_leaves(struct hd_core *core, struct core_node *node);

/* ---- lease.c ----------------------------------------------------------------------------------*/

/* Ends the allocation on this node of every attempt that has one there. */
void core_node_end_allocs(struct hd_core *core, struct core_node *node, const char *message);
void core_node_lose(struct hd_core *core, struct core_node *node, const char *why);
/* Does not count the last away_ms, a pause of the controller, as silence of the node, and gives it
 * the grace period of a controller start. */
void core_node_pardon(struct hd_core *core, struct core_node *node, int64_t away_ms);
/* Returns the wall-clock time (ms) at which the node will be lost if it stays silent. */
int64_t core_node_lost_at_ms(const struct hd_core *core, const struct core_node *node);
/* Handles drain deadlines that have passed, and nodes that have been silent for too long. */
void core_node_timers(struct hd_core *core);

/* ---- membership.c -----------------------------------------------------------------------------*/

/* Renames the node as its daemon requested, if no job runs on the node. */
void core_node_rename(struct hd_core *core, struct core_node *node);

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

/* ---- release.c --------------------------------------------------------------------------------*/

/* Checks what a job asks for: a layout, its queue, the jobs that it is to come after. */
enum hd_status core_check_request(const struct hd_core *core, const struct hd_job_needs *needs);
/* Checks that resuming a job creates no cycle through `after`. HD_INVALID: the job would wait for
 * itself. */
enum hd_status core_check_circle(struct hd_core *core, uint64_t number,
                                 const struct hd_job_needs *needs);
/* Releases, or cancels, the jobs that waited for the success of jobs that have now ended. */
void core_notify_dependents(struct hd_core *core);
void core_search_timers(struct hd_core *core, struct core_job *job);
/* Lets members of changed arrays start, as many as may run, and takes others back. */
void core_arrays_settle(struct hd_core *core);

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
/* Checks invariant I18. */
enum hd_status core_check_arrays(const struct hd_core *core);

/* Returns whether the member of an array runs or may start. */
bool core_array_is_open(const struct core_job *job);
/* Returns whether the array lets member `a` start before member `b`. */
bool core_array_precedes(const struct core_job *a, const struct core_job *b);
/* Returns the first of the members that the array keeps waiting; NULL: none. */
struct core_job *core_array_first_kept(const struct core_array *array);
/* Returns the last of the members that may start and have no attempt; NULL: none. */
struct core_job *core_array_last_open(const struct core_array *array);

/* ---- queue.c ----------------------------------------------------------------------------------*/

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

/* ---- checkpoint.c -----------------------------------------------------------------------------*/

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
/* Returns the first node that sees the jobs directory and can delete files there; NULL: none. */
struct core_node *core_find_deleter(const struct hd_core *core);
/* Returns the node that must delete a checkpoint: its writer or, if that is lost and the checkpoint
 * is shared, another node that sees the jobs directory. NULL: none can. */
struct core_node *core_checkpoint_deleter(const struct hd_core *core,
                                          const struct hd_checkpoint_record *checkpoint);
void core_checkpoint_forget_all(struct hd_core *core, struct core_job *job);
/* Counts checkpoints that only this node could delete as deleted: the node is removed. */
void core_checkpoint_abandon(struct hd_core *core, struct core_node *node);
void core_checkpoint_deleted(struct hd_core *core, const struct core_node *node,
                             const struct hd_deletion *deletion);
/* Lists a checkpoint that a search found on the disk although a newer attempt has begun or it was
 * once deleted; used when no listed one is left, or after a restore. */
void core_checkpoint_adopt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                           const struct hd_checkpoint_record *checkpoint);

/* ---- missing.c --------------------------------------------------------------------------------*/

/* Adds an event that names the older checkpoint from which the job continues; does nothing unless
 * the attempt found its base checkpoint damaged and an older one exists. */
void core_announce_fallback(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt);
/* Marks the base of an attempt that has just ended as missing, if that was the cause. */
void core_note_missed_base(struct hd_core *core, struct core_job *job,
                           const struct core_attempt *attempt);
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

/* ---- resume.c ---------------------------------------------------------------------------------*/

/* Loads an ended job into memory from its records in the event. On failure nothing of it stays in
 * memory. */
enum hd_status core_recall(struct hd_core *core, const struct hd_core_event *event,
                           struct core_job **ret_job);

/* ---- remove.c ---------------------------------------------------------------------------------*/

/* Returns whether this node must delete the job's folder. */
bool core_removes(const struct hd_core *core, const struct core_job *job,
                  const struct core_node *node);
/* Notes that the node has deleted the job's folder. left: the part that it could not delete, and
 * why; NULL or "": none. */
void core_removed(struct hd_core *core, const struct core_node *node, uint64_t number,
                  const char *left);

/* ---- probe.c ----------------------------------------------------------------------------------*/

void core_probe_restore(struct hd_core *core, struct core_node *node,
                        const struct hd_probe_record *record);
/* Withdraws an unanswered probe request of a node that is lost. */
void core_probe_give_up(struct hd_core *core, struct core_node *node);

/* ---- fit.c ------------------------------------------------------------------------------------*/

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

/* ---- away.c -----------------------------------------------------------------------------------*/

/* Detects a pause of the controller at the start of a step. before_ms: core->now.mono_ms of the
 * previous step. */
void core_away(struct hd_core *core, int64_t before_ms);
void core_report_away(struct hd_core *core); /* adds an event if a pause of the controller was
                                              * detected since the last call */

/* ---- clock.c ----------------------------------------------------------------------------------*/

/* Shifts stored times when the wall clock was set. before: time of the previous event; ticks: this
 * event is a tick. */
void core_follow_clock(struct hd_core *core, struct hd_now before, bool ticks);

#endif

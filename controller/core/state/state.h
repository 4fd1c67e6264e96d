/* state: the core's state in memory, and what all files of the core may ask of it.
 *
 *   memory.c        strings, arrays, lookups
 *   index.c         jobs by number; the sets of jobs that steps iterate over
 *   mark.c          changed records, entries of histories
 *   facts.c         what the records of jobs, attempts, checkpoints and nodes say
 *   plan.c          layouts by arithmetic alone
 *   topology.c      switches and links of nodes
 *   free.c          devices of nodes, and the arrays that searches read
 *   allocation.c    the list of devices used or reserved; who may use them
 *   pending.c       what a job keeps from pass to pass besides its place in the queue
 *   predict.c       predicted ends and lengths of jobs
 *
 * The sentences of events and reasons are declared in texts.h. May use: nothing of the other folders
 * of the core. Private to controller/core. */
#ifndef HD_CONTROLLER_CORE_STATE_H
#define HD_CONTROLLER_CORE_STATE_H

#include "controller/core/state/data.h"

/* ---- memory.c ---------------------------------------------------------------------------------*/

/* Frees *slot and sets it to a copy of text, cut to HD_CTL_PATH_BYTES_MAX. Out of memory: sets it
 * to NULL, which readers treat as "", and sets core->no_memory. */
void core_set_text(struct hd_core *core, const char **slot, const char *text);
void core_free_text(const char **slot);
/* Replaces the texts of a record, the TEXT fields of its table, by copies that the core owns. */
void core_own_texts(struct hd_core *core, const struct hd_table *table, void *record);
void core_free_texts(const struct hd_table *table, void *record);
/* Returns the text; "", and sets core->no_memory, if a part of it had no memory. */
const char *core_text(struct hd_core *core, const struct hd_text *text);
bool core_same(const char *a, const char *b); /* string equality; NULL equals "" */
/* Grows *array (`array`: address of a typed pointer) to hold at least count + 1 items. False: out
 * of memory. */
bool core_grow_array(struct hd_core *core, void *array, size_t count, size_t *size,
                     size_t item_bytes);
/* Returns a zeroed item of item_bytes, for which *array, an array of pointers with `count` items, has
 * room then; the caller appends or inserts it, and frees it. NULL: out of memory. */
void *core_new_item(struct hd_core *core, void *array, size_t count, size_t *size,
                    size_t item_bytes);
/* Returns the index of the first of `count` items that does not come before the key, by bisection;
 * count: all do. is_before: whether an item comes before the key. */
size_t core_bisect(const void *items, size_t count, size_t item_bytes, const void *key,
                   bool (*is_before)(const void *item, const void *key));
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
/* Returns the place in the node's device list of the device with this index; -1: it has none. */
int32_t core_find_device(const struct core_node *node, int32_t index);
/* Returns whether the search excludes the node because the job failed there twice. */
bool core_avoids(const struct core_view *view, const struct core_node *node);

/* ---- index.c ----------------------------------------------------------------------------------*/

struct core_job *core_find_job(const struct hd_core *core, uint64_t number);

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

/* ---- facts.c ----------------------------------------------------------------------------------*/

enum hd_wanted core_wanted(const struct core_job *job, const struct core_attempt *attempt);
bool core_is_failure(enum hd_end_cause cause); /* the end counts against restart.max */
bool core_is_stop(enum hd_end_cause cause);    /* the attempt ended because it was told to stop */
/* Returns the total running time, in milliseconds, of the attempts that the job has had since it was
 * submitted or last resumed. */
int64_t core_job_ran_ms(const struct hd_core *core, const struct core_job *job);
/* Returns how many steps the next attempt has to run: those after its base checkpoint. */
int64_t core_steps_left(const struct core_job *job);
bool core_has_failed(const struct core_job *job); /* true if the job's newest attempt ended by a
                                                   * fault */
/* Returns whether the number of live jobs has reached this percentage of its limit. */
bool core_reaches(const struct hd_core *core, size_t percent);
/* Returns whether the device works: it has no problem. device: index in rec.devices. */
static inline bool core_device_works(const struct core_node *node, int32_t device)
{
    const char *problem = node->rec.devices[device].problem;

    return !problem || !*problem;
}
bool core_node_is_held(const struct core_node *node); /* whether an attempt holds one of its
                                                       * devices */
/* Returns whether the node has connected since the controller started. */
bool core_node_has_come(const struct core_node *node);
/* Returns whether the node can take a new attempt now. */
static inline bool core_node_usable(const struct core_node *node)
{
    return !node->rec.retired && node->rec.state == HD_NODE_STATE_READY && node->synced &&
           !node->stale_count && !(node->refuses_attempts && *node->refuses_attempts);
}
/* Returns the newest proven checkpoint that no attempt found damaged; NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_proven(const struct core_job *job);
/* Returns the undamaged checkpoint with the lowest validation loss, the oldest of equals; NULL:
 * there is none, or checkpoint.best is off. */
const struct hd_checkpoint_record *core_checkpoint_best(const struct core_job *job);
bool core_waits_for_deletion(const struct core_job *job); /* true while some node has still to
                                                           * confirm that it deleted a checkpoint,
                                                           * or the job's folder */
/* Returns the base checkpoint of the next attempt: the newest that no attempt found damaged; the
 * newest of all if every one was found damaged. NULL: there is none. */
const struct hd_checkpoint_record *core_checkpoint_newest(const struct core_job *job);

/* Returns whether observe.c made up the attempt's record, because a node reported the attempt and the
 * database, restored from a backup, did not know it. The message of its end says so. The job's folder
 * may have checkpoints of it that are not listed. */
bool core_attempt_is_placeholder(const struct core_attempt *attempt);
/* Returns whether the attempt ended because its base checkpoint is damaged. */
bool core_attempt_found_base_damaged(const struct core_attempt *attempt);
/* Returns the newest checkpoint that is not missing and that no attempt found damaged; NULL:
 * none. */
const struct hd_checkpoint_record *core_checkpoint_sound(const struct core_job *job);
/* Returns the checkpoint in the job's list; NULL: it is not listed. */
struct hd_checkpoint_record *core_checkpoint_listed(struct core_job *job, int32_t attempt,
                                                    int64_t step);
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

/* Returns whether the attempt ended because its base checkpoint is not on the disk, and no earlier
 * attempt since the job was submitted or resumed missed the same one. Such an end is no failure,
 * and not the node's fault. */
bool core_attempt_missed_base(const struct core_job *job, const struct core_attempt *attempt);
/* Returns whether the disk must be searched for the job's checkpoints before it starts again: its
 * node was lost, its base checkpoint could not be loaded, or its checkpoints are missing. */
bool core_wants_search(const struct core_job *job);
/* Returns whether the search of the disk for this job covers the folders of all attempts, not only
 * of the newest. */
bool core_search_is_whole(const struct core_job *job);

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
/* Returns whether the attempt has ranks on a node of the placement. */
bool core_is_on(const struct core_placement *placement, const struct core_attempt *attempt);
/* Returns whether the attempt runs on borrowed devices that the job may reclaim by preemption. */
bool core_yields_to(const struct hd_core *core, const struct core_attempt *attempt,
                    const struct core_job *job);

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

/* Sets ret_kinds to the device kinds that a job may use, preferred first; returns their number. */
size_t core_kinds(const struct hd_job_needs *needs,
                  enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT]);
/* Checks that some layout exists for these needs. HD_INVALID or HD_UNSUPPORTED: the job cannot run
 * on any cluster of this build. */
enum hd_status core_check_needs(const struct hd_job_needs *needs);

/* ---- topology.c -------------------------------------------------------------------------------*/

/* Stores the links between a node's devices; NULL: none reported. Call it after
 * core_node_set_devices. */
void core_links_take(struct hd_core *core, struct core_node *node,
                     const struct hd_node_links *reported);
/* Releases the node's links (core_links_take). */
void core_links_drop(struct hd_core *core, struct core_node *node);
/* Sets the position and the leaf switch of the node in config.tree by its name; NO_POSITION: it is
 * not in the tree. */
void core_find_position(const struct hd_core *core, struct core_node *node);
int32_t
core_tiers(const struct hd_core *core); /* distance of nodes without a common switch: the largest
                                         * possible one */

/* ---- free.c -----------------------------------------------------------------------------------*/

/* Counts the node's devices that work and have the memory that `needs` asks for (NULL: any);
 * free_only: without those that attempts hold now. */
int32_t core_count_devices(const struct hd_job_needs *needs, const struct core_node *node,
                           enum hd_device_kind kind, bool free_only);
/* Counts those of the node with this index that are free in the forecast. Valid after
 * core_arrays_ready. */
int32_t core_count_free(const struct hd_core *core, const struct core_forecast *forecast,
                        const struct hd_job_needs *needs, size_t index, enum hd_device_kind kind);

/* Rebuilds the arrays by node index of data.h if they are stale. False: no memory. */
bool core_arrays_ready(struct hd_core *core);
/* Frees all arrays by node index. */
void core_arrays_free(struct hd_core *core);
/* Updates the arrays by node index after a change of the node's devices or of their holders. */
void core_node_changed(struct hd_core *core, struct core_node *node);
/* Updates the arrays by node index after a change of the node's usability, hot spare flag or
 * reservation. */
void core_node_note(struct hd_core *core, const struct core_node *node);
/* Returns the index of the first node at or after i that has free devices; core->node_count: none.
 * Valid after core_arrays_ready. Few nodes of a busy cluster have any. */
static inline size_t core_next_free(const struct hd_core *core,
                                    const struct core_forecast *forecast, enum hd_device_kind kind,
                                    size_t i)
{
    const uint64_t *set = forecast->free[kind].nodes;
    size_t word = i / 64;
    uint64_t bits = set[word] >> i % 64 << i % 64;

    while (!bits && (word + 1) * 64 < core->node_count)
        bits = set[++word];
    return bits ? word * 64 + (size_t)__builtin_ctzll(bits) : core->node_count;
}
/* Changes the free devices of one node and of its switch, not free->total; `more` may be negative. */
void core_free_add(struct core_free *free, const struct core_node *node, int32_t more);
enum hd_status core_check_free(const struct hd_core *core); /* checks invariant I15 of core.c: these
                                                             * arrays match the nodes */
static inline const struct core_forecast *core_forecast_of(const struct hd_core *core,
                                                           const struct core_view *view)
{
    return view->forecast ? view->forecast : &core->present;
}
static inline bool core_forecast_has_ended(const struct core_forecast *forecast,
                                           const struct core_attempt *attempt)
{
    return forecast->ended && forecast->ended[attempt->slot / 64] >> attempt->slot % 64 & 1;
}

/* Returns whether the device has at least the memory that `needs` asks for (NULL: any device
 * has). */
bool core_device_suits(const struct hd_job_needs *needs, const struct core_node *node,
                       int32_t device);
/* Returns the index of the node's first device of the kind, at or after `from`, that is free in the
 * forecast, works and has the memory that `needs` asks for; -1: none. */
int32_t core_free_device(const struct core_forecast *forecast, const struct hd_job_needs *needs,
                         const struct core_node *node, enum hd_device_kind kind, int32_t from);

/* ---- allocation.c -----------------------------------------------------------------------------*/

/* Returns how many devices of this kind the job of the view may take on the node with index i now.
 * Valid after core_arrays_ready. */
int32_t core_available(const struct hd_core *core, const struct core_view *view, size_t i,
                       enum hd_device_kind kind);

/* Begins the list of allocations of a pass: drops the reservations, predicts the ends of all
 * attempts, and lists the attempts by them. */
void core_list_allocations(struct hd_core *core);
/* Adds an attempt to the list: one that has just started on devices reserved for other jobs. */
void core_list_attempt(struct hd_core *core, const struct core_job *job,
                       struct core_attempt *attempt);
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
/* Returns the number of the job for which the node is reserved; 0: none, or the node is a hot
 * spare. */
static inline uint64_t core_reserved_by(const struct hd_core *core, const struct core_node *node)
{
    return node->reserved.allocation ? core_reservation_of(core, node)->job : 0;
}
static inline bool core_is_spare(const struct hd_core *core, const struct core_node *node)
{
    return node->reserved.allocation && core_reservation_of(core, node)->why == CORE_SPARE;
}
/* Returns whether the job of the view may borrow devices of any reservation. */
bool core_may_borrow(const struct hd_core *core, const struct core_view *view);
/* Returns how many devices of the node with index i the job of the view may use at most, by the
 * node's marks and its reservation; INT32_MAX: all that are free. Valid after core_arrays_ready. */
int32_t core_allowance(const struct hd_core *core, const struct core_view *view, size_t i,
                       enum hd_device_kind kind);
/* Returns whether a reservation by job number `by` is for this job, or for the migrations that it
 * is part of. */
static inline bool core_is_reserved_for(const struct core_job *job, uint64_t by)
{
    return by == job->rec.job || (job->migration_group && by == job->migration_group);
}

/* ---- pending.c --------------------------------------------------------------------------------*/

void core_planned_start_end(struct hd_core *core,
                            struct core_job *job); /* the job is not queued any more */
/* Makes the job a preemptor: passes evaluate it before the other jobs of its priority. */
void core_pending_begin(struct hd_core *core, struct core_job *job);
void core_pending_drop(struct core_job *job); /* drops the job's pending placement; the job is still
                                               * evaluated before others */
void core_pending_end(struct hd_core *core,
                      struct core_job *job); /* the job is no preemptor any more: drops its pending
                                              * placement and its migration */
/* Ends the job's migration to another placement: it keeps no target. */
void core_migration_end(struct hd_core *core, struct core_job *job);
void core_migration_target_drop(struct core_job *job);
/* Makes the placement to which a stopped job migrates its pending placement. */
void core_migration_becomes_pending(struct hd_core *core, struct core_job *job);

/* ---- predict.c --------------------------------------------------------------------------------*/

enum {
    CORE_STOP_MS = 30 * 1000
}; /* milliseconds that writing the last checkpoint is assumed to
                                    * take */
/* The next start is assumed to take as long as the attempt's own. */
struct core_stop_cost core_stop_cost_of(const struct hd_core *core,
                                        const struct core_attempt *attempt);

/* Returns the predicted end of the attempt (monotonic, ms); INT64_MAX: unknown. */
int64_t core_predict_end(const struct hd_core *core, const struct core_job *job,
                         const struct core_attempt *attempt);
/* Returns how long a queued job will hold its devices, in milliseconds; 0: unknown. */
int64_t core_predict_length_ms(const struct hd_core *core, const struct core_job *job);
/* Returns how long the job would hold devices on which a step takes step_s; 0: unknown. */
int64_t core_predict_length_at(const struct hd_core *core, const struct core_job *job,
                               double step_s);
/* Updates the attempt's pace by a reported step. Returns whether predicted ends are now stale, so
 * that a pass is needed. */
bool core_predict_step(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       int64_t step, int64_t time_ms);
/* Adds an event if the attempt's pace shows that its predicted step time is wrong, once. */
void core_predict_judge(struct hd_core *core, struct core_job *job, struct core_attempt *attempt);
/* Returns the factor by which step times that are predicted for the job on such devices are multiplied:
 * 1, unless its attempts showed that predictions are wrong. While an attempt runs it is the factor of
 * that attempt's own prediction. job: NULL: not submitted. */
double core_price_factor(const struct core_job *job, enum hd_job_device device);
double core_step_ms(const struct core_attempt *attempt); /* measured milliseconds per step; 0: not
                                                          * measured yet */
void core_predict_restore(struct core_attempt *attempt); /* restores the attempt's pace; call it
                                                          * after its newest step was restored */
/* Moves rec.running_ms back when the controller learned late that the ranks run: they have run at
 * least from their first to their newest reported step. True: it was changed. */
bool core_note_running(const struct hd_core *core, struct core_attempt *attempt);

#endif

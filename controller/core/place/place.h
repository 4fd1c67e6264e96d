/* place: the search for a placement of one job: now, in a forecast, or on idle nodes.
 * It reads the state, and changes nothing but caches and reservations.
 *
 *   place.c         search for a placement
 *   gang.c          placement of one job on several nodes
 *   links.c         which devices of its nodes an attempt takes; nodes of one switch
 *   compact.c       the best placement on idle nodes
 *   hot_spare.c     nodes kept free for jobs that fail
 *   forecast.c      the cluster after some ends, and how many ends a placement needs
 *
 * Used by: life (the devices of a start), schedule. Private to controller/core. */
#ifndef HD_CONTROLLER_CORE_PLACE_H
#define HD_CONTROLLER_CORE_PLACE_H

#include "controller/core/state/state.h"

/* ---- place.c ----------------------------------------------------------------------------------*/

struct core_view core_view_of(struct hd_core *core, const struct core_job *job);
/* Finds the best placement on free devices (device_count 0: none); the caller frees its members. */
struct core_placement core_find_placement(struct hd_core *core, const struct core_view *view);
bool core_has_placement(struct hd_core *core, const struct core_view *view);
/* Returns how many devices of this kind the node has for the job: free ones and, coming: those of
 * attempts that started before the job first reserved nodes, which it gets at their ends; else those
 * of attempts that started since, which only use what the job leaves over. */
int32_t core_count_for(const struct core_view *view, const struct core_node *node,
                       enum hd_device_kind kind, bool coming);
/* Finds a node on which the job would fit if the node were idle: a usable one first, then the one
 * with the most free devices. Sets *ret_blocking_job to a job that has reserved such a node, or
 * 0. */
struct core_node *core_find_idle_node(struct hd_core *core, const struct core_view *view,
                                      enum hd_device_kind *ret_kind, uint64_t *ret_blocking_job);

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
enum core_gang_obstacle core_find_gang_obstacle(const struct hd_core *core,
                                                const struct core_node *node,
                                                enum hd_device_kind kind);

/* ---- links.c ----------------------------------------------------------------------------------*/

/* Sets ret_devices to the device of each rank of a placement that has its layout, as an index in
 * the device list of the rank's node. False: no memory. */
bool core_choose_devices(struct hd_core *core, const struct hd_job_needs *needs,
                         const struct core_placement *placement, int32_t *ret_devices);
/* Returns the network distance of the nodes of `count` members, as in hd_core_asked. */
int32_t core_tier_of(const struct hd_core *core, const struct core_member *members, size_t count);
/* Sorts candidate nodes so that the first ones give `need` devices on as few nodes, and of these as
 * few switches, as possible. Returns how many candidates remain: only those of one switch, if one
 * switch suffices with as few nodes. */
size_t core_prefer_switches(struct hd_core *core, struct core_member *members, size_t count,
                            int32_t need);

/* ---- compact.c --------------------------------------------------------------------------------*/

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

/* ---- hot_spare.c ------------------------------------------------------------------------------*/

/* Begins the list of allocations of a pass (core_list_allocations) with the hot spares. They are
 * chosen by the reservations of the pass before, which this drops. */
void core_list_with_hot_spares(struct hd_core *core);
/* Reserves nodes for failed jobs whose checkpoints are being searched; call it after reservations
 * were dropped. */
void core_reserve_for_failed(struct hd_core *core);
/* Returns whether the job needs more devices than the nodes that are not hot spares have. */
bool core_needs_hot_spares(const struct hd_core *core, const struct hd_job_needs *needs);

/* ---- forecast.c -------------------------------------------------------------------------------*/

/* Makes *ret a copy of the present, over a list of RUNS, of which none has ended in it. False: no
 * memory. The list must live as long. */
bool core_forecast_init(struct hd_core *core, const struct core_allocation *list, size_t count,
                        struct core_forecast *ret);
void core_forecast_done(struct core_forecast *forecast);
/* Counts the devices of the attempt as free (ended true), or as held again. */
void core_forecast_end(struct core_forecast *forecast, const struct core_attempt *attempt,
                       bool ended);
/* Lets exactly the first `ends` attempts of the list have ended. */
void core_forecast_advance(struct core_forecast *forecast, size_t ends);
/* Finds the smallest number of leading attempts of the list, at least `least`, whose end gives the
 * job a placement. Returns that number, which have then ended; the caller frees the placement's
 * members. A result above forecast->count: all are too few, and none has ended. shut: number of ends
 * before which a search with fewer limits has found no placement. Bisects: without limits more free
 * devices never remove a placement; with limits they may, and one of several such numbers is found. */
size_t core_forecast_fewest(struct hd_core *core, struct core_forecast *forecast,
                            const struct core_view *view, size_t least, size_t shut,
                            struct core_placement *ret_placement);
/* Returns a lower bound for the result of core_forecast_fewest, by sums of devices that begin after
 * `from` ends: the bound of a search with fewer limits, or 0. */
size_t core_least_ends(struct hd_core *core, struct core_forecast *forecast,
                       const struct core_view *view, enum hd_device_kind kind, size_t from);

#endif

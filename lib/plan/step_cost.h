/* step_cost: how long a step of a layout takes on a cluster, and what that time consists of.
 *
 * Programs are costed by layer profiles (layer_profile.h). A step is the walk of all stages'
 * schedules (lib/pipeline): a program starts when its stage is free and its input has arrived; a
 * transfer starts when its program has ended and the channel to the other stage is free; reductions
 * run on their own stream, and the update waits for them. Bubble and overlap are results of the
 * walk.
 *
 * Used by: search.   Uses: layer_profile, cluster, pipeline, model.
 * Threads: any; no state. */
#ifndef HD_PLAN_STEP_COST_H
#define HD_PLAN_STEP_COST_H

#include "base/arena.h"
#include "pipeline/pipeline.h"
#include "plan/cluster.h"
#include "plan/layer_profile.h"

struct hd_step_cost {
    double step_s;
    /* Parts of step_s, on the stage that computes longest. */
    double compute_s; /* seconds of the kernels of programs F, B and W */
    double update_s;  /* seconds of gradient norm, update, gather of new weights */
    double bubble_s;  /* seconds in which the stage waits for other pipeline stages */
    /* by group: communication that overlaps with nothing; dp: also reductions that remain when the
     * last program ends */
    double communication_s[HD_GROUP_COUNT];
    /* programs_s: seconds until the last program of any pipeline stage ends; busy_s: seconds in
     * which a stage runs programs, mean over stages */
    double programs_s, busy_s;
    /* seconds of models that only compute, before the step, and of the writing of its answers
     * (hd_rollout_seconds), which are none of the parts above but for frozen_s in compute_s; 0: none */
    double frozen_s, rollout_s;
    /* share of programs_s, 0 to 1, in which a pipeline stage waits, mean over stages */
    double bubble;
    double tokens_per_s;
    double mfu; /* model FLOPs utilisation; 0: the device's peak is unknown */
};

/* The values of a layout that the cost of a step depends on. */
struct hd_step_cost_layout {
    struct hd_pipeline pipeline;
    const struct hd_units *units;    /* [pipeline.chunks] units of each chunk */
    const struct hd_schedule *order; /* schedule of the programs of one step */
    const struct hd_model_config *config;
    int64_t ranks_per_stage;
    int64_t segment;       /* blocks of a recompute segment (hd_layer_profile_segment) */
    const double *trained; /* result of hd_step_cost_trained; may be NULL */
};

/* Returns the time of one program (F, B or W) of a pipeline chunk whose units are `units`. segment:
 * hd_layer_profile_segment. */
struct hd_program_time hd_step_cost_program(const struct hd_layer_profiles *profiles,
                                            const struct hd_model_config *config,
                                            struct hd_units units, int64_t segment,
                                            enum hd_layer_profile_call call, bool last);

/* Sets *ret_trained to the share, 0 to 1, of each unit's parameters that trains: [units of the
 * model], in `arena`. Sets NULL if the layer profiles already contain it: everything trains, or an
 * adapter does, which all blocks have alike. */
enum hd_status hd_step_cost_trained(const struct hd_model_config *config, struct hd_arena *arena,
                                    const double **ret_trained);

/* Sets *ret_cost to the time of a step of this layout and the parts of that time. Takes scratch
 * memory from `arena`. */
enum hd_status hd_step_cost_of_layout(const struct hd_layer_profiles *profiles,
                                      const struct hd_step_cost_layout *layout,
                                      const struct hd_cluster *cluster, struct hd_arena *arena,
                                      struct hd_step_cost *ret_cost);

/* Adds to each member of y that is seconds the same member of x, times a. */
void hd_step_cost_add(struct hd_step_cost *y, double a, const struct hd_step_cost *x);

/* Sets the members that follow from the seconds: bubble, tokens_per_s and mfu. flops_per_token:
 * hd_model_flops_per_token. peak_flops: of one device; 0: unknown. */
void hd_step_cost_rate(struct hd_step_cost *cost, double flops_per_token, const struct hd_job *job,
                       int64_t devices, double peak_flops);

#endif

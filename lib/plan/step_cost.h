/* cost: how long a step of a layout takes on a cluster, and what that time consists of.
 *
 * Programs are costed by pieces (layer_profile.h). A step is the walk of all stages' orders
 * (lib/pipeline): a program starts when its stage is free and what it needs has arrived; a value
 * travels when its program has ended and the channel to the other stage is free; reductions run on
 * a stream of their own, and the update waits for them. Bubble and overlap are results of the walk.
 *
 * Used by: search.   Uses: pieces, cluster, pipeline, model.
 * Threads: any; no state.
 */
#ifndef HD_PLAN_STEP_COST_H
#define HD_PLAN_STEP_COST_H

#include "base/arena.h"
#include "pipeline/pipeline.h"
#include "plan/cluster.h"
#include "plan/layer_profile.h"

struct hd_step_cost {
    double step_s;
    /* of the stage that computes longest, together step_s */
    double compute_s;                       /* kernels of F, B and W */
    double update_s;                        /* norm, update, gather of new weights */
    double bubble_s;                        /* waiting for other stages */
    double communication_s[HD_GROUP_COUNT]; /* that nothing overlaps with, by group; dp: also what
                                             is left of the reductions when the last program ends */
    double programs_s, busy_s;              /* until the last program ends; programs of a stage, on
                                               average */
    double bubble;                          /* share of a step that stages wait, on average */
    double tokens_per_s;
    double mfu; /* 0: the device's peak is not known */
};

/* The layout in the small: what a step needs of it. */
struct hd_step_cost_layout {
    struct hd_pipeline pipeline;
    const struct hd_units *units;    /* [pipeline.chunks] */
    const struct hd_schedule *order; /* of a step */
    const struct hd_model_config *config;
    int64_t ranks_per_stage;
    int64_t segment;       /* hd_layer_profile_segment */
    const double *trained; /* hd_step_cost_trained */
};

/* Seconds of a program of one chunk, whose units are `units`. segment: hd_layer_profile_segment. */
struct hd_program_time hd_step_cost_program(const struct hd_layer_profiles *profiles,
                                            const struct hd_model_config *config,
                                            struct hd_units units, int64_t segment,
                                            enum hd_layer_profile_call call, bool last);

/* The share of each unit's parameters that trains, [units of the model] in `arena`; NULL: pieces
 * know it, because everything trains, or an adapter does, which all blocks have alike. */
enum hd_status hd_step_cost_trained(const struct hd_model_config *config, struct hd_arena *arena,
                                    const double **ret_trained);

/* The time of a step, and what it consists of. Scratch memory is taken from `arena`. */
enum hd_status hd_step_cost_of_layout(const struct hd_layer_profiles *profiles,
                                      const struct hd_step_cost_layout *layout,
                                      const struct hd_cluster *cluster, struct hd_arena *arena,
                                      struct hd_step_cost *ret_cost);

/* y += a x, of seconds. */
void hd_step_cost_add(struct hd_step_cost *y, double a, const struct hd_step_cost *x);

/* Sets the members that follow from the seconds: bubble, tokens_per_s, mfu
 * (hd_model_flops_per_token). peak_flops: of one device; 0: not known. */
void hd_step_cost_rate(struct hd_step_cost *cost, double flops_per_token, const struct hd_job *job,
                       int64_t devices, double peak_flops);

#endif

/* rollout_profile: how long the answers that a job trains on (train/rollout.h) take to write.
 *
 * A replica writes as many answers at a time as it has slots, by calls of two programs of decoding, one
 * after the other through all stages. Each call reads all weights once, so its time hardly depends on the
 * number of slots; tp divides it, pp does not, and dp divides the number of calls.
 *
 * Used by: search, the heddle command.   Uses: layer_profile.
 * Threads: any; a profile is only read.
 */
#ifndef HD_PLAN_ROLLOUT_PROFILE_H
#define HD_PLAN_ROLLOUT_PROFILE_H

#include "plan/layer_profile.h"

/* The calls in which a replica writes the answers of a step, if all of them have train.rollout.max_tokens,
 * their prompts are as long as the windows leave room for, and no prompt is replaced. */
struct hd_rollout_calls {
    int64_t slots;                    /* answers at a time */
    int64_t rows[HD_DECODE_PROGRAMS]; /* tokens of each answer that a call reads */
    int64_t count[HD_DECODE_PROGRAMS];
    int64_t draws; /* calls behind which tokens are drawn */
};

struct hd_rollout_profile {
    struct hd_rollout_calls calls;
    /* seconds of a call: the sum over all pipeline stages, without their transfers */
    double call_s[HD_DECODE_PROGRAMS];
    int64_t stage_io_bytes[HD_DECODE_PROGRAMS];
    double draw_s; /* of a draw: logits to the host, tokens to all ranks */
    struct hd_link_group stages;
};

/* Returns the calls of a job's layout; without answers all members are 0. */
struct hd_rollout_calls hd_rollout_count_calls(const struct hd_job *job);

/* Builds the profile of the calls of a resolved job's answers. Does not depend on micro-batch, schedule,
 * recompute, the cuts of a pipeline, and ZeRO below 3. */
enum hd_status hd_rollout_profile_build(const struct hd_job *job, const struct hd_cluster *cluster,
                                        struct hd_rollout_profile *ret_profile);

/* Returns the seconds of a step in which the answers of this layout are written. With `updates` steps on
 * the same answers these are their even share; with train.distill.on_policy below 1 the mean
 * over steps. */
double hd_rollout_seconds(const struct hd_rollout_profile *profile, const struct hd_job *job,
                          const struct hd_cluster *cluster);

#endif

/* optim: learning-rate schedules, and the programs S (start), U (update) and P (publish) of a step.
 *
 * S sets the sums of the step state and the routers' records to zero. On pipeline stages U first
 * adds the two gradients of a tied weight that two stages hold.
 *
 * U sums the squares of the gradient by chunks, gathers {loss, targets, overflow, squares} from all
 * ranks, computes one factor for mean and clipping, and runs AdamW over each trainable bucket,
 * which also writes the copy of the weights in the compute encoding. Gradients are sums over all
 * targets of the step and are not divided before that factor, so accumulation over micro-batches
 * gives the same mean as one large batch.
 *
 * With parallel.offload U ends before AdamW, which the host runs (train/offload.h); then P gathers
 * the copies of all shards. Otherwise P is empty.
 *
 * Used by: train (trainer, layout).   Uses: program, job.   Threads: any; no state.
 */
#ifndef HD_OPTIM_OPTIM_H
#define HD_OPTIM_OPTIM_H

#include <stdint.h>

#include "job/data_stages.h"
#include "job/job.h"
#include "program/optimizer.h"
#include "program/program.h"

struct hd_lr_schedule {
    enum hd_job_lr_decay decay;
    enum hd_job_lr_decay_shape shape; /* WSD only; 0: linear */
    double peak, min;
    int64_t warmup_steps; /* the rate rises linearly from 0 to the peak */
    int64_t decay_steps;  /* number of steps in which the rate falls: after the warm-up (cosine,
                             linear; 0: up to the last step), or at the end of the run (WSD) */
    int64_t total_steps;
};

struct hd_lr_schedule hd_lr_schedule_from_job(const struct hd_job *job);

/* Makes the schedule of a stage that has one of its own (data.stages.lr), of `steps` steps, which
 * hd_lr_at counts from the stage's first. */
struct hd_lr_schedule hd_lr_schedule_from_stage(const struct hd_data_stage *stage, int64_t steps);

/* Returns the learning rate of update `step`, counted from 1. With w warm-up steps, d decay steps
 * and x = (step - w) / d in [0, 1] it is
 *
 *   step <= w  peak * step / w
 *   constant   peak
 *   cosine     min + (peak - min) (1 + cos(pi x)) / 2
 *   linear     peak + (min - peak) x
 *   1/sqrt     max(min, peak sqrt(max(w, 1) / step))
 *   WSD        peak, then min + (peak - min) f(x) over the last d steps (Hu et al. 2024), with x
 *              from 0 to 1 there and f(x) by shape: 1 - x, (1 + cos(pi x)) / 2, 1 - sqrt(x), or
 *              2 * 0.5^x - 1. The linear one is computed as linear is. */
double hd_lr_at(const struct hd_lr_schedule *schedule, int64_t step);

/* Returns the settings of train.optimizer. */
struct hd_optimizer hd_optimizer_of_job(const struct hd_job *job);
/* Returns whether the optimizer has a rule that updates whole matrices. */
bool hd_optimizer_needs_matrices(const struct hd_job *job);

/* Compiles the programs S, U and P for all trainable buckets that this rank holds, and sets
 * *ret_chunk to them, in memory of `arena`.
 */
enum hd_status hd_optim_compile(const struct hd_registry *registry,
                                const struct hd_compile_options *options, struct hd_arena *arena,
                                struct hd_chunk **ret_chunk);

#endif

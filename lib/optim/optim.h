/* optim: the learning-rate schedules, and the program U that ends a step.
 *
 * U: chunk sums of the squared gradient, exchange of {loss, targets, overflow, squares} between all
 * ranks, one factor for mean and clipping at once, AdamW over each trainable part with the
 * compute copy written in the same pass. Gradients arrive as sums over all targets of the step;
 * nothing is divided before the factor, so accumulation equals the big batch.
 *
 * Used by: train, plan.   Uses: program, link.   Threads: pure.
 */
#ifndef HD_OPTIM_OPTIM_H
#define HD_OPTIM_OPTIM_H

#include <stdint.h>

#include "job/job.h"
#include "program/program.h"

enum hd_lr_decay { HD_LR_CONSTANT, HD_LR_COSINE, HD_LR_LINEAR, HD_LR_WSD };

struct hd_lr_schedule {
    enum hd_lr_decay decay;
    double peak, min;
    int64_t warmup_steps; /* the rate rises linearly to the peak */
    int64_t decay_steps;  /* length of the fall: right behind the warm-up (cosine, linear; 0: up to
                             the  last step), or at the end (WSD) */
    int64_t total_steps;
};

enum hd_status hd_lr_schedule_from_job(const struct hd_job *job,
                                       struct hd_lr_schedule *ret_schedule);

/* The rate of update `step`, 1-based. With w warm-up steps, d decay steps and x = (step - w) / d in
 * [0, 1]: step <= w: peak * step / w;   cosine: min + (peak - min) (1 + cos(pi x)) / 2; linear:
 * peak + (min - peak) x;   WSD (Hu et al. 2024): peak, then linear to min over the last d steps.
 */
double hd_lr_at(const struct hd_lr_schedule *schedule, int64_t step);

/* Records and compiles U for all trainable parts of the registry. */
enum hd_status hd_optim_compile(const struct hd_registry *registry,
                                const struct hd_compile_options *options, struct hd_arena *arena,
                                struct hd_chunk **ret_chunk);

#endif

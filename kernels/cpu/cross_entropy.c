#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

/* Three passes over a row of logits, which stays in cache: maximum, sum of exponentials, gradient.
 * losses[r] is log sum exp(logits - max) + max - logits[target]. */
INLINE void cross_entropy_row(const struct hd_cross_entropy_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp;
    const int32_t target = a->target[r];
    double *losses = a->scratch;
    vf lane_max = vf_set(-INFINITY), sums = {0};
    float max, sum, scale, target_logit, gradient;

    if (target < 0 || target >= a->V) { /* masked, or refused when the losses are added */
        FOR_VECTORS (v, n, 0, a->dlogits ? a->Vp : 0)
            vf_store(a->dlogits, row + v, n, (vf){0}, dtype);
        return;
    }
    FOR_VECTORS (v, n, 0, a->V) {
        lane_max = vf_max(lane_max, vf_keep(vf_load(a->logits, row + v, n, dtype), n, -INFINITY));
    }
    max = vf_max_lane(lane_max);
    FOR_VECTORS (v, n, 0, a->V) {
        sums += vf_exp(vf_keep(vf_load(a->logits, row + v, n, dtype) - max, n, -INFINITY));
    }
    sum = vf_sum(sums);
    target_logit = vf_load(a->logits, row + target, 1, dtype)[0];
    losses[r] = log((double)sum) + ((double)max - (double)target_logit);
    if (!a->dlogits)
        return;
    scale = a->block->loss_scale / sum;
    gradient = vf_exp(vf_set(target_logit - max))[0] * scale - a->block->loss_scale;
    FOR_VECTORS (v, n, 0, a->V) {
        vf_store(a->dlogits, row + v, n,
                 vf_exp(vf_load(a->logits, row + v, n, dtype) - max) * scale, dtype);
    }
    vf_store(a->dlogits, row + target, 1, vf_set(gradient), dtype);
    FOR_VECTORS (v, n, a->V, a->Vp)
        vf_store(a->dlogits, row + v, n, (vf){0}, dtype);
}

static void cross_entropy_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cross_entropy_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        if (a->dtype == HD_BF16)
            cross_entropy_row(a, r, HD_BF16);
        else
            cross_entropy_row(a, r, HD_F32);
}

enum hd_status KERNEL(cross_entropy)(struct hd_backend *cpu,
                                     const struct hd_cross_entropy_args *args)
{
    const enum hd_status st = hd_cpu_check_float("cross_entropy", args->dtype);
    const double *losses = args->scratch;
    struct hd_step_block *block = args->block;
    double sum = 0;

    if (st)
        return st;
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 16), cross_entropy_rows, args);
    for (int64_t r = 0; r < args->R; r++) {
        if (args->target[r] >= args->V) {
            block->overflow = 1;
        } else if (args->target[r] >= 0) {
            sum += losses[r];
            block->target_count++;
        }
    }
    block->loss_sum += sum;
    return HD_OK;
}

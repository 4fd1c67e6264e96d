#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

enum { GRAIN = 16 * 1024 }; /* elements of a piece */

struct update {
    const struct hd_adamw_args *args;
    float correction1, correction2; /* 1 / (1 - b1^t), 1 / (1 - b2^t) */
};

/* Every element is computed by the same vector instructions, wherever it lies in its shard, so the
 * result does not depend on the sharding. */
INLINE void update_range(const struct update *u, int64_t begin, int64_t end, float lr, float decay,
                         enum hd_dtype copy_dtype)
{
    const struct hd_adamw_args *a = u->args;
    const struct hd_step_block *block = a->block;
    const float b1 = block->beta1, b2 = block->beta2, eps = block->adam_eps;
    const float rest1 = 1.0f - b1, rest2 = 1.0f - b2;

    FOR_VECTORS (i, n, begin, end) {
        const vf g = vf_load_f32(a->grad + i, n) * block->grad_factor;
        const vf m = vf_load_f32(a->m + i, n) * b1 + g * rest1;
        const vf v = vf_load_f32(a->v + i, n) * b2 + g * g * rest2;
        const vf step = m * u->correction1 / (vf_sqrt(v * u->correction2) + eps);
        vf w = vf_load_f32(a->weight + i, n);

        w -= lr * (step + decay * w);
        vf_store_f32(a->m + i, n, m);
        vf_store_f32(a->v + i, n, v);
        vf_store_f32(a->weight + i, n, w);
        if (a->copy)
            vf_store(a->copy, i, n, w, copy_dtype);
    }
}

static int64_t range_of(const struct hd_adamw_args *a, int64_t element) /* first that ends after */
{
    int64_t low = 0, high = a->range_count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (a->ranges[middle].end <= element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void update_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct update *u = args;
    const struct hd_adamw_args *a = u->args;

    (void)thread;
    for (int64_t k = range_of(a, begin); k < a->range_count && a->ranges[k].begin < end; k++) {
        const struct hd_update_range *range = &a->ranges[k];
        const int64_t first = range->begin > begin ? range->begin : begin;
        const int64_t last = range->end < end ? range->end : end;
        const float lr = a->block->lr * range->lr_scale;
        const float decay = a->block->weight_decay * range->decay;

        WITH_FLOATS(a->copy_dtype, T, update_range(u, first, last, lr, decay, T));
    }
}

enum hd_status KERNEL(adamw)(struct hd_backend *cpu, const struct hd_adamw_args *args)
{
    const struct hd_step_block *block = args->block;
    const double t = (double)block->update;
    const struct update update = {
        .args = args,
        .correction1 = (float)(1.0 / (1.0 - pow((double)block->beta1, t))),
        .correction2 = (float)(1.0 / (1.0 - pow((double)block->beta2, t))),
    };
    const enum hd_status st = args->copy ? hd_cpu_check_float("adamw", args->copy_dtype) : HD_OK;

    if (!st && !block->skip_update)
        hd_cpu_parallel(cpu, args->N, GRAIN, update_pieces, &update);
    return st;
}

/* qk_clip: scales the rows of queries and keys of heads whose scores exceeded the threshold. */
#include "kernels/qk_clip.h"

#include "kernels/cpu/moments.h"

static void clip_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_qk_clip_args *a = args;

    (void)thread;
    for (int64_t at = begin, next; at < end; at = next) {
        const int64_t row = (a->first + at) / a->columns;
        const float factor = hd_qk_clip_factor(a, row);

        next = hd_min(end, (row + 1) * a->columns - a->first);
        for (int64_t i = at; factor < 1 && i < next; i++) {
            a->weight[i] *= factor;
            if (a->copy)
                WITH_FLOATS(a->copy_dtype, T, vf_store(a->copy, i, 1, vf_set(a->weight[i]), T));
        }
    }
}

enum hd_status KERNEL(qk_clip)(struct hd_backend *cpu, const struct hd_qk_clip_args *args)
{
    const enum hd_status st = args->copy ? hd_cpu_check_float("qk_clip", args->copy_dtype) : HD_OK;

    if (!st && !args->block->skip_update)
        hd_cpu_parallel(cpu, args->N, MOMENTS_GRAIN, clip_pieces, args);
    return st;
}

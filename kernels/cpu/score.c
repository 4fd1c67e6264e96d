/* score: the reward of an answer, read at its last row, and its gradients. Most rows have no
 * reward. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Number of columns of dweight computed at a time: their sums stay in the cache. */
enum { COLUMNS = 1024 };

INLINE float score_row(const struct hd_score_forward_args *a, int64_t r, enum hd_dtype dtype)
{
    vf sum = {0};

    FOR_VECTORS (c, n, 0, a->C)
        sum += vf_load(a->x, r * a->C + c, n, dtype) * vf_load(a->weight, c, n, dtype);
    return vf_sum(sum);
}

static void score_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_score_forward_args *a = args;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t r = i - a->first;

        a->value[i] = 0;
        if (r >= 0 && r < a->R && a->answer[i] >= 0)
            WITH_FLOATS(a->dtype, T, a->value[i] = score_row(a, r, T));
    }
}

enum hd_status KERNEL(score_forward)(struct hd_backend *cpu,
                                     const struct hd_score_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("score_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, hd_cpu_row_grain(8), score_rows, args);
    return st;
}

/* Returns the derivative of the loss by the value (reward) of row r, times the loss scale. */
static float slope_of(const struct hd_score_backward_args *a, int64_t r)
{
    return -a->pull[a->first + r] * a->block->loss_scale;
}

INLINE void dx_row(const struct hd_score_backward_args *a, int64_t r, enum hd_dtype dtype)
{
    const float slope = slope_of(a, r);

    FOR_VECTORS (c, n, 0, a->C)
        vf_store(a->dx, r * a->C + c, n, slope * vf_load(a->weight, c, n, dtype), dtype);
}

static void dx_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_score_backward_args *a = args;
    const int64_t row_bytes = a->C * vf_element_bytes(a->dtype);

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        if (a->pull[a->first + r] != 0)
            WITH_FLOATS(a->dtype, T, dx_row(a, r, T));
        else
            memset((char *)a->dx + r * row_bytes, 0, (size_t)row_bytes);
}

/* Computes columns [begin, end) of dweight, adding the rows in ascending order, so the result does
 * not depend on the number of threads. */
INLINE void dweight_piece(const struct hd_score_backward_args *a, int64_t begin, int64_t end,
                          enum hd_dtype dtype)
{
    if (!a->accumulate)
        memset(a->dweight + begin, 0, (size_t)(end - begin) * sizeof *a->dweight);
    for (int64_t r = 0; r < a->R; r++) {
        const float slope = slope_of(a, r);

        if (slope == 0)
            continue;
        FOR_VECTORS (c, n, begin, end)
            vf_store_f32(a->dweight + c, n,
                         vf_load_f32(a->dweight + c, n) +
                             slope * vf_load(a->x, r * a->C + c, n, dtype));
    }
}

static void dweight_columns(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_score_backward_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, dweight_piece(a, begin, end, T));
}

enum hd_status KERNEL(score_backward)(struct hd_backend *cpu,
                                      const struct hd_score_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("score_backward", args->dtype);

    if (st)
        return st;
    if (args->dx)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 4), dx_rows, args);
    if (args->dweight)
        hd_cpu_parallel(cpu, args->C, COLUMNS, dweight_columns, args);
    return HD_OK;
}

/* expert_bias: adds each expert's bias to its rows; the gradient, a sum over an expert's rows.
 *
 * Memory-bound. A sum adds the rows of an expert in blocks of SUM_ROWS, then the blocks in order,
 * so its bits do not depend on the threads; errors grow with the number of blocks, not of rows. */
#include "base/math.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

enum { SUM_ROWS = 64, SUM_COLUMNS = 256 };

/* Returns the expert of row `row`, and sets *ret_end to the first row after that expert's. */
static int64_t expert_of_row(const int32_t *counts, int64_t E, int64_t row, int64_t *ret_end)
{
    int64_t e = 0, end = counts[0];

    while (end <= row && e < E - 1)
        end += counts[++e];
    *ret_end = end;
    return e;
}

INLINE void add_expert_bias(const struct hd_expert_bias_forward_args *a, int64_t row,
                            int64_t expert, enum hd_dtype dtype)
{
    FOR_VECTORS (c, n, 0, a->N)
        vf_store(a->out, row * a->ldo + c, n,
                 vf_load(a->out, row * a->ldo + c, n, dtype) +
                     vf_load(a->bias, expert * a->N + c, n, dtype),
                 dtype);
}

static void add_expert_biases(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_expert_bias_forward_args *a = args;
    int64_t last, expert = expert_of_row(a->counts, a->E, begin, &last);

    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        if (row >= last)
            expert = expert_of_row(a->counts, a->E, row, &last);
        WITH_FLOATS(a->dtype, T, add_expert_bias(a, row, expert, T));
    }
}

enum hd_status KERNEL(expert_bias_forward)(struct hd_backend *cpu,
                                           const struct hd_expert_bias_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("expert_bias_forward", args->dtype);

    if (!st && args->E > 0)
        hd_cpu_parallel(cpu, hd_cpu_rows_in_use(args->counts, args->E, args->T),
                        hd_cpu_row_grain(args->N * 8), add_expert_biases, args);
    return st;
}

/* Adds to sums [columns] the rows [begin, end) from column `first` on. */
INLINE void add_block(const struct hd_expert_bias_backward_args *a, float *sums, int64_t begin,
                      int64_t end, int64_t first, int64_t columns, enum hd_dtype dtype)
{
    FOR_VECTORS (c, n, 0, columns) {
        vf sum = {0};

        for (int64_t r = begin; r < end; r++)
            sum += vf_load(a->dout, r * a->ldd + first + c, n, dtype);
        vf_store_f32(sums + c, n, vf_load_f32(sums + c, n) + sum);
    }
}

static int64_t pieces_of_columns(int64_t N)
{
    return hd_divide_up(N, SUM_COLUMNS);
}

/* Sums pieces of columns of experts: piece p of expert e is item e * pieces + p. */
static void sum_expert_biases(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_expert_bias_backward_args *a = args;
    const int64_t pieces = pieces_of_columns(a->N);

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t e = i / pieces, first = i % pieces * SUM_COLUMNS;
        const int64_t columns = hd_min(SUM_COLUMNS, a->N - first);
        const int64_t from = e ? hd_cpu_rows_in_use(a->counts, e, a->T) : 0;
        const int64_t to = hd_cpu_rows_in_use(a->counts, e + 1, a->T);
        float *dbias = a->dbias + e * a->N + first;

        if (!a->accumulate)
            memset(dbias, 0, (size_t)columns * sizeof *dbias);
        for (int64_t r = from; r < to; r += SUM_ROWS)
            WITH_FLOATS(a->dtype, T,
                        add_block(a, dbias, r, hd_min(r + SUM_ROWS, to), first, columns, T));
    }
}

enum hd_status KERNEL(expert_bias_backward)(struct hd_backend *cpu,
                                            const struct hd_expert_bias_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("expert_bias_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->E * pieces_of_columns(args->N), 1, sum_expert_biases, args);
    return st;
}

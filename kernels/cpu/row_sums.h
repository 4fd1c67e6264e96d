/* row_sums: sums over all rows, for the gradients of weights and biases.
 *
 * The rows are divided into chunks that depend on R only (hd_costs_row_chunks). The partial sums of
 * each chunk are written to the scratch, then the chunks are added in order, so the result does not
 * depend on the number of threads.
 *
 * Used by: norm, gated_norm, head_norm, bias.   Uses: cpu, costs, vec.
 */
#ifndef HD_KERNELS_CPU_ROW_SUMS_H
#define HD_KERNELS_CPU_ROW_SUMS_H

#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

struct row_sums {
    const void *args;
    /* writes to `sums` the sums over rows [begin, end) of each output: N floats per output, one
     * output after the other; NULL: the partial sums are there already */
    void (*rows)(const void *args, float *sums, int64_t begin, int64_t end);
    float *out[2];  /* final sums [N] of each output; the second may be NULL, the first if only
                       partial sums are computed */
    float *partial; /* partial sums [chunks, outputs * N] */
    int64_t R, N;
    int64_t piece; /* rows of a chunk; 0: hd_costs_row_chunks */
    int64_t given; /* number of partial sums that are there already; used without `rows` */
    bool accumulate;
};

/* A vector of the terms that one row adds to the sums: of the first output, and of the second if
 * there is one. */
struct row_terms {
    vf first, second;
};
typedef struct row_terms row_terms_of(const void *args, int64_t r, int64_t c, int64_t n,
                                      enum hd_dtype dtype);

/* Computes sums[o][c] = sum over r in [begin, end) of terms(args, r, c), row after row. The sums
 * stay in the L1 cache and rows are read one at a time (four at a time had half the memory rate).
 * `terms`, `outputs` and `dtype` are constants where this is inlined. */
INLINE void sum_rows(row_terms_of *terms, const int outputs, const void *args, float *sums,
                     int64_t begin, int64_t end, int64_t N, enum hd_dtype dtype)
{
    memset(sums, 0, (size_t)(outputs * N) * sizeof *sums);
    for (int64_t r = begin; r < end; r++)
        FOR_VECTORS (c, n, 0, N) {
            const struct row_terms t = terms(args, r, c, n, dtype);

            vf_store_f32(sums + c, n, vf_load_f32(sums + c, n) + t.first);
            if (outputs > 1)
                vf_store_f32(sums + N + c, n, vf_load_f32(sums + N + c, n) + t.second);
        }
}

static struct hd_costs_chunks row_sums_division(const struct row_sums *s)
{
    if (s->piece)
        return (struct hd_costs_chunks){s->piece, (s->R + s->piece - 1) / s->piece};
    return hd_costs_row_chunks(s->R);
}

static void row_sums_chunks(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct row_sums *s = args;
    const struct hd_costs_chunks chunks = row_sums_division(s);
    const int64_t width = s->out[1] ? 2 * s->N : s->N;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i * chunks.rows;
        const int64_t last = first + chunks.rows < s->R ? first + chunks.rows : s->R;

        s->rows(s->args, s->partial + i * width, first, last);
    }
}

static void row_sums_columns(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct row_sums *s = args;
    const int64_t count = s->rows ? row_sums_division(s).count : s->given;
    const int64_t width = s->out[1] ? 2 * s->N : s->N;

    (void)thread;
    for (int o = 0; o < 2 && s->out[o]; o++)
        FOR_VECTORS (c, n, begin, end) {
            vf sum = s->accumulate ? vf_load_f32(s->out[o] + c, n) : (vf){0};

            for (int64_t i = 0; i < count; i++)
                sum += vf_load_f32(s->partial + i * width + o * s->N + c, n);
            vf_store_f32(s->out[o] + c, n, sum);
        }
}

static void row_sums_run(const struct hd_backend *cpu, const struct row_sums *sums)
{
    enum { COLUMNS = 256 };

    if (sums->rows)
        hd_cpu_parallel(cpu, row_sums_division(sums).count, 1, row_sums_chunks, sums);
    if (sums->out[0])
        hd_cpu_parallel(cpu, sums->N, COLUMNS, row_sums_columns, sums);
}

#endif

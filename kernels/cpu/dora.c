/* dora: norms of a weight's rows with the adapter of low rank added, and rows scaled by magnitudes
 * over these norms. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/row_sums.h"

/* Number of weights whose squares are summed in fp32 before that sum is added to a double. */
enum { PIECE = 512 };

/* Returns the sum of squares of row n of W; `line` has memory for PIECE decoded values. */
INLINE double squares_of_row(const struct hd_dora_squares_args *a, int64_t n, void *line,
                             enum hd_dtype dtype)
{
    const bool encoded = a->codes.quant != HD_QUANT_NONE;
    double total = 0;

    for (int64_t first = 0; first < a->K; first += PIECE) {
        const int64_t count = a->K - first < PIECE ? a->K - first : PIECE;
        const void *from = encoded ? line : a->weight;
        const int64_t at = encoded ? 0 : n * a->K + first;
        vf sum = {0};

        if (encoded)
            decode_box(&a->codes, a->weight, n, 1, first, count, line, count, dtype);
        FOR_VECTORS (k, lanes, 0, count) {
            const vf w = vf_load(from, at + k, lanes, dtype);

            sum += w * w;
        }
        total += (double)vf_sum(sum);
    }
    return total;
}

/* Returns |W + s B A|^2 - |W|^2 for row n: the difference that the adapter makes to the squared
 * norm. */
INLINE double added_to_row(const struct hd_dora_squares_args *a, int64_t n, enum hd_dtype dtype)
{
    const double s = (double)a->scale;
    double total = 0;

    for (int64_t i = 0; i < a->r; i++) {
        const double b = (double)vf_load(a->b, n * a->r + i, 1, dtype)[0];
        vf sum = {0};

        if (b == 0)
            continue;
        FOR_VECTORS (j, lanes, 0, a->r)
            sum +=
                vf_load(a->b, n * a->r + j, lanes, dtype) * vf_load_f32(a->g + i * a->r + j, lanes);
        total += b * (2 * s * (double)a->p[i * a->N + n] + s * s * (double)vf_sum(sum));
    }
    return total;
}

INLINE void squares(const struct hd_dora_squares_args *a, int64_t begin, int64_t end,
                    enum hd_dtype dtype)
{
    float line[PIECE];

    for (int64_t n = begin; n < end; n++)
        a->squares[n] = (float)(squares_of_row(a, n, line, dtype) + added_to_row(a, n, dtype));
}

static void squares_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_dora_squares_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, squares(a, begin, end, T));
}

enum hd_status KERNEL(dora_squares)(struct hd_backend *cpu, const struct hd_dora_squares_args *args)
{
    const enum hd_status st = hd_cpu_check_float("dora_squares", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, hd_cpu_row_grain((args->K + args->r * args->r) * 4),
                        squares_rows, args);
    return st;
}

enum hd_status KERNEL(dora_inverse)(struct hd_backend *cpu, const struct hd_dora_inverse_args *args)
{
    (void)cpu;
    FOR_VECTORS (n, lanes, 0, args->N) {
        const vf x = vf_load_f32(args->squares + n, lanes), one = vf_set(1);
        const vi positive = (vi)(x > vf_set(0));

        vf_store_f32(args->inverse + n, lanes,
                     vf_select(positive, one / vf_sqrt(vf_select(positive, x, one)), vf_set(0)));
    }
    return HD_OK;
}

INLINE void scale_columns(const struct hd_dora_scale_args *a, int64_t r, enum hd_dtype dtype)
{
    FOR_VECTORS (n, lanes, 0, a->N)
        vf_store(a->out, r * a->ldo + n, lanes,
                 vf_load(a->inp, r * a->ldi + n, lanes, dtype) *
                     (vf_load_f32(a->magnitude + n, lanes) * vf_load_f32(a->inverse + n, lanes)),
                 dtype);
}

static void scale_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_dora_scale_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, scale_columns(a, r, T));
}

enum hd_status KERNEL(dora_scale)(struct hd_backend *cpu, const struct hd_dora_scale_args *args)
{
    const enum hd_status st = hd_cpu_check_float("dora_scale", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->N * 8), scale_rows, args);
    return st;
}

INLINE struct row_terms magnitude_terms(const void *args, int64_t r, int64_t c, int64_t n,
                                        enum hd_dtype dtype)
{
    const struct hd_dora_backward_args *a = args;

    return (struct row_terms){.first = vf_load(a->dout, r * a->ldd + c, n, dtype) *
                                       vf_load(a->inp, r * a->ldi + c, n, dtype) *
                                       vf_load_f32(a->inverse + c, n)};
}

static void magnitude_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct hd_dora_backward_args *a = args;

    WITH_FLOATS(a->dtype, T, sum_rows(magnitude_terms, 1, a, sums, begin, end, a->N, T));
}

enum hd_status KERNEL(dora_backward)(struct hd_backend *cpu,
                                     const struct hd_dora_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("dora_backward", args->dtype);
    const struct row_sums sums = {.args = args,
                                  .rows = magnitude_rows,
                                  .out = {args->dmagnitude},
                                  .partial = args->scratch,
                                  .R = args->R,
                                  .N = args->N,
                                  .accumulate = args->accumulate};

    if (!st)
        row_sums_run(cpu, &sums);
    return st;
}

/* norm: RMSNorm and LayerNorm, in several passes per row; a row stays in the L1 cache. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm_weight.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/vec.h"

/* Computes one row of sum = inp + factor * add, stored in `dtype`; the norm reads the rounded
 * values, as backward does. */
INLINE void add_row(void *sum, const void *inp, const void *add, float factor, int64_t row,
                    int64_t C, enum hd_dtype dtype)
{
    FOR_VECTORS (c, n, 0, C) {
        vf_store(sum, row + c, n,
                 vf_load(inp, row + c, n, dtype) + factor * vf_load(add, row + c, n, dtype), dtype);
    }
}

INLINE void rmsnorm_row(const struct hd_rmsnorm_forward_args *a, int64_t r, enum norm_weight form,
                        enum hd_dtype dtype)
{
    const void *x = a->add ? a->sum : a->inp;
    const int64_t row = r * a->C;
    vf squares = {0};
    float rstd;

    if (a->add)
        add_row(a->sum, a->inp, a->add, hd_factor_of(a->factor), row, a->C, dtype);
    FOR_VECTORS (c, n, 0, a->C) {
        const vf v = vf_load(x, row + c, n, dtype);

        squares += v * v;
    }
    rstd = 1.0f / sqrtf(vf_sum(squares) / (float)a->C + a->eps);
    a->rstd[r] = rstd;
    FOR_VECTORS (c, n, 0, a->C) {
        vf_store(a->out, row + c, n,
                 times_weight(vf_load(x, row + c, n, dtype) * rstd, a->weight, c, n, form, dtype),
                 dtype);
    }
}

static void rmsnorm_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_rmsnorm_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_NORM_WEIGHT(norm_weight_of(a->weight, a->one_plus), W,
                         WITH_FLOATS(a->dtype, T, rmsnorm_row(a, r, W, T)));
}

enum hd_status KERNEL(rmsnorm_forward)(struct hd_backend *cpu,
                                       const struct hd_rmsnorm_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("rmsnorm_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 8), rmsnorm_rows, args);
    return st ? st : HD_CPU_ENCODE_RESULT(cpu, args, args->out, args->R, args->C, HD_E4M3);
}

/* Computes row r of the gradient of RMSNorm's input. Elements of dout and add are read before the
 * element of dinp at their index is written: they may alias. */
INLINE void rmsnorm_backward_row(const struct hd_rmsnorm_backward_args *a, int64_t r,
                                 enum norm_weight form, enum hd_dtype dtype)
{
    const float rstd = a->rstd[r];
    const int64_t row = r * a->C;
    vf products = {0};
    float mean;

    FOR_VECTORS (c, n, 0, a->C) {
        products +=
            times_weight(vf_load(a->dout, row + c, n, dtype), a->weight, c, n, form, dtype) *
            vf_load(a->inp, row + c, n, dtype);
    }
    mean = vf_sum(products) * rstd / (float)a->C;
    FOR_VECTORS (c, n, 0, a->C) {
        const vf g =
            times_weight(vf_load(a->dout, row + c, n, dtype), a->weight, c, n, form, dtype);
        const vf xhat = vf_load(a->inp, row + c, n, dtype) * rstd;
        vf d = (g - xhat * mean) * rstd;

        if (a->add)
            d += vf_load(a->add, row + c, n, dtype);
        vf_store(a->dinp, row + c, n, d, dtype);
    }
}

static void rmsnorm_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_rmsnorm_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_NORM_WEIGHT(norm_weight_of(a->weight, a->one_plus), W,
                         WITH_FLOATS(a->dtype, T, rmsnorm_backward_row(a, r, W, T)));
}

enum hd_status KERNEL(rmsnorm_backward)(struct hd_backend *cpu,
                                        const struct hd_rmsnorm_backward_args *args)
{
    enum hd_status st = hd_cpu_check_float("rmsnorm_backward", args->dtype);

    /* the weights' gradients are computed first, because dinp may alias dout */
    if (!st && args->dweight)
        st = KERNEL(rmsnorm_backward_weight)(
            cpu, &(struct hd_rmsnorm_backward_weight_args){.dweight = args->dweight,
                                                           .dout = args->dout,
                                                           .inp = args->inp,
                                                           .rstd = args->rstd,
                                                           .scratch = args->scratch,
                                                           .R = args->R,
                                                           .C = args->C,
                                                           .accumulate = args->accumulate,
                                                           .dtype = args->dtype});

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 8), rmsnorm_backward_rows, args);
    if (!st && args->sums)
        st = KERNEL(sum_row_chunks)(cpu, args->sums, args->dinp, args->R, args->C, 0, args->dtype);
    return st;
}

/* Returns row r's terms of the gradient of the weights. */
INLINE struct row_terms rmsnorm_terms(const void *args, int64_t r, int64_t c, int64_t n,
                                      enum hd_dtype dtype)
{
    const struct hd_rmsnorm_backward_weight_args *a = args;
    const int64_t i = r * a->C + c;

    return (struct row_terms){.first = vf_load(a->dout, i, n, dtype) *
                                       (vf_load(a->inp, i, n, dtype) * a->rstd[r])};
}

static void rmsnorm_weight_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct hd_rmsnorm_backward_weight_args *a = args;

    WITH_FLOATS(a->dtype, T, sum_rows(rmsnorm_terms, 1, a, sums, begin, end, a->C, T));
}

enum hd_status KERNEL(rmsnorm_backward_weight)(struct hd_backend *cpu,
                                               const struct hd_rmsnorm_backward_weight_args *args)
{
    const enum hd_status st = hd_cpu_check_float("rmsnorm_backward_weight", args->dtype);
    const struct row_sums sums = {.args = args,
                                  .rows = rmsnorm_weight_rows,
                                  .out = {args->dweight},
                                  .partial = args->scratch,
                                  .R = args->R,
                                  .N = args->C,
                                  .accumulate = args->accumulate};

    if (!st)
        row_sums_run(cpu, &sums);
    return st;
}

/* with_bias: a constant where this is inlined. */
INLINE void layernorm_row(const struct hd_layernorm_forward_args *a, int64_t r, bool with_bias,
                          enum norm_weight form, enum hd_dtype dtype)
{
    const void *x = a->add ? a->sum : a->inp;
    const int64_t row = r * a->C;
    vf sum = {0}, squares = {0};
    float mean, rstd;

    if (a->add)
        add_row(a->sum, a->inp, a->add, hd_factor_of(a->factor), row, a->C, dtype);
    FOR_VECTORS (c, n, 0, a->C)
        sum += vf_load(x, row + c, n, dtype);
    mean = vf_sum(sum) / (float)a->C;
    FOR_VECTORS (c, n, 0, a->C) {
        const vf d = vf_keep(vf_load(x, row + c, n, dtype) - mean, n, 0.0f);

        squares += d * d;
    }
    rstd = 1.0f / sqrtf(vf_sum(squares) / (float)a->C + a->eps);
    a->mean[r] = mean;
    a->rstd[r] = rstd;
    FOR_VECTORS (c, n, 0, a->C) {
        const vf y = times_weight((vf_load(x, row + c, n, dtype) - mean) * rstd, a->weight, c, n,
                                  form, dtype);

        vf_store(a->out, row + c, n, with_bias ? y + vf_load(a->bias, c, n, dtype) : y, dtype);
    }
}

static void layernorm_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_layernorm_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        if (a->bias)
            WITH_NORM_WEIGHT(norm_weight_of(a->weight, a->one_plus), W,
                             WITH_FLOATS(a->dtype, T, layernorm_row(a, r, true, W, T)));
        else
            WITH_NORM_WEIGHT(norm_weight_of(a->weight, a->one_plus), W,
                             WITH_FLOATS(a->dtype, T, layernorm_row(a, r, false, W, T)));
}

enum hd_status KERNEL(layernorm_forward)(struct hd_backend *cpu,
                                         const struct hd_layernorm_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("layernorm_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 8), layernorm_rows, args);
    return st ? st : HD_CPU_ENCODE_RESULT(cpu, args, args->out, args->R, args->C, HD_E4M3);
}

INLINE void layernorm_backward_row(const struct hd_layernorm_backward_args *a, int64_t r,
                                   enum norm_weight form, enum hd_dtype dtype)
{
    const float mean = a->mean[r], rstd = a->rstd[r];
    const int64_t row = r * a->C;
    vf sum = {0}, products = {0};
    float mean_g, mean_gx;

    FOR_VECTORS (c, n, 0, a->C) {
        const vf g =
            times_weight(vf_load(a->dout, row + c, n, dtype), a->weight, c, n, form, dtype);

        sum += g; /* in lanes past the end of the row g is 0, so both terms are 0 */
        products += g * ((vf_load(a->inp, row + c, n, dtype) - mean) * rstd);
    }
    mean_g = vf_sum(sum) / (float)a->C;
    mean_gx = vf_sum(products) / (float)a->C;
    FOR_VECTORS (c, n, 0, a->C) {
        const vf g =
            times_weight(vf_load(a->dout, row + c, n, dtype), a->weight, c, n, form, dtype);
        const vf xhat = (vf_load(a->inp, row + c, n, dtype) - mean) * rstd;
        vf d = (g - mean_g - xhat * mean_gx) * rstd;

        if (a->add)
            d += vf_load(a->add, row + c, n, dtype);
        vf_store(a->dinp, row + c, n, d, dtype);
    }
}

static void layernorm_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_layernorm_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_NORM_WEIGHT(norm_weight_of(a->weight, a->one_plus), W,
                         WITH_FLOATS(a->dtype, T, layernorm_backward_row(a, r, W, T)));
}

enum hd_status KERNEL(layernorm_backward)(struct hd_backend *cpu,
                                          const struct hd_layernorm_backward_args *args)
{
    enum hd_status st = hd_cpu_check_float("layernorm_backward", args->dtype);

    /* the weights' gradients are computed first, because dinp may alias dout */
    if (!st && args->dweight)
        st = KERNEL(layernorm_backward_weight)(
            cpu, &(struct hd_layernorm_backward_weight_args){.dweight = args->dweight,
                                                             .dbias = args->dbias,
                                                             .dout = args->dout,
                                                             .inp = args->inp,
                                                             .mean = args->mean,
                                                             .rstd = args->rstd,
                                                             .scratch = args->scratch,
                                                             .R = args->R,
                                                             .C = args->C,
                                                             .accumulate = args->accumulate,
                                                             .dtype = args->dtype});

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 8), layernorm_backward_rows, args);
    if (!st && args->sums)
        st = KERNEL(sum_row_chunks)(cpu, args->sums, args->dinp, args->R, args->C, 0, args->dtype);
    return st;
}

INLINE struct row_terms layernorm_terms(const void *args, int64_t r, int64_t c, int64_t n,
                                        enum hd_dtype dtype)
{
    const struct hd_layernorm_backward_weight_args *a = args;
    const int64_t i = r * a->C + c;
    const vf dout = vf_load(a->dout, i, n, dtype);

    return (struct row_terms){
        .first = dout * ((vf_load(a->inp, i, n, dtype) - a->mean[r]) * a->rstd[r]), .second = dout};
}

static void layernorm_weight_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct hd_layernorm_backward_weight_args *a = args;

    if (a->dbias)
        WITH_FLOATS(a->dtype, T, sum_rows(layernorm_terms, 2, a, sums, begin, end, a->C, T));
    else
        WITH_FLOATS(a->dtype, T, sum_rows(layernorm_terms, 1, a, sums, begin, end, a->C, T));
}

enum hd_status
KERNEL(layernorm_backward_weight)(struct hd_backend *cpu,
                                  const struct hd_layernorm_backward_weight_args *args)
{
    const enum hd_status st = hd_cpu_check_float("layernorm_backward_weight", args->dtype);
    const struct row_sums sums = {.args = args,
                                  .rows = layernorm_weight_rows,
                                  .out = {args->dweight, args->dbias},
                                  .partial = args->scratch,
                                  .R = args->R,
                                  .N = args->C,
                                  .accumulate = args->accumulate};

    if (!st)
        row_sums_run(cpu, &sums);
    return st;
}

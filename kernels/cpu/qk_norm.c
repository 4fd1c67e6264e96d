/* qk_norm: RMSNorm over all query channels and over all key channels of a row. A row is [q: H*D | k:
 * G*D | v: G*D]; v is copied. The columns of q or of k are called a part here. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm_weight.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/vec.h"

/* Returns the sum of squares of `count` elements from `at` on. */
INLINE float qk_squares(const void *inp, int64_t at, int64_t count, enum hd_dtype dtype)
{
    vf sum = {0};

    FOR_VECTORS (c, n, 0, count) {
        const vf x = vf_load(inp, at + c, n, dtype);

        sum += x * x;
    }
    return vf_sum(sum);
}

/* Returns the sum of weight * dout * inp over `count` elements from `at` on. */
INLINE float qk_products(const void *dout, const void *inp, int64_t at, int64_t count,
                         const void *weight, enum norm_weight form, enum hd_dtype dtype)
{
    vf sum = {0};

    FOR_VECTORS (c, n, 0, count)
        sum += times_weight(vf_load(dout, at + c, n, dtype), weight, c, n, form, dtype) *
               vf_load(inp, at + c, n, dtype);
    return vf_sum(sum);
}

/* ---- the sums alone ---- */

INLINE void qk_sums_row(const struct hd_qk_norm_sums_args *a, int64_t r, enum norm_weight form,
                        enum hd_dtype dtype)
{
    const int64_t q = a->H * a->D, k = a->G * a->D, row = r * (q + 2 * k);

    if (a->dout) {
        a->sums[2 * r] = qk_products(a->dout, a->inp, row, q, a->q_weight, form, dtype);
        a->sums[2 * r + 1] = qk_products(a->dout, a->inp, row + q, k, a->k_weight, form, dtype);
    } else {
        a->sums[2 * r] = qk_squares(a->inp, row, q, dtype);
        a->sums[2 * r + 1] = qk_squares(a->inp, row + q, k, dtype);
    }
}

static void qk_sums_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_qk_norm_sums_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_NORM_WEIGHT(norm_weight_of(a->q_weight, a->one_plus), W,
                         WITH_FLOATS(a->dtype, T, qk_sums_row(a, r, W, T)));
}

enum hd_status KERNEL(qk_norm_sums)(struct hd_backend *cpu, const struct hd_qk_norm_sums_args *args)
{
    const enum hd_status st = hd_cpu_check_float("qk_norm_sums", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((args->H + args->G) * args->D * 4),
                        qk_sums_rows, args);
    return st;
}

/* ---- forward ---- */

/* Normalises a part of `count` elements from `at` on; sum: its squares over all ranks. Returns
 * rstd. */
INLINE float normalise_part(const struct hd_qk_norm_forward_args *a, int64_t at, int64_t count,
                            float sum, const void *weight, enum norm_weight form,
                            enum hd_dtype dtype)
{
    const float rstd = 1.0f / sqrtf(sum / (float)(count * a->ranks) + a->eps);

    FOR_VECTORS (c, n, 0, count) {
        vf_store(a->out, at + c, n,
                 times_weight(vf_load(a->inp, at + c, n, dtype) * rstd, weight, c, n, form, dtype),
                 dtype);
    }
    return rstd;
}

INLINE void qk_forward_row(const struct hd_qk_norm_forward_args *a, int64_t r,
                           enum norm_weight form, enum hd_dtype dtype)
{
    const int64_t q = a->H * a->D, k = a->G * a->D, row = r * (q + 2 * k);
    const float q_sum = a->sums ? a->sums[2 * r] : qk_squares(a->inp, row, q, dtype);
    const float k_sum = a->sums ? a->sums[2 * r + 1] : qk_squares(a->inp, row + q, k, dtype);

    a->rstd[2 * r] = normalise_part(a, row, q, q_sum, a->q_weight, form, dtype);
    a->rstd[2 * r + 1] = normalise_part(a, row + q, k, k_sum, a->k_weight, form, dtype);
    FOR_VECTORS (c, n, q + k, q + 2 * k)
        vf_store(a->out, row + c, n, vf_load(a->inp, row + c, n, dtype), dtype);
}

static void qk_forward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_qk_norm_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_NORM_WEIGHT(norm_weight_of(a->q_weight, a->one_plus), W,
                         WITH_FLOATS(a->dtype, T, qk_forward_row(a, r, W, T)));
}

enum hd_status KERNEL(qk_norm_forward)(struct hd_backend *cpu,
                                       const struct hd_qk_norm_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("qk_norm_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((args->H + 2 * args->G) * args->D * 8),
                        qk_forward_rows, args);
    return st;
}

/* ---- backward ---- */

/* Computes the input gradient of a part of `count` elements from `at` on; sum: its products over
 * all ranks. Each element of dout is read before the element of dinp at its index is written: they
 * may alias. */
INLINE void backward_part(const struct hd_qk_norm_backward_args *a, int64_t at, int64_t count,
                          float sum, float rstd, const void *weight, enum norm_weight form,
                          enum hd_dtype dtype)
{
    const float mean = sum * rstd / (float)(count * a->ranks);

    FOR_VECTORS (c, n, 0, count) {
        const vf g = times_weight(vf_load(a->dout, at + c, n, dtype), weight, c, n, form, dtype);
        const vf xhat = vf_load(a->inp, at + c, n, dtype) * rstd;

        vf_store(a->dinp, at + c, n, (g - xhat * mean) * rstd, dtype);
    }
}

INLINE void qk_backward_row(const struct hd_qk_norm_backward_args *a, int64_t r,
                            enum norm_weight form, enum hd_dtype dtype)
{
    const int64_t q = a->H * a->D, k = a->G * a->D, row = r * (q + 2 * k);
    const float q_sum =
        a->sums ? a->sums[2 * r] : qk_products(a->dout, a->inp, row, q, a->q_weight, form, dtype);
    const float k_sum = a->sums
                            ? a->sums[2 * r + 1]
                            : qk_products(a->dout, a->inp, row + q, k, a->k_weight, form, dtype);

    backward_part(a, row, q, q_sum, a->rstd[2 * r], a->q_weight, form, dtype);
    backward_part(a, row + q, k, k_sum, a->rstd[2 * r + 1], a->k_weight, form, dtype);
    FOR_VECTORS (c, n, q + k, q + 2 * k)
        vf_store(a->dinp, row + c, n, vf_load(a->dout, row + c, n, dtype), dtype);
}

static void qk_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_qk_norm_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_NORM_WEIGHT(norm_weight_of(a->q_weight, a->one_plus), W,
                         WITH_FLOATS(a->dtype, T, qk_backward_row(a, r, W, T)));
}

enum hd_status KERNEL(qk_norm_backward)(struct hd_backend *cpu,
                                        const struct hd_qk_norm_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("qk_norm_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((args->H + 2 * args->G) * args->D * 8),
                        qk_backward_rows, args);
    return st;
}

/* ---- the gradients of weights ---- */

/* Arguments of the sums over rows of one part: `columns` columns from `first` on, with element
 * `part` of each row of rstd. */
struct part_sums {
    const struct hd_qk_norm_backward_weight_args *args;
    int64_t first, columns, part;
};

INLINE struct row_terms qk_weight_terms(const void *args, int64_t r, int64_t c, int64_t n,
                                        enum hd_dtype dtype)
{
    const struct part_sums *p = args;
    const struct hd_qk_norm_backward_weight_args *a = p->args;
    const int64_t i = r * (a->H + 2 * a->G) * a->D + p->first + c;

    return (struct row_terms){.first = vf_load(a->dout, i, n, dtype) *
                                       (vf_load(a->inp, i, n, dtype) * a->rstd[2 * r + p->part])};
}

static void qk_weight_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct part_sums *p = args;

    WITH_FLOATS(p->args->dtype, T,
                sum_rows(qk_weight_terms, 1, p, sums, begin, end, p->columns, T));
}

enum hd_status KERNEL(qk_norm_backward_weight)(struct hd_backend *cpu,
                                               const struct hd_qk_norm_backward_weight_args *args)
{
    const enum hd_status st = hd_cpu_check_float("qk_norm_backward_weight", args->dtype);

    for (int64_t part = 0; !st && part < 2; part++) {
        const struct part_sums p = {.args = args,
                                    .first = part ? args->H * args->D : 0,
                                    .columns = (part ? args->G : args->H) * args->D,
                                    .part = part};
        const struct row_sums sums = {.args = &p,
                                      .rows = qk_weight_rows,
                                      .out = {part ? args->dk_weight : args->dq_weight},
                                      .partial = args->scratch,
                                      .R = args->R,
                                      .N = p.columns,
                                      .accumulate = args->accumulate};

        row_sums_run(cpu, &sums);
    }
    return st;
}

/* head_norm: RMSNorm, or LayerNorm, over the channels of each query and key head. A row is [q: H*D |
 * k: G*D | v: G*D]; v is copied. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm_weight.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/vec.h"

/* Normalises one head, elements [at, at + D): out = inp * rstd * weight. Returns rstd. */
INLINE float normalise(const struct hd_head_norm_forward_args *a, int64_t at, const void *weight,
                       enum norm_weight form, enum hd_dtype dtype)
{
    vf squares = {0};
    float rstd;

    FOR_VECTORS (c, n, 0, a->D) {
        const vf x = vf_load(a->inp, at + c, n, dtype);

        squares += x * x;
    }
    rstd = 1.0f / sqrtf(vf_sum(squares) / (float)a->D + a->eps);
    FOR_VECTORS (c, n, 0, a->D) {
        vf_store(a->out, at + c, n,
                 times_weight(vf_load(a->inp, at + c, n, dtype) * rstd, weight, c, n, form, dtype),
                 dtype);
    }
    return rstd;
}

/* Normalises head `head` of q and k in row r by LayerNorm, as normalise. */
INLINE void center(const struct hd_head_norm_forward_args *a, int64_t r, int64_t head,
                   enum hd_dtype dtype)
{
    const int64_t normed = a->H + a->G, at = (r * (normed + a->G) + head) * a->D;
    const void *weight = head < a->H ? a->q_weight : a->k_weight;
    const int64_t w = (head < a->H ? head : head - a->H) * a->D;
    vf sum = {0}, squares = {0};
    float mean, rstd;

    FOR_VECTORS (c, n, 0, a->D)
        sum += vf_load(a->inp, at + c, n, dtype);
    mean = vf_sum(sum) / (float)a->D;
    FOR_VECTORS (c, n, 0, a->D) {
        const vf d = vf_keep(vf_load(a->inp, at + c, n, dtype) - mean, n, 0.0f);

        squares += d * d;
    }
    rstd = 1.0f / sqrtf(vf_sum(squares) / (float)a->D + a->eps);
    a->rstd[r * 2 * normed + head] = rstd;
    a->rstd[(r * 2 + 1) * normed + head] = mean;
    FOR_VECTORS (c, n, 0, a->D)
        vf_store(a->out, at + c, n,
                 (vf_load(a->inp, at + c, n, dtype) - mean) * rstd *
                     vf_load(weight, w + c, n, dtype),
                 dtype);
}

INLINE void forward_row(const struct hd_head_norm_forward_args *a, int64_t r, enum norm_weight form,
                        enum hd_dtype dtype)
{
    const int64_t normed = a->H + a->G, row = r * (normed + a->G) * a->D;

    for (int64_t h = 0; h < normed; h++)
        if (a->layer)
            center(a, r, h, dtype);
        else
            a->rstd[r * normed + h] =
                normalise(a, row + h * a->D, h < a->H ? a->q_weight : a->k_weight, form, dtype);
    FOR_VECTORS (c, n, normed * a->D, (normed + a->G) * a->D)
        vf_store(a->out, row + c, n, vf_load(a->inp, row + c, n, dtype), dtype);
}

static void forward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_head_norm_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_NORM_WEIGHT(norm_weight_of(a->q_weight, a->one_plus), W,
                         WITH_FLOATS(a->dtype, T, forward_row(a, r, W, T)));
}

enum hd_status KERNEL(head_norm_forward)(struct hd_backend *cpu,
                                         const struct hd_head_norm_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("head_norm_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((args->H + 2 * args->G) * args->D * 8),
                        forward_rows, args);
    return st;
}

/* Computes the input gradient of one head of one row. Each element of dout is read before the
 * element of dinp at its index is written: they may alias. */
INLINE void backward_head(const struct hd_head_norm_backward_args *a, int64_t at, float rstd,
                          const void *weight, enum norm_weight form, enum hd_dtype dtype)
{
    vf products = {0};
    float mean;

    FOR_VECTORS (c, n, 0, a->D) {
        products += times_weight(vf_load(a->dout, at + c, n, dtype), weight, c, n, form, dtype) *
                    vf_load(a->inp, at + c, n, dtype);
    }
    mean = vf_sum(products) * rstd / (float)a->D;
    FOR_VECTORS (c, n, 0, a->D) {
        const vf g = times_weight(vf_load(a->dout, at + c, n, dtype), weight, c, n, form, dtype);
        const vf xhat = vf_load(a->inp, at + c, n, dtype) * rstd;

        vf_store(a->dinp, at + c, n, (g - xhat * mean) * rstd, dtype);
    }
}

/* Computes the input gradient of one head with LayerNorm, as backward_head. */
INLINE void backward_centered(const struct hd_head_norm_backward_args *a, int64_t r, int64_t head,
                              enum hd_dtype dtype)
{
    const int64_t normed = a->H + a->G, at = (r * (normed + a->G) + head) * a->D;
    const float rstd = a->rstd[r * 2 * normed + head], mean = a->rstd[(r * 2 + 1) * normed + head];
    const void *weight = head < a->H ? a->q_weight : a->k_weight;
    const int64_t w = (head < a->H ? head : head - a->H) * a->D;
    vf sum = {0}, products = {0};
    float mean_g, mean_gx;

    FOR_VECTORS (c, n, 0, a->D) {
        const vf g = vf_load(weight, w + c, n, dtype) * vf_load(a->dout, at + c, n, dtype);

        sum += g; /* in lanes past the end of the head g is 0 */
        products += g * ((vf_load(a->inp, at + c, n, dtype) - mean) * rstd);
    }
    mean_g = vf_sum(sum) / (float)a->D;
    mean_gx = vf_sum(products) / (float)a->D;
    FOR_VECTORS (c, n, 0, a->D) {
        const vf g = vf_load(weight, w + c, n, dtype) * vf_load(a->dout, at + c, n, dtype);
        const vf xhat = (vf_load(a->inp, at + c, n, dtype) - mean) * rstd;

        vf_store(a->dinp, at + c, n, (g - mean_g - xhat * mean_gx) * rstd, dtype);
    }
}

INLINE void head_norm_backward_row(const struct hd_head_norm_backward_args *a, int64_t r,
                                   enum norm_weight form, enum hd_dtype dtype)
{
    const int64_t normed = a->H + a->G, row = r * (normed + a->G) * a->D;

    for (int64_t h = 0; h < normed; h++)
        if (a->layer)
            backward_centered(a, r, h, dtype);
        else
            backward_head(a, row + h * a->D, a->rstd[r * normed + h],
                          h < a->H ? a->q_weight : a->k_weight, form, dtype);
    FOR_VECTORS (c, n, normed * a->D, (normed + a->G) * a->D)
        vf_store(a->dinp, row + c, n, vf_load(a->dout, row + c, n, dtype), dtype);
}

static void head_norm_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_head_norm_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_NORM_WEIGHT(norm_weight_of(a->q_weight, a->one_plus), W,
                         WITH_FLOATS(a->dtype, T, head_norm_backward_row(a, r, W, T)));
}

enum hd_status KERNEL(head_norm_backward)(struct hd_backend *cpu,
                                          const struct hd_head_norm_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("head_norm_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((args->H + 2 * args->G) * args->D * 8),
                        head_norm_backward_rows, args);
    return st;
}

/* Returns the sum of the terms of heads [first, first + count) of row r, added in this order. */
INLINE vf weight_term(const struct hd_head_norm_backward_weight_args *a, int64_t r, int64_t c,
                      int64_t n, int64_t first, int64_t count, enum hd_dtype dtype)
{
    const int64_t normed = a->H + a->G, row = r * (normed + a->G) * a->D;
    vf sum = {0};

    for (int64_t h = first; h < first + count; h++) {
        const int64_t i = row + h * a->D + c;

        sum += vf_load(a->dout, i, n, dtype) *
               (vf_load(a->inp, i, n, dtype) * a->rstd[r * normed + h]);
    }
    return sum;
}

INLINE struct row_terms weight_terms(const void *args, int64_t r, int64_t c, int64_t n,
                                     enum hd_dtype dtype)
{
    const struct hd_head_norm_backward_weight_args *a = args;

    return (struct row_terms){.first = weight_term(a, r, c, n, 0, a->H, dtype),
                              .second = weight_term(a, r, c, n, a->H, a->G, dtype)};
}

static void weight_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct hd_head_norm_backward_weight_args *a = args;

    WITH_FLOATS(a->dtype, T, sum_rows(weight_terms, 2, a, sums, begin, end, a->D, T));
}

/* Heads of q or of k, whose weights' gradients are summed together with LayerNorm. */
struct head_sums {
    const struct hd_head_norm_backward_weight_args *args;
    int64_t first, count;
};

/* Adds the terms of row r to the sums [count, D]. */
INLINE void add_centered(const struct head_sums *s, float *sums, int64_t r, enum hd_dtype dtype)
{
    const struct hd_head_norm_backward_weight_args *a = s->args;
    const int64_t normed = a->H + a->G;

    for (int64_t h = 0; h < s->count; h++) {
        const int64_t head = s->first + h, at = (r * (normed + a->G) + head) * a->D;
        const float rstd = a->rstd[r * 2 * normed + head];
        const float mean = a->rstd[(r * 2 + 1) * normed + head];

        FOR_VECTORS (c, n, 0, a->D)
            vf_store_f32(sums + h * a->D + c, n,
                         vf_load_f32(sums + h * a->D + c, n) +
                             vf_load(a->dout, at + c, n, dtype) *
                                 ((vf_load(a->inp, at + c, n, dtype) - mean) * rstd));
    }
}

static void centered_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct head_sums *s = args;

    memset(sums, 0, (size_t)(s->count * s->args->D) * sizeof *sums);
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(s->args->dtype, T, add_centered(s, sums, r, T));
}

static void sum_centered(struct hd_backend *cpu,
                         const struct hd_head_norm_backward_weight_args *args)
{
    for (int k = 0; k < 2; k++) {
        const struct head_sums heads = {args, k ? args->H : 0, k ? args->G : args->H};
        const struct row_sums sums = {.args = &heads,
                                      .rows = centered_rows,
                                      .out = {k ? args->dk_weight : args->dq_weight},
                                      .partial = args->scratch,
                                      .R = args->R,
                                      .N = heads.count * args->D,
                                      .accumulate = args->accumulate};

        row_sums_run(cpu, &sums);
    }
}

enum hd_status
KERNEL(head_norm_backward_weight)(struct hd_backend *cpu,
                                  const struct hd_head_norm_backward_weight_args *args)
{
    const enum hd_status st = hd_cpu_check_float("head_norm_backward_weight", args->dtype);
    const struct row_sums sums = {.args = args,
                                  .rows = weight_rows,
                                  .out = {args->dq_weight, args->dk_weight},
                                  .partial = args->scratch,
                                  .R = args->R,
                                  .N = args->D,
                                  .accumulate = args->accumulate};

    if (!st && args->layer)
        sum_centered(cpu, args);
    else if (!st)
        row_sums_run(cpu, &sums);
    return st;
}

/* gated_norm: RMSNorm over the channels of each head, times SiLU of a gate. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/vecmath.h"

INLINE vf silu(vf x)
{
    return x * vf_sigmoid(x);
}

INLINE void norm_head(const struct hd_gated_norm_forward_args *a, int64_t head, enum hd_dtype dtype)
{
    const int64_t at = head * a->D;
    vf squares = {0};
    float rstd;

    FOR_VECTORS (c, n, 0, a->D) {
        const vf x = vf_load(a->inp, at + c, n, dtype);

        squares += x * x;
    }
    rstd = 1.0f / sqrtf(vf_sum(squares) / (float)a->D + a->eps);
    a->rstd[head] = rstd;
    FOR_VECTORS (c, n, 0, a->D)
        vf_store(a->out, at + c, n,
                 vf_load(a->inp, at + c, n, dtype) * rstd * vf_load(a->weight, c, n, dtype) *
                     silu(vf_load(a->gate, at + c, n, dtype)),
                 dtype);
}

static void norm_heads(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_gated_norm_forward_args *a = args;

    (void)thread;
    for (int64_t head = begin; head < end; head++)
        WITH_FLOATS(a->dtype, T, norm_head(a, head, T));
}

enum hd_status KERNEL(gated_norm_forward)(struct hd_backend *cpu,
                                          const struct hd_gated_norm_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("gated_norm_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R * args->H, hd_cpu_row_grain(args->D * 12), norm_heads, args);
    return st;
}

INLINE void gradient_of_head(const struct hd_gated_norm_backward_args *a, int64_t head,
                             enum hd_dtype dtype)
{
    const int64_t at = head * a->D;
    const float rstd = a->rstd[head];
    vf products = {0};
    float mean;

    FOR_VECTORS (c, n, 0, a->D)
        products += vf_load(a->dout, at + c, n, dtype) * silu(vf_load(a->gate, at + c, n, dtype)) *
                    vf_load(a->weight, c, n, dtype) * vf_load(a->inp, at + c, n, dtype);
    mean = vf_sum(products) * rstd / (float)a->D;
    FOR_VECTORS (c, n, 0, a->D) {
        const vf z = vf_load(a->gate, at + c, n, dtype), s = vf_sigmoid(z);
        const vf g = vf_load(a->dout, at + c, n, dtype) * vf_load(a->weight, c, n, dtype);
        const vf xhat = vf_load(a->inp, at + c, n, dtype) * rstd;

        vf_store(a->dinp, at + c, n, (g * z * s - xhat * mean) * rstd, dtype);
        vf_store(a->dgate, at + c, n, g * xhat * s * (1.0f + z * (1.0f - s)), dtype);
    }
}

static void gradients_of_heads(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_gated_norm_backward_args *a = args;

    (void)thread;
    for (int64_t head = begin; head < end; head++)
        WITH_FLOATS(a->dtype, T, gradient_of_head(a, head, T));
}

enum hd_status KERNEL(gated_norm_backward)(struct hd_backend *cpu,
                                           const struct hd_gated_norm_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("gated_norm_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R * args->H, hd_cpu_row_grain(args->D * 20), gradients_of_heads,
                        args);
    return st;
}

INLINE struct row_terms gated_weight_terms(const void *args, int64_t head, int64_t c, int64_t n,
                                           enum hd_dtype dtype)
{
    const struct hd_gated_norm_backward_weight_args *a = args;
    const int64_t i = head * a->D + c;

    return (struct row_terms){.first = vf_load(a->dout, i, n, dtype) *
                                       silu(vf_load(a->gate, i, n, dtype)) *
                                       (vf_load(a->inp, i, n, dtype) * a->rstd[head])};
}

static void gated_weight_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct hd_gated_norm_backward_weight_args *a = args;

    WITH_FLOATS(a->dtype, T, sum_rows(gated_weight_terms, 1, a, sums, begin, end, a->D, T));
}

enum hd_status
KERNEL(gated_norm_backward_weight)(struct hd_backend *cpu,
                                   const struct hd_gated_norm_backward_weight_args *args)
{
    const enum hd_status st = hd_cpu_check_float("gated_norm_backward_weight", args->dtype);
    const struct row_sums sums = {.args = args,
                                  .rows = gated_weight_rows,
                                  .out = {args->dweight},
                                  .partial = args->scratch,
                                  .R = args->R * args->H,
                                  .N = args->D,
                                  .accumulate = args->accumulate};

    if (!st)
        row_sums_run(cpu, &sums);
    return st;
}

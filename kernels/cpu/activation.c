/* activation: activations, alone and as gates. */
#include "kernels/cpu/activation.h"
#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"

enum { GRAIN = 16 * 1024 }; /* number of elements that a thread takes at a time */

/* Gate and up projection of HD_ACT_OSS after clamping. */
struct clamped {
    vf gate, up;
};

INLINE struct clamped clamp(vf gate, vf up, float limit)
{
    const vf most = vf_set(limit);

    return (struct clamped){vf_min(most, gate), vf_max(-most, vf_min(most, up))};
}

INLINE vf glu(const struct hd_glu_forward_args *a, vf gate, vf up, enum hd_activation act)
{
    const struct clamped x = clamp(gate, up, a->limit);

    if (act == HD_ACT_OSS)
        return (x.up + 1.0f) * x.gate * vf_sigmoid(a->alpha * x.gate);
    return activate(gate, act) * up;
}

/* Computes row r of a gated activation. The two halves of its input are far apart in memory, and
 * the hardware prefetcher restarts at each half, so the same columns of the next row are
 * prefetched. What the loop reads of `a` is copied: else it is loaded again after each store. */
INLINE void glu_row(const struct hd_glu_forward_args *a, int64_t r, enum hd_activation act,
                    enum hd_dtype dtype)
{
    const struct hd_glu_forward_args row = *a;
    const int64_t F = row.F, gate_at = r * 2 * F, up_at = gate_at + F;

    FOR_VECTORS (f, n, 0, F) {
        const vf gate = vf_load(row.inp, gate_at + f, n, dtype);
        const vf up = vf_load(row.inp, up_at + f, n, dtype);

        vf_prefetch(row.inp, gate_at + 2 * F + f, dtype);
        vf_prefetch(row.inp, up_at + 2 * F + f, dtype);
        vf_store(row.out, r * F + f, n, glu(&row, gate, up, act), dtype);
    }
}

static void glu_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_glu_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_ACTIVATION(a->act, A, WITH_FLOATS(a->dtype, T, glu_row(a, r, A, T)));
}

enum hd_status KERNEL(glu_forward)(struct hd_backend *cpu, const struct hd_glu_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("glu_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, hd_cpu_rows_in_use(args->counts, args->groups, args->R),
                        hd_cpu_row_grain(args->F * 12), glu_rows, args);
    return st ? st : HD_CPU_ENCODE_RESULT(cpu, args, args->out, args->R, args->F, HD_E4M3);
}

/* Gradients of gate and up projection. */
struct glu_gradient {
    vf gate, up;
};

/* Computes, with s = sigmoid(alpha g), dup = dout g s and dgate = dout (u + 1) (s + alpha g s (1 -
 * s)); 0 for a value that was clamped. */
INLINE struct glu_gradient oss_gradient(const struct hd_glu_backward_args *a, vf dout, vf gate,
                                        vf up)
{
    const struct clamped x = clamp(gate, up, a->limit);
    const vf zero = {0}, s = vf_sigmoid(a->alpha * x.gate);
    const vf dgate = dout * (x.up + 1.0f) * (s * (1.0f + a->alpha * x.gate * (1.0f - s)));
    const vf dup = dout * (x.gate * s);

    return (struct glu_gradient){
        vf_select(gate > a->limit, zero, dgate),
        vf_select((up > a->limit) | (up < -a->limit), zero, dup),
    };
}

/* Computes, with s = sigmoid(gate): dup = dout * gate * s, dgate = dout * up * s * (1 + gate * (1 -
 * s)). */
INLINE struct glu_gradient silu_gradient(vf dout, vf gate, vf up)
{
    const vf s = vf_sigmoid(gate);

    return (struct glu_gradient){dout * up * s * (1.0f + gate * (1.0f - s)), dout * (gate * s)};
}

INLINE struct glu_gradient gradient_of(const struct hd_glu_backward_args *a, vf dout, vf gate,
                                       vf up, enum hd_activation act)
{
    if (act == HD_ACT_SILU)
        return silu_gradient(dout, gate, up);
    if (act == HD_ACT_OSS)
        return oss_gradient(a, dout, gate, up);
    return (struct glu_gradient){dout * up * activation_slope(gate, act),
                                 dout * activate(gate, act)};
}

/* Computes row r of a gated activation's gradients. Gate and up are both read before either
 * gradient is written: dinp may alias inp. */
INLINE void glu_backward_row(const struct hd_glu_backward_args *a, int64_t r,
                             enum hd_activation act, enum hd_dtype dtype)
{
    const struct hd_glu_backward_args row = *a;
    const int64_t F = row.F, gate_at = r * 2 * F, up_at = gate_at + F;

    FOR_VECTORS (f, n, 0, F) {
        const vf dout = vf_load(row.dout, r * F + f, n, dtype);
        const vf gate = vf_load(row.inp, gate_at + f, n, dtype);
        const vf up = vf_load(row.inp, up_at + f, n, dtype);
        const struct glu_gradient d = gradient_of(&row, dout, gate, up, act);

        vf_prefetch(row.dout, (r + 1) * F + f, dtype);
        vf_prefetch(row.inp, gate_at + 2 * F + f, dtype);
        vf_prefetch(row.inp, up_at + 2 * F + f, dtype);
        vf_store(row.dinp, gate_at + f, n, d.gate, dtype);
        vf_store(row.dinp, up_at + f, n, d.up, dtype);
    }
}

static void glu_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_glu_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_ACTIVATION(a->act, A, WITH_FLOATS(a->dtype, T, glu_backward_row(a, r, A, T)));
}

enum hd_status KERNEL(glu_backward)(struct hd_backend *cpu, const struct hd_glu_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("glu_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, hd_cpu_rows_in_use(args->counts, args->groups, args->R),
                        hd_cpu_row_grain(args->F * 20), glu_backward_rows, args);
    return st ? st : HD_CPU_ENCODE_RESULT(cpu, args, args->dinp, args->R, 2 * args->F, HD_E5M2);
}

static int64_t elements_in_use(const int32_t *counts, int64_t groups, int64_t R, int64_t N)
{
    return counts ? hd_cpu_rows_in_use(counts, groups, R) * (N / R) : N;
}

INLINE void activation_piece(const struct hd_activation_forward_args *a, int64_t begin, int64_t end,
                             enum hd_activation act, enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        const vf x = vf_load(a->inp, i, n, dtype);

        vf_store(a->out, i, n, activate(x, act), dtype);
    }
}

static void activation_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_activation_forward_args *a = args;

    (void)thread;
    WITH_ACTIVATION(a->act, A, WITH_FLOATS(a->dtype, T, activation_piece(a, begin, end, A, T)));
}

enum hd_status KERNEL(activation_forward)(struct hd_backend *cpu,
                                          const struct hd_activation_forward_args *args)
{
    enum hd_status st = hd_cpu_check_float("activation_forward", args->dtype);

    if (!st)
        st = hd_costs_activation_check(args->act);
    if (!st)
        hd_cpu_parallel(cpu, elements_in_use(args->counts, args->groups, args->R, args->N), GRAIN,
                        activation_pieces, args);
    return st ? st
              : HD_CPU_ENCODE_RESULT(cpu, args, args->out, args->R, args->N / args->R, HD_E4M3);
}

INLINE void activation_backward_piece(const struct hd_activation_backward_args *a, int64_t begin,
                                      int64_t end, enum hd_activation act, enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        const vf x = vf_load(a->inp, i, n, dtype);

        vf_store(a->dinp, i, n, vf_load(a->dout, i, n, dtype) * activation_slope(x, act), dtype);
    }
}

static void activation_backward_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_activation_backward_args *a = args;

    (void)thread;
    WITH_ACTIVATION(a->act, A,
                    WITH_FLOATS(a->dtype, T, activation_backward_piece(a, begin, end, A, T)));
}

enum hd_status KERNEL(activation_backward)(struct hd_backend *cpu,
                                           const struct hd_activation_backward_args *args)
{
    enum hd_status st = hd_cpu_check_float("activation_backward", args->dtype);

    if (!st)
        st = hd_costs_activation_check(args->act);
    if (!st)
        hd_cpu_parallel(cpu, elements_in_use(args->counts, args->groups, args->R, args->N), GRAIN,
                        activation_backward_pieces, args);
    if (!st && args->sums)
        st = KERNEL(sum_row_chunks)(cpu, args->sums, args->dinp, args->R, args->N / args->R, 0,
                                    args->dtype);
    return st ? st
              : HD_CPU_ENCODE_RESULT(cpu, args, args->dinp, args->R, args->N / args->R, HD_E5M2);
}

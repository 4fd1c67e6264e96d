/* delta_gates: beta and the logarithm of the decay of gated delta layers. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

/* Returns log(1 + e^x). */
INLINE vf delta_softplus(vf x)
{
    return vf_max(x, vf_set(0.0f)) + vf_log1p(vf_exp(vf_min(x, -x)));
}

INLINE void gates_row(const struct hd_delta_gates_forward_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t row = r * 2 * a->H;

    FOR_VECTORS (h, n, 0, a->H) {
        const vf decay = vf_exp(vf_load_f32(a->A_log + h, n));
        const vf x = vf_load(a->inp, row + a->H + h, n, dtype) + vf_load_f32(a->dt_bias + h, n);

        vf_store_f32(a->gates + row + h, n, vf_sigmoid(vf_load(a->inp, row + h, n, dtype)));
        vf_store_f32(a->gates + row + a->H + h, n, -decay * delta_softplus(x));
    }
}

static void gates_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_delta_gates_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, gates_row(a, r, T));
}

enum hd_status KERNEL(delta_gates_forward)(struct hd_backend *cpu,
                                           const struct hd_delta_gates_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("delta_gates_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->H * 16), gates_rows, args);
    return st;
}

INLINE void gates_backward_row(const struct hd_delta_gates_backward_args *a, int64_t r,
                               enum hd_dtype dtype)
{
    const int64_t row = r * 2 * a->H;

    FOR_VECTORS (h, n, 0, a->H) {
        const vf decay = vf_exp(vf_load_f32(a->A_log + h, n));
        const vf beta = vf_sigmoid(vf_load(a->inp, row + h, n, dtype));
        const vf x = vf_load(a->inp, row + a->H + h, n, dtype) + vf_load_f32(a->dt_bias + h, n);
        const vf dbeta = vf_load_f32(a->dgates + row + h, n);
        const vf dg = vf_load_f32(a->dgates + row + a->H + h, n);
        const vf da = -dg * decay * vf_sigmoid(x);

        vf_store(a->dinp, row + h, n, dbeta * beta * (1.0f - beta), dtype);
        vf_store(a->dinp, row + a->H + h, n, da, dtype);
        if (a->terms) {
            vf_store_f32(a->terms + row + h, n, -dg * decay * delta_softplus(x));
            vf_store_f32(a->terms + row + a->H + h, n, da);
        }
    }
}

static void gates_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_delta_gates_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, gates_backward_row(a, r, T));
}

enum hd_status KERNEL(delta_gates_backward)(struct hd_backend *cpu,
                                            const struct hd_delta_gates_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("delta_gates_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->H * 24), gates_backward_rows, args);
    return st;
}

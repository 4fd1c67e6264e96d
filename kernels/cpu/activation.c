/* activation: SwiGLU and GELU. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gelu.h"

enum { GRAIN = 16 * 1024 }; /* number of elements that a thread takes at a time */

/* Computes row r of SwiGLU. The two halves of its input are far apart in memory, and the hardware
 * prefetcher restarts at each half, so the same columns of the next row are prefetched. */
INLINE void swiglu_row(const struct hd_swiglu_forward_args *a, int64_t r, enum hd_dtype dtype)
{
    FOR_VECTORS (f, n, 0, a->F) {
        const vf gate = vf_load(a->inp, r * 2 * a->F + f, n, dtype);
        const vf up = vf_load(a->inp, r * 2 * a->F + a->F + f, n, dtype);

        vf_prefetch(a->inp, (r + 1) * 2 * a->F + f, dtype);
        vf_prefetch(a->inp, (r + 1) * 2 * a->F + a->F + f, dtype);
        vf_store(a->out, r * a->F + f, n, gate * vf_sigmoid(gate) * up, dtype);
    }
}

static void swiglu_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_swiglu_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, swiglu_row(a, r, T));
}

enum hd_status KERNEL(swiglu_forward)(struct hd_backend *cpu,
                                      const struct hd_swiglu_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("swiglu_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, hd_cpu_rows_in_use(args->counts, args->groups, args->R),
                        hd_cpu_row_grain(args->F * 12), swiglu_rows, args);
    return st;
}

/* Computes row r of SwiGLU's gradients. With s = sigmoid(gate): dup = dout * gate * s, dgate = dout
 * * up * s * (1 + gate * (1 - s)). Gate and up are both read before either gradient is written:
 * dinp may alias inp. */
INLINE void swiglu_backward_row(const struct hd_swiglu_backward_args *a, int64_t r,
                                enum hd_dtype dtype)
{
    const int64_t gate_at = r * 2 * a->F, up_at = gate_at + a->F;

    FOR_VECTORS (f, n, 0, a->F) {
        const vf dout = vf_load(a->dout, r * a->F + f, n, dtype);
        const vf gate = vf_load(a->inp, gate_at + f, n, dtype);
        const vf up = vf_load(a->inp, up_at + f, n, dtype);
        const vf s = vf_sigmoid(gate);

        vf_prefetch(a->dout, (r + 1) * a->F + f, dtype);
        vf_prefetch(a->inp, gate_at + 2 * a->F + f, dtype);
        vf_prefetch(a->inp, up_at + 2 * a->F + f, dtype);
        vf_store(a->dinp, gate_at + f, n, dout * up * s * (1.0f + gate * (1.0f - s)), dtype);
        vf_store(a->dinp, up_at + f, n, dout * (gate * s), dtype);
    }
}

static void swiglu_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_swiglu_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, swiglu_backward_row(a, r, T));
}

enum hd_status KERNEL(swiglu_backward)(struct hd_backend *cpu,
                                       const struct hd_swiglu_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("swiglu_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, hd_cpu_rows_in_use(args->counts, args->groups, args->R),
                        hd_cpu_row_grain(args->F * 20), swiglu_backward_rows, args);
    return st;
}

static int64_t elements_in_use(const int32_t *counts, int64_t groups, int64_t R, int64_t N)
{
    return counts ? hd_cpu_rows_in_use(counts, groups, R) * (N / R) : N;
}

INLINE void gelu_piece(const struct hd_gelu_forward_args *a, int64_t begin, int64_t end,
                       enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        const vf x = vf_load(a->inp, i, n, dtype);

        vf_store(a->out, i, n, gelu(x), dtype);
    }
}

static void gelu_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_gelu_forward_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, gelu_piece(a, begin, end, T));
}

enum hd_status KERNEL(gelu_forward)(struct hd_backend *cpu, const struct hd_gelu_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("gelu_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, elements_in_use(args->counts, args->groups, args->R, args->N), GRAIN,
                        gelu_pieces, args);
    return st;
}

INLINE void gelu_backward_piece(const struct hd_gelu_backward_args *a, int64_t begin, int64_t end,
                                enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        const vf x = vf_load(a->inp, i, n, dtype);

        vf_store(a->dinp, i, n, vf_load(a->dout, i, n, dtype) * gelu_slope(x), dtype);
    }
}

static void gelu_backward_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_gelu_backward_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, gelu_backward_piece(a, begin, end, T));
}

enum hd_status KERNEL(gelu_backward)(struct hd_backend *cpu,
                                     const struct hd_gelu_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("gelu_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, elements_in_use(args->counts, args->groups, args->R, args->N), GRAIN,
                        gelu_backward_pieces, args);
    return st;
}

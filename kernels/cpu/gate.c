/* gate: rows times the sigmoid of one number per row, and elements times another or its sigmoid. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

enum { ELEMENTS = 16384 }; /* elements of a piece */

INLINE float gate_of(const void *g, int64_t r, enum hd_dtype dtype)
{
    return vf_sigmoid(vf_set(vf_load(g, r, 1, dtype)[0]))[0];
}

INLINE void gate_row(const struct hd_row_gate_forward_args *a, int64_t r, enum hd_dtype dtype)
{
    const float gate = gate_of(a->g, r, dtype);

    FOR_VECTORS (c, n, 0, a->C)
        vf_store(a->out, r * a->C + c, n, vf_load(a->y, r * a->C + c, n, dtype) * gate, dtype);
}

static void gate_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_row_gate_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, gate_row(a, r, T));
}

enum hd_status KERNEL(row_gate_forward)(struct hd_backend *cpu,
                                        const struct hd_row_gate_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("row_gate_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 8), gate_rows, args);
    return st;
}

/* Computes row r of the gradients. An element of dout is read before the element of dy at its index
 * is written: they may alias. */
INLINE void gate_backward_row(const struct hd_row_gate_backward_args *a, int64_t r,
                              enum hd_dtype dtype)
{
    const float gate = gate_of(a->g, r, dtype);
    vf products = {0};

    FOR_VECTORS (c, n, 0, a->C) {
        const vf dout = vf_load(a->dout, r * a->C + c, n, dtype);

        products += dout * vf_load(a->y, r * a->C + c, n, dtype);
        vf_store(a->dy, r * a->C + c, n, dout * gate, dtype);
    }
    vf_store(a->dg, r, 1, vf_set(vf_sum(products) * gate * (1.0f - gate)), dtype);
}

static void gate_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_row_gate_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, gate_backward_row(a, r, T));
}

enum hd_status KERNEL(row_gate_backward)(struct hd_backend *cpu,
                                         const struct hd_row_gate_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("row_gate_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 12), gate_backward_rows, args);
    return st;
}

INLINE void multiply_by_gates(const struct hd_sigmoid_gate_forward_args *a, int64_t begin,
                              int64_t end, enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        const vf g = vf_load(a->g, i, n, dtype);

        vf_store(a->out, i, n, vf_load(a->y, i, n, dtype) * (a->plain ? g : vf_sigmoid(g)), dtype);
    }
}

static void sigmoid_gate_elements(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_sigmoid_gate_forward_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, multiply_by_gates(a, begin, end, T));
}

enum hd_status KERNEL(sigmoid_gate_forward)(struct hd_backend *cpu,
                                            const struct hd_sigmoid_gate_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("sigmoid_gate_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, ELEMENTS, sigmoid_gate_elements, args);
    return st;
}

INLINE void differentiate_gates(const struct hd_sigmoid_gate_backward_args *a, int64_t begin,
                                int64_t end, enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        const vf dout = vf_load(a->dout, i, n, dtype), g = vf_load(a->g, i, n, dtype);
        const vf product = dout * vf_load(a->y, i, n, dtype), s = a->plain ? g : vf_sigmoid(g);

        vf_store(a->dy, i, n, dout * s, dtype);
        vf_store(a->dg, i, n, a->plain ? product : product * s * (1.0f - s), dtype);
    }
}

static void sigmoid_gate_gradients(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_sigmoid_gate_backward_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, differentiate_gates(a, begin, end, T));
}

enum hd_status KERNEL(sigmoid_gate_backward)(struct hd_backend *cpu,
                                             const struct hd_sigmoid_gate_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("sigmoid_gate_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, ELEMENTS, sigmoid_gate_gradients, args);
    return st;
}

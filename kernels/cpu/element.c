/* element: kernels add, clamp, cast and zero on flat tensors, and copy_columns on matrices. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Number of elements, and of bytes, that a thread takes at a time. */
enum { GRAIN = 16 * 1024, GRAIN_BYTES = 64 * 1024 };

INLINE void add_piece(const struct hd_add_args *a, int64_t begin, int64_t end, enum hd_dtype dtype)
{
    const float factor = hd_factor_of(a->factor);

    FOR_VECTORS (i, n, begin, end) {
        vf_store(a->out, i, n, vf_load(a->a, i, n, dtype) + factor * vf_load(a->b, i, n, dtype),
                 dtype);
    }
}

static void add_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_add_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, add_piece(a, begin, end, T));
}

enum hd_status KERNEL(add)(struct hd_backend *cpu, const struct hd_add_args *args)
{
    const enum hd_status st = hd_cpu_check_float("add", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, GRAIN, add_pieces, args);
    return st;
}

INLINE void clamp_piece(const struct hd_clamp_forward_args *a, int64_t begin, int64_t end,
                        enum hd_dtype dtype)
{
    const vf most = vf_set(a->limit);

    FOR_VECTORS (i, n, begin, end) {
        const vf x = vf_load(a->inp, i, n, dtype);

        vf_store(a->out, i, n, vf_max(-most, vf_min(most, x)), dtype);
    }
}

static void clamp_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_clamp_forward_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, clamp_piece(a, begin, end, T));
}

enum hd_status KERNEL(clamp_forward)(struct hd_backend *cpu,
                                     const struct hd_clamp_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("clamp_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, GRAIN, clamp_pieces, args);
    return st;
}

INLINE void clamp_backward_piece(const struct hd_clamp_backward_args *a, int64_t begin, int64_t end,
                                 enum hd_dtype dtype)
{
    const vf zero = {0};

    FOR_VECTORS (i, n, begin, end) {
        const vf x = vf_load(a->inp, i, n, dtype);

        vf_store(a->dinp, i, n,
                 vf_select((x > a->limit) | (x < -a->limit), zero, vf_load(a->dout, i, n, dtype)),
                 dtype);
    }
}

static void clamp_backward_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_clamp_backward_args *a = args;

    (void)thread;
    WITH_FLOATS(a->dtype, T, clamp_backward_piece(a, begin, end, T));
}

enum hd_status KERNEL(clamp_backward)(struct hd_backend *cpu,
                                      const struct hd_clamp_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("clamp_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, GRAIN, clamp_backward_pieces, args);
    return st;
}

INLINE void cast_piece(const struct hd_cast_args *a, int64_t begin, int64_t end, enum hd_dtype out,
                       enum hd_dtype inp)
{
    FOR_VECTORS (i, n, begin, end) {
        vf_store(a->out, i, n, vf_load(a->inp, i, n, inp), out);
    }
}

static void cast_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cast_args *a = args;
    const int64_t bytes = vf_element_bytes(a->inp_dtype);

    (void)thread;
    if (a->out_dtype == a->inp_dtype)
        memcpy((char *)a->out + begin * bytes, (const char *)a->inp + begin * bytes,
               (size_t)((end - begin) * bytes));
    else
        WITH_FLOATS(a->out_dtype, Out,
                    WITH_FLOATS(a->inp_dtype, Inp, cast_piece(a, begin, end, Out, Inp)));
}

enum hd_status KERNEL(cast)(struct hd_backend *cpu, const struct hd_cast_args *args)
{
    enum hd_status st = hd_cpu_check_float("cast", args->out_dtype);

    if (!st)
        st = hd_cpu_check_float("cast", args->inp_dtype);
    if (!st)
        hd_cpu_parallel(cpu, args->N, GRAIN, cast_pieces, args);
    return st;
}

INLINE void copy_rows(const struct hd_copy_columns_args *a, int64_t begin, int64_t end,
                      enum hd_dtype out, enum hd_dtype inp)
{
    for (int64_t r = begin; r < end; r++)
        FOR_VECTORS (c, n, 0, a->N)
            vf_store(a->out, r * a->ldo + c, n, a->factor * vf_load(a->inp, r * a->ldi + c, n, inp),
                     out);
}

static void copy_columns_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_copy_columns_args *a = args;

    (void)thread;
    WITH_FLOATS(a->out_dtype, Out,
                WITH_FLOATS(a->inp_dtype, Inp, copy_rows(a, begin, end, Out, Inp)));
}

enum hd_status KERNEL(copy_columns)(struct hd_backend *cpu, const struct hd_copy_columns_args *args)
{
    enum hd_status st = hd_cpu_check_float("copy_columns", args->out_dtype);

    if (!st)
        st = hd_cpu_check_float("copy_columns", args->inp_dtype);
    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->N * 8), copy_columns_rows, args);
    return st;
}

static void zero_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_zero_args *a = args;

    (void)thread;
    memset((char *)a->out + begin, 0, (size_t)(end - begin));
}

enum hd_status KERNEL(zero)(struct hd_backend *cpu, const struct hd_zero_args *args)
{
    hd_cpu_parallel(cpu, args->size_bytes, GRAIN_BYTES, zero_pieces, args);
    return HD_OK;
}

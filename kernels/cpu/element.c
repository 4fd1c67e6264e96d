/* element: add, cast and zero on flat tensors; copy_columns on matrices. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

enum { GRAIN = 16 * 1024, GRAIN_BYTES = 64 * 1024 }; /* of a piece */

INLINE void add_piece(const struct hd_add_args *a, int64_t begin, int64_t end, enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        vf_store(a->out, i, n, vf_load(a->a, i, n, dtype) + vf_load(a->b, i, n, dtype), dtype);
    }
}

static void add_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_add_args *a = args;

    (void)thread;
    if (a->dtype == HD_BF16)
        add_piece(a, begin, end, HD_BF16);
    else
        add_piece(a, begin, end, HD_F32);
}

enum hd_status KERNEL(add)(struct hd_backend *cpu, const struct hd_add_args *args)
{
    const enum hd_status st = hd_cpu_check_float("add", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, GRAIN, add_pieces, args);
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

    (void)thread;
    if (a->out_dtype == HD_BF16 && a->inp_dtype == HD_BF16)
        memcpy((uint16_t *)a->out + begin, (const uint16_t *)a->inp + begin,
               (size_t)(end - begin) * sizeof(uint16_t));
    else if (a->out_dtype == HD_BF16)
        cast_piece(a, begin, end, HD_BF16, HD_F32);
    else if (a->inp_dtype == HD_BF16)
        cast_piece(a, begin, end, HD_F32, HD_BF16);
    else
        cast_piece(a, begin, end, HD_F32, HD_F32);
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
            vf_store(a->out, r * a->ldo + c, n, vf_load(a->inp, r * a->ldi + c, n, inp), out);
}

static void copy_columns_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_copy_columns_args *a = args;

    (void)thread;
    if (a->out_dtype == HD_BF16 && a->inp_dtype == HD_BF16)
        copy_rows(a, begin, end, HD_BF16, HD_BF16);
    else if (a->out_dtype == HD_BF16)
        copy_rows(a, begin, end, HD_BF16, HD_F32);
    else if (a->inp_dtype == HD_BF16)
        copy_rows(a, begin, end, HD_F32, HD_BF16);
    else
        copy_rows(a, begin, end, HD_F32, HD_F32);
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

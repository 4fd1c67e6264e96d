#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Loads n pairs of neighbours from element `at` on as a vector of their first and a vector of their
 * second members. */
INLINE void load_pairs(const void *from, int64_t at, int64_t n, enum hd_dtype dtype, vf *ret_first,
                       vf *ret_second)
{
    const vf low = vf_load(from, at, 2 * n < VL ? 2 * n : VL, dtype);
    const vf high = 2 * n > VL ? vf_load(from, at + VL, 2 * n - VL, dtype) : (vf){0};

#define EVEN(i) (2 * (i))
#define ODD(i)  (2 * (i) + 1)
    *ret_first = __builtin_shufflevector(low, high, LANES(EVEN));
    *ret_second = __builtin_shufflevector(low, high, LANES(ODD));
#undef EVEN
#undef ODD
}

/* Stores what load_pairs loads. */
INLINE void store_pairs(void *to, int64_t at, int64_t n, enum hd_dtype dtype, vf first, vf second)
{
#define LOW(i)  ((i) / 2 + (i) % 2 * VL)
#define HIGH(i) ((i) / 2 + (i) % 2 * VL + VL / 2)
    vf_store(to, at, 2 * n < VL ? 2 * n : VL, __builtin_shufflevector(first, second, LANES(LOW)),
             dtype);
    if (2 * n > VL)
        vf_store(to, at + VL, 2 * n - VL, __builtin_shufflevector(first, second, LANES(HIGH)),
                 dtype);
#undef LOW
#undef HIGH
}

/* Rotates pairs of channels that are half of W apart. */
INLINE void rope_row(const struct hd_rope_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t width = hd_rope_args_width(a), half = width / 2, H = a->H, D = a->D;
    const int64_t row = r * a->ldx + a->first;
    const float *table = a->table + a->position[r] * width;
    void *x = a->x;

    FOR_VECTORS (i, n, 0, half) {
        vf cosine, sine;

        load_pairs(table, 2 * i, n, HD_F32, &cosine, &sine);
        if (a->inverse)
            sine = -sine;
        for (int64_t h = 0; h < H; h++) {
            const int64_t at = row + h * D + i;
            const vf low = vf_load(x, at, n, dtype), high = vf_load(x, at + half, n, dtype);

            vf_store(x, at, n, low * cosine - high * sine, dtype);
            vf_store(x, at + half, n, low * sine + high * cosine, dtype);
        }
    }
}

/* Rotates pairs of neighbours. */
INLINE void rope_row_interleaved(const struct hd_rope_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t width = hd_rope_args_width(a), H = a->H, D = a->D;
    const int64_t row = r * a->ldx + a->first;
    const float *table = a->table + a->position[r] * width;
    void *x = a->x;

    FOR_VECTORS (i, n, 0, width / 2) {
        vf cosine, sine;

        load_pairs(table, 2 * i, n, HD_F32, &cosine, &sine);
        if (a->inverse)
            sine = -sine;
        for (int64_t h = 0; h < H; h++) {
            const int64_t at = row + h * D + 2 * i;
            vf first, second;

            load_pairs(x, at, n, dtype, &first, &second);
            store_pairs(x, at, n, dtype, first * cosine - second * sine,
                        first * sine + second * cosine);
        }
    }
}

static void rope_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_rope_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        if (a->interleaved)
            WITH_FLOATS(a->dtype, T, rope_row_interleaved(a, r, T));
        else
            WITH_FLOATS(a->dtype, T, rope_row(a, r, T));
}

enum hd_status KERNEL(rope)(struct hd_backend *cpu, const struct hd_rope_args *args)
{
    enum hd_status st = hd_cpu_check_float("rope", args->dtype);

    if (!st)
        st = hd_costs_check_rope(args);
    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->H * hd_rope_args_width(args) * 8),
                        rope_rows, args);
    return st;
}

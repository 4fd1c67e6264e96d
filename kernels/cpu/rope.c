#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Loads n pairs {cos, sin} of the table as a vector of cosines and a vector of sines. */
INLINE void load_angles(const float *table, int64_t n, vf *ret_cos, vf *ret_sin)
{
    const vf first = vf_load_f32(table, 2 * n < VL ? 2 * n : VL);
    const vf second = 2 * n > VL ? vf_load_f32(table + VL, 2 * n - VL) : (vf){0};

#define EVEN(i) (2 * (i))
#define ODD(i)  (2 * (i) + 1)
    *ret_cos = __builtin_shufflevector(first, second, LANES(EVEN));
    *ret_sin = __builtin_shufflevector(first, second, LANES(ODD));
#undef EVEN
#undef ODD
}

INLINE void rope_row(const struct hd_rope_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t half = a->D / 2;
    const float *table = a->table + a->position[r] * a->D;

    FOR_VECTORS (i, n, 0, half) {
        vf cosine, sine;

        load_angles(table + 2 * i, n, &cosine, &sine);
        if (a->inverse)
            sine = -sine;
        for (int64_t h = 0; h < a->H; h++) {
            const int64_t at = r * a->ldx + h * a->D + i;
            const vf x = vf_load(a->x, at, n, dtype), y = vf_load(a->x, at + half, n, dtype);

            vf_store(a->x, at, n, x * cosine - y * sine, dtype);
            vf_store(a->x, at + half, n, x * sine + y * cosine, dtype);
        }
    }
}

static void rope_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_rope_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, rope_row(a, r, T));
}

enum hd_status KERNEL(rope)(struct hd_backend *cpu, const struct hd_rope_args *args)
{
    const enum hd_status st = hd_cpu_check_float("rope", args->dtype);

    if (st)
        return st;
    if (args->D % 2)
        return hd_err(HD_UNSUPPORTED, "rope: the head width %lld is odd; it must be even",
                      (long long)args->D);
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->H * args->D * 8), rope_rows, args);
    return HD_OK;
}

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

INLINE void query_factor_row(const struct hd_query_factor_args *a, int64_t r, enum hd_dtype dtype)
{
    const float factor = a->table[a->position[r]];

    FOR_VECTORS (c, n, 0, a->N) {
        vf_store(a->x, r * a->ldx + c, n, vf_load(a->x, r * a->ldx + c, n, dtype) * factor, dtype);
    }
}

static void query_factor_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_query_factor_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, query_factor_row(a, r, T));
}

enum hd_status KERNEL(query_factor)(struct hd_backend *cpu, const struct hd_query_factor_args *args)
{
    const enum hd_status st = hd_cpu_check_float("query_factor", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->N * 4), query_factor_rows, args);
    return st;
}

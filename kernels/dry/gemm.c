#include "kernels/dry/dry.h"

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t x, int64_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

/* A thread packs an MC x KC block of a and a KC x NC block of b, both as fp32, and keeps the sums
 * of its MC x NC block of c. Small matrices need small panels; rows and columns are rounded up to
 * what every micro-kernel divides (42 = lcm of 6 and 14). */
struct hd_dry_gemm_layout hd_dry_gemm_layout(const struct hd_gemm_args *args)
{
    const int64_t m = at_most(HD_DRY_GEMM_MC, round_up(args->M, 42));
    const int64_t n = at_most(HD_DRY_GEMM_NC, round_up(args->N, 32));
    const int64_t k = at_most(HD_DRY_GEMM_KC, args->K);
    struct hd_dry_gemm_layout layout = {.block_rows = m, .block_columns = n};

    layout.a_floats = round_up(m * k, 16);
    layout.b_floats = round_up(n * k, 16);
    layout.c_floats = round_up(m * n, 16);
    layout.thread_bytes = hd_dry_align((layout.a_floats + layout.b_floats + layout.c_floats) *
                                       (int64_t)sizeof(float));
    return layout;
}

/* Either a library computes within its budget, or own code within the panels of its threads. Which
 * one it is may depend on the shape, so there is room for both. */
int64_t hd_dry_scratch_gemm(const struct hd_gemm_args *args, const struct hd_traits *traits)
{
    const int64_t own = hd_dry_gemm_layout(args).thread_bytes * traits->threads;

    return own > traits->gemm_scratch_bytes ? own : traits->gemm_scratch_bytes;
}

void hd_dry_cost_gemm(struct hd_costs *costs, const struct hd_gemm_args *a)
{
    const int64_t ab = (int64_t)hd_dtype_size(a->ab_dtype), c = (int64_t)hd_dtype_size(a->c_dtype);

    costs->flops += 2.0 * (double)a->M * (double)a->N * (double)a->K;
    costs->read_bytes += (a->M * a->K + a->K * a->N + (a->bias ? a->N : 0)) * ab;
    costs->read_bytes += a->accumulate ? a->M * a->N * c : 0;
    costs->write_bytes += a->M * a->N * c;
}

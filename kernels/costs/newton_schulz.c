#include "kernels/costs/costs.h"

struct hd_costs_newton_layout hd_costs_lay_out_newton(const struct hd_newton_schulz_args *a,
                                                      const struct hd_traits *traits)
{
    const int64_t size = (int64_t)hd_dtype_size(a->dtype), elements = a->rows * a->columns;
    const int64_t n = a->rows < a->columns ? a->rows : a->columns;
    struct hd_costs_newton_layout l = {
        .n = n, .parts = (elements + HD_COSTS_NEWTON_PART - 1) / HD_COSTS_NEWTON_PART};
    int64_t most = 0;

    l.gram = hd_tensor_align(elements * size);
    l.square = l.gram + hd_tensor_align(n * n * size);
    l.sums = l.square + hd_tensor_align(n * n * (int64_t)sizeof(float));
    l.gemm = l.sums + hd_tensor_align(l.parts * (int64_t)sizeof(double));
    l.gemm = (l.gemm + HD_SCRATCH_ALIGN - 1) / HD_SCRATCH_ALIGN * HD_SCRATCH_ALIGN;
    for (int k = 0; k < HD_NEWTON_PRODUCTS; k++) {
        const struct hd_gemm_args product = hd_costs_newton_product(a, (enum hd_newton_product)k);
        const int64_t bytes = hd_scratch_gemm(&product, traits);

        most = bytes > most ? bytes : most;
    }
    l.scratch_bytes = l.gemm + most;
    return l;
}

struct hd_gemm_args hd_costs_newton_product(const struct hd_newton_schulz_args *a,
                                            enum hd_newton_product product)
{
    const bool wide = a->rows <= a->columns;
    const int64_t n = wide ? a->rows : a->columns;
    struct hd_gemm_args g = {.M = n,
                             .N = n,
                             .K = n,
                             .lda = n,
                             .ldb = n,
                             .ldc = n,
                             .ab_dtype = a->dtype,
                             .c_dtype = a->dtype};

    if (product == HD_NEWTON_GRAM) {
        g.K = wide ? a->columns : a->rows;
        g.lda = g.ldb = a->columns;
        g.trans_a = !wide;
        g.trans_b = wide;
    } else if (product == HD_NEWTON_SQUARE) {
        g.c_dtype = HD_F32;
    } else {
        g.M = a->rows;
        g.N = a->columns;
        g.lda = wide ? n : a->columns;
        g.ldb = wide ? a->columns : n;
        g.ldc = a->columns;
    }
    return g;
}

struct hd_gemm_args hd_costs_newton_bound(const struct hd_newton_schulz_args *a,
                                          const struct hd_costs_newton_layout *l,
                                          enum hd_newton_product product, const void *inp,
                                          void *out)
{
    struct hd_gemm_args g = hd_costs_newton_product(a, product);
    char *scratch = a->scratch;
    const void *gram = scratch + l->gram;

    g.scratch = scratch + l->gemm;
    if (product == HD_NEWTON_GRAM) {
        g.a = g.b = inp;
        g.c = scratch + l->gram;
    } else if (product == HD_NEWTON_SQUARE) {
        g.a = g.b = gram;
        g.c = scratch + l->square;
    } else {
        g.a = a->rows <= a->columns ? gram : inp;
        g.b = a->rows <= a->columns ? inp : gram;
        g.c = out;
    }
    return g;
}

enum hd_status hd_costs_newton_check(const struct hd_newton_schulz_args *a)
{
    if (a->dtype != HD_BF16 && a->dtype != HD_F32)
        return hd_err(HD_UNSUPPORTED, "newton_schulz: matrices are bf16 or fp32, not %s",
                      hd_dtype_name(a->dtype));
    if (a->iterations < 1 || a->iterations > HD_NEWTON_ITERATIONS_MAX)
        return hd_err(HD_INVALID, "newton_schulz: %lld iterations; use 1 to %d",
                      (long long)a->iterations, (int)HD_NEWTON_ITERATIONS_MAX);
    return HD_OK;
}

struct hd_newton_terms hd_costs_newton_terms(const struct hd_newton_schulz_args *a, int64_t i)
{
    const float scale = i == a->iterations - 1 ? a->scale : 1;

    return (struct hd_newton_terms){3.4445f * scale, -4.7750f * scale, 2.0315f * scale};
}

/* Counts per matrix: squares, their sum and the division (3 per element); per iteration the three
 * products, and 5 per element of the polynomial, which reads G and G G and writes the result. */
struct hd_costs hd_costs_newton(const struct hd_newton_schulz_args *a)
{
    const int64_t size = (int64_t)hd_dtype_size(a->dtype), elements = a->rows * a->columns;
    const int64_t n = hd_min(a->rows, a->columns);
    struct hd_costs one = {0};

    for (int k = 0; k < HD_NEWTON_PRODUCTS; k++) {
        const struct hd_gemm_args g = hd_costs_newton_product(a, (enum hd_newton_product)k);

        one.flops += 2.0 * (double)g.M * (double)g.N * (double)g.K;
        one.read_bytes += (g.M * g.K + g.N * g.K) * size;
        one.write_bytes += g.M * g.N * (int64_t)hd_dtype_size(g.c_dtype);
    }
    one.flops += 5.0 * (double)(n * n);
    one.read_bytes += n * n * (size + 4);
    one.write_bytes += n * n * size;
    return (struct hd_costs){
        .flops = (double)a->count * ((double)a->iterations * one.flops + 3.0 * (double)elements),
        .read_bytes = a->count * (a->iterations * one.read_bytes + 2 * elements * size),
        .write_bytes = a->count * (a->iterations * one.write_bytes + elements * size)};
}

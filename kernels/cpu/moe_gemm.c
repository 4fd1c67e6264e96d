/* moe_gemm: grouped GEMMs: the rows of each expert times the expert's weights.
 *
 * The number of rows per expert is only known at run time. A library with one object per shape
 * would create new objects in every step, so own code is used: gemm_blocked, in which the order of
 * a row's additions depends on K only, so a row's result does not depend on the other rows of its
 * expert or on the thread.
 *
 * All threads share a large expert. Small experts have too few tiles for that: each thread computes
 * whole experts (hd_costs_lay_out_grouped).
 */
#include "kernels/costs/costs.h"
#include "kernels/cpu/gemm.h"

struct grouped {
    const struct hd_grouped_gemm_args *args;
    struct hd_backend *one_thread; /* copy of the backend without worker threads, for GEMMs of small
                                      experts */
    const int64_t *begins;         /* [E + 1] */
    char *scratch;                 /* scratch of the GEMMs, which follows `begins` */
    int64_t thread_bytes;
};

/* Sets begins[e] to the first row of expert e, and begins[E] to the end of the last expert's rows.
 * Counts that sum to more than T are reduced to fit. */
static void find_begins(int64_t *begins, const int32_t *counts, int64_t E, int64_t T)
{
    int64_t sum = 0;

    for (int64_t e = 0; e < E; e++) {
        begins[e] = sum < T ? sum : T;
        sum += counts[e];
    }
    begins[E] = sum < T ? sum : T;
}

/* Returns the GEMM of rows [begin, end) of expert e with e's weights. */
static struct hd_gemm_args product_of(const struct grouped *g, int64_t e, int64_t begin,
                                      int64_t end)
{
    const struct hd_grouped_gemm_args *a = g->args;
    const int64_t ab = (int64_t)hd_dtype_size(a->ab_dtype), c = (int64_t)hd_dtype_size(a->c_dtype);
    struct hd_gemm_args p = hd_costs_grouped_product(a, end - begin);

    p.c = (char *)a->c + begin * a->ldc * c;
    p.a = (const char *)a->a + begin * a->lda * ab;
    p.b = (const char *)a->b + e * a->stride_b * (a->b_codes.quant ? 1 : ab);
    p.scratch = g->scratch;
    return p;
}

static int64_t rows_of(const struct grouped *g, int64_t e)
{
    return g->begins[e + 1] - g->begins[e];
}

static bool is_small(const struct grouped *g, int64_t e)
{
    return rows_of(g, e) > 0 && rows_of(g, e) <= HD_COSTS_GROUPED_SMALL;
}

static void multiply_small(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct grouped *g = args;

    for (int64_t e = begin; e < end; e++)
        if (is_small(g, e)) {
            struct hd_gemm_args p = product_of(g, e, g->begins[e], g->begins[e + 1]);

            p.scratch = g->scratch + thread * g->thread_bytes;
            KERNEL(gemm_blocked)(g->one_thread, &p);
        }
}

static void multiply_one_by_one(struct hd_backend *cpu, const struct grouped *g)
{
    for (int64_t e = 0; e < g->args->E; e++)
        for (int64_t i = g->begins[e]; i < g->begins[e + 1]; i++) {
            const struct hd_gemm_args p = product_of(g, e, i, i + 1);

            KERNEL(gemm_row)(cpu, &p);
        }
}

static void multiply_experts(struct hd_backend *cpu, const struct grouped *g)
{
    const int64_t E = g->args->E, enough = cpu->traits.threads * HD_COSTS_GROUPED_SMALL_PER_THREAD;
    int64_t small = 0;
    bool per_thread;

    for (int64_t e = 0; e < E; e++)
        small += is_small(g, e);
    per_thread = g->thread_bytes > 0 && small >= enough;
    for (int64_t e = 0; e < E; e++)
        if (rows_of(g, e) > 0 && !(per_thread && is_small(g, e))) {
            const struct hd_gemm_args p = product_of(g, e, g->begins[e], g->begins[e + 1]);

            KERNEL(gemm_blocked)(cpu, &p);
        }
    if (per_thread)
        hd_cpu_parallel(cpu, E, 1, multiply_small, g);
}

enum hd_status KERNEL(grouped_gemm)(struct hd_backend *cpu, const struct hd_grouped_gemm_args *args)
{
    const struct hd_costs_grouped_layout l = hd_costs_lay_out_grouped(args, &cpu->traits);
    struct hd_backend one_thread = *cpu;
    const struct grouped g = {.args = args,
                              .one_thread = &one_thread,
                              .begins = args->scratch,
                              .scratch = (char *)args->scratch + l.begins_bytes,
                              .thread_bytes = l.thread_bytes};
    enum hd_status st = hd_cpu_check_float("grouped_gemm", args->ab_dtype);

    if (!st)
        st = hd_cpu_check_float("grouped_gemm", args->c_dtype);
    if (st)
        return st;
    one_thread.pool = NULL;
    find_begins(args->scratch, args->counts, args->E, args->T);
    if (hd_costs_grouped_is_one_by_one(args))
        multiply_one_by_one(cpu, &g);
    else
        multiply_experts(cpu, &g);
    return HD_OK;
}

enum hd_status KERNEL(grouped_gemm_weight)(struct hd_backend *cpu,
                                           const struct hd_grouped_gemm_weight_args *args)
{
    const struct hd_grouped_gemm_weight_args *a = args;
    const enum hd_status st = hd_cpu_check_float("grouped_gemm_weight", a->ab_dtype);
    const int64_t ab = (int64_t)hd_dtype_size(a->ab_dtype);
    int64_t begin = 0;

    for (int64_t e = 0; !st && e < a->E; e++) {
        const int64_t rows = a->counts[e] < a->T - begin ? a->counts[e] : a->T - begin;
        struct hd_gemm_args p = hd_costs_grouped_weight_product(a, rows);

        p.c = a->c + e * a->stride_c;
        p.a = (const char *)a->a + begin * a->lda * ab;
        p.b = (const char *)a->b + begin * a->ldb * ab;
        p.scratch = a->scratch;
        if (rows > 0 || !a->accumulate)
            KERNEL(gemm_blocked)(cpu, &p);
        begin += rows;
    }
    return st;
}

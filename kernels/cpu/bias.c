#include "kernels/cpu/cpu.h"
#include "kernels/cpu/row_sums.h"

INLINE struct row_terms bias_terms(const void *args, int64_t r, int64_t c, int64_t n,
                                   enum hd_dtype dtype)
{
    const struct hd_bias_backward_args *a = args;

    return (struct row_terms){.first = vf_load(a->dout, r * a->ldd + c, n, dtype)};
}

static void bias_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct hd_bias_backward_args *a = args;

    if (a->dtype == HD_BF16)
        sum_rows(bias_terms, 1, a, sums, begin, end, a->N, HD_BF16);
    else
        sum_rows(bias_terms, 1, a, sums, begin, end, a->N, HD_F32);
}

enum hd_status KERNEL(bias_backward)(struct hd_backend *cpu,
                                     const struct hd_bias_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("bias_backward", args->dtype);
    const struct row_sums sums = {.args = args,
                                  .rows = bias_rows,
                                  .out = {args->dbias},
                                  .partial = args->scratch,
                                  .R = args->R,
                                  .N = args->N,
                                  .accumulate = args->accumulate};

    if (!st)
        row_sums_run(cpu, &sums);
    return st;
}

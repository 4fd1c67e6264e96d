#include "kernels/cpu/cpu.h"
#include "kernels/cpu/row_sums.h"

INLINE void bias_row(const struct hd_bias_forward_args *a, int64_t r, enum hd_dtype dtype)
{
    FOR_VECTORS (c, n, 0, a->N)
        vf_store(a->out, r * a->N + c, n,
                 vf_load(a->inp, r * a->N + c, n, dtype) + vf_load(a->bias, c, n, dtype), dtype);
}

static void add_bias_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_bias_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, bias_row(a, r, T));
}

enum hd_status KERNEL(bias_forward)(struct hd_backend *cpu, const struct hd_bias_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("bias_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->N * 8), add_bias_rows, args);
    return st;
}

INLINE struct row_terms bias_terms(const void *args, int64_t r, int64_t c, int64_t n,
                                   enum hd_dtype dtype)
{
    const struct hd_bias_backward_args *a = args;

    return (struct row_terms){.first = vf_load(a->dout, r * a->ldd + c, n, dtype)};
}

static void bias_rows(const void *args, float *sums, int64_t begin, int64_t end)
{
    const struct hd_bias_backward_args *a = args;

    WITH_FLOATS(a->dtype, T, sum_rows(bias_terms, 1, a, sums, begin, end, a->N, T));
}

enum hd_status KERNEL(sum_row_chunks)(const struct hd_backend *cpu, float *sums, const void *rows,
                                      int64_t R, int64_t N, int64_t piece, enum hd_dtype dtype)
{
    const struct hd_bias_backward_args args = {.dout = rows, .N = N, .ldd = N, .dtype = dtype};

    row_sums_run(
        cpu,
        &(struct row_sums){
            .args = &args, .rows = bias_rows, .partial = sums, .R = R, .N = N, .piece = piece});
    return HD_OK;
}

enum hd_status KERNEL(bias_backward)(struct hd_backend *cpu,
                                     const struct hd_bias_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("bias_backward", args->dtype);
    const struct row_sums sums = {.args = args,
                                  .rows = args->sums ? NULL : bias_rows,
                                  .out = {args->dbias},
                                  .partial = args->sums ? (float *)args->sums : args->scratch,
                                  .R = args->R,
                                  .N = args->N,
                                  .given = args->P,
                                  .accumulate = args->accumulate};

    if (!st)
        row_sums_run(cpu, &sums);
    return st;
}

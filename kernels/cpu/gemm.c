/* gemm: chooses the code for a GEMM: own code if hd_costs_gemm_is_own() (it was measured to be
 * faster, or there is an epilogue or a residual); else the library, if there is one and it supports
 * the shape within its scratch limit; else own code. */
#include "kernels/cpu/gemm.h"

#include "kernels/costs/costs.h"

static enum hd_status check(const struct hd_gemm_args *args)
{
    enum hd_status st = hd_cpu_check_float("gemm", args->ab_dtype);

    return st ? st : hd_cpu_check_float("gemm", args->c_dtype);
}

static enum hd_status multiply_matrices(struct hd_backend *cpu, const struct hd_gemm_args *args)
{
    enum hd_status st = HD_OK;
    bool done = false;

#ifdef HEDDLE_HAVE_DNNL
    if (cpu->gemm_library && !hd_costs_gemm_is_own(args, &cpu->traits))
        st =
            hd_cpu_gemm_library_run(cpu->gemm_library, args, cpu->traits.gemm_scratch_bytes, &done);
#endif
    cpu->library_ran |= done;
    if (st || done)
        return st;
    if (hd_costs_gemm_is_row(args))
        KERNEL(gemm_row)(cpu, args);
    else
        KERNEL(gemm_blocked)(cpu, args);
    return HD_OK;
}

enum hd_status KERNEL(gemm)(struct hd_backend *cpu, const struct hd_gemm_args *args)
{
    enum hd_status st = check(args);

    if (!st)
        st = hd_costs_gemm_check(args);
    if (st || args->M <= 0 || args->N <= 0)
        return st;
    return multiply_matrices(cpu, args);
}

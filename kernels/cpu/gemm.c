/* gemm: chooses who multiplies. Own code where it was measured to be faster (hd_dry_gemm_is_own);
 * else the library, where there is one and it takes the shape within its budget; else own code. */
#include "kernels/cpu/gemm.h"

#include "kernels/dry/dry.h"

enum hd_status KERNEL(gemm)(struct hd_backend *cpu, const struct hd_gemm_args *args)
{
    enum hd_status st = hd_cpu_check_float("gemm", args->ab_dtype);
    bool done = false;

    if (!st)
        st = hd_cpu_check_float("gemm", args->c_dtype);
    if (st || args->M <= 0 || args->N <= 0)
        return st;
    if (args->bias && args->accumulate)
        return hd_err(HD_INVALID, "gemm: a bias with accumulate would be added again and again");
#ifdef HEDDLE_HAVE_DNNL
    if (cpu->gemm_library && !hd_dry_gemm_is_own(args, &cpu->traits))
        st =
            hd_cpu_gemm_library_run(cpu->gemm_library, args, cpu->traits.gemm_scratch_bytes, &done);
#endif
    cpu->library_ran |= done;
    if (st || done)
        return st;
    if (hd_dry_gemm_is_row(args))
        KERNEL(gemm_row)(cpu, args);
    else
        KERNEL(gemm_blocked)(cpu, args);
    return HD_OK;
}

/* check: encodings in which the CPU kernels compute. */
#include "kernels/cpu/cpu.h"

enum hd_status hd_cpu_check_float(const char *kernel, enum hd_dtype dtype)
{
    if (dtype == HD_F32 || dtype == HD_BF16 || dtype == HD_F16)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "%s: the cpu backend computes in f32, bf16 and f16, not in %s",
                  kernel, hd_dtype_name(dtype));
}

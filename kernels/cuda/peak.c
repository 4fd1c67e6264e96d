/* peak: the peak rate for MFU: from the data sheet, for dense GEMMs on tensor cores (bf16, f16,
 * TF32 or fp8), or for fp32 without them. For an unknown GPU it is multiprocessors x maximum clock
 * x operations per cycle of the generation, rather too high than too low. */
#include "kernels/cuda/cuda.h"

/* Returns the operations per cycle of one multiprocessor of this compute capability. */
static double per_cycle(int capability, bool tensor, bool half)
{
    const double products = capability >= 120   ? 1024
                            : capability >= 110 ? 2048
                            : capability >= 100 ? 8192
                            : capability >= 90  ? 4096
                            : capability > 80   ? 1024
                                                : 2048;

    if (tensor)
        return half ? products : products / 2;
    return capability == 80 ? 128 : 256;
}

double hd_cuda_peak(const char *name, int capability, int multiprocessors, double clock_hz,
                    enum hd_dtype dtype, bool tf32)
{
    const bool half = dtype == HD_BF16 || dtype == HD_F16;
    /* fp8 has twice the rate of bf16, on every generation that supports it */
    const bool fp8 = dtype == HD_U8;
    const struct hd_gpu_kind *kind = hd_gpu_kind_of_name(name);

    if (kind)
        return hd_gpu_kind_rate(kind, dtype, tf32);
    if (fp8)
        return capability < HD_GPU_FP8_FROM
                   ? 0
                   : multiprocessors * clock_hz * 2 * per_cycle(capability, true, true);
    return multiprocessors * clock_hz * per_cycle(capability, half || tf32, half);
}

/* peak: the rate that MFU is relative to: by the data sheet, for dense GEMMs on tensor cores (bf16,
 * f16 or TF32), or for fp32 without them. For an unknown GPU it is multiprocessors x maximum clock
 * x operations per cycle of the generation, which is rather too high than too low. */
#include <ctype.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

/* Operations per cycle of a multiprocessor. */
static double per_cycle(int capability, bool tensor, bool half)
{
    const double products = capability >= 110   ? 2048
                            : capability >= 100 ? 8192
                            : capability >= 90  ? 4096
                            : capability > 80   ? 1024
                                                : 2048;

    if (tensor)
        return half ? products : products / 2;
    return capability == 80 ? 128 : 256;
}

static bool has_words(const char *name, const char *words)
{
    for (const char *at = strstr(name, words); at; at = strstr(at + 1, words))
        if ((at == name || !isalnum((unsigned char)at[-1])) &&
            !isalnum((unsigned char)at[strlen(words)]))
            return true;
    return false;
}

double hd_cuda_peak(const char *name, int capability, int multiprocessors, double clock_hz,
                    enum hd_dtype dtype, bool tf32)
{
    const bool half = dtype == HD_BF16 || dtype == HD_F16;
    const struct hd_gpu_kind *kinds;
    size_t count;

    kinds = hd_gpu_kinds(&count);
    for (size_t i = 0; i < count; i++)
        if (has_words(name, kinds[i].name))
            return hd_gpu_kind_rate(&kinds[i], dtype, tf32);
    return multiprocessors * clock_hz * per_cycle(capability, half || tf32, half);
}

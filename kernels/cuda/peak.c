/* peak: the rate that MFU is quoted against: what the maker states for dense products on the tensor
 * cores (bf16 and f16, or TF32), or for fp32 without them. A GPU that is not listed is reckoned
 * from its multiprocessors, its clock and what one of its generation multiplies per cycle; that
 * clock is the highest it ever has, so such a peak is rather too high than too low. */
#include <ctype.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

/* Tera-operations per second, from the makers' data sheets, without sparsity. The first name whose
 * words the device's name contains counts. */
static const struct {
    const char *name;
    double half, tf32, single;
} sold[] = {
    {"H100 PCIe", 756, 378, 51},  {"H100 NVL", 835, 417.5, 60}, {"H100", 989.4, 494.7, 66.9},
    {"H200 NVL", 835, 417.5, 60}, {"H200", 989.4, 494.7, 66.9}, {"GH200", 989.4, 494.7, 66.9},
    {"H20", 148, 74, 44},         {"H800", 989.4, 494.7, 66.9}, {"A100", 312, 156, 19.5},
    {"A800", 312, 156, 19.5},     {"A30", 165, 82, 10.3},       {"L40S", 362, 183, 91.6},
    {"L4", 121, 60, 30.3},        {"A10", 125, 62.5, 31.2},     {"L40", 181, 90.5, 90.5},
    {"GB200", 2250, 1125, 75},    {"B200", 2250, 1125, 75},
};

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

    for (size_t i = 0; i < sizeof sold / sizeof sold[0]; i++)
        if (has_words(name, sold[i].name))
            return 1e12 * (half ? sold[i].half : tf32 ? sold[i].tf32 : sold[i].single);
    return multiprocessors * clock_hz * per_cycle(capability, half || tf32, half);
}

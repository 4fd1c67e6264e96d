/* on_cudasim: the kernel tests on the CUDA plug-in's sources and an emulated device. */
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "tests/cudasim/cudasim.h"
#include "tests/unit/kernels/harness.h"

const struct setting settings[] = {
    {.order = 0},
    {.order = 1},
    {.order = 2, .is_narrow = true},
    {.order = 3, .force_plain = true},
    {.order = 0, .gemm_by = HD_GEMM_BY_OWN},
    {.order = 4, .gemm_by = HD_GEMM_BY_OWN, .deterministic = true},
};
const int setting_count = 4, gemm_setting_count = sizeof settings / sizeof settings[0];
const int attention_setting_count = 4;
const enum hd_dtype float_types[] = {HD_F32, HD_BF16, HD_F16};
const int float_type_count = 3;

const struct hd_backend_table *on_backend(void)
{
    return hd_backend_cuda();
}

bool on_takes(int s, int64_t number, int64_t of)
{
    return number % of == s % of;
}

void on_device(const struct setting *setting)
{
    hd_cudasim_shared_bytes(setting->is_narrow ? 99 * 1024 : 0);
}

void on_open(struct hd_backend *backend, const struct setting *setting)
{
    hd_cudasim_order(setting->order == 0   ? HD_CUDASIM_FORWARD
                     : setting->order == 1 ? HD_CUDASIM_REVERSE
                                           : HD_CUDASIM_RANDOM,
                     setting->order);
}

/* From the host's heap, one piece per tensor, so that AddressSanitizer sees every bound. */
void *on_memory(size_t size_bytes)
{
    return aligned_alloc(64, size_bytes);
}

void on_memory_free(void *memory)
{
    free(memory);
}

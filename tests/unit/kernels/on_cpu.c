/* on_cpu: the kernel tests on the embedded backend. */
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "tests/sanitized.h"
#include "tests/unit/kernels/harness.h"

const struct setting settings[] = {
    {.threads = 1},
    {.threads = 2},
    {.threads = 3},
    {.threads = 1, .force_plain = true},
    {.threads = 3, .force_plain = true},
    {.threads = 2, .gemm_by = HD_GEMM_BY_OWN},
    {.threads = 2, .gemm_by = HD_GEMM_BY_WIDENED, .isa = ISA_AVX2},
    {.threads = 2, .gemm_by = HD_GEMM_BY_OWN, .isa = ISA_AVX512},
    {.threads = 2, .gemm_by = HD_GEMM_BY_WIDENED},
    {.threads = 2, .gemm_by = HD_GEMM_BY_TILE_MODEL},
    {.threads = 2, .gemm_by = HD_GEMM_BY_LIBRARY},
};
const int setting_count = 8, gemm_setting_count = sizeof settings / sizeof settings[0];
const int attention_setting_count = sizeof settings / sizeof settings[0];
const enum hd_dtype float_types[] = {HD_F32, HD_BF16, HD_F16};
const int float_type_count = 3;

const struct hd_backend_table *on_backend(void)
{
    return hd_backend_cpu();
}

bool on_takes(int s, int64_t number, int64_t of)
{
    return !HD_TEST_SANITIZED || number % 3 == s % of % 3; /* a third: slow there */
}

void on_device(const struct setting *setting)
{
}

void on_open(struct hd_backend *backend, const struct setting *setting)
{
#ifdef HEDDLE_CPU_X86
    if (setting->isa == ISA_AVX2 && backend->traits.vector_bytes >= 32 &&
        hd_cpu_kernels_avx2.fma_rate) /* built, too */
        backend->kernels = &hd_cpu_kernels_avx2;
    if (setting->isa == ISA_AVX512 && backend->traits.vector_bytes >= 64 &&
        hd_cpu_kernels_avx512.fma_rate)
        backend->kernels = &hd_cpu_kernels_avx512;
#endif
}

void *on_memory(size_t size_bytes)
{
    return aligned_alloc(64, size_bytes);
}

void on_memory_free(void *memory)
{
    free(memory);
}

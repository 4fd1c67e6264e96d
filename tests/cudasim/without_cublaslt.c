/* without_cublaslt: matrix products by own kernels alone, while the emulator has no cuBLASLt. */
#include <stdio.h>

#include "kernels/cuda/cuda.h"

extern __typeof__(hd_cuda_gemm_own) hd_cuda_gemm_own __attribute__((weak));

void hd_cuda_gemm_library_name(char *ret_name, size_t size_bytes)
{
    (void)snprintf(ret_name, size_bytes, "own");
}

enum hd_status hd_cuda_gemm_open(const struct hd_backend *cuda, struct hd_cuda_gemm **ret_gemm)
{
    (void)cuda;
    *ret_gemm = NULL;
    return HD_OK;
}

void hd_cuda_gemm_close(struct hd_cuda_gemm *gemm)
{
    (void)gemm;
}

enum hd_status hd_cuda_gemm_prepare(struct hd_backend *cuda, const struct hd_gemm_args *args)
{
    (void)cuda;
    (void)args;
    return HD_OK;
}

enum hd_status hd_cuda_gemm(struct hd_cuda_stream *stream, const struct hd_gemm_args *args)
{
    return hd_cuda_gemm_own ? hd_cuda_gemm_own(stream, args)
                            : hd_err(HD_UNSUPPORTED, "the cuda backend has no gemm");
}

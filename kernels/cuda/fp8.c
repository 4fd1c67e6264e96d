/* fp8: not on a GPU yet. */
#include "kernels/cuda/cuda.h"

static enum hd_status refuse(void)
{
    return hd_err(HD_UNSUPPORTED, "the cuda backend does not multiply fp8 yet; use bf16");
}

enum hd_status hd_cuda_fp8_amax(struct hd_cuda_stream *s, const struct hd_fp8_amax_args *a)
{
    (void)s, (void)a;
    return refuse();
}

enum hd_status hd_cuda_fp8_encode(struct hd_cuda_stream *s, const struct hd_fp8_encode_args *a)
{
    (void)s, (void)a;
    return refuse();
}

enum hd_status hd_cuda_fp8_gemm(struct hd_cuda_stream *s, const struct hd_fp8_gemm_args *a)
{
    (void)s, (void)a;
    return refuse();
}

enum hd_status hd_cuda_fp8_history(struct hd_cuda_stream *s, const struct hd_fp8_history_args *a)
{
    (void)s, (void)a;
    return refuse();
}

/* attention backward on tensor cores, bf16. */
#include "kernels/cuda/attention_backward_tiled.cuh"

enum hd_status attention_backward_tiled_bf16(struct hd_cuda_stream *stream,
                                             const struct attention_backward *f)
{
    return attention_backward_launch<bf16>(stream, f);
}

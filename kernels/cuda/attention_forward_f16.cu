/* attention forward on tensor cores, f16. */
#include "kernels/cuda/attention_forward_tiled.cuh"

enum hd_status attention_forward_tiled_f16(struct hd_cuda_stream *stream,
                                           const struct attention_forward *f)
{
    return attention_forward_launch<f16>(stream, f);
}

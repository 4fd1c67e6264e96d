/* attention backward on tensor cores, f16. */
#include "kernels/cuda/attention_backward_tiled.cuh"

enum hd_status attention_backward_tiled_f16(struct hd_cuda_stream *stream,
                                            const struct attention_backward *f)
{
    return attention_backward_launch<f16>(stream, f);
}

/* cudnn: causal attention by NVIDIA's cuDNN, which HEDDLE_CUDA_ATTENTION=cudnn asks for.
 *
 *   cudnn.c            loads the library; plans of the shapes seen so far; which launches it takes
 *   cudnn_graph.c      attention as a graph of cuDNN's operations; the plan that the library makes of it
 *
 * Used by: attention.cu, attention_backward.cu, backend.c, plugin.c.   Uses: costs (the bound on scratch).
 * Threads: as of the backend; the library is loaded once, by any thread.
 */
#ifndef HD_CUDA_CUDNN_H
#define HD_CUDA_CUDNN_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hd_cuda_cudnn; /* a handle of the library, and the plans of a backend */

/* Loads the library. Sets *ret_version to major * 10000 + minor * 100 + patch. HD_UNSUPPORTED: it is
 * missing, or too old; the message says what to do. */
enum hd_status hd_cuda_cudnn_load(int *ret_version);
enum hd_status hd_cuda_cudnn_open(struct hd_cuda_cudnn **ret_cudnn);
void hd_cuda_cudnn_close(struct hd_cuda_cudnn *cudnn);

/* Returns whether the library computes this launch. Its plan is made at the first question; if the library
 * refuses the shape, the reason is logged then. */
bool hd_cuda_cudnn_computes(struct hd_backend *cuda, enum hd_kernel kernel, const void *args);

/* Launch it if the library computes it, which *ret_done says. */
enum hd_status hd_cuda_cudnn_forward(struct hd_cuda_stream *stream,
                                     const struct hd_attention_forward_args *args, bool *ret_done);
enum hd_status hd_cuda_cudnn_backward(struct hd_cuda_stream *stream,
                                      const struct hd_attention_backward_args *args,
                                      bool *ret_done);

#ifdef __cplusplus
}
#endif

#endif

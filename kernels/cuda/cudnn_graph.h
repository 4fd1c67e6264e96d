/* cudnn_graph: causal attention as a graph of cuDNN's operations, and the plan that the library makes of it.
 *
 * Used by: cudnn*.c.   Uses: cudnn_api.h.   Threads: as of the handle.
 */
#ifndef HD_CUDA_CUDNN_GRAPH_H
#define HD_CUDA_CUDNN_GRAPH_H

#include <stdbool.h>

#include "base/dtype.h"
#include "kernels/cuda/cudnn_api.h"
#include "kernels/kernels.h"

/* The functions of the library, in a table that cudnn.c fills. */
#define HD_CUDNN_CALL_LIST(X)        \
    X(cudnnGetVersion)               \
    X(cudnnGetCudartVersion)         \
    X(cudnnGetErrorString)           \
    X(cudnnGetLastErrorString)       \
    X(cudnnCreate)                   \
    X(cudnnDestroy)                  \
    X(cudnnSetStream)                \
    X(cudnnBackendCreateDescriptor)  \
    X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendFinalize)          \
    X(cudnnBackendSetAttribute)      \
    X(cudnnBackendGetAttribute)      \
    X(cudnnBackendExecute)
struct hd_cudnn_calls {
#define X(name) __typeof__(&name) name;
    HD_CUDNN_CALL_LIST(X)
#undef X
};

/* A shape of attention. Compared by memcmp: it has no padding. */
struct hd_cudnn_shape {
    int64_t B, S, H, G, D; /* as in ops_attention.h; S: queries, and keys */
    int64_t ldq, ldk, ldv, ldo, lddo, lddq, lddk, lddv; /* of forward only the first four */
    int64_t dtype, backward, deterministic;
};

/* Tensors of the graph that have memory, by the number that is their id. */
#define HD_CUDNN_MEMORY_LIST(X) \
    X(Q)                        \
    X(K)                        \
    X(V) X(OUT) X(LSE) X(SCALE) X(MASKED_OUT) X(DOUT) X(DQ) X(DK) X(DV) X(ONE) X(DELTA) X(DQ_SUM)
enum hd_cudnn_memory {
#define X(name) HD_CUDNN_##name,
    HD_CUDNN_MEMORY_LIST(X)
#undef X
        HD_CUDNN_MEMORY_COUNT
};

/* Makes the best plan of the library that needs at most budget_bytes of workspace; destroy it as a
 * descriptor. HD_UNSUPPORTED: there is none, none that is deterministic, or none with so little. */
enum hd_status hd_cudnn_plan_make(const struct hd_cudnn_calls *calls, cudnnHandle_t handle,
                                  const struct hd_cudnn_shape *shape, int64_t budget_bytes,
                                  cudnnBackendDescriptor_t *ret_plan);

/* Launches a plan on the handle's stream. memory: addresses by number; NULL: not in the graph. Those of the
 * values SCALE, MASKED_OUT and ONE are on the host. */
enum hd_status hd_cudnn_plan_run(const struct hd_cudnn_calls *calls, cudnnHandle_t handle,
                                 cudnnBackendDescriptor_t plan,
                                 void *const memory[HD_CUDNN_MEMORY_COUNT], void *workspace);

#endif

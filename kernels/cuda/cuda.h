/* cuda: what the files of the CUDA plug-in share.
 *
 * Kernels and the functions that launch them are C++ (*.cu, one stem per op as in kernels/cpu and
 * kernels/dry); everything else is C. A launching function enqueues on its stream and returns; it
 * allocates nothing, waits for nothing and reads no device memory. The same sources are compiled
 * for the host against an emulator of the device (tests/cudasim).
 *
 * Used by: kernels/cuda only.   Uses: base, kernels.h, dry (scratch layouts), the CUDA runtime.
 * Threads: a backend and its streams belong to one thread; several backends may share a device.
 */
#ifndef HD_KERNELS_CUDA_CUDA_H
#define HD_KERNELS_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"
#include "kernels/stream.h"

struct hd_cuda_gemm; /* cuda/gemm.c */

struct hd_backend {
    struct hd_backend_options options;
    struct hd_traits traits;
    int device;
    struct hd_cuda_gemm *gemm;       /* cuBLASLt: handle, descriptors and choices by shape */
    struct hd_cuda_staging *staging; /* pinned memory that write and read go through */
};

struct hd_cuda_stream {
    struct hd_stream stream;
    struct hd_backend *cuda;
    cudaStream_t handle;
};

/* HD_OK, or the runtime's error as a status, its story `what`: ... */
enum hd_status hd_cuda_check(cudaError_t error, const char *what);

/* One launching function per kernel. */
#define K(name, operands) \
    enum hd_status hd_cuda_##name(struct hd_cuda_stream *cuda, const struct hd_##name##_args *args);
HD_KERNEL_LIST(K)
#undef K

#ifdef __cplusplus
}
#endif

#endif

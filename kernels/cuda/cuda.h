/* cuda: what the files of the CUDA plug-in share.
 *
 * Kernels and the functions that launch them are C++ (*.cu, one stem per op as in kernels/cpu and
 * kernels/costs); everything else is C. A launching function enqueues on its stream and returns; it
 * allocates nothing, waits for nothing and reads no device memory. The same sources are compiled
 * for the host against an emulator of the device (tests/cudasim).
 *
 * Used by: kernels/cuda only.   Uses: base, kernels.h, costs (scratch layouts), the CUDA runtime.
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

struct hd_cuda_gemm;    /* cuda/gemm.c */
struct hd_cuda_staging; /* cuda/memory.c */
struct hd_cuda_reservation;

enum {
    HD_CUDA_SHARED_ANYWAY = 16 * 1024, /* dynamic shared memory that every kernel may have, beside
                                          its static arrays: the default is 48 KB for both */
    HD_CUDA_WIDE_MAX = 256             /* kernels of one backend that want more */
};

struct hd_backend {
    struct hd_backend_options options;
    struct hd_traits traits;
    int device;
    int l2_bytes;                    /* of the second-level cache, which all blocks share */
    int shared_bytes;                /* that a block may have, static arrays included, */
    int shared_bytes_all;            /* and all blocks of a multiprocessor, 1 KB each lost */
    struct hd_cuda_gemm *gemm;       /* cuBLASLt: handle and choices by shape; NULL: own code */
    struct hd_cuda_staging *staging; /* pinned memory that write and read go through */
    struct hd_cuda_reservation *reservations;
    const void *wide[HD_CUDA_WIDE_MAX]; /* kernels that hd_cuda_widen has seen */
    int wide_count;
};

struct hd_cuda_stream {
    struct hd_stream stream;
    struct hd_backend *cuda;
    cudaStream_t handle;
};

/* The plug-in's table. */
const struct hd_backend_table *hd_backend_cuda(void);

/* HD_OK, or the runtime's error as a status, its story `what`: ... */
enum hd_status hd_cuda_check(cudaError_t error, const char *what);

/* Makes `device` the calling thread's, where launches, new events and memory go. Like any call of
 * the runtime, it may be the first to report what a launch did: hd_cuda_turn is for those who wait
 * for launches, and whose story is then HD_CUDA_LAUNCHED_FAILED. */
enum hd_status hd_cuda_use(int device);
cudaError_t hd_cuda_turn(int device);
#define HD_CUDA_LAUNCHED_FAILED "what was launched on the device failed"

/* From now on `kernel` may have all the dynamic shared memory that a block can have. Asked once per
 * backend and kernel; every backend asks for the same, so that none takes from another on the same
 * device what it was given. cuda: NULL is fine (tests), nothing is remembered then. */
cudaError_t hd_cuda_widen(struct hd_backend *cuda, const void *kernel);

/* cuda/memory.c: memory, bytes in and out, events. */
extern const struct hd_device_table hd_cuda_device_table;
enum hd_status hd_cuda_staging_new(struct hd_cuda_staging **ret_staging);
void hd_cuda_staging_free(struct hd_cuda_staging *staging);

/* cuda/comm.cu: slots of the table above. */
enum hd_status hd_cuda_comm_combine(struct hd_stream *stream, const struct hd_combine_args *args);
enum hd_status hd_cuda_comm_exchange_rows(struct hd_stream *stream,
                                          const struct hd_exchange_rows_args *args);
/* cuda/nccl.c */
enum hd_status hd_cuda_nccl(const struct hd_nccl_table **ret_table);

/* cuda/gemm.c: the one owner of cublasLt.h. */
void hd_cuda_gemm_library_name(char *ret_name, size_t size_bytes); /* with its version */
enum hd_status hd_cuda_gemm_open(const struct hd_backend *cuda, struct hd_cuda_gemm **ret_gemm);
void hd_cuda_gemm_close(struct hd_cuda_gemm *gemm);
enum hd_status hd_cuda_gemm_prepare(struct hd_backend *cuda, const struct hd_gemm_args *args);
/* Whether the library computes such a product, with all that stands behind it. */
enum hd_status hd_cuda_gemm_taken(const struct hd_backend *cuda, const struct hd_gemm_args *args,
                                  bool *ret_taken);
/* cuda/gemm_own.cu: every product, without a library. */
enum hd_status hd_cuda_gemm_own(struct hd_cuda_stream *cuda, const struct hd_gemm_args *args);

/* cuda/peak.c: operations per second that the device is sold with; `name` as the runtime has it. */
double hd_cuda_peak(const char *name, int capability, int multiprocessors, double clock_hz,
                    enum hd_dtype dtype, bool tf32);

/* One launching function per kernel. */
#define K(name, operands) \
    enum hd_status hd_cuda_##name(struct hd_cuda_stream *cuda, const struct hd_##name##_args *args);
HD_KERNEL_LIST(K)
#undef K

#ifdef __cplusplus
}
#endif

#endif

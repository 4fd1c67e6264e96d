/* cuda: declarations that the files of the CUDA plug-in share.
 *
 * Kernels and the functions that launch them are C++ (*.cu, with the same file names as in
 * kernels/cpu and kernels/costs); everything else is C. A launching function enqueues on its stream
 * and returns; it does not allocate, wait or read device memory. The same sources are also compiled
 * for the host, against an emulator of the device (tests/cudasim).
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

struct hd_cuda_gemm_state; /* defined in cuda/gemm_library.h */
struct hd_cuda_cudnn;      /* defined in cuda/cudnn.c */
struct hd_cuda_staging;    /* defined in cuda/memory.c */
struct hd_cuda_reservation;

enum {
    /* bytes of dynamic shared memory that any kernel may use without hd_cuda_widen; CUDA's default
     * limit, 48 KB, includes static arrays */
    HD_CUDA_SHARED_ANYWAY = 16 * 1024,
    HD_CUDA_WIDE_MAX = 256 /* largest number of kernels per backend that need more than
                              HD_CUDA_SHARED_ANYWAY */
};

struct hd_backend {
    struct hd_backend_options options;
    struct hd_traits traits;
    int device;
    int l2_bytes;         /* bytes: size of the L2 cache */
    int shared_bytes;     /* bytes: largest shared memory of a thread block, with static arrays */
    int shared_bytes_all; /* bytes: shared memory of a multiprocessor; each thread block takes 1 KB
                             of it besides its own */
    /* cuBLASLt handle and cache of products; NULL: own code only */
    struct hd_cuda_gemm_state *gemm;
    struct hd_cuda_cudnn *cudnn;     /* NULL: attention is by own kernels */
    struct hd_cuda_staging *staging; /* pinned host memory through which write and read copy */
    struct hd_cuda_reservation *reservations;
    const void *wide[HD_CUDA_WIDE_MAX]; /* kernels that may already use the maximum of shared memory
                                           (hd_cuda_widen) */
    int wide_count;
    bool takes_graphs; /* by the setting HD_GRAPHS_ENV */
};

struct hd_cuda_stream {
    struct hd_stream stream;
    struct hd_backend *cuda;
    cudaStream_t handle;
    struct hd_graph *graphs; /* captured on this stream, newest first */
};

/* Returns the plug-in's function table. */
const struct hd_backend_table *hd_backend_cuda(void);

/* Returns HD_OK, or the CUDA error as a status with the message "WHAT: error name: error text;
 * hint". */
enum hd_status hd_cuda_check(cudaError_t error, const char *what);

/* Make `device` the calling thread's current device. Like every CUDA call they may report the error
 * of an earlier launch. hd_cuda_use converts an error to a status. hd_cuda_turn returns it:
 * functions that wait for launches report it with HD_CUDA_LAUNCHED_FAILED. */
enum hd_status hd_cuda_use(int device);
cudaError_t hd_cuda_turn(int device);
#define HD_CUDA_LAUNCHED_FAILED "a kernel or copy on the device failed"

/* Allows `kernel` the maximum of dynamic shared memory of a block. Called before each launch that
 * needs it; done once per backend and kernel. All backends set the same maximum, so backends on the
 * same device do not disturb each other. cuda NULL (tests): done at each call. */
cudaError_t hd_cuda_widen(struct hd_backend *cuda, const void *kernel);

/* Table of the device functions of the backend (hd_backend_table.device): memory, copies, events;
 * most are in cuda/memory.c. */
extern const struct hd_device_table hd_cuda_device_table;
enum hd_status hd_cuda_staging_new(struct hd_cuda_staging **ret_staging);
void hd_cuda_staging_free(struct hd_cuda_staging *staging);

/* Reserves memory as slot `reserve` of hd_cuda_device_table does, with other functions to allocate
 * and free. */
enum hd_status hd_cuda_reserve_by(struct hd_backend *cuda, int64_t size_bytes,
                                  cudaError_t (*take)(void **ret_memory, size_t bytes),
                                  void (*give_back)(void *memory), void **ret_base);

/* Graphs (cuda/graph.c): slots of hd_cuda_device_table. hd_cuda_read_graphs reads the setting;
 * hd_cuda_graphs_free frees those of a stream, whose launches have ended or will not begin. */
#define HD_GRAPHS_ENV "HEDDLE_CUDA_GRAPHS"
enum hd_status hd_cuda_read_graphs(bool *ret_takes_graphs);
bool hd_cuda_takes_graphs(const struct hd_backend *cuda);
enum hd_status hd_cuda_capture_begin(struct hd_stream *stream);
enum hd_status hd_cuda_capture_end(struct hd_stream *stream, struct hd_graph **ret_graph);
enum hd_status hd_cuda_graph_launch(struct hd_stream *stream, struct hd_graph *graph);
void hd_cuda_graphs_free(struct hd_cuda_stream *stream);

/* Combine and exchange buffers (cuda/comm.cu); slots of hd_cuda_device_table. */
enum hd_status hd_cuda_comm_combine(struct hd_stream *stream, const struct hd_combine_args *args);
enum hd_status hd_cuda_comm_exchange_rows(struct hd_stream *stream,
                                          const struct hd_exchange_rows_args *args);
/* Returns the table of NCCL functions (cuda/nccl.c); loads the library at first use. */
enum hd_status hd_cuda_nccl(const struct hd_nccl_table **ret_table);

/* Functions of cuda/gemm*.c, the only files that include cublasLt.h. */
/* Writes name and version of the GEMM library to ret_name. */
void hd_cuda_gemm_library_name(char *ret_name, size_t size_bytes);
enum hd_status hd_cuda_gemm_open(const struct hd_backend *cuda,
                                 struct hd_cuda_gemm_state **ret_gemm);
void hd_cuda_gemm_close(struct hd_cuda_gemm_state *gemm);
enum hd_status hd_cuda_gemm_prepare(struct hd_backend *cuda, const struct hd_gemm_args *args);
/* Sets *ret_supported to true if the library computes this GEMM including its bias and epilogue. */
enum hd_status hd_cuda_gemm_supported(const struct hd_backend *cuda,
                                      const struct hd_gemm_args *args, bool *ret_supported);
enum hd_status hd_cuda_fp8_gemm_prepare(struct hd_backend *cuda,
                                        const struct hd_fp8_gemm_args *args);
/* Returns HD_UNSUPPORTED if the library does not compute this fp8 product. */
enum hd_status hd_cuda_fp8_gemm_supported(const struct hd_backend *cuda,
                                          const struct hd_fp8_gemm_args *args);
/* Slots of the backend's table for choices of algorithms (cuda/gemm_time.c). */
const struct hd_choice *hd_cuda_gemm_choices(struct hd_backend *cuda, int *ret_count);
void hd_cuda_gemm_choose(struct hd_backend *cuda, const struct hd_choice *choices, int count);
void hd_cuda_gemm_keep_choices(struct hd_backend *cuda);

/* Reads the release of the driver, "580.65.06"; "" if the kernel module does not report it. */
enum { HD_CUDA_RELEASE_MAX = 32 };
void hd_cuda_read_release(char ret_text[HD_CUDA_RELEASE_MAX]);

/* Returns true if a device of this name is a slice of a GPU ("NVIDIA A100-SXM4-40GB MIG 1g.5gb"). */
bool hd_cuda_is_slice(const char *name);
/* Length of a GPU's UUID as text with NUL: "GPU-", of a slice "MIG-", and the 16 bytes in groups of
 * 4, 2, 2, 2 and 6, as NVML spells them (cuda/plugin.c). */
enum { HD_CUDA_UUID_MAX = 48 };
void hd_cuda_spell_uuid(const unsigned char bytes[16], bool is_slice,
                        char ret_text[HD_CUDA_UUID_MAX]);
/* Decodes a box of an encoded factor to `to`, [rows, columns] without gaps (cuda/decode.cu). */
enum hd_status hd_cuda_decode(struct hd_cuda_stream *stream, const struct hd_quant_factor *factor,
                              const void *memory, int64_t row, int64_t rows, int64_t column,
                              int64_t columns, void *to, enum hd_dtype dtype);
/* Launches Heddle's own kernel for a GEMM of any shape, without the GEMM library
 * (cuda/gemm_own.cu). */
enum hd_status hd_cuda_gemm_own(struct hd_cuda_stream *cuda, const struct hd_gemm_args *args);
/* Launches a product with a gated epilogue that hd_gemm_takes_epilogue takes, on a GPU for which
 * options and traits say HD_BY_GLU (cuda/gemm_glu_hopper.cu). */
enum hd_status hd_cuda_gemm_glu(struct hd_cuda_stream *stream, const struct hd_gemm_args *args);
/* Fills a factor [R, N] of a product, with rows `ld` apart, with random numbers between -1 and 1; u8:
 * with finite codes of fp8. Equal keys give equal numbers (cuda/gemm_random.cu). */
enum hd_status hd_cuda_gemm_random(struct hd_cuda_stream *stream, void *factor, enum hd_dtype dtype,
                                   int64_t R, int64_t N, int64_t ld, uint64_t key);

/* Returns the peak operations per second (cuda/peak.c); `name` is the device name of the CUDA
 * runtime. */
double hd_cuda_peak(const char *name, int capability, int multiprocessors, double clock_hz,
                    enum hd_dtype dtype, bool tf32);

/* Declares one launching function per kernel. */
#define K(name, ...) \
    enum hd_status hd_cuda_##name(struct hd_cuda_stream *cuda, const struct hd_##name##_args *args);
#include "kernels/kernels.def"

#ifdef __cplusplus
}
#endif

#endif

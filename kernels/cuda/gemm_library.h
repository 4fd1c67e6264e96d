/* gemm_library: a product (GEMM) as cuBLASLt knows it. The only header that includes cublasLt.h.
 *
 *   gemm.c         which part of a GEMM the library computes, and what computes the rest; fp8
 *   gemm_choose.c  describes a product to the library; the algorithms that it offers; a launch
 *   gemm_time.c    chooses among the offers by time, and keeps the choices
 *
 * Used by: gemm*.c.   Threads: as of the backend.
 */
#ifndef HD_KERNELS_CUDA_GEMM_LIBRARY_H
#define HD_KERNELS_CUDA_GEMM_LIBRARY_H

#include <cublasLt.h>

#include "kernels/cuda/choices.h"
#include "kernels/cuda/cuda.h"

enum { HD_CUDA_GEMM_BUCKETS = 64, HD_CUDA_CANDIDATES_MAX = 8, HD_CUDA_GEMM_ALIGN_MAX = 16 };

/* The key of the cache of products. Compared by memcmp, so it is zeroed before it is filled. */
struct cuda_shape {
    int64_t M, N, K, lda, ldb, ldc;
    int32_t trans_a, trans_b, accumulate, epilogue, dbias, ab_dtype, c_dtype;
    int32_t align_a, align_b, align_c; /* alignment in bytes, 16 at most */
    int32_t align_bias, align_aux;     /* of bias or dbias, of pre or gelu_inp; 0: none */
    int32_t align_add;                 /* of the residual; 0: none */
    int32_t fp8_a, fp8_b;              /* the library's types of a and b in fp8; 0: ab_dtype */
};

/* The addresses that are part of the description, not of the call; NULL: none. */
struct cuda_addresses {
    const void *bias, *aux; /* bias: or dbias */
    const float *a_factor, *b_factor;
};

struct cuda_product {
    struct cuda_product *next;
    struct cuda_shape shape;
    bool taken;   /* the library computes this shape; false: it refused */
    bool settled; /* its algorithm was chosen by time, here or earlier: listed in `choices` */
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, c;
    struct cuda_algorithm {
        cublasLtMatmulAlgo_t algo;
        size_t workspace_bytes;
        bool refused; /* at a launch, although it was offered */
        bool apart;   /* none of the library's: the product without dbias, and a launch for that */
    } candidates[HD_CUDA_CANDIDATES_MAX +
                 1];             /* the heuristic's list, best first; then `apart`, for dbias
                                         where choices are timed */
    int candidate_count, choice; /* choice: the one in use */
};

struct hd_cuda_gemm_state {
    cublasLtHandle_t handle;
    struct cuda_product *products[HD_CUDA_GEMM_BUCKETS];
    /* gemm_time.c */
    char *path;                              /* of the file; NULL: nothing is timed */
    char device[HD_CUDA_CHOICES_DEVICE_MAX]; /* what the choices are valid for */
    struct hd_choice *kept;                  /* of the file; [kept_count] */
    struct hd_choice *choices;               /* of the settled products; [choice_count] */
    int kept_count, choice_count, choice_capacity;
};

static inline bool hd_cuda_product_is_apart(const struct cuda_product *p)
{
    return p->taken && p->candidates[p->choice].apart;
}

/* ---- gemm.c ---- */

/* Launches the product without dbias, and the bias gradient behind it. */
enum hd_status hd_cuda_gemm_apart(const struct hd_backend *cuda, const struct hd_gemm_args *args,
                                  cudaStream_t stream);

/* ---- gemm_choose.c ---- */

/* The product of this shape: the known one, or a new one with what the library offers for it. */
enum hd_status hd_cuda_product_find(const struct hd_backend *cuda, const struct cuda_shape *shape,
                                    const struct cuda_addresses *at,
                                    struct cuda_product **ret_product);

/* Sets the addresses of bias, auxiliary matrix and factors for the next launches. */
cublasStatus_t hd_cuda_product_place(const struct cuda_product *p, const struct cuda_addresses *at);

/* Launches the product by one of its offers. */
cublasStatus_t hd_cuda_product_launch(const struct hd_backend *cuda, const struct cuda_product *p,
                                      int candidate, const struct hd_gemm_args *args,
                                      cudaStream_t stream);

/* True for statuses that blame the algorithm or the operation, not the device: nothing was
 * launched. */
bool hd_cuda_product_is_refused(cublasStatus_t status);

/* The library refused this offer when it was launched: the first that it has not refused is used
 * from now on, and a line of the log says so. p->taken becomes false after the last one. */
void hd_cuda_product_refuse(const struct hd_backend *cuda, struct cuda_product *p, int candidate,
                            const struct hd_gemm_args *args, cublasStatus_t refusal);

/* ---- gemm_time.c ---- */

/* With options.choices_dir, unless the backend is deterministic: reads the file of choices. A file
 * that cannot be used is told in the log and ignored. */
enum hd_status hd_cuda_choices_open(const struct hd_backend *cuda, struct hd_cuda_gemm_state *gemm);
void hd_cuda_choices_close(struct hd_cuda_gemm_state *gemm);

/* Chooses the algorithm of a product that the library computes: as the file says, else by time. A
 * product is settled once. All addresses must be valid; outputs and scratch become garbage. */
enum hd_status hd_cuda_product_settle(const struct hd_backend *cuda, struct cuda_product *p,
                                      const struct hd_gemm_args *args,
                                      const struct cuda_addresses *at);

#endif

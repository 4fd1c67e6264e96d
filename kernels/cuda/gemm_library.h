/* gemm_library: products (GEMMs) in the form of cuBLASLt. The only header that includes cublasLt.h.
 *
 *   gemm.c         splits a GEMM into the library's part and the rest; fp8
 *   gemm_choose.c  describes a product to the library; the algorithms that it offers; a launch
 *   gemm_time.c    chooses among the offers by time, and stores the choices
 *
 * Used by: gemm*.c.   Threads: as of the backend.
 */
#ifndef HD_KERNELS_CUDA_GEMM_LIBRARY_H
#define HD_KERNELS_CUDA_GEMM_LIBRARY_H

#include <cublasLt.h>

#include "kernels/cuda/choices.h"
#include "kernels/cuda/cuda.h"

enum { HD_CUDA_GEMM_BUCKETS = 64, HD_CUDA_CANDIDATES_MAX = 32, HD_CUDA_GEMM_ALIGN_MAX = 16 };

/* Key of the cache of products. Compared by memcmp, so zero it before filling it. */
struct cuda_shape {
    int64_t M, N, K, lda, ldb, ldc;
    int32_t trans_a, trans_b, accumulate, epilogue, ab_dtype, c_dtype;
    int32_t align_a, align_b, align_c; /* alignments in bytes of a, b and c, 16 at most */
    /* alignments in bytes of bias, and of pre or gelu_inp; 0: the GEMM has no such operand */
    int32_t align_bias, align_aux;
    int32_t align_add;    /* alignment in bytes of the residual `add`; 0: none */
    int32_t fp8_a, fp8_b; /* cuBLASLt's types of a and b in fp8; 0: a and b have type ab_dtype */
};

/* Addresses that cuBLASLt takes in the description of a product, not as arguments of the call;
 * NULL: none. */
struct cuda_addresses {
    const void *bias, *aux; /* addresses of bias, and of pre or gelu_inp */
    const float *a_factor, *b_factor;
};

struct cuda_product {
    struct cuda_product *next;
    struct cuda_shape shape;
    bool supported; /* true: the library computes this shape; false: it refused the shape */
    bool tuned; /* true: the algorithm was chosen by measured time, in this process or an earlier
                     one, and is in hd_cuda_gemm_state.choices */
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, c;
    struct cuda_algorithm {
        cublasLtMatmulAlgo_t algo;
        size_t workspace_bytes;
        bool refused; /* true: the library refused this algorithm at a launch, although it had
                         offered it */
    } candidates[HD_CUDA_CANDIDATES_MAX]; /* the heuristic's list, best first */
    int candidate_count, choice;          /* number of candidates; index of the candidate in use */
};

struct hd_cuda_gemm_state {
    cublasLtHandle_t handle;
    struct cuda_product *products[HD_CUDA_GEMM_BUCKETS];
    /* members that only gemm_time.c uses */
    char *path; /* path of the file with the choices of algorithms; NULL: algorithms are not
                   timed */
    /* description of GPU, driver and library for which the choices are valid */
    char device[HD_CUDA_CHOICES_DEVICE_MAX];
    struct hd_choice *kept;    /* choices read from the file; [kept_count] */
    struct hd_choice *choices; /* choices of the tuned products; [choice_count] */
    int kept_count, choice_count, choice_capacity;
};

/* ---- gemm_choose.c ---- */

/* Sets *ret_product to the cached product of this shape, which is created with the algorithms that
 * the library offers if it is not cached yet. */
enum hd_status hd_cuda_product_find(const struct hd_backend *cuda, const struct cuda_shape *shape,
                                    const struct cuda_addresses *at,
                                    struct cuda_product **ret_product);

/* Sets the addresses of bias, auxiliary matrix and scale factors in the product's description, for
 * its next launches. */
cublasStatus_t hd_cuda_product_place(const struct cuda_product *p, const struct cuda_addresses *at);

/* Launches the product with the algorithm of candidate number `candidate`. */
cublasStatus_t hd_cuda_product_launch(const struct hd_backend *cuda, const struct cuda_product *p,
                                      int candidate, const struct hd_gemm_args *args,
                                      cudaStream_t stream);

/* Returns true for statuses that blame the algorithm or the operation, not the device: nothing was
 * launched. */
bool hd_cuda_product_is_refused(cublasStatus_t status);

/* Handles a candidate that the library refused at a launch: the first one not refused is used from
 * now on, and the refusal is logged. p->supported becomes false when the last candidate is refused. */
void hd_cuda_product_refuse(const struct hd_backend *cuda, struct cuda_product *p, int candidate,
                            const struct hd_gemm_args *args, cublasStatus_t refusal);

/* ---- gemm_time.c ---- */

/* Reads the file of choices, if options.choices_dir is set and the backend is not deterministic. An
 * unusable file is logged and ignored. */
enum hd_status hd_cuda_choices_open(const struct hd_backend *cuda, struct hd_cuda_gemm_state *gemm);
void hd_cuda_choices_close(struct hd_cuda_gemm_state *gemm);

/* Chooses the algorithm of a product that the library computes: from the file, else by time. A
 * product is tuned once. All addresses must be valid; factors, outputs and scratch are overwritten
 * with garbage. */
enum hd_status hd_cuda_product_tune(const struct hd_backend *cuda, struct cuda_product *p,
                                    const struct hd_gemm_args *args,
                                    const struct cuda_addresses *at);

#endif

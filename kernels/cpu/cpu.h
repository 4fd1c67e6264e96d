/* cpu: declarations shared by the files of the CPU backend.
 *
 * The kernels are compiled once per instruction set (HD_CPU_ISA: plain, avx2, avx512, avx512bf16)
 * into one table each; the backend chooses a table when it is opened. A kernel divides its work
 * into pieces depending on shapes only, not on the number of threads, and runs them with
 * hd_cpu_parallel(), so results do not depend on the number of threads.
 *
 * Used by: kernels/cpu only.   Uses: base, kernels.h, costs (scratch layouts).
 * Threads: only one thread at a time calls a backend; a launch runs on the backend's thread
 * pool. */
#ifndef HD_KERNELS_CPU_CPU_H
#define HD_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

struct hd_cpu_gemm_library; /* defined in cpu/gemm_dnnl.c */
struct hd_cpu_panels;       /* defined in cpu/panel.h */
struct hd_cpu_pool;         /* defined in cpu/parallel.c */

/* Table of the kernels compiled for one instruction set: one function per kernel. */
struct hd_cpu_kernels {
#define K(name, ...) \
    enum hd_status (*name)(struct hd_backend * cpu, const struct hd_##name##_args *args);
#include "kernels/kernels.def"
    /* multiplies and adds in registers for about `seconds`; returns the rate in operations per
     * second */
    double (*fma_rate)(double seconds);
};

extern const struct hd_cpu_kernels hd_cpu_kernels_plain;
#ifdef HEDDLE_CPU_X86
extern const struct hd_cpu_kernels hd_cpu_kernels_avx2, hd_cpu_kernels_avx512,
    hd_cpu_kernels_avx512bf16;
#endif

struct hd_backend {
    struct hd_backend_options options;
    struct hd_traits traits;
    const struct hd_cpu_kernels *kernels;
    struct hd_cpu_gemm_library *gemm_library; /* GEMM library (oneDNN); NULL: Heddle's own code
                                                 computes all GEMMs */
    const struct hd_cpu_panels *panels;       /* inner loops of own bf16 GEMMs; NULL: bf16 factors
                                                 are widened to fp32 */
    struct hd_cpu_pool *pool;                 /* pool of worker threads; NULL: kernels run on the
                                                 launching thread only */
    bool library_ran;                         /* true: the GEMM library has computed a GEMM, so
                                                 OpenMP threads exist and kernels run on them
                                                 (parallel.c) */
};

/* Names a function for the instruction set being compiled: KERNEL(add) is hd_cpu_add_avx2. */
#define HD_CPU_PASTE2(name, isa) hd_cpu_##name##_##isa
#define HD_CPU_PASTE(name, isa)  HD_CPU_PASTE2(name, isa)
#define KERNEL(name)             HD_CPU_PASTE(name, HD_CPU_ISA)
#ifdef HD_CPU_ISA
#define K(name, ...) \
    enum hd_status KERNEL(name)(struct hd_backend * cpu, const struct hd_##name##_args *args);
#include "kernels/kernels.def"
double KERNEL(fma_rate)(double seconds);
/* Computes partial sums of R rows of N values (`sums` of bias_backward in ops.h), over pieces of
 * `piece` rows; 0: hd_costs_row_chunks; bias.c. Cannot fail. */
enum hd_status KERNEL(sum_row_chunks)(const struct hd_backend *cpu, float *sums, const void *rows,
                                      int64_t R, int64_t N, int64_t piece, enum hd_dtype dtype);
/* Makes the codes of a kernel's result (HD_FP8_RESULT in ops.h), in passes of their own; fp8.c. */
enum hd_status KERNEL(encode_result)(struct hd_backend *cpu,
                                     const struct hd_fp8_encode_args *encode, const float *history,
                                     int64_t history_len);
#define HD_CPU_ENCODE_RESULT(cpu, args, result, rows, columns, of)                           \
    ((args)->code || (args)->code_t                                                          \
         ? KERNEL(encode_result)(cpu,                                                        \
                                 &(struct hd_fp8_encode_args){.code = (args)->code,          \
                                                              .transposed = (args)->code_t,  \
                                                              .factor = (args)->code_factor, \
                                                              .seen = (args)->seen,          \
                                                              .inp = result,                 \
                                                              .R = rows,                     \
                                                              .C = columns,                  \
                                                              .format = of},                 \
                                 (args)->history, (args)->history_len)                       \
         : HD_OK)
#endif

/* Calls body(args, begin, end, thread) for pieces, each of at most `grain` of the items [0, count),
 * on at most traits.threads threads, and returns when all pieces have run. `thread` is the index of
 * the calling thread, from 0. Any thread may run any piece, so a piece's result must not depend on
 * the thread. */
typedef void hd_cpu_body(const void *args, int64_t begin, int64_t end, int thread);
void hd_cpu_parallel(const struct hd_backend *cpu, int64_t count, int64_t grain, hd_cpu_body *body,
                     const void *args);

/* hd_cpu_pool_new starts threads - 1 worker threads for a backend and sets *ret_pool to them, NULL
 * if threads is 1. hd_cpu_pool_free ends and joins the workers. */
enum hd_status hd_cpu_pool_new(int threads, struct hd_cpu_pool **ret_pool);
void hd_cpu_pool_free(struct hd_cpu_pool *pool);

/* Returns a `grain` for rows of `row_bytes` each: enough rows that a piece is worth waking a
 * thread. */
int64_t hd_cpu_row_grain(int64_t row_bytes);

/* Returns the number of rows in use of a buffer in expert order (ops_moe.h) of `bound` rows: the
 * sum of the experts' counts, at most `bound`; `bound` if counts is NULL. */
int64_t hd_cpu_rows_in_use(const int32_t *counts, int64_t groups, int64_t bound);

/* Returns HD_UNSUPPORTED unless dtype is f32, bf16 or f16, the encodings this backend computes
 * with. */
enum hd_status hd_cpu_check_float(const char *kernel, enum hd_dtype dtype);

/* Functions of cpu/gemm_dnnl.c, the only file that includes dnnl.h. */
void hd_cpu_gemm_library_name(char *ret_name, size_t size_bytes); /* writes the library's name with
                                                                     version to ret_name */
enum hd_status hd_cpu_gemm_library_open(int threads, struct hd_cpu_gemm_library **ret_library);
void hd_cpu_gemm_library_close(struct hd_cpu_gemm_library *library);
/* Creates the library's objects for a GEMM of this shape; HD_OK even if the library refuses the
 * shape. */
enum hd_status hd_cpu_gemm_library_prepare(struct hd_cpu_gemm_library *library,
                                           const struct hd_gemm_args *args, int64_t scratch_bytes);
/* Runs the GEMM by the library. Sets *ret_done to true if the library computed it, to false if it
 * refuses this shape. */
enum hd_status hd_cpu_gemm_library_run(struct hd_cpu_gemm_library *library,
                                       const struct hd_gemm_args *args, int64_t scratch_bytes,
                                       bool *ret_done);

#endif

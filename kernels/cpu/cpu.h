/* cpu: what the files of the CPU backend share.
 *
 * The kernels are compiled once per instruction set (HD_CPU_ISA: plain, avx2, avx512, avx512bf16)
 * into one table each; the backend chooses a table when it is opened. A kernel cuts its work into
 * pieces by the shapes alone, never by the number of threads, and hands them to hd_cpu_parallel().
 *
 * Used by: kernels/cpu only.   Uses: base, kernels.h, costs (scratch layouts).
 * Threads: a backend belongs to one thread at a time; kernels use its threads inside a launch.
 */
#ifndef HD_KERNELS_CPU_CPU_H
#define HD_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

struct hd_cpu_gemm_library; /* cpu/gemm_dnnl.c */
struct hd_cpu_panels;       /* cpu/panel.h */
struct hd_cpu_crew;         /* cpu/parallel.c */

/* One function per kernel, for one instruction set. */
struct hd_cpu_kernels {
#define K(name, operands) \
    enum hd_status (*name)(struct hd_backend * cpu, const struct hd_##name##_args *args);
    HD_KERNEL_LIST(K)
#undef K
    /* Multiplies and adds in registers for about `seconds`; returns operations per second. */
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
    struct hd_cpu_gemm_library *gemm_library; /* NULL: none; own code multiplies */
    const struct hd_cpu_panels *panels;       /* own code's products of bf16; NULL: widened */
    struct hd_cpu_crew *crew;                 /* the other threads; NULL: there are none */
    bool library_ran;                         /* so its threads are about */
};

/* The name of a function of the instruction set being compiled: KERNEL(add) is hd_cpu_add_avx2. */
#define HD_CPU_PASTE2(name, isa) hd_cpu_##name##_##isa
#define HD_CPU_PASTE(name, isa)  HD_CPU_PASTE2(name, isa)
#define KERNEL(name)             HD_CPU_PASTE(name, HD_CPU_ISA)
#ifdef HD_CPU_ISA
#define K(name, operands) \
    enum hd_status KERNEL(name)(struct hd_backend * cpu, const struct hd_##name##_args *args);
HD_KERNEL_LIST(K)
#undef K
double KERNEL(fma_rate)(double seconds);
#endif

/* Calls body(args, begin, end, thread) for pieces of at most `grain` items that cover [0, count),
 * on at most traits.threads threads; `thread` numbers them from 0. Which thread takes which piece
 * is not fixed, so a piece's result may not depend on it. */
typedef void hd_cpu_body(const void *args, int64_t begin, int64_t end, int thread);
void hd_cpu_parallel(const struct hd_backend *cpu, int64_t count, int64_t grain, hd_cpu_body *body,
                     const void *args);

/* The threads of a backend beside the one that launches; *ret_crew is NULL for one thread. */
enum hd_status hd_cpu_crew_new(int threads, struct hd_cpu_crew **ret_crew);
void hd_cpu_crew_free(struct hd_cpu_crew *crew);

/* Rows of `row_bytes` that make a piece worth handing to a thread. */
int64_t hd_cpu_row_grain(int64_t row_bytes);

/* How many of a buffer's `bound` rows stand in its groups; all of them where counts is NULL. */
int64_t hd_cpu_rows_in_use(const int32_t *counts, int64_t groups, int64_t bound);

/* HD_UNSUPPORTED unless dtype is f32 or bf16, the encodings this backend computes with. */
enum hd_status hd_cpu_check_float(const char *kernel, enum hd_dtype dtype);

/* cpu/gemm_dnnl.c: the one owner of dnnl.h. */
void hd_cpu_gemm_library_name(char *ret_name, size_t size_bytes); /* with its version */
enum hd_status hd_cpu_gemm_library_open(int threads, struct hd_cpu_gemm_library **ret_library);
void hd_cpu_gemm_library_close(struct hd_cpu_gemm_library *library);
/* Makes the library's objects for this shape; HD_OK also when it refuses the shape. */
enum hd_status hd_cpu_gemm_library_prepare(struct hd_cpu_gemm_library *library,
                                           const struct hd_gemm_args *args, int64_t scratch_bytes);
/* True when the library did it, false when it refuses this shape. */
enum hd_status hd_cpu_gemm_library_run(struct hd_cpu_gemm_library *library,
                                       const struct hd_gemm_args *args, int64_t scratch_bytes,
                                       bool *ret_done);

#endif

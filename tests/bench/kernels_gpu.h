/* kernels_gpu: the kernels of a device one by one, beside what it can do. */
#ifndef HD_TESTS_BENCH_KERNELS_GPU_H
#define HD_TESTS_BENCH_KERNELS_GPU_H

#include <stdio.h>

#include "kernels/kernels.h"

struct kernels_run {
    const struct hd_backend_table *table; /* of a device */
    const char *only;                     /* kernels whose name begins so; NULL: all */
    enum hd_dtype dtype;                  /* of activations and factors */
    int64_t rows;     /* tokens: 32768, so that no tensor stays in a cache; tests take few */
    int64_t channels; /* 2048 */
    bool apart;       /* GELU as a pass of its own (epilogues_separate) */
    int rounds; /* of each launch, of which the median counts; KERNELS_GPU_ROUNDS_MAX at most */
};
enum { KERNELS_GPU_ROUNDS_MAX = 1000 };

/* `kind`: bytes, gemm or attention; prints a line for each launch. HD_NOT_FOUND: no such kind. */
enum hd_status kernels_gpu(const char *kind, const struct kernels_run *run, FILE *out);

#endif

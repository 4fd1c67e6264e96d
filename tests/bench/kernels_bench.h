/* kernels_bench: what the program's cases and its clock share.
 *
 * Used by: kernels_bench.c, kernels_bench_cases.c.   Uses: kernels.
 */
#ifndef HD_TESTS_BENCH_KERNELS_BENCH_H
#define HD_TESTS_BENCH_KERNELS_BENCH_H

#include <sys/types.h>

#include "kernels/kernels.h"

/* Each kernel runs in these encodings, in this order. */
enum { TYPES = 3 };
_Static_assert((int)HD_F32 == 0 && (int)HD_BF16 == 1 && (int)HD_F16 == 2, "they are the first");

struct bench {
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_traits traits;
    char *pool, *scratch;
    int64_t used_bytes, scratch_bytes;
    double peak[TYPES], bytes_per_s;
    const char *only, *only_dtype;
    bool smoke; /* small sizes, one launch of each: a test of this program */
    struct hd_step_state *block;
    pid_t neighbour; /* 0: none */
    /* sums over the launches of a block, for bench_sum: medians of turns; fastest of ours and of the
     * floor's */
    double ours_ms, floor_ms, best_ms, fastest_ms;
};

/* Fills the arguments of a launch, with tensors from the pool. */
typedef void make_args(struct bench *b, void *args, const int64_t *sizes, enum hd_dtype dtype);

_Noreturn void bench_die(const char *what);
/* Returns a tensor of small random values from the pool, which wraps around: the next launch gets
 * others. */
void *bench_tensor(struct bench *b, int64_t count, enum hd_dtype dtype);
/* Returns a size, in a smoke test a small one. */
int64_t bench_size(const struct bench *b, int64_t size);
/* Times launches whose arguments `make` fills, in turns with their floor; prints both. */
void bench_kernel(struct bench *b, const char *label, enum hd_kernel kernel, make_args *make,
                  const int64_t *sizes, enum hd_dtype dtype, bool computes);

/* Prints the floor's share of the launches since the last call, a block's, and begins again. */
void bench_sum(struct bench *b, const char *block, const char *label, enum hd_dtype dtype);

/* Runs every case. */
void bench_all(struct bench *b);

#endif

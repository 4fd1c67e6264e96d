/* probe: launchers of the kernels in probe.cu, which test the emulator, on device memory. */
#ifndef HD_CUDASIM_PROBE_H
#define HD_CUDASIM_PROBE_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = first + i for all threads of a grid in three dimensions. */
enum hd_status probe_index(struct hd_cuda_stream *s, int *out, int first, const unsigned grid[3],
                           const unsigned block[3]);

/* *out = sum of n floats, n = 2^k <= 256. Without barriers it is wrong in some orders. */
enum hd_status probe_sum(struct hd_cuda_stream *s, float *out, const float *inp, unsigned n,
                         bool barriers);

enum probe_mistake {
    PROBE_BARRIERS_OF_TWO_PLACES,
    PROBE_BARRIER_AND_SHUFFLE,
    PROBE_LANE_NOT_IN_MASK,
    PROBE_LANES_IN_TWO_OPERATIONS,
    PROBE_SHARED_OVERRUN,
    PROBE_DYNAMIC_OVERRUN, /* with less than 256 bytes of dynamic shared memory */
    PROBE_MISALIGNED_VECTOR,
    PROBE_MISALIGNED_LDMATRIX,
    PROBE_COPY_TO_GLOBAL,
    PROBE_PART_OF_A_WARP_MULTIPLIES,
    PROBE_CONSTANT_WRITTEN
};
enum hd_status probe_mistake(struct hd_cuda_stream *s, enum probe_mistake mistake, float *out,
                             size_t shared_bytes);

/* One thread with a static array of 4 KB and `shared_bytes` of dynamic memory: *out = 1. */
enum hd_status probe_arrays(struct hd_cuda_stream *s, float *out, size_t shared_bytes);

/* out[t] of the threads before leave_from: the number of indices divisible by 3; bit 16: one is 5;
 * bit 20: all are < leave_from; bit 24: none is 7. */
enum hd_status probe_votes(struct hd_cuda_stream *s, int *out, unsigned n, unsigned leave_from);

struct probe_lane {
    double swapped;
    int from_three, from_three_of_eight, up_two, down_two;
    unsigned odd;
    int any, all, of_its_half;
    float from_outside;
};
enum hd_status probe_shuffles(struct hd_cuda_stream *s, struct probe_lane *out, unsigned n);

/* out[4 t ..] = inp[4 (t + 1) ..], for the last thread inp[0 ..]; zeros from n on. */
enum hd_status probe_copies(struct hd_cuda_stream *s, float *out, const float *inp, unsigned n,
                            unsigned threads, bool wait, bool barrier);

/* d[16,8] = c[16,8] + a[16,16] b[16,8], a and b of dtype HD_BF16 or HD_F16. */
enum hd_status probe_product(struct hd_cuda_stream *s, float *d, const void *a, const void *b,
                             const float *c, enum hd_dtype dtype);

struct probe_sums {
    unsigned long long wides;
    double doubles;
    float floats;
    int ints, largest, least, token, holders;
    unsigned bits, by_cas;
};
enum hd_status probe_atomics(struct hd_cuda_stream *s, struct probe_sums *sums, unsigned grid,
                             unsigned block);

enum hd_status probe_twice(struct hd_cuda_stream *s, void *out, const void *inp, int64_t n,
                           enum hd_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif

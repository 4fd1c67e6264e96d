/* hopper_probe: launchers of the kernels in hopper_probe.cu, which test the emulator of Hopper GPUs,
 * on device memory. */
#ifndef HD_CUDASIM_HOPPER_PROBE_H
#define HD_CUDASIM_HOPPER_PROBE_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor of 2-byte elements and a box of 64 x rows elements in it. */
struct probe_box {
    const uint16_t *base;
    int64_t sizes[4], strides[3]; /* strides of dimensions 1 and up, in elements */
    int at[4];                    /* may be outside the tensor */
    int rank, rows;
};
/* out[rows, 64] = the box. */
enum hd_status probe_box(struct hd_cuda_stream *s, uint16_t *out, const struct probe_box *box);

/* A mistake that a kernel below makes. */
enum probe_hopper_mistake {
    PROBE_RIGHT,
    /* of a stream of boxes */
    PROBE_READ_BEFORE_FULL,
    PROBE_WRITE_BEFORE_EMPTY,
    PROBE_OTHER_PARITY,
    PROBE_ARRIVAL_MISSING,
    PROBE_ARRIVAL_TOO_MANY,
    PROBE_BYTES_TOO_MANY,
    PROBE_BYTES_TOO_FEW,
    PROBE_INIT_UNFENCED,
    PROBE_INIT_MISSING,
    PROBE_WORD_OVERWRITTEN,
    PROBE_BOX_MISALIGNED,
    PROBE_END_BEFORE_BOX,
    PROBE_STREAM_MISTAKES,
    /* of registers */
    PROBE_REGISTERS_NEVER_FREE = PROBE_STREAM_MISTAKES,
    PROBE_REGISTERS_OF_HALF_A_WARP,
    PROBE_REGISTERS_ODD,
    PROBE_TURN_NEVER_COMES, /* of the kernel of registers, too */
    PROBE_TURN_NOT_WAITED_FOR,
    PROBE_GROUP_BARRIER_WITHOUT_ALL,
    PROBE_GROUP_BARRIERS_DIFFER,
    PROBE_REGISTERS_MISTAKES,
    /* of a product */
    PROBE_SUMS_READ_EARLY = PROBE_REGISTERS_MISTAKES,
    PROBE_SUMS_WRITTEN_EARLY,
    PROBE_FACTOR_OVERWRITTEN,
    PROBE_WAIT_FOR_ALL_BUT_ONE,
    PROBE_COMMIT_MISSING,
    PROBE_FENCE_MISSING,
    PROBE_WARP_MISSING,
    PROBE_WARPS_DIFFER,
    PROBE_TILE_MISALIGNED,
    PROBE_NO_SWIZZLE,
    PROBE_MISTAKES
};

/* d[64, N] = c[64, N] + a b, all dense and row-major: a[64, 64], or its transpose; b[64, N], or its
 * transpose; N = 64 or 128. by_registers: a's fragments are in registers. */
struct probe_wgmma {
    float *d;
    const float *c;
    const uint16_t *a, *b;
    int N;
    bool transposed_a, transposed_b, by_registers;
    enum probe_hopper_mistake mistake;
};
enum hd_status probe_wgmma(struct hd_cuda_stream *s, const struct probe_wgmma *p);

/* out[8, 64] = the sum of `tiles` tiles of 8 x 64 floats that are bf16 in inp: a producer warp copies
 * them to two stages, two warps add them. */
enum hd_status probe_stream(struct hd_cuda_stream *s, float *out, const uint16_t *inp, int tiles,
                            enum probe_hopper_mistake mistake);

/* Two warp groups: the first passes registers to the second; out[0] = 1 when out[1], a counter, was 0
 * and is 1. */
enum hd_status probe_registers(struct hd_cuda_stream *s, int *out,
                               enum probe_hopper_mistake mistake);

#ifdef __cplusplus
}
#endif

#endif

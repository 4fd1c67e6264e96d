/* attention_hopper: what forward and backward on Hopper GPUs share: tiles copied by TMA from rows
 * [B, length, heads * D], results of wgmma as factors of the next product, what they compute.
 *
 * Used by: attention_hopper.cu, attention_backward_hopper.cu.   Uses: attention, hopper, tensor_map.
 */
#ifndef HD_KERNELS_CUDA_ATTENTION_HOPPER_CUH
#define HD_KERNELS_CUDA_ATTENTION_HOPPER_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_map.cuh"

/* Starts the copies of a head's D columns of ROWS rows; a tile is D / 64 tiles of 64
 * columns. */
template <int D, int ROWS>
static __device__ __forceinline__ void hopper_load(bf16 *tile, const CUtensorMap *map,
                                                   uint64_t *full, int head, int row, int b)
{
#pragma unroll
    for (int i = 0; i < D / TENSOR_MAP_COLUMNS; i++)
        copy_box(tile + i * ROWS * TENSOR_MAP_COLUMNS, map, full, head * D + i * TENSOR_MAP_COLUMNS,
                 row, b);
}

/* The sums of columns 16 k .. of a product are, rounded, the left factor of depths 16 k ..
 * of the next one. */
template <int NT>
static __device__ __forceinline__ void hopper_pack(uint32_t (&factor)[NT / 2][4],
                                                   const float (&sums)[NT][4])
{
#pragma unroll
    for (int k = 0; k < NT / 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            factor[k][i] =
                pack_two<bf16>(sums[2 * k + i / 2][i % 2 * 2], sums[2 * k + i / 2][i % 2 * 2 + 1]);
}

/* Describes rows [B, length, columns], `ld` apart, `stride` rows from one sequence to the
 * next. */
static enum hd_status hopper_map(CUtensorMap *ret_map, const void *base, int64_t B, int64_t length,
                                 int64_t columns, int64_t ld, int64_t stride, int box_rows)
{
    struct tensor_map_shape shape = {};

    shape.rank = 3;
    shape.box_rows = box_rows;
    shape.sizes[0] = columns;
    shape.sizes[1] = length;
    shape.sizes[2] = B;
    shape.strides[0] = ld;
    shape.strides[1] = ld * stride;
    return tensor_map_encode(ret_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, base, &shape);
}

/* Returns whether the kernels compute these scores; everything else is left to the tiled
 * ones. */
static inline bool hopper_takes(const struct attention *a)
{
    return a->dtype == HD_BF16 && (a->D == 64 || a->D == 128) && !(a->cap > 0) &&
           !attention_has_extras(a);
}

#endif

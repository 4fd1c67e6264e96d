/* tensor_map: tells the device the shape of a tensor in global memory, from which it copies boxes
 * (TMA: copy_box in hopper.cuh).
 *
 * Elements have 2 bytes. A box is 64 elements wide, 128 bytes, and its rows lie in shared memory one
 * after the other with the 128-byte swizzle that wgmma reads: chunk c of 16 bytes of the row at
 * address a is at c XOR (a / 128 % 8). Elements of a box that are outside the tensor become zeros.
 *
 * Used by: attention_hopper.cuh and the tests of the emulator.   Uses: cuda.h, the driver's cuda.h.
 * Threads: any; host code.
 */
#ifndef HD_KERNELS_CUDA_TENSOR_MAP_CUH
#define HD_KERNELS_CUDA_TENSOR_MAP_CUH

#include <cuda.h>

#include "kernels/cuda/cuda.h"

enum { TENSOR_MAP_RANK_MAX = 5, TENSOR_MAP_COLUMNS = 64, TENSOR_MAP_VERSION = 12000 };

struct tensor_map_shape {
    int rank; /* dimensions, the contiguous one first */
    int64_t sizes[TENSOR_MAP_RANK_MAX];
    int64_t strides[TENSOR_MAP_RANK_MAX - 1]; /* elements, of dimensions 1 and up */
    int box_rows;                             /* along dimension 1; 1 along the others */
};

/* Sets *ret_map. HD_UNSUPPORTED: the driver is older than CUDA 12.0; HD_INTERNAL: the driver refuses
 * the shape: addresses and strides must be multiples of 16 bytes. */
static inline enum hd_status tensor_map_encode(CUtensorMap *ret_map, CUtensorMapDataType type,
                                               const void *base, const struct tensor_map_shape *s)
{
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cuuint64_t sizes[TENSOR_MAP_RANK_MAX], strides[TENSOR_MAP_RANK_MAX - 1];
    cuuint32_t box[TENSOR_MAP_RANK_MAX], steps[TENSOR_MAP_RANK_MAX];
    void *entry = nullptr;
    CUresult error;

#if CUDART_VERSION >= 12050
    (void)cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, TENSOR_MAP_VERSION,
                                           cudaEnableDefault, &found);
#else
    (void)cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
    if (!entry || found != cudaDriverEntryPointSuccess)
        return hd_err(HD_UNSUPPORTED, "the NVIDIA driver has no cuTensorMapEncodeTiled; install "
                                      "one for CUDA 12.0 or newer");
    memcpy(&encode, &entry, sizeof encode);
    for (int i = 0; i < s->rank; i++) {
        sizes[i] = (cuuint64_t)s->sizes[i];
        box[i] = (cuuint32_t)(i == 0 ? (int)TENSOR_MAP_COLUMNS : i == 1 ? s->box_rows : 1);
        steps[i] = 1;
        if (i > 0)
            strides[i - 1] = (cuuint64_t)s->strides[i - 1] * 2;
    }
    error = encode(ret_map, type, (cuuint32_t)s->rank, const_cast<void *>(base), sizes, strides,
                   box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return error == CUDA_SUCCESS
               ? HD_OK
               : hd_err(HD_INTERNAL,
                        "the driver refuses the map of a tensor of %d dimensions at "
                        "%p: error %d",
                        s->rank, base, (int)error);
}

#endif

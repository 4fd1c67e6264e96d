/* cuda_bf16: only the type, for the emulator. device.cuh has the conversions. */
#ifndef HD_CUDASIM_CUDA_BF16_H
#define HD_CUDASIM_CUDA_BF16_H

#include <stdint.h>

struct __nv_bfloat16 {
    uint16_t bits;
};

#endif

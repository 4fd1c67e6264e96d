/* cuda_bf16: the type, for the emulator. Conversions are device.cuh's; it has no arithmetic. */
#ifndef HD_CUDASIM_CUDA_BF16_H
#define HD_CUDASIM_CUDA_BF16_H

#include <stdint.h>

struct __nv_bfloat16 {
    uint16_t bits;
};

#endif

/* cuda_fp16: the type, for the emulator. Conversions are device.cuh's; it has no arithmetic. */
#ifndef HD_CUDASIM_CUDA_FP16_H
#define HD_CUDASIM_CUDA_FP16_H

#include <stdint.h>

struct __half {
    uint16_t bits;
};

#endif

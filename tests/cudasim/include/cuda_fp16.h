/* cuda_fp16: only the type, for the emulator. device.cuh has the conversions. */
#ifndef HD_CUDASIM_CUDA_FP16_H
#define HD_CUDASIM_CUDA_FP16_H

#include <stdint.h>

struct __half {
    uint16_t bits;
};

#endif

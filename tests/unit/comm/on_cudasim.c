#include "device.h"
#include "kernels/cuda/cuda.h"
#include "tests/cudasim/cudasim.h"

const struct hd_backend_table *ranks_device(void)
{
    return hd_backend_cuda();
}

void ranks_device_seed(uint64_t seed)
{
    hd_cudasim_lazy(true, seed);
}

#include <stdlib.h>

#include "device.h"
#include "kernels/cuda/cuda.h"
#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/nccl_stand_in.h"

const struct hd_backend_table *ranks_device(void)
{
    return hd_backend_cuda();
}

void ranks_device_seed(uint64_t seed)
{
    hd_cudasim_lazy(true, seed);
}

void ranks_device_on_node(const char *node)
{
    if (setenv("NCCL_HOSTID", node, 1) || setenv("NCCL_SOCKET_IFNAME", "=lo", 1))
        abort();
    hd_nccl_stand_in_between_processes();
}

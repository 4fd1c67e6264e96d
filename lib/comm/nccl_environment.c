#include <stdlib.h>

#include "comm/nccl.h"

/* Sets CUDA_MODULE_LOADING and NCCL variables. Kernels are loaded eagerly, because loading one late
 * would wait for a running kernel that waits for a peer. NCCL keeps one launch order on the device.
 * NCCL_COMM_BLOCKING is set to a value that leaves the choice to the endpoint: 0 or 1 would
 * override it, and an unset variable may be read from NCCL's configuration files. */
bool hd_comm_nccl_set_environment(void)
{
    int failed = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

    failed |= setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    failed |= setenv("NCCL_COMM_BLOCKING", "-1", 1);
    return !failed;
}

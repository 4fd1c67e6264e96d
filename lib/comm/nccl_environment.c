#include <stdlib.h>

#include "comm/nccl.h"

/* A kernel that is loaded late would wait for one that waits for a peer: all are loaded at once.
 * NCCL keeps one order of its launches on the device. NCCL_COMM_BLOCKING of 0 or 1 would overrule
 * what the endpoint asks for; unset, NCCL's files could say one. */
bool hd_comm_nccl_set_environment(void)
{
    int failed = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

    failed |= setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    failed |= setenv("NCCL_COMM_BLOCKING", "-1", 1);
    return !failed;
}

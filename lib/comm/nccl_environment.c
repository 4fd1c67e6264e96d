#include <stdio.h>
#include <stdlib.h>

#include "comm/nccl.h"

/* Sets CUDA_MODULE_LOADING and NCCL variables. Kernels are loaded eagerly, because loading one late
 * would wait for a running kernel that waits for a peer. NCCL keeps one launch order on the device.
 * NCCL_COMM_BLOCKING is set to a value that leaves the choice to the endpoint: 0 or 1 would
 * override it, and an unset variable may be read from NCCL's configuration files. Plans count the
 * memory of rings, and of sends and receives with a bounded number of channels: multicast (NVLS)
 * would take about a gigabyte per communicator, and PAT connects other peers than a ring does. */
bool hd_comm_nccl_set_environment(void)
{
    char channels[12];
    int failed = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

    failed |= setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    failed |= setenv("NCCL_COMM_BLOCKING", "-1", 1);
    (void)snprintf(channels, sizeof channels, "%d", (int)HD_NCCL_P2P_CHANNELS);
    failed |= setenv("NCCL_MAX_P2P_NCHANNELS", channels, 0);
    failed |= setenv("NCCL_NVLS_ENABLE", "0", 0);
    failed |= setenv("NCCL_PAT_ENABLE", "0", 0);
    return !failed;
}

/* device: the device on which an endpoint allocates its registered memory (engines local and nccl).
 *
 * Used by: local.h, nccl.h, and their callers (worker, tests).   Uses: kernels.
 */
#ifndef HD_COMM_DEVICE_H
#define HD_COMM_DEVICE_H

#include "kernels/kernels.h"

struct hd_comm_device {
    const struct hd_backend_table *table; /* functions of the backend; its `device` is not NULL */
    struct hd_backend *backend;           /* backend of this rank; must outlive the endpoint */
    bool host_reachable; /* tests only: the host may access registered memory while no operation
                            runs */
};

#endif

/* device: what an engine needs to know of the device that visible memory lies on.
 *
 * Used by: local.h, nccl.h, and who opens such an endpoint (worker, tests).   Uses: kernels.
 */
#ifndef HD_COMM_DEVICE_H
#define HD_COMM_DEVICE_H

#include "kernels/kernels.h"

struct hd_comm_device {
    const struct hd_backend_table *table; /* its `device` is not NULL */
    struct hd_backend *backend;           /* of this rank; outlives the endpoint */
    bool host_reachable; /* the host may use visible memory too, while nothing runs (tests) */
};

#endif

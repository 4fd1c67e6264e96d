#include <stdlib.h>

#include "device.h"
#include "tests/lazy_device/lazy_device.h"

const struct hd_backend_table *ranks_device(void)
{
    return lazy_device();
}

void ranks_device_seed(uint64_t seed)
{
    lazy_device_seed(seed);
}

void ranks_device_on_node(const char *node)
{
    (void)node; /* has no stand-in for NCCL */
    abort();
}

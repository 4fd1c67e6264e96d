/* stream: the first member of every backend's stream struct, in which hd_launch finds the backend's
 * table. Used by: kernels.c and the backends only. */
#ifndef HD_KERNELS_STREAM_H
#define HD_KERNELS_STREAM_H

#include "kernels/kernels.h"

struct hd_stream {
    const struct hd_backend_table *table;
};

#endif

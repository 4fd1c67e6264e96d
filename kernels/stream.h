/* stream: the struct that is the first member of every backend's stream struct; hd_launch reads the
 * backend's table from it. Used by: kernels.c and the backends only. */
#ifndef HD_KERNELS_STREAM_H
#define HD_KERNELS_STREAM_H

#include "kernels/kernels.h"

struct hd_stream {
    const struct hd_backend_table *table;
};

#endif

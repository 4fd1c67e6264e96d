/* stream: what every backend's stream begins with, so that hd_launch finds its table.
 *
 * Used by: kernels.c and the backends only.
 */
#ifndef HD_KERNELS_STREAM_H
#define HD_KERNELS_STREAM_H

#include "kernels/kernels.h"

struct hd_stream {
    const struct hd_backend_table *table;
};

#endif

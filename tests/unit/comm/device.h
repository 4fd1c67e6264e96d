/* device: the device on which the ranks of ENGINE_LOCAL stand: tests/lazy_device, or the plug-in
 * for GPUs on the emulator of tests/cudasim, as late. What an engine forgot to order shows as a
 * wrong result.
 *
 * Threads: any number of backends and streams, each of one thread.
 */
#ifndef HD_TESTS_COMM_DEVICE_H
#define HD_TESTS_COMM_DEVICE_H

#include "kernels/kernels.h"

const struct hd_backend_table *ranks_device(void);

/* From now on the ranks of ENGINE_NODES are processes, this one on the node `node`. */
void ranks_device_on_node(const char *node);

/* The order in which streams are taken from now on. */
void ranks_device_seed(uint64_t seed);

#endif

/* late_device: a device that has memory of its own (the host's, so that tests may look) and runs
 * nothing when it is launched. Streams are queues; whenever somebody asks whether an event is done,
 * a few launches run, from streams taken at random, each stream in its order and behind the events
 * that it waits for. What an engine forgot to order shows as a wrong result.
 *
 * Threads: any number of backends and streams, each of one thread; a lock guards the device.
 */
#ifndef HD_TESTS_COMM_LATE_DEVICE_H
#define HD_TESTS_COMM_LATE_DEVICE_H

#include "kernels/kernels.h"

const struct hd_backend_table *late_device(void);

/* Whom the next backend opened by this process will run by. */
void late_device_seed(uint64_t seed);

#endif

/* measure: measures the GPU memory that a process uses besides what it reserves.
 *
 * A driver reports how much of a device is free, not which process uses the rest. So a second
 * process opens the device and computes on it, as a rank would; its use is the difference in free
 * memory before and while it runs, if meanwhile other processes neither start, end, nor allocate.
 * The second process loads all kernels at once, like ranks of a job with several ranks; a job of
 * one rank loads only kernels that it launches and uses less.
 *
 * Used by: inspect.   Uses: kernels.
 */
#ifndef HD_WORKER_MEASURE_H
#define HD_WORKER_MEASURE_H

#include "kernels/kernels.h"

/* ms that the second process gets to open the device and compute; ample, although opening the
 * device loads all kernels */
enum { HD_MEASURE_MS = 30000 };

/* Measures a process's GPU memory and sets process_bytes and process_measured of the device's
 * traits. They keep their assumed values after a failure, and also if the second process has not
 * computed within `timeout_ms`, because it is in a driver that hangs: it is killed, and abandoned
 * if it does not die. */
void hd_measure_process(const struct hd_backend_table *table, int timeout_ms,
                        struct hd_traits *traits);

/* Runs the second process: opens the device, prints a line, and ends at end of file on its
 * stdin. */
enum hd_status hd_measure_hold(const struct hd_backend_table *table);

#endif

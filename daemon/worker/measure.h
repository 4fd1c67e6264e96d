/* measure: what a process takes of a GPU's memory beside what it reserves.
 *
 * A driver tells how much of a device is free, not which process has the rest. So another process
 * opens the device and computes on it, as a rank would; the free memory before and while it runs
 * differs by what it takes, as long as other processes neither start, end, nor allocate. All its
 * kernels are loaded at once, as in ranks of several; a rank alone, which loads what it launches,
 * takes less.
 *
 * Used by: inspect.   Uses: kernels.
 */
#ifndef HD_WORKER_MEASURE_H
#define HD_WORKER_MEASURE_H

#include "kernels/kernels.h"

enum { HD_MEASURE_MS = 30000 }; /* plenty: opening the device loads all kernels */

/* Sets process_bytes and process_measured of the traits of a table with a device. A failure leaves
 * them as they were: what is assumed. So does a process that has not computed within `timeout_ms`,
 * in a driver that hangs: it is killed, and left behind if it does not die. */
void hd_measure_process(const struct hd_backend_table *table, int timeout_ms,
                        struct hd_traits *traits);

/* The other process: opens the device, prints a line, and ends when its stdin does. */
enum hd_status hd_measure_hold(const struct hd_backend_table *table);

#endif

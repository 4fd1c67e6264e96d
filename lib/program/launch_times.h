/* launch_times: how long each kernel of a runner takes on a device, by events around its launch.
 *
 * A launch on a GPU returns before the kernel begins, so the host's clock cannot measure it. Two
 * events on the compute stream around a launch do: the time between them is the kernel's time and
 * the device's time to start it.
 *
 *     hd_launch_times_new(table, backend, stream, &times);
 *     hd_launch_times_profiler(times, &profiler);  hd_runner_profile(runner, &profiler);
 *     ... a step; the caller waits until its launches are done ...
 *     for (i = 0; i < hd_launch_times_count(times); i++) hd_launch_times_get(times, i, ..);
 *     hd_launch_times_clear(times);  ... the next step ...
 *
 * Events are created at first use, which takes time: the first step is longer.
 *
 * Used by: worker (probe), the benchmark train_gpu.   Uses: run, kernels.
 * Threads: the runner's.
 */
#ifndef HD_PROGRAM_LAUNCH_TIMES_H
#define HD_PROGRAM_LAUNCH_TIMES_H

#include "kernels/kernels.h"
#include "program/run.h"

/* Largest number of launches recorded between two calls of hd_launch_times_clear. */
enum { HD_LAUNCH_TIMES_MAX = 1 << 16 };

struct hd_launch_times;

/* Sets *ret_times to a new recorder with memory for HD_LAUNCH_TIMES_MAX launches. table: the
 * function table of a device's backend, not of the CPU's. stream: the stream on which the runner
 * launches (hd_runner_stream). */
enum hd_status hd_launch_times_new(const struct hd_backend_table *table, struct hd_backend *backend,
                                   struct hd_stream *stream, struct hd_launch_times **ret_times);
void hd_launch_times_free(struct hd_launch_times *times); /* NULL is fine */

/* Sets *ret_profiler to a profiler for hd_runner_profile that records into `times`, which must
 * outlive its use. */
void hd_launch_times_profiler(struct hd_launch_times *times, struct hd_profiler *ret_profiler);

void hd_launch_times_clear(struct hd_launch_times *times);
int hd_launch_times_count(const struct hd_launch_times *times);

/* Sets *ret_node and *ret_seconds to the node and the duration of launch i, in the order of
 * launches; the device must have run it. Fails if an event of the device failed, and with HD_LIMIT
 * if there were more than HD_LAUNCH_TIMES_MAX launches. */
enum hd_status hd_launch_times_get(const struct hd_launch_times *times, int i,
                                   const struct hd_node **ret_node, double *ret_seconds);

#endif

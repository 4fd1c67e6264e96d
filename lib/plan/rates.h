/* rates: how long a kernel takes on a device.
 *
 * A kernel's time follows from its own costs (kernels.h): operations, bytes, and for a product its
 * shape. Three classes of work have rates of their own: products, attention, and all that is
 * limited by memory. Nothing here is fitted to published training runs.
 *
 * GPU kinds that were never measured with Heddle get the peaks of their data sheet times shares
 * that are assumed (rates.c says which and why); `error_band` is how far the time of a step may be
 * off. A CPU's peaks are measured by `heddle-worker device`. With a calibration (calibration.h) the
 * times of the kernels that it has are taken from it.
 *
 * Used by: plan.   Uses: base, kernels; node_time.c also program.
 * Threads: any; no state.
 */
#ifndef HD_PLAN_RATES_H
#define HD_PLAN_RATES_H

#include <stdbool.h>

#include "base/dtype.h"
#include "kernels/kernels.h"

struct hd_calibration;
struct hd_node;

struct hd_rates {
    /* operations per second that products reach at best: codes of 8 bits, 16-bit, 32-bit floats */
    double fp8_flops, half_flops, single_flops;
    double memory_bytes_per_s; /* that kernels limited by memory reach */
    double vector_flops;       /* of element-wise work; what limits a CPU's exponentials */
    double launch_s;           /* least time from one kernel to the next */
    /* share of the products' rate that attention reaches, forward and backward */
    double attention_forward, attention_backward;
    /* a product is computed in tiles, shared out to so many processors; 0: no such steps */
    int multiprocessors;
    int64_t tile_rows, tile_columns;
    double error_band; /* 0.25: a step may take a quarter more or less */
    bool measured;
    /* Of the calibration, for lower bounds: no kernel computes faster, no update moves its bytes
     * faster; 0 without one */
    double most_flops, most_update_bytes_per_s;
    double step_s; /* what a step takes on the host beside its launches */
    /* of the time of kernels that ranks wait for one another, and per collective (calibration.h) */
    double wait_share, wait_s;
    /* of an optimizer on the host (parallel.offload): a device's share, while all devices use it,
     * of the way to the host, in one direction, and of what the host's cores read and write */
    double host_link_bytes_per_s, host_bytes_per_s;
    /* Collectives are carried out by the rank's own thread, so that nothing overlaps with them;
     * else they run beside the kernels. */
    bool collectives_take_thread;
    const struct hd_calibration *calibration; /* of such devices; borrowed; NULL: none */
};

/* Of a GPU that is known by its data sheet. */
void hd_rates_of_kind(const struct hd_gpu_kind *kind, bool tf32, struct hd_rates *ret_rates);

/* Of a device with these peaks, in operations and bytes per second; products of fp8 as fast as
 * those of 16 bits. multiprocessors: of a GPU; 0: a CPU. */
void hd_rates_of_peaks(double half_flops, double single_flops, double memory_bytes_per_s,
                       int multiprocessors, struct hd_rates *ret_rates);

/* From now on a kernel that was measured takes its measured time. `calibration` must outlive the
 * rates, and be of such devices (hd_calibration_check). */
void hd_rates_calibrate(struct hd_rates *rates, const struct hd_calibration *calibration);

/* Seconds in which the host updates so many parameters of a device: their gradients come, AdamW
 * reads and writes them, their weights go back, one after the other (train/offload.c).
 * moment_bytes: of one moment; 0: fp32. copy: the encoding of the weights that the device has. */
double hd_rates_host_update(const struct hd_rates *rates, int64_t parameters, int64_t moment_bytes,
                            enum hd_dtype copy);

/* Seconds of one launch of a node, which is a kernel. */
double hd_rates_node(const struct hd_rates *rates, const struct hd_node *node);

#endif

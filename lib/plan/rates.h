/* rates: how long a kernel takes on a device.
 *
 * A kernel's time follows from its own costs (kernels.h): operations, bytes, and for a product its
 * shape. Three classes of work have their own rates: products, attention, and kernels limited by
 * memory.
 *
 * GPUs that were not measured with Heddle get the peaks of their data sheet times the shares that
 * published training runs reach (rates.c gives them and their reasons); `error_band` is how far the
 * time of a step may be off. A CPU's peaks are measured by `heddle-worker device`. With a calibration (calibration.h),
 * measured kernels take their measured times.
 *
 * Used by: plan.   Uses: base, kernels; node_time.c also program.
 * Threads: any; no state. */
#ifndef HD_PLAN_RATES_H
#define HD_PLAN_RATES_H

#include <stdbool.h>

#include "base/dtype.h"
#include "kernels/kernels.h"

struct hd_calibration;
struct hd_node;

/* Widths of an attention head: up to 64, up to 128, more. */
enum hd_attention_width {
    HD_ATTENTION_NARROW,
    HD_ATTENTION_USUAL,
    HD_ATTENTION_WIDE,
    HD_ATTENTION_WIDTHS
};

struct hd_rates {
    /* FLOP/s that matrix products reach at best, with 8-bit, 16-bit and 32-bit factors */
    double fp8_flops, half_flops, single_flops;
    double memory_bytes_per_s; /* bandwidth that kernels limited by memory reach */
    /* FLOP/s of element-wise kernels, which limits exponentials on a CPU; 0: no limit */
    double vector_flops;
    double launch_s; /* least seconds from the start of one kernel to the next */
    /* Length in K that a product's tile could multiply while it is begun and ended: a product over K
     * reaches K / (K + product_depth) of the rates above; 0: all of them. */
    double product_depth;
    /* Share of the matrix products' FLOP/s that attention reaches, forward and backward, by width of
     * a head (enum hd_attention_width). */
    double attention_forward[HD_ATTENTION_WIDTHS], attention_backward[HD_ATTENTION_WIDTHS];
    /* Bytes of memory traffic that the kernels beside a collective lose per byte that it passes on:
     * it reads and writes memory and occupies multiprocessors; 0: kernels do not slow down. */
    double beside_collective;
    double network_share; /* share of a network's rate that collectives reach, 0 to 1 */
    /* GPU multiprocessors over which a matrix product's tiles are distributed, in waves; 0: time is
     * proportional to FLOPs. */
    int multiprocessors;
    int64_t tile_rows, tile_columns;
    double error_band; /* relative error of a step's time; 0.25: a quarter more or less */
    bool measured;
    /* highest measured FLOP/s of any kernel, for lower bounds of time; 0: no calibration */
    double most_flops;
    double step_s; /* host seconds of a step besides its launches */
    /* Seconds that ranks wait for one another, per second of kernels and per collective
     * (calibration.h). */
    double wait_share, wait_s;
    /* Rates of an offloaded optimizer (parallel.offload), one device's share while all devices use
     * it: of the link to the host, in one direction, and of the host cores' memory traffic. */
    double host_link_bytes_per_s, host_bytes_per_s;
    /* true: the rank's own thread carries out collectives, so that nothing overlaps with them;
     * false: collectives run beside the kernels. */
    bool collectives_take_thread;
    /* measured times of this kind of device; borrowed; NULL: not measured */
    const struct hd_calibration *calibration;
};

/* Sets *ret_rates to the rates of a kind of GPU, from its data sheet. */
void hd_rates_of_kind(const struct hd_gpu_kind *kind, bool tf32, struct hd_rates *ret_rates);

/* Sets *ret_rates to those of a device with these peaks, in FLOP/s and bytes/s; fp8 products are
 * taken to be as fast as 16-bit ones. multiprocessors: of a GPU; 0: a CPU. capability: a GPU's
 * compute capability, major * 10 + minor, which tells the shares of its peaks that it reaches. */
void hd_rates_of_peaks(double half_flops, double single_flops, double memory_bytes_per_s,
                       int multiprocessors, int capability, struct hd_rates *ret_rates);

/* Makes the kernels that `calibration` measured take their measured times. `calibration` must
 * outlive `rates`, and must have been measured on this kind of device (hd_calibration_check). */
void hd_rates_calibrate(struct hd_rates *rates, const struct hd_calibration *calibration);

/* Returns the seconds in which the host updates `parameters` parameters of a device: gradients are
 * copied to the host, the optimizer updates them, weights are copied back, one after the other
 * (train/offload.c). copy: encoding of the weights on the device; update: what the optimizer reads
 * and writes. */
double hd_rates_host_update(const struct hd_rates *rates, int64_t parameters, enum hd_dtype copy,
                            const struct hd_costs *update);

/* Returns the seconds of one launch of a program's node, which must be a kernel. */
double hd_rates_node(const struct hd_rates *rates, const struct hd_node *node);

#endif

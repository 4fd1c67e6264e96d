/* calibration_report: a few figures of a calibration, for users and for the controller's tables.
 *
 * Used by: controller (core, services).   Uses: calibration.   Threads: any. */
#ifndef HD_PLAN_CALIBRATION_REPORT_H
#define HD_PLAN_CALIBRATION_REPORT_H

#include "plan/calibration.h"

enum {
    HD_CALIBRATION_REPORT_SHAPES = 3,
    HD_CALIBRATION_REPORT_PRODUCTS_MAX = 2 * HD_CALIBRATION_REPORT_SHAPES
};

/* Median FLOP/s of the measured products of one precision and size class. The class is by the side
 * of a cube with as many operations: "small" below 128, "medium" below 512, else "large". */
struct hd_calibration_report_product {
    const char *precision, *shape; /* "fp32" or "bf16"; "small", "medium" or "large" */
    double flops;
};

/* Sets ret_products to one entry per precision and size class that has a measured product; returns
 * their number. */
int hd_calibration_report_products(
    const struct hd_calibration *cal,
    struct hd_calibration_report_product ret_products[HD_CALIBRATION_REPORT_PRODUCTS_MAX]);

/* Summarises the measured times of one collective: n bytes takes about alpha_s + n / bytes_per_s.
 * alpha_s is the time of the smallest measured size, bytes_per_s the slope between the two largest;
 * 0: unknown. */
void hd_calibration_report_curve(const struct hd_calibration_curve *curve, double *ret_alpha_s,
                                 double *ret_bytes_per_s);

/* Sets the peak rates of the machine: of each rate the best value of any of its devices, as
 * `heddle-worker device` would measure them. A precision that was not measured gets the other one's
 * rate. False: the calibration has no rate of matrix products, or none of memory bandwidth. */
bool hd_calibration_report_peaks(const struct hd_calibration *cal,
                                 struct hd_calibration_device *ret_peaks);

#endif

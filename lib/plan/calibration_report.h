/* figures: what people, and the controller, look at of a calibration: a few numbers of each kind.
 *
 * Used by: controller (core, services).   Uses: calibration.   Threads: any.
 */
#ifndef HD_PLAN_CALIBRATION_REPORT_H
#define HD_PLAN_CALIBRATION_REPORT_H

#include "plan/calibration.h"

enum {
    HD_CALIBRATION_REPORT_SHAPES = 3,
    HD_CALIBRATION_REPORT_PRODUCTS_MAX = 2 * HD_CALIBRATION_REPORT_SHAPES
};

/* The usual rate, which is the median, of products of one precision and class of shape. The side is
 * that of the cube of as many operations: "small" below 128, "medium" below 512, else "large". */
struct hd_calibration_report_product {
    const char *precision, *shape; /* "fp32" or "bf16" */
    double flops;
};

/* Returns how many there are: of what was not measured there is none. */
int hd_calibration_report_products(
    const struct hd_calibration *cal,
    struct hd_calibration_report_product ret_products[HD_CALIBRATION_REPORT_PRODUCTS_MAX]);

/* A collective of n bytes takes about alpha_s + n / bytes_per_s. The first is the time of the
 * shortest that was measured, the second of the bytes between the two longest; 0: not known. */
void hd_calibration_report_curve(const struct hd_calibration_curve *curve, double *ret_alpha_s,
                                 double *ret_bytes_per_s);

/* The calibration's peaks: the best of its devices, as `heddle-worker device` would measure them.
 * Of a precision that was not measured it is that of the other. False: products or memory were not
 * measured at all. */
bool hd_calibration_report_peaks(const struct hd_calibration *cal,
                                 struct hd_calibration_device *ret_peaks);

#endif

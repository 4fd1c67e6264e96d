#include "plan/calibration_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"

static const struct shape_class {
    const char *name;
    double side_least; /* least side of a cubic matrix product in this size class */
} shapes[HD_CALIBRATION_REPORT_SHAPES] = {{"small", 0}, {"medium", 128}, {"large", 512}};

static const struct {
    const char *name, *variant;
} precisions[] = {{"fp32", "f32."}, {"bf16", "bf16."}};

static int shape_of(double flops)
{
    const double side = cbrt(flops / 2);
    int shape = 0;

    while (shape + 1 < HD_CALIBRATION_REPORT_SHAPES && side >= shapes[shape + 1].side_least - 1e-6)
        shape++;
    return shape;
}

/* Appends the FLOP/s of one size class's samples to `rates`; returns the new count. */
static int add_rates(const struct hd_calibration_class *c, int shape, double *rates, int count)
{
    for (int i = 0; i < c->count; i++) {
        const double *size = c->samples[i].size, flops = 2 * size[0] * size[1] * size[2];

        if (shape_of(flops) == shape)
            rates[count++] = flops / c->samples[i].seconds;
    }
    return count;
}

int hd_calibration_report_products(
    const struct hd_calibration *cal,
    struct hd_calibration_report_product ret_products[HD_CALIBRATION_REPORT_PRODUCTS_MAX])
{
    size_t most = 1;
    double *rates;
    int found = 0;

    for (int k = 0; k < cal->class_count; k++)
        most += (size_t)cal->classes[k].count;
    rates = malloc(most * sizeof *rates);
    for (size_t p = 0; rates && p < sizeof precisions / sizeof precisions[0]; p++)
        for (int shape = 0; shape < HD_CALIBRATION_REPORT_SHAPES; shape++) {
            int count = 0;

            for (int k = 0; k < cal->class_count; k++)
                if (cal->classes[k].kernel == HD_K_gemm &&
                    hd_text_starts(cal->classes[k].variant, precisions[p].variant))
                    count = add_rates(&cal->classes[k], shape, rates, count);
            if (count)
                ret_products[found++] = (struct hd_calibration_report_product){
                    precisions[p].name, shapes[shape].name, hd_order_median(rates, (size_t)count)};
        }
    free(rates);
    return found;
}

void hd_calibration_report_curve(const struct hd_calibration_curve *c, double *ret_alpha_s,
                                 double *ret_bytes_per_s)
{
    *ret_alpha_s = c->count ? c->points[0].seconds : 0;
    *ret_bytes_per_s = 0;
    if (c->count > 1) {
        const struct hd_calibration_point *a = &c->points[c->count - 2], *b = a + 1;

        if (b->seconds > a->seconds)
            *ret_bytes_per_s = (b->bytes - a->bytes) / (b->seconds - a->seconds);
    }
}

bool hd_calibration_report_peaks(const struct hd_calibration *cal,
                                 struct hd_calibration_device *ret_peaks)
{
    struct hd_calibration_device best = {0};

    for (int i = 0; i < cal->each_count; i++) {
        const struct hd_calibration_device *d = &cal->each[i];

        best.single_flops = fmax(best.single_flops, d->single_flops);
        best.half_flops = fmax(best.half_flops, d->half_flops);
        best.memory_bytes_per_s = fmax(best.memory_bytes_per_s, d->memory_bytes_per_s);
    }
    if (best.single_flops <= 0) /* the probe's time ended before both precisions were measured */
        best.single_flops = best.half_flops;
    if (best.half_flops <= 0)
        best.half_flops = best.single_flops;
    *ret_peaks = best;
    return best.single_flops > 0 && best.memory_bytes_per_s > 0;
}

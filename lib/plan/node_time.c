/* node_time: how long a kernel takes at given rates (rates.h). */
#include "base/math.h"
#include "plan/calibration.h"
#include "plan/rates.h"
#include "program/dry.h"

/* share of the matrix products' FLOP/s that grouped products reach; it is less than 1 since experts
 * have different numbers of rows */
static const double grouped_share = 0.9;
/* least length in K of a slice of a matrix product whose K is split over multiprocessors */
enum { SPLIT_DEPTH = 512 };
enum { FEW_ROWS = 16 }; /* rows of the smallest tile; others have a multiple */

static int64_t profiles(int64_t length, int64_t of)
{
    return (length + of - 1) / of;
}

static double flops_of(const struct hd_rates *r, enum hd_dtype dtype)
{
    return dtype == HD_F32 ? r->single_flops : r->half_flops;
}

/* Returns the seconds of a matrix product. Tiles are computed in waves, one tile per multiprocessor
 * at a time; if there are fewer tiles than multiprocessors, K is split over the idle ones. So a
 * product takes at least one wave. Of few rows, as in decoding, tiles have no more than these. */
static double product_seconds(const struct hd_rates *r, const struct hd_gemm_args *a)
{
    const double rate = flops_of(r, a->ab_dtype) * (double)a->K / ((double)a->K + r->product_depth);
    const int64_t rows = hd_min(r->tile_rows, profiles(a->M, FEW_ROWS) * FEW_ROWS);
    int64_t tiles, split = 1;
    double tile_s;

    if (!r->multiprocessors)
        return 2.0 * (double)a->M * (double)a->N * (double)a->K / rate;
    tiles = profiles(a->M, rows) * profiles(a->N, r->tile_columns);
    if (tiles < r->multiprocessors) {
        split = r->multiprocessors / tiles;
        if (split > profiles(a->K, SPLIT_DEPTH))
            split = profiles(a->K, SPLIT_DEPTH);
    }
    tile_s = 2.0 * (double)(rows * r->tile_columns) * (double)a->K / (double)split *
             r->multiprocessors / rate;
    return tile_s * (double)profiles(tiles * split, r->multiprocessors);
}

/* Returns the seconds of an fp8 matrix product: those of a 16-bit product at the fp8 rate. */
static double fp8_product_seconds(const struct hd_rates *r, const struct hd_fp8_gemm_args *a)
{
    const struct hd_gemm_args like = {.M = a->M, .N = a->N, .K = a->K, .ab_dtype = HD_BF16};
    struct hd_rates rates = *r;

    rates.half_flops = r->fp8_flops;
    return product_seconds(&rates, &like);
}

static enum hd_attention_width width_of(int64_t D)
{
    return D <= 64 ? HD_ATTENTION_NARROW : D <= 128 ? HD_ATTENTION_USUAL : HD_ATTENTION_WIDE;
}

/* Returns the share of the matrix products' FLOP/s that this kernel reaches; 0: memory bandwidth
 * limits it. */
static double peak_share_of(const struct hd_rates *r, const struct hd_node *node)
{
    switch (node->kernel) {
    case HD_K_attention_forward:
        return r->attention_forward[width_of(
            ((const struct hd_attention_forward_args *)node->args)->D)];
    case HD_K_attention_backward:
        return r->attention_backward[width_of(
            ((const struct hd_attention_backward_args *)node->args)->D)];
    case HD_K_grouped_gemm:
    case HD_K_grouped_gemm_weight:
    case HD_K_newton_schulz:
        return grouped_share;
    default:
        return 0;
    }
}

/* Returns the encoding of the factors that an attention kernel or a grouped product multiplies. */
static enum hd_dtype factors_of(const struct hd_node *node)
{
    switch (node->kernel) {
    case HD_K_attention_forward:
        return ((const struct hd_attention_forward_args *)node->args)->dtype;
    case HD_K_attention_backward:
        return ((const struct hd_attention_backward_args *)node->args)->dtype;
    case HD_K_grouped_gemm:
        return ((const struct hd_grouped_gemm_args *)node->args)->ab_dtype;
    case HD_K_grouped_gemm_weight:
        return ((const struct hd_grouped_gemm_weight_args *)node->args)->ab_dtype;
    case HD_K_newton_schulz:
        return ((const struct hd_newton_schulz_args *)node->args)->dtype;
    default:
        return HD_F32;
    }
}

static bool measured_seconds(const struct hd_rates *r, const struct hd_node *node,
                             const struct hd_costs *costs, double *ret_seconds)
{
    struct hd_calibration_key key;

    if (!r->calibration)
        return false;
    hd_calibration_key_of(node->kernel, node->args, costs, &key);
    return hd_calibration_seconds(r->calibration, &key, ret_seconds);
}

double hd_rates_node(const struct hd_rates *r, const struct hd_node *node)
{
    const double share = node->is_comm ? 0 : peak_share_of(r, node);
    struct hd_costs costs = {0};
    double memory_s, compute_s = 0;

    hd_dry_node_costs(&costs, node);
    if (measured_seconds(r, node, &costs, &compute_s))
        return r->launch_s + compute_s;
    memory_s = (double)(costs.read_bytes + costs.write_bytes) / r->memory_bytes_per_s;
    if (node->kernel == HD_K_gemm)
        compute_s = product_seconds(r, node->args);
    else if (node->kernel == HD_K_fp8_gemm)
        compute_s = fp8_product_seconds(r, node->args);
    else if (share > 0)
        compute_s = costs.flops / (share * flops_of(r, factors_of(node)));
    else if (r->vector_flops > 0)
        compute_s = costs.flops / r->vector_flops;
    return r->launch_s + hd_max_real(memory_s, compute_s);
}

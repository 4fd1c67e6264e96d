#include "plan/rates.h"

#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "plan/calibration.h"

/* Shares of a GPU's peaks by data sheet that training reaches, until a device is measured. They are
 * fitted to the published runs of tests/unit/plan/published_rows.h, together and not run by run; no
 * share is of one framework.
 *
 * products    Large bf16 products alone reach 0.80 to 0.87 of these peaks for some milliseconds
 *             (Bekman 2024, "Machine Learning Engineering": maximum achievable matrix product). In
 *             training cards reach their power limit: A100 keep 0.65 to 0.75, H100 at 700 W 0.55 to
 *             0.65. A tile is begun and ended in the time of 160 and 400 steps in K, so that narrow
 *             models reach less.
 * memory      Norms, activations and updates are many kernels of middle size: H100 have 3,350 GB/s,
 *             of which a copy reaches 0.9, and such kernels two thirds.
 * attention   FlashAttention-2 reaches 0.5 to 0.7 of an A100's peak (Dao 2023) and 0.35 of an H100's
 *             (Shah et al. 2024); whole runs on H100 reach less, and so did Heddle's own kernels there:
 *             over 4k tokens 0.46 and 0.30 of large products, thus 0.29 and 0.19 of the peak.
 * collectives Kernels beside a collective were 19% slower on average and 40% at most (Lee et al.
 *             2025, "Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed
 *             Deep Learning"), since NCCL takes multiprocessors and memory bandwidth. */
struct gpu_shares {
    const char *kinds; /* words of the kinds, each between blanks */
    /* compute capabilities, from and below, of the other devices that the row holds for */
    int capability, capability_end;
    double product; /* of the peak FLOP/s */
    double product_depth;
    double memory;                                /* of the memory's bytes/s */
    double attention_forward, attention_backward; /* of the peak FLOP/s, heads of 128 */
    double beside_collective;
};
static const struct gpu_shares gpu_shares[] = {
    /* The H20 has no published run: its shares are those of the other Hopper cards but for products, whose
     * peak is so low that the power limit does not lower it further. */
    {" h20 ", 0, 0, 0.85, 400, 0.65, 0.50, 0.30, 2.5},
    {" h100 h200 gh200 h800 h100-pcie h100-nvl h200-nvl b200 b300 gb200 ", 90, 120, 0.63, 400, 0.65,
     0.26, 0.14, 2.5},
    {" a100-40gb a100-80gb a800 a30 ", 0, 1000, 0.69, 160, 0.76, 0.46, 0.36, 2},
};
/* ratio of what attention with heads of at most 64 channels reaches to what it does with 128: the
 * exponentials take the same time as twice the products (Shah et al. 2024, figures 5 and 6) */
static const double gpu_attention_narrow = 0.8;
/* Share of a network adapter's rate that NCCL's collectives reach. Links within a node need no share:
 * an all-reduce over 8 H100 takes 325 us for 64 MiB and 4.03 ms for 1 GiB, by formula 282 and 4.20. */
static const double gpu_network_share = 0.95;
/* A step's seconds besides its launches: input, logs, the optimizer's host work. */
static const double gpu_step_s = 15e-3;
/* Seconds that ranks wait for the slowest of them, per second of kernels. */
static const double gpu_wait_share = 0.025;
static const double gpu_launch_s = 2e-6;
/* Error bands. Nine of ten published runs, on the kinds named, are nearer than the first
 * (plan_published_test holds it); for other kinds there are no runs. */
static const double published_error_band = 0.15, gpu_error_band = 0.25;
static const char published_kinds[] = " h100 a100-40gb a100-80gb ";
/* Error band with a calibration: the mean error over 25 layouts of three models was 10 to 18%, on a
 * busy machine. */
static const double calibrated_error_band = 0.20;
enum { GPU_TILE_ROWS = 128, GPU_TILE_COLUMNS = 128 };

/* Shares of a host's peaks that an offloaded optimizer reaches. Links: a GPU in a 16-lane PCIe 4.0
 * slot has 32 GB/s, in a 5.0 slot 64, over the NVLink of a Grace processor 450 (data sheets);
 * copies of pinned memory reach about 0.8. Memory: a DGX has 50 to 77 GB/s of host bandwidth per
 * GPU, a Grace 500; AdamW on a rank's cores is assumed to reach 0.5 of it. */
static const double host_link_share = 0.8, host_memory_share = 0.5;
/* host seconds per offloaded bucket besides its bytes: two copies and a launch */
static const double host_update_latency_s = 50e-6;

/* Share of a CPU's peak FLOP/s that matrix products reach; the peak is measured with one large
 * product by one thread group, and smaller products reach less. */
static const double cpu_product_share = 0.85, cpu_error_band = 0.30;
static const double cpu_attention_forward = 0.40, cpu_attention_backward = 0.40;
static const double cpu_launch_s = 3e-6, cpu_vector_share = 0.10;

/* Returns whether a list of kinds, each between blanks, has this one. */
static bool names(const char *kinds, const char *word)
{
    char blanks[64];

    (void)snprintf(blanks, sizeof blanks, " %s ", word);
    return *word && strstr(kinds, blanks);
}

/* Returns the shares of a kind of GPU. word: its name; "" for a device that is no known kind. */
static const struct gpu_shares *shares_of(const char *word, int capability)
{
    const size_t count = sizeof gpu_shares / sizeof gpu_shares[0];

    for (size_t i = 0; i < count; i++)
        if (names(gpu_shares[i].kinds, word))
            return &gpu_shares[i];
    for (size_t i = 0; i < count; i++)
        if (capability >= gpu_shares[i].capability && capability < gpu_shares[i].capability_end)
            return &gpu_shares[i];
    return &gpu_shares[count - 1];
}

/* Sets the rates of a GPU. */
static void set_gpu(const char *word, int capability, double half_flops, double single_flops,
                    double memory_bytes_per_s, struct hd_rates *r)
{
    const struct gpu_shares *of = shares_of(word, capability);

    r->fp8_flops = r->half_flops = of->product * half_flops;
    r->single_flops = of->product * single_flops;
    r->product_depth = of->product_depth;
    r->memory_bytes_per_s = of->memory * memory_bytes_per_s;
    for (int width = 0; width < HD_ATTENTION_WIDTHS; width++) {
        const double narrow = width == HD_ATTENTION_NARROW ? gpu_attention_narrow : 1;

        r->attention_forward[width] = narrow * of->attention_forward / of->product;
        r->attention_backward[width] = narrow * of->attention_backward / of->product;
    }
    r->beside_collective = of->beside_collective;
    r->network_share = gpu_network_share;
    r->step_s = gpu_step_s;
    r->wait_share = gpu_wait_share;
    r->launch_s = gpu_launch_s;
    r->tile_rows = GPU_TILE_ROWS;
    r->tile_columns = GPU_TILE_COLUMNS;
    r->error_band = names(published_kinds, word) ? published_error_band : gpu_error_band;
}

static void set_cpu(double half_flops, double single_flops, double memory_bytes_per_s,
                    struct hd_rates *r)
{
    r->fp8_flops = r->half_flops = cpu_product_share * half_flops;
    r->single_flops = cpu_product_share * single_flops;
    r->memory_bytes_per_s = memory_bytes_per_s;
    r->vector_flops = cpu_vector_share * single_flops;
    for (int width = 0; width < HD_ATTENTION_WIDTHS; width++) {
        r->attention_forward[width] = cpu_attention_forward;
        r->attention_backward[width] = cpu_attention_backward;
    }
    r->network_share = 1;
    r->launch_s = cpu_launch_s;
    r->error_band = cpu_error_band;
    r->collectives_take_thread = true;
}

void hd_rates_of_peaks(double half_flops, double single_flops, double memory_bytes_per_s,
                       int multiprocessors, int capability, struct hd_rates *ret_rates)
{
    *ret_rates = (struct hd_rates){.multiprocessors = multiprocessors,
                                   .host_link_bytes_per_s = host_link_share * 32e9,
                                   .host_bytes_per_s = host_memory_share * 50e9};
    if (multiprocessors > 0)
        set_gpu("", capability, half_flops, single_flops, memory_bytes_per_s, ret_rates);
    else
        set_cpu(half_flops, single_flops, memory_bytes_per_s, ret_rates);
}

double hd_rates_host_update(const struct hd_rates *r, int64_t parameters, enum hd_dtype copy,
                            const struct hd_costs *update)
{
    const double n = (double)parameters;
    const double travels = n * (double)hd_dtype_size(HD_F32) + n * (double)hd_dtype_size(copy);

    return host_update_latency_s + travels / r->host_link_bytes_per_s +
           (double)(update->read_bytes + update->write_bytes) / r->host_bytes_per_s;
}

void hd_rates_calibrate(struct hd_rates *r, const struct hd_calibration *calibration)
{
    r->calibration = calibration;
    r->launch_s = calibration->launch_s;
    r->step_s = calibration->step_s;
    r->wait_share = calibration->wait_share;
    r->wait_s = calibration->wait_s;
    r->beside_collective = 0; /* the measured waits contain it */
    r->measured = true;
    r->error_band = hd_min_real(r->error_band, calibrated_error_band);
    /* interpolated times are never faster than the fastest sample */
    r->most_flops = hd_calibration_most_flops(calibration);
}

void hd_rates_of_kind(const struct hd_gpu_kind *kind, bool tf32, struct hd_rates *ret_rates)
{
    hd_rates_of_peaks(0, 0, 0, kind->multiprocessors, kind->capability, ret_rates);
    set_gpu(kind->word, kind->capability, hd_gpu_kind_rate(kind, HD_BF16, false),
            hd_gpu_kind_rate(kind, HD_F32, tf32), 1e9 * kind->memory_gb_per_s, ret_rates);
    if (strstr(kind->word, "gh200") || strstr(kind->word, "gb200")) {
        ret_rates->host_link_bytes_per_s = host_link_share * 450e9;
        ret_rates->host_bytes_per_s = host_memory_share * 500e9;
    } else if (kind->capability >= 90) {
        ret_rates->host_link_bytes_per_s = host_link_share * 64e9;
        ret_rates->host_bytes_per_s = host_memory_share * 77e9;
    }
    if (kind->fp8 > 0)
        ret_rates->fp8_flops = ret_rates->half_flops * kind->fp8 / kind->half;
}

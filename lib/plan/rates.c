#include "plan/rates.h"

#include <string.h>

#include "plan/calibration.h"

/* Shares of a GPU's peaks that are assumed until a device is measured. Large products of cuBLAS are
 * commonly reported at 70 to 80% of a dense peak, copies at 85 to 92% of the memory's rate, and
 * fused attention at 50 to 75% of the peak forward and 40 to 60% backward (Dao 2023; Shah et al.
 * 2024, "FlashAttention-3"). Kernels in a queue start some microseconds apart. Heddle's kernels
 * reached less on an H100: attention over 4k tokens 0.46 and 0.30 of large products, products with
 * 768 on a side 62 to 70% of the peak. So these shares predict steps 13 to 24% too fast on an H100;
 * a probe measures the true rates. */
static const double gpu_product_share = 0.75, gpu_memory_share = 0.85;
/* shares of the matrix products' FLOP/s that attention reaches on a GPU */
static const double gpu_attention_forward = 0.70, gpu_attention_backward = 0.55;
static const double gpu_launch_s = 2e-6, gpu_error_band = 0.25;
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

void hd_rates_of_peaks(double half_flops, double single_flops, double memory_bytes_per_s,
                       int multiprocessors, struct hd_rates *ret_rates)
{
    const bool gpu = multiprocessors > 0;
    const double share = gpu ? gpu_product_share : cpu_product_share;

    *ret_rates = (struct hd_rates){
        .fp8_flops = share * half_flops,
        .half_flops = share * half_flops,
        .single_flops = share * single_flops,
        .memory_bytes_per_s = gpu ? gpu_memory_share * memory_bytes_per_s : memory_bytes_per_s,
        .vector_flops = gpu ? 0 : cpu_vector_share * single_flops,
        .launch_s = gpu ? gpu_launch_s : cpu_launch_s,
        .attention_forward = gpu ? gpu_attention_forward : cpu_attention_forward,
        .attention_backward = gpu ? gpu_attention_backward : cpu_attention_backward,
        .multiprocessors = multiprocessors,
        .tile_rows = gpu ? GPU_TILE_ROWS : 0,
        .tile_columns = gpu ? GPU_TILE_COLUMNS : 0,
        .error_band = gpu ? gpu_error_band : cpu_error_band,
        .host_link_bytes_per_s = host_link_share * 32e9,
        .host_bytes_per_s = host_memory_share * 50e9,
        .collectives_take_thread = !gpu};
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
    r->measured = true;
    r->error_band = calibrated_error_band;
    /* interpolated times are never faster than the fastest sample */
    r->most_flops = hd_calibration_most_flops(calibration);
    r->most_update_bytes_per_s = hd_calibration_most_rate(calibration, HD_K_adamw);
}

void hd_rates_of_kind(const struct hd_gpu_kind *kind, bool tf32, struct hd_rates *ret_rates)
{
    hd_rates_of_peaks(hd_gpu_kind_rate(kind, HD_BF16, false), hd_gpu_kind_rate(kind, HD_F32, tf32),
                      1e9 * kind->memory_gb_per_s, kind->multiprocessors, ret_rates);
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

/* sample: the answer of `heddle-worker gpu-sample`: power, clocks, throttling and other readings of
 * this machine's GPUs, for metrics. As with `gpus` (gpu.h), a process with a deadline queries the
 * driver, which may hang.
 *
 * Used by: worker (writes), agent (reads).   Uses: base.   Threads: plain values.
 */
#ifndef HD_DAEMON_DEVICES_SAMPLE_H
#define HD_DAEMON_DEVICES_SAMPLE_H

#include "base/status.h"
#include "base/text.h"
#include "daemon/devices/gpu.h"

/* Readings of one GPU in base units; NaN: unknown to the driver or device. throttled_*: 1 or 0. */
#define HD_SAMPLE_LIST(X)  \
    X(power_watts)         \
    X(power_limit_watts)   \
    X(energy_joules)       \
    X(temperature_celsius) \
    X(sm_hertz)            \
    X(memory_hertz)        \
    X(sm_hertz_max)        \
    X(memory_hertz_max)    \
    X(throttled_power)     \
    X(throttled_thermal)   \
    X(throttled_hardware)  \
    X(throttled_brake)     \
    X(busy_ratio)          \
    X(memory_used_bytes)   \
    X(memory_bytes)        \
    X(ecc_corrected)       \
    X(ecc_uncorrected)     \
    X(xid) /* newest fatal error in the kernel's log since boot; 0: none */

struct hd_sample {
    char uuid[HD_GPU_UUID_MAX];
#define X(name) double name;
    HD_SAMPLE_LIST(X)
#undef X
};

struct hd_sample_list {
    int count;
    struct hd_sample samples[HD_GPU_MAX];
};

void hd_sample_clear(struct hd_sample *ret_sample); /* sets all readings to NaN */
void hd_sample_list_write(const struct hd_sample_list *list, struct hd_text *ret_json);
/* Parses the list of samples that `heddle-worker gpu-sample` printed. HD_CORRUPT:
 * hd_sample_list_write did not write the text. */
enum hd_status hd_sample_list_read(const char *json, size_t json_bytes,
                                   struct hd_sample_list *ret_list);

/* Returns the sample of the GPU with this UUID; NULL: none. */
const struct hd_sample *hd_sample_find(const struct hd_sample_list *list, const char *uuid);

#endif

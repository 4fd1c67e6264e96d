/* numbers: which number each device of this node has.
 *
 *     STATE_DIR/devices    boot BOOT-ID
 *                          device NUMBER ID        ID: a GPU's UUID, or cpu-K
 *
 * The controller and its plans name a device by its number, so a number must mean the same device
 * as long as ranks may use it: after a restart of heddled, when a GPU fails or comes back, and when
 * the driver lists the GPUs in another order. A new GPU gets its place in the driver's list, as
 * nvidia-smi shows it; if that number is taken, the lowest free one. No rank survives a restart of
 * the machine, so a file of an earlier boot is ignored.
 *
 * Used by: devices, health.   Uses: base.   Threads: the owner's.
 */
#ifndef HD_DAEMON_DEVICES_NUMBERS_H
#define HD_DAEMON_DEVICES_NUMBERS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "daemon/attempt/attempt.h"
#include "daemon/devices/gpu.h"

enum { HD_NUMBERS_MAX = 4 * HD_ATTEMPT_RANKS_MAX };

struct hd_numbered {
    int number;
    char id[HD_GPU_UUID_MAX];
    /* Of a GPU, forgotten when heddled ends: the newest record of a fatal error in the kernel's log
     * (hd_gpu.fault_at; -1 at first), and the error that has withdrawn the GPU ("": none). */
    int64_t fault_at;
    char fault[HD_GPU_FAULT_MAX];
};

struct hd_numbers {
    char path[PATH_MAX]; /* "": not kept on disk */
    char boot_id[HD_ATTEMPT_BOOT_MAX];
    bool changed; /* since the file was read or written */
    int count;
    struct hd_numbered list[HD_NUMBERS_MAX]; /* in the order in which they were given */
};

/* Without a file of this boot: no numbers. HD_CORRUPT, HD_IO: the file cannot be read; no numbers
 * either. */
enum hd_status hd_numbers_read(struct hd_numbers *numbers, const char *state_dir,
                               const char *boot_id);
enum hd_status hd_numbers_write(struct hd_numbers *numbers); /* if they changed */

/* NULL: the device has no number yet. */
struct hd_numbered *hd_numbers_find(struct hd_numbers *numbers, const char *id);
bool hd_numbered_is_gpu(const struct hd_numbered *device);
/* The device's entry, made if there is none; then its number is `wanted` if that is free. NULL:
 * HD_NUMBERS_MAX devices have numbers. */
struct hd_numbered *hd_numbers_give(struct hd_numbers *numbers, const char *id, int wanted);

#endif

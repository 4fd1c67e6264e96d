/* numbers: keeps the number of each device of this node.
 *
 *     STATE_DIR/devices    boot BOOT-ID
 *                          device NUMBER ID        ID: hd_gpu.uuid, or cpu-K
 *
 * The controller and its plans name a device by its number, so a number must mean the same device
 * as long as ranks may use it: after a restart of heddled, when a GPU fails or comes back, and when
 * the driver lists the GPUs in another order. A new GPU gets its index in the driver's list, as
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
    /* GPU only, in memory only: record number of the newest fatal error in the kernel's
     * log (hd_gpu.fault_at; -1: no check yet), and the error for which the GPU is withdrawn ("":
     * none). */
    int64_t fault_at;
    char fault[HD_GPU_FAULT_MAX];
};

struct hd_numbers {
    char path[PATH_MAX]; /* path of the file with the numbers; "": not saved to disk */
    char boot_id[HD_ATTEMPT_BOOT_MAX];
    bool changed; /* the list was changed since the file was read or written */
    int count;
    /* devices with numbers, in the order in which they got them */
    struct hd_numbered list[HD_NUMBERS_MAX];
};

/* Reads the devices' numbers from the file in the state directory; if it is missing or of an
 * earlier boot, the list is empty. HD_CORRUPT, HD_IO: the file cannot be read; the list is empty,
 * too. */
enum hd_status hd_numbers_read(struct hd_numbers *numbers, const char *state_dir,
                               const char *boot_id);
enum hd_status hd_numbers_write(struct hd_numbers *numbers); /* writes the file only if `changed` */

/* Returns the entry of a device; NULL: it has no number yet. */
struct hd_numbered *hd_numbers_find(struct hd_numbers *numbers, const char *id);
bool hd_numbered_is_gpu(const struct hd_numbered *device);
/* Returns the entry of a device, and adds it if it is missing, with the number `wanted` or, if that
 * is taken, the lowest free one. NULL: already HD_NUMBERS_MAX devices have numbers, or the file
 * cannot hold the id, because it is empty, too long or has a blank. */
struct hd_numbered *hd_numbers_give(struct hd_numbers *numbers, const char *id, int wanted);

#endif

/* known: the devices that this node has offered since the machine was started, and their numbers.
 *
 *     STATE_DIR/devices    boot BOOT-ID
 *                          device NUMBER ID MEMORY-BYTES NAME
 *
 * A device's number is its name to the controller and in plans, so it must mean the same device for
 * as long as ranks may use it: over restarts of heddled, when a GPU fails or is back, and when CUDA
 * tells the GPUs in another order than the driver. It goes with the device's id: a GPU's UUID, or
 * "cpu-K". A new device gets its place in the list of all that the machine has, so that people find
 * the numbers of nvidia-smi; where that is taken, the lowest that is not. No rank outlives a boot:
 * after one numbering begins anew.
 *
 * Used by: agent.   Uses: base, daemon/gpu.   Threads: the agent's.
 */
#ifndef HD_DAEMON_AGENT_KNOWN_H
#define HD_DAEMON_AGENT_KNOWN_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "daemon/attempt/attempt.h"
#include "daemon/gpu/gpu.h"

enum { AGENT_KNOWN_MAX = 4 * HD_ATTEMPT_RANKS_MAX };

struct agent_known_device {
    int number;
    char id[HD_GPU_UUID_MAX];
    char name[96];        /* of a GPU */
    int64_t memory_bytes; /* likewise */
};

struct agent_known {
    char path[PATH_MAX]; /* "": kept in memory only */
    char boot_id[HD_ATTEMPT_BOOT_MAX];
    bool changed; /* since it was read or written */
    int count;
    struct agent_known_device list[AGENT_KNOWN_MAX];
};

/* Reads what an earlier heddled has written since the machine was started; of another boot, or when
 * there is no such file, nothing is known. HD_CORRUPT: it is not such a file; then nothing is known
 * as well. */
enum hd_status agent_known_read(struct agent_known *known, const char *state_dir,
                                const char *boot_id);
enum hd_status agent_known_write(struct agent_known *known); /* if it changed */

bool agent_known_is_gpu(const struct agent_known_device *device);
/* NULL: none is known. */
const struct agent_known_device *agent_known_find(const struct agent_known *known, const char *id);
const struct agent_known_device *agent_known_at(const struct agent_known *known, int number);

/* The number of a device, which is known from here on; `place` is the number that it should have if
 * it has none yet. */
int agent_known_number(struct agent_known *known, const char *id, int place, const char *name,
                       int64_t memory_bytes);

#endif

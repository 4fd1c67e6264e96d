/* disk_space: whether the disks to which new attempts would write have enough free space.
 *
 * A node whose jobs directory or state directory is nearly full takes no new attempts, so that the
 * running ones keep space for checkpoints and logs. The refusal begins below the limit and ends one
 * per cent above it, so that it does not flap.
 *
 * Used by: heddled, tests.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_AGENT_DISK_SPACE_H
#define HD_DAEMON_AGENT_DISK_SPACE_H

#include <stdint.h>

enum { DISK_SPACE_REASON_MAX = 512 };

/* Checks the free space of the disks of both folders; "" is no folder. In: `reason` is the result
 * of the previous check, "" before the first. Out: why the node takes no new attempts; "": there is
 * enough space, or a disk could not be queried. min_free_percent 0: no check. */
void disk_space_check(const char *jobs_dir, const char *state_dir, int64_t min_free_percent,
                      char reason[DISK_SPACE_REASON_MAX]);

#endif

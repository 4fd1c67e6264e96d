/* room: whether the disks to which new attempts would write have room for them.
 *
 * A node whose jobs directory or state directory is nearly full takes no new attempts, so that
 * those which run there keep their room for checkpoints and logs. It begins below the limit, and
 * ends one per cent above it, so that it does not come and go.
 *
 * Used by: heddled, tests.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_AGENT_DISK_SPACE_H
#define HD_DAEMON_AGENT_DISK_SPACE_H

#include <stdint.h>

enum { DISK_SPACE_REASON_MAX = 512 };

/* Looks at the disks of both folders; "" is none. `reason` is what the last look said, "" before
 * the first; it becomes what is to be told now: why there are no new attempts, "": there is room,
 * or a disk could not be asked. min_free_percent 0: there is always room. */
void disk_space_check(const char *jobs_dir, const char *state_dir, int64_t min_free_percent,
                      char reason[DISK_SPACE_REASON_MAX]);

#endif

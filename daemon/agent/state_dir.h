/* state_dir: whether the state directory of a running heddled is still there and takes writes.
 *
 * heddled holds its lock and its records open or in memory, so a directory that somebody removed,
 * or whose disk went read-only, shows itself only when the next attempt is to be put on record. A
 * node without its records takes no new attempts: after a restart of heddled their ranks would run
 * on unknown.
 *
 * Used by: heddled, tests.   Uses: identity, local, base.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_STATE_DIR_H
#define HD_DAEMON_AGENT_STATE_DIR_H

#include "daemon/agent/identity.h"
#include "daemon/agent/local.h"

enum { STATE_DIR_REASON_MAX = 512 };

/* Writes and removes a file there. A directory that was made anew gets all that heddled knows: its
 * lock, its UUID, its cluster, and the records of its attempts. `reason` becomes why there are no
 * new attempts, in the form of disk_space_check; "": all is well. */
void state_dir_check(struct agent_identity *identity, struct locals *locals,
                     char reason[STATE_DIR_REASON_MAX]);

#endif

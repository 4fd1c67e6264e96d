/* state_dir: whether the state directory of a running heddled still exists and is writable.
 *
 * heddled keeps its lock and its records open or in memory, so a removed or read-only state
 * directory would be noticed only when the next attempt is recorded. A node without its records
 * takes no new attempts: after a restart of heddled their ranks would run on unnoticed.
 *
 * Used by: heddled, tests.   Uses: identity, local, base.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_STATE_DIR_H
#define HD_DAEMON_AGENT_STATE_DIR_H

#include "daemon/agent/identity.h"
#include "daemon/agent/local.h"

enum { STATE_DIR_REASON_MAX = 512 };

/* Writes and removes a file in the state directory. A directory that was recreated gets all that
 * heddled knows: lock, UUID, cluster, and the records of its attempts. Sets `reason` to why the
 * node takes no new attempts; "": no problem. */
void state_dir_check(struct agent_identity *identity, struct locals *locals,
                     char reason[STATE_DIR_REASON_MAX]);

#endif

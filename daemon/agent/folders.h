/* folders: those of an attempt, below the jobs directory, and who may enter them.
 *
 *     JOBS/7                     only heddled's user and the job's user may enter it (the gate)
 *     JOBS/7/tokens, ...         what is kept from one attempt to the next
 *     JOBS/7/attempt-2           its logs, checkpoints, and nodes/NAME, the run directory
 *
 * heddled makes all of these, so that they are its own: the job's user writes in them, but cannot
 * put a link in the place of one. A supervisor of heddled's own user needs no more than the modes.
 *
 * Used by: agent.   Uses: base, daemon/isolation.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_FOLDERS_H
#define HD_DAEMON_AGENT_FOLDERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

/* Makes run_dir, which is attempt_dir/nodes/NAME. The jobs directory may be reached by links, as
 * its operator likes; below it a link is not followed. HD_CONFLICT: there is one.
 * may_make_base: a jobs directory that is not there is made, which is right for a node's own; else
 * that is HD_STORAGE: one that was there is not mounted. */
enum hd_status folders_make(const char *attempt_dir, const char *run_dir, bool may_make_base);

/* Makes the others, and lets the job's user in; to be called before its supervisor starts. Files
 * of earlier attempts that are heddled's become readable behind the gate. HD_UNSUPPORTED,
 * HD_DENIED: as hd_acl_share; HD_CONFLICT: a link is in the place of a folder. */
enum hd_status folders_share(const char *attempt_dir, const char *run_dir, uid_t job_uid);

#endif

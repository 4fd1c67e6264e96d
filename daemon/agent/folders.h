/* folders: the folders of an attempt below the jobs directory, and their permissions.
 *
 *     JOBS/7                     only heddled's user and the job's user may enter it (the gate)
 *     JOBS/7/tokens, ...         files kept from one attempt to the next
 *     JOBS/7/attempt-2           its logs, checkpoints, and nodes/NAME, the run directory
 *
 * heddled creates and owns all of these: the job's user writes in them, but cannot replace one by a
 * link. If the supervisor runs as heddled's own user, file modes suffice and nothing is shared.
 *
 * Used by: agent.   Uses: base, daemon/isolation.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_FOLDERS_H
#define HD_DAEMON_AGENT_FOLDERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

/* Creates run_dir, which is attempt_dir/nodes/NAME. The path of the jobs directory may contain
 * links; below it no link is followed: HD_CONFLICT. may_make_base: a missing jobs directory is
 * created, which is right for one that only this node uses; otherwise the result is HD_STORAGE,
 * because a shared directory that existed before is not mounted. */
enum hd_status folders_make(const char *attempt_dir, const char *run_dir, bool may_make_base);

/* Creates the job's other folders and gives the job's user access; call before its supervisor
 * starts. heddled's files from earlier attempts become readable behind the gate. HD_UNSUPPORTED:
 * the file system has no access lists; HD_DENIED: another user owns a folder; HD_CONFLICT: a link
 * has the name of a folder. */
enum hd_status folders_share(const char *attempt_dir, const char *run_dir, uid_t job_uid);

#endif

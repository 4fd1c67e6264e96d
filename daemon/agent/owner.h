/* owner: whose a job's folder is.
 *
 *     JOBS/7/owner      cluster 8c1d..      written by the first heddled that makes the folder,
 *                       job 7               and never replaced
 *
 * Two clusters that write to one jobs directory have jobs of the same numbers: without the mark one
 * takes the end and the checkpoints of the other's job for those of its own. A folder of a version
 * that wrote no mark is its who asks.
 *
 * Used by: agent.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_AGENT_OWNER_H
#define HD_DAEMON_AGENT_OWNER_H

#include <stdint.h>

#include "base/status.h"

#define OWNER_FILE "owner"

/* HD_CONFLICT: the folder is another cluster's, or another job's; the message says so, and what to
 * do. cluster: NULL or "" if it is not known yet; then all are one's own. */
enum hd_status owner_check(const char *job_dir, const char *cluster, int64_t job);
/* Marks a folder that is not, and checks it. HD_STORAGE: the disk takes no writes. */
enum hd_status owner_acquire(const char *job_dir, const char *cluster, int64_t job);

#endif

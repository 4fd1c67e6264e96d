/* owner: which cluster and job a job's folder belongs to.
 *
 *     JOBS/7/owner      cluster 8c1d..      written by the first heddled that makes the folder,
 *                       job 7               and never replaced
 *
 * Two clusters that share one jobs directory have jobs of equal numbers: without the mark one would
 * take the other job's end and checkpoints for those of its own. A folder without a mark, made by
 * an older version, is accepted as one's own.
 *
 * Used by: agent.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_AGENT_OWNER_H
#define HD_DAEMON_AGENT_OWNER_H

#include <stdint.h>

#include "base/status.h"

#define OWNER_FILE "owner"

/* Checks whose the job's folder is. HD_CONFLICT: it belongs to another cluster or job; the message
 * has the remedy. cluster NULL or "": the cluster's id is not known yet, and every folder is
 * accepted. */
enum hd_status owner_check(const char *job_dir, const char *cluster, int64_t job);
/* Writes an owner mark into a job's folder that has none, and checks whose the folder is.
 * HD_STORAGE: the disk is not writable. */
enum hd_status owner_acquire(const char *job_dir, const char *cluster, int64_t job);

#endif

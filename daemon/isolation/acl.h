/* acl: folders that two users share: heddled's, who owns them, and that of a job.
 *
 * By access lists (POSIX ACLs), because heddled has no right to give files away, and no group that
 * both are in and other jobs' users are not. The lists are written by the kernel's own form, so
 * that no library is needed.
 *
 *     access list of a folder    user::rwx  user:JOB:rwx  group::r-x  mask::rwx  other::r-x
 *     default list, of what      user::rwx  user:HEDDLED:rwx  group::r-x  mask::rwx  other::r-x
 *     is made in it
 *
 * `other` is --- at the job's folder, the gate: behind it only these two are `other`, and an
 * attempt's user reads what the user of an earlier attempt has left.
 *
 * Used by: agent.   Uses: base; libc alone.   Threads: any.
 */
#ifndef HD_DAEMON_ISOLATION_ACL_H
#define HD_DAEMON_ISOLATION_ACL_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

struct hd_acl_share {
    uid_t job, daemon;
    bool is_gate;     /* others than these two may not enter */
    bool group_reads; /* the folder's group may look */
    bool sticky;      /* the job's user may not remove or rename what heddled has made in it */
};

/* `path` is for messages. HD_UNSUPPORTED: the file system has no access lists; HD_DENIED: another
 * user owns the folder. */
enum hd_status hd_acl_grant(int dir_fd, const char *path, const struct hd_acl_share *share);

/* Lets `uid` pass through a folder to what it may open below, unless all users may. Statuses as
 * above. */
enum hd_status hd_acl_let_pass(int dir_fd, const char *path, uid_t uid);

#endif

/* acl: access to folders that two users share: heddled's user, who owns them, and a job's.
 *
 * By access lists (POSIX ACLs): heddled may not give files away, and no group contains these two
 * users but not those of other jobs. The lists are written in the kernel's own format, so that no
 * library is needed.
 *
 *   access list of a folder   user::rwx  user:JOB:rwx  group::r-x  mask::rwx  other::r-x
 *   default list, inherited   user::rwx  user:HEDDLED:rwx  group::r-x  mask::rwx  other::r-x
 *   by entries made in it
 *
 * On the job's folder itself, the gate, `other` is ---: so behind the gate `other` means only these
 * two users, and the user of an attempt can read what the user of an earlier attempt has left.
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
    bool is_gate;     /* users other than heddled's and the job's may not enter the folder */
    bool group_reads; /* the folder's group may read */
    /* the job's user may not remove or rename entries that heddled has made in the folder */
    bool sticky;
};

/* Sets both access lists of a folder that is open as dir_fd. `path` is for messages.
 * HD_UNSUPPORTED: the file system has no access lists. HD_DENIED: another user owns the folder. */
enum hd_status hd_acl_grant(int dir_fd, const char *path, const struct hd_acl_share *share);

/* Lets `uid` pass through a folder to files below it that it may open; does nothing if all users
 * may pass. Statuses as for hd_acl_grant. */
enum hd_status hd_acl_let_pass(int dir_fd, const char *path, uid_t uid);

#endif

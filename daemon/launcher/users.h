/* users: as whom jobs may run on this machine.
 *
 * heddled asks for a user by name or uid; what it asks is not trusted. --job-users says who may be
 * meant: names, @GROUP, all. Root is never meant, nor heddled's own user; a system user is only by
 * its name in the list.
 *
 * Used by: launcher.   Uses: base.   Threads: one (getpwnam).
 */
#ifndef HD_DAEMON_LAUNCHER_USERS_H
#define HD_DAEMON_LAUNCHER_USERS_H

#include <sys/types.h>

#include "base/status.h"
#include "base/user.h"

struct launch_users {
    uid_t own;        /* heddled's */
    const char *list; /* of --job-users; "": no other than heddled's */
};

struct launch_user {
    uid_t uid;
    gid_t gid; /* its primary group; systemd adds the others */
};

/* HD_INVALID: --job-users is no list. */
enum hd_status users_check_list(const char *list);

/* word: hd_user_check has passed it. HD_NOT_FOUND: this machine has no such user; HD_DENIED: jobs
 * do not run as it; the message says what helps. */
enum hd_status users_find(const struct launch_users *users, const char *word,
                          struct launch_user *ret_user);

#endif

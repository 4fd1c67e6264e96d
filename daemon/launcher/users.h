/* users: decides as which users jobs may run on this machine.
 *
 * heddled requests a user by name or uid, and its request is not trusted. --job-users lists the
 * allowed users: names, @GROUP, all. Root and heddled's own user are never allowed; a system user
 * only if the list has its name.
 *
 * Used by: launcher.   Uses: base.   Threads: one (getpwnam).
 */
#ifndef HD_DAEMON_LAUNCHER_USERS_H
#define HD_DAEMON_LAUNCHER_USERS_H

#include <sys/types.h>

#include "base/status.h"
#include "base/user.h"

struct launch_users {
    uid_t own;        /* uid of heddled */
    const char *list; /* list of --job-users; "": no user but heddled's */
};

struct launch_user {
    uid_t uid;
    gid_t gid; /* primary group; systemd adds the others */
};

/* Checks the syntax of --job-users; HD_INVALID: malformed. */
enum hd_status users_check_list(const char *list);

/* Finds a user as which a job may run. word: hd_user_check has accepted it. HD_NOT_FOUND: this
 * machine has no such user. HD_DENIED: jobs may not run as this user; the message says what to do.
 */
enum hd_status users_find(const struct launch_users *users, const char *word,
                          struct launch_user *ret_user);

#endif

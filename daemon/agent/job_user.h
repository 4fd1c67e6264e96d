/* job_user: runs an attempt's supervisor and ranks as another user than heddled.
 *
 * heddled has no rights beyond its own user's; heddle-launcher does the rest: it looks up the user,
 * starts the unit and sends signals. Files written by such a supervisor are not trusted: its
 * records may name any process, and `end` may exist while ranks still run. Whether processes are
 * left is asked of systemd, through the launcher.
 *
 * Used by: agent.   Uses: base, folders, daemon/launcher.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_JOB_USER_H
#define HD_DAEMON_AGENT_JOB_USER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

struct agent_attempt;

/* Prepares an attempt with run_as: looks up the user and gives it access to the attempt's folders.
 * Sets *ret_own to whether the user is heddled's own, so that nothing needs to be prepared.
 * HD_DENIED, HD_UNSUPPORTED: jobs cannot run as this user here, and a retry does not help; the
 * message has the remedy. */
enum hd_status job_user_prepare(struct agent_attempt *local, bool *ret_own);

/* Sends SIGKILL or SIGCONT to the supervisor; to its whole unit if it runs as another user. */
void job_user_signal(struct agent_attempt *local, pid_t pid, int number);

/* Returns whether the attempt's systemd unit has no processes left; false also if that cannot be
 * found out, or systemd was asked less than AGAIN_MS ago. */
bool job_user_is_gone(struct agent_attempt *local, int64_t now_ms);

/* Checks an attempt whose supervisor wrote the file `end`. Returns whether all its processes have
 * really ended; kills the attempt's unit if it still runs after ENDED_MS. */
bool job_user_may_end(struct agent_attempt *local, int64_t now_ms);

/* Sets ret_whom to the users as whom ranks can run on this node: "own", "all", or names. */
void job_user_describe(const char *launcher, char *ret_whom, size_t size);

#endif

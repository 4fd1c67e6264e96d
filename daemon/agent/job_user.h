/* job_user: an attempt whose supervisor and ranks run as another user than heddled.
 *
 * heddled, which has no rights beside its own, does by heddle-launcher what it cannot do itself:
 * find the user, start, send a signal. What such a supervisor writes is not trusted: its records
 * may name any process, and `end` may be there while ranks still run. Whether processes are left is
 * asked of systemd, by the launcher.
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

/* Before the start of an attempt with run_as: finds the user, and lets it into the attempt's
 * folders. *ret_own: it is heddled's own user, and nothing differs. HD_DENIED, HD_UNSUPPORTED:
 * jobs do not run as this user here, and another try does not help; the message says what does. */
enum hd_status job_user_prepare(struct agent_attempt *local, bool *ret_own);

/* Sends SIGKILL or SIGCONT to the supervisor; of another user's attempt to its whole unit. */
void job_user_signal(struct agent_attempt *local, pid_t pid, int number);

/* Whether the attempt's unit has no process any more; false also while that cannot be told, and
 * when it was asked a moment ago. */
bool job_user_is_gone(struct agent_attempt *local, int64_t now_ms);

/* Of an attempt that has left `end`: whether that is so. A unit that goes on is killed in time. */
bool job_user_may_end(struct agent_attempt *local, int64_t now_ms);

/* As whom the ranks of this node can run: "own", "all", or names. */
void job_user_describe(const char *launcher, char *ret_whom, size_t size);

#endif

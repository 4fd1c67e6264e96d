#include "daemon/agent/job_user.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/uid.h"
#include "base/user.h"
#include "daemon/agent/folders.h"
#include "daemon/agent/local.h"
#include "daemon/launcher/request.h"

enum {
    ASK_MS = 5000,   /* timeout of a request to heddle-launcher, ms */
    AGAIN_MS = 1000, /* shortest time between two queries about an attempt's unit, ms */
    ENDED_MS = 10000 /* longest time for a supervisor to exit after it wrote `end`, ms */
};

/* Checks run_as on a node without heddle-launcher, where ranks can only run as heddled's user. Sets
 * *ret_own to whether run_as is that user. */
static enum hd_status check_own(const char *run_as, bool *ret_own)
{
    char self[HD_UID_NAME_MAX];
    uint32_t uid;

    if (hd_user_is_uid(run_as, &uid))
        *ret_own = (uid_t)uid == geteuid();
    else
        *ret_own = hd_uid_name(geteuid(), self) && strcmp(self, run_as) == 0;
    return *ret_own ? HD_OK
                    : hd_err(HD_UNSUPPORTED,
                             "this node cannot run a job as %s: its heddled has no heddle-launcher "
                             "and runs all jobs as uid %u; start heddle-launcher.socket and give "
                             "heddled --launcher, or write \"own\" for this owner in the policy",
                             run_as, (unsigned)geteuid());
}

enum hd_status job_user_prepare(struct agent_attempt *l, bool *ret_own)
{
    uid_t uid = 0;
    enum hd_status st;

    *ret_own = false;
    st = hd_user_check(l->run_as);
    if (st)
        return st;
    if (!l->all->launcher[0])
        return check_own(l->run_as, ret_own);
    st = request_find(l->all->launcher, l->run_as, ASK_MS, &uid);
    return st ? st : folders_share(l->attempt_dir, l->run_dir, uid);
}

void job_user_signal(struct agent_attempt *l, pid_t pid, int number)
{
    bool gone;

    if (!l->run_as)
        (void)kill(pid, number);
    else if (request_kill(l->all->launcher, l->job, l->attempt, number == SIGKILL ? "KILL" : "CONT",
                          ASK_MS, &gone))
        hd_log(HD_LOG_WARN, "job %" PRId64 " attempt %" PRId64 ": %s", l->job, l->attempt,
               hd_err_message());
}

bool job_user_is_gone(struct agent_attempt *l, int64_t now_ms)
{
    bool gone = false;

    if (now_ms < l->unit_due_ms)
        return false;
    l->unit_due_ms = now_ms + AGAIN_MS;
    if (request_kill(l->all->launcher, l->job, l->attempt, "0", ASK_MS, &gone)) {
        hd_log(HD_LOG_WARN, "job %" PRId64 " attempt %" PRId64 ": %s", l->job, l->attempt,
               hd_err_message());
        l->unit_due_ms = hd_clock_now_ms() + ASK_MS;
        return false;
    }
    return gone;
}

bool job_user_may_end(struct agent_attempt *l, int64_t now_ms)
{
    if (!l->run_as || job_user_is_gone(l, now_ms))
        return true;
    if (!l->end_seen_ms)
        l->end_seen_ms = now_ms;
    if (now_ms - l->end_seen_ms > ENDED_MS) {
        hd_log(HD_LOG_WARN,
               "job %" PRId64 " attempt %" PRId64
               ": it has ended, but processes of it still run; they are killed",
               l->job, l->attempt);
        job_user_signal(l, 0, SIGKILL);
        l->end_seen_ms = now_ms;
    }
    return false;
}

void job_user_describe(const char *launcher, char *ret_whom, size_t size)
{
    if (!launcher || !*launcher || request_about(launcher, ASK_MS, ret_whom, size)) {
        if (launcher && *launcher)
            hd_log(HD_LOG_WARN, "%s; jobs run as heddled's own user alone", hd_err_message());
        (void)snprintf(ret_whom, size, "own");
    }
}

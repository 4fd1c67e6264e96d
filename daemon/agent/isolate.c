/* isolate: settings of the isolation of jobs, what this machine supports of them, and what heddled
 * reports. Supervisors and ranks apply them (supervisor/bounds.c, worker/rank_lock.c). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/job_user.h"
#include "daemon/isolation/cgroup.h"
#include "daemon/isolation/cpus.h"
#include "daemon/isolation/probe.h"
#include "daemon/isolation/roots.h"

enum { SLACK_GIB = 4 };

enum hd_status isolate_check(const struct agent_options *options)
{
    const char *word = options->isolation ? options->isolation : "try";

    if (strcmp(word, "off") == 0 && (options->data_roots || options->cgroup))
        return hd_err(HD_INVALID, "isolation: off makes data_roots and cgroup useless; leave them "
                                  "out, or say try");
    if (options->cgroup && options->launcher)
        return hd_err(HD_INVALID, "cgroup and launcher: with the launcher each attempt has a unit "
                                  "with a group of its own; leave cgroup out");
    return HD_OK;
}

/* Finds which mechanism limits memory and processes of attempts (a systemd unit, a cgroup, or only
 * the supervisor). Appends missing features of the kernel to *ret_lacks. */
static enum hd_status find_tier(struct agent *agent, struct hd_text *ret_lacks)
{
    unsigned has = 0;
    enum hd_status st;

    agent->isolation.tier = "process";
    agent->locals.group = agent->options.launcher ? "unit" : agent->options.cgroup;
    if (agent->options.launcher) {
        agent->isolation.tier = "unit";
        return HD_OK;
    }
    if (!agent->options.cgroup)
        return HD_OK;
    st = hd_cgroup_check(agent->options.cgroup, &has);
    if (!st)
        agent->isolation.tier = "group";
    else
        hd_text_add(ret_lacks, "%s%s", ret_lacks->len_bytes ? "; " : "", hd_err_message());
    if (!st && !(has & HD_CGROUP_MEMORY))
        hd_text_add(ret_lacks,
                    "%s%s has no controller for memory, which the supervisors look at instead",
                    ret_lacks->len_bytes ? "; " : "", agent->options.cgroup);
    return st;
}

enum hd_status isolate_open(struct agent *agent)
{
    const struct agent_options *o = &agent->options;
    struct agent_isolation *is = &agent->isolation;
    const bool off = o->isolation && strcmp(o->isolation, "off") == 0;
    const bool require = o->isolation && strcmp(o->isolation, "require") == 0;
    enum hd_status st = o->job_cpus ? hd_cpus_use(o->job_cpus) : HD_OK;

    if (st)
        return hd_err_prefix(st, "job_cpus");
    agent->locals.isolation = o->isolation;
    agent->locals.data_roots = o->data_roots;
    agent->locals.job_cpus = o->job_cpus;
    (void)snprintf(agent->locals.memory_slack, sizeof agent->locals.memory_slack, "%" PRId64,
                   o->memory_slack_bytes ? o->memory_slack_bytes : (int64_t)SLACK_GIB << 30);
    is->mode = o->isolation ? o->isolation : "try";
    is->tier = "";
    job_user_describe(o->launcher, is->users, sizeof is->users);
    if (off)
        return HD_OK;
    hd_locks_describe(hd_locks_find(), &is->locks, &is->lacks);
    if (geteuid() == 0)
        hd_text_add(&is->lacks, "%sheddled is root, and so are its ranks: start it as another user",
                    is->lacks.len_bytes ? "; " : "");
    st = find_tier(agent, &is->lacks);
    if (require && (st || is->lacks.len_bytes))
        return hd_err(HD_UNSUPPORTED, "isolation: require: %s",
                      is->lacks.len_bytes ? is->lacks.data : "no memory");
    if (is->lacks.len_bytes)
        hd_log(HD_LOG_WARN, "isolation: %s", is->lacks.data);
    return HD_OK;
}

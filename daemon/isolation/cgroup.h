/* cgroup: the control group (cgroup v2) that holds the ranks of one attempt on this node.
 *
 *     PARENT/                       delegated to this user: by systemd to the unit of an attempt
 *         supervisor/               only in a unit: the supervisor itself
 *         heddle-7-2/               the ranks of attempt 2 of job 7, and nothing else
 *
 * The kernel bounds what is in the group: memory with page cache and shared memory, the number of
 * threads and processes, the processors. What exceeds the memory is killed by the kernel inside the
 * group alone. The group can be killed as one, and tells when nothing is left in it.
 *
 * PARENT holds no process itself, as the kernel demands of a group that shares out controllers.
 * Each controller is used where PARENT has it: without `memory` the caller has to look at memory.
 *
 * Used by: supervisor, agent (what the node can do; what a dead supervisor left).
 * Uses: base.   Threads: one owner; hd_cgroup_join between fork and exec.
 */
#ifndef HD_DAEMON_ISOLATION_CGROUP_H
#define HD_DAEMON_ISOLATION_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* Controllers, as bits. */
enum { HD_CGROUP_MEMORY = 1, HD_CGROUP_PIDS = 2, HD_CGROUP_CPUSET = 4 };

struct hd_cgroup {
    char path[PATH_MAX];
    int dir_fd;          /* -1: there is no group */
    unsigned has;        /* controllers that are in force */
    int64_t limit_bytes; /* of memory, as set last; 0: none */
};

/* Which controllers groups below `parent` can have. HD_UNSUPPORTED: it is no folder of cgroup v2;
 * HD_DENIED: this user may not make groups there; HD_CONFLICT: processes are in it. */
enum hd_status hd_cgroup_check(const char *parent, unsigned *ret_has);

/* Makes PARENT/name, or takes it over if it exists, and shares out what controllers it can. */
enum hd_status hd_cgroup_open(const char *parent, const char *name, struct hd_cgroup *ret_group);

/* The same below the group of this process, which systemd has delegated to its user: this process
 * moves to `supervisor` there. */
enum hd_status hd_cgroup_open_in_unit(const char *name, struct hd_cgroup *ret_group);

/* bytes, processes: 0 leaves them unbounded; cpus: a list such as "0-3,8", NULL: all. What a
 * controller is missing for is left out. memory.swap.max is 0: a job does not train from swap. */
enum hd_status hd_cgroup_limit(struct hd_cgroup *group, int64_t bytes, int64_t processes,
                               const char *cpus);

/* Moves the calling process into the group. Async-signal-safe. False: errno says why. */
bool hd_cgroup_join(const struct hd_cgroup *group);

/* Processes that the kernel has killed in it for want of memory. */
int64_t hd_cgroup_oom_kills(const struct hd_cgroup *group);
bool hd_cgroup_is_empty(const struct hd_cgroup *group); /* no process, but maybe zombies */
void hd_cgroup_kill(const struct hd_cgroup *group);     /* SIGKILL to all */

/* Removes the group, which must be empty, and closes it. HD_CONFLICT: it is not empty. */
enum hd_status hd_cgroup_remove(struct hd_cgroup *group);
void hd_cgroup_close(struct hd_cgroup *group); /* leaves the group as it is */

/* For what a dead supervisor left: kills what is in the group at `path` and removes it. HD_TIMEOUT:
 * something in it cannot be killed yet. HD_OK also where there is no group. */
enum hd_status hd_cgroup_clear(const char *path);

#endif

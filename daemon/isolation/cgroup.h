/* cgroup: the control group (cgroup v2) of the ranks of one attempt on this node.
 *
 *   PARENT/               delegated to this user: by systemd to the unit of an attempt
 *     supervisor/         only in a unit: the supervisor itself
 *     heddle-7-2/         the ranks of attempt 2 of job 7, and nothing else
 *       ranks/            if the job has programs that rate answers: its ranks;
 *       rewards-0-1-PID/  program 1 of rank 0 and its keeper PID, below the limits of both groups
 *
 * The kernel limits the group: memory including page cache and shared memory, the number of threads
 * and processes, the processors. When memory is exceeded, the kernel kills processes of this group
 * only. All processes of the group can be killed at once, and the group reports when it is empty.
 *
 * PARENT contains no process itself, because the kernel demands that of a group that delegates
 * controllers. A controller is used if PARENT has it: without `memory` the caller must watch
 * memory.
 *
 * Used by: supervisor, agent (what the node supports; cleanup after a dead supervisor), worker.
 * Uses: base.   Threads: one owner; hd_cgroup_join between fork and exec.
 */
#ifndef HD_DAEMON_ISOLATION_CGROUP_H
#define HD_DAEMON_ISOLATION_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* Resource controllers of a cgroup, as bits. */
enum { HD_CGROUP_MEMORY = 1, HD_CGROUP_PIDS = 2, HD_CGROUP_CPUSET = 4, HD_CGROUP_CPU = 8 };

struct hd_cgroup {
    char path[PATH_MAX];
    int dir_fd;          /* descriptor of the group's folder; -1: no group */
    unsigned has;        /* controllers enabled in the group (bits) */
    int64_t limit_bytes; /* memory limit of the group as set last, bytes; 0: none */
};

/* Sets *ret_has to the controllers (bits) that groups below `parent` can use. HD_UNSUPPORTED:
 * `parent` is not a cgroup v2 folder. HD_DENIED: this user may not make groups in it. HD_CONFLICT:
 * it contains processes. */
enum hd_status hd_cgroup_check(const char *parent, unsigned *ret_has);

/* Makes the group PARENT/name, or takes over an existing one, and enables the available controllers
 * for it. */
enum hd_status hd_cgroup_open(const char *parent, const char *name, struct hd_cgroup *ret_group);

/* Makes the group below the group of this process, which systemd has delegated to its user, as
 * hd_cgroup_open does; first moves this process to the subgroup `supervisor`. */
enum hd_status hd_cgroup_open_in_unit(const char *name, struct hd_cgroup *ret_group);

/* Sets the limits. bytes, processes: 0 means no limit; cpus: a list such as "0-3,8", NULL: all.
 * Limits without an enabled controller are left out. memory.swap.max becomes 0: a job must not
 * train from swap. */
enum hd_status hd_cgroup_limit(struct hd_cgroup *group, int64_t bytes, int64_t processes,
                               const char *cpus);

/* Limits the time of processors, in processors. HD_UNSUPPORTED: the group has no controller `cpu`. */
enum hd_status hd_cgroup_limit_cpu(struct hd_cgroup *group, double processors);

/* Makes the group `name` beside the group `ranks` of this process, as hd_cgroup_open does.
 * HD_UNSUPPORTED: this process is in no group of that name. */
enum hd_status hd_cgroup_open_beside(const char *name, struct hd_cgroup *ret_group);

/* Open files of a group, with which a process that Landlock keeps from the group's folder moves its children
 * into it, kills them, and reads which limit they met. -1: the group lacks the file. */
struct hd_cgroup_files {
    int procs, kill, memory_events, pids_events;
};
struct hd_cgroup_files hd_cgroup_open_files(const struct hd_cgroup *group);
/* Moves the calling process into the group. Async-signal-safe. */
bool hd_cgroup_enter(const struct hd_cgroup_files *files);
/* Sends SIGKILL to all processes of the group. */
void hd_cgroup_kill_all(const struct hd_cgroup_files *files);
/* Return how many processes the kernel killed for lack of memory, and how many it refused to start. */
int64_t hd_cgroup_count_kills(const struct hd_cgroup_files *files);
int64_t hd_cgroup_count_refused(const struct hd_cgroup_files *files);

/* Moves the calling process into the group. Async-signal-safe. Returns false on failure; errno says
 * why. */
bool hd_cgroup_join(const struct hd_cgroup *group);

/* Returns the number of processes in the group that the kernel has killed for lack of memory. */
int64_t hd_cgroup_oom_kills(const struct hd_cgroup *group);
/* Returns whether the group has no process; zombies do not count. */
bool hd_cgroup_is_empty(const struct hd_cgroup *group);
/* sends SIGKILL to all processes of the group */
void hd_cgroup_kill(const struct hd_cgroup *group);

/* Removes the empty group with its subgroups and closes it. HD_CONFLICT: the group has processes. */
enum hd_status hd_cgroup_remove(struct hd_cgroup *group);
void hd_cgroup_close(struct hd_cgroup *group); /* closes dir_fd; the group stays */

/* Kills the processes of the group at `path`, left by a dead supervisor, and removes it.
 * HD_TIMEOUT: a process could not be killed yet; call again. HD_OK also if there is no such group.
 */
enum hd_status hd_cgroup_clear(const char *path);

#endif

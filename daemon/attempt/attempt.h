/* attempt: the files that an attempt leaves on a node, from which its end can be determined later.
 *
 *     JOBS/7/attempt-2/                      of the attempt, on all its nodes
 *         logs/rank-0.log
 *         nodes/NAME/                        of the ranks on this node: the run directory
 *             job                            the resolved job (link/job.h)
 *             supervisor                     the supervisor's process: pid, start time, boot
 *             supervisor.log, control.sock, lock
 *             group                          the control group of its ranks, if they have one
 *             spool/00000001 ..              reports, in order (spool.h)
 *             rank-0.exit ..                 how each rank ended: one EXIT report
 *             end                            how this node's ranks ended: one END report
 *
 * Invariants
 *  1. A run directory is used by one supervisor only, ever: it holds `lock` while it lives, and a
 *     second one that finds `supervisor` or any exit record refuses to start.
 *  2. `rank-R.exit` is durable before any other file or message reports that exit.
 *  3. `end` is written when no process of the ranks is left, by the supervisor, or by heddled after
 *     it saw that the supervisor is dead; an existing record is never replaced.
 *  4. A record is complete or absent: it is written to another name, flushed and renamed.
 *
 * Used by: supervisor, agent.   Uses: base, link, isolation; libc alone.
 * Threads: none of its own.
 */
#ifndef HD_DAEMON_ATTEMPT_ATTEMPT_H
#define HD_DAEMON_ATTEMPT_ATTEMPT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "base/text.h"
#include "link/report.h"

/* Modes of files and directories, readable by the group but not by others: if the supervisor runs
 * as another user than heddled, heddled reads them through the group (HD_FILE_JOB_DIR_MODE). */
enum { HD_ATTEMPT_FILE_MODE = 0640, HD_ATTEMPT_DIR_MODE = 0770 };

#define HD_ATTEMPT_JOB_FILE     "job"
#define HD_ATTEMPT_LOCK_FILE    "lock"
#define HD_ATTEMPT_PROCESS_FILE "supervisor"
#define HD_ATTEMPT_LOG_FILE     "supervisor.log"
#define HD_ATTEMPT_SOCKET       "control.sock"
#define HD_ATTEMPT_SPOOL_DIR    "spool"
#define HD_ATTEMPT_END_FILE     "end"
#define HD_ATTEMPT_GROUP_FILE   "group"
/* environment variable that names the run directory to all processes of the attempt */
#define HD_ATTEMPT_DIR_ENV "HEDDLE_RUN_DIR"

enum { HD_ATTEMPT_BOOT_MAX = 40, HD_ATTEMPT_RANKS_MAX = 64 /* ranks on one node */ };

/* State of an attempt's ranks on one node, which STATUS messages contain. */
enum hd_alloc_state {
    HD_ALLOC_STARTING, /* some rank here is still in its setup */
    HD_ALLOC_RUNNING,
    /* the ranks were told to stop, or a rank has failed and the others are being ended */
    HD_ALLOC_STOPPING,
    HD_ALLOC_ENDED, /* the record `end` is written */
};

/* Appends the path of a node's run directory, ATTEMPT_DIR/nodes/NODE. */
void hd_attempt_run_dir(struct hd_text *ret_path, const char *attempt_dir, const char *node);
/* Appends the path of a rank's log, ATTEMPT_DIR/logs/rank-RANK.log. */
void hd_attempt_log_path(struct hd_text *ret_path, const char *attempt_dir, int64_t rank);

/* A process, distinguished from later ones with the same pid by its start time. */
struct hd_attempt_process {
    pid_t pid;
    int64_t start_ticks; /* start time of the process in clock ticks since boot */
    char boot_id[HD_ATTEMPT_BOOT_MAX];
};

enum hd_status hd_attempt_boot_id(char ret_boot_id[HD_ATTEMPT_BOOT_MAX]);
/* Sets *ret_process to the running process with this pid. HD_NOT_FOUND: no process has the pid, or
 * it is a zombie. */
enum hd_status hd_attempt_process_find(pid_t pid, struct hd_attempt_process *ret_process);
/* Returns false if the process has ended; a zombie has ended. */
bool hd_attempt_process_alive(const struct hd_attempt_process *process);
/* Returns true if SIGSTOP stopped the process; false if a debugger did. */
bool hd_attempt_process_is_stopped(const struct hd_attempt_process *process);

/* Write and read the record `supervisor`, which names the supervisor's process. Reading:
 * HD_NOT_FOUND if the record does not exist. */
enum hd_status hd_attempt_process_write(const char *run_dir,
                                        const struct hd_attempt_process *process);
enum hd_status hd_attempt_process_read(const char *run_dir, struct hd_attempt_process *ret_process);

/* Writes the record `group`: the path of the ranks' control group. hd_attempt_conclude removes the
 * control group that the record names. */
enum hd_status hd_attempt_write_group(const char *run_dir, const char *path);

/* Write and read the records `rank-R.exit` and `end`. A record is durable when the write
 * returns. */
enum hd_status hd_attempt_write_exit(const char *run_dir, const struct hd_link_report *exit);
enum hd_status hd_attempt_read_exit(const char *run_dir, int64_t rank,
                                    struct hd_link_report *ret_exit);
enum hd_status hd_attempt_write_end(const char *run_dir, const struct hd_link_report *end);
enum hd_status hd_attempt_read_end(const char *run_dir, struct hd_link_report *ret_end);

/* Concludes an attempt whose supervisor is dead and left no `end`; for heddled. Kills the processes
 * that are left, derives the end from the records (a rank's failure, a restarted machine, a
 * supervisor that died or never started), writes it and returns it. HD_TIMEOUT: a process cannot be
 * killed yet, call again. HD_CONFLICT: a supervisor holds the directory. is_gone: true for an
 * attempt of another user whose processes systemd manages and has ended: whatever the records say,
 * none is left, and nothing is killed. */
enum hd_status hd_attempt_conclude(const char *run_dir, int64_t job, int64_t attempt, bool is_gone,
                                   struct hd_link_report *ret_end);

/* Sends SIGKILL to each process of session `supervisor` whose environment names run_dir: the
 * processes that a killed supervisor may leave. Returns the number of processes that it found; 0:
 * none is left. */
int hd_attempt_kill_leftovers(const char *run_dir, pid_t supervisor);

#endif

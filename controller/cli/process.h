/* process: the programs that a command starts, and their end.
 *
 * A child gets a process group of its own, so that Ctrl-C on the terminal reaches only the command,
 * and a log file for stdout and stderr. The command is a subreaper: a process whose parent has
 * ended becomes a child of the command, and process_stop_all ends and reaps it, too.
 *
 * Used by: the commands that start programs.   Uses: base.
 * Threads: one; start programs before other threads are started.
 */
#ifndef HD_CLI_PROCESS_H
#define HD_CLI_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"
#include "base/text.h"

struct process {
    const char *name; /* of the program */
    const char *log;  /* path of its output */
    pid_t pid;        /* 0: not started, or reaped */
    int wait_status;  /* once it was reaped */
};

/* Path of a program that is in the folder of this one, else its bare name (to be found in PATH). */
enum hd_status process_find(const char *name, struct hd_text *ret_path);

/* Replaces this process by a program that process_find finds; returns only with a failure. argv is
 * closed by NULL; argv[0] is filled in here. */
enum hd_status process_become(const char *name, const char **argv);

/* Orphans of children become children of this process. */
enum hd_status process_adopt_orphans(void);

/* argv is closed by NULL; argv[0] is the path of the program. The child gets SIGTERM when this
 * process ends, also if that is killed. */
enum hd_status process_start(struct process *process, char *const *argv);

/* True when it has ended. process_explain then makes the failure's message: how it ended, its log
 * and the log's last line. */
bool process_has_ended(struct process *process);
enum hd_status process_explain(const struct process *process);

enum { PROCESS_KILLED = 255 }; /* in place of an exit status: a signal ended it */

/* Runs a program to its end and gathers what it prints to stdout, and to stderr in ret_errors
 * (NULL: it shares our stderr). `input` (NULL: none) is its stdin. HD_IO: it could not be started.
 * HD_TIMEOUT: it was killed after timeout_ms (0: no bound, for work on files of the user's, who
 * sees that it takes long). *ret_exit: its exit status, or PROCESS_KILLED. */
enum { PROCESS_QUESTION_MS = 120 * 1000, PROCESS_MEASURE_MS = 15 * 60 * 1000 };
enum hd_status process_ask(const char *const *argv, const struct hd_text *input, int timeout_ms,
                           struct hd_text *ret_output, struct hd_text *ret_errors, int *ret_exit);

/* Sends SIGTERM (if grace_ms > 0), after grace_ms SIGKILL, and returns when it has ended. */
void process_stop(struct process *process, int grace_ms);
/* The same for all children, adopted ones included; returns when none is left. */
void process_stop_all(int grace_ms);

#endif

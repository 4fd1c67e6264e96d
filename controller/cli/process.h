/* process: starts programs for a command and ends them.
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
    const char *name; /* program's name, for messages; NULL: none was started */
    const char *log;  /* path of the file that gets the program's output */
    pid_t pid;        /* process of the program; 0: not started, or reaped */
    int wait_status;  /* valid after the child was reaped */
};

/* A program's name in argv[0] means that of this program's folder, else one of PATH; a path is taken
 * as it is. */

/* Replaces this process by the program argv[0]; returns only on failure. argv ends with NULL. */
enum hd_status process_become(const char **argv);

/* Makes orphaned descendants children of this process. */
enum hd_status process_adopt_orphans(void);

/* Starts the program argv[0] as a child, with its output in the file `log`, and sets *ret_process.
 * argv ends with NULL. The child gets SIGTERM when this process ends, even by SIGKILL. */
enum hd_status process_start(const char **argv, const char *log, struct process *ret_process);

/* Returns whether the child has ended. process_explain then sets the error message: exit status,
 * path of the log and its last line. */
bool process_has_ended(struct process *process);
enum hd_status process_explain(const struct process *process);

/* Connects to a Unix socket. Returns its descriptor; -1 with errno: no program answers there. */
int process_reach(const char *socket_path);

enum { PROCESS_KILLED = 255 }; /* pseudo exit status: the program was ended by a signal */

/* Runs a program to its end and captures its stdout, and its stderr in ret_errors (NULL:
 * inherited). `input` is its stdin (NULL: none). HD_IO: the program could not be started.
 * HD_TIMEOUT: it was killed after timeout_ms (0: no limit, for work on the user's files, which the
 * user can see takes long). *ret_exit: exit status, or PROCESS_KILLED. */
enum { PROCESS_QUESTION_MS = 120 * 1000, PROCESS_MEASURE_MS = 15 * 60 * 1000 };
enum hd_status process_ask(const char **argv, const struct hd_text *input, int timeout_ms,
                           struct hd_text *ret_output, struct hd_text *ret_errors, int *ret_exit);

/* Sends the child SIGTERM (if grace_ms > 0) and after grace_ms SIGKILL; returns when it has ended.
 */
void process_stop(struct process *process, int grace_ms);
/* Stops all children like process_stop, including adopted ones; returns when none is left. */
void process_stop_all(int grace_ms);

#endif

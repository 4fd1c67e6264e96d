/* process: the programs that `local` starts, and their sure end.
 *
 * A child gets a process group of its own, so that Ctrl-C on the terminal reaches only the command,
 * and a log file for stdout and stderr. The command is made a subreaper: whatever a child leaves
 * behind becomes a child of the command, and process_stop_all ends and reaps that too.
 *
 * Used by: the verbs that start programs.   Uses: base.
 * Threads: one; start before anything else starts threads.
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

/* Path of a program that stands beside this one, else its bare name (to be found in PATH). */
enum hd_status process_find(const char *name, struct hd_text *ret_path);

/* Orphans of children become children of this process. */
enum hd_status process_adopt_orphans(void);

/* argv is closed by NULL; argv[0] is the path of the program. The child gets SIGTERM when this
 * process ends in whatever way. */
enum hd_status process_start(struct process *process, char *const *argv);

/* True when it is gone; the story says how it ended and quotes the end of its log. */
bool process_has_ended(struct process *process);
enum hd_status process_explain(const struct process *process);

enum { PROCESS_KILLED = 255 }; /* in place of an exit status: a signal ended it */

/* Runs a program to its end and gathers what it prints; its stderr is ours. `input` (NULL: none) is
 * what it reads. HD_IO: it could not be started. *ret_exit: its exit status, or PROCESS_KILLED. */
enum hd_status process_ask(const char *const *argv, const struct hd_text *input,
                           struct hd_text *ret_output, int *ret_exit);

/* SIGTERM (if grace_ms > 0), then after grace_ms SIGKILL, until it is gone. */
void process_stop(struct process *process, int grace_ms);
/* The same for every child there is, adopted ones included, until there is none. */
void process_stop_all(int grace_ms);

#endif

/* local_controller: a heddle-controller that belongs to one command, in a private folder.
 *
 * The folder has a short path, because a socket's path has at most 107 bytes, and mode 0700. The
 * controller runs with --ephemeral: it ends when this process ends, even by SIGKILL; the folder of a
 * killed command is removed by the next command that makes one.
 *
 * Used by: cmd_local, run_control.   Uses: process, base.
 * Threads: one; start before other threads are started.
 */
#ifndef HD_CLI_LOCAL_CONTROLLER_H
#define HD_CLI_LOCAL_CONTROLLER_H

#include <signal.h>

#include "controller/cli/process.h"
#include "controller/cli/runs.h"

enum { LOCAL_DIR_MAX = 64 };

struct local_controller {
    char dir[LOCAL_DIR_MAX];          /* private folder; "": not made */
    char address[LOCAL_DIR_MAX + 32]; /* unix:DIR/c.sock */
    char log[RUN_PATH_MAX + 32];      /* file that gets its output */
    struct process process;
};

struct local_controller_options {
    const char *state_dir, *jobs_dir, *log; /* log: path of the file for its output */
    const char *http;                       /* address of its dashboard; NULL: none */
};

/* Makes the private folder and holds its lock until the process ends. Sets dir and address. */
enum hd_status local_controller_make_dir(struct local_controller *c);
/* Starts the controller. Call local_controller_make_dir before. */
enum hd_status local_controller_start(struct local_controller *c,
                                      const struct local_controller_options *options);
/* Waits until the controller answers. HD_ABORTED: *interrupted was set. */
enum hd_status local_controller_await(struct local_controller *c,
                                      const volatile sig_atomic_t *interrupted);

#endif

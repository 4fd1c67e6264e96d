/* run_control: the controller of a run of heddle local, for commands that read a job.
 *
 * A run that is under way is asked itself: the link controller.sock in its folder leads to the socket
 * of its controller. For one that has ended, this command starts a controller of its own, on a copy
 * of the run's records in a private folder, and ends it: nothing in the run's folder changes.
 *
 * Used by: find_job.c, cmd_local.c.   Uses: runs, local_controller, cli.h.   Threads: one.
 */
#ifndef HD_CLI_RUN_CONTROL_H
#define HD_CLI_RUN_CONTROL_H

#include "controller/cli/cli.h"

/* Name of the link in a run's folder. */
#define RUN_CONTROL_LINK "controller.sock"

/* Returns whether the path is the folder of a run, or of the job in one. */
bool run_control_is_run(const char *path);
/* Connects to the controller of a run: its folder, the job's folder in it, or a job file, which
 * means its newest run. Its only job has the number 1. Returns CLI_CONTINUE, or an exit code after
 * printing a message. */
int run_control_connect(struct cli *cli, const char *target);
/* Ends the controller that run_control_connect started, if it did, and removes its folder. */
void run_control_end(struct cli *cli);

#endif

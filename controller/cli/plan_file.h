/* plan_file: a file that `heddle plan --out` wrote, for `heddle submit --plan`.
 *
 * The job runs in exactly the plan's layout, on devices of its kind. What contradicts the plan is
 * never set aside silently: another value of --set is refused, one of the job file is noted on
 * stderr. A job that has changed otherwise, and a plan that another build made, that does not fit
 * its devices or that this build cannot run, are refused.
 *
 * Used by: cmd_submit.c.   Uses: cli.h, submit.h, plan, spec.   Threads: one.
 */
#ifndef HD_CLI_PLAN_FILE_H
#define HD_CLI_PLAN_FILE_H

#include "controller/cli/cli.h"

struct hd_job;
struct hd_arena;

/* Reads the job file `path` with the overrides, in the layout of the plan file. CLI_CONTINUE, or
 * the exit code after a message. The job lives in `arena`. */
int plan_file_read_job(const char *path, const char *plan, const struct cli_list *overrides,
                       struct hd_arena *arena, struct hd_job **ret_job);

#endif

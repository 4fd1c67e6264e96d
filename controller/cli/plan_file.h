/* plan_file: reads a file that `heddle plan --out` wrote, for `heddle submit --plan`.
 *
 * The job runs in exactly the plan's layout, on devices of its kind. A contradiction to the plan is
 * never ignored silently: another value in --set is refused, one in the job file is noted on
 * stderr. A job that has changed in another way is refused, and so is a plan that another build
 * made, that does not fit its devices or that this build cannot run.
 *
 * Used by: cmd_submit.c.   Uses: cli.h, submit.h, plan, spec.   Threads: one.
 */
#ifndef HD_CLI_PLAN_FILE_H
#define HD_CLI_PLAN_FILE_H

#include "controller/cli/cli.h"

struct hd_job;
struct hd_arena;

/* Reads the job file `path` with the overrides, and replaces the job's layout by the one in the
 * plan file. Returns CLI_CONTINUE, or the exit code after a message. The job lives in `arena`. */
int plan_file_read_job(const char *path, const char *plan, const struct cli_list *overrides,
                       struct hd_arena *arena, struct hd_job **ret_job);

#endif

/* plan_flags: the options of `heddle plan`. Options that --set could express as well become
 * overrides of the job file, so that its rules are checked with them.
 *
 * Used by: cmd_plan.c.   Uses: cli.h, plan_show.h, plan.   Threads: one.
 */
#ifndef HD_CLI_PLAN_FLAGS_H
#define HD_CLI_PLAN_FLAGS_H

#include "controller/cli/plan_show.h"

struct plan_flags {
    const char *devices, *memory, *cluster, *out, *calibration;
    struct cli_list overrides, pins;
    bool explain, live;
    int64_t top; /* number of layouts to show; 0: not given */
};

/* Parses --devices, --cluster and --pin: appends them to f->overrides and sets kind, devices and
 * threads of `a`. Returns CLI_CONTINUE, or the exit code after a message. The texts live in
 * a->arena. */
int plan_flags_read(struct plan_flags *f, struct plan_asked *a);
/* Refuses an --out path that would overwrite the job file or another file that the plan reads. spec
 * NULL: the job file is not read yet. */
int plan_flags_check_out(const struct plan_flags *f, const char *job_file,
                         const struct hd_job *spec);

#endif

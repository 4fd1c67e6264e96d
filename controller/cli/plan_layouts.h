/* plan_layouts: what `heddle plan` of a cluster found (plan/report.h), for people.
 *
 * Used by: cmd_plan.c.   Uses: cli.h, plan, spec.   Threads: one.
 */
#ifndef HD_CLI_PLAN_LAYOUTS_H
#define HD_CLI_PLAN_LAYOUTS_H

#include "controller/cli/cli.h"
#include "plan/report.h"

/* plan_live.c: the controller plans for its nodes; shows what it answers. An exit code. */
int plan_live(struct cli *cli, const struct hd_job *spec, int top, const char *out_file,
              struct hd_arena *arena);

/* A table of the plans; explain: where the time goes, and what does not fit. */
void plan_layouts_people(const struct cli *cli, const struct hd_report_asked *asked,
                         const struct hd_report *l, bool explain, struct hd_text *out);

/* plan_ranks.c. Where the devices of a node are not alike: a line per node, "0  0-3  0 4, 1 5" for
 * ranks 0 to 3 on devices 0, 4, 1, 5 of node 0, with tp 2; of the first nodes. Else nothing. */
void plan_ranks_people(const struct hd_report *l, const struct hd_search_plan *p,
                       struct hd_text *out);

/* A line about the time of a step of the chosen plan; nothing if it is not known. */
void plan_layouts_time(const struct hd_report *l, struct hd_text *out);

#endif

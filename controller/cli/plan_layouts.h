/* plan_layouts: shows the results of `heddle plan` for a cluster (plan/report.h) to people.
 *
 * Used by: cmd_plan.c.   Uses: cli.h, plan, spec.   Threads: one.
 */
#ifndef HD_CLI_PLAN_LAYOUTS_H
#define HD_CLI_PLAN_LAYOUTS_H

#include "controller/cli/cli.h"
#include "plan/report.h"

/* Requests layouts for its nodes from the controller and shows the answer (plan_live.c). Returns an
 * exit code. */
int plan_live(struct cli *cli, const struct hd_job *spec, int top, const char *out_file,
              struct hd_arena *arena);

/* Appends a table of the plans; explain: also where the time is spent, and what does not fit. */
void plan_layouts_people(const struct cli *cli, const struct hd_report_asked *asked,
                         const struct hd_report *l, bool explain, struct hd_text *out);

/* Appends the devices of the ranks, if a node's devices differ from each other: one line per node,
 * "0  0-3  0 4, 1 5" for ranks 0 to 3 on devices 0, 4, 1, 5 of node 0, with tp 2; only the first
 * nodes. Else appends nothing (plan_ranks.c). */
void plan_ranks_people(const struct hd_report *l, const struct hd_search_plan *p,
                       struct hd_text *out);

/* Appends a line about the step time of the chosen plan; nothing if it is unknown. */
void plan_layouts_time(const struct hd_report *l, struct hd_text *out);

/* Appends, for a job whose stages of the data have several contexts or batches, the memory and time of
 * the chosen plan in each of them; else nothing. threads: of one CPU device. */
void plan_layouts_spans(const struct hd_report *l, int64_t threads, struct hd_text *out);

#endif

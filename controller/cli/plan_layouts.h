/* plan_layouts: `heddle plan` of a cluster: searches the layouts of a job (plan/search.h) and shows
 * the best ones.
 *
 * Used by: cmd_plan.c.   Uses: cli.h, plan, spec.   Threads: one.
 */
#ifndef HD_CLI_PLAN_LAYOUTS_H
#define HD_CLI_PLAN_LAYOUTS_H

#include "controller/cli/cli.h"
#include "plan/search.h"

struct plan_layouts_asked {
    const char *cluster_file; /* as the user named it; NULL: --devices */
    const struct hd_job *spec;
    const struct hd_cluster *clusters; /* [cluster_count] groups of nodes, each with one kind */
    int cluster_count;
    int64_t memory_bytes; /* of a device; 0: the kind's; of CPU devices: not known */
    int64_t threads;      /* of a CPU device */
    int top;
};

struct hd_json_writer; /* base/json.h */

struct plan_layouts {
    const struct hd_cluster *cluster; /* the chosen group of nodes */
    int32_t devices;
    int64_t memory_bytes; /* of a device, for a rank */
    struct hd_search search;
};

/* HD_OK: something was priced, or nothing fits (search.plan_count 0). HD_INVALID: no layout is
 * legal, or the cluster has too few devices. The result lives in `arena`. */
enum hd_status plan_layouts_find(const struct plan_layouts_asked *asked, struct hd_arena *arena,
                                 struct plan_layouts *ret_layouts);

/* The object of -o json and of --out. */
void plan_layouts_json(const struct plan_layouts_asked *asked, const struct plan_layouts *l,
                       struct hd_text *out);

/* A table of the plans; explain: where the time goes, and what does not fit. */
void plan_layouts_people(const struct cli *cli, const struct plan_layouts_asked *asked,
                         const struct plan_layouts *l, bool explain, struct hd_text *out);

/* plan_ranks.c: the array "ranks" of a plan, [node, device] by rank. */
void plan_ranks_json(const struct plan_layouts *l, const struct hd_search_plan *p,
                     struct hd_json_writer *w);
/* Where the devices of a node are not alike: a line per node, "0  0-3  0 4, 1 5" for ranks 0 to 3
 * on devices 0, 4, 1, 5 of node 0, with tp 2; of the first nodes. Else nothing. */
void plan_ranks_people(const struct plan_layouts *l, const struct hd_search_plan *p,
                       struct hd_text *out);

/* A line about the time of a step of the chosen plan; nothing if it is not known. */
void plan_layouts_time(const struct plan_layouts *l, struct hd_text *out);

/* Reads a file that --out wrote. Overrides that set its layout are appended to `overrides`, texts
 * in `arena`; ret_job: the text of the job that it is of. HD_INVALID: not such a file, of another
 * build, or without a chosen plan. */
enum hd_status plan_layouts_read(const char *path, struct hd_arena *arena,
                                 struct cli_list *overrides, const char **ret_job);

#endif

/* plan_show: what `heddle plan` found, as JSON and for people.
 *
 * Used by: cmd_plan.c.   Uses: cli.h, show, table, plan.   Threads: one.
 */
#ifndef HD_CLI_PLAN_SHOW_H
#define HD_CLI_PLAN_SHOW_H

#include "base/arena.h"
#include "controller/cli/cli.h"
#include "job/job.h"
#include "plan/plan.h"
#include "plan/rates.h"

/* A job, the devices that it is planned for, and the plan. */
struct plan_asked {
    struct hd_job *spec;
    int64_t devices, threads;       /* ranks, and threads of each */
    int64_t threads_given;          /* by --devices or the job; 0: the device decides */
    char override[96];              /* "resources.devices=4" of --devices */
    char origin[80];                /* "--devices cpu:4", for messages */
    const struct hd_gpu_kind *kind; /* of --devices; NULL: this machine's own devices */
    int64_t devices_per_node;       /* of --devices or --cluster; 0: all are on one node */
    int64_t between_bytes;   /* what a rank takes beside its plan if the job is on several nodes */
    struct hd_traits traits; /* of the device */
    struct hd_rates rates;   /* of a CPU device, measured; half_flops 0: not known */
    int64_t memory_bytes;    /* of a device, that a rank may take; 0: not known */
    bool memory_is_given;    /* by --device-memory */
    struct hd_text choice;   /* what was chosen so that it fits, and why; "": nothing */
    struct hd_arena arena;   /* of spec and plan */
    struct hd_job job;
    struct hd_plan plan;
};

/* Every rank fits: in its GPU, or of a CPU device in what --device-memory gives it. */
bool plan_show_fits(const struct plan_asked *a);
/* An item for each rank. */
void plan_show_json(const struct cli *cli, const struct plan_asked *a, struct hd_text *out);
/* A table for each kind of rank, and whether all of it fits. */
void plan_show_people(const struct cli *cli, const struct plan_asked *a, struct hd_text *out);

#endif

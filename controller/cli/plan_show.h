/* plan_show: shows the result of `heddle plan`, as JSON and for people.
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
    int64_t devices, threads;       /* ranks; threads of each */
    int64_t threads_given;          /* threads of --devices or the job; 0: chosen by the device */
    char override[96];              /* override that --devices stands for, "resources.devices=4" */
    char origin[80];                /* its name in messages, "--devices cpu:4" */
    const struct hd_gpu_kind *kind; /* kind of GPU of --devices; NULL: this machine's devices */
    /* devices per node, of --devices or --cluster; 0: all are on one node */
    int64_t devices_per_node;
    int64_t between_bytes; /* memory a rank takes beside its plan if the job spans several nodes */
    struct hd_traits traits; /* traits of the device */
    struct hd_rates rates;   /* measured rates of a CPU device; half_flops 0: unknown */
    int64_t memory_bytes;    /* bytes that a rank may take on the device; 0: unknown */
    bool memory_is_given;    /* memory_bytes is from --device-memory */
    struct hd_text choice;   /* settings that were chosen to make the job fit, and why; "": none */
    struct hd_arena arena;   /* owns spec and plan */
    struct hd_job job;
    struct hd_plan plan;
};

/* Returns whether every rank fits: in its GPU, or for a CPU device in --device-memory. */
bool plan_show_fits(const struct plan_asked *a);
/* Appends one JSON item per rank. */
void plan_show_json(const struct cli *cli, const struct plan_asked *a, struct hd_text *out);
/* Appends a table for each kind of rank, and whether all ranks fit. */
void plan_show_people(const struct cli *cli, const struct plan_asked *a, struct hd_text *out);

#endif

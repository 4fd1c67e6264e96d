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
    int64_t devices, threads; /* number of ranks, one per device; threads of each rank */
    /* threads that --devices or the job names; 0: chosen by the device */
    int64_t threads_given;
    /* override of the job file that --devices causes, "resources.devices=4" */
    char override[96];
    char origin[80]; /* name of that override in messages, "--devices cpu:4" */
    /* GPU kind that --devices names; NULL: this machine's devices */
    const struct hd_gpu_kind *kind;
    /* devices per node by --devices or --cluster; 0: all are on one node */
    int64_t devices_per_node;
    /* memory that a rank takes beside its plan if the job spans several nodes, bytes */
    int64_t between_bytes;
    struct hd_traits traits; /* traits of the device */
    struct hd_rates rates;   /* measured rates of a CPU device; half_flops 0: unknown */
    int64_t memory_bytes;    /* bytes that a rank may take on the device; 0: unknown */
    bool explain;            /* --explain was given: NCCL's communicators are listed */
    bool memory_is_given;    /* memory_bytes was given by --device-memory */
    struct hd_text choice;   /* settings that were chosen to make the job fit, and why; "": none */
    struct hd_arena arena;   /* owns spec and plan */
    struct hd_job job;
    struct hd_plan plan;
};

/* Returns whether every rank fits in memory: of its GPU or, for a CPU device, of --device-memory.
 */
bool plan_show_fits(const struct plan_asked *a);
/* Appends the plan as JSON, one item per rank. */
void plan_show_json(const struct cli *cli, const struct plan_asked *a, struct hd_text *out);
/* Appends the plan for people: a table for each kind of rank, and whether all ranks fit. */
void plan_show_people(const struct cli *cli, const struct plan_asked *a, struct hd_text *out);

#endif

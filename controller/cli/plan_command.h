/* plan_command: what the files of `heddle plan` share, and submit --plan takes from them.
 *
 *     plan_flags     options; those that --set could express as well become overrides of the job file,
 *                    so that its rules are checked with them
 *     plan_machine   speed and memory of this machine's devices, which `heddle-worker device` measures
 *     plan_show      the plan of each rank, as JSON and for people
 *     plan_layouts   the results for a cluster (plan/report.h), for people
 *     plan_live      the controller's plan for its nodes
 *     plan_file      a file of --out, read for submit
 *
 * Used by: cmd_plan.c, cmd_submit.c.   Uses: cli.h, show, table, process.h, submit.h, plan, spec.
 * Threads: one.
 */
#ifndef HD_CLI_PLAN_COMMAND_H
#define HD_CLI_PLAN_COMMAND_H

#include "base/arena.h"
#include "controller/cli/cli.h"
#include "job/job.h"
#include "plan/plan.h"
#include "plan/rates.h"
#include "plan/report.h"

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

/* ---- plan_flags.c ---- */

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

/* ---- plan_machine.c ---- */

/* Sets the number of devices to the most that the job may have; and their threads, unless given, to
 * equal shares of the usable cores, as heddled does. */
void plan_machine_divide(struct plan_asked *a);
/* Sets traits, rates and between_bytes of `a` for the kind of device that the job runs on, as
 * measured by heddle-worker. */
enum hd_status plan_machine_measure(struct plan_asked *a);
/* Asks heddle-worker how much memory a rank takes for messages between nodes, and sets between_bytes.
 * The answer is the same on every machine. Without heddle-worker between_bytes stays 0. */
void plan_machine_find_between(struct plan_asked *a);
/* Sets memory_bytes, the memory that a rank may take on the device: for a GPU its memory; for CPU
 * devices of this machine their share of its memory, as heddled computes it; for other CPU devices
 * unknown. */
void plan_machine_find_memory(struct plan_asked *a, bool other_machines);
/* Notes on stderr that --device-memory exceeds the device's memory. whose: subject of the note,
 * "such a GPU has". */
void plan_machine_note_memory(int64_t given_bytes, int64_t own_bytes, const char *whose);

/* ---- plan_layouts.c, plan_live.c ---- */

/* Requests layouts for its nodes from the controller and shows the answer (plan_live.c). Returns an
 * exit code. */
int plan_live(struct cli *cli, const struct hd_job *spec, int top, const char *out_file,
              struct hd_arena *arena);

/* Appends a table of the plans; explain: also where the time is spent, and what does not fit. */
void plan_layouts_people(const struct cli *cli, const struct hd_report_asked *asked,
                         const struct hd_report *l, bool explain, struct hd_text *out);

/* Appends a line about the step time of the chosen plan; nothing if it is unknown. */
void plan_layouts_time(const struct hd_report *l, struct hd_text *out);

/* Appends, for a job whose stages of the data have several contexts or batches, the memory and time of
 * the chosen plan in each of them; else nothing. threads: of one CPU device. */
void plan_layouts_spans(const struct hd_report *l, int64_t threads, struct hd_text *out);

/* ---- plan_file.c ---- */

/* Reads the job file `path` with the overrides, and replaces the job's layout by the one in the
 * plan file. Returns CLI_CONTINUE, or the exit code after a message. The job lives in `arena`.
 *
 * The job runs in exactly the plan's layout, on devices of its kind. A contradiction to the plan is
 * never ignored silently: another value in --set is refused, one in the job file is noted on
 * stderr. A job that has changed in another way is refused, and so is a plan that another build
 * made, that does not fit its devices or that this build cannot run. */
int plan_file_read_job(const char *path, const char *plan, const struct cli_list *overrides,
                       struct hd_arena *arena, struct hd_job **ret_job);

#endif

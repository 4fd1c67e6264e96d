/* runs: the folders in which `heddle local` keeps its runs.
 *
 *     heddle-runs/                  beside the job file, or --state-dir
 *         tiny-20260301-120000-a1b2c3/
 *             .heddle-run           the marker: whose run it is. Locked while the run is in use
 *             state/                of the controller: what --resume goes on from
 *             1/                    of the job: checkpoints, logs
 *             controller.log, heddled.log, history.jsonl
 *         latest -> tiny-20260301-120000-a1b2c3
 *
 * Only folders with a marker are ever resumed or removed.
 *
 * Used by: cmd_local.   Uses: cli.h, base.   Threads: one.
 */
#ifndef HD_CLI_RUNS_H
#define HD_CLI_RUNS_H

#include "controller/cli/cli.h"

enum { RUN_PATH_MAX = 4096 };

struct run_folder {
    char path[RUN_PATH_MAX]; /* absolute */
    int lock;                /* descriptor, closed by run_close or at the end of the process; -1 */
    /* of a new run: */
    bool is_elsewhere; /* not in the folder of runs, which has no link to it */
    bool was_there;    /* the folder, empty */
};

/* Makes and locks the folder of a new run of the job `name` in the file job_path ("-": standard
 * input). state_dir: where run folders are, NULL: heddle-runs beside the file. dir: the folder's
 * name there or, with a '/', its path; NULL: NAME-TIME. */
enum hd_status run_make(const char *job_path, const char *state_dir, const char *dir,
                        const char *name, struct run_folder *ret_run);
/* Finds and locks a run: `target` is its folder, the job's folder in it, or a job file, whose
 * newest run it then is. Waits for processes of the run that are still ending. */
enum hd_status run_open(const char *target, const char *state_dir, struct run_folder *ret_run);
/* It has a job, or its job goes on: it is the newest run now. `latest` leads to it: is_new: also if
 * there was no such link. */
void run_is_newest(const struct run_folder *run, bool is_new);
/* Removes what is in the folder of a new run that has no job, and the folder if it was made. */
void run_discard(const struct run_folder *run);
void run_close(struct run_folder *run);

struct clean_options {
    const char *where; /* a folder of runs, or a job file, whose runs alone are meant; NULL: . */
    const char *state_dir; /* as in run_make */
    int64_t keep;          /* newest ones that stay */
    bool yes;              /* do not ask */
};
/* Runs `heddle local --clean` and returns its exit code (runs_clean.c). */
int runs_clean(struct cli *cli, const struct clean_options *options);

#endif

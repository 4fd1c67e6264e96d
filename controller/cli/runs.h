/* runs: the folders in which `heddle local` keeps its runs.
 *
 *     heddle-runs/                  beside the job file, or --state-dir
 *         tiny-20260301-120000-a1b2c3/
 *             .heddle-run           marker with the run's job file; locked while the run is in use
 *             state/                the controller's state, needed by --resume
 *             1/                    the job's folder: checkpoints, logs
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
    char path[RUN_PATH_MAX]; /* absolute path of the run's folder */
    /* descriptor of the locked marker, closed by run_close or at process exit; -1: none */
    int lock;
    /* members for new runs only */
    bool is_elsewhere; /* the run's folder is outside the folder of runs, which has no link to it */
    bool was_there;    /* the run's folder existed before, empty */
};

/* Makes and locks the folder of a new run of the job `name` in the file job_path ("-": standard
 * input). state_dir: folder of runs; NULL: heddle-runs beside the file. dir: name of the folder in
 * it or, if it contains '/', its path; NULL: NAME-TIME. */
enum hd_status run_make(const char *job_path, const char *state_dir, const char *dir,
                        const char *name, struct run_folder *ret_run);
/* Finds the folder of a run, which `target` names as for run_open; does not lock it. */
enum hd_status run_find(const char *target, char ret_path[RUN_PATH_MAX]);
/* Finds a run and locks it. `target` is its folder, the job's folder in it, or a job file, which
 * means that file's newest run. Waits for processes of the run that are still ending. */
enum hd_status run_open(const char *target, const char *state_dir, struct run_folder *ret_run);
/* Marks the run as the newest of its job file, after its job was made or resumed, and points
 * `latest` to it. is_new: creates the link if it is missing, except for a run that is_elsewhere. */
void run_is_newest(const struct run_folder *run, bool is_new);
/* Removes the contents of a new run's folder that has no job, and the folder if run_make created
 * it. */
void run_discard(const struct run_folder *run);
void run_close(struct run_folder *run);

struct clean_options {
    const char *where;     /* a folder of runs, or a job file to select only its runs; NULL: "." */
    const char *state_dir; /* folder of runs; NULL: heddle-runs beside the job file */
    int64_t keep;          /* number of newest runs to keep */
    bool yes;              /* removes without asking */
};
/* Runs `heddle local --clean` and returns its exit code (runs_clean.c). */
int runs_clean(struct cli *cli, const struct clean_options *options);

#endif

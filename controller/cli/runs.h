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

#include "base/tree.h"
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

/* ---- for runs.c, runs_clean.c, run_control.c and cmd_track.c ---- */

#define RUN_MARKER HD_MARK_RUN
#define RUN_LATEST "latest"

struct run_entry {
    char *path;
    int64_t used_ms; /* time when the run was last started or resumed */
};

struct run_list {
    struct run_entry *items;
    size_t count, capacity;
};

struct run_marker {
    /* absolute path of the run's job file, links resolved; "": standard input */
    char job_file[RUN_PATH_MAX];
    char path[RUN_PATH_MAX]; /* path of the run's folder when it was made */
};

/* Reads the marker in a run's folder. HD_NOT_FOUND: the folder was not made by heddle local. An
 * empty marker belongs to a run that was killed while its folder was made. */
enum hd_status runs_read_marker(const char *dir, struct run_marker *ret_marker);
enum hd_status runs_no_memory(void);
enum hd_status runs_make_absolute(const char *path, struct hd_text *ret_path);
/* Finds the folder of runs: --state-dir, or heddle-runs beside the job file. */
enum hd_status runs_find_folder(const char *job_path, const char *state_dir,
                                struct hd_text *ret_folder);
/* Locks the marker in a run's folder. HD_CONFLICT: the run is in use. */
enum hd_status runs_lock(const char *dir, int *ret_lock);
/* Points `latest`, in the parent of the run's folder, to the run. A `latest` that is no link is
 * left alone. */
void runs_link_latest(const struct run_folder *run, bool only_if_there);
/* Lists this user's runs in a folder, newest first: of one job file, or (NULL) of all. *ret_others:
 * number of folders that were not made by heddle local or have an unreadable marker. */
enum hd_status runs_list(const char *folder, const char *job_file, struct run_list *ret_list,
                         size_t *ret_others);
void runs_free_list(struct run_list *list);

#endif

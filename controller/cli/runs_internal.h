/* runs_internal: what runs.c shares with runs_clean.c, run_control.c and cmd_track.c. */
#ifndef HD_CLI_RUNS_INTERNAL_H
#define HD_CLI_RUNS_INTERNAL_H

#include "base/tree.h"
#include "controller/cli/runs.h"

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

/* runs_internal: functions of runs.c for runs_clean.c only. */
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

enum hd_status runs_no_memory(void);
bool runs_is_dir(const char *path);
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

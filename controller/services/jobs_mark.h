/* jobs_mark: reads and writes .heddle-probe, the file that says to which cluster a jobs directory
 * belongs (format: services/jobs_dir.c).
 *
 * Used by: services, heddle-controller adopt.   Uses: base.   Threads: any.
 */
#ifndef HD_CONTROLLER_SERVICES_JOBS_MARK_H
#define HD_CONTROLLER_SERVICES_JOBS_MARK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/tree.h"

#define JOBS_DIR_MARK HD_MARK_JOBS_DIR

enum { JOBS_MARK_ID_MAX = 64, JOBS_MARK_FIRST_MAX = 80, JOBS_MARK_STATE_MAX = 480 };

struct jobs_mark {
    /* random first line of the file; "": no file, or one that no controller wrote */
    char first[JOBS_MARK_FIRST_MAX];
    char cluster[JOBS_MARK_ID_MAX]; /* cluster's id; "": an earlier version wrote the file */
    char share[JOBS_MARK_ID_MAX];   /* directory's id; "": an earlier version wrote the file */
    /* "PATH on HOST" of the controller's state directory, for people; "": unknown */
    char state[JOBS_MARK_STATE_MAX];
};

/* Reads the mark file .heddle-probe in a jobs directory. HD_NOT_FOUND: the file does not exist.
 * *ret_mark is empty after a failure. */
enum hd_status jobs_mark_read(const char *path, struct jobs_mark *ret_mark);
enum hd_status jobs_mark_write(const char *path, const struct jobs_mark *mark);
/* Writes "PATH on HOST" for the mark's line `state`; "" if the path is too long for a line. */
void jobs_mark_name_state(const char *state_dir, char ret_line[JOBS_MARK_STATE_MAX]);

/* Registers a folder in the database as its jobs directory, and writes a mark if the folder has
 * none. ret_folder: its absolute path. No controller may be using the state directory. jobs_dir
 * NULL: `jobs` in the state directory. also_empty: accepts a folder that has none of the newest
 * jobs with checkpoints; those checkpoints are then lost. HD_CONFLICT: the folder belongs to
 * another cluster, or also_empty is false and it has no such job. HD_NOT_FOUND: the folder does not
 * exist.
 */
enum hd_status jobs_mark_adopt(const char *state_dir, const char *jobs_dir, bool also_empty,
                               char ret_folder[PATH_MAX]);

#endif

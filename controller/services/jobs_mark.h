/* jobs_mark: reads and writes .heddle-probe, the file by which a jobs directory says whose it is
 * (services/jobs_dir.c has its form).
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
    char first[JOBS_MARK_FIRST_MAX]; /* "": the file is absent, or no controller's */
    char cluster[JOBS_MARK_ID_MAX];  /* "": an earlier version wrote the file */
    char share[JOBS_MARK_ID_MAX];    /* likewise */
    char state[JOBS_MARK_STATE_MAX]; /* "": not known */
};

/* Reads the file. HD_NOT_FOUND: there is none. *ret_mark is empty after a failure. */
enum hd_status jobs_mark_read(const char *path, struct jobs_mark *ret_mark);
enum hd_status jobs_mark_write(const char *path, const struct jobs_mark *mark);
/* Makes a random id of 32 hexadecimal digits. */
enum hd_status jobs_mark_make_id(char *ret_id, size_t size);
/* Writes "PATH on HOST"; "" if it does not fit a line. */
void jobs_mark_name_state(const char *state_dir, char ret_line[JOBS_MARK_STATE_MAX]);

/* Makes a folder the jobs directory of the database from now on, and gives it a mark if it has
 * none; ret_folder is its absolute path. No controller may use the state directory. jobs_dir NULL:
 * `jobs` in the state directory.
 * also_empty: also one that has no folder of any job with checkpoints, of which these are lost
 * then. HD_CONFLICT: the folder is another cluster's, or such a one. HD_NOT_FOUND: it is not there.
 */
enum hd_status jobs_mark_adopt(const char *state_dir, const char *jobs_dir, bool also_empty,
                               char ret_folder[PATH_MAX]);

#endif

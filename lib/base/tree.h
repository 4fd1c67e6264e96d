/* tree: the function by which Heddle deletes a folder and its contents.
 *
 *  1. A link is removed as a link and never followed. Each step uses a descriptor that was opened
 *     without following links, so a folder that is replaced by a link meanwhile leads nowhere else.
 *  2. Another mount is never entered, and a folder that is a mount point is not removed: also a
 *     bind mount of the same file system, and also if `path` itself is a mount point.
 *  3. A folder below `path` that contains one of the caller's marks belongs to another owner and is
 *     not removed.
 *  4. At most HD_TREE_FILES descriptors are open at a time, at any depth.
 *  5. A failure does not stop the work: the rest is removed. A second call continues.
 *
 * Used by: everything that deletes folders; tests.   Uses: status.   Threads: any. */
#ifndef HD_BASE_TREE_H
#define HD_BASE_TREE_H

#include <stddef.h>

#include "base/status.h"

/* Names of marker files: a folder that contains one belongs to the owner that the file names. */
#define HD_MARK_JOBS_DIR ".heddle-probe"  /* in a cluster's jobs directory */
#define HD_MARK_RUN      ".heddle-run"    /* in the folder of a run of heddle local */
extern const char *const hd_tree_marks[]; /* both names, then NULL */

enum { HD_TREE_FILES = 16, HD_TREE_PATH_MAX = 512 };

enum hd_tree_why {
    HD_TREE_GONE,    /* the entry was completely removed */
    HD_TREE_MOUNTED, /* a file system is mounted on the folder */
    HD_TREE_MARKED,  /* the folder contains one of the caller's marker files */
    HD_TREE_TOO_DEEP,
    HD_TREE_FAILED, /* removing it failed with the errno in hd_tree_left.error */
};

struct hd_tree_left {
    size_t count;                /* number of entries that remain, not counting the folders above
                                    them */
    enum hd_tree_why why;        /* reason why the first of these entries remains */
    int error;                   /* errno of the failure to remove the first of these entries; 0:
                                    none */
    char path[HD_TREE_PATH_MAX]; /* path of the first of these entries, truncated at the end */
};

/* Removes `path`, a folder or a file; an absent path is HD_OK. marks: names of marker files,
 * NULL-terminated, such as hd_tree_marks; NULL: none. Sets *ret_left (ret_left may be NULL) to the
 * entries that remain; with HD_OK none does. HD_CONFLICT: the first remaining entry is a mount
 * point or contains a mark. Another failure returns the status of its errno
 * (hd_file_write_status). */
enum hd_status hd_tree_remove(const char *path, const char *const *marks,
                              struct hd_tree_left *ret_left);

/* Returns 1 if the folder dir_fd is the root, or on another mount than the folder above it; 0 if it
 * is neither, or if the mount is unknown. */
int hd_tree_is_mount(int dir_fd);

#endif

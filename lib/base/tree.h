/* tree: the one function by which Heddle deletes a folder with all that is in it.
 *
 * 1. A link is removed as a link; nothing is followed. Each step is by a descriptor that was opened
 *    without a link, so that a folder which is exchanged for a link meanwhile leads nowhere else.
 * 2. Another mount is never entered, and a folder on which something is mounted stays: also a bind
 *    mount of the same file system, and also where `path` itself is one.
 * 3. A folder below `path` that has one of the caller's marks is another owner's and stays.
 * 4. At most HD_TREE_FILES descriptors are open at a time, at whatever depth.
 * 5. A failure does not end the work: all that can go goes. Called again, it goes on.
 *
 * Used by: everything that deletes folders; tests.   Uses: status.   Threads: any.
 */
#ifndef HD_BASE_TREE_H
#define HD_BASE_TREE_H

#include <stddef.h>

#include "base/status.h"

/* Names of marker files: a folder that has one belongs to the owner that the file names. */
#define HD_MARK_JOBS_DIR ".heddle-probe"  /* a cluster's jobs directory */
#define HD_MARK_RUN      ".heddle-run"    /* a run of heddle local */
extern const char *const hd_tree_marks[]; /* both, and NULL */

enum { HD_TREE_FILES = 16, HD_TREE_PATH_MAX = 512 };

enum hd_tree_why {
    HD_TREE_GONE,    /* all of it is removed */
    HD_TREE_MOUNTED, /* a file system is mounted there */
    HD_TREE_MARKED,  /* it has one of the marks */
    HD_TREE_TOO_DEEP,
    HD_TREE_FAILED, /* errno says why */
};

struct hd_tree_left {
    size_t count;                /* entries that stay, without the folders above them */
    enum hd_tree_why why;        /* why the first of them stays */
    int error;                   /* errno of the first; 0: none */
    char path[HD_TREE_PATH_MAX]; /* path of the first, cut at the end */
};

/* Removes `path`, a folder or a file; a path that is absent is HD_OK. marks: names of marker files,
 * up to NULL, such as hd_tree_marks; NULL: none. *ret_left (may be NULL): the entries that stay;
 * none with HD_OK. HD_CONFLICT: the first of them is mounted or marked. Another failure has the
 * status of its errno (hd_file_write_status). */
enum hd_status hd_tree_remove(const char *path, const char *const *marks,
                              struct hd_tree_left *ret_left);

/* Returns 1 if the folder dir_fd is the root, or on another mount than the folder above it; else,
 * or if that cannot be found out, 0. */
int hd_tree_is_mount(int dir_fd);

#endif

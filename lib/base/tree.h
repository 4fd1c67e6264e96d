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

/* Files by which a folder says whose it is. */
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
    enum hd_tree_why why;        /* the first one stays */
    int error;                   /* its errno; 0: there is none */
    char path[HD_TREE_PATH_MAX]; /* its path, cut at the end */
};

/* Removes `path`, a folder or a file; one that is absent is HD_OK. marks: names of files, up to
 * NULL (hd_tree_marks); may be NULL. ret_left: may be NULL; what stays, also with HD_OK (nothing
 * then). HD_CONFLICT: what stays is mounted or marked. Else the meaning of the first errno
 * (hd_file_write_status). */
enum hd_status hd_tree_remove(const char *path, const char *const *marks,
                              struct hd_tree_left *ret_left);

/* The folder of dir_fd is on another mount than the folder above it. */
int hd_tree_is_mount(int dir_fd);

#endif

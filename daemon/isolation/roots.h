/* roots: opens a path that a job names, inside folders that the operator allows.
 *
 * With roots no component of a path below its root may be a symbolic link or `..`, so the path
 * cannot lead outside. The returned descriptor is O_PATH; the sandbox grants access by this
 * descriptor, so a path that is replaced afterwards gives no access. Without roots (NULL) any path
 * of the user is fine. Only regular files and folders are opened: no FIFO, socket or device.
 *
 * Used by: worker.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_ISOLATION_ROOTS_H
#define HD_DAEMON_ISOLATION_ROOTS_H

#include <stdbool.h>

#include "base/status.h"

/* Opens a path. roots: absolute folders separated by ':' below which the path must be; NULL: all
 * paths are allowed. HD_INVALID: the path is below none of the roots, has a link or `..`, or is
 * neither a file nor a folder. HD_NOT_FOUND: it does not exist. HD_DENIED: this user may not open
 * it. */
enum hd_status hd_roots_open(const char *roots, const char *path, int *ret_fd);

/* Checks that `roots` is a list of absolute folders that exist; else HD_INVALID. */
enum hd_status hd_roots_check(const char *roots);

#endif

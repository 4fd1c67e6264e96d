/* roots: opens a path that a job names, beneath folders that the operator allows.
 *
 * With roots no part of a path below its root may be a link, and none `..`: what is opened is where
 * the path says. The descriptor that is returned is O_PATH; the rights of a sandbox hang on it, so
 * that a path which is exchanged afterwards leads to nothing. Without roots (NULL) any path of the
 * user is fine. Only regular files and folders are opened: no FIFO, socket or device.
 *
 * Used by: worker.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_ISOLATION_ROOTS_H
#define HD_DAEMON_ISOLATION_ROOTS_H

#include <stdbool.h>

#include "base/status.h"

/* roots: absolute folders with ':' between; NULL: all paths are allowed. HD_INVALID: the path is
 * below none of them, has a link or `..`, or is no file and no folder; HD_NOT_FOUND: it does not
 * exist; HD_DENIED: this user may not look for it. */
enum hd_status hd_roots_open(const char *roots, const char *path, int *ret_fd);

/* HD_INVALID: `roots` is no list of absolute folders that exist. */
enum hd_status hd_roots_check(const char *roots);

#endif

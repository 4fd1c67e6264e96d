/* log_bound: the log of a rank takes no more of the disk than its limit.
 *
 * Of a log that has grown beyond it the first quarter of the limit stays, and the newest half. What
 * is between becomes a hole in the file: it takes no room, and every byte keeps its position, so
 * that readers go on where they were. The last bytes before the hole are a line that says how much
 * is missing. Ranks write to their logs themselves and notice nothing.
 *
 * The limit is for what the log takes between two looks: a rank that writes 100 MB in a tenth of a
 * second has them on the disk until the next one.
 *
 * Used by: supervisor, tests.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_SUPERVISOR_LOG_BOUND_H
#define HD_DAEMON_SUPERVISOR_LOG_BOUND_H

#include <stdint.h>

#include "base/status.h"

enum { SUP_LOG_LIMIT_MIN = 1 << 20 };
#define SUP_LOG_LIMIT_DEFAULT (INT64_C(256) << 20)

/* Bounds the log at `path`; limit_bytes is SUP_LOG_LIMIT_MIN at least. *ret_size_bytes: of the
 * file, with its hole; 0: it is not there. HD_IO, HD_STORAGE: it is not bounded, and grows on.
 *
 * Where the file system makes no holes on request (NFS before 4.2) the file is cut and extended
 * again: positions stay, but of the newest part only the last CUT_TAIL bytes do, and what the rank
 * writes at that very moment is lost. */
enum hd_status sup_log_bound(const char *path, int64_t limit_bytes, int64_t *ret_size_bytes);

enum { SUP_LOG_CUT_TAIL = 256 << 10 };
/* The second way, for tests: bytes from `begin` on go, but for the tail. *ret_end: where that
 * begins.
 */
enum hd_status sup_log_cut(int fd, int64_t begin, int64_t *ret_end);

#endif

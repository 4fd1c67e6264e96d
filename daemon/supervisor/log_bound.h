/* log_bound: keeps the log of a rank within a limit of disk space.
 *
 * A log above the limit keeps its first quarter of the limit, and its newest half. The part between
 * becomes a hole in the file: it uses no disk space, and every byte keeps its position, so that
 * readers continue at their offset. The last bytes before the hole are a line that says how much is
 * missing. Ranks write to their logs themselves and notice nothing.
 *
 * The limit holds at the time of a check: a rank that writes 100 MB in a tenth of a second has them
 * on the disk until the next check.
 *
 * Used by: supervisor, tests.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_SUPERVISOR_LOG_BOUND_H
#define HD_DAEMON_SUPERVISOR_LOG_BOUND_H

#include <stdint.h>

#include "base/status.h"

enum { SUP_LOG_LIMIT_MIN = 1 << 20 };
#define SUP_LOG_LIMIT_DEFAULT (INT64_C(256) << 20)

/* Bounds the log at `path`; limit_bytes is at least SUP_LOG_LIMIT_MIN. *ret_size_bytes: size of the
 * file, with its hole; 0: the file does not exist. HD_IO, HD_STORAGE: it is not bounded, and keeps
 * growing.
 *
 * If the file system cannot punch holes (NFS before 4.2), the file is truncated and extended again:
 * positions stay, but only the last SUP_LOG_CUT_TAIL bytes of the newest part are kept, and bytes
 * that the rank writes at that moment are lost.
 */
enum hd_status sup_log_bound(const char *path, int64_t limit_bytes, int64_t *ret_size_bytes);

enum { SUP_LOG_CUT_TAIL = 256 << 10 };
/* Removes the bytes of a log from offset `begin` on, except the last SUP_LOG_CUT_TAIL bytes, by
 * truncating; for file systems without holes, and for tests. Sets *ret_end to the offset at which
 * these last bytes begin. */
enum hd_status sup_log_cut(int fd, int64_t begin, int64_t *ret_end);

#endif

/* log: one line per event on stderr, for operators and for the journal.
 *
 *     2026-03-01T12:00:00.123Z info  heddled: reconnected to the controller after 3.1 s
 *     {"time":"2026-03-01T12:00:00.123Z","level":"info","program":"heddled","message":"connected"}
 *
 * If standard error is the systemd journal, a line begins with its level in the form of
 * sd-daemon(3) (<6>), which the journal removes, and a line of text has no time and no program
 * name, because the journal adds both.
 *
 * Programs log; libraries return a status. (The CUDA backend also logs conditions that make a GPU
 * slow without a failure.) A line is one write(2), so lines of several processes that share a file
 * opened with O_APPEND do not mix. A line longer than 2 KiB is truncated.
 *
 * Used by: programs, the event loops of daemon and controller, kernels/cuda.
 * Uses: status, clock, text.
 * Threads: any; call hd_log_init before other threads start. */
#ifndef HD_BASE_LOG_H
#define HD_BASE_LOG_H

#include <stdbool.h>

#include "base/status.h"

enum hd_log_level { HD_LOG_ERROR, HD_LOG_WARN, HD_LOG_INFO, HD_LOG_DEBUG };

/* Sets the program name for every line and the most detailed level that is written. The environment
 * variable HEDDLE_LOG (error|warn|info|debug) overrides `level`. */
void hd_log_init(const char *program, enum hd_log_level level);

/* Selects whether log lines are written as JSON or as plain text. Call it before other threads
 * start. */
void hd_log_set_json(bool json);
/* Parses "text" or "json", the operator's setting. HD_INVALID: any other word. */
enum hd_status hd_log_read_format(const char *word, bool *ret_json);

void hd_log(enum hd_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif

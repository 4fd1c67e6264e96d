/* log: one line per event on stderr, for operators and for the journal.
 *
 *     2026-03-01T12:00:00.123Z info  heddled: reconnected to the controller after 3.1 s
 *
 * Programs log; libraries return a status. (The CUDA backend also logs what makes a GPU slow
 * without a failure.) A line is one write(2), so lines of several processes
 * that share a file opened with O_APPEND do not mix. A line longer than 2 KiB is truncated.
 *
 * Used by: programs, the event loops of daemon and controller, kernels/cuda.   Uses: clock.
 * Threads: any; call hd_log_init before other threads start.
 */
#ifndef HD_BASE_LOG_H
#define HD_BASE_LOG_H

enum hd_log_level { HD_LOG_ERROR, HD_LOG_WARN, HD_LOG_INFO, HD_LOG_DEBUG };

/* Sets the program name for every line and the most detailed level that is written. The environment
 * variable HEDDLE_LOG (error|warn|info|debug) overrides `level`. */
void hd_log_init(const char *program, enum hd_log_level level);

void hd_log(enum hd_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif

/* proc: small texts that the kernel writes, in /proc and /sys.
 *
 * Used by: daemon, prometheus.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_PROC_H
#define HD_BASE_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

/* Reads a file's text with one call of read, as the kernel writes it; what does not fit is left
 * out. False, and "": the file cannot be read, or is empty. */
bool hd_proc_read(const char *path, char *ret_text, size_t size);
/* Reads a file's first line, without its newline. False, and "": the file cannot be read, or the
 * line is empty. */
bool hd_proc_line(const char *path, char *ret_line, size_t size);

/* Fields of /proc/PID/stat. */
struct hd_proc_stat {
    char state;
    pid_t parent, session;
    int64_t start_ticks; /* clock ticks from the machine's start to that of the process */
    int64_t resident_pages;
};
/* HD_NOT_FOUND: there is no such process. */
enum hd_status hd_proc_stat_read(pid_t pid, struct hd_proc_stat *ret_stat);

#endif

/* load: how busy other programs keep the processors of this machine.
 *
 * Used by: prober.   Uses: base.   Threads: any; no state.
 */
#ifndef HD_DAEMON_DEVICES_LOAD_H
#define HD_DAEMON_DEVICES_LOAD_H

#include <stdbool.h>
#include <stdint.h>

/* Time of all processors together since the machine's start, in clock ticks; {0}: not known. */
struct hd_load {
    int64_t busy, total; /* busy: user, nice, system, interrupts, and what a hypervisor took away */
    int64_t own;         /* user and system time of ended children of this process */
};

/* Reads the first line of a file as proc(5) describes /proc/stat. */
struct hd_load hd_load_read(const char *path);

/* Returns the share of the processors' time between two readings, from 0 to 1, in which processes
 * other than the ended children of this one used them; 0: not known. */
double hd_load_of_others(const struct hd_load *from, const struct hd_load *to);

#endif

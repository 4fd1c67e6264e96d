/* load: measures how much of the processors' time other programs use.
 *
 * Used by: prober.   Uses: base.   Threads: any; no state.
 */
#ifndef HD_DAEMON_DEVICES_LOAD_H
#define HD_DAEMON_DEVICES_LOAD_H

#include <stdbool.h>
#include <stdint.h>

/* Time of all processors together since boot, in clock ticks; {0}: unknown. */
struct hd_load {
    /* time in use (user, nice, system, interrupts, and time stolen by a hypervisor), and all time,
     * in ticks */
    int64_t busy, total;
    int64_t own; /* user and system time of reaped children of this process, in ticks */
};

/* Reads the processor times from a file in the format of /proc/stat (proc(5)); {0} on failure. */
struct hd_load hd_load_read(const char *path);

/* Returns the fraction (0 to 1) of the processors' time between two readings that was used by
 * processes other than reaped children of this one; 0 also if unknown. */
double hd_load_of_others(const struct hd_load *from, const struct hd_load *to);

#endif

/* starve: how long a process that gives no sign of life has waited for a processor.
 *
 * A process that is ready to run, but gets no processor because other programs take them, looks
 * like one that hangs. The kernel counts how long each thread has waited in the run queue
 * (/proc/PID/task/TID/schedstat), but only when the wait ends; a thread that was ready to run at
 * two looks, and ran at no time between them, has waited since the first. The thread that has
 * waited longest counts for its process: its other threads wait for it.
 *
 * Used by: supervisor (ranks), agent (supervisors), tests.   Uses: libc.   Threads: one owner.
 */
#ifndef HD_DAEMON_ATTEMPT_STARVE_H
#define HD_DAEMON_ATTEMPT_STARVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { HD_STARVE_THREADS_MAX = 64 }; /* of a process that are looked at, the oldest first */

/* A thread, as the kernel shows it. */
struct hd_starve_thread {
    pid_t tid;
    bool runnable;             /* it runs, or waits for a processor (state R) */
    int64_t ran_ns, waited_ns; /* on a processor, and in the run queue, since its start */
};

/* What is known of one silence of a process. All zero: nothing. */
struct hd_starve {
    int64_t received_ms;       /* the sign of life with which the silence began */
    int64_t begin_ms, seen_ms; /* the first look at this silence, and the last */
    int64_t starved_ms;        /* waited for a processor from the first look to the last */
    int count;
    struct {
        struct hd_starve_thread seen;
        int64_t ahead_ns;   /* counted before the kernel has counted it */
        int64_t starved_ns; /* since the first look */
    } threads[HD_STARVE_THREADS_MAX];
};

/* The threads of a process; 0: there is none. */
int hd_starve_sample(pid_t pid, struct hd_starve_thread ret_threads[HD_STARVE_THREADS_MAX]);

/* Adds a look at the silence that began at received_ms. Another silence than at the look before
 * begins anew. */
void hd_starve_note(struct hd_starve *starve, int64_t received_ms,
                    const struct hd_starve_thread *threads, int count, int64_t now_ms);

/* Of the silence that began at received_ms: how long the process waited for a processor, as far as
 * was looked. */
int64_t hd_starve_ms(const struct hd_starve *starve, int64_t received_ms);

#endif

/* starve: measures how long a process that gives no sign of life has waited for a CPU.
 *
 * A process that is ready to run, but gets no CPU because other programs use all of them, looks
 * like one that hangs. The kernel counts how long each thread has waited in the run queue
 * (/proc/PID/task/TID/schedstat), but only when the wait ends; a thread that was ready to run in
 * two samples, and did not run between them, has waited since the first. The thread that has waited
 * longest counts for its process: its other threads wait for it.
 *
 * Used by: supervisor (ranks), agent (supervisors), tests.   Uses: libc.   Threads: one owner.
 */
#ifndef HD_DAEMON_ATTEMPT_STARVE_H
#define HD_DAEMON_ATTEMPT_STARVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { HD_STARVE_THREADS_MAX = 64 }; /* threads of a process that are sampled, the oldest first */

/* One sample of a thread. */
struct hd_starve_thread {
    pid_t tid;
    bool runnable;             /* it runs, or waits for a CPU (state R) */
    int64_t ran_ns, waited_ns; /* time on a CPU, and in the run queue, since the thread's start */
};

/* CPU waits during one silence of a process. {0}: no sample yet. */
struct hd_starve {
    int64_t received_ms;       /* time of the sign of life with which the silence began */
    int64_t begin_ms, seen_ms; /* times of the first and the last sample of this silence */
    int64_t starved_ms;        /* ms that the process waited for a CPU between these two samples */
    int count;
    struct {
        struct hd_starve_thread seen;
        int64_t ahead_ns;   /* wait that was counted before the kernel counts it */
        int64_t starved_ns; /* wait since the first sample */
    } threads[HD_STARVE_THREADS_MAX];
};

/* Samples the threads of a process and returns their number; 0: no such process. */
int hd_starve_sample(pid_t pid, struct hd_starve_thread ret_threads[HD_STARVE_THREADS_MAX]);

/* Adds a sample to the silence that began at received_ms. A sample of another silence starts
 * anew. */
void hd_starve_note(struct hd_starve *starve, int64_t received_ms,
                    const struct hd_starve_thread *threads, int count, int64_t now_ms);

/* Returns how many ms the process waited for a CPU in the silence that began at received_ms, as far
 * as it was sampled; 0: another silence. */
int64_t hd_starve_ms(const struct hd_starve *starve, int64_t received_ms);

#endif

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

/* most threads of a process that are sampled, the oldest ones */
enum { HD_STARVE_THREADS_MAX = 64 };

/* One sample of a thread. */
struct hd_starve_thread {
    pid_t tid;
    bool runnable; /* true: the thread runs, or waits for a CPU (state R) */
    /* ns that the thread ran on a CPU, and waited in the run queue, since its start */
    int64_t ran_ns, waited_ns;
};

/* CPU waits during one silence of a process. {0}: no sample yet. */
struct hd_starve {
    int64_t received_ms;       /* time of the sign of life with which the silence began */
    int64_t begin_ms, seen_ms; /* times of the first and the last sample of this silence */
    int64_t starved_ms;        /* ms that the process waited for a CPU between these two samples */
    int count;
    struct {
        struct hd_starve_thread seen;
        /* ns of a wait that are already counted here, but not yet by the kernel */
        int64_t ahead_ns;
        int64_t starved_ns; /* ns that the thread waited for a CPU since the first sample */
    } threads[HD_STARVE_THREADS_MAX];
};

/* Samples the threads of a process and returns the number of samples; 0: there is no such
 * process. */
int hd_starve_sample(pid_t pid, struct hd_starve_thread ret_threads[HD_STARVE_THREADS_MAX]);

/* Adds a sample of a process's threads to the silence that began at received_ms. A sample of
 * another silence starts the count anew. */
void hd_starve_note(struct hd_starve *starve, int64_t received_ms,
                    const struct hd_starve_thread *threads, int count, int64_t now_ms);

/* Returns the ms for which the process waited for a CPU in the silence that began at received_ms,
 * as far as it was sampled; 0: the samples are of another silence. */
int64_t hd_starve_ms(const struct hd_starve *starve, int64_t received_ms);

#endif

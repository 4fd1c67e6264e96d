/* ask: runs `heddle-worker gpus` or `heddle-worker device` with a deadline and reads its answer.
 *
 * The program calls drivers, which may hang in the kernel, where a process cannot be killed. So the
 * functions here do not wait for the process to end: the answer is complete when the process closes
 * its standard output; then it is sent SIGKILL. A process that does not die is left behind, and
 * hd_ask_begin refuses to start another one until it is gone. Its standard error goes to heddled's
 * log.
 *
 * Used by: devices, agent (--doctor).   Uses: base.   Threads: one owner at a time.
 */
#ifndef HD_DAEMON_DEVICES_ASK_H
#define HD_DAEMON_DEVICES_ASK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/text.h"
#include "daemon/devices/gpu.h"

/* deadline of a run, ms; 8 GPUs without persistence mode take up to 20 s */
enum { HD_ASK_MS = 30000 };

/* One run of the program. Initialise with {0}; call hd_ask_end at the end. */
struct hd_worker_run {
    char program[256]; /* path and verb of the program, for messages */
    pid_t pid;         /* process of the run; 0: never started, or ended and reaped */
    int ended;         /* wait status of the process, valid once it was reaped */
    int fd;            /* read end of the process's standard output; valid while `open` */
    bool open;
    int timeout_ms;
    int64_t deadline_ms; /* deadline of the run, by hd_clock_now_ms */
    struct hd_text answer;
};

/* Starts the program argv[0], a path, with the verb argv[1]. HD_IO: it cannot be started.
 * HD_CONFLICT: the process of the previous run still exists. */
enum hd_status hd_ask_begin(struct hd_worker_run *ask, const char *const argv[], int timeout_ms);
/* Reads what the process has printed so far, without waiting. Returns true when the run is over;
 * then *ret_status is HD_OK, HD_TIMEOUT (no complete answer by the deadline), HD_IO (it printed
 * nothing) or HD_LIMIT (it printed too much). */
bool hd_ask_step(struct hd_worker_run *ask, enum hd_status *ret_status);
/* Blocks until the run is over; returns its status as in hd_ask_step. */
enum hd_status hd_ask_wait(struct hd_worker_run *ask);
/* Kills the process if it still runs, and waits up to 0.2 s for its end. Keeps the answer. */
void hd_ask_reap(struct hd_worker_run *ask);
/* Calls hd_ask_reap, and frees the process's answer. */
void hd_ask_end(struct hd_worker_run *ask);

/* Start `heddle-worker gpus` without waiting, and read its answer once hd_ask_step has ended with
 * HD_OK. */
enum hd_status hd_ask_gpus_begin(struct hd_worker_run *ask, const char *worker);
enum hd_status hd_ask_gpus_read(const struct hd_worker_run *ask, struct hd_gpu_list *ret_list);

/* Properties of the processor that decide about precision and plans. */
enum { HD_PROCESSOR_TRAITS_MAX = 1024 };
struct hd_processor {
    char isa[32];                         /* instruction set, such as "avx512_bf16" */
    char library[32];                     /* library for matrix products; "own": Heddle's own
                                             code */
    bool gloo;                            /* whether ranks can work with ranks on other nodes */
    bool bf16;                            /* whether matrix products are faster in bf16 than in
                                             fp32 */
    char traits[HD_PROCESSOR_TRAITS_MAX]; /* traits that a planner of the same build reads */
};

/* Runs `heddle-worker device` and reads its answer; blocks for at most HD_ASK_MS. */
enum hd_status hd_ask_processor(const char *worker, int threads, struct hd_processor *ret_cpu);

#endif

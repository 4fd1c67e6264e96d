/* ask: runs `heddle-worker gpus` or `heddle-worker device` with a deadline and reads its answer.
 *
 * The program calls drivers, which may hang in the kernel, where a process cannot be killed. So
 * nothing here waits for the process itself: its answer is complete when it closes its standard
 * output, then it is sent SIGKILL. One that does not die is left behind, and hd_ask_begin refuses
 * to start another one until it is gone. What it writes to standard error goes to heddled's log.
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

enum { HD_ASK_MS = 30000 }; /* the deadline; 8 GPUs without persistence mode may take 20 s */

/* One run of the program. Start with {0}; hd_ask_end in the end. */
struct hd_worker_run {
    char program[256]; /* path and verb, for messages */
    pid_t pid;         /* 0: it has ended and was reaped, or was never started */
    int ended;         /* how, as waitpid says, once it was reaped */
    int fd;            /* its standard output, while `open` */
    bool open;
    int timeout_ms;
    int64_t deadline_ms; /* by hd_clock_now_ms */
    struct hd_text answer;
};

/* Starts argv[0], a path; argv[1] is its verb. HD_IO: it cannot be started; HD_CONFLICT: the
 * process of the run before still exists. */
enum hd_status hd_ask_begin(struct hd_worker_run *ask, const char *const argv[], int timeout_ms);
/* Reads what the process has printed so far, without waiting. True: the run is over. *ret_status:
 * HD_OK, HD_TIMEOUT (no complete answer by the deadline), HD_IO (it printed nothing) or HD_LIMIT
 * (it printed too much). */
bool hd_ask_step(struct hd_worker_run *ask, enum hd_status *ret_status);
/* Steps until the run is over. */
enum hd_status hd_ask_wait(struct hd_worker_run *ask);
/* Kills the process if it still runs and waits up to 0.2 s for its end; the answer stays. */
void hd_ask_reap(struct hd_worker_run *ask);
/* Calls hd_ask_reap, and frees the answer. */
void hd_ask_end(struct hd_worker_run *ask);

/* `heddle-worker gpus`, without waiting: hd_ask_gpus_read when hd_ask_step has returned HD_OK. */
enum hd_status hd_ask_gpus_begin(struct hd_worker_run *ask, const char *worker);
enum hd_status hd_ask_gpus_read(const struct hd_worker_run *ask, struct hd_gpu_list *ret_list);

/* What the processor computes fast. */
enum { HD_PROCESSOR_TRAITS_MAX = 1024 };
struct hd_processor {
    char isa[32];                         /* instruction set, "avx512_bf16" */
    char library[32];                     /* that multiplies matrices; "own": Heddle's own code */
    bool gloo;                            /* ranks can work with ranks of other nodes */
    bool bf16;                            /* matrix products in bf16 are faster than in fp32 */
    char traits[HD_PROCESSOR_TRAITS_MAX]; /* for planning programs of the same build */
};

/* `heddle-worker device`; blocks for at most HD_ASK_MS. */
enum hd_status hd_ask_processor(const char *worker, int threads, struct hd_processor *ret_cpu);

#endif

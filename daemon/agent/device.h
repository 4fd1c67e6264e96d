/* device: what this node's devices compute fast, as the program that will compute says it.
 *
 * heddled links no compute and loads no driver; `heddle-worker device` knows the processor's
 * instruction sets and what the kernels make of them, `heddle-worker gpus` the GPUs.
 *
 * Used by: agent.   Uses: base, daemon/gpu.   Threads: the agent's.
 */
#ifndef HD_DAEMON_AGENT_DEVICE_H
#define HD_DAEMON_AGENT_DEVICE_H

#include <stdbool.h>

#include "base/status.h"
#include "daemon/agent/ask.h"
#include "daemon/gpu/gpu.h"

struct agent_device {
    char isa[32];     /* "avx512_bf16" */
    char library[32]; /* that multiplies, "own" for none; "": not told */
    bool gloo;        /* ranks can work with those of other nodes */
    bool bf16;        /* matrix products in bf16 are faster than in fp32 */
};

/* Runs the worker and reads what it prints, at most 30 s. */
enum hd_status agent_device_ask(const char *worker, int threads, struct agent_device *ret_device);

/* The same for GPUs. A failure is of the worker or of a driver that hangs, not of a GPU: those are
 * told in the list. */
enum hd_status agent_gpus_ask(const char *worker, int timeout_ms, struct hd_gpu_list *ret_list);
/* In two steps, for a loop that must not wait: agent_ask_step between them says when. */
enum hd_status agent_gpus_begin(const char *worker, int timeout_ms, struct agent_ask *ask);
enum hd_status agent_gpus_understand(const struct agent_ask *ask, struct hd_gpu_list *ret_list);

#endif

/* request: what heddled asks heddle-launcher for: a supervisor in a unit of its own.
 *
 * A connection to the launcher's Unix socket carries one request, a text of lines, closed by the
 * end of the stream, and one answer, "ok" or "error TEXT":
 *
 *     heddle-launch 1
 *     job 7
 *     attempt 2
 *     umask 027
 *     gpu /dev/nvidia3               any number: the job's GPUs; `gpu all`: they are not known
 *     env NCCL_DEBUG=WARN            any number; names as isolation/environment.h says
 *     arg --job                      the supervisor's arguments, in order
 *     arg /shared/heddle/7/attempt-2/nodes/n1/job
 *
 * Values hold no control characters. Used by: launcher, agent.   Uses: base, isolation.   Threads:
 * any.
 */
#ifndef HD_DAEMON_LAUNCHER_REQUEST_H
#define HD_DAEMON_LAUNCHER_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum {
    REQUEST_BYTES_MAX = 64 << 10,
    REQUEST_ARGS_MAX = 64,
    REQUEST_ENV_MAX = 128,
    REQUEST_GPUS_MAX = 64
};

struct launch_request {
    int64_t job, attempt;
    const char *umask;                  /* octal digits */
    const char *gpus[REQUEST_GPUS_MAX]; /* "/dev/nvidiaN" or "all" */
    int gpu_count;
    const char *args[REQUEST_ARGS_MAX];
    int arg_count;
    const char *env[REQUEST_ENV_MAX]; /* "NAME=VALUE" */
    int env_count;
};

/* Takes the request apart in place: the texts of ret_request lie in `bytes`, which a NUL follows.
 * HD_INVALID: it is none; the message says why. */
enum hd_status request_read(char *bytes, size_t count, struct launch_request *ret_request);

/* Sends a request and waits for the answer, at most timeout_ms each way. gpus: as in the struct,
 * NULL ends them. env: of this process, what is allowed of it goes along. HD_UNAVAILABLE: no
 * launcher listens at `path`; HD_DENIED, HD_IO: the launcher refused, or could not; the message has
 * its words. */
enum hd_status request_send(const char *path, int64_t job, int64_t attempt, unsigned umask_bits,
                            const char *const *gpus, char *const *args, char *const *env,
                            int timeout_ms);

#endif

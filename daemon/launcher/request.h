/* request: what heddled asks heddle-launcher for: a supervisor in a unit of its own, and what only
 * root can say or do about one that runs as another user.
 *
 * A connection to the launcher's Unix socket carries one request, a text of lines, closed by the
 * end of the stream, and one answer: "ok", with words of it behind; "refused TEXT", which another
 * try does not change; or "error TEXT".
 *
 *     heddle-launch 1
 *     do start                       or find, kill, about; start, if the line is left out
 *     user alice                     start, find: a name, or uid:1001; else the launcher's --for
 *     job 7                          start, kill
 *     attempt 2
 *     umask 027
 *     gpu /dev/nvidia3               any number: the job's GPUs; `gpu all`: they are not known
 *     env NCCL_DEBUG=WARN            any number; names as isolation/environment.h says
 *     arg --job                      the supervisor's arguments, in order
 *     arg /shared/heddle/7/attempt-2/nodes/n1/job
 *     signal KILL                    kill: or CONT; 0: none, only say whether there is a process
 *
 * Values hold no control characters. `find` answers "ok UID" of a user as whom jobs may run here;
 * `kill` sends the signal to all processes of the attempt's unit, and answers "ok gone" if there
 * are none; `about` answers "ok WHOM": as whom jobs may run.
 *
 * Used by: launcher, agent.   Uses: base, isolation.   Threads: any.
 */
#ifndef HD_DAEMON_LAUNCHER_REQUEST_H
#define HD_DAEMON_LAUNCHER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "base/text.h"

enum {
    REQUEST_BYTES_MAX = 64 << 10,
    REQUEST_ARGS_MAX = 64,
    REQUEST_ENV_MAX = 128,
    REQUEST_GPUS_MAX = 64,
    REQUEST_ANSWER_MAX = 1024
};

enum request_deed { REQUEST_START, REQUEST_FIND, REQUEST_KILL, REQUEST_ABOUT };

struct launch_request {
    enum request_deed deed;
    int64_t job, attempt;
    const char *user;                   /* as base/user.h; NULL: the launcher's --for */
    const char *signal;                 /* "KILL", "CONT", or "0": none, only look */
    const char *umask;                  /* octal digits */
    const char *gpus[REQUEST_GPUS_MAX]; /* "/dev/nvidiaN" or "all" */
    int gpu_count;
    const char *args[REQUEST_ARGS_MAX];
    int arg_count;
    const char *env[REQUEST_ENV_MAX]; /* "NAME=VALUE" */
    int env_count;
};

/* Takes the request apart in place: the texts of ret_request lie in `bytes`, which a NUL follows.
 * HD_INVALID: it is none; HD_DENIED: its user is root; the message says why. */
enum hd_status request_read(char *bytes, size_t count, struct launch_request *ret_request);

/* ---- asking: each waits for the answer, at most timeout_ms each way. HD_UNAVAILABLE: no launcher
 * listens at `path`; HD_DENIED: it refuses; HD_IO: it could not; the message has its words. ---- */

/* gpus: as in the struct, NULL ends them. env: of this process, what is allowed of it goes along.
 * user: NULL: the launcher's --for. */
enum hd_status request_start(const char *path, int64_t job, int64_t attempt, const char *user,
                             unsigned umask_bits, const char *const *gpus, char *const *args,
                             char *const *env, int timeout_ms);
enum hd_status request_find(const char *path, const char *user, int timeout_ms, uid_t *ret_uid);
/* *ret_gone: the unit has no process. */
enum hd_status request_kill(const char *path, int64_t job, int64_t attempt, const char *signal,
                            int timeout_ms, bool *ret_gone);
enum hd_status request_about(const char *path, int timeout_ms, char *ret_whom, size_t size);

#endif

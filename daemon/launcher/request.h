/* request: requests of heddled to heddle-launcher: to start a supervisor in a unit of its own, and
 * what only root can find out or do about one that runs as another user.
 *
 * A connection to the launcher's Unix socket carries one request, lines of text until the end of
 * the stream, and one reply: "ok" with words after it; "refused TEXT": a retry is useless; or
 * "error TEXT".
 *
 *   heddle-launch 1
 *   do start                         or find, kill, about; start, if the line is left out
 *   user alice                       start, find: a name, or uid:1001; else the launcher's --for
 *   job 7                            start, kill
 *   attempt 2
 *   umask 027
 *   gpu /dev/nvidia3                 any number: the job's GPUs; `gpu all`: unknown, so all of them
 *   env NCCL_DEBUG=WARN              any number; names as isolation/environment.h allows
 *   arg --job                        the supervisor's arguments, in order
 *   arg /shared/heddle/7/attempt-2/nodes/n1/job
 *   signal KILL                      kill: or CONT; 0: send none, only check for processes
 *
 * Values contain no control characters. `find` replies "ok UID" for a user as which jobs may run
 * here. `kill` sends the signal to all processes of the attempt's unit, and replies "ok gone" if it
 * has none. `about` replies "ok LIST": the users as which jobs may run (--job-users), or "own".
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
    const char *user;                   /* syntax as in base/user.h; NULL: the launcher's --for */
    const char *signal;                 /* "KILL", "CONT", or "0": only check for processes */
    const char *umask;                  /* octal digits */
    const char *gpus[REQUEST_GPUS_MAX]; /* "/dev/nvidiaN" or "all" */
    int gpu_count;
    const char *args[REQUEST_ARGS_MAX];
    int arg_count;
    const char *env[REQUEST_ENV_MAX]; /* "NAME=VALUE" */
    int env_count;
};

/* Parses the request in place: the texts of ret_request point into `bytes`, which ends with a NUL.
 * HD_INVALID: it is malformed. HD_DENIED: its user is root. The message says why. */
enum hd_status request_read(char *bytes, size_t count, struct launch_request *ret_request);

/* ---- requests ---------------------------------------------------------------------------------*/

/* The functions below send a request and wait for the reply, at most timeout_ms each way.
 * HD_UNAVAILABLE: no launcher listens at `path`. HD_DENIED: the launcher refuses. HD_IO: the
 * launcher failed. The message has the launcher's text. */

/* Starts a supervisor. gpus: as in the struct, ended by NULL. env: this process's environment, of
 * which allowed variables are passed on. user NULL: the launcher's --for. */
enum hd_status request_start(const char *path, int64_t job, int64_t attempt, const char *user,
                             unsigned umask_bits, const char *const *gpus, char *const *args,
                             char *const *env, int timeout_ms);
enum hd_status request_find(const char *path, const char *user, int timeout_ms, uid_t *ret_uid);
/* Sends a signal to the attempt's unit. *ret_gone: the unit has no process. */
enum hd_status request_kill(const char *path, int64_t job, int64_t attempt, const char *signal,
                            int timeout_ms, bool *ret_gone);
enum hd_status request_about(const char *path, int timeout_ms, char *ret_whom, size_t size);

#endif

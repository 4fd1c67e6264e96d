/* environment: which environment variables of heddled reach the ranks of jobs.
 *
 * heddled may have been started with secrets in its environment, so that a list says what goes on:
 * what the C library, the loader, NCCL, CUDA, OpenMP, oneDNN, gloo and RDMA libraries read, and
 * HEDDLE_*. Not HEDDLE_CONTROLLER and HEDDLE_TOKEN_FILE, which belong to heddled itself. An
 * operator adds names by the variable HEDDLE_PASS_ENV, such as "UCX_TLS,SITE_*".
 *
 * Used by: launcher, supervisor.   Uses: base.   Threads: one, before others are started.
 */
#ifndef HD_DAEMON_ISOLATION_ENVIRONMENT_H
#define HD_DAEMON_ISOLATION_ENVIRONMENT_H

#include <stdbool.h>

/* Whether a variable (text up to '=') may go from heddled by heddle-launcher to a supervisor in a
 * unit of its own: no LD_*, no PATH, no HOME. Some of those that may load plug-ins
 * (NCCL_NET_PLUGIN): as the user of the ranks. */
bool hd_environment_may_travel(const char *variable);

#define HD_ENVIRONMENT_NAMES "HEDDLE_PASS_ENV" /* the variable that has further names */

/* Removes all variables from this process's environment that are neither on the list nor in
 * `names`, a list with commas in which `*` ends a prefix; NULL: no further names. */
void hd_environment_clean(const char *names);

#endif

/* environment: environment variables of heddled that reach the ranks of jobs.
 *
 * heddled may have been started with secrets in its environment, so only listed variables are
 * passed on: those read by the C library, the loader, NCCL, CUDA, OpenMP, oneDNN, gloo and RDMA
 * libraries, and HEDDLE_*, except HEDDLE_CONTROLLER and HEDDLE_TOKEN_FILE, which belong to heddled.
 * An operator adds names with the variable HEDDLE_PASS_ENV, such as "UCX_TLS,SITE_*".
 *
 * Used by: launcher, supervisor.   Uses: base.   Threads: one, before others are started.
 */
#ifndef HD_DAEMON_ISOLATION_ENVIRONMENT_H
#define HD_DAEMON_ISOLATION_ENVIRONMENT_H

#include <stdbool.h>

/* Returns whether a variable (text up to '=') may pass from heddled through heddle-launcher to a
 * supervisor in its own unit: not LD_*, PATH or HOME. Some of those allowed can load plug-ins
 * (NCCL_NET_PLUGIN), which then run as the user of the ranks. */
bool hd_environment_may_travel(const char *variable);

#define HD_ENVIRONMENT_NAMES "HEDDLE_PASS_ENV" /* its value: further names to pass on */

/* Removes from this process's environment all variables that are neither in the built-in list nor
 * in `names`, a list separated by commas in which `*` ends a prefix; NULL: no further names. */
void hd_environment_clean(const char *names);

#endif

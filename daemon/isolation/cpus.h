/* cpus: the processors that ranks may use, as a list such as "2-15,20".
 *
 * Used by: agent, supervisor, launcher.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_ISOLATION_CPUS_H
#define HD_DAEMON_ISOLATION_CPUS_H

#include "base/status.h"

/* HD_INVALID: it is no such list. */
enum hd_status hd_cpus_check(const char *list);

/* The calling thread, and what it starts, use these processors alone. HD_INVALID: none of them is
 * among those that it may use. */
enum hd_status hd_cpus_use(const char *list);

#endif

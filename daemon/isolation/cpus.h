/* cpus: the processors that ranks may use, as a list such as "2-15,20".
 *
 * Used by: agent, supervisor, launcher.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_ISOLATION_CPUS_H
#define HD_DAEMON_ISOLATION_CPUS_H

#include "base/status.h"

/* Checks the syntax of a list of processors. HD_INVALID: it is malformed. */
enum hd_status hd_cpus_check(const char *list);

/* Restricts the calling thread, and all that it starts, to the processors of the list. HD_INVALID:
 * the thread may use none of them. */
enum hd_status hd_cpus_use(const char *list);

#endif

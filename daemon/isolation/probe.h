/* probe: sandbox mechanisms that this kernel has for the ranks of jobs, for `heddle nodes` and
 * messages.
 *
 * Used by: agent, sandbox.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_ISOLATION_PROBE_H
#define HD_DAEMON_ISOLATION_PROBE_H

#include <stdbool.h>

#include "base/text.h"

struct hd_locks {
    bool seccomp;
    int landlock; /* version of the Landlock ABI; 0: the kernel has none */
};

struct hd_locks hd_locks_find(void);

/* Appends the available mechanisms to ret_has, e.g. "seccomp, landlock 7", and the missing ones,
 * with how to get them, to ret_lacks; appends nothing to ret_lacks if none is missing. */
void hd_locks_describe(struct hd_locks locks, struct hd_text *ret_has, struct hd_text *ret_lacks);

#endif

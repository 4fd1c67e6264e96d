/* probe: which locks this kernel has for the ranks of jobs, for `heddle nodes` and for messages.
 *
 * Used by: agent, sandbox.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_ISOLATION_PROBE_H
#define HD_DAEMON_ISOLATION_PROBE_H

#include <stdbool.h>

#include "base/text.h"

struct hd_locks {
    bool seccomp;
    int landlock; /* version of its interface; 0: the kernel has none */
};

struct hd_locks hd_locks_find(void);

/* Appends "seccomp, landlock 7" to ret_has, and to ret_lacks what is missing and what helps; to
 * either nothing where there is nothing. */
void hd_locks_describe(struct hd_locks locks, struct hd_text *ret_has, struct hd_text *ret_lacks);

#endif

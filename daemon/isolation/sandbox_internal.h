/* sandbox_internal: shared by the files of the sandbox. Only for daemon/isolation. */
#ifndef HD_DAEMON_ISOLATION_SANDBOX_INTERNAL_H
#define HD_DAEMON_ISOLATION_SANDBOX_INTERNAL_H

#include <stdbool.h>

#include "daemon/isolation/sandbox.h"

/* Makes a Landlock ruleset (landlock.c). version: of the kernel's Landlock ABI, > 0. */
enum hd_status landlock_new(int version, bool network, int *ret_ruleset);
enum hd_status landlock_allow(int ruleset, int version, int fd, enum hd_sandbox_access access);
enum hd_status landlock_enter(int ruleset);

/* Loads the filter of system calls (seccomp.c). flags: as for hd_sandbox_begin. HD_NOT_FOUND: this
 * build has no libseccomp. */
enum hd_status seccomp_enter(unsigned flags);
enum hd_status seccomp_close_network(void);

#endif

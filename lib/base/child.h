/* child: waits for a helper process, with a limit on its time and its output.
 *
 * A helper may hang before it writes anything, after it has closed its output, while it writes
 * without end, or in a driver where no signal ends it. hd_child_wait returns in all these cases.
 *
 * Used by: heddle-launcher, the command.   Uses: clock, text, status.   Threads: any. */
#ifndef HD_BASE_CHILD_H
#define HD_BASE_CHILD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "base/text.h"

/* Reads fd, the reading end of the pipe that the child `pid` writes its output to, until the child
 * has ended, and reaps it. Appends the first max_bytes to ret_output; reads and drops the rest.
 * Does not wait for output that the child's own children write after its end. *ret_status: as from
 * waitpid. Does not close fd. Returns HD_TIMEOUT if the child had not ended after timeout_ms (0: no
 * limit, for work that the user sees and can interrupt); it was sent SIGKILL, and was reaped if it
 * ended within a second. */
enum hd_status hd_child_wait(pid_t pid, int fd, int64_t timeout_ms, size_t max_bytes,
                             struct hd_text *ret_said, int *ret_status);

#endif

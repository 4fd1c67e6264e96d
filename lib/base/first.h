/* first: the duties of the first process of a container.
 *
 * Process 1 of a PID namespace adopts every process whose parent ends, and must reap it: a killed
 * supervisor leaves ranks behind, and a rank that has ended but was not reaped still counts as
 * alive. Signals without a handler do not reach process 1 at all. So a program that is started as
 * process 1 splits in two: process 1 forwards signals and reaps, its child is the program. The
 * image needs no other init program (tini, dumb-init).
 *
 * Used by: the mains of heddle-controller and heddled.   Uses: status.
 * Threads: call before any start.
 */
#ifndef HD_BASE_FIRST_H
#define HD_BASE_FIRST_H

#include "base/status.h"

/* If this is process 1, forks: the function returns only in the child, and process 1 ends with the
 * child's exit status, or with 128 plus the number of the signal that ended the child. Does nothing
 * in any other process. HD_NO_MEMORY: fork failed. */
enum hd_status hd_first_split(void);

#endif

/* first: what the first process of a container does beside its own work.
 *
 * Process 1 of a process namespace adopts every process whose parent ends, and must collect its
 * end: a supervisor that was killed leaves ranks behind, and a rank that has ended but was not
 * collected still counts as alive. Signals without a handler do not reach process 1 at all. A
 * program that is started as process 1 therefore splits in two: process 1 forwards signals and
 * collects ends, its child is the program. No other program (tini, dumb-init) is needed in an
 * image.
 *
 * Used by: the mains of heddle-controller and heddled.   Uses: status.   Threads: before there are
 * any.
 */
#ifndef HD_BASE_FIRST_H
#define HD_BASE_FIRST_H

#include "base/status.h"

/* If this is process 1, returns in a child of it; process 1 itself never returns: it ends with the
 * child's exit status, or with 128 and the number of the signal that ended the child. In any other
 * process it does nothing. HD_NO_MEMORY: no child could be made. */
enum hd_status hd_first_split(void);

#endif

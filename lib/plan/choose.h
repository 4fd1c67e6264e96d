/* choose: what `auto` becomes. Pure arithmetic, so that the controller and `heddle plan` say the
 * same.
 *
 * Used by: controller, the heddle command.   Uses: libc.   Threads: pure.
 */
#ifndef HD_PLAN_CHOOSE_H
#define HD_PLAN_CHOOSE_H

#include <stdint.h>

enum { HD_MICRO_BATCH_AUTO_MAX = 8 }; /* sequences: enough to fill the cores, small in memory */

/* The micro-batch of a rank that has `share` sequences of each step: the largest divisor up to
 * HD_MICRO_BATCH_AUTO_MAX. share >= 1. */
int32_t hd_plan_micro_batch(int64_t share);

#endif

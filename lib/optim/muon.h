/* muon: the part of program U that updates whole matrices (program/matrices.h).
 *
 * Used by: optim.c.   Uses: program.   Threads: any; no state.
 */
#ifndef HD_OPTIM_MUON_H
#define HD_OPTIM_MUON_H

#include "program/emit.h"

/* Emits the updates of all buckets with matrices, one round after the other; `finish` emits what
 * follows the update of a bucket. */
void hd_muon_emit(struct hd_emit *e, void (*finish)(struct hd_emit *e, int bucket));

#endif

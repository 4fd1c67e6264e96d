/* qk_clip: which weights QK-clip (train.qk_clip) scales after an update.
 *
 * Used by: optim.c, train/offload.c.   Uses: program.   Threads: a pure function.
 */
#ifndef HD_OPTIM_QK_CLIP_H
#define HD_OPTIM_QK_CLIP_H

#include "program/registry.h"

/* Returns whether this rank scales elements of a parameter. Then sets *ret_args, without its
 * addresses: top_score is to be that of the parameter's unit in HD_GLOBAL_SCORES, weight and copy
 * those of element *ret_element of the parameter's bucket. */
bool hd_qk_clip_of(const struct hd_registry *registry, int param, struct hd_qk_clip_args *ret_args,
                   int64_t *ret_element);

#endif

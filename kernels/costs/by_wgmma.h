/* by_wgmma: whether attention runs on the kernels for Hopper GPUs (cuda/attention_hopper.cu), which is a
 * setting in the environment: HEDDLE_CUDA_ATTENTION=wgmma, or tiled, the default. Results depend on it,
 * so that traits name it in `isa`.
 *
 * Used by: cuda/backend.c (reads the setting), cuda/attention*.cu.   Uses: kernels.h.
 * Threads: pure.
 */
#ifndef HD_COSTS_BY_WGMMA_H
#define HD_COSTS_BY_WGMMA_H

#include <string.h>

#include "kernels/kernels.h"

#define HD_ATTENTION_ENV "HEDDLE_CUDA_ATTENTION"
#define HD_BY_WGMMA      "_wgmma" /* behind the architecture in hd_traits.isa */

enum { HD_WGMMA_CAPABILITY = 90 }; /* sm_90a: no other GPU has these instructions */

static inline bool hd_costs_attention_is_by_wgmma(const struct hd_traits *traits)
{
    return strstr(traits->isa, HD_BY_WGMMA) != NULL;
}

#endif

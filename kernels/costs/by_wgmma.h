/* by_wgmma: whether attention runs on the kernels for Hopper GPUs (cuda/attention_hopper.cu), which is a
 * setting in the environment: HEDDLE_CUDA_ATTENTION=wgmma, or tiled, the default. Results depend on it,
 * so that traits name it in `isa`.
 *
 * Used by: cuda/backend.c (reads the setting), cuda/attention*.cu, attention.c.   Uses: costs.h.
 * Threads: pure.
 */
#ifndef HD_COSTS_BY_WGMMA_H
#define HD_COSTS_BY_WGMMA_H

#include <string.h>

#include "kernels/costs/costs.h"

#define HD_ATTENTION_ENV "HEDDLE_CUDA_ATTENTION"
#define HD_BY_WGMMA      "_wgmma" /* behind the architecture in hd_traits.isa */

enum { HD_WGMMA_CAPABILITY = 90 }; /* sm_90a: no other GPU has these instructions */

static inline bool hd_costs_attention_is_by_wgmma(const struct hd_traits *traits)
{
    return strstr(traits->isa, HD_BY_WGMMA) != NULL;
}

/* Scratch of backward (cuda/attention_backward_hopper.cu), behind that of all GPU kernels, in bytes: sums
 * of dq in fp32, [B, H, q_pad, D]; a ticket, and counters, [B, H, q_pad / 64, 2]. */
struct hd_costs_attention_in_order {
    int64_t dq, turns, turns_bytes, bytes;
};

enum { HD_COSTS_ATTENTION_TURN = 64, HD_COSTS_ATTENTION_TURNS = 2 };

static inline struct hd_costs_attention_in_order
hd_costs_attention_lay_in_order(const struct hd_attention_backward_args *a,
                                const struct hd_costs_attention_mask_extents *m)
{
    const int64_t rows = a->B * a->H * m->q_pad, word = (int64_t)sizeof(float);
    struct hd_costs_attention_in_order s;

    s.dq = m->bytes;
    s.turns = s.dq + rows * a->D * word;
    s.turns_bytes = (1 + rows / HD_COSTS_ATTENTION_TURN * HD_COSTS_ATTENTION_TURNS) * word;
    s.bytes = s.turns + s.turns_bytes;
    return s;
}

#endif

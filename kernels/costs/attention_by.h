/* attention_by: which code computes attention on a GPU, a setting in the environment:
 * HEDDLE_CUDA_ATTENTION=wgmma takes the kernels for Hopper GPUs (cuda/attention_hopper.cu), =cudnn NVIDIA's
 * cuDNN (cuda/cudnn.h), =tiled, the default, those for all GPUs. Results depend on it, so that traits name
 * it in `isa`.
 *
 * Used by: cuda/backend.c (reads the setting), cuda/attention*.cu, cuda/cudnn.c, attention.c.
 * Uses: costs.h.   Threads: pure.
 */
#ifndef HD_COSTS_ATTENTION_BY_H
#define HD_COSTS_ATTENTION_BY_H

#include <string.h>

#include "base/math.h"
#include "kernels/costs/costs.h"
#include "kernels/plugin.h"

enum { HD_WGMMA_CAPABILITY = 90 }; /* sm_90a: no other GPU has these instructions */

static inline bool hd_costs_attention_is_by_wgmma(const struct hd_traits *traits)
{
    return strstr(traits->isa, HD_BY_WGMMA) != NULL;
}

static inline bool hd_costs_attention_is_by_cudnn(const struct hd_traits *traits, bool *ret_ordered)
{
    const char *by = strstr(traits->isa, HD_BY_CUDNN);

    *ret_ordered = by && strchr(by + sizeof HD_BY_CUDNN - 1, HD_BY_CUDNN_ORDERED);
    return by != NULL;
}

/* Whether cuDNN may compute a launch, forward or backward, apart from the addresses: plain self-attention
 * over whole sequences with a causal mask. */
#define HD_COSTS_IS_PLAIN_CAUSAL(a)                                                             \
    (((a)->dtype == HD_BF16 || (a)->dtype == HD_F16) && ((a)->D == 64 || (a)->D == 128) &&      \
     (a)->causal && !(a)->q_bound && !(a)->slopes && !((a)->dropout > 0) && (a)->window <= 0 && \
     (a)->chunk <= 0 && !((a)->cap > 0) && (a)->scale > 0 && (a)->q_len > 1 &&                  \
     (a)->kv_len == (a)->q_len && (a)->kv_stride == (a)->q_len)

static inline bool hd_costs_cudnn_has_forward(const struct hd_attention_forward_args *a)
{
    return HD_COSTS_IS_PLAIN_CAUSAL(a) && !a->kv_filled && !a->kv_slot && !a->top_score;
}

static inline bool hd_costs_cudnn_has_backward(const struct hd_attention_backward_args *a)
{
    return HD_COSTS_IS_PLAIN_CAUSAL(a) && a->grad_dtype == a->dtype && !a->accumulate;
}

/* Scratch of attention by cuDNN, in bytes: delta [B, H, S] and, without an order, sums of dq [B, H, S, D],
 * both fp32; then the library's workspace, with what cuDNN 9.28 was seen to ask for at most on compute
 * capabilities 8.0 to 10.0: dk and dv of each query head and, where heads share keys, a copy; with an order the
 * gradients of all scores, too. A plan that needs more is not used. */
struct hd_costs_cudnn_scratch {
    int64_t delta, dq_sum, workspace, workspace_bytes, bytes;
};

static inline struct hd_costs_cudnn_scratch hd_costs_cudnn_lay_out(bool backward, bool ordered,
                                                                   int64_t B, int64_t S, int64_t H,
                                                                   int64_t G, int64_t D)
{
    const int64_t half = 2, few = 256, S_pad = hd_round_up(S, 64);
    const int64_t heads = B * hd_round_up(S, 8) * H * D * half;
    struct hd_costs_cudnn_scratch s;

    s.delta = 0;
    s.dq_sum = backward ? hd_tensor_align(B * H * S * (int64_t)sizeof(float)) : 0;
    s.workspace =
        s.dq_sum +
        (backward && !ordered ? hd_tensor_align(B * S * H * D * (int64_t)sizeof(float)) : 0);
    s.workspace_bytes = few + (backward ? heads * (H > G ? 4 : 2) : 0) +
                        (backward && ordered ? B * H * S_pad * S_pad * half : 0);
    s.bytes = s.workspace + s.workspace_bytes;
    return s;
}

/* Scratch of backward by wgmma (cuda/attention_backward_hopper.cu), behind that of all GPU kernels, in bytes: sums
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

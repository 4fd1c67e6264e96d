/* adapter: what trains beside the frozen weights of a model (train.adapter of the job file).
 *
 * lora (Hu et al. 2021): y = W x + s B (A x) with A [r, in] uniform within +- 1 / sqrt(in), B [out,
 * r] zeros, s = alpha / r, or alpha / sqrt(r) (Kalajdzievski 2023, "rsLoRA"). W does not train. The
 * rate of B is b_lr times that of A (Hayou et al. 2024, "LoRA+"). No weight decay.
 *
 * With `dora` (Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation") rows of the result
 * have a magnitude m [out] of their own, which trains too:
 *
 *     y = m / |W + s B A| (W x + s B A x) + bias
 *
 * |.| is the norm of each row, a constant in backward.
 *
 * m begins as the norms of the rows of W, so that the factor is 1 and the model what it was; both
 * norms are rounded, so in fp32 the factor may be off by 2^-22. With dropout what enters A is
 * dropped and nothing else; PEFT also drops what enters W by the factor less 1. Not of experts.
 *
 * A *target* is one weight of a block. In memory several are one matrix (q, k, v; gate, up), but
 * each has its own A and B. GPT-2's c_attn is one module: q, k and v share its A. Their names are
 * those of the weights, with lora_a, lora_b and lora_m for weight: of experts [E, r, in] and [E,
 * out, r]; blocks.3.attention.q.lora_b; of the shared A blocks.3.attention.qkv.lora_a.
 *
 * bottleneck (Houlsby et al. 2019): two layers of `width` inner channels behind attention and two
 * behind the feed-forward layer or the experts, on the output h [R, C] that is about to be added to
 * the residual stream, after its dropout:
 *
 *     h + drop(U gelu(D h))       D [width, C] uniform within +- 1 / sqrt(C), U [C, width] zeros
 *
 * Without biases. Every tp rank has D and U whole: split over tp, their partial sums would need an
 * all-reduce of [R, C] each, as much as the block itself sends, to save products that are small.
 * Names: blocks.3.adapter1.down and .up (D and U) behind attention, blocks.3.adapter2 behind the
 * feed-forward layer. No weight decay.
 *
 * prefix (Li & Liang 2021, "Prefix-Tuning"): `tokens` learned keys and values for each block and
 * key/value head, before which every token of every document attends to them, whatever the window.
 * They are not rotated, and tokens have the positions from `tokens` on, as with PEFT, whose
 * prefixes are past keys and values. Each is normal with a standard deviation of 0.02: unlike the
 * others a fresh prefix changes the model a little. Without the paper's network that makes them
 * from shorter vectors. Names: blocks.3.attention.prefix_k and prefix_v, [tokens, kv_heads *
 * head_width], of which tp splits the heads. No weight decay, no dropout of their own.
 *
 * Used by: model.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_MODEL_ADAPTER_H
#define HD_MODEL_ADAPTER_H

#include "base/status.h"
#include "job/job.h"

/* In the order of a block's weights. */
enum hd_target {
    HD_TARGET_Q,
    HD_TARGET_K,
    HD_TARGET_V,
    HD_TARGET_OUT,
    HD_TARGET_GATE,
    HD_TARGET_UP,
    HD_TARGET_DOWN,
    HD_TARGET_COUNT
};

enum hd_adapter_kind { HD_ADAPTER_NONE, HD_ADAPTER_LORA, HD_ADAPTER_BOTTLENECK, HD_ADAPTER_PREFIX };

/* Members of other kinds are 0. */
struct hd_adapter {
    enum hd_adapter_kind kind;
    double dropout; /* LoRA: of what enters A; bottleneck: of what it adds */
    /* LoRA */
    int64_t rank;
    double scale; /* s */
    double b_lr;
    bool target[HD_TARGET_COUNT];
    bool one_a;   /* q, k and v share an A */
    bool dora;    /* rows have magnitudes */
    bool experts; /* gate, up and down are those of experts, each with factors of its own */
    /* bottleneck */
    int64_t width;
    /* prefix */
    int64_t tokens;
};

/* HD_INVALID: a module that the family does not have, with those it has. HD_UNSUPPORTED: magnitudes
 * of experts. */
enum hd_status hd_adapter_from_job(const struct hd_job *job, struct hd_adapter *ret_adapter);

/* The name of a target in a block, without its last word: "attention.q"; of experts "moe.gate". */
const char *hd_target_name(enum hd_target target, bool experts);

/* What trains, in the words of only.h: train.only, or with an adapter that and train.adapter.also.
 * HD_INVALID: both are given, or the text is too long. */
enum hd_status hd_adapter_only(const struct hd_job *job, char ret_only[HD_JOB_PATH_MAX]);

#endif

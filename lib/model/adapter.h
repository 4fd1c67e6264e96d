/* adapter: parameters that train beside the frozen weights of a model (train.adapter of the job
 * file).
 *
 * lora (Hu et al. 2021): y = W x + s B (A x) with A [r, in] uniform within +- 1 / sqrt(in), B [out,
 * r] zeros, s = alpha / r, or alpha / sqrt(r) (Kalajdzievski 2023, "rsLoRA"). W does not train. The
 * learning rate of B is b_lr times the rate of A (Hayou et al. 2024, "LoRA+"). No weight decay.
 *
 * With `dora` (Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation") the rows of the
 * result have magnitudes m [out], which train too:
 *
 *     y = m / |W + s B A| (W x + s B A x) + bias
 *
 * |.| is the norm of each row, a constant in backward.
 *
 * m is initialised to the norms of the rows of W, so that the factor is 1 and the model is
 * unchanged; both norms are rounded, so in fp32 the factor may be off by 2^-22. Dropout applies to
 * the input of A only; PEFT also drops part of W's input: it multiplies (factor - 1) W by the
 * dropped input. Experts have no magnitudes.
 *
 * A *target* is one weight of a block. In memory several targets are one matrix (q, k, v; gate,
 * up), but each has its own A and B. Where the matrix is one module of the family, as GPT-2's
 * c_attn or Phi-3's gate_up_proj, its targets share one A. The names are those of the weights, with
 * lora_a, lora_b or lora_m in place of "weight": blocks.3.attention.q.lora_b; a shared A is
 * blocks.3.attention.qkv.lora_a or blocks.3.mlp.gate_up.lora_a. Factors of experts are [E, r, in]
 * and [E, out, r].
 *
 * In some families all experts' matrices are one parameter, a *stack*, which is no linear module.
 * all-linear leaves stacks out, as PEFT does; they are named with a point ("experts.down_proj"). The
 * stack of gate and up has one A for each expert: blocks.3.moe.gate_up.lora_a.
 *
 * bottleneck (Houlsby et al. 2019): two layers of `width` inner channels behind attention and two
 * behind the feed-forward layer or the experts, on the output h [R, C] that is about to be added to
 * the residual stream, after its dropout:
 *
 *     h + drop(U gelu(D h))       D [width, C] uniform within +- 1 / sqrt(C), U [C, width] zeros
 *
 * There are no biases. Every tp rank has D and U whole: if tp split them, the partial sums of each
 * would need an all-reduce of [R, C], as much as the block itself sends, to save small products.
 * Names: blocks.3.adapter1.down and .up (D and U) behind attention, blocks.3.adapter2 behind the
 * feed-forward layer. No weight decay.
 *
 * prefix (Li & Liang 2021, "Prefix-Tuning"): `tokens` learned keys and values for each block and
 * key/value head, to which every token of every document attends, whatever the window. RoPE does
 * not rotate them, and the positions of tokens begin at `tokens`, as with PEFT, whose prefixes are
 * past keys and values. They are initialised from a normal distribution with a standard deviation
 * of 0.02: unlike the other adapters a new prefix changes the model a little. The paper's network
 * that computes them from shorter vectors is not used. Names: blocks.3.attention.prefix_k and
 * prefix_v, [tokens, kv_heads * head_width], of which tp splits the heads. No weight decay, no
 * dropout of their own.
 *
 * Used by: model.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_MODEL_ADAPTER_H
#define HD_MODEL_ADAPTER_H

#include "base/status.h"
#include "job/job.h"

/* Weights of a block that may have a LoRA adapter, in the order of the block's weights. */
enum hd_target {
    HD_TARGET_Q,
    HD_TARGET_K,
    HD_TARGET_V,
    HD_TARGET_OUT,
    HD_TARGET_Q_A,  /* latent attention: from the input to the latent of queries */
    HD_TARGET_Q_B,  /* latent attention: from the latent of queries to heads */
    HD_TARGET_KV_A, /* latent attention: from the input to the latent of keys and values */
    HD_TARGET_KV_B, /* latent attention: from that latent to heads */
    HD_TARGET_GATE,
    HD_TARGET_UP,
    HD_TARGET_DOWN,
    HD_TARGET_COUNT
};

enum hd_adapter_kind { HD_ADAPTER_NONE, HD_ADAPTER_LORA, HD_ADAPTER_BOTTLENECK, HD_ADAPTER_PREFIX };

/* The adapter of a job (train.adapter). Members that belong to other kinds than `kind` are 0. */
struct hd_adapter {
    enum hd_adapter_kind kind;
    double dropout; /* probability of dropout; LoRA: of the input of A; bottleneck: of the adapter's
                       output; 0: none */
    /* members of HD_ADAPTER_LORA */
    int64_t rank;
    double scale; /* factor s of the formula above */
    double b_lr;
    bool target[HD_TARGET_COUNT];        /* weights of attention and MLP that have factors */
    bool expert_target[HD_TARGET_COUNT]; /* gate, up and down of experts that have factors; each
                                            expert has its own */
    /* by first target of a matrix: true: its targets have one common factor A (Q: q, k and v; GATE:
     * gate and up) */
    bool one_a[HD_TARGET_COUNT];
    bool expert_one_a; /* true: gate and up of an expert have one common factor A */
    bool dora;         /* true: DoRA, the rows of a target's result have magnitudes */
    /* member of HD_ADAPTER_BOTTLENECK: inner channels */
    int64_t width;
    /* member of HD_ADAPTER_PREFIX: number of learned keys and values */
    int64_t tokens;
};

/* Sets *ret_adapter to the adapter that a job asks for. HD_INVALID: train.adapter.targets names a
 * module that the family does not have; the message lists its modules. HD_UNSUPPORTED: DoRA for
 * experts, or a prefix with ALiBi. */
enum hd_status hd_adapter_from_job(const struct hd_job *job, struct hd_adapter *ret_adapter);

/* Returns the name of a target's weight within a block, without its last part ".weight":
 * "attention.q"; with `experts` the name of a matrix of experts: "moe.gate". */
const char *hd_target_name(enum hd_target target, bool experts);

/* Sets ret_only to the text that says which parameters train, in the syntax of only.h: the job's
 * train.trainable, or with an adapter the adapter's parameters and train.adapter.trainable.
 * HD_INVALID: train.trainable and train.adapter are both given, or the text is too long. */
enum hd_status hd_adapter_only(const struct hd_job *job, char ret_only[HD_JOB_PATH_MAX]);

#endif

/* name_tables: the tables of tensor names in transformers' files, one per value of enum
 * hd_family_names. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/hf_internal.h"

#define PART(which, count, our, their)                               \
    {                                                                \
        .ours = our, .theirs = their, .place = which, .parts = count \
    }
#define TURNED_PART(which, count, our, their)                                            \
    {                                                                                    \
        .ours = our, .theirs = their, .transposed = true, .place = which, .parts = count \
    }
#define ALTERNATE_PART(which, count, turned, our, their)                                       \
    {                                                                                          \
        .ours = our, .theirs = their, .transposed = turned, .alternate = true, .place = which, \
        .parts = count                                                                         \
    }
#define PLAIN(our, their)  PART(0, 1, our, their)
#define TURNED(our, their) TURNED_PART(0, 1, our, their)
#define ONE_ROW(our, their)                                       \
    {                                                             \
        .ours = our, .theirs = their, .one_row = true, .parts = 1 \
    }
#define OUTSIDE(our, their)                                   \
    {                                                         \
        .ours = our, .theirs = their, .top = true, .parts = 1 \
    }

/* The rows of a family are a list of these pieces, in the order of an export. A model need not have
 * every parameter of its table. */
#define EMBEDDING PLAIN("embedding.weight", "embed_tokens.weight")
/* a module's weight and bias, of a layer in `layers` or in `h`, or of none */
#define WEIGHT(our, their) PLAIN("blocks.#." our ".weight", "layers.#." their ".weight")
#define BOTH(our, their) \
    WEIGHT(our, their), PLAIN("blocks.#." our ".bias", "layers.#." their ".bias")
#define H_BOTH(our, their)                                    \
    PLAIN("blocks.#." our ".weight", "h.#." their ".weight"), \
        PLAIN("blocks.#." our ".bias", "h.#." their ".bias")
#define TURNED_BOTH(our, their)                                \
    TURNED("blocks.#." our ".weight", "h.#." their ".weight"), \
        PLAIN("blocks.#." our ".bias", "h.#." their ".bias")
#define LAST_NORM(their) \
    PLAIN("head.norm.weight", their ".weight"), PLAIN("head.norm.bias", their ".bias")
#define SCORE   OUTSIDE("head.score.weight", HD_HF_SCORE_NAME)
#define LM_HEAD OUTSIDE("head.weight", HD_HF_HEAD_NAME), SCORE
#define HEAD    LAST_NORM("norm"), LM_HEAD
#define QKV                                                                               \
    WEIGHT("attention.q", "self_attn.q_proj"), WEIGHT("attention.k", "self_attn.k_proj"), \
        WEIGHT("attention.v", "self_attn.v_proj"),                                        \
        PLAIN("blocks.#.attention.q.bias", "layers.#.self_attn.q_proj.bias"),             \
        PLAIN("blocks.#.attention.k.bias", "layers.#.self_attn.k_proj.bias"),             \
        PLAIN("blocks.#.attention.v.bias", "layers.#.self_attn.v_proj.bias")
/* q, k and v in one tensor */
#define QKV_PARTS(part, what, their)                     \
    part(0, 3, "blocks.#.attention.q." what, their),     \
        part(1, 3, "blocks.#.attention.k." what, their), \
        part(2, 3, "blocks.#.attention.v." what, their)
#define FUSED_QKV QKV_PARTS(PART, "weight", "layers.#.self_attn.qkv_proj.weight")
#define OUT                                                                     \
    WEIGHT("attention.out", "self_attn.o_proj"),                                \
        PLAIN("blocks.#.attention.out.bias", "layers.#.self_attn.o_proj.bias"), \
        WEIGHT("attention.q_norm", "self_attn.q_norm"),                         \
        WEIGHT("attention.k_norm", "self_attn.k_norm")
#define MLP                                                               \
    WEIGHT("mlp.gate", "mlp.gate_proj"), WEIGHT("mlp.up", "mlp.up_proj"), \
        WEIGHT("mlp.down", "mlp.down_proj"),                              \
        PLAIN("blocks.#.mlp.gate.bias", "layers.#.mlp.gate_proj.bias"),   \
        PLAIN("blocks.#.mlp.up.bias", "layers.#.mlp.up_proj.bias"),       \
        PLAIN("blocks.#.mlp.down.bias", "layers.#.mlp.down_proj.bias")
#define FUSED_MLP                                                                 \
    PART(0, 2, "blocks.#.mlp.gate.weight", "layers.#.mlp.gate_up_proj.weight"),   \
        PART(1, 2, "blocks.#.mlp.up.weight", "layers.#.mlp.gate_up_proj.weight"), \
        WEIGHT("mlp.down", "mlp.down_proj")
#define PLAIN_MLP                                                                          \
    WEIGHT("mlp.up", "mlp.c_fc"), PLAIN("blocks.#.mlp.up.bias", "layers.#.mlp.c_fc.bias"), \
        WEIGHT("mlp.down", "mlp.c_proj"),                                                  \
        PLAIN("blocks.#.mlp.down.bias", "layers.#.mlp.c_proj.bias")
/* experts with a tensor for each; those of one layer in two stacks, of gate and up, and of down */
#define EXPERTS(gate, up, down)                          \
    PLAIN("blocks.#.moe.gate.weight", "layers.#." gate), \
        PLAIN("blocks.#.moe.up.weight", "layers.#." up), \
        PLAIN("blocks.#.moe.down.weight", "layers.#." down)
#define STACKED_EXPERTS(gate_up, down)                             \
    PART(0, 2, "blocks.#.moe.gate.weight", "layers.#." gate_up),   \
        PART(1, 2, "blocks.#.moe.up.weight", "layers.#." gate_up), \
        PLAIN("blocks.#.moe.down.weight", "layers.#." down)
#define ROUTER(their) PLAIN("blocks.#.moe.router.weight", "layers.#." their)
/* the bias of a router that chooses by score plus a bias */
#define SELECT_BIAS(their) PLAIN("blocks.#.moe.select_bias", "layers.#." their)
#define SHARED_EXPERTS                                         \
    WEIGHT("moe.shared.gate", "mlp.shared_experts.gate_proj"), \
        WEIGHT("moe.shared.up", "mlp.shared_experts.up_proj"), \
        WEIGHT("moe.shared.down", "mlp.shared_experts.down_proj")
#define QWEN_EXPERTS                                                          \
    EXPERTS("mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight", \
            "mlp.experts.*.down_proj.weight")
#define QWEN_STACKED_EXPERTS STACKED_EXPERTS("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
#define SHARED_EXPERT                                             \
    WEIGHT("moe.shared.gate", "mlp.shared_expert.gate_proj"),     \
        WEIGHT("moe.shared.up", "mlp.shared_expert.up_proj"),     \
        WEIGHT("moe.shared.down", "mlp.shared_expert.down_proj"), \
        WEIGHT("moe.shared_gate", "mlp.shared_expert_gate")
/* latent attention; queries have a latent or not */
#define LATENTS                                                                               \
    WEIGHT("attention.q", "self_attn.q_proj"), WEIGHT("attention.q_a", "self_attn.q_a_proj"), \
        WEIGHT("attention.q_a_norm", "self_attn.q_a_layernorm"),                              \
        WEIGHT("attention.q_b", "self_attn.q_b_proj"),                                        \
        WEIGHT("attention.kv_a", "self_attn.kv_a_proj_with_mqa"),                             \
        WEIGHT("attention.kv_a_norm", "self_attn.kv_a_layernorm"),                            \
        WEIGHT("attention.kv_b", "self_attn.kv_b_proj"),                                      \
        WEIGHT("attention.out", "self_attn.o_proj")
#define FUSED_SHARED(module)                                                                    \
    PART(0, 2, "blocks.#." module ".gate.weight", "layers.#.shared_mlp.input_linear.weight"),   \
        PART(1, 2, "blocks.#." module ".up.weight", "layers.#.shared_mlp.input_linear.weight"), \
        PLAIN("blocks.#." module ".down.weight", "layers.#.shared_mlp.output_linear.weight")
#define SINKS PLAIN("blocks.#.attention.sinks", "layers.#.self_attn.sinks")
#define NORMS BOTH("norm1", "input_layernorm"), BOTH("norm2", "post_attention_layernorm")
#define STEM  EMBEDDING, NORMS, QKV, OUT

static const struct hd_hf_row gpt2_rows[] = {
    PLAIN("embedding.weight", "wte.weight"),
    PLAIN("embedding.positions", "wpe.weight"),
    H_BOTH("norm1", "ln_1"),
    QKV_PARTS(TURNED_PART, "weight", "h.#.attn.c_attn.weight"),
    QKV_PARTS(PART, "bias", "h.#.attn.c_attn.bias"),
    TURNED_BOTH("attention.out", "attn.c_proj"),
    H_BOTH("norm2", "ln_2"),
    TURNED_BOTH("mlp.up", "mlp.c_fc"),
    TURNED_BOTH("mlp.down", "mlp.c_proj"),
    LAST_NORM("ln_f"),
    LM_HEAD};

static const struct hd_hf_row llama_rows[] = {STEM, SINKS, MLP, HEAD};

/* The norms of q and k have a tensor for each head. */
static const struct hd_hf_row stablelm_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    WEIGHT("attention.out", "self_attn.o_proj"),
    WEIGHT("attention.q_norm", "self_attn.q_layernorm.norms.*"),
    WEIGHT("attention.k_norm", "self_attn.k_layernorm.norms.*"),
    MLP,
    HEAD};

static const struct hd_hf_row hunyuan_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    BOTH("attention.out", "self_attn.o_proj"),
    WEIGHT("attention.q_norm", "self_attn.query_layernorm"),
    WEIGHT("attention.k_norm", "self_attn.key_layernorm"),
    MLP,
    HEAD};

static const struct hd_hf_row hyperclovax_rows[] = {
    EMBEDDING, NORMS, BOTH("norm1_out", "post_norm1"), BOTH("norm2_out", "post_norm2"), QKV, OUT,
    MLP,       HEAD};

static const struct hd_hf_row llama4_rows[] = {
    STEM,
    WEIGHT("mlp.gate", "feed_forward.gate_proj"),
    WEIGHT("mlp.up", "feed_forward.up_proj"),
    WEIGHT("mlp.down", "feed_forward.down_proj"),
    ROUTER("feed_forward.router.weight"),
    TURNED_PART(0, 2, "blocks.#.moe.gate.weight", "layers.#.feed_forward.experts.gate_up_proj"),
    TURNED_PART(1, 2, "blocks.#.moe.up.weight", "layers.#.feed_forward.experts.gate_up_proj"),
    TURNED("blocks.#.moe.down.weight", "layers.#.feed_forward.experts.down_proj"),
    WEIGHT("moe.shared.gate", "feed_forward.shared_expert.gate_proj"),
    WEIGHT("moe.shared.up", "feed_forward.shared_expert.up_proj"),
    WEIGHT("moe.shared.down", "feed_forward.shared_expert.down_proj"),
    HEAD};

/* Mixtral's form that every version of transformers reads and that it writes by default, and the one
 * that transformers 5 writes with save_original_format=False. */
#define MIXTRAL_EXPERTS                                                                     \
    EXPERTS("block_sparse_moe.experts.*.w1.weight", "block_sparse_moe.experts.*.w3.weight", \
            "block_sparse_moe.experts.*.w2.weight")
static const struct hd_hf_row mixtral_rows[] = {STEM, ROUTER("block_sparse_moe.gate.weight"),
                                                MIXTRAL_EXPERTS, HEAD};
static const struct hd_hf_row mixtral_stacked_rows[] = {STEM, ROUTER("mlp.gate.weight"),
                                                        QWEN_STACKED_EXPERTS, HEAD};

/* Qwen-MoE and OLMoE, in two forms: a tensor for each expert, or all experts in one. */
#define QWEN_MLP(experts) MLP, ROUTER("mlp.gate.weight"), experts, SHARED_EXPERT, HEAD
static const struct hd_hf_row qwen_moe_rows[] = {STEM, QWEN_MLP(QWEN_EXPERTS)};
static const struct hd_hf_row qwen_moe_stacked_rows[] = {STEM, QWEN_MLP(QWEN_STACKED_EXPERTS)};

/* GLM-4.5, in two forms: a tensor for each expert, or all experts in one. */
#define GLM4_MOE(experts)                                                                  \
    STEM, MLP, ROUTER("mlp.gate.weight"), SELECT_BIAS("mlp.gate.e_score_correction_bias"), \
        experts, SHARED_EXPERTS, HEAD
static const struct hd_hf_row glm4_moe_rows[] = {GLM4_MOE(QWEN_EXPERTS)};
static const struct hd_hf_row glm4_moe_stacked_rows[] = {GLM4_MOE(QWEN_STACKED_EXPERTS)};

#define ERNIE4_5_MOE(bias, experts)                                                              \
    STEM, MLP, ROUTER("mlp.gate.weight"), ONE_ROW("blocks.#.moe.select_bias", "layers.#." bias), \
        experts, SHARED_EXPERTS, HEAD
static const struct hd_hf_row ernie4_5_moe_rows[] = {
    ERNIE4_5_MOE("mlp.moe_statics.e_score_correction_bias", QWEN_EXPERTS)};
static const struct hd_hf_row ernie4_5_moe_stacked_rows[] = {
    ERNIE4_5_MOE("mlp.gate.moe_statics.e_score_correction_bias", QWEN_STACKED_EXPERTS)};

/* MiniMax-M2: Mixtral's names, in the same two forms as Mixtral. */
static const struct hd_hf_row minimax_m2_rows[] = {
    STEM, ROUTER("block_sparse_moe.gate.weight"),
    SELECT_BIAS("block_sparse_moe.e_score_correction_bias"), MIXTRAL_EXPERTS, HEAD};
static const struct hd_hf_row minimax_m2_stacked_rows[] = {
    STEM, ROUTER("mlp.gate.weight"), SELECT_BIAS("mlp.e_score_correction_bias"),
    QWEN_STACKED_EXPERTS, HEAD};

static const struct hd_hf_row gemma_rows[] = {EMBEDDING,
                                              BOTH("norm1", "input_layernorm"),
                                              BOTH("norm1_out", "post_attention_layernorm"),
                                              BOTH("norm2", "pre_feedforward_layernorm"),
                                              BOTH("norm2_out", "post_feedforward_layernorm"),
                                              QKV,
                                              OUT,
                                              MLP,
                                              HEAD};

static const struct hd_hf_row olmo2_rows[] = {EMBEDDING,
                                              BOTH("norm1_out", "post_attention_layernorm"),
                                              BOTH("norm2_out", "post_feedforward_layernorm"),
                                              QKV,
                                              OUT,
                                              MLP,
                                              HEAD};

static const struct hd_hf_row phi3_rows[] = {EMBEDDING, NORMS, FUSED_QKV, OUT, FUSED_MLP, HEAD};

static const struct hd_hf_row glm_rows[] = {STEM, FUSED_MLP, HEAD};

static const struct hd_hf_row glm4_rows[] = {EMBEDDING,
                                             BOTH("norm1", "input_layernorm"),
                                             BOTH("norm1_out", "post_self_attn_layernorm"),
                                             BOTH("norm2", "post_attention_layernorm"),
                                             BOTH("norm2_out", "post_mlp_layernorm"),
                                             QKV,
                                             OUT,
                                             FUSED_MLP,
                                             HEAD};

static const struct hd_hf_row granite_moe_rows[] = {
    STEM,
    SINKS,
    ROUTER("block_sparse_moe.router.layer.weight"),
    STACKED_EXPERTS("block_sparse_moe.input_linear.weight",
                    "block_sparse_moe.output_linear.weight"),
    FUSED_SHARED("moe.shared"),
    HEAD};

/* The form that transformers 5 writes with save_original_format=False, and for a class of its own
 * time. */
static const struct hd_hf_row granite_moe_stacked_rows[] = {
    STEM,
    SINKS,
    ROUTER("block_sparse_moe.router.weight"),
    STACKED_EXPERTS("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
    FUSED_SHARED("moe.shared"),
    HEAD};

static const struct hd_hf_row granite_hybrid_rows[] = {STEM, FUSED_SHARED("mlp"), HEAD};

#define BY_HEADS(which, count, our, their)                                             \
    {                                                                                  \
        .ours = our, .theirs = their, .place = which, .parts = count, .by_heads = true \
    }
static const struct hd_hf_row gpt_neox_rows[] = {
    PLAIN("embedding.weight", "embed_in.weight"),
    NORMS,
    QKV_PARTS(BY_HEADS, "weight", "layers.#.attention.query_key_value.weight"),
    QKV_PARTS(BY_HEADS, "bias", "layers.#.attention.query_key_value.bias"),
    BOTH("attention.out", "attention.dense"),
    BOTH("mlp.up", "mlp.dense_h_to_4h"),
    BOTH("mlp.down", "mlp.dense_4h_to_h"),
    LAST_NORM("final_layer_norm"),
    OUTSIDE("head.weight", HD_HF_NEOX_HEAD),
    SCORE};

#define HEAD_BIAS OUTSIDE("head.bias", HD_HF_HEAD_BIAS)
static const struct hd_hf_row phi_rows[] = {EMBEDDING,
                                            BOTH("norm1", "input_layernorm"),
                                            QKV,
                                            BOTH("attention.out", "self_attn.dense"),
                                            BOTH("mlp.up", "mlp.fc1"),
                                            BOTH("mlp.down", "mlp.fc2"),
                                            LAST_NORM("final_layernorm"),
                                            OUTSIDE("head.weight", HD_HF_HEAD_NAME),
                                            HEAD_BIAS,
                                            SCORE};

static const struct hd_hf_row opt_rows[] = {EMBEDDING,
                                            PLAIN("embedding.positions", "embed_positions.weight"),
                                            BOTH("norm1", "self_attn_layer_norm"),
                                            QKV,
                                            BOTH("attention.out", "self_attn.out_proj"),
                                            BOTH("norm2", "final_layer_norm"),
                                            BOTH("mlp.up", "fc1"),
                                            BOTH("mlp.down", "fc2"),
                                            LAST_NORM("final_layer_norm"),
                                            LM_HEAD};

#define IF_BRANCHES(form, our, their)                              \
    {                                                              \
        .ours = our, .theirs = their, .branches = form, .parts = 1 \
    }
#define FALCON_NORM(form, our, their)                                     \
    IF_BRANCHES(form, "blocks.#." our ".weight", "h.#." their ".weight"), \
        IF_BRANCHES(form, "blocks.#." our ".bias", "h.#." their ".bias")
#define FALCON_QKV(what) QKV_PARTS(BY_HEADS, what, "h.#.self_attention.query_key_value." what)
static const struct hd_hf_row falcon_rows[] = {
    PLAIN("embedding.weight", "word_embeddings.weight"),
    FALCON_NORM("none", "norm1", "input_layernorm"),
    FALCON_NORM("none", "norm2", "post_attention_layernorm"),
    FALCON_NORM("one_norm", "norm1", "input_layernorm"),
    FALCON_NORM("two_norms", "norm1", "ln_attn"),
    FALCON_NORM("two_norms", "norm2", "ln_mlp"),
    FALCON_QKV("weight"),
    FALCON_QKV("bias"),
    H_BOTH("attention.out", "self_attention.dense"),
    H_BOTH("mlp.up", "mlp.dense_h_to_4h"),
    H_BOTH("mlp.down", "mlp.dense_4h_to_h"),
    LAST_NORM("ln_f"),
    LM_HEAD};

static const struct hd_hf_row bloom_rows[] = {
    PLAIN("embedding.weight", "word_embeddings.weight"),
    PLAIN("embedding.norm.weight", "word_embeddings_layernorm.weight"),
    PLAIN("embedding.norm.bias", "word_embeddings_layernorm.bias"),
    H_BOTH("norm1", "input_layernorm"),
    H_BOTH("norm2", "post_attention_layernorm"),
    FALCON_QKV("weight"),
    FALCON_QKV("bias"),
    H_BOTH("attention.out", "self_attention.dense"),
    H_BOTH("mlp.up", "mlp.dense_h_to_4h"),
    H_BOTH("mlp.down", "mlp.dense_4h_to_h"),
    LAST_NORM("ln_f"),
    LM_HEAD};

static const struct hd_hf_row mpt_rows[] = {
    PLAIN("embedding.weight", "wte.weight"),
    PLAIN("blocks.#.norm1.weight", "blocks.#.norm_1.weight"),
    QKV_PARTS(PART, "weight", "blocks.#.attn.Wqkv.weight"),
    PLAIN("blocks.#.attention.out.weight", "blocks.#.attn.out_proj.weight"),
    PLAIN("blocks.#.norm2.weight", "blocks.#.norm_2.weight"),
    PLAIN("blocks.#.mlp.up.weight", "blocks.#.ffn.up_proj.weight"),
    PLAIN("blocks.#.mlp.down.weight", "blocks.#.ffn.down_proj.weight"),
    PLAIN("head.norm.weight", "norm_f.weight"),
    LM_HEAD};

#define GROUPED(by, which, count, our, their)                                        \
    {                                                                                \
        .ours = our, .theirs = their, .groups = by, .place = which, .parts = (count) \
    }
#define CONVOLUTION(which, our)                                                      \
    {                                                                                \
        .ours = our, .theirs = "layers.#.linear_attn.conv1d.weight", .middle = true, \
        .place = which, .parts = 3                                                   \
    }
/* a gated delta layer but its projections; attention whose q_proj has a gate for each head */
#define DELTA                                                            \
    CONVOLUTION(0, "blocks.#.delta.conv_q.weight"),                      \
        CONVOLUTION(1, "blocks.#.delta.conv_k.weight"),                  \
        CONVOLUTION(2, "blocks.#.delta.conv_v.weight"),                  \
        PLAIN("blocks.#.delta.A_log", "layers.#.linear_attn.A_log"),     \
        PLAIN("blocks.#.delta.dt_bias", "layers.#.linear_attn.dt_bias"), \
        WEIGHT("delta.norm", "linear_attn.norm"), WEIGHT("delta.out", "linear_attn.out_proj")
#define GATED_QKV                                                      \
    GROUPED(HD_HF_BY_HEAD, 0, 2, "blocks.#.attention.q.weight",        \
            "layers.#.self_attn.q_proj.weight"),                       \
        GROUPED(HD_HF_BY_HEAD, 1, 2, "blocks.#.attention.gate.weight", \
                "layers.#.self_attn.q_proj.weight"),                   \
        WEIGHT("attention.k", "self_attn.k_proj"), WEIGHT("attention.v", "self_attn.v_proj")
#define QKVZ(which, our) \
    GROUPED(HD_HF_BY_KEY_HEAD, which, 4, our, "layers.#.linear_attn.in_proj_qkvz.weight")
#define BA(which, our) \
    GROUPED(HD_HF_BY_KEY_HEAD, which, 2, our, "layers.#.linear_attn.in_proj_ba.weight")
#define FUSED_DELTA                                                             \
    QKVZ(0, "blocks.#.delta.q.weight"), QKVZ(1, "blocks.#.delta.k.weight"),     \
        QKVZ(2, "blocks.#.delta.v.weight"), QKVZ(3, "blocks.#.delta.z.weight"), \
        BA(0, "blocks.#.delta.b.weight"), BA(1, "blocks.#.delta.a.weight"), DELTA

static const struct hd_hf_row qwen_next_rows[] = {EMBEDDING, NORMS,       GATED_QKV,
                                                  OUT,       FUSED_DELTA, QWEN_MLP(QWEN_EXPERTS)};
static const struct hd_hf_row qwen_next_stacked_rows[] = {
    EMBEDDING, NORMS, GATED_QKV, OUT, FUSED_DELTA, QWEN_MLP(QWEN_STACKED_EXPERTS)};

#define SEPARATE_DELTA                                                                          \
    PART(0, 3, "blocks.#.delta.q.weight", "layers.#.linear_attn.in_proj_qkv.weight"),           \
        PART(1, 3, "blocks.#.delta.k.weight", "layers.#.linear_attn.in_proj_qkv.weight"),       \
        PART(2, 3, "blocks.#.delta.v.weight", "layers.#.linear_attn.in_proj_qkv.weight"),       \
        WEIGHT("delta.z", "linear_attn.in_proj_z"), WEIGHT("delta.b", "linear_attn.in_proj_b"), \
        WEIGHT("delta.a", "linear_attn.in_proj_a"), DELTA

static const struct hd_hf_row qwen3_5_rows[] = {EMBEDDING, NORMS,          GATED_QKV,
                                                OUT,       SEPARATE_DELTA, QWEN_MLP(QWEN_EXPERTS)};
static const struct hd_hf_row qwen3_5_stacked_rows[] = {
    EMBEDDING, NORMS, GATED_QKV, OUT, SEPARATE_DELTA, QWEN_MLP(QWEN_STACKED_EXPERTS)};

#define LFM2_IN(what)                                                       \
    PART(0, 3, "blocks.#.conv.b." what, "layers.#.conv.in_proj." what),     \
        PART(1, 3, "blocks.#.conv.c." what, "layers.#.conv.in_proj." what), \
        PART(2, 3, "blocks.#.conv.x." what, "layers.#.conv.in_proj." what)
static const struct hd_hf_row lfm2_rows[] = {
    EMBEDDING,
    WEIGHT("norm1", "operator_norm"),
    WEIGHT("norm2", "ffn_norm"),
    QKV,
    WEIGHT("attention.out", "self_attn.out_proj"),
    WEIGHT("attention.q_norm", "self_attn.q_layernorm"),
    WEIGHT("attention.k_norm", "self_attn.k_layernorm"),
    LFM2_IN("weight"),
    LFM2_IN("bias"),
    {.ours = "blocks.#.conv.kernel.weight",
     .theirs = "layers.#.conv.conv.weight",
     .middle = true,
     .parts = 1},
    PLAIN("blocks.#.conv.kernel.bias", "layers.#.conv.conv.bias"),
    BOTH("conv.out", "conv.out_proj"),
    WEIGHT("mlp.gate", "feed_forward.w1"),
    WEIGHT("mlp.up", "feed_forward.w3"),
    WEIGHT("mlp.down", "feed_forward.w2"),
    PLAIN("head.norm.weight", "embedding_norm.weight"),
    LM_HEAD};

static const struct hd_hf_row starcoder2_rows[] = {STEM, PLAIN_MLP, HEAD};

/* DeepSeek-V2 and V3, GLM-4.7-Flash, in two forms: a tensor for each expert, or all experts in
 * one. */
#define DEEPSEEK(experts)                                      \
    EMBEDDING, NORMS, LATENTS, MLP, ROUTER("mlp.gate.weight"), \
        SELECT_BIAS("mlp.gate.e_score_correction_bias"), experts, SHARED_EXPERTS, HEAD
static const struct hd_hf_row deepseek_rows[] = {DEEPSEEK(QWEN_EXPERTS)};
static const struct hd_hf_row deepseek_stacked_rows[] = {DEEPSEEK(QWEN_STACKED_EXPERTS)};

/* GPT-OSS: stacks of experts whose gates and up projections are even and odd columns of [E, C, 2F],
 * and the published form, mxfp4 codes of the rows [E, 2F, C] and [E, C, F] (quantized.c). */
#define GPT_OSS_BIASES                                            \
    ALTERNATE_PART(0, 2, false, "blocks.#.moe.gate.bias",         \
                   "layers.#.mlp.experts.gate_up_proj_bias"),     \
        ALTERNATE_PART(1, 2, false, "blocks.#.moe.up.bias",       \
                       "layers.#.mlp.experts.gate_up_proj_bias"), \
        PLAIN("blocks.#.moe.down.bias", "layers.#.mlp.experts.down_proj_bias")
#define GPT_OSS(turned, gate_up, down)                                                     \
    STEM, SINKS, ROUTER("mlp.router.weight"),                                              \
        PLAIN("blocks.#.moe.router.bias", "layers.#.mlp.router.bias"),                     \
        ALTERNATE_PART(0, 2, turned, "blocks.#.moe.gate.weight", "layers.#." gate_up),     \
        ALTERNATE_PART(1, 2, turned, "blocks.#.moe.up.weight", "layers.#." gate_up), down, \
        GPT_OSS_BIASES, HEAD
static const struct hd_hf_row gpt_oss_rows[] = {
    GPT_OSS(true, "mlp.experts.gate_up_proj",
            TURNED("blocks.#.moe.down.weight", "layers.#.mlp.experts.down_proj"))};
static const struct hd_hf_row gpt_oss_mxfp4_rows[] = {
    GPT_OSS(false, "mlp.experts.gate_up_proj_blocks",
            PLAIN("blocks.#.moe.down.weight", "layers.#.mlp.experts.down_proj_blocks"))};

/* Constants that older versions of transformers saved with the weights: masks and rotary
 * frequencies. */
static const char *const constants[] = {
    "h.#.attn.bias",
    "h.#.attn.masked_bias",
    "layers.#.attention.bias",
    "layers.#.attention.masked_bias",
    "layers.#.attention.rotary_emb.inv_freq",
    "h.#.self_attention.rotary_emb.inv_freq",
    "h.#.self_attention.maybe_rotary.inv_freq",
    "layers.#.self_attn.rotary_emb.inv_freq",
    "layers.#.self_attn.rotary_emb.original_inv_freq",
    "layers.#.self_attn.rotary_emb.cos_cached",
    "layers.#.self_attn.rotary_emb.sin_cached",
    "rotary_emb.inv_freq",
    "rotary_emb.original_inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

#define ONE_FORM(prefix, list)                   \
    {                                            \
        prefix, list, COUNT(list), NULL, 0, NULL \
    }
#define TWO_FORMS(prefix, list, other, sign)                 \
    {                                                        \
        prefix, list, COUNT(list), other, COUNT(other), sign \
    }
static const struct hd_hf_names tables[HD_NAMES_COUNT] = {
    [HD_NAMES_GPT2] = ONE_FORM("transformer.", gpt2_rows),
    [HD_NAMES_LLAMA] = ONE_FORM("model.", llama_rows),
    [HD_NAMES_MIXTRAL] =
        TWO_FORMS("model.", mixtral_rows, mixtral_stacked_rows, "layers.#.mlp.gate.weight"),
    [HD_NAMES_QWEN_MOE] = TWO_FORMS("model.", qwen_moe_rows, qwen_moe_stacked_rows,
                                    "layers.#.mlp.experts.gate_up_proj"),
    [HD_NAMES_GEMMA] = ONE_FORM("model.", gemma_rows),
    [HD_NAMES_OLMO2] = ONE_FORM("model.", olmo2_rows),
    [HD_NAMES_PHI3] = ONE_FORM("model.", phi3_rows),
    [HD_NAMES_LFM2] = ONE_FORM("model.", lfm2_rows),
    [HD_NAMES_GLM] = ONE_FORM("model.", glm_rows),
    [HD_NAMES_GLM4] = ONE_FORM("model.", glm4_rows),
    [HD_NAMES_GRANITE_MOE] = TWO_FORMS("model.", granite_moe_rows, granite_moe_stacked_rows,
                                       "layers.#.block_sparse_moe.experts.gate_up_proj"),
    [HD_NAMES_GRANITE_MOE_SWA] = ONE_FORM("model.", granite_moe_stacked_rows),
    [HD_NAMES_QWEN_NEXT] = TWO_FORMS("model.", qwen_next_rows, qwen_next_stacked_rows,
                                     "layers.#.mlp.experts.gate_up_proj"),
    [HD_NAMES_QWEN3_5] = TWO_FORMS("model.", qwen3_5_rows, qwen3_5_stacked_rows,
                                   "layers.#.mlp.experts.gate_up_proj"),
    [HD_NAMES_STARCODER2] = ONE_FORM("model.", starcoder2_rows),
    [HD_NAMES_DEEPSEEK] = TWO_FORMS("model.", deepseek_rows, deepseek_stacked_rows,
                                    "layers.#.mlp.experts.gate_up_proj"),
    [HD_NAMES_GLM4_MOE] = TWO_FORMS("model.", glm4_moe_rows, glm4_moe_stacked_rows,
                                    "layers.#.mlp.experts.gate_up_proj"),
    [HD_NAMES_MINIMAX_M2] =
        TWO_FORMS("model.", minimax_m2_rows, minimax_m2_stacked_rows, "layers.#.mlp.gate.weight"),
    [HD_NAMES_ERNIE4_5_MOE] = TWO_FORMS("model.", ernie4_5_moe_rows, ernie4_5_moe_stacked_rows,
                                        "layers.#.mlp.experts.gate_up_proj"),
    [HD_NAMES_GRANITE_HYBRID] = ONE_FORM("model.", granite_hybrid_rows),
    [HD_NAMES_GPT_NEOX] = ONE_FORM("gpt_neox.", gpt_neox_rows),
    [HD_NAMES_PHI] = ONE_FORM("model.", phi_rows),
    [HD_NAMES_OPT] = ONE_FORM("model.decoder.", opt_rows),
    [HD_NAMES_BLOOM] = ONE_FORM("transformer.", bloom_rows),
    [HD_NAMES_MPT] = ONE_FORM("transformer.", mpt_rows),
    [HD_NAMES_STABLELM] = ONE_FORM("model.", stablelm_rows),
    [HD_NAMES_FALCON] = ONE_FORM("transformer.", falcon_rows),
    [HD_NAMES_LLAMA4] = ONE_FORM("model.", llama4_rows),
    [HD_NAMES_HUNYUAN] = ONE_FORM("model.", hunyuan_rows),
    [HD_NAMES_HYPERCLOVAX] = ONE_FORM("model.", hyperclovax_rows),
    [HD_NAMES_GPT_OSS] = TWO_FORMS("model.", gpt_oss_rows, gpt_oss_mxfp4_rows,
                                   "layers.#.mlp.experts.gate_up_proj_blocks"),
};

enum hd_status hd_hf_rows(const char *family, const struct hd_hf_row **ret_rows, size_t *ret_count,
                          const char **ret_prefix)
{
    const struct hd_family *f = hd_family_named(family);

    if (!f)
        return hd_err(HD_UNSUPPORTED, "model.family: there are no Hugging Face names for %s",
                      family);
    *ret_rows = tables[f->names].rows;
    *ret_count = tables[f->names].count;
    *ret_prefix = tables[f->names].prefix;
    return HD_OK;
}

const struct hd_hf_names *hd_hf_names_of(const struct hd_family *family)
{
    return &tables[family->names];
}

const struct hd_hf_names *hd_hf_names_at(size_t index)
{
    return index < COUNT(tables) ? &tables[index] : NULL;
}

bool hd_hf_is_row_of(const struct hd_hf_row *row, const struct hd_job *job)
{
    return !row->branches || strcmp(row->branches, job->parallel_residual) == 0;
}

void hd_hf_format_name(const char *pattern, int64_t layer, int64_t expert,
                       char ret_name[HD_CKPT_NAME_MAX])
{
    size_t n = 0;

    for (const char *p = pattern; *p && n < HD_CKPT_NAME_MAX - 24; p++)
        if (*p == '#' || *p == '*')
            n += (size_t)snprintf(ret_name + n, HD_CKPT_NAME_MAX - n, "%" PRId64,
                                  *p == '#' ? layer : expert);
        else
            ret_name[n++] = *p;
    ret_name[n] = '\0';
}

bool hd_hf_name_matches(const char *pattern, const char *name, int64_t *ret_layer)
{
    const char *mark = strchr(pattern, '#');
    size_t before, digits;

    *ret_layer = 0;
    if (!mark)
        return strcmp(pattern, name) == 0;
    before = (size_t)(mark - pattern);
    if (strncmp(pattern, name, before) != 0)
        return false;
    digits = strspn(name + before, "0123456789");
    if (digits < 1 || digits > 6 || strcmp(name + before + digits, mark + 1) != 0)
        return false;
    *ret_layer = strtoll(name + before, NULL, 10);
    return true;
}

bool hd_hf_is_constant(const char *name)
{
    int64_t layer;

    for (size_t i = 0; i < COUNT(constants); i++)
        if (hd_hf_name_matches(constants[i], name, &layer))
            return true;
    return false;
}

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

static const struct hd_hf_row gpt2_rows[] = {
    PLAIN("embedding.weight", "wte.weight"),
    PLAIN("embedding.positions", "wpe.weight"),
    PLAIN("blocks.#.norm1.weight", "h.#.ln_1.weight"),
    PLAIN("blocks.#.norm1.bias", "h.#.ln_1.bias"),
    TURNED_PART(0, 3, "blocks.#.attention.q.weight", "h.#.attn.c_attn.weight"),
    TURNED_PART(1, 3, "blocks.#.attention.k.weight", "h.#.attn.c_attn.weight"),
    TURNED_PART(2, 3, "blocks.#.attention.v.weight", "h.#.attn.c_attn.weight"),
    PART(0, 3, "blocks.#.attention.q.bias", "h.#.attn.c_attn.bias"),
    PART(1, 3, "blocks.#.attention.k.bias", "h.#.attn.c_attn.bias"),
    PART(2, 3, "blocks.#.attention.v.bias", "h.#.attn.c_attn.bias"),
    TURNED("blocks.#.attention.out.weight", "h.#.attn.c_proj.weight"),
    PLAIN("blocks.#.attention.out.bias", "h.#.attn.c_proj.bias"),
    PLAIN("blocks.#.norm2.weight", "h.#.ln_2.weight"),
    PLAIN("blocks.#.norm2.bias", "h.#.ln_2.bias"),
    TURNED("blocks.#.mlp.up.weight", "h.#.mlp.c_fc.weight"),
    PLAIN("blocks.#.mlp.up.bias", "h.#.mlp.c_fc.bias"),
    TURNED("blocks.#.mlp.down.weight", "h.#.mlp.c_proj.weight"),
    PLAIN("blocks.#.mlp.down.bias", "h.#.mlp.c_proj.bias"),
    PLAIN("head.norm.weight", "ln_f.weight"),
    PLAIN("head.norm.bias", "ln_f.bias"),
    OUTSIDE("head.weight", HD_HF_HEAD_NAME),
    OUTSIDE("head.score.weight", HD_HF_SCORE_NAME),
};

/* The rows of all other families are lists of these pieces, in the order of an export. A model
 * need not have every parameter of its table. */
#define EMBEDDING PLAIN("embedding.weight", "embed_tokens.weight")
#define HEAD                                                                        \
    PLAIN("head.norm.weight", "norm.weight"), PLAIN("head.norm.bias", "norm.bias"), \
        OUTSIDE("head.weight", HD_HF_HEAD_NAME), OUTSIDE("head.score.weight", HD_HF_SCORE_NAME)
#define NORM(our, their)                                           \
    PLAIN("blocks.#." our ".weight", "layers.#." their ".weight"), \
        PLAIN("blocks.#." our ".bias", "layers.#." their ".bias")
#define QKV                                                                       \
    PLAIN("blocks.#.attention.q.weight", "layers.#.self_attn.q_proj.weight"),     \
        PLAIN("blocks.#.attention.k.weight", "layers.#.self_attn.k_proj.weight"), \
        PLAIN("blocks.#.attention.v.weight", "layers.#.self_attn.v_proj.weight"), \
        PLAIN("blocks.#.attention.q.bias", "layers.#.self_attn.q_proj.bias"),     \
        PLAIN("blocks.#.attention.k.bias", "layers.#.self_attn.k_proj.bias"),     \
        PLAIN("blocks.#.attention.v.bias", "layers.#.self_attn.v_proj.bias")
#define FUSED_QKV                                                                        \
    PART(0, 3, "blocks.#.attention.q.weight", "layers.#.self_attn.qkv_proj.weight"),     \
        PART(1, 3, "blocks.#.attention.k.weight", "layers.#.self_attn.qkv_proj.weight"), \
        PART(2, 3, "blocks.#.attention.v.weight", "layers.#.self_attn.qkv_proj.weight")
#define OUT                                                                            \
    PLAIN("blocks.#.attention.out.weight", "layers.#.self_attn.o_proj.weight"),        \
        PLAIN("blocks.#.attention.out.bias", "layers.#.self_attn.o_proj.bias"),        \
        PLAIN("blocks.#.attention.q_norm.weight", "layers.#.self_attn.q_norm.weight"), \
        PLAIN("blocks.#.attention.k_norm.weight", "layers.#.self_attn.k_norm.weight")
#define MLP                                                                 \
    PLAIN("blocks.#.mlp.gate.weight", "layers.#.mlp.gate_proj.weight"),     \
        PLAIN("blocks.#.mlp.up.weight", "layers.#.mlp.up_proj.weight"),     \
        PLAIN("blocks.#.mlp.down.weight", "layers.#.mlp.down_proj.weight"), \
        PLAIN("blocks.#.mlp.gate.bias", "layers.#.mlp.gate_proj.bias"),     \
        PLAIN("blocks.#.mlp.up.bias", "layers.#.mlp.up_proj.bias"),         \
        PLAIN("blocks.#.mlp.down.bias", "layers.#.mlp.down_proj.bias")
#define FUSED_MLP                                                                 \
    PART(0, 2, "blocks.#.mlp.gate.weight", "layers.#.mlp.gate_up_proj.weight"),   \
        PART(1, 2, "blocks.#.mlp.up.weight", "layers.#.mlp.gate_up_proj.weight"), \
        PLAIN("blocks.#.mlp.down.weight", "layers.#.mlp.down_proj.weight")
#define PLAIN_MLP                                                        \
    PLAIN("blocks.#.mlp.up.weight", "layers.#.mlp.c_fc.weight"),         \
        PLAIN("blocks.#.mlp.up.bias", "layers.#.mlp.c_fc.bias"),         \
        PLAIN("blocks.#.mlp.down.weight", "layers.#.mlp.c_proj.weight"), \
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
#define SHARED_EXPERTS                                                                        \
    PLAIN("blocks.#.moe.shared.gate.weight", "layers.#.mlp.shared_experts.gate_proj.weight"), \
        PLAIN("blocks.#.moe.shared.up.weight", "layers.#.mlp.shared_experts.up_proj.weight"), \
        PLAIN("blocks.#.moe.shared.down.weight", "layers.#.mlp.shared_experts.down_proj.weight")
#define QWEN_EXPERTS                                                          \
    EXPERTS("mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight", \
            "mlp.experts.*.down_proj.weight")
#define QWEN_STACKED_EXPERTS STACKED_EXPERTS("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
#define SHARED_EXPERT                                                                            \
    PLAIN("blocks.#.moe.shared.gate.weight", "layers.#.mlp.shared_expert.gate_proj.weight"),     \
        PLAIN("blocks.#.moe.shared.up.weight", "layers.#.mlp.shared_expert.up_proj.weight"),     \
        PLAIN("blocks.#.moe.shared.down.weight", "layers.#.mlp.shared_expert.down_proj.weight"), \
        PLAIN("blocks.#.moe.shared_gate.weight", "layers.#.mlp.shared_expert_gate.weight")
/* latent attention; queries have a latent or not */
#define LATENTS                                                                                   \
    PLAIN("blocks.#.attention.q.weight", "layers.#.self_attn.q_proj.weight"),                     \
        PLAIN("blocks.#.attention.q_a.weight", "layers.#.self_attn.q_a_proj.weight"),             \
        PLAIN("blocks.#.attention.q_a_norm.weight", "layers.#.self_attn.q_a_layernorm.weight"),   \
        PLAIN("blocks.#.attention.q_b.weight", "layers.#.self_attn.q_b_proj.weight"),             \
        PLAIN("blocks.#.attention.kv_a.weight", "layers.#.self_attn.kv_a_proj_with_mqa.weight"),  \
        PLAIN("blocks.#.attention.kv_a_norm.weight", "layers.#.self_attn.kv_a_layernorm.weight"), \
        PLAIN("blocks.#.attention.kv_b.weight", "layers.#.self_attn.kv_b_proj.weight"),           \
        PLAIN("blocks.#.attention.out.weight", "layers.#.self_attn.o_proj.weight")
#define FUSED_SHARED(module)                                                                    \
    PART(0, 2, "blocks.#." module ".gate.weight", "layers.#.shared_mlp.input_linear.weight"),   \
        PART(1, 2, "blocks.#." module ".up.weight", "layers.#.shared_mlp.input_linear.weight"), \
        PLAIN("blocks.#." module ".down.weight", "layers.#.shared_mlp.output_linear.weight")
#define SINKS PLAIN("blocks.#.attention.sinks", "layers.#.self_attn.sinks")
#define NORMS NORM("norm1", "input_layernorm"), NORM("norm2", "post_attention_layernorm")

static const struct hd_hf_row llama_rows[] = {EMBEDDING, NORMS, QKV, OUT, SINKS, MLP, HEAD};

/* The norms of q and k have a tensor for each head. */
static const struct hd_hf_row stablelm_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    PLAIN("blocks.#.attention.out.weight", "layers.#.self_attn.o_proj.weight"),
    PLAIN("blocks.#.attention.q_norm.weight", "layers.#.self_attn.q_layernorm.norms.*.weight"),
    PLAIN("blocks.#.attention.k_norm.weight", "layers.#.self_attn.k_layernorm.norms.*.weight"),
    MLP,
    HEAD};

static const struct hd_hf_row hunyuan_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    PLAIN("blocks.#.attention.out.weight", "layers.#.self_attn.o_proj.weight"),
    PLAIN("blocks.#.attention.out.bias", "layers.#.self_attn.o_proj.bias"),
    PLAIN("blocks.#.attention.q_norm.weight", "layers.#.self_attn.query_layernorm.weight"),
    PLAIN("blocks.#.attention.k_norm.weight", "layers.#.self_attn.key_layernorm.weight"),
    MLP,
    HEAD};

static const struct hd_hf_row hyperclovax_rows[] = {
    EMBEDDING, NORMS, NORM("norm1_out", "post_norm1"), NORM("norm2_out", "post_norm2"), QKV, OUT,
    MLP,       HEAD};

static const struct hd_hf_row llama4_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    PLAIN("blocks.#.mlp.gate.weight", "layers.#.feed_forward.gate_proj.weight"),
    PLAIN("blocks.#.mlp.up.weight", "layers.#.feed_forward.up_proj.weight"),
    PLAIN("blocks.#.mlp.down.weight", "layers.#.feed_forward.down_proj.weight"),
    ROUTER("feed_forward.router.weight"),
    TURNED_PART(0, 2, "blocks.#.moe.gate.weight", "layers.#.feed_forward.experts.gate_up_proj"),
    TURNED_PART(1, 2, "blocks.#.moe.up.weight", "layers.#.feed_forward.experts.gate_up_proj"),
    TURNED("blocks.#.moe.down.weight", "layers.#.feed_forward.experts.down_proj"),
    PLAIN("blocks.#.moe.shared.gate.weight",
          "layers.#.feed_forward.shared_expert.gate_proj.weight"),
    PLAIN("blocks.#.moe.shared.up.weight", "layers.#.feed_forward.shared_expert.up_proj.weight"),
    PLAIN("blocks.#.moe.shared.down.weight",
          "layers.#.feed_forward.shared_expert.down_proj.weight"),
    HEAD};

/* Mixtral's form that every version of transformers reads and that it writes by default, and the one
 * that transformers 5 writes with save_original_format=False. */
static const struct hd_hf_row mixtral_rows[] = {EMBEDDING,
                                                NORMS,
                                                QKV,
                                                OUT,
                                                ROUTER("block_sparse_moe.gate.weight"),
                                                EXPERTS("block_sparse_moe.experts.*.w1.weight",
                                                        "block_sparse_moe.experts.*.w3.weight",
                                                        "block_sparse_moe.experts.*.w2.weight"),
                                                HEAD};
static const struct hd_hf_row mixtral_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    ROUTER("mlp.gate.weight"),
    STACKED_EXPERTS("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    HEAD};

/* Qwen-MoE and OLMoE, in two forms: a tensor for each expert, or all experts in one. */
static const struct hd_hf_row qwen_moe_rows[] = {EMBEDDING,
                                                 NORMS,
                                                 QKV,
                                                 OUT,
                                                 MLP,
                                                 ROUTER("mlp.gate.weight"),
                                                 EXPERTS("mlp.experts.*.gate_proj.weight",
                                                         "mlp.experts.*.up_proj.weight",
                                                         "mlp.experts.*.down_proj.weight"),
                                                 SHARED_EXPERT,
                                                 HEAD};
static const struct hd_hf_row qwen_moe_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    MLP,
    ROUTER("mlp.gate.weight"),
    STACKED_EXPERTS("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    SHARED_EXPERT,
    HEAD};

/* GLM-4.5, in two forms: a tensor for each expert, or all experts in one. */
#define GLM4_MOE(experts)                                       \
    EMBEDDING, NORMS, QKV, OUT, MLP, ROUTER("mlp.gate.weight"), \
        SELECT_BIAS("mlp.gate.e_score_correction_bias"), experts, SHARED_EXPERTS, HEAD
static const struct hd_hf_row glm4_moe_rows[] = {GLM4_MOE(QWEN_EXPERTS)};
static const struct hd_hf_row glm4_moe_stacked_rows[] = {GLM4_MOE(QWEN_STACKED_EXPERTS)};

static const struct hd_hf_row ernie4_5_moe_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    MLP,
    ROUTER("mlp.gate.weight"),
    ONE_ROW("blocks.#.moe.select_bias", "layers.#.mlp.moe_statics.e_score_correction_bias"),
    QWEN_EXPERTS,
    SHARED_EXPERTS,
    HEAD};
static const struct hd_hf_row ernie4_5_moe_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    MLP,
    ROUTER("mlp.gate.weight"),
    ONE_ROW("blocks.#.moe.select_bias", "layers.#.mlp.gate.moe_statics.e_score_correction_bias"),
    QWEN_STACKED_EXPERTS,
    SHARED_EXPERTS,
    HEAD};

/* MiniMax-M2: Mixtral's names, in the same two forms as Mixtral. */
static const struct hd_hf_row minimax_m2_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    ROUTER("block_sparse_moe.gate.weight"),
    SELECT_BIAS("block_sparse_moe.e_score_correction_bias"),
    EXPERTS("block_sparse_moe.experts.*.w1.weight", "block_sparse_moe.experts.*.w3.weight",
            "block_sparse_moe.experts.*.w2.weight"),
    HEAD};
static const struct hd_hf_row minimax_m2_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    ROUTER("mlp.gate.weight"),
    SELECT_BIAS("mlp.e_score_correction_bias"),
    QWEN_STACKED_EXPERTS,
    HEAD};

static const struct hd_hf_row gemma_rows[] = {EMBEDDING,
                                              NORM("norm1", "input_layernorm"),
                                              NORM("norm1_out", "post_attention_layernorm"),
                                              NORM("norm2", "pre_feedforward_layernorm"),
                                              NORM("norm2_out", "post_feedforward_layernorm"),
                                              QKV,
                                              OUT,
                                              MLP,
                                              HEAD};

static const struct hd_hf_row olmo2_rows[] = {EMBEDDING,
                                              NORM("norm1_out", "post_attention_layernorm"),
                                              NORM("norm2_out", "post_feedforward_layernorm"),
                                              QKV,
                                              OUT,
                                              MLP,
                                              HEAD};

static const struct hd_hf_row phi3_rows[] = {EMBEDDING, NORMS, FUSED_QKV, OUT, FUSED_MLP, HEAD};

static const struct hd_hf_row glm_rows[] = {EMBEDDING, NORMS, QKV, OUT, FUSED_MLP, HEAD};

static const struct hd_hf_row glm4_rows[] = {EMBEDDING,
                                             NORM("norm1", "input_layernorm"),
                                             NORM("norm1_out", "post_self_attn_layernorm"),
                                             NORM("norm2", "post_attention_layernorm"),
                                             NORM("norm2_out", "post_mlp_layernorm"),
                                             QKV,
                                             OUT,
                                             FUSED_MLP,
                                             HEAD};

static const struct hd_hf_row granite_moe_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    SINKS,
    ROUTER("block_sparse_moe.router.layer.weight"),
    STACKED_EXPERTS("block_sparse_moe.input_linear.weight",
                    "block_sparse_moe.output_linear.weight"),
    FUSED_SHARED("moe.shared"),
    HEAD};

/* The form that transformers 5 writes with save_original_format=False, and for a class of its own
 * time. */
static const struct hd_hf_row granite_moe_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    SINKS,
    ROUTER("block_sparse_moe.router.weight"),
    STACKED_EXPERTS("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
    FUSED_SHARED("moe.shared"),
    HEAD};

static const struct hd_hf_row granite_hybrid_rows[] = {EMBEDDING,           NORMS, QKV, OUT,
                                                       FUSED_SHARED("mlp"), HEAD};

#define BY_HEADS(which, our, their)                                                \
    {                                                                              \
        .ours = our, .theirs = their, .place = which, .parts = 3, .by_heads = true \
    }
#define NEOX(our, their)                                           \
    PLAIN("blocks.#." our ".weight", "layers.#." their ".weight"), \
        PLAIN("blocks.#." our ".bias", "layers.#." their ".bias")
static const struct hd_hf_row gpt_neox_rows[] = {
    PLAIN("embedding.weight", "embed_in.weight"),
    NORMS,
    BY_HEADS(0, "blocks.#.attention.q.weight", "layers.#.attention.query_key_value.weight"),
    BY_HEADS(1, "blocks.#.attention.k.weight", "layers.#.attention.query_key_value.weight"),
    BY_HEADS(2, "blocks.#.attention.v.weight", "layers.#.attention.query_key_value.weight"),
    BY_HEADS(0, "blocks.#.attention.q.bias", "layers.#.attention.query_key_value.bias"),
    BY_HEADS(1, "blocks.#.attention.k.bias", "layers.#.attention.query_key_value.bias"),
    BY_HEADS(2, "blocks.#.attention.v.bias", "layers.#.attention.query_key_value.bias"),
    NEOX("attention.out", "attention.dense"),
    NEOX("mlp.up", "mlp.dense_h_to_4h"),
    NEOX("mlp.down", "mlp.dense_4h_to_h"),
    PLAIN("head.norm.weight", "final_layer_norm.weight"),
    PLAIN("head.norm.bias", "final_layer_norm.bias"),
    OUTSIDE("head.weight", HD_HF_NEOX_HEAD),
    OUTSIDE("head.score.weight", HD_HF_SCORE_NAME)};

#define HEAD_BIAS OUTSIDE("head.bias", HD_HF_HEAD_BIAS)
#define FC(our, their)                                             \
    PLAIN("blocks.#." our ".weight", "layers.#." their ".weight"), \
        PLAIN("blocks.#." our ".bias", "layers.#." their ".bias")
static const struct hd_hf_row phi_rows[] = {EMBEDDING,
                                            NORM("norm1", "input_layernorm"),
                                            QKV,
                                            FC("attention.out", "self_attn.dense"),
                                            FC("mlp.up", "mlp.fc1"),
                                            FC("mlp.down", "mlp.fc2"),
                                            PLAIN("head.norm.weight", "final_layernorm.weight"),
                                            PLAIN("head.norm.bias", "final_layernorm.bias"),
                                            OUTSIDE("head.weight", HD_HF_HEAD_NAME),
                                            HEAD_BIAS,
                                            OUTSIDE("head.score.weight", HD_HF_SCORE_NAME)};

static const struct hd_hf_row opt_rows[] = {EMBEDDING,
                                            PLAIN("embedding.positions", "embed_positions.weight"),
                                            NORM("norm1", "self_attn_layer_norm"),
                                            QKV,
                                            FC("attention.out", "self_attn.out_proj"),
                                            NORM("norm2", "final_layer_norm"),
                                            FC("mlp.up", "fc1"),
                                            FC("mlp.down", "fc2"),
                                            PLAIN("head.norm.weight", "final_layer_norm.weight"),
                                            PLAIN("head.norm.bias", "final_layer_norm.bias"),
                                            OUTSIDE("head.weight", HD_HF_HEAD_NAME),
                                            OUTSIDE("head.score.weight", HD_HF_SCORE_NAME)};

#define IF_BRANCHES(form, our, their)                              \
    {                                                              \
        .ours = our, .theirs = their, .branches = form, .parts = 1 \
    }
#define FALCON_NORM(form, our, their)                                     \
    IF_BRANCHES(form, "blocks.#." our ".weight", "h.#." their ".weight"), \
        IF_BRANCHES(form, "blocks.#." our ".bias", "h.#." their ".bias")
#define FALCON_QKV(what)                                                                       \
    BY_HEADS(0, "blocks.#.attention.q." what, "h.#.self_attention.query_key_value." what),     \
        BY_HEADS(1, "blocks.#.attention.k." what, "h.#.self_attention.query_key_value." what), \
        BY_HEADS(2, "blocks.#.attention.v." what, "h.#.self_attention.query_key_value." what)
#define FALCON(our, their)                                    \
    PLAIN("blocks.#." our ".weight", "h.#." their ".weight"), \
        PLAIN("blocks.#." our ".bias", "h.#." their ".bias")
static const struct hd_hf_row falcon_rows[] = {
    PLAIN("embedding.weight", "word_embeddings.weight"),
    FALCON_NORM("none", "norm1", "input_layernorm"),
    FALCON_NORM("none", "norm2", "post_attention_layernorm"),
    FALCON_NORM("one_norm", "norm1", "input_layernorm"),
    FALCON_NORM("two_norms", "norm1", "ln_attn"),
    FALCON_NORM("two_norms", "norm2", "ln_mlp"),
    FALCON_QKV("weight"),
    FALCON_QKV("bias"),
    FALCON("attention.out", "self_attention.dense"),
    FALCON("mlp.up", "mlp.dense_h_to_4h"),
    FALCON("mlp.down", "mlp.dense_4h_to_h"),
    PLAIN("head.norm.weight", "ln_f.weight"),
    PLAIN("head.norm.bias", "ln_f.bias"),
    OUTSIDE("head.weight", HD_HF_HEAD_NAME),
    OUTSIDE("head.score.weight", HD_HF_SCORE_NAME)};

#define H_NORM(our, their)                                    \
    PLAIN("blocks.#." our ".weight", "h.#." their ".weight"), \
        PLAIN("blocks.#." our ".bias", "h.#." their ".bias")
static const struct hd_hf_row bloom_rows[] = {
    PLAIN("embedding.weight", "word_embeddings.weight"),
    PLAIN("embedding.norm.weight", "word_embeddings_layernorm.weight"),
    PLAIN("embedding.norm.bias", "word_embeddings_layernorm.bias"),
    H_NORM("norm1", "input_layernorm"),
    H_NORM("norm2", "post_attention_layernorm"),
    FALCON_QKV("weight"),
    FALCON_QKV("bias"),
    FALCON("attention.out", "self_attention.dense"),
    FALCON("mlp.up", "mlp.dense_h_to_4h"),
    FALCON("mlp.down", "mlp.dense_4h_to_h"),
    PLAIN("head.norm.weight", "ln_f.weight"),
    PLAIN("head.norm.bias", "ln_f.bias"),
    OUTSIDE("head.weight", HD_HF_HEAD_NAME),
    OUTSIDE("head.score.weight", HD_HF_SCORE_NAME)};

static const struct hd_hf_row mpt_rows[] = {
    PLAIN("embedding.weight", "wte.weight"),
    PLAIN("blocks.#.norm1.weight", "blocks.#.norm_1.weight"),
    PART(0, 3, "blocks.#.attention.q.weight", "blocks.#.attn.Wqkv.weight"),
    PART(1, 3, "blocks.#.attention.k.weight", "blocks.#.attn.Wqkv.weight"),
    PART(2, 3, "blocks.#.attention.v.weight", "blocks.#.attn.Wqkv.weight"),
    PLAIN("blocks.#.attention.out.weight", "blocks.#.attn.out_proj.weight"),
    PLAIN("blocks.#.norm2.weight", "blocks.#.norm_2.weight"),
    PLAIN("blocks.#.mlp.up.weight", "blocks.#.ffn.up_proj.weight"),
    PLAIN("blocks.#.mlp.down.weight", "blocks.#.ffn.down_proj.weight"),
    PLAIN("head.norm.weight", "norm_f.weight"),
    OUTSIDE("head.weight", HD_HF_HEAD_NAME),
    OUTSIDE("head.score.weight", HD_HF_SCORE_NAME)};

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
#define DELTA                                                                    \
    CONVOLUTION(0, "blocks.#.delta.conv_q.weight"),                              \
        CONVOLUTION(1, "blocks.#.delta.conv_k.weight"),                          \
        CONVOLUTION(2, "blocks.#.delta.conv_v.weight"),                          \
        PLAIN("blocks.#.delta.A_log", "layers.#.linear_attn.A_log"),             \
        PLAIN("blocks.#.delta.dt_bias", "layers.#.linear_attn.dt_bias"),         \
        PLAIN("blocks.#.delta.norm.weight", "layers.#.linear_attn.norm.weight"), \
        PLAIN("blocks.#.delta.out.weight", "layers.#.linear_attn.out_proj.weight")
#define GATED_QKV                                                                 \
    GROUPED(HD_HF_BY_HEAD, 0, 2, "blocks.#.attention.q.weight",                   \
            "layers.#.self_attn.q_proj.weight"),                                  \
        GROUPED(HD_HF_BY_HEAD, 1, 2, "blocks.#.attention.gate.weight",            \
                "layers.#.self_attn.q_proj.weight"),                              \
        PLAIN("blocks.#.attention.k.weight", "layers.#.self_attn.k_proj.weight"), \
        PLAIN("blocks.#.attention.v.weight", "layers.#.self_attn.v_proj.weight")
#define QKVZ(which, our) \
    GROUPED(HD_HF_BY_KEY_HEAD, which, 4, our, "layers.#.linear_attn.in_proj_qkvz.weight")
#define BA(which, our) \
    GROUPED(HD_HF_BY_KEY_HEAD, which, 2, our, "layers.#.linear_attn.in_proj_ba.weight")
#define FUSED_DELTA                                                             \
    QKVZ(0, "blocks.#.delta.q.weight"), QKVZ(1, "blocks.#.delta.k.weight"),     \
        QKVZ(2, "blocks.#.delta.v.weight"), QKVZ(3, "blocks.#.delta.z.weight"), \
        BA(0, "blocks.#.delta.b.weight"), BA(1, "blocks.#.delta.a.weight"), DELTA

static const struct hd_hf_row qwen_next_rows[] = {EMBEDDING,
                                                  NORMS,
                                                  GATED_QKV,
                                                  OUT,
                                                  FUSED_DELTA,
                                                  MLP,
                                                  ROUTER("mlp.gate.weight"),
                                                  EXPERTS("mlp.experts.*.gate_proj.weight",
                                                          "mlp.experts.*.up_proj.weight",
                                                          "mlp.experts.*.down_proj.weight"),
                                                  SHARED_EXPERT,
                                                  HEAD};
static const struct hd_hf_row qwen_next_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    GATED_QKV,
    OUT,
    FUSED_DELTA,
    MLP,
    ROUTER("mlp.gate.weight"),
    STACKED_EXPERTS("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    SHARED_EXPERT,
    HEAD};

#define SEPARATE_DELTA                                                                    \
    PART(0, 3, "blocks.#.delta.q.weight", "layers.#.linear_attn.in_proj_qkv.weight"),     \
        PART(1, 3, "blocks.#.delta.k.weight", "layers.#.linear_attn.in_proj_qkv.weight"), \
        PART(2, 3, "blocks.#.delta.v.weight", "layers.#.linear_attn.in_proj_qkv.weight"), \
        PLAIN("blocks.#.delta.z.weight", "layers.#.linear_attn.in_proj_z.weight"),        \
        PLAIN("blocks.#.delta.b.weight", "layers.#.linear_attn.in_proj_b.weight"),        \
        PLAIN("blocks.#.delta.a.weight", "layers.#.linear_attn.in_proj_a.weight"), DELTA

static const struct hd_hf_row qwen3_5_rows[] = {EMBEDDING,
                                                NORMS,
                                                GATED_QKV,
                                                OUT,
                                                SEPARATE_DELTA,
                                                MLP,
                                                ROUTER("mlp.gate.weight"),
                                                EXPERTS("mlp.experts.*.gate_proj.weight",
                                                        "mlp.experts.*.up_proj.weight",
                                                        "mlp.experts.*.down_proj.weight"),
                                                SHARED_EXPERT,
                                                HEAD};
static const struct hd_hf_row qwen3_5_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    GATED_QKV,
    OUT,
    SEPARATE_DELTA,
    MLP,
    ROUTER("mlp.gate.weight"),
    STACKED_EXPERTS("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    SHARED_EXPERT,
    HEAD};

static const struct hd_hf_row starcoder2_rows[] = {EMBEDDING, NORMS, QKV, OUT, PLAIN_MLP, HEAD};

/* DeepSeek-V2 and V3, GLM-4.7-Flash, in two forms: a tensor for each expert, or all experts in
 * one. */
static const struct hd_hf_row deepseek_rows[] = {EMBEDDING,
                                                 NORMS,
                                                 LATENTS,
                                                 MLP,
                                                 ROUTER("mlp.gate.weight"),
                                                 SELECT_BIAS("mlp.gate.e_score_correction_bias"),
                                                 QWEN_EXPERTS,
                                                 SHARED_EXPERTS,
                                                 HEAD};
static const struct hd_hf_row deepseek_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    LATENTS,
    MLP,
    ROUTER("mlp.gate.weight"),
    SELECT_BIAS("mlp.gate.e_score_correction_bias"),
    QWEN_STACKED_EXPERTS,
    SHARED_EXPERTS,
    HEAD};

/* GPT-OSS: stacks of experts whose gates and up projections are even and odd columns of [E, C, 2F],
 * and the published form, mxfp4 codes of the rows [E, 2F, C] and [E, C, F] (quantized.c). */
#define GPT_OSS_BIASES                                            \
    ALTERNATE_PART(0, 2, false, "blocks.#.moe.gate.bias",         \
                   "layers.#.mlp.experts.gate_up_proj_bias"),     \
        ALTERNATE_PART(1, 2, false, "blocks.#.moe.up.bias",       \
                       "layers.#.mlp.experts.gate_up_proj_bias"), \
        PLAIN("blocks.#.moe.down.bias", "layers.#.mlp.experts.down_proj_bias")
static const struct hd_hf_row gpt_oss_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    SINKS,
    ROUTER("mlp.router.weight"),
    PLAIN("blocks.#.moe.router.bias", "layers.#.mlp.router.bias"),
    ALTERNATE_PART(0, 2, true, "blocks.#.moe.gate.weight", "layers.#.mlp.experts.gate_up_proj"),
    ALTERNATE_PART(1, 2, true, "blocks.#.moe.up.weight", "layers.#.mlp.experts.gate_up_proj"),
    TURNED("blocks.#.moe.down.weight", "layers.#.mlp.experts.down_proj"),
    GPT_OSS_BIASES,
    HEAD};
static const struct hd_hf_row gpt_oss_mxfp4_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    SINKS,
    ROUTER("mlp.router.weight"),
    PLAIN("blocks.#.moe.router.bias", "layers.#.mlp.router.bias"),
    ALTERNATE_PART(0, 2, false, "blocks.#.moe.gate.weight",
                   "layers.#.mlp.experts.gate_up_proj_blocks"),
    ALTERNATE_PART(1, 2, false, "blocks.#.moe.up.weight",
                   "layers.#.mlp.experts.gate_up_proj_blocks"),
    PLAIN("blocks.#.moe.down.weight", "layers.#.mlp.experts.down_proj_blocks"),
    GPT_OSS_BIASES,
    HEAD};

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

static const struct hd_hf_names tables[HD_NAMES_COUNT] = {
    [HD_NAMES_GPT2] = {"transformer.", gpt2_rows, COUNT(gpt2_rows), NULL, 0, NULL},
    [HD_NAMES_LLAMA] = {"model.", llama_rows, COUNT(llama_rows), NULL, 0, NULL},
    [HD_NAMES_MIXTRAL] = {"model.", mixtral_rows, COUNT(mixtral_rows), mixtral_stacked_rows,
                          COUNT(mixtral_stacked_rows), "layers.#.mlp.gate.weight"},
    [HD_NAMES_QWEN_MOE] = {"model.", qwen_moe_rows, COUNT(qwen_moe_rows), qwen_moe_stacked_rows,
                           COUNT(qwen_moe_stacked_rows), "layers.#.mlp.experts.gate_up_proj"},
    [HD_NAMES_GEMMA] = {"model.", gemma_rows, COUNT(gemma_rows), NULL, 0, NULL},
    [HD_NAMES_OLMO2] = {"model.", olmo2_rows, COUNT(olmo2_rows), NULL, 0, NULL},
    [HD_NAMES_PHI3] = {"model.", phi3_rows, COUNT(phi3_rows), NULL, 0, NULL},
    [HD_NAMES_GLM] = {"model.", glm_rows, COUNT(glm_rows), NULL, 0, NULL},
    [HD_NAMES_GLM4] = {"model.", glm4_rows, COUNT(glm4_rows), NULL, 0, NULL},
    [HD_NAMES_GRANITE_MOE] = {"model.", granite_moe_rows, COUNT(granite_moe_rows),
                              granite_moe_stacked_rows, COUNT(granite_moe_stacked_rows),
                              "layers.#.block_sparse_moe.experts.gate_up_proj"},
    [HD_NAMES_GRANITE_MOE_SWA] = {"model.", granite_moe_stacked_rows,
                                  COUNT(granite_moe_stacked_rows), NULL, 0, NULL},
    [HD_NAMES_QWEN_NEXT] = {"model.", qwen_next_rows, COUNT(qwen_next_rows), qwen_next_stacked_rows,
                            COUNT(qwen_next_stacked_rows), "layers.#.mlp.experts.gate_up_proj"},
    [HD_NAMES_QWEN3_5] = {"model.", qwen3_5_rows, COUNT(qwen3_5_rows), qwen3_5_stacked_rows,
                          COUNT(qwen3_5_stacked_rows), "layers.#.mlp.experts.gate_up_proj"},
    [HD_NAMES_STARCODER2] = {"model.", starcoder2_rows, COUNT(starcoder2_rows), NULL, 0, NULL},
    [HD_NAMES_DEEPSEEK] = {"model.", deepseek_rows, COUNT(deepseek_rows), deepseek_stacked_rows,
                           COUNT(deepseek_stacked_rows), "layers.#.mlp.experts.gate_up_proj"},
    [HD_NAMES_GLM4_MOE] = {"model.", glm4_moe_rows, COUNT(glm4_moe_rows), glm4_moe_stacked_rows,
                           COUNT(glm4_moe_stacked_rows), "layers.#.mlp.experts.gate_up_proj"},
    [HD_NAMES_MINIMAX_M2] = {"model.", minimax_m2_rows, COUNT(minimax_m2_rows),
                             minimax_m2_stacked_rows, COUNT(minimax_m2_stacked_rows),
                             "layers.#.mlp.gate.weight"},
    [HD_NAMES_ERNIE4_5_MOE] = {"model.", ernie4_5_moe_rows, COUNT(ernie4_5_moe_rows),
                               ernie4_5_moe_stacked_rows, COUNT(ernie4_5_moe_stacked_rows),
                               "layers.#.mlp.experts.gate_up_proj"},
    [HD_NAMES_GRANITE_HYBRID] = {"model.", granite_hybrid_rows, COUNT(granite_hybrid_rows), NULL, 0,
                                 NULL},
    [HD_NAMES_GPT_NEOX] = {"gpt_neox.", gpt_neox_rows, COUNT(gpt_neox_rows), NULL, 0, NULL},
    [HD_NAMES_PHI] = {"model.", phi_rows, COUNT(phi_rows), NULL, 0, NULL},
    [HD_NAMES_OPT] = {"model.decoder.", opt_rows, COUNT(opt_rows), NULL, 0, NULL},
    [HD_NAMES_BLOOM] = {"transformer.", bloom_rows, COUNT(bloom_rows), NULL, 0, NULL},
    [HD_NAMES_MPT] = {"transformer.", mpt_rows, COUNT(mpt_rows), NULL, 0, NULL},
    [HD_NAMES_STABLELM] = {"model.", stablelm_rows, COUNT(stablelm_rows), NULL, 0, NULL},
    [HD_NAMES_FALCON] = {"transformer.", falcon_rows, COUNT(falcon_rows), NULL, 0, NULL},
    [HD_NAMES_LLAMA4] = {"model.", llama4_rows, COUNT(llama4_rows), NULL, 0, NULL},
    [HD_NAMES_HUNYUAN] = {"model.", hunyuan_rows, COUNT(hunyuan_rows), NULL, 0, NULL},
    [HD_NAMES_HYPERCLOVAX] = {"model.", hyperclovax_rows, COUNT(hyperclovax_rows), NULL, 0, NULL},
    [HD_NAMES_GPT_OSS] = {"model.", gpt_oss_rows, COUNT(gpt_oss_rows), gpt_oss_mxfp4_rows,
                          COUNT(gpt_oss_mxfp4_rows), "layers.#.mlp.experts.gate_up_proj_blocks"},
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

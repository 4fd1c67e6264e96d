/* model: decoder-only transformers as forward functions over ops. Forward only: gradients,
 * precision, layout and memory are the passes' business.
 *
 * A family is a choice among a few parts (norm, positions, MLP, biases); units are the embedding, L
 * equal blocks and the head.
 *
 *   gpt2     Radford et al. 2019: LayerNorm, learned positions, GELU MLP, biases, tied head
 *   llama    Touvron et al. 2023: RMSNorm, rotary positions, SwiGLU MLP, grouped-query attention
 *   mistral  Jiang et al. 2023: llama with a sliding window
 *   qwen2    Qwen team 2024: llama with biases on queries, keys and values
 *   qwen3    Qwen team 2025: llama with a norm over each head of queries and keys
 *   mixtral  Jiang et al. 2024: llama with a mixture of experts in place of the MLP
 *
 * Norm and MLP are the family's; positions, biases, head norms, window and the scaling of rotary
 * angles are switches of the job, which the reader of job files sets by the family.
 *
 * Used by: train, generation, plan.   Uses: program, link (the resolved job).
 * Threads: a model is immutable after hd_model_declare.
 */
#ifndef HD_MODEL_MODEL_H
#define HD_MODEL_MODEL_H

#include "base/arena.h"
#include "base/status.h"
#include "job/job.h"
#include "program/program.h"

/* What makes a family. */
struct hd_family {
    const char *name;
    bool layernorm; /* else RMSNorm */
    bool gated_mlp; /* SwiGLU, else GELU */
    bool rotary;    /* may turn queries and keys; else it may have a table of positions */
};

/* How a model knows where a token stands. */
enum hd_positions {
    HD_POSITIONS_ROPE,    /* queries and keys are turned (Su et al. 2021) */
    HD_POSITIONS_LEARNED, /* a table, added to the embedding */
    HD_POSITIONS_ALIBI    /* scores fall with the distance (Press et al. 2022) */
};

/* HD_UNSUPPORTED, with the list of names, when there is none of that name. */
enum hd_status hd_family_find(const char *name, const struct hd_family **ret_family);

/* Sizes; the letters of the house. */
struct hd_model_config {
    const struct hd_family *family;
    int64_t L, C, H, G, D, F, V, context;
    int64_t window, window_from; /* tokens that a row of block window_from and on sees; 0: all */
    struct hd_rope rope;
    double norm_eps;
    bool tied;                         /* the head uses the embedding's weight */
    bool qkv_bias, out_bias, mlp_bias; /* which projections add one */
    bool qk_norm;                      /* RMSNorm over each head of q and k, before the rotation */
    struct hd_router router;           /* E = 0: a block has one MLP; else F is an expert's */
    int64_t F_shared;                  /* of an expert that every row goes to; 0: none */
    enum hd_positions positions;
    /* shares dropped in training, as GPT-2 has it: of the embedding, of attention's weights, and of
     * what attention and MLP add to the residual stream */
    double dropout_embedding, dropout_attention, dropout_residual;
    uint64_t seed; /* of what is dropped */
};

/* From a resolved job; checks what the kernels need and says what to change. */
enum hd_status hd_model_config_from_job(const struct hd_job *job,
                                        struct hd_model_config *ret_config);

/* Tokens that a row of this block sees, itself included; 0: all before it. */
int64_t hd_model_window(const struct hd_model_config *config, int64_t layer);

/* Parameters by number in the registry; -1 where the family has none. */
struct hd_norm {
    int weight, bias;
};
struct hd_attention {
    int qkv, qkv_bias; /* q, k, v joined: the first of three */
    int out, out_bias;
    int q_norm, k_norm; /* over a head's channels */
};
struct hd_mlp {
    int up, up_bias; /* gated: gate and up joined */
    int down, down_bias;
};
struct hd_block {
    struct hd_norm norm1, norm2;
    struct hd_attention attention;
    struct hd_mlp mlp; /* with experts, the shared one */
    struct hd_expert_params experts;
};

struct hd_model {
    struct hd_model_config config;
    int embedding, positions; /* weights */
    struct hd_block *blocks;  /* [L] */
    struct hd_norm head_norm;
    int head; /* weight; the embedding's when tied */
    int unit_embedding, unit_first_block, unit_head;
};

/* Neighbours in tp that hold one key/value head: the mesh's kv_replica. 1 unless tp > kv_heads. */
int32_t hd_model_kv_replica(const struct hd_model_config *config, int64_t tp);

/* Declares every parameter. The registry's tp cuts heads, ffn and vocabulary. Lives in `arena`. */
enum hd_status hd_model_declare(const struct hd_model_config *config, struct hd_registry *registry,
                                struct hd_arena *arena, struct hd_model *ret_model);

/* Records all units: loss in training and evaluation, logits of every row in decode. Failures stick
 * to the recording. */
void hd_model_record(const struct hd_model *model, struct hd_rec *rec);

/* Training FLOPs per token, the numerator of MFU (Chowdhery et al. 2022, appendix B, with causal
 * attention counted once per visible pair): 6 per weight of a matrix that multiplies, and for
 * attention 12 H D per visible pair and block: scores and mix are 4 H D forward, twice that
 * backward. A token sees (S+1)/2 positions on average, and with a window of W < S of them
 * W (2S - W + 1) / 2S. */
double hd_model_flops_per_token(const struct hd_model_config *config);

#endif

/* recording: the ops and tensors that a model's forward function records (record.c). program.h says
 * what becomes of them.
 *
 * Used by: model (records), and program.h.   Uses: base, kernels (enums of ops), angles, registry.
 * Failures and threads: as in program.h.
 */
#ifndef HD_PROGRAM_RECORDING_H
#define HD_PROGRAM_RECORDING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "program/angles.h"
#include "program/registry.h"

enum { HD_DIMS_MAX = 4, HD_OP_INPUTS_MAX = 6, HD_OP_PARAMS_MAX = 18, HD_LOW_RANK_MAX = 3 };

/* Fields of a batch: device tensors with one value per row unless the field says otherwise. A
 * program has only the fields that its ops read. Targets are shifted by one token before cp splits
 * rows. */
#define HD_BATCH_FIELD_LIST(X)                                                                     \
    X(TOKENS, "tokens", I32)                                                                       \
    X(TARGETS, "targets", I32)                                                                     \
    X(POSITIONS, "positions", I32) /* position of the row for RoPE or the position table */        \
    X(INDEX, "index", I32)         /* index of the row in its sample; masks compare these */       \
    X(BOUNDS, "bounds", I32)       /* index in the sample at which the row's document begins */    \
    X(SAMPLES, "samples", I32)     /* index of the row's sample in the global batch */             \
    X(ANSWERS, "answers", I32)     /* index of the row's answer in its sample; -1: none */         \
    X(REFERENCE, "reference", F32) /* log-probability of the target in the reference model */      \
    X(SAMPLED, "sampled", F32)     /* log-probability of the target when it was sampled */         \
    X(ADVANTAGE, "advantage", F32) /* advantage of the row's completion */                         \
    X(BEGINS, "begins", I32)       /* index at which the row's document for routers begins */      \
    X(LENGTHS, "lengths", I32)     /* tokens of the router's document (ops_moe.h); 0: empty row */ \
    X(TEACHER_IDS, "teacher_ids", I32)   /* [B*S, k]: ids of the teacher's likeliest tokens */     \
    X(TEACHER_LOGQ, "teacher_logq", F32) /* [B*S, k]: their log-probabilities */                   \
    X(FILLED, "filled", I32) /* decode; [3, B]: cached rows before, after; cache slot */           \
    /* AHEADk: token k places after the row. FURTHERk: the target of that token */                 \
    X(AHEAD1, "ahead1", I32)                                                                       \
    X(AHEAD2, "ahead2", I32)                                                                       \
    X(AHEAD3, "ahead3", I32)                                                                       \
    X(AHEAD4, "ahead4", I32)                                                                       \
    X(FURTHER1, "further1", I32)                                                                   \
    X(FURTHER2, "further2", I32)                                                                   \
    X(FURTHER3, "further3", I32)                                                                   \
    X(FURTHER4, "further4", I32)                                                                   \
    X(TAKEN, "taken", I32) /* drafts: index of the chunk's input row that the row takes */         \
    X(LAST, "last", I32)   /* drafts; [B]: index of the last row of the sequence */

enum hd_batch_field {
#define X(code, name, dtype) HD_BATCH_##code,
    HD_BATCH_FIELD_LIST(X)
#undef X
        HD_BATCH_FIELD_COUNT
};

/* Purposes for which a model is recorded. */
enum hd_record_mode {
    HD_RECORD_TRAIN, /* training: programs F, B and W (forward, backward for inputs, for weights) */
    HD_RECORD_EVAL,  /* evaluation: program E (forward), keeps no values */
    HD_RECORD_DECODE /* decoding: program D (new tokens), with key/value caches of `context` rows
                        per sequence */
};

enum hd_tensor_kind {
    HD_TENSOR_RESULT,
    HD_TENSOR_BATCH,
    HD_TENSOR_INPUT /* input of the chunk: hidden rows that the previous chunk wrote */
};

/* A value in the recording. Read-only for model code. */
struct hd_tensor {
    int id;
    enum hd_tensor_kind kind;
    enum hd_batch_field field; /* set for HD_TENSOR_BATCH only */
    const char *name;          /* name of the tensor in listings */
    int dim_count;
    int64_t dim[HD_DIMS_MAX];
    enum hd_dtype dtype; /* integers: set when recorded; floats: set by the precision pass */
    bool needs_grad;
    int same_store; /* id of the tensor in whose memory the op writes this one, overwriting it; -1:
                       this tensor has its own memory */
};

/* Operation classes, the rows of the precision table. */
#define HD_OP_CLASS_LIST(X) \
    X(EMBEDDING) X(LINEAR) X(NORM) X(ATTENTION) X(ACTIVATION) X(RESIDUAL) X(HEAD) X(COMM)
enum hd_op_class {
#define X(code) HD_CLASS_##code,
    HD_OP_CLASS_LIST(X)
#undef X
        HD_OP_CLASS_COUNT
};

/* Ops and their classes. record.c has each op's shape rule, ops_*.c its emitters. */
#define HD_OP_LIST(X)          \
    X(embedding, EMBEDDING)    \
    X(linear, LINEAR)          \
    X(low_rank, LINEAR)        \
    X(scale, LINEAR)           \
    X(magnitude, LINEAR)       \
    X(rmsnorm, NORM)           \
    X(layernorm, NORM)         \
    X(head_norm, NORM)         \
    X(qk_norm, NORM)           \
    X(rope, ATTENTION)         \
    X(query_factor, ATTENTION) \
    X(attention, ATTENTION)    \
    X(clamp, ATTENTION)        \
    X(latent_join, ATTENTION)  \
    X(head_columns, ATTENTION) \
    X(join_columns, LINEAR)    \
    X(glu, ACTIVATION)         \
    X(activation, ACTIVATION)  \
    X(experts, LINEAR)         \
    X(row_gate, ACTIVATION)    \
    X(conv, ATTENTION)         \
    X(gated_delta, ATTENTION)  \
    X(gated_norm, NORM)        \
    X(sigmoid_gate, ATTENTION) \
    X(add, RESIDUAL)           \
    X(dropout, RESIDUAL)       \
    X(noise, RESIDUAL)         \
    X(bias, RESIDUAL)          \
    X(cast, RESIDUAL)          \
    X(take_rows, RESIDUAL)     \
    X(head_loss, HEAD)         \
    X(head_pairs, HEAD)        \
    X(head_policy, HEAD)       \
    X(head_reward, HEAD)       \
    X(logits, HEAD)            \
    X(copy_to_tp, COMM)        \
    X(reduce_from_tp, COMM)    \
    X(tp_rows, COMM)

enum hd_op_kind {
#define X(name, class) HD_OP_##name,
    HD_OP_LIST(X)
#undef X
        HD_OP_COUNT
};

/* Sites in a layer that draw random numbers: the `site` of hd_dropout_key. Renumbering them changes
 * the random numbers of resumed jobs. */
enum {
    HD_SITE_EMBEDDING,
    HD_SITE_ATTENTION,
    HD_SITE_RESIDUAL1,
    HD_SITE_RESIDUAL2,
    HD_SITE_ROUTER,
    HD_SITE_ADAPTER_QKV,
    HD_SITE_ADAPTER_OUT,
    HD_SITE_ADAPTER_UP,
    HD_SITE_ADAPTER_DOWN,
    HD_SITE_ADAPTER1,
    HD_SITE_ADAPTER2,
    HD_SITE_PREFIX,
    HD_SITE_ADAPTER_Q_B,
    HD_SITE_ADAPTER_KV_A,
    HD_SITE_ADAPTER_KV_B,
    HD_SITE_NOISE
};

/* Dropout of an op (ops.h, "Dropout"). hd_rec_unit adjusts `layer` when it repeats the ops of a
 * recorded unit for another unit. */
struct hd_dropout {
    double p; /* probability of dropping a value; 0: no dropout */
    uint64_t seed;
    int64_t layer, site;
};

/* The router of a mixture of experts (ops_moe.h). */
struct hd_router {
    int64_t E, K; /* number of experts; number of experts per row */
    int number;   /* index of the router in the model: the position of its record in
                     HD_GLOBAL_ROUTES */
    bool renormalize, noisy;
    bool gate_input; /* true: a row is multiplied by its gates before its experts, not after them */
    struct hd_route_form form; /* scores and choice */
    double balance, z;         /* coefficients of the router's balance loss and z loss */
    double capacity;           /* most rows of a document for one expert, as a multiple of an even
                           distribution; 0: no limit, nothing is dropped */
    double expert_rows; /* with experts on several ranks: rows that a rank's receive buffers hold,
                           as a multiple of an even distribution; 0: all rows that the other ranks
                           could send */
    uint64_t seed;      /* seed of the router's noise */
};

/* A target of op_low_rank: one adapted matrix of a linear, whose second adapter factor is the
 * parameter `weight` [N, r]. The factor multiplies columns `inner` to inner + r of h; the product
 * is added to columns `column` to column + N of y. */
struct hd_low_rank {
    int weight;
    int64_t column, inner;
};

/* A target of op_magnitude: one matrix of a linear, `weight` [N, K], with its magnitudes [N] and
 * its adapter factors a [r, K] and b [N, r], all as parameter indices. Its results are columns
 * `column` to column + N. */
struct hd_magnitude {
    int magnitude, weight, a, b;
    int64_t column;
};

/* Settings of a head, which maps its products z = x W^T to z' = cap * tanh(logit_scale * z / cap),
 * without a cap to logit_scale * z. Loss, log-probabilities and outputs are those of z'. */
struct hd_head_settings {
    double logit_scale; /* > 0; 0: 1 */
    double cap;         /* > 0; 0: none */
    double z_loss;      /* head_loss op: factor of the z-loss (cross_entropy, ops.h); 0: none */
    bool has_bias;      /* z = x W^T + b, with a bias [V] that tp splits as it splits W */
    int bias;           /* with has_bias: parameter of b */
    int further; /* head_loss op: depth of the further token that is predicted, whose record has the
                    loss (HD_GLOBAL_FURTHER); 0: the loss is the model's own */
};

/* Distillation of a head: the student's loss, or the teacher's record (hd_distill_args in ops.h). */
struct hd_distill_settings {
    int64_t k;     /* ids of a record; 0: no distillation */
    int64_t vocab; /* token ids that count */
    double temperature, weight, beta;
    enum hd_distill_loss loss;
    bool tail;
};

/* Heads of multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): a query or key has `nope`
 * channels without positions, then `rope` channels with; those of keys are the same in all heads.
 * */
struct hd_latent_heads {
    int64_t heads, nope, rope, value; /* value: channels of a head's value; at most nope + rope */
};

/* Settings of an op besides its tensors; each op uses only some of them. */
struct hd_op_settings {
    int64_t heads, kv_heads, head_width, window;
    int64_t key_width;  /* gated_delta op: channels of a key head */
    int64_t conv_width; /* conv op: taps */
    bool plain;         /* conv op: without SiLU; sigmoid_gate op: the gate itself, no sigmoid */
    int64_t prefix;     /* attention op: number of learned keys and values; 0: none */
    int64_t chunk;      /* attention op: see hd_attention_settings */
    double eps, cap;
    double scale; /* factor of a scale or attention op, of an experts op's adapters, of an embedding
                     op's token rows, of an add op's second input; in the last two 0 means 1 */
    struct hd_head_settings head;
    enum hd_activation act; /* glu, activation and experts ops */
    double alpha, limit; /* constants of HD_ACT_OSS (hd_glu_forward_args); limit: of a clamp op */
    bool causal, alibi, scaled_alibi;
    bool layer;     /* head_norm op: LayerNorm, with a weight for each head */
    bool has_sinks; /* attention op: its last parameter is the sinks */
    bool summed; /* magnitude op: tp splits the columns of W and A, so the sums of squares are added
                    over tp ranks */
    bool one_plus; /* norms: the factor is 1 + weight */
    struct hd_router router;
    const struct hd_rope *rope; /* in the recording's arena */
    struct hd_query_factor query_factor;
    struct hd_latent_heads latent;
    struct hd_dropout dropout; /* noise op: seed and site of its random numbers */
    double noise;              /* noise op: alpha */
    int64_t first_channel; /* dropout op: index of x's first channel in a row with the channels of
                              all tp ranks; head_columns op: index in a head */
    bool rebuilt;          /* linear op: see op_rebuilt_linear */
    int64_t down_site;     /* experts op: dropout site before the adapter of the down matrices */
    enum hd_preference preference;
    struct hd_preference_factors factors;
    struct hd_policy_factors policy;
    struct hd_distill_settings distill;                      /* head_loss op */
    int64_t column[HD_LOW_RANK_MAX], inner[HD_LOW_RANK_MAX]; /* low_rank and magnitude ops: index is
                                                                the target */
};

struct hd_op {
    enum hd_op_kind kind;
    int unit;
    struct hd_tensor *in[HD_OP_INPUTS_MAX];
    struct hd_tensor *out;
    int in_count;
    int param[HD_OP_PARAMS_MAX]; /* by span (adjacent parameters used as one matrix): index of its
                                    first parameter; -1: the op has no such span */
    int param_count;
    int fused_count; /* number of adjacent parameters that act as one matrix */
    struct hd_op_settings set;
};

struct hd_rec; /* a recording; opaque to the model */

/* The shape, mode and loss for which a program is recorded. */
struct hd_rec_shape {
    enum hd_record_mode mode;
    int64_t B;       /* number of sequences per call of a program */
    int64_t S;       /* this rank's rows per sequence (1 / cp of them, in zigzag order); decode: new
                        tokens per sequence and call */
    int64_t context; /* most tokens of a sequence: rows of a cache slot and of the RoPE table;
                        training: cp * S */
    int64_t first_position; /* position of a sequence's first token: POSITIONS and the RoPE table
                               end at first_position + context */
    int64_t slots;          /* decode: number of sequences that the key/value caches hold, one per
                               slot; one call works on B of them */
    bool drafts;            /* decode: true: the head's normed rows are the chunk's output
                               (HD_STAGE_OUTPUT), which drafts of further tokens read */
    bool bounded;           /* true: a row attends only within its document (HD_BATCH_BOUNDS);
                               ignored in decode */
    bool gather_keys;       /* true, with cp > 1: one all-gather of keys and values instead of the
                               ring */
    bool ends_backward;     /* true if no earlier unit trains: the gradient of the chunk's input is
                               not computed */
    enum hd_preference preference;        /* loss of the head on pairs of answers (ops.h) */
    struct hd_preference_factors factors; /* numbers in the formula of that loss (ops.h) */
    bool has_policy;                      /* true: program F has a loss on sampled completions */
    struct hd_policy_factors policy;      /* numbers in the formula of that loss (ops.h) */
    /* distillation; in training the loss of the next token is that of a student. Program E has a
     * teacher's records [B*S, k] {log q, id} as an output for the host instead of `scores`, if `k` is
     * set there */
    struct hd_distill_settings distill;
    bool scores; /* true: program E has the log-probability of each target as an output for the host
                    (HD_STORE_OUTPUT), that of a reward model the reward of each answer's row; with a loss
                    on pairs of log-probabilities it always has */
};

/* Returns the largest number of answers in a sample of `context` rows: an answer takes two rows or
 * more, and answers come in pairs. */
static inline int64_t hd_answers_max(int64_t context)
{
    return context < 8 ? 2 : context / 4 * 2;
}

/* Starts a recording of ops on the parameters of `registry`, for which hd_registry_finish may be
 * called after this. Returns NULL if memory is exhausted. */
struct hd_rec *hd_rec_new(const struct hd_registry *registry, const struct hd_rec_shape *shape,
                          struct hd_arena *arena);
const struct hd_rec_shape *hd_rec_get_shape(const struct hd_rec *rec);
int hd_rec_tp_size(const struct hd_rec *rec);
int hd_rec_row_shards(const struct hd_rec *rec); /* number of ranks that split the rows outside of
                                                    op_copy_to_tp and op_reduce_from_tp: tp with
                                                    sequence parallelism, else 1 */

/* Returns HD_OK, or the first failure of this recording with its message set. */
enum hd_status hd_rec_status(const struct hd_rec *rec);

/* Returns a batch field as a tensor: [B*S] (FILLED: [3*B], LAST: [B]). Repeated calls for one field
 * return one tensor. */
struct hd_tensor *hd_rec_batch(struct hd_rec *rec, enum hd_batch_field field);

/* Returns the hidden rows [R, C] that the chunk reads (HD_STAGE_INPUT). needs_grad: their gradient
 * is computed. At most one call per recording. */
struct hd_tensor *hd_rec_input(struct hd_rec *rec, const char *name, int64_t R, int64_t C,
                               bool needs_grad);

/* Declares x [R, C] as the hidden rows that the chunk writes (HD_STAGE_OUTPUT). At most one call
 * per recording, the last one. */
void hd_rec_output(struct hd_rec *rec, struct hd_tensor *x);

/* Records unit `unit` with its forward function. If a unit of the same kind with the same input
 * shape was recorded before, `forward` is not called: the recorded ops are repeated with the
 * parameters of the new unit. Parameters of other units (a tied head) are not replaced. */
struct hd_tensor *hd_rec_unit(struct hd_rec *rec, int unit,
                              struct hd_tensor *(*forward)(struct hd_rec *rec, void *context,
                                                           int unit, struct hd_tensor *x),
                              void *context, struct hd_tensor *x);

/* Constructors: each one checks shapes, appends an op and returns its result. After a failure it
 * records no op and returns a dummy tensor. Parameters are given by their index in the registry. */

/* out[R, C] = scale * weight[tokens] (+ positions_weight[positions]); positions_weight -1: none;
 * scale 0: 1. If tp splits the table, a token of another rank's shard gives a row of zeros;
 * op_reduce_from_tp then sums over tp. */
struct hd_tensor *op_embedding(struct hd_rec *rec, struct hd_tensor *tokens, int weight,
                               struct hd_tensor *positions, int positions_weight, double scale);
/* out[R, N] = x[R, K] W^T (+ bias). W is `fused_count` adjacent parameters [Ni, K] from `weight`
 * on, N the sum of Ni. bias: the first of `fused_count` adjacent biases; -1: none. */
struct hd_tensor *op_linear(struct hd_rec *rec, struct hd_tensor *x, int weight, int bias,
                            int fused_count);
/* Adds h B^T to columns of y[R, N] in place: for each of `count` targets
 * y[:, column ..] += h[:, inner ..] B^T, with B [Nt, r]. The targets' columns do not overlap; every
 * column of h belongs to a target, or to several. h [R, n r] is s x A^T, the rows of x times the
 * other factor, so that x W^T + s x A^T B^T is an adapter of low rank (Hu et al. 2021). */
struct hd_tensor *op_low_rank(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *h,
                              const struct hd_low_rank *targets, int count);
struct hd_tensor *op_scale(struct hd_rec *rec, struct hd_tensor *x, double factor);
/* out[R, N]: the columns of each of `count` targets are those of x times m / |W + s B A|; other
 * columns are copied (Liu et al. 2024, "DoRA"; ops.h). W, m, A and B are the target's weight,
 * magnitudes and factors a and b, s is `scale`; the norm is that of each row of the matrix, which
 * makes one column of x. x is the product with W + s B A, before a bias is added. summed: tp splits
 * W and A by their columns, so the squares are summed over tp. The norm has no gradient. In
 * decoding, program S (step start) computes the norms once. */
struct hd_tensor *op_magnitude(struct hd_rec *rec, struct hd_tensor *x,
                               const struct hd_magnitude *targets, int count, double scale,
                               bool summed);
/* one_plus: the factor on normalised values is 1 + weight, else weight. */
struct hd_tensor *op_rmsnorm(struct hd_rec *rec, struct hd_tensor *x, int weight, double eps,
                             bool one_plus);
/* weight -1: the factor is 1; bias -1: none; one_plus as above. */
struct hd_tensor *op_layernorm(struct hd_rec *rec, struct hd_tensor *x, int weight, int bias,
                               double eps, bool one_plus);
/* Rotates the first `heads` heads of each row of x [R, >= heads*head_width], in place. */
struct hd_tensor *op_rope(struct hd_rec *rec, struct hd_tensor *x, struct hd_tensor *positions,
                          int64_t heads, int64_t head_width, const struct hd_rope *rope);
/* Multiplies the first `heads` heads of each row of x, in place, by the factor of the row's
 * position (struct hd_query_factor). */
struct hd_tensor *op_query_factor(struct hd_rec *rec, struct hd_tensor *x,
                                  struct hd_tensor *positions, int64_t heads, int64_t head_width,
                                  double beta, double original, double floor_offset);
/* out[R, (H+2G)*D]: RMSNorm of q and of k in rows [q | k | v]; v is copied. Over the D channels of
 * each head, with weights [D] for queries and for keys; or, `whole`, over all query channels and
 * over all key channels of all tp ranks, with weights [H*D] and [G*D] that tp splits as it splits
 * the heads. Both weights -1: the factor on normalised values is 1. With tp, `heads` and `kv_heads`
 * are this rank's. */
struct hd_head_norm_settings {
    int64_t heads, kv_heads, head_width;
    double eps;
    bool one_plus; /* true: the factor is 1 + weight */
    bool whole;
    bool
        layer; /* true: LayerNorm over the channels of each head, with weights [H, D] and [G, D] that
                   tp splits as it splits the heads, and no bias */
};
struct hd_tensor *op_head_norm(struct hd_rec *rec, struct hd_tensor *qkv, int q_weight,
                               int k_weight, const struct hd_head_norm_settings *settings);
/* Attention: out[R, H*D] from rows [q: H*D | k: G*D | v: G*D] of qkv; if the recording's shape is
 * `bounded`, a row attends only to rows of its document. In HD_RECORD_DECODE k and v are first
 * appended to their sequence's slot of this unit's key/value cache, and queries attend to all rows
 * of that slot.
 * With tp, `heads` and `kv_heads` are this rank's; ALiBi slopes and dropout masks depend on the
 * head's index among all heads. Scores, masks and sinks as in ops_attention.h:
 * attention_forward and attention_sink_forward. */
struct hd_attention_settings {
    int64_t heads, kv_heads, head_width;
    int64_t window; /* 0: none */
    int64_t chunk;  /* length of the chunks into which each document is cut: a row attends only to
                       rows of its chunk; causal only; 0: none */
    double scale;   /* factor of the scores q.k; 0: 1 / sqrt(head_width) */
    double cap;     /* soft bound of the scores: cap tanh(score / cap); not with ALiBi; 0: none */
    bool causal;
    bool alibi;                /* true: ALiBi (hd_alibi_slopes) is added to the scores */
    bool scaled_alibi;         /* true: ALiBi is added before the factor of the scores */
    bool has_sinks;            /* true: a learned score per head joins the softmax */
    int sinks;                 /* index of the parameter with these scores, [heads] */
    struct hd_dropout dropout; /* dropout of attention weights; in training only */
    /* indices of the parameters with learned keys and with learned values, [prefix, G*D] each, to
     * which every query attends; not allowed with ALiBi */
    int64_t prefix; /* 0: none */
    int prefix_k, prefix_v;
};
struct hd_tensor *op_attention(struct hd_rec *rec, struct hd_tensor *qkv,
                               const struct hd_attention_settings *settings);
/* out[R, H*count]: `count` channels of each of the H heads of x [R, H*head_width], from channel
 * `first` of the head on. */
struct hd_tensor *op_head_columns(struct hd_rec *rec, struct hd_tensor *x, int64_t heads,
                                  int64_t head_width, int64_t first, int64_t count);
/* out[R, N+M] = [a | b], for a [R, N] and b [R, M]. */
struct hd_tensor *op_join_columns(struct hd_rec *rec, struct hd_tensor *a, struct hd_tensor *b);
/* out[R, 3*H*D], the rows that op_attention takes, D = nope + rope: q [R, H*D]; keys and values
 * from kv [R, H*(nope + value)] and k_rope [R, rope], which all heads share. Values are zero from
 * channel `value` of a head on. */
struct hd_tensor *op_latent_join(struct hd_rec *rec, struct hd_tensor *q, struct hd_tensor *kv,
                                 struct hd_tensor *k_rope, const struct hd_latent_heads *heads);
/* Records op_linear without a bias, and has the selective policy recompute its result in backward:
 * for a result that is much larger than x. */
struct hd_tensor *op_rebuilt_linear(struct hd_rec *rec, struct hd_tensor *x, int weight);
/* out[R, F] = act(gate) * up for x [R, 2F] = [gate | up]; alpha and limit are those of HD_ACT_OSS
 * and not used otherwise (hd_glu_forward_args). */
struct hd_tensor *op_glu(struct hd_rec *rec, struct hd_tensor *x, enum hd_activation act,
                         double alpha, double limit);
/* out = act(x), element by element; any act but HD_ACT_OSS. */
struct hd_tensor *op_activation(struct hd_rec *rec, struct hd_tensor *x, enum hd_activation act);
/* out = min(max(x, -limit), limit), element by element; limit > 0. */
struct hd_tensor *op_clamp(struct hd_rec *rec, struct hd_tensor *x, double limit);
/* A mixture of gated experts (Shazeer et al. 2017; Jiang et al. 2024), instead of an MLP:
 * out[R, C] = sum over the K chosen e of gate[r,e] * down_e(glu(gate_e x, up_e x)), with the glu of
 * op_glu. With tensor parallelism F is split and the result is this rank's partial sum. Parameters,
 * of which those with (*) are -1 if the op does not have them: router, noise (*) [E, C];
 * router_bias (*) [E], which is added to the logits; select_bias (*) [E], which is added to the
 * scores for the choice alone and gets no gradient; gate, up [E, F, C]; down [E, C, F]; gate_bias,
 * up_bias (*) [E, F] and down_bias (*) [E, C], which are added to the products. The experts are
 * split over ep; down_bias is whole on every tp rank, the first of which adds it. In training the
 * op also writes the router's record and adds the gradients of the router's losses.
 *
 * Each product of an expert, y = W x, may have factors of low rank: y += s B (A drop(x)) with A [E,
 * r, in] and B [E, out, r], of the expert itself. Each chosen expert of a row has its own dropout
 * mask, which gate and up share. */
enum { HD_EXPERT_GATE, HD_EXPERT_UP, HD_EXPERT_DOWN, HD_EXPERT_PRODUCTS };
struct hd_expert_params {
    int router, noise, router_bias, select_bias, gate, up, down;
    int gate_bias, up_bias, down_bias;
    /* parameters A and B of each product's adapter; -1: the product has no adapter; A of up alone -1:
     * it is that of gate */
    int a[HD_EXPERT_PRODUCTS], b[HD_EXPERT_PRODUCTS];
    double scale;              /* the adapter's factor s */
    enum hd_activation act;    /* activation of the experts' gates */
    double alpha, limit;       /* with HD_ACT_OSS: as in op_glu */
    struct hd_dropout dropout; /* dropout of the adapter's input, for gate and up; down uses its
                                  rate with site `down_site` */
    int64_t down_site;
};
struct hd_tensor *op_experts(struct hd_rec *rec, struct hd_tensor *x,
                             const struct hd_expert_params *params, const struct hd_router *router);
/* out[R, C] = y[r, :] * sigmoid(g[r]) for each row r of y [R, C], with g [R, 1]. */
struct hd_tensor *op_row_gate(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *g);
/* Causal convolution of `width` taps along the rows of each document, every channel by itself, then
 * SiLU unless `plain`: out[R, N] from x [R, N]. The weights are `fused_count` adjacent parameters [Ni, width] from
 * `weight` on. In decode, a sequence's last inputs are kept in its slot. With cp > 1 the
 * ranks exchange the last inputs of their segments, which are not shorter than width - 1. */
struct hd_tensor *op_conv(struct hd_rec *rec, struct hd_tensor *x, int weight, int fused_count,
                          int64_t width, bool plain);
/* The gated delta rule (ops_delta.h of kernels): out[R, heads * value_width] from rows [q | k | v]
 * of qkv, with queries and keys of key_heads heads, and rows [b | a] of ba [R, 2 * heads]; A_log:
 * the first of the two adjacent fp32 parameters A_log and dt_bias, [heads] each. The state begins
 * with zeros at each document; in decode it is kept in the sequence's slot. With tp, the numbers
 * of heads are this rank's. Not with cp > 1. */
struct hd_delta_settings {
    int64_t heads, key_heads, value_width, key_width;
    double eps; /* added to the squares of a query's or key's length */
};
struct hd_tensor *op_gated_delta(struct hd_rec *rec, struct hd_tensor *qkv, struct hd_tensor *ba,
                                 int A_log, const struct hd_delta_settings *settings);
/* RMSNorm over the channels of each of `heads` heads of x, with one weight for all heads, times
 * SiLU of the gate: out[R, N]. */
struct hd_tensor *op_gated_norm(struct hd_rec *rec, struct hd_tensor *x, struct hd_tensor *gate,
                                int weight, int64_t heads, double eps);
/* out = y * sigmoid(gate), element by element. */
struct hd_tensor *op_sigmoid_gate(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *gate);
/* out = y * factor, element by element. */
struct hd_tensor *op_multiply(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *factor);
/* out = a + factor * b; factor 0: 1. */
struct hd_tensor *op_add(struct hd_rec *rec, struct hd_tensor *a, struct hd_tensor *b,
                         double factor);
/* Dropout: out[R, C] is x with values set to zero with probability p, and the others times 1 / (1 -
 * p). Which values are dropped depends on seed, layer, site, step, sample, index and channel, not
 * on the layout. x has all channels of the rows that this rank works on outside of op_copy_to_tp
 * and op_reduce_from_tp (op_tp_rows). Returns x and records nothing if p = 0 or the mode is not
 * training. */
struct hd_tensor *op_dropout(struct hd_rec *rec, struct hd_tensor *x,
                             const struct hd_dropout *dropout);
/* Adds noise to embeddings x, in training only (ops.h, "Noise on embeddings"); alpha 0: returns x. */
struct hd_tensor *op_noise(struct hd_rec *rec, struct hd_tensor *x, double alpha, uint64_t seed);
/* Drops values of x as op_dropout does, for x with all rows (between op_copy_to_tp and
 * op_reduce_from_tp) and the channels from first_channel on. */
struct hd_tensor *op_dropout_all_rows(struct hd_rec *rec, struct hd_tensor *x,
                                      const struct hd_dropout *dropout, int64_t first_channel);
/* out[R, N] = x + bias, the same bias for every row; it consists of `fused_count` adjacent
 * parameters. Used after op_magnitude, and after a sum over tp ranks, where a bias of op_linear
 * would be added once per rank. */
struct hd_tensor *op_bias(struct hd_rec *rec, struct hd_tensor *x, int bias, int fused_count);
/* Records the head and its cross-entropy in chunks of rows, so that memory holds the logits of only
 * one chunk. Adds loss and number of targets to the step state, or to the record of
 * settings.further; in training also computes the gradients of x and weight. weight [V, C]; if tp
 * splits the vocabulary, each rank computes the logits of its shard and a partial gradient of x,
 * therefore x must come from op_copy_to_tp. */
void op_head_loss(struct hd_rec *rec, struct hd_tensor *x, int weight, struct hd_tensor *targets,
                  struct hd_head_settings settings);
/* Records the head with the loss on pairs of answers that hd_rec_shape.preference names, in chunks
 * of rows as op_head_loss does. In an evaluation the log-probabilities of the targets [R] are an
 * output that the host may read. */
void op_head_pairs(struct hd_rec *rec, struct hd_tensor *x, int weight,
                   struct hd_head_settings settings);
/* Records the head with the loss on sampled completions, hd_rec_shape.policy, as op_head_pairs does; in
 * training only. */
void op_head_policy(struct hd_rec *rec, struct hd_tensor *x, int weight,
                    struct hd_head_settings settings);
/* Records the head of a reward model: the reward of an answer is its last row times weight [1, C];
 * the loss is computed on pairs of answers. Only the last row of an answer has its number in
 * ANSWERS. x has the rows outside of op_copy_to_tp and op_reduce_from_tp; every rank holds all of
 * weight. */
void op_head_reward(struct hd_rec *rec, struct hd_tensor *x, int weight);
/* out[r,:] = x[index[r],:]; out has as many rows as `index`. In decode only. */
struct hd_tensor *op_take_rows(struct hd_rec *rec, struct hd_tensor *x, struct hd_tensor *index);
/* Records logits[R, V] as an output that the host may read; in evaluation and decode only. */
void op_logits(struct hd_rec *rec, struct hd_tensor *x, int weight,
               struct hd_head_settings settings);
/* f and g of Megatron-LM (Shoeybi et al. 2020): op_copy_to_tp (enter, f) gives each tp rank all
 * rows, and in backward sums gradients over tp; op_reduce_from_tp (leave, g) sums over tp, and in
 * backward gives each rank the gradients of all rows. With sequence parallelism (registry) x has
 * R/tp rows outside: enter [R/tp, C] -> [R, C], leave [R, C] -> [R/tp, C]. If tp is 1 both return
 * x. */
struct hd_tensor *op_copy_to_tp(struct hd_rec *rec, struct hd_tensor *x);
struct hd_tensor *op_reduce_from_tp(struct hd_rec *rec, struct hd_tensor *x);
/* Returns the rows of a batch field [R] that this rank works on outside of op_copy_to_tp and
 * op_reduce_from_tp. */
struct hd_tensor *op_tp_rows(struct hd_rec *rec, struct hd_tensor *field);

#endif

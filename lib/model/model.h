/* model: decoder-only transformers, written as forward functions over ops. The compiler passes of
 * lib/program derive gradients, precision, layout and memory from them.
 *
 * A family (job/family.h) is a row of switches: kind and place of the norms, activation, positions,
 * experts. A model consists of units: the embedding, L blocks and the head. Blocks may differ: by
 * window, rotary positions, and experts or one feed-forward layer (struct hd_layer).
 *
 * Memory: a model lives in the arena that is given to hd_model_declare.
 * Used by: train (layout, generate).   Uses: program, job.
 * Threads: a model is immutable after hd_model_declare.
 */
#ifndef HD_MODEL_MODEL_H
#define HD_MODEL_MODEL_H

#include "base/arena.h"
#include "base/status.h"
#include "job/family.h"
#include "job/job.h"
#include "model/adapter.h"
#include "model/only.h"
#include "program/program.h"

/* Position encodings. */
enum hd_positions {
    HD_POSITIONS_ROPE,    /* rotary position embedding: rotates queries and keys (Su et al. 2021) */
    HD_POSITIONS_LEARNED, /* learned table, whose row for the position is added to the embedding */
    HD_POSITIONS_ALIBI    /* lowers attention scores linearly with distance (Press et al. 2022) */
};

/* Multi-head latent attention. D of the model is nope + rope, G is H. All 0: none. */
struct hd_latents {
    int64_t q_rank, kv_rank; /* channels of the latents; q_rank 0: queries have none */
    int64_t nope, rope;      /* channels of a head's query or key without positions, and with */
    int64_t value;           /* channels of a head's value */
    double eps;              /* added to the mean squares of the latents' norms */
};

/* Sizes of a gated delta layer. */
struct hd_delta_sizes {
    int64_t key_heads, value_heads, key_width, value_width;
    int64_t conv_width; /* taps of its convolution */
};

/* Shape and settings of a model: L layers, C channels, H query heads, G kv heads, D head width, F
 * feed-forward width, V vocabulary */
struct hd_model_config {
    const struct hd_family *family;
    int64_t L, C, H, G, D, F, V, context;
    int64_t further;     /* number of further tokens predicted, by as many blocks behind the last */
    int64_t window;      /* sliding window: number of tokens to which a token attends, itself
                            included; 0: no limit */
    int64_t chunk;       /* in place of a window, length of the chunks of a document within which
                            tokens attend; 0: none */
    int64_t window_from; /* index of the first block that may have the window or the chunks */
    struct hd_layers window_layers, rope_layers, experts_layers; /* blocks with the window or the
                                                                    chunks, with rotary positions,
                                                                    with experts */
    struct hd_rope rope, local_rope; /* rotary positions of blocks without and with a window */
    double attention_scale, attention_cap; /* factor and soft cap of scores; 0: 1 / sqrt(D); none */
    double qkv_clip;                       /* bound of queries, keys and values; 0: none */
    double glu_limit;                      /* limit of the activation of GPT-OSS; else not used */
    double logit_cap, logit_scale;         /* soft cap of logits, 0: none; factor of logits */
    double embedding_scale, residual_scale; /* factors of the embedding and of the outputs of
                                               attention and feed-forward layer */
    double norm_eps;
    enum hd_norm_place place;            /* places of the norms in a block */
    struct hd_query_factor query_factor; /* factor of the queries by position; beta 0: none */
    double init_std;                     /* standard deviation of initial weights; 0: 0.02 */
    bool init_plain;                     /* true: that of projections into the residual stream is
                                            not divided by sqrt(2 L) */
    bool tied;                           /* true: the head uses the embedding's weight */
    bool reward;                         /* true: the model is a reward model, whose head is one
                                          vector instead of a row per token of the vocabulary */
    bool qkv_bias, out_bias, mlp_bias;   /* true: the projections to q, k and v, of attention's
                                          output, of the MLP have a bias */
    bool qk_norm;                        /* true: norm of q and k, in the form of the family */
    struct hd_latents latents;
    struct hd_layers delta_layers; /* blocks with a gated delta layer in place of attention */
    struct hd_delta_sizes delta;
    struct hd_layers conv_layers; /* blocks with a short convolution in place of attention */
    int64_t conv_width;           /* taps of a short convolution; 0: the model has none */
    bool conv_bias;               /* true: its three parts have biases */
    struct hd_router router; /* router of the experts; E = 0: a block has one MLP, else F is the
                                width of one expert */
    int64_t F_shared;        /* width of the shared expert; 0: none */
    int64_t F_dense;         /* with experts: width of the MLP of a block without; 0: every block
                                has experts */
    double bias_rate;        /* step of the routers' select biases; 0: the biases do not change */
    enum hd_positions positions;
    /* dropout probabilities: of the embedding; of attention weights; of the outputs of attention
     * and MLP before they are added to the residual stream */
    double dropout_embedding, dropout_attention, dropout_residual;
    double neftune_alpha;       /* noise on embeddings (train.neftune_alpha); 0: none */
    double z_loss;              /* factor of the z-loss of the head (train.z_loss); 0: none */
    uint64_t seed;              /* seed of the random numbers of dropout */
    char only[HD_JOB_PATH_MAX]; /* text that says which parameters train (only.h) */
    struct hd_adapter adapter;
    int lowest_trained; /* index of the first unit with a trainable parameter: backward ends
                           there */
};

/* Returns the number of channels of a head's value. */
static inline int64_t hd_model_value_width(const struct hd_model_config *config)
{
    return config->latents.kv_rank ? config->latents.value : config->D;
}

/* Sets *ret_config to the model that a resolved job describes. HD_INVALID or HD_UNSUPPORTED: the
 * kernels cannot run that model; the message names the job's key and the allowed values. */
enum hd_status hd_model_config_from_job(const struct hd_job *job,
                                        struct hd_model_config *ret_config);

/* Returns the rule by which parameters train; its text is config->only. */
struct hd_only hd_model_only(const struct hd_model_config *config);

/* Settings of one block. Blocks with equal settings are recorded once. A block for further tokens,
 * from layer L on, is like the last block, but always with attention. */
struct hd_layer {
    int64_t window;             /* tokens to which a token attends, itself included; 0: no limit */
    int64_t chunk;              /* length of the chunks within which tokens attend; 0: none */
    const struct hd_rope *rope; /* rotary positions; NULL: none. Points into the config */
    bool experts;               /* true: the feed-forward layer is a mixture of experts */
    bool delta;                 /* true: a gated delta layer in place of attention */
    bool conv;                  /* true: a short convolution in place of attention */
    int64_t F;                  /* width of the feed-forward layer, or of an expert */
};
struct hd_layer hd_model_layer(const struct hd_model_config *config, int64_t layer);

/* Kinds of blocks, as sums of these bits. Kind 0: no window, the positions of the model, and
 * experts if the model has any. Blocks of one kind run equal programs. */
enum {
    HD_LAYER_WINDOWED = 1,  /* attention has a window or chunks */
    HD_LAYER_UNROTATED = 2, /* no rotary positions, in a model that has them */
    HD_LAYER_DENSE = 4,     /* one feed-forward layer, in a model with experts */
    /* a gated delta layer or, in other families, a short convolution in place of attention; never with
     * the first two */
    HD_LAYER_UNATTENDED = 8,
    HD_LAYER_KINDS = 16 /* number of kinds */
};
/* Returns the kind of a block. */
int hd_model_layer_kind(const struct hd_model_config *config, int64_t layer);
/* Returns hd_model_layer(config, layer).window. */
int64_t hd_model_window(const struct hd_model_config *config, int64_t layer);

/* A norm, or none, and its parameters, as indices in the registry; -1: the norm does not have it. */
struct hd_norm {
    bool exists;
    int weight, bias;
};
/* The LoRA adapter of a linear, as indices in the registry: the first of `a_count` adjacent factors
 * A, and `count` targets with their factors B. count 0: no adapter. */
struct hd_lora {
    int a, a_count;
    struct hd_low_rank target[HD_LOW_RANK_MAX];
    struct hd_magnitude magnitude[HD_LOW_RANK_MAX]; /* with DoRA: magnitudes of each target */
    int count;
    bool by_columns;       /* true: tp splits the linear's weights by columns, not by rows */
    int64_t site;          /* site (recording.h) of the dropout before A */
    int64_t first_channel; /* index of this rank's first channel among all channels of the linear's
                              input */
};
struct hd_attention {
    int qkv, qkv_bias; /* first of the three adjacent weights, and biases, of q, k and v; with
                          latents the weight of q, if queries have no latent */
    int out, out_bias;
    int q_norm, k_norm; /* weights of the norms of q and k; -1: none */
    int gate;           /* weight of the gate of the output; -1: none */
    /* latent attention: weight from the input to a latent (_a), the latent's norm, and weight from
     * the latent to heads (_b), for queries, and for keys and values; the last rows of kv_a give
     * the rotated channels of keys. -1: none */
    int q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b;
    struct hd_lora lora_qkv, lora_out, lora_q_a, lora_q_b, lora_kv_a, lora_kv_b;
    int prefix_k, prefix_v; /* learned keys and values of a prefix adapter; -1: none */
    int sinks;              /* scores [H] without a value, in families that have them */
};
/* Parameters of a gated delta layer. */
struct hd_delta {
    int qkv;   /* first of the three adjacent weights of q, k and v */
    int gate;  /* weight of the gate z of the norm */
    int ba;    /* first of the two adjacent weights of b and a */
    int conv;  /* first of the three adjacent weights of the convolution */
    int A_log; /* first of the adjacent A_log and dt_bias */
    int norm, out;
};
/* Parameters of a short convolution; biases -1: none. */
struct hd_short_conv {
    int b, c, x; /* weights of the projections of the input; their biases follow */
    int b_bias, c_bias, x_bias;
    int kernel, kernel_bias; /* taps [C, width] */
    int out, out_bias;
};
struct hd_mlp {
    int up, up_bias; /* gated MLP: first of the two adjacent parameters gate and up */
    int down, down_bias;
    struct hd_lora lora_up, lora_down;
};
/* The two layers of a bottleneck adapter, as indices in the registry. */
struct hd_bottleneck {
    int down, up;
    int64_t site; /* site (recording.h) of the dropout of the bottleneck's output */
};
struct hd_block {
    struct hd_norm norm1, norm2;             /* before attention and feed-forward layer */
    struct hd_norm norm1_out, norm2_out;     /* norms of their outputs */
    struct hd_bottleneck adapter1, adapter2; /* bottleneck adapters behind attention and behind the
                                                feed-forward layer */
    struct hd_attention attention;           /* in blocks with attention */
    struct hd_delta delta;                   /* in blocks with a gated delta layer */
    struct hd_short_conv conv;               /* in blocks with a short convolution */
    struct hd_mlp mlp; /* the MLP; in a model with experts the shared expert */
    struct hd_expert_params experts;
    int shared_gate; /* linear gate [1, C] of the shared expert; -1: none */
};

/* The layer that predicts the token one place further than the layer before it, or than the model;
 * its block reads projection [norm(embedding of the token before that) | norm(hidden rows)]. */
struct hd_further {
    struct hd_norm embedding_norm, hidden_norm, head_norm;
    int projection; /* parameter [C, 2 C] */
    struct hd_block block;
};

struct hd_model {
    struct hd_model_config config;
    int embedding, positions; /* parameters: tables of tokens and positions; positions -1: none */
    struct hd_block *blocks;  /* [L] */
    struct hd_norm embedding_norm; /* behind the embedding */
    struct hd_norm head_norm;
    int head_bias;                                   /* parameter [V]; -1: none */
    struct hd_further *further;                      /* [config.further], of the unit of the head */
    int head;                                        /* parameter; tied: the embedding's weight;
                                                        reward model: its one vector [1, C] */
    int unit_embedding, unit_first_block, unit_head; /* indices of units in the registry */
};

/* Returns whether `tp` ranks can split the model: tp divides the number of heads and the width of
 * every feed-forward layer, and it divides the number of key/value heads or is a multiple of it, so
 * that several ranks hold the same head. */
bool hd_model_tp_fits(const struct hd_model_config *config, int64_t tp);

/* Returns the number of adjacent tp ranks that hold the same key/value head: tp / kv_heads, at
 * least 1. This number is kv_replica of the mesh. */
int32_t hd_model_kv_replica(const struct hd_model_config *config, int64_t tp);

/* Declares every parameter of the model in the registry, whose tp splits heads, feed-forward width
 * and vocabulary, and sets *ret_model. HD_INVALID: tp does not divide heads or feed-forward
 * width. */
enum hd_status hd_model_declare(const struct hd_model_config *config, struct hd_registry *registry,
                                struct hd_arena *arena, struct hd_model *ret_model);

/* A range of units of a model: indices first to end - 1. */
struct hd_units {
    int first, end;
};

/* Returns all units of the model. */
struct hd_units hd_model_units(const struct hd_model *model);

/* Records these units as a chunk. Without the embedding the chunk reads hidden rows, without the
 * head it writes them. In the head, training and evaluation record the loss, decode records the
 * logits of every row. The first failure is kept in the recording (hd_rec_status). */
void hd_model_record(const struct hd_model *model, struct hd_units units, struct hd_rec *rec);

/* Records the drafting of a further token as a chunk, in decode; the model has config.further >= 1.
 * Row r of a call reads row TAKEN[r] of the chunk's `input_rows` hidden rows, which a chunk with
 * hd_rec_shape.drafts or a draft wrote, and TOKENS[r], the token behind the row's own; its keys and
 * values are in caches of the layer, at the place of the row. The outputs are the layer's normed rows,
 * from which a draft of the token after that continues, and the logits [B, V] of the draft behind row
 * LAST[b] of each sequence. */
void hd_model_record_draft(const struct hd_model *model, int64_t input_rows, struct hd_rec *rec);

/* Indices of units in the registry: embedding, the blocks in layer order, head. */
enum { HD_UNIT_EMBEDDING, HD_UNIT_FIRST_BLOCK };
static inline int hd_model_unit_count(const struct hd_model_config *config)
{
    return (int)config->L + 2;
}

/* Returns whether the parameter `what` of a block, also one for further tokens, trains, for example
 * "mlp.up.weight". */
bool hd_model_trains(const struct hd_model_config *config, int64_t layer, const char *what);
/* Returns the first unit in which a parameter trains; the unit after the last block: only the
 * head. */
int hd_model_lowest_trained(const struct hd_model_config *config);

/* Returns the training FLOPs per token of one unit, its part of hd_model_flops_per_token. */
double hd_model_unit_flops(const struct hd_model_config *config, int unit);

/* Work of a block in backward, as fractions of the backward work of a block in which every
 * parameter trains: for the gradients of its input (0 or 1), for those of its weights, and for both
 * together, by FLOPs. */
struct hd_backward_shares {
    double inputs, weights, all;
};
struct hd_backward_shares hd_model_backward_shares(const struct hd_model_config *config,
                                                   int64_t layer);

/* Returns the training FLOPs per token, the numerator of MFU (Chowdhery et al. 2022, appendix B,
 * with causal attention counted once per visible pair): 6 per weight of a matrix that is
 * multiplied, and for attention 12 H D per visible pair and block: scores and weighted sum take 4 H
 * D in forward, or 2 H (D + value) if values have another width, and twice that in backward. A
 * token attends to (S+1)/2 positions on average, with a window of W < S to W (2S - W + 1) / 2S,
 * with chunks of K < S where K divides S to (K+1)/2, and to the tokens of a prefix. A gated delta
 * layer takes 18 operations per element of its states instead: 6 in forward. With train.trainable
 * only computed work counts: a frozen weight counts 2 less, and units below the lowest trained one
 * count no backward. The norms of DoRA's rows are computed per weight, not per token, and do not
 * count. */
double hd_model_flops_per_token(const struct hd_model_config *config);

#endif

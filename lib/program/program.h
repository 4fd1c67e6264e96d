/* program: record a model once, compile the recording, run it. The heart of the engine.
 *
 *     model forward --record--> ops --precision--> --derive--> F, B, W --fuse--> --shard-->
 *         --stream--> --place--> a chunk: programs with every tensor at a known offset
 *
 * Running the model's forward function does not compute, it records *ops* on *tensors* (record.c,
 * one constructor per op). The passes, each a small file, turn the recording into *programs*: lists
 * of *nodes*, each one launch of a kernel or one collective, on *stores*, the placed memory:
 *
 *   precision.c  a table (op class -> encoding) gives every tensor its dtype and inserts casts
 *   derive.c     each op's row (ops_*.c) emits the nodes of its forward, of its backward for inputs
 *                and of its backward for weights; needs_grad prunes both
 *   fuse.c       joins neighbours that one kernel can do in one pass over memory
 *   shard.c      places the reduction of each part's gradient behind its last contribution
 *   stream.c     gives nodes their streams, and the edges between streams
 *   place.c      liveness -> offsets in the regions; sizes scratch by the target's traits
 *
 * A *chunk* is what is compiled together for a range of units: either the training programs F, B
 * and W, which share the tensors that F leaves behind, or one of E and D. Addresses are bound later
 * (run.h), per slot, so that one chunk serves many micro-batches in flight. hd_chunk_list prints it
 * (list.c), the folds of dry.h add it up; neither needs a device.
 *
 * Used by: model (records), optim, pipeline, train, plan.
 * Uses: base, mesh, comm (kinds), kernels.
 * Threads: a recording and a chunk belong to one thread while they are built; a chunk is immutable
 * after.
 */
#ifndef HD_PROGRAM_PROGRAM_H
#define HD_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "mesh/mesh.h"
#include "mesh/zigzag.h"
#include "program/registry.h"

/* ---- Recording ---- */

enum { HD_DIMS_MAX = 4, HD_OP_INPUTS_MAX = 4, HD_OP_PARAMS_MAX = 5 };

/* The fields of a batch, one entry per row unless said otherwise; all of them device tensors. A
 * program has only those that its ops take. Targets are shifted before any split. */
#define HD_BATCH_FIELD_LIST(X)                                                    \
    X(TOKENS, "tokens", I32)                                                      \
    X(TARGETS, "targets", I32)                                                    \
    X(POSITIONS, "positions", I32) /* what RoPE or the position table reads */    \
    X(INDEX, "index", I32)         /* place in the sample: what masks compare */  \
    X(BOUNDS, "bounds", I32)       /* index at which the row's document begins */ \
    X(SAMPLES, "samples", I32)     /* of the row, in the step's global batch */   \
    X(FILLED, "filled", I32)       /* D only, two values: rows in the cache before and after */

enum hd_batch_field {
#define X(code, name, dtype) HD_BATCH_##code,
    HD_BATCH_FIELD_LIST(X)
#undef X
        HD_BATCH_FIELD_COUNT
};

/* How the recording will be used. */
enum hd_record_mode {
    HD_RECORD_TRAIN, /* F, B, W                                             */
    HD_RECORD_EVAL,  /* E: forward, nothing kept                            */
    HD_RECORD_DECODE /* D: new tokens against a cache of `context` rows     */
};

enum hd_tensor_kind { HD_TENSOR_RESULT, HD_TENSOR_BATCH, HD_TENSOR_INPUT };

/* A value in the recording. Read-only for model code. */
struct hd_tensor {
    int id;
    enum hd_tensor_kind kind;
    enum hd_batch_field field; /* HD_TENSOR_BATCH */
    const char *name;          /* for listings */
    int dim_count;
    int64_t dim[HD_DIMS_MAX];
    enum hd_dtype dtype; /* set by the precision pass; integers from the start */
    bool needs_grad;
    int same_store; /* id of the tensor whose memory this op rewrites in place; -1: its own */
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

/* The op list: one row per op; ops_*.c has its shape rule and its three emitters. */
#define HD_OP_LIST(X)       \
    X(embedding, EMBEDDING) \
    X(linear, LINEAR)       \
    X(rmsnorm, NORM)        \
    X(layernorm, NORM)      \
    X(head_norm, NORM)      \
    X(rope, ATTENTION)      \
    X(attention, ATTENTION) \
    X(swiglu, ACTIVATION)   \
    X(gelu, ACTIVATION)     \
    X(experts, LINEAR)      \
    X(add, RESIDUAL)        \
    X(dropout, RESIDUAL)    \
    X(bias, RESIDUAL)       \
    X(cast, RESIDUAL)       \
    X(head_loss, HEAD)      \
    X(logits, HEAD)         \
    X(tp_enter, COMM)       \
    X(tp_leave, COMM)       \
    X(tp_rows, COMM)

enum hd_op_kind {
#define X(name, class) HD_OP_##name,
    HD_OP_LIST(X)
#undef X
        HD_OP_COUNT
};

/* The angles of rotary positions: pair i of a head of D channels turns by frequency[i] per
 * position, and the rotated values are multiplied by a factor that is 1 but for yarn. none
 * theta^(-2i/D) linear  the same / factor (Chen et al. 2023, "Extending Context Window ...
 * Interpolation") llama3  wave lengths 2 pi / frequency above original_context / low_freq_factor: /
 * factor; below original_context / high_freq_factor: as they are; between: a straight line in
 *           original_context / length (Llama 3.1, Grattafiori et al. 2024)
 *   yarn    pairs that turn at least beta_fast times in original_context: as they are; at most
 *           beta_slow times: / factor; a straight line in i between; rotated values are multiplied
 *           by attention_factor, by default 0.1 ln(factor) + 1 (Peng et al. 2023, "YaRN") */
enum hd_rope_kind { HD_ROPE_NONE, HD_ROPE_LINEAR, HD_ROPE_LLAMA3, HD_ROPE_YARN };
struct hd_rope {
    enum hd_rope_kind kind;
    double theta, factor, original_context;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn; 0: by the formula */
};

/* frequency[i] in radians per position, i < D/2; returns the factor on rotated values. */
double hd_rope_frequencies(const struct hd_rope *rope, int64_t D, double *ret_frequency);
bool hd_rope_equal(const struct hd_rope *a, const struct hd_rope *b);
/* table[p, i] = {cos, sin} of the angle of pair i at position p, times the factor: [P, D/2, 2].
 * D <= HD_ROPE_WIDTH_MAX. */
enum { HD_ROPE_WIDTH_MAX = 4096 };
void hd_rope_fill(const struct hd_rope *rope, int64_t P, int64_t D, float *ret_table);

/* The slopes of ALiBi of heads first .. first + count - 1 of H, by which a score falls per position
 * between query and key: for H a power of two the powers 1 .. H of 2^(-8/H); else those of the
 * closest lower power of two, then every other one, from the first, of the next power of two (Press
 * et al. 2022, "Train Short, Test Long"). */
void hd_alibi_slopes(int64_t H, int64_t first, int64_t count, float *ret_slopes);

/* Where in a layer random numbers are drawn, the `site` of hd_dropout_key: never renumbered. */
enum { HD_SITE_EMBEDDING, HD_SITE_ATTENTION, HD_SITE_RESIDUAL1, HD_SITE_RESIDUAL2, HD_SITE_ROUTER };

/* What an op drops (ops.h, "Dropout"). A unit that is recorded by repeating another has its
 * layer moved along. */
struct hd_dropout {
    double p; /* 0: nothing */
    uint64_t seed;
    int64_t layer, site;
};

/* A mixture of experts: how rows choose among E experts (ops_moe.h). */
struct hd_router {
    int64_t E, K; /* experts, and how many of them a row goes to */
    int number;   /* of the router in the model, for its record */
    bool renormalize, noisy;
    double balance, z; /* coefficients of the losses */
    double capacity; /* rows of a sequence for one expert, in even shares; 0: nothing is dropped */
    double expert_rows; /* rows that there is room for, in even shares, where experts are on several
                           ranks; 0: for all that could come */
    uint64_t seed;      /* of the noise */
};

/* Settings of an op besides its tensors; each op reads its own few. */
struct hd_op_settings {
    int64_t heads, kv_heads, head_width, window;
    double eps, scale;
    bool causal, alibi;
    struct hd_router router;
    struct hd_rope rope;
    struct hd_dropout dropout;
};

struct hd_op {
    enum hd_op_kind kind;
    int unit;
    struct hd_tensor *in[HD_OP_INPUTS_MAX];
    struct hd_tensor *out;
    int in_count;
    int param[HD_OP_PARAMS_MAX]; /* first parameter of each span; -1: absent */
    int param_count;
    int span; /* parameters that lie joined and act as one matrix */
    struct hd_op_settings set;
};

struct hd_rec; /* a recording; opaque to the model */

/* The shape every program is recorded for. */
struct hd_rec_shape {
    enum hd_record_mode mode;
    int64_t B; /* sequences per call                        */
    int64_t S; /* this rank's rows per sequence, with context parallelism those that zigzag.h
                  names; D: new tokens per call */
    int64_t
        context; /* longest sequence: rows of a cache, of the table of angles; cp * S in training */
    bool bounded;     /* attention stays within a document (BOUNDS); not in D */
    bool gather_keys; /* with context parallelism: gather all keys and values at once, instead of
                         passing them round the ring */
};

/* Starts a recording for the parameters of `registry` (finished or not). */
struct hd_rec *hd_rec_new(const struct hd_registry *registry, const struct hd_rec_shape *shape,
                          struct hd_arena *arena);
const struct hd_rec_shape *hd_rec_shape(const struct hd_rec *rec);
int hd_rec_tp_size(const struct hd_rec *rec);

/* HD_OK, or the first failure of this recording, its story set. The one place to ask. */
enum hd_status hd_rec_status(const struct hd_rec *rec);

/* A batch field as a tensor: [B*S] (FILLED: [2]). The same field gives the same tensor. */
struct hd_tensor *hd_rec_batch(struct hd_rec *rec, enum hd_batch_field field);

/* A hidden state that enters from outside (another stage, a test): [R, C], with a gradient if
 * asked. */
struct hd_tensor *hd_rec_input(struct hd_rec *rec, const char *name, int64_t R, int64_t C,
                               bool needs_grad);

/* Records unit `unit` by its forward function. A unit of a kind that was recorded before, with the
 * same input shape, is not recorded again: its ops are repeated with the unit number, and so its
 * parameters, replaced. Parameters of other units (a tied head) stay as they are. */
struct hd_tensor *hd_rec_unit(struct hd_rec *rec, int unit,
                              struct hd_tensor *(*forward)(struct hd_rec *rec, void *context,
                                                           int unit, struct hd_tensor *x),
                              void *context, struct hd_tensor *x);

/* Constructors: they check shapes, append an op and return its result. After a failure they return
 * a harmless tensor and record nothing. Parameters are given by number. */

/* out[R, C] = weight[tokens] (+ positions_weight[positions]); positions_weight -1: none. Where tp
 * cuts a table, tokens of other shares give rows of zeros: the sum over tp (op_tp_leave) is whole.
 */
struct hd_tensor *op_embedding(struct hd_rec *rec, struct hd_tensor *tokens, int weight,
                               struct hd_tensor *positions, int positions_weight);
/* out[R, N] = x[R, K] W^T (+ bias); W is `span` joined parameters [Ni, K] from `weight` on, N their
 * sum; the biases are as many from `bias` on, or -1. */
struct hd_tensor *op_linear(struct hd_rec *rec, struct hd_tensor *x, int weight, int bias,
                            int span);
struct hd_tensor *op_rmsnorm(struct hd_rec *rec, struct hd_tensor *x, int weight, double eps);
struct hd_tensor *op_layernorm(struct hd_rec *rec, struct hd_tensor *x, int weight, int bias,
                               double eps);
/* Rotates the first `heads` heads of each row of x [R, >= heads*head_width], in place. */
struct hd_tensor *op_rope(struct hd_rec *rec, struct hd_tensor *x, struct hd_tensor *positions,
                          int64_t heads, int64_t head_width, const struct hd_rope *rope);
/* out[R, (H+2G)*D]: RMSNorm over the D channels of each head of q and of k in rows [q | k | v],
 * with weights [D] for queries and for keys; v as it is. */
struct hd_tensor *op_head_norm(struct hd_rec *rec, struct hd_tensor *qkv, int q_weight,
                               int k_weight, int64_t heads, int64_t kv_heads, int64_t head_width,
                               double eps);
/* out[R, H*D] from rows [q: H*D | k: G*D | v: G*D]; within documents where these are bounded. In D
 * mode k and v are appended to this unit's cache first and the queries see the whole cache. Where
 * tp cuts the heads, those given are a rank's; slopes and masks are those of its heads among all.
 */
struct hd_attention_settings {
    int64_t heads, kv_heads, head_width;
    int64_t window; /* 0: none */
    bool causal;
    bool alibi;                /* scores fall with the distance, by hd_alibi_slopes of all heads */
    struct hd_dropout dropout; /* of weights; in training alone */
};
struct hd_tensor *op_attention(struct hd_rec *rec, struct hd_tensor *qkv,
                               const struct hd_attention_settings *settings);
struct hd_tensor *op_swiglu(struct hd_rec *rec, struct hd_tensor *x); /* [R, 2F] -> [R, F] */
struct hd_tensor *op_gelu(struct hd_rec *rec, struct hd_tensor *x);
/* A mixture of SwiGLU experts (Shazeer et al. 2017; Jiang et al. 2024), in place of an MLP:
 * out[R, C] = sum over the K chosen e of gate[r,e] * down_e(silu(gate_e x) * (up_e x)); with tensor
 * parallelism F is cut and the result is this rank's part of the sum. router, noise (or -1) [E, C];
 * gate, up [E, F, C]; down [E, C, F], experts shared out over ep. Adds to the record of the router
 * and to the gradients what its losses ask. */
struct hd_expert_params {
    int router, noise, gate, up, down;
};
struct hd_tensor *op_experts(struct hd_rec *rec, struct hd_tensor *x,
                             const struct hd_expert_params *params, const struct hd_router *router);
struct hd_tensor *op_add(struct hd_rec *rec, struct hd_tensor *a, struct hd_tensor *b);
/* out[R, C]: values of x dropped by their place in the job, the others times 1 / (1 - p). x has the
 * rows that this rank works on outside of enter and leave (op_tp_rows), and all channels of them.
 * Where it is not training, or p = 0, it is x itself and nothing is recorded. */
struct hd_tensor *op_dropout(struct hd_rec *rec, struct hd_tensor *x,
                             const struct hd_dropout *dropout);
/* out[R, N] = x + bias on every row; behind a sum over ranks, which would add a linear's more than
 * once. */
struct hd_tensor *op_bias(struct hd_rec *rec, struct hd_tensor *x, int bias);
/* Head and cross-entropy in chunks of rows, so that logits of all rows never exist: adds loss and
 * targets to the step block; when training, forms the gradients of x and weight in the same pass.
 * weight [V, C]; where tp cuts the vocabulary, each rank forms the logits of its share and a part
 * of x's gradient: x comes from op_tp_enter. */
void op_head_loss(struct hd_rec *rec, struct hd_tensor *x, int weight, struct hd_tensor *targets);
/* logits[R, V] as an output that the host may read; E and D only. */
void op_logits(struct hd_rec *rec, struct hd_tensor *x, int weight);
/* Megatron's f and g (Shoeybi et al. 2020): enter gives each tp rank every row and sums gradients
 * over tp; leave sums over tp and gives each rank every row's gradient. With sequence parallelism
 * (registry) x has R/tp rows outside: enter [R/tp, C] -> [R, C], leave back. Without tensor
 * parallelism both return x. */
struct hd_tensor *op_tp_enter(struct hd_rec *rec, struct hd_tensor *x);
struct hd_tensor *op_tp_leave(struct hd_rec *rec, struct hd_tensor *x);
/* The rows of a batch field [R] that this rank works on outside of enter and leave. */
struct hd_tensor *op_tp_rows(struct hd_rec *rec, struct hd_tensor *field);

/* ---- Programs ---- */

/* The call kinds of DESIGN: training's three, forward only, decode, update. */
#define HD_CALL_LIST(X) X(F) X(B) X(W) X(E) X(D) X(U)
enum hd_call {
#define X(name) HD_CALL_##name,
    HD_CALL_LIST(X)
#undef X
        HD_CALL_COUNT
};

enum hd_region {
    HD_REGION_STATE,    /* the registry's layout, then constants and caches of the chunk */
    HD_REGION_KEPT,     /* a slot per micro-batch in flight: what F leaves for B and W */
    HD_REGION_DEFERRED, /* a slot per postponed W: what B leaves for W */
    HD_REGION_WORK,     /* scratch and temporaries, shared by all calls */
    HD_REGION_GATHERED, /* a ring of unit buffers for gathered weights; empty without ZeRO-3 */
    HD_REGION_COUNT
};

enum hd_stream_name { HD_STREAM_COMPUTE, HD_STREAM_GATHER, HD_STREAM_REDUCE, HD_STREAM_PIPELINE };

/* What a store holds. */
enum hd_store_kind {
    HD_STORE_TEMPORARY,
    HD_STORE_BATCH,    /* written by the host before the call     */
    HD_STORE_INPUT,    /* written from outside before F           */
    HD_STORE_OUTPUT,   /* readable by the host after the call     */
    HD_STORE_PART,     /* one kind of state of a part             */
    HD_STORE_GLOBAL,   /* the step block and its arrays           */
    HD_STORE_CONSTANT, /* filled once, by hd_constant_fill */
    HD_STORE_CACHE     /* keys or values of one unit              */
};

enum hd_constant_kind { HD_CONSTANT_ROPE_TABLE, HD_CONSTANT_POSITIONS, HD_CONSTANT_SLOPES };

/* Memory as the passes see it. */
struct hd_store {
    int id;
    enum hd_store_kind kind;
    const char *name;
    enum hd_dtype dtype;
    int64_t rows, columns; /* columns 0: a vector of `rows` */
    int64_t size_bytes;
    bool visible; /* a collective touches it */
    enum hd_region region;
    int64_t offset; /* within its half of the region (of the slot, for kept and deferred) */
    /* which one */
    int part;                       /* HD_STORE_PART */
    enum hd_state_kind state;       /* HD_STORE_PART */
    enum hd_global global;          /* HD_STORE_GLOBAL */
    enum hd_batch_field field;      /* HD_STORE_BATCH */
    enum hd_constant_kind constant; /* HD_STORE_CONSTANT */
    struct hd_rope rope;            /* ROPE_TABLE */
    struct hd_zigzag zigzag;        /* POSITIONS */
    int64_t first_head, all_heads;  /* SLOPES: those of `rows` heads from the first on */
    int unit;                       /* HD_STORE_CACHE */
};

/* A place in a store. All zeros: absent, which a kernel sees as a null pointer. */
struct hd_operand {
    struct hd_store *store; /* NULL: absent */
    int64_t offset_bytes;
};

/* What collectives work on: W written, R read, RW both. The last three are of all_to_all_v alone:
 * the counts of rows sent to each member, of those received (or absent), and the number that
 * becomes 1 when a bound was exceeded. */
#define HD_COMM_OPERAND_LIST(R, W, RW) \
    W(received) R(sent) R(sent_counts) W(received_counts) RW(exceeded)

enum { HD_NODE_WAITS_MAX = 8 };

struct hd_node {
    bool is_comm;
    int unit;
    enum hd_stream_name stream;
    struct hd_operand *operands; /* [hd_node_operand_count]; by name: operands.h */

    /* a kernel; the pointers in args are filled in when it is bound */
    enum hd_kernel kernel;
    void *args;

    /* a collective */
    enum hd_comm_kind comm;
    enum hd_group_name group;
    int64_t count; /* elements, as in the args of comm.h; all_to_all_v: rows there is room for */
    enum hd_dtype dtype;
    struct hd_node_rows {
        int64_t sent_max, received_max; /* bounds of this rank */
        int64_t elements;               /* of a row */
        int64_t even;                   /* for costs: rows in use when routers deal evenly */
    } rows; /* of all_to_all_v; of a kernel `even` alone, 0: its arguments say how many */

    /* variants of the program */
    bool contribution;       /* goes to a parameter's gradient */
    bool first_contribution; /* of a micro-batch: stores in the step's first one, else adds */
    bool only_first;         /* runs in the first micro-batch of a step only */
    bool only_last;          /* runs in the last one only */

    int waits[HD_NODE_WAITS_MAX]; /* earlier nodes of this program on other streams */
    int wait_count;
};

/* For passes that treat all nodes alike: how many operands a node has, present or absent, and how
 * it uses operand k. */
int hd_node_operand_count(const struct hd_node *node);
enum hd_access hd_node_access(const struct hd_node *node, int k);
bool hd_node_touches(const struct hd_node *node, const struct hd_store *store);
bool hd_node_writes(const struct hd_node *node, const struct hd_store *store);

struct hd_program {
    enum hd_call call;
    struct hd_node **nodes;
    int count;
};

/* Sizes of a region's halves, in bytes (per slot for kept and deferred). */
struct hd_extent {
    int64_t private_bytes, visible_bytes;
};

struct hd_chunk {
    const struct hd_registry *registry;
    struct hd_rec_shape shape;
    int group_size[HD_GROUP_COUNT]; /* that the collectives of this chunk were compiled for */
    struct hd_traits traits;
    struct hd_store **stores; /* by id */
    int store_count;
    struct hd_program program[HD_CALL_COUNT]; /* empty where the chunk has none */
    struct hd_extent extent[HD_REGION_COUNT]; /* STATE: the chunk's own constants and caches only */
};

/* Encoding in which each class of ops computes and keeps. */
struct hd_precision {
    enum hd_dtype of_class[HD_OP_CLASS_COUNT];
};
struct hd_precision hd_precision_uniform(enum hd_dtype dtype);

struct hd_compile_options {
    struct hd_precision precision;
    const struct hd_mesh *mesh; /* sizes of the groups */
    struct hd_traits traits;    /* of the device it will run on */
    bool split_backward;        /* B and W apart (zero-bubble schedules); else W is joined to B */
    bool no_fuse;               /* tests: the unfused program */
};

/* Runs all passes over the recording. The chunk lives in the recording's arena. */
enum hd_status hd_compile(struct hd_rec *rec, const struct hd_compile_options *options,
                          struct hd_chunk **ret_chunk);

/* Adds the listing of all programs of the chunk: op, shapes, region and offset, bytes, stream,
 * group. */
void hd_chunk_list(const struct hd_chunk *chunk, struct hd_text *ret_text);

/* The store of a batch field, of the (only) input, or of the output; NULL when the chunk has none.
 */
const struct hd_store *hd_chunk_find_batch(const struct hd_chunk *chunk, enum hd_batch_field field);
const struct hd_store *hd_chunk_find_kind(const struct hd_chunk *chunk, enum hd_store_kind kind);

/* Of its kernel, with what is fused into a product, or of its collective. */
const char *hd_node_name(const struct hd_node *node);
const char *hd_call_name(enum hd_call call);
const char *hd_region_name(enum hd_region region);
const char *hd_stream_text(enum hd_stream_name stream);

#endif

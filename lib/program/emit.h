/* emit: functions that turn recorded ops into nodes of programs. Only for lib/program, and for
 * lib/optim, which emits the update without a recording.
 *
 * An emitter adds nodes to the current program (F, E, D, B, W or U):
 *
 *     (void)hd_emit_add(e, HD_ARGS(add, .N = N, .dtype = dtype),
 *                       HD_OPERANDS(add, .out = sum, .a = a, .b = b));
 *
 * hd_emit_value and hd_emit_grad find the memory of a tensor's value and gradient. A gradient with
 * several contributions is summed in the order in which they are emitted, the reverse order of the
 * forward pass. The first failure is kept in `error` and ends the compilation; functions that are
 * called after it return dummy nodes and stores, never NULL.
 */
#ifndef HD_PROGRAM_EMIT_H
#define HD_PROGRAM_EMIT_H

#include "program/operands.h"
#include "program/program.h"
#include "program/rec.h"

struct hd_node_list {
    struct hd_node **nodes;
    int count, capacity;
};

/* Gradient of one tensor while B is emitted. */
struct hd_grad_slot {
    struct hd_operand sum; /* sum of the contributions emitted so far; absent: none yet */
    bool own;              /* no other tensor uses the memory of `sum`: later contributions are
                              added in place */
    enum hd_call call;     /* program of the newest contribution: B, or F by a composite op */
};

/* Statistics that the forward of an op leaves for its backward. */
struct hd_emit_stats {
    struct hd_operand lse, mean, rstd;
    struct hd_operand sinks; /* attention's gradient of its sinks, by row and head [R, H]; backward
                                of inputs leaves it, in the first frame, for backward of weights */
    struct hd_operand gates; /* beta and the logarithm of the decay of gated_delta */
    struct hd_operand gate_terms; /* terms of the gradients of A_log and dt_bias, by row; left, as
                                     `sinks` are, for backward of weights */
    /* of sequences that ranks share (ops_delta_context.c): the inputs of op_conv before the rank's
     * segments; the states of gated_delta before them, and their transitions */
    struct hd_operand halo, states, transitions;
    struct hd_operand inverse[HD_LOW_RANK_MAX]; /* by target of op_magnitude: 1 / norm of each row
                                                   of the target's matrix */
};

/* Operands of the results, statistics and composite-op states of one emission of forward ops.
 * Forward fills the first frame; ops that are recomputed in B or in W, because forward did not keep
 * their results, fill the others. */
enum { HD_FRAME_FORWARD, HD_FRAME_B, HD_FRAME_W, HD_FRAME_COUNT };
struct hd_emit_frame {
    struct hd_operand *value;    /* by tensor id: operand of the value; absent: not emitted yet */
    struct hd_emit_stats *stats; /* by op index: statistics that the op's forward left */
    void **state;                /* by op index: state of a composite op */
};

/* Codes of a factor of a product in fp8, and the factor that decodes them; absent: not made. */
struct hd_fp8_codes {
    struct hd_operand code, factor;
};

/* Transposed codes that the product of a linear's weights reads, made with those of the product
 * before it (emit_fp8.c): of the linear's input in forward, of its result's gradient in backward. */
struct hd_fp8_saved {
    struct hd_fp8_codes input, gradient;
};

struct hd_emit {
    struct hd_rec *rec;
    const struct hd_registry *registry;
    const struct hd_compile_options *options;
    struct hd_arena *arena;
    struct hd_error error;
    struct hd_node failed_node; /* node that emitters return after a failure: it is written, never
                                   read */
    struct hd_store failed_store;

    struct hd_store **stores; /* all stores, by id */
    int store_count, store_capacity;
    struct hd_node_list lists[HD_CALL_COUNT];
    enum hd_call call; /* the program that nodes are added to */
    int unit;
    int op_index;                   /* index of the op that is being emitted */
    struct hd_fp8_saved *fp8_saved; /* by op index */

    struct hd_emit_frame frame[HD_FRAME_COUNT];
    struct hd_emit_frame *into; /* the frame that forward ops fill now; NULL: backward is being
                                   emitted */
    /* arrays by tensor id */
    bool *keeps;   /* true if forward keeps the value for backward (recompute.c) */
    int *producer; /* index of the op that computes the value; -1: none */
    struct hd_grad_slot *grads;
    bool *recomputed; /* by op index: marks that recompute.c uses while it recomputes */

    bool *param_has_grad; /* by parameter: true if its gradient already has a contribution in this
                             micro-batch; for parameters with gradient buckets: in one program, by
                             parameter + call * param_count */
    struct hd_store **bucket_store; /* stores of state, by bucket * HD_STATE_KIND_COUNT + kind;
                                       NULL: not used yet */
    struct hd_store **grad_bucket, **gathered; /* gradient buckets and gathered weights, by bucket *
                                                  HD_CALL_COUNT + call */
    struct hd_store *global_store[HD_GLOBAL_COUNT];
    /* number of operands of all nodes that use a store, by the store's id; only while hd_pass_fuse
     * runs */
    int *uses;
};

/* ---- stores ---- */

/* hd_emit_store returns a new store, a copy of `like` with a new id, never NULL; hd_emit_temp
 * returns a new temporary store as an operand. */
struct hd_store *hd_emit_store(struct hd_emit *e, const struct hd_store *like);
struct hd_operand hd_emit_temp(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                               int64_t rows, int64_t columns);

static inline struct hd_operand hd_emit_none(void)
{
    return (struct hd_operand){0};
}

/* Returns the operand `element` elements after `o`. */
static inline struct hd_operand hd_emit_at(struct hd_operand o, int64_t element,
                                           enum hd_dtype dtype)
{
    o.offset_bytes += element * (int64_t)hd_dtype_size(dtype);
    return o;
}

/* Returns the weights of a parameter, or of a span that begins with it, in the compute encoding,
 * which must be `dtype`; with ZeRO 3: gathered for this program. */
struct hd_operand hd_emit_weight(struct hd_emit *e, int param, enum hd_dtype dtype);
/* Returns hd_emit_weight of the parameter; an absent operand if `param` is -1. */
static inline struct hd_operand hd_emit_weight_or_none(struct hd_emit *e, int param,
                                                       enum hd_dtype dtype)
{
    return param < 0 ? hd_emit_none() : hd_emit_weight(e, param, dtype);
}
/* Returns the weights of `fused_count` parameters as a factor of a product; ret_codes describes
 * their encoding. For ops that can multiply by quantised weights. */
struct hd_operand hd_emit_factor(struct hd_emit *e, int param, int fused_count, enum hd_dtype dtype,
                                 struct hd_quant_factor *ret_codes);
/* Returns the operand of one kind of state of a bucket, from element `offset` of the bucket on;
 * this rank must have that state. */
struct hd_operand hd_emit_bucket(struct hd_emit *e, int bucket, enum hd_state_kind kind,
                                 int64_t offset);
/* Returns the operand of the current program's gradient bucket (ZeRO 2, 3) of `bucket`, from
 * element `offset` on. */
struct hd_operand hd_emit_grad_bucket(struct hd_emit *e, int bucket, int64_t offset);
/* Returns a new store for `count` elements of a bucket's gradient in the encoding in which ranks
 * send it to each other (train.grad_reduce_dtype). */
struct hd_operand hd_emit_wire(struct hd_emit *e, int bucket, int64_t count);
struct hd_operand hd_emit_global(struct hd_emit *e, enum hd_global global);
/* Return the operand of a constant, whose store all equal constants share: hd_emit_angles the RoPE
 * table [positions, W/2, 2] (hd_rope_fill; `rope` must live as long as the chunk),
 * hd_emit_query_factors the factors [positions] of queries, hd_emit_positions the positions of the
 * rows of B sequences in zigzag order (mesh/zigzag.h). */
struct hd_operand hd_emit_angles(struct hd_emit *e, int64_t positions, int64_t head_width,
                                 const struct hd_rope *rope);
struct hd_operand hd_emit_query_factors(struct hd_emit *e, int64_t positions,
                                        const struct hd_query_factor *factor);
struct hd_operand hd_emit_positions(struct hd_emit *e, int64_t B, const struct hd_zigzag *zigzag);
/* Returns the ALiBi slopes of this rank's heads, [heads], times `scale`; 0: 1. Every tp rank has
 * `heads` heads. */
struct hd_operand hd_emit_slopes(struct hd_emit *e, int64_t heads, float scale);
struct hd_operand hd_emit_cache(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                                int64_t rows, int64_t columns);

/* ---- values ---- */

/* Returns the value of an op's input; in backward also of its result. In B and W a value that
 * forward did not keep is recomputed: the ops that compute it are emitted again. */
struct hd_operand hd_emit_value(struct hd_emit *e, const struct hd_tensor *t);

/* hd_emit_result returns the memory of an op's result; hd_emit_set_result declares `value`, a view
 * of other memory, as its result. Only the op's forward function calls them. */
struct hd_operand hd_emit_result(struct hd_emit *e, const struct hd_op *op);
void hd_emit_set_result(struct hd_emit *e, const struct hd_op *op, struct hd_operand value);

/* Return the statistics, and the composite-op state, of the op that is being emitted: in forward
 * those that forward fills, in backward those that the op's newest forward emission filled. In
 * backward the caller first calls hd_emit_value for the op's result. */
struct hd_emit_stats *hd_emit_get_stats(struct hd_emit *e);
void **hd_emit_state(struct hd_emit *e);

/* ---- recompute (recompute.c) ---- */

/* Decides which values forward keeps for backward. */
void hd_emit_choose_saved(struct hd_emit *e);
/* Emits into B the recomputation of t now, except of values that are cheap to recompute. Backward
 * calls it before it emits nodes that the fuse pass may merge, so that no recomputed node comes
 * between those nodes. */
void hd_emit_prepare(struct hd_emit *e, const struct hd_tensor *t);
/* Returns the value of t in the frame of B or W; emits again the ops that compute it, if they are
 * not in that frame yet. Only hd_emit_value calls it. */
struct hd_operand hd_emit_recompute(struct hd_emit *e, const struct hd_tensor *t);
/* Returns true if the op that is being emitted is recomputed in B or W, not emitted for forward. */
static inline bool hd_emit_is_recomputed(const struct hd_emit *e)
{
    return e->into && e->into != &e->frame[HD_FRAME_FORWARD];
}

/* ---- gradients (emit_grad.c) ---- */

/* Returns the sum of the contributions so far to t's gradient; absent: none. */
struct hd_operand hd_emit_grad(const struct hd_emit *e, const struct hd_tensor *t);
/* Adds a contribution to t's gradient. own: no other tensor uses the memory of `grad`. */
void hd_emit_add_grad(struct hd_emit *e, const struct hd_tensor *t, struct hd_operand grad,
                      bool own);
/* Returns the operand to which a GEMM writes a contribution to t's gradient. *ret_accumulate true:
 * the operand holds the sum of earlier contributions, and the GEMM must add to it. False: the
 * operand is new memory, and the caller then calls hd_emit_add_grad with it. */
struct hd_operand hd_emit_grad_sum(struct hd_emit *e, const struct hd_tensor *t,
                                   bool *ret_accumulate);

/* Returns the gradient of `fused_count` parameters from `param` on; with ZeRO 2 and 3 in this
 * program's gradient bucket. *ret_first is true for the first contribution to this gradient in the
 * micro-batch, or to its part of the gradient bucket. The caller passes the node that writes the
 * contribution to hd_emit_contributes. */
struct hd_operand hd_emit_param_grad(struct hd_emit *e, int param, int fused_count,
                                     bool *ret_first);
void hd_emit_contributes(struct hd_node *node, bool first);

/* ---- nodes ---- */

/* Compound literals of a kernel's argument struct, without its pointers, and of its struct of
 * operands. Members that are not named are 0; operands that are not named are absent. */
#define HD_ARGS(kernel, ...)     (&(struct hd_##kernel##_args){__VA_ARGS__})
#define HD_OPERANDS(kernel, ...) (&(struct hd_##kernel##_operands){__VA_ARGS__})

/* Appends a kernel node. args and operands are copied. Never returns NULL. Emitters call the typed
 * functions below, hd_emit_NAME of each kernel. The fuse pass later merges GELU and the gradient of
 * a bias into a GEMM. */
struct hd_node *hd_emit_kernel(struct hd_emit *e, enum hd_kernel kernel, const void *args,
                               const void *operands);
#define K(name, ...)                                                                          \
    static inline struct hd_node *hd_emit_##name(struct hd_emit *e,                           \
                                                 const struct hd_##name##_args *args,         \
                                                 const struct hd_##name##_operands *operands) \
    {                                                                                         \
        return hd_emit_kernel(e, HD_K_##name, args, operands);                                \
    }
#include "kernels/kernels.def"

/* Arguments of a collective node; count and rows as in struct hd_node. hd_emit_comm appends the
 * node and never returns NULL. */
struct hd_comm_args {
    enum hd_comm_kind kind;
    enum hd_group_name group;
    int64_t count;
    enum hd_dtype dtype;
    bool keep_fp32;
    enum hd_comm_reduce reduce; /* all_reduce: the reduction; 0: sum */
    struct hd_node_rows rows;
};
struct hd_node *hd_emit_comm(struct hd_emit *e, const struct hd_comm_args *what,
                             const struct hd_comm_operands *operands);

/* Emits db += sum_r dy for `fused_count` biases from `bias` on; nothing if bias is -1 or frozen. */
/* Returns the map of the logits of a head or logits op, and whether it changes them. */
struct hd_logit_map hd_emit_logit_map(const struct hd_op *op);
bool hd_emit_maps_logits(const struct hd_op *op);
void hd_emit_bias_gradient(struct hd_emit *e, int bias, int fused_count, const struct hd_tensor *y);

/* Inputs of a loss on pairs of answers: a value for each row (log-probability or reward), and the
 * index of the answer to which the row belongs. */
struct hd_pair_rows {
    struct hd_operand value;             /* [R] fp32 */
    struct hd_operand reference, target; /* [R] each, or absent: reference log-probability, and
                                            target, of each row (answer_sums in ops.h) */
    struct hd_operand answer;
};
/* Emits the sum of the values of each answer, added over cp ranks, and the loss that the op's
 * settings name. Returns the factor [R] of each row's gradient if `train`, else an absent
 * operand. */
struct hd_operand hd_emit_pair_losses(struct hd_emit *e, const struct hd_op *op,
                                      const struct hd_pair_rows *rows, bool train);

/* Emits one matrix product of a linear, whose factors have no gaps between rows: a GEMM of the
 * factors as they are, or, in training with options.fp8 and for a weight that is neither an
 * adapter's nor quantised, a GEMM of the factors rounded to fp8. a and b tell which tensors of the
 * linear (input, weight or gradient) the two factors are. */
struct hd_node *hd_emit_product(struct hd_emit *e, const struct hd_op *linear, enum hd_amax a,
                                enum hd_amax b, const struct hd_gemm_args *args,
                                const struct hd_gemm_operands *operands);

/* Returns the random key of a kernel with dropout. */
uint64_t hd_emit_dropout_key(const struct hd_dropout *dropout);

void hd_emit_fail(struct hd_emit *e, enum hd_status st);

/* ---- the op table ---- */

struct hd_op_row {
    void (*forward)(struct hd_emit *e, const struct hd_op *op);
    /* emit the gradients of the op's inputs, and of its weights; NULL: nothing is to be emitted */
    void (*backward_inputs)(struct hd_emit *e, const struct hd_op *op);
    void (*backward_weights)(struct hd_emit *e, const struct hd_op *op);
    /* true: the op's result costs little to recompute: the selective policy recomputes it, and W
     * recomputes it for itself instead of keeping the result of B */
    bool cheap;
    /* true: if F computes the gradient of the op's result, backward_inputs is emitted into F, too:
     * its output is smaller, so F keeps less memory */
    bool follows_gradient;
};
#define X(name, class) extern const struct hd_op_row hd_op_row_##name;
HD_OP_LIST(X)
#undef X
const struct hd_op_row *hd_op_row_of(enum hd_op_kind kind);

/* ---- passes over a chunk (each changes the programs in place) ---- */

/* Returns a new, empty emission; NULL if memory is exhausted. */
struct hd_emit *hd_emit_begin(struct hd_rec *rec, const struct hd_compile_options *options);
/* Assigns streams and offsets to the emitted programs. Sets *ret_chunk to the chunk; returns the
 * first failure of the emission otherwise. */
enum hd_status hd_emit_finish(struct hd_emit *e, struct hd_chunk **ret_chunk);

struct hd_emit *hd_pass_derive(struct hd_rec *rec, const struct hd_compile_options *options);
void hd_pass_fuse(struct hd_emit *e);
void hd_pass_shard(struct hd_emit *e);
void hd_pass_gather(struct hd_emit *e);
/* Moves the last node of the list to index `at`. */
void hd_move_last_to(struct hd_node_list *list, int at);
void hd_pass_stream(struct hd_emit *e);
void hd_pass_place(struct hd_emit *e, struct hd_chunk *chunk);

/* Returns the `accumulate` argument of a kernel that can add to an operand (ACC in kernels.def); NULL
 * for any other kernel. */
bool *hd_node_accumulate(const struct hd_node *node);

#endif

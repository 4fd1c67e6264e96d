/* emit: what the rows of the op table use to turn a recorded op into nodes. Only for lib/program
 * and for lib/optim, which emits the update without a recording.
 *
 * An emitter adds nodes to the current program (F, E, D, B, W or U):
 *
 *     (void)hd_emit_add(e, HD_ARGS(add, .N = N, .dtype = dtype),
 *                       HD_OPERANDS(add, .out = sum, .a = a, .b = b));
 *
 * Values of tensors and their gradients are looked up here; a gradient with several contributions
 * is summed as they are emitted, in reverse order of the forward pass. The first failure is kept in
 * `error` and ends the compilation; functions that are called after it return something harmless.
 */
#ifndef HD_PROGRAM_EMIT_H
#define HD_PROGRAM_EMIT_H

#include "program/operands.h"
#include "program/program.h"
#include "program/rec.h"

struct hd_node_list {
    struct hd_node **nodes;
    int count, room;
};

/* The gradient of one tensor while B is emitted. */
struct hd_grad_slot {
    struct hd_operand sum; /* of the contributions until now; absent: none yet */
    bool own;              /* made for this tensor alone, so that more may be added in place */
    enum hd_call call;     /* the program of its newest contribution: B, or F by a composite op */
};

/* What the forward of an op keeps for its backward beside the values of tensors. */
struct hd_emit_kept {
    struct hd_operand lse, mean, rstd;
};

struct hd_emit {
    struct hd_rec *rec;
    const struct hd_registry *registry;
    const struct hd_compile_options *options;
    struct hd_arena *arena;
    struct hd_error error;
    struct hd_node failed_node; /* returned after a failure: written, never read */
    struct hd_store failed_store;

    struct hd_store **stores; /* by id */
    int store_count, store_room;
    struct hd_node_list lists[HD_CALL_COUNT];
    enum hd_call call; /* the program that nodes are added to */
    int unit;
    int op_index; /* of the op being emitted */

    /* by tensor id */
    struct hd_operand *value;         /* absent: not made yet */
    struct hd_operand *recomputed[2]; /* in B, in W; absent: not recomputed there */
    const struct hd_op **producer;    /* the op whose result it is; NULL: none */
    struct hd_grad_slot *grads;
    /* by op index */
    struct hd_emit_kept *kept;
    void **op_state; /* what a composite op remembers of its forward for its backward */

    bool *param_has_grad;         /* by parameter: has a contribution in this micro-batch */
    struct hd_store **part_store; /* by part * HD_STATE_KIND_COUNT + kind; NULL: not made yet */
    struct hd_store *global_store[HD_GLOBAL_COUNT];
};

/* ---- stores ---- */

/* Never NULL. */
struct hd_store *hd_emit_store(struct hd_emit *e, const struct hd_store *like);
struct hd_operand hd_emit_temp(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                               int64_t rows, int64_t columns);

static inline struct hd_operand hd_emit_none(void)
{
    return (struct hd_operand){0};
}

/* The place that many elements behind `o`. */
static inline struct hd_operand hd_emit_at(struct hd_operand o, int64_t element,
                                           enum hd_dtype dtype)
{
    o.offset_bytes += element * (int64_t)hd_dtype_size(dtype);
    return o;
}

/* A parameter (or span) for computing in `dtype`; its gradient. */
struct hd_operand hd_emit_weight(struct hd_emit *e, int param, enum hd_dtype dtype);
struct hd_operand hd_emit_part(struct hd_emit *e, int part, enum hd_state_kind kind,
                               int64_t offset);
struct hd_operand hd_emit_global(struct hd_emit *e, enum hd_global global);
/* Constants, each made once: angles[positions, head_width/2, 2], and for B sequences the positions
 * of the rows that the zigzag names. */
struct hd_operand hd_emit_angles(struct hd_emit *e, int64_t positions, int64_t head_width,
                                 const struct hd_rope *rope);
struct hd_operand hd_emit_positions(struct hd_emit *e, int64_t B, const struct hd_zigzag *zigzag);
/* The slopes of ALiBi of `heads` heads of each tp rank: this rank's, [heads]. */
struct hd_operand hd_emit_slopes(struct hd_emit *e, int64_t heads);
struct hd_operand hd_emit_cache(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                                int64_t rows, int64_t columns);

/* ---- values ---- */

/* The memory of a tensor's value, made at first use. In B and W a value that forward did not keep
 * is recomputed (hd_op_row.recompute), once per program. */
struct hd_operand hd_emit_value(struct hd_emit *e, const struct hd_tensor *t);

/* ---- gradients (emit_grad.c) ---- */

/* The sum of the contributions to t's gradient until now; absent: none. */
struct hd_operand hd_emit_grad(const struct hd_emit *e, const struct hd_tensor *t);
/* One more contribution; it is added to those before it. own: its memory is of this contribution
 * alone. */
void hd_emit_add_grad(struct hd_emit *e, const struct hd_tensor *t, struct hd_operand grad,
                      bool own);
/* Memory for a contribution by a GEMM. ret_accumulate: it holds the sum of the earlier ones, and
 * the GEMM adds to it; else it is new, and hd_emit_add_grad must follow. */
struct hd_operand hd_emit_grad_sum(struct hd_emit *e, const struct hd_tensor *t,
                                   bool *ret_accumulate);

/* The gradient of `param` (of its span) and whether this is the micro-batch's first contribution;
 * the node must be marked by hd_emit_contributes. */
struct hd_operand hd_emit_param_grad(struct hd_emit *e, int param, int span, bool *ret_first);
void hd_emit_contributes(struct hd_node *node, bool first);

/* ---- nodes ---- */

/* A kernel's arguments, without the pointers, and its operands by name; what is left out is 0 and
 * absent. */
#define HD_ARGS(kernel, ...)     (&(struct hd_##kernel##_args){__VA_ARGS__})
#define HD_OPERANDS(kernel, ...) (&(struct hd_##kernel##_operands){__VA_ARGS__})

/* Both are copied. Emitters call the typed functions that follow, hd_emit_NAME of each kernel.
 * Never NULL. What one product can do besides (GELU, the gradient of a bias) is joined to it by the
 * fuse pass. */
struct hd_node *hd_emit_kernel(struct hd_emit *e, enum hd_kernel kernel, const void *args,
                               const void *operands);
#define K(name, list)                                                                         \
    static inline struct hd_node *hd_emit_##name(struct hd_emit *e,                           \
                                                 const struct hd_##name##_args *args,         \
                                                 const struct hd_##name##_operands *operands) \
    {                                                                                         \
        return hd_emit_kernel(e, HD_K_##name, args, operands);                                \
    }
HD_KERNEL_LIST(K)
#undef K

/* A collective; count and rows as in struct hd_node. Never NULL. */
struct hd_comm_args {
    enum hd_comm_kind kind;
    enum hd_group_name group;
    int64_t count;
    enum hd_dtype dtype;
    struct hd_node_rows rows;
};
struct hd_node *hd_emit_comm(struct hd_emit *e, const struct hd_comm_args *what,
                             const struct hd_comm_operands *operands);

/* db += sum_r dy, for a span of biases from `bias` on; nothing for -1 or frozen ones. */
void hd_emit_bias_gradient(struct hd_emit *e, int bias, int span, const struct hd_tensor *y);

/* The key of a kernel that drops. */
uint64_t hd_emit_dropout_key(const struct hd_dropout *dropout);

void hd_emit_fail(struct hd_emit *e, enum hd_status st);

/* ---- the op table ---- */

struct hd_op_row {
    void (*forward)(struct hd_emit *e, const struct hd_op *op);
    void (*backward_inputs)(struct hd_emit *e, const struct hd_op *op);  /* NULL: nothing to do */
    void (*backward_weights)(struct hd_emit *e, const struct hd_op *op); /* NULL: nothing to do */
    /* Emits the op a second time in backward, from its inputs, and returns the result; forward does
     * not keep it. Returns none if forward kept it all the same. NULL: results are kept. */
    struct hd_operand (*recompute)(struct hd_emit *e, const struct hd_op *op);
    /* backward_inputs is emitted into F when the gradient of the result was formed there: what it
     * makes is smaller, so that less is kept. */
    bool follows_gradient;
};
#define X(name, class) extern const struct hd_op_row hd_op_row_##name;
HD_OP_LIST(X)
#undef X
const struct hd_op_row *hd_op_row(enum hd_op_kind kind);

/* ---- passes over a chunk (each changes the programs in place) ---- */

/* An emission with no nodes yet; NULL without memory. */
struct hd_emit *hd_emit_begin(struct hd_rec *rec, const struct hd_compile_options *options);
/* Streams, offsets, and the chunk. */
enum hd_status hd_emit_finish(struct hd_emit *e, struct hd_chunk **ret_chunk);

struct hd_emit *hd_pass_derive(struct hd_rec *rec, const struct hd_compile_options *options);
void hd_pass_fuse(struct hd_emit *e);
void hd_pass_shard(struct hd_emit *e);
void hd_pass_stream(struct hd_emit *e);
void hd_pass_place(struct hd_emit *e, struct hd_chunk *chunk);

/* The switch of a kernel that adds to a parameter's gradient. */
bool *hd_node_accumulate(const struct hd_node *node);

#endif

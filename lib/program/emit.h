/* emit: what the rows of the op table use to turn a recorded op into nodes. Only for lib/program
 * and for lib/optim, which emits the update without a recording.
 *
 * An emitter adds nodes to the current program (F, E, D, B or W). Values of tensors and their
 * gradients are looked up here; a gradient that several consumers contribute to is summed as they
 * are emitted, in reverse order of the forward pass.
 */
#ifndef HD_PROGRAM_EMIT_H
#define HD_PROGRAM_EMIT_H

#include "program/program.h"
#include "program/rec.h"

struct hd_node_list {
    struct hd_node **nodes;
    int count, room;
};

/* The gradient of one tensor while B is emitted. */
struct hd_grad_slot {
    int store;         /* -1: none yet */
    bool own;          /* made for this tensor alone, so that more may be added in place */
    enum hd_call call; /* the program of its newest contribution: B, or F by a composite op */
};

struct hd_emit {
    struct hd_rec *rec;
    const struct hd_registry *registry;
    const struct hd_compile_options *options;
    struct hd_arena *arena;
    struct hd_error error;
    struct hd_node nowhere; /* handed out after a failure: written, never read */

    struct hd_store *stores;
    int store_count, store_room;
    struct hd_node_list lists[HD_CALL_COUNT];
    enum hd_call call; /* the program that nodes are added to */
    int unit;

    struct hd_operand *value;    /* by tensor id; store -1: not made */
    struct hd_operand *again[2]; /* in B, in W: what was derived again there, by tensor id */
    int *producer;               /* by tensor id: the op whose result it is; -1: none */
    int *kept_store;  /* by op index: what its forward left for its backward (lse, rstd, ...) */
    int *kept_store2; /* a second one (mean) */
    void **op_state;  /* by op index: what a composite op keeps of its emission for backward */
    struct hd_grad_slot *grads; /* by tensor id */
    bool *param_has_grad;       /* by parameter: contributed to in this micro-batch */
    int *part_store;            /* by part * kinds + kind */
    int global_store[HD_GLOBAL_COUNT];
    int op_index; /* of the op being emitted */
};

/* ---- stores ---- */

int hd_emit_store(struct hd_emit *e, const struct hd_store *like);
struct hd_operand hd_emit_temp(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                               int64_t rows, int64_t columns);
struct hd_operand hd_emit_at(int store, int64_t offset_bytes);
static inline struct hd_operand hd_emit_none(void)
{
    return (struct hd_operand){-1, 0};
}

/* The memory of a tensor's value, made at first use. In B and W a value that is not kept but
 * derived again (hd_op_row.again) is derived here, once per program. */
struct hd_operand hd_emit_value(struct hd_emit *e, const struct hd_tensor *t);

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

/* ---- gradients of activations ---- */

/* The gradient that reached t so far; store -1: none. */
struct hd_operand hd_emit_grad(const struct hd_emit *e, const struct hd_tensor *t);
/* A contribution in memory of its own. Adds to what is there. */
void hd_emit_add_grad(struct hd_emit *e, const struct hd_tensor *t, struct hd_operand grad,
                      bool own);
/* Memory that a GEMM may add into: ret_accumulate tells whether something is there already. */
struct hd_operand hd_emit_grad_sum(struct hd_emit *e, const struct hd_tensor *t,
                                   bool *ret_accumulate);

/* ---- nodes ---- */

/* operands in the order of the kernel's row, scratch left out or -1 (place.c gives it). */
struct hd_node *hd_emit_kernel(struct hd_emit *e, enum hd_kernel kernel, const void *args,
                               const struct hd_operand *operands);
/* A product: c, a, b, bias. What stands behind it the fuse pass puts in. */
struct hd_node *hd_emit_gemm(struct hd_emit *e, const struct hd_gemm_args *args,
                             const struct hd_operand operands[4]);
/* The gradient of `param` (of its span) and whether this is the micro-batch's first contribution;
 * the node must be marked by hd_emit_contributes. */
struct hd_operand hd_emit_param_grad(struct hd_emit *e, int param, int span, bool *ret_first);
void hd_emit_contributes(struct hd_node *node, bool first);
/* A collective; for HD_COMM_SEND see struct hd_node. */
struct hd_node *hd_emit_comm(struct hd_emit *e, enum hd_comm_kind kind, enum hd_group_name group,
                             struct hd_operand received, struct hd_operand sent, int64_t count,
                             enum hd_dtype dtype);

/* db += sum_r dy, for a span of biases from `bias` on; nothing for -1 or frozen ones. */
void hd_emit_bias_gradient(struct hd_emit *e, int bias, int span, const struct hd_tensor *y);

/* all_to_all_v: operands and bounds as in struct hd_node. */
void hd_emit_rows(struct hd_emit *e, enum hd_group_name group, const struct hd_operand operands[5],
                  const struct hd_node_rows *rows, enum hd_dtype dtype);

/* What a kernel that drops is keyed by. */
uint64_t hd_emit_dropout_key(const struct hd_dropout *dropout);

void hd_emit_fail(struct hd_emit *e, enum hd_status st);

/* ---- the op table ---- */

struct hd_op_row {
    void (*forward)(struct hd_emit *e, const struct hd_op *op);
    void (*backward_inputs)(struct hd_emit *e, const struct hd_op *op);  /* NULL: nothing to do */
    void (*backward_weights)(struct hd_emit *e, const struct hd_op *op); /* NULL: nothing to do */
    /* Not NULL: backward does not find the result kept, it is derived again from the op's inputs;
     * none: this time it is kept after all. */
    struct hd_operand (*again)(struct hd_emit *e, const struct hd_op *op);
    /* Backward for inputs follows the gradient into F when it was formed there: it makes it smaller
     * before it is kept. */
    bool early;
};
#define X(name, class) extern const struct hd_op_row hd_op_row_##name;
HD_OP_LIST(X)
#undef X

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

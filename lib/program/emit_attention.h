/* emit_attention: launches of attention over blocks of keys. Only for the rows of attention in
 * lib/program.
 */
#ifndef HD_PROGRAM_EMIT_ATTENTION_H
#define HD_PROGRAM_EMIT_ATTENTION_H

#include "program/emit.h"

/* The queries of an attention op: rows [q: H*D | k: G*D | v: G*D], ld elements apart. */
struct hd_emit_attention {
    int64_t R, H, G, D, ld, B, S;
    enum hd_dtype dtype;
    const struct hd_op *op;
    struct hd_operand q, index, bounds;
    struct hd_operand slopes;         /* absent without ALiBi */
    struct hd_operand samples, block; /* absent without dropout, and what follows 0 */
    uint64_t dropout_key;
    int64_t first_head; /* this rank's, of the model's */
};
struct hd_emit_attention hd_emit_attention_of(struct hd_emit *e, const struct hd_op *op);

/* Keys and values that they attend to: `rows` of each sequence, ld elements apart. */
struct hd_emit_keys {
    struct hd_operand k, v, index;
    struct hd_operand filled; /* of a cache; else absent */
    int64_t rows, ld;
    int64_t pairs; /* visible pairs of a head and sequence, for costs; 0: of a whole sequence */
};

/* Those that stand beside the queries, or their gradients beside the queries'. */
struct hd_emit_keys hd_emit_keys_beside(const struct hd_emit_attention *a, struct hd_operand qkv);

void hd_emit_attend(struct hd_emit *e, const struct hd_emit_attention *a,
                    const struct hd_emit_keys *keys, struct hd_operand out, struct hd_operand lse);

/* Where gradients go: those of k and v in rows ldk apart, those of q ldq apart. accumulate: fp32
 * alone. */
struct hd_emit_attention_grads {
    struct hd_operand dq, dk, dv;
    int64_t ldq, ldk;
    enum hd_dtype dtype;
    bool accumulate;
};

/* From the gradient of the op's result, with its value and log-sum-exp over all keys. */
void hd_emit_attend_backward(struct hd_emit *e, const struct hd_emit_attention *a,
                             const struct hd_emit_keys *keys,
                             const struct hd_emit_attention_grads *grads);

/* The same over the keys of all context-parallel ranks (ops_context_parallel.c): into the op's
 * value and lse; into grad, rows as those of the queries. */
void hd_emit_context_forward(struct hd_emit *e, const struct hd_emit_attention *a,
                             struct hd_operand lse);
void hd_emit_context_backward(struct hd_emit *e, const struct hd_emit_attention *a,
                              struct hd_operand grad);

#endif

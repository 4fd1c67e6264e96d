/* emit_attention: emits attention kernels over blocks of keys. Only for ops_attention.c,
 * ops_context_parallel.c and ops_prefix.c. */
#ifndef HD_PROGRAM_EMIT_ATTENTION_H
#define HD_PROGRAM_EMIT_ATTENTION_H

#include "program/emit.h"

/* An attention op and its queries: rows [q: H*D | k: G*D | v: G*D], ld elements apart. */
struct hd_emit_attention {
    int64_t R, H, G, D, ld, B, S;
    enum hd_dtype dtype;
    const struct hd_op *op;
    struct hd_operand q, index, bounds;
    struct hd_operand slopes;         /* ALiBi slopes of this rank's heads; absent without ALiBi */
    struct hd_operand samples, block; /* sample of each row, and step state, for dropout; absent
                                         without dropout */
    uint64_t dropout_key;             /* key of the dropout's random numbers; 0 without dropout */
    int64_t first_head;               /* index of this rank's first head among all heads; 0 without
                                         dropout */
    int64_t window, chunk;            /* in rows; 0: no window, no chunks */
    float scale, cap;                 /* factor and bound of the scores; cap 0: no bound */
    bool causal;
};
struct hd_emit_attention hd_emit_attention_of(struct hd_emit *e, const struct hd_op *op);

/* A block of keys and values that one attention kernel reads: `rows` rows of each sequence, ld
 * elements apart. */
struct hd_emit_keys {
    struct hd_operand k, v, index;
    struct hd_operand filled, slot; /* number of valid rows, and cache slot, of each sequence;
                                       absent if the keys are not in a cache */
    int64_t rows, ld;
    int64_t pairs; /* visible pairs of query and key per head and sequence, for cost estimates; 0:
                      as many as in a whole sequence */
};

/* Returns the keys and values in the rows [q | k | v] of the queries; if `qkv` is a gradient, the
 * gradients of keys and values. */
struct hd_emit_keys hd_emit_own_keys(const struct hd_emit_attention *a, struct hd_operand qkv);

void hd_emit_attend(struct hd_emit *e, const struct hd_emit_attention *a,
                    const struct hd_emit_keys *keys, struct hd_operand out, struct hd_operand lse);

/* Operands for the gradients of queries, keys and values: dk and dv in rows ldk elements apart, dq
 * in rows ldq elements apart. accumulate: the kernel adds to all three instead of overwriting them,
 * which needs fp32. */
struct hd_emit_attention_grads {
    struct hd_operand dq, dk, dv;
    int64_t ldq, ldk;
    enum hd_dtype dtype;
    bool accumulate;
};

/* Emits attention backward over one block of keys. The kernel reads the gradient of the op's
 * result, the result, and the log-sum-exp over all blocks of keys. */
void hd_emit_attend_backward(struct hd_emit *e, const struct hd_emit_attention *a,
                             const struct hd_emit_keys *keys,
                             const struct hd_emit_attention_grads *grads);

/* Emit attention over the keys of all context-parallel ranks (ops_context_parallel.c). Forward
 * writes the op's result and lse; backward writes grad, in rows [q | k | v]. */
void hd_emit_context_forward(struct hd_emit *e, const struct hd_emit_attention *a,
                             struct hd_operand lse);
void hd_emit_context_backward(struct hd_emit *e, const struct hd_emit_attention *a,
                              struct hd_operand grad);

/* ---- learned keys and values (ops_prefix.c) ---- */

bool hd_emit_has_prefix(const struct hd_op *op);

/* Merges attention to the prefix, as the last block of keys, into sum [R, H*D] fp32 and lse; writes
 * the op's result. */
void hd_emit_prefix_forward(struct hd_emit *e, const struct hd_emit_attention *a,
                            struct hd_operand sum, struct hd_operand lse);
/* Emits the backward of attention to the prefix: adds its contribution to dq [R, H*D] fp32 (with
 * `first` overwrites dq), and adds the gradients of the learned keys and values to those of their
 * parameters. */
void hd_emit_prefix_backward(struct hd_emit *e, const struct hd_emit_attention *a,
                             struct hd_operand dq, bool first);

/* Emits attention to `keys` and to the prefix, which writes the op's result and its log-sum-exp
 * `lse`. */
void hd_emit_attend_with_prefix(struct hd_emit *e, const struct hd_emit_attention *a,
                                const struct hd_emit_keys *keys, struct hd_operand lse);
/* Emits backward of hd_emit_attend_with_prefix for this rank's own keys; writes `grad` in rows [q |
 * k | v]. grad absent: computes only the prefix's gradients. */
void hd_emit_backward_with_prefix(struct hd_emit *e, const struct hd_emit_attention *a,
                                  struct hd_operand grad);

#endif

/* emit_delta: gated delta layers of sequences that context-parallel ranks share
 * (ops_delta_context.c). Only for ops_delta.c. */
#ifndef HD_PROGRAM_EMIT_DELTA_H
#define HD_PROGRAM_EMIT_DELTA_H

#include "program/emit.h"

/* The sequences that the kernels see: those of the batch, or with cp > 1 the two segments that this
 * rank has of each, one behind the other in its rows (mesh/zigzag.h). */
struct hd_emit_segments {
    int64_t B, S;               /* number of segments, rows of each */
    struct hd_operand position; /* position of each row in its sequence; absent: whole sequences */
};
struct hd_emit_segments hd_emit_segments_of(struct hd_emit *e);

/* Returns the last W - 1 inputs before each segment, [B, W-1, N]; an absent operand for whole
 * sequences. Forward emits their exchange, once; later calls and backward get forward's. */
struct hd_operand hd_emit_conv_halo(struct hd_emit *e, const struct hd_op *op,
                                    const struct hd_emit_segments *s);
/* Emits the exchange of dhalo, the gradients of the halos, and adds them to dx, those of the inputs
 * from which the halos were taken. */
void hd_emit_conv_halo_backward(struct hd_emit *e, const struct hd_op *op,
                                const struct hd_emit_segments *s, struct hd_operand dhalo,
                                struct hd_operand dx);

/* Emits the exchange of the segments' matrices and returns the states before this rank's segments,
 * [B, H, Dk, Dv]; leaves both states and transitions in the op's statistics. Returns an absent
 * operand for whole sequences. */
struct hd_operand hd_emit_delta_states(struct hd_emit *e, const struct hd_op *op,
                                       const struct hd_emit_segments *s, struct hd_operand bound);
/* Returns the gradients of the states after this rank's segments, which it computes with those of
 * the other ranks. hd_emit_get_stats must be those of hd_emit_delta_states. */
struct hd_operand hd_emit_delta_states_gradient(struct hd_emit *e, const struct hd_op *op,
                                                const struct hd_emit_segments *s,
                                                struct hd_operand bound);

#endif

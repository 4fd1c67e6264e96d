/* ops_update: argument structs of the optimizers with one moment, Lion and Muon, and of what follows
 * any update: averages and QK-clip. ops.h has AdamW, the step state and the ranges of a shard.
 *
 * Muon (Jordan et al. 2024) updates a matrix as a whole. `momentum` computes a step for each
 * element, newton_schulz makes the step of a matrix nearly orthogonal, and step_along subtracts it
 * from the weights. Between them move_pieces sorts the elements of a rank's shards into what ranks
 * send each other, and into matrices (lib/program/matrices.h).
 *
 * Used by: kernels.h.   Uses: ops.h.   Threads: pure declarations.
 */
#ifndef HD_KERNELS_OPS_UPDATE_H
#define HD_KERNELS_OPS_UPDATE_H

#include "kernels/ops.h"

/* Lion over a flat shard of N parameters (Chen et al. 2023, "Symbolic Discovery of Optimization
 * Algorithms"), with g = grad * block->grad_factor; every operation rounds to fp32:
 *   c = b1 m + (1-b1) g,  w = w - lr * (sign(c) + weight_decay * w),  m = b2 m + (1-b2) g
 * sign(0) = 0. Ranges, moment_bytes, copy and skip_update as in hd_adamw_args; m is encoded by the
 * signed map. */
struct hd_lion_args {
    float *weight;     /* [N] master weights */
    void *m;           /* [N] fp32; or moment_bytes bytes */
    void *copy;        /* [N] copy_dtype, or NULL */
    const float *grad; /* [N] gradient, summed over the step's targets */
    const struct hd_step_state *block;
    const struct hd_update_range *ranges; /* [range_count] */
    int64_t N, range_count, moment_bytes;
    enum hd_dtype copy_dtype;
};

/* The momentum of Muon over a flat shard of N parameters, with g as above:
 *   m = momentum * m + g,  step = nesterov ? g + momentum * m : m
 * If block->skip_update is set, m does not change; step is then of no use, but is written. */
struct hd_momentum_args {
    void *m;           /* [N] fp32; or moment_bytes bytes, as in hd_lion_args */
    void *step;        /* [N] dtype */
    const float *grad; /* [N] gradient, summed over the step's targets */
    const struct hd_step_state *block;
    const struct hd_update_range *ranges; /* [range_count] */
    int64_t N, range_count, moment_bytes;
    float momentum;
    bool nesterov;
    enum hd_dtype dtype;
};

/* weight -= lr * weight_decay * weight, then weight -= lr * step, over a flat shard of N
 * parameters; lr and weight_decay are multiplied by the factors of an element's range. copy as in
 * hd_adamw_args. If block->skip_update is set, nothing changes. */
struct hd_step_along_args {
    float *weight;    /* [N] master weights */
    void *copy;       /* [N] copy_dtype, or NULL */
    const void *step; /* [N] dtype */
    const struct hd_step_state *block;
    const struct hd_update_range *ranges; /* [range_count] */
    int64_t N, range_count;
    enum hd_dtype copy_dtype, dtype;
};

/* ema += rate * (weight - ema), a moving average of the weights, over a flat shard of N
 * parameters, in fp32; behind the update. If block->skip_update is set, nothing changes. */
struct hd_ema_args {
    float *ema;          /* [N] */
    const float *weight; /* [N] master weights */
    const struct hd_step_state *block;
    int64_t N;
    float rate;
};

/* QK-clip (Kimi Team 2025, "Kimi K2"): after an update, makes the rows of queries or keys of a head
 * smaller whose attention scores exceeded a threshold in the step. `group` neighbouring query heads
 * read one key head and have one factor: with S the largest top_score of the group,
 *   gamma = min(1, threshold / S),  row = gamma^p row,
 * p = power for the first `split` rows of a head, rest_power for the others. Row r of the matrix
 * belongs to query head first_head + r / head_rows * head_step, or, of keys, to the first one of its
 * group. Nothing changes if S is infinite or block->skip_update is set. */
struct hd_qk_clip_args {
    float *weight;          /* [N] master weights, elements from `first` on of a matrix */
    void *copy;             /* [N] copy_dtype, or NULL */
    const float *top_score; /* of all query heads (attention_forward), over the whole step */
    const struct hd_step_state *block;
    int64_t N, first, columns; /* columns: elements of a row */
    int64_t head_rows, split;
    int64_t first_head, head_step, group;
    float threshold, power, rest_power;
    enum hd_dtype copy_dtype;
};

/* Elements of one matrix that one rank has: elements [begin, begin + count) of the rank's box of
 * the matrix, whose rows have `columns` elements. Element i of the box is element
 * origin + i / columns * pitch + i % columns of the matrices' buffer, and element
 * packed + i - begin of the packed one. */
struct hd_piece {
    int64_t packed, begin, count, origin, columns, pitch;
};

/* Copies the elements of all pieces between two buffers: to the packed one if `gathers`, else from
 * it. Elements that belong to no piece do not change. */
struct hd_move_pieces_args {
    void *out;
    const void *inp;
    const struct hd_piece *pieces; /* [piece_count] */
    int64_t piece_count;
    int64_t N; /* elements of all pieces */
    bool gathers;
    enum hd_dtype dtype;
};

/* Makes `count` matrices [rows, columns], one behind the other in x, nearly orthogonal, in place:
 * X = x / max(|x|, 1e-30) with the Frobenius norm |x|, then `iterations` times, with G the smaller
 * of X X^T and X^T X:
 *   X = (a I + b G + c G G) X    or    X (a I + b G + c G G)
 * and out = scale * X. (a, b, c) = (3.4445, -4.7750, 2.0315) (Jordan et al. 2024): singular values
 * end between about 0.7 and 1.2, those far below the largest lower. A matrix of zeros stays zeros.
 * dtype is bf16 or fp32; products are summed in fp32, squares of the norm in double. */
enum { HD_NEWTON_ITERATIONS_MAX = 20 };
struct hd_newton_schulz_args {
    void *x; /* [count, rows, columns] */
    void *scratch;
    int64_t count, rows, columns, iterations;
    float scale;
    enum hd_dtype dtype;
};

#endif

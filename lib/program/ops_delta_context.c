/* Gated delta layers whose sequences context-parallel ranks share (kernels/ops_delta.h).
 *
 * A rank has two segments of each sequence, numbers r and 2P-1-r of 2P. A segment depends on those
 * before it through two things alone, whatever their length: the last W - 1 inputs of the
 * convolution, and the rule's state, of which the state after the segment is an affine function.
 *
 *   convolution  One all-gather of the last inputs of all segments; a rank takes those before its
 *                own. Backward gathers the gradients of these halos and adds them to the rows they
 *                came from.
 *   rule         Each rank computes the two matrices of its segments, T and M_own, without knowing
 *                the state before; one all-gather; each rank goes through the matrices of the
 *                segments before its own, and then runs the rule from the right states. Backward
 *                does so with dM_before = T^T dM_after + G, from the last segment on; T is
 *                forward's, kept with the states.
 *
 * The ranks work at the same time; handing the state from rank to rank would let 2P - 1 of 2P
 * segments wait for the one before. Exchanging rows for heads (all-to-all) would move all of q, k,
 * v and results and need as many key heads as ranks; the matrices are H Dk (Dk + Dv) numbers a
 * segment, 4 MiB for 32 heads of 128 channels, and their operations are some 55% of the rule's. */
#include "program/emit_delta.h"

struct hd_emit_segments hd_emit_segments_of(struct hd_emit *e)
{
    const struct hd_rec_shape *shape = &e->rec->shape;
    const int32_t P = e->registry->mesh.sizes.cp;
    const struct hd_zigzag mine = {shape->S * P, P, e->registry->coord.cp};

    if (P == 1 || shape->mode == HD_RECORD_DECODE)
        return (struct hd_emit_segments){.B = shape->B, .S = shape->S};
    return (struct hd_emit_segments){
        .B = 2 * shape->B, .S = shape->S / 2, .position = hd_emit_positions(e, shape->B, &mine)};
}

static bool are_whole(const struct hd_emit_segments *s)
{
    return !s->position.store;
}

/* Emits an all-gather of `rows` rows of each rank over cp and returns the rows of all. */
static struct hd_operand gather_over_cp(struct hd_emit *e, const char *name, struct hd_operand sent,
                                        enum hd_dtype dtype, int64_t rows, int64_t columns)
{
    const struct hd_operand all =
        hd_emit_temp(e, name, dtype, e->registry->mesh.sizes.cp * rows, columns);

    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = HD_GROUP_CP,
                               .count = rows * columns, .dtype = dtype),
                       HD_OPERANDS(comm, .received = all, .sent = sent));
    return all;
}

/* Describes a copy of R rows of N elements, ldo and ldi elements apart. */
struct column_copy {
    int64_t R, N, ldo, ldi;
    enum hd_dtype out, inp;
};

static void copy_numbers(struct hd_emit *e, struct hd_operand out, struct hd_operand inp,
                         struct column_copy c)
{
    (void)hd_emit_copy_columns(e,
                               HD_ARGS(copy_columns, .R = c.R, .N = c.N, .ldo = c.ldo, .ldi = c.ldi,
                                       .factor = 1, .out_dtype = c.out, .inp_dtype = c.inp),
                               HD_OPERANDS(copy_columns, .out = out, .inp = inp));
}

/* ---- convolution ---- */

/* The last rows of segments, [B, columns]: columns = (W-1) N of `row` elements a segment. */
struct tails {
    int64_t columns, row;
};

static struct tails tails_of(const struct hd_op *op, const struct hd_emit_segments *s)
{
    const int64_t N = op->in[0]->dim[1];

    return (struct tails){(op->set.conv_width - 1) * N, s->S * N};
}

/* Returns the rows [B, columns] of the segments before (step -1) or after (step 1) this rank's, of
 * all ranks' rows `sent`; zeros at the ends of a sequence. */
static struct hd_operand take_neighbours(struct hd_emit *e, const struct hd_emit_segments *s,
                                         struct hd_operand sent, int64_t columns,
                                         enum hd_dtype dtype, int step)
{
    const int32_t P = e->registry->mesh.sizes.cp, rank = e->registry->coord.cp;
    const int32_t own[2] = {rank, 2 * P - 1 - rank};
    const struct hd_operand all = gather_over_cp(e, "tails", sent, dtype, s->B, columns);
    const struct hd_operand taken = hd_emit_temp(e, "halo", dtype, s->B, columns);

    if (rank == 0) /* has the first and the last segment */
        (void)hd_emit_zero(
            e, HD_ARGS(zero, .size_bytes = s->B * columns * (int64_t)hd_dtype_size(dtype)),
            HD_OPERANDS(zero, .out = taken));
    for (int half = 0; half < 2; half++) {
        const int32_t n = own[half] + step, from = n < P ? n : 2 * P - 1 - n, at = n < P ? 0 : 1;

        if (n >= 0 && n < 2 * P)
            copy_numbers(
                e, hd_emit_at(taken, half * columns, dtype),
                hd_emit_at(all, (from * s->B + at) * columns, dtype),
                (struct column_copy){s->B / 2, columns, 2 * columns, 2 * columns, dtype, dtype});
    }
    return taken;
}

struct hd_operand hd_emit_conv_halo(struct hd_emit *e, const struct hd_op *op,
                                    const struct hd_emit_segments *s)
{
    const struct hd_tensor *x = op->in[0];
    const struct tails t = tails_of(op, s);
    /* small: kept even if the op is recomputed, which saves another exchange */
    struct hd_operand *halo = &e->frame[HD_FRAME_FORWARD].stats[e->op_index].halo;
    struct hd_operand sent;

    if (are_whole(s) || halo->store)
        return *halo;
    sent = hd_emit_temp(e, "tail", x->dtype, s->B, t.columns);
    copy_numbers(e, sent, hd_emit_at(hd_emit_value(e, x), t.row - t.columns, x->dtype),
                 (struct column_copy){s->B, t.columns, t.columns, t.row, x->dtype, x->dtype});
    *halo = take_neighbours(e, s, sent, t.columns, x->dtype, -1);
    return *halo;
}

void hd_emit_conv_halo_backward(struct hd_emit *e, const struct hd_op *op,
                                const struct hd_emit_segments *s, struct hd_operand dhalo,
                                struct hd_operand dx)
{
    const enum hd_dtype dtype = op->in[0]->dtype;
    const struct tails t = tails_of(op, s);
    const struct hd_operand arrived = take_neighbours(e, s, dhalo, t.columns, HD_F32, 1);
    const struct hd_operand sum = hd_emit_temp(e, "tail_grad", HD_F32, s->B, t.columns);
    const struct hd_operand tail = hd_emit_at(dx, t.row - t.columns, dtype);

    copy_numbers(e, sum, tail,
                 (struct column_copy){s->B, t.columns, t.columns, t.row, HD_F32, dtype});
    (void)hd_emit_add(e, HD_ARGS(add, .N = s->B * t.columns, .dtype = HD_F32),
                      HD_OPERANDS(add, .out = sum, .a = sum, .b = arrived));
    copy_numbers(e, tail, sum,
                 (struct column_copy){s->B, t.columns, t.row, t.columns, dtype, HD_F32});
}

/* ---- gated delta rule ---- */

/* Rows of the matrices of all segments: one for each head and channel of keys. */
static int64_t matrix_rows(const struct hd_op *op, const struct hd_emit_segments *s)
{
    return s->B * op->set.heads * op->set.key_width;
}

/* Emits the gather of all segments' matrices, T and then `Dv` columns, and the way through them;
 * returns the states, or their gradients, [B, H, Dk, Dv]. */
static struct hd_operand walk(struct hd_emit *e, const struct hd_op *op,
                              const struct hd_emit_segments *s, struct hd_operand summary,
                              bool reverse)
{
    const int64_t Dk = op->set.key_width, Dv = op->set.head_width, rows = matrix_rows(op, s);
    const struct hd_operand all = gather_over_cp(e, "summaries", summary, HD_F32, rows, Dk + Dv);
    const struct hd_operand states =
        hd_emit_temp(e, reverse ? "state_grad" : "state", HD_F32, rows, Dv);

    (void)hd_emit_delta_prefix(e,
                               HD_ARGS(delta_prefix, .P = e->registry->mesh.sizes.cp,
                                       .rank = e->registry->coord.cp, .B = s->B / 2,
                                       .H = op->set.heads, .Dk = Dk, .Dv = Dv, .reverse = reverse),
                               HD_OPERANDS(delta_prefix, .state = states, .summaries = all));
    return states;
}

/* Emits a copy of the transitions, rows of Dk columns without gaps. */
static void copy_transitions(struct hd_emit *e, const struct hd_op *op,
                             const struct hd_emit_segments *s, struct hd_operand out,
                             struct hd_operand inp)
{
    const int64_t Dk = op->set.key_width;

    copy_numbers(e, out, inp, (struct column_copy){matrix_rows(op, s), Dk, Dk, Dk, HD_F32, HD_F32});
}

struct hd_operand hd_emit_delta_states(struct hd_emit *e, const struct hd_op *op,
                                       const struct hd_emit_segments *s, struct hd_operand bound)
{
    const struct hd_tensor *qkv = op->in[0];
    const int64_t Dk = op->set.key_width, Dv = op->set.head_width, rows = matrix_rows(op, s);
    struct hd_emit_stats *stats = hd_emit_get_stats(e);
    struct hd_operand summary;

    if (are_whole(s))
        return hd_emit_none();
    summary = hd_emit_temp(e, "summary", HD_F32, rows, Dk + Dv);
    (void)hd_emit_delta_summary(
        e,
        HD_ARGS(delta_summary, .B = s->B, .S = s->S, .G = op->set.kv_heads, .H = op->set.heads,
                .Dk = Dk, .Dv = Dv, .eps = (float)op->set.eps, .dtype = qkv->dtype),
        HD_OPERANDS(delta_summary, .summary = summary, .qkv = hd_emit_value(e, qkv),
                    .gates = stats->gates, .bound = bound, .position = s->position));
    if (e->rec->shape.mode == HD_RECORD_TRAIN) {
        stats->transitions = hd_emit_temp(e, "transitions", HD_F32, rows, Dk);
        copy_transitions(e, op, s, stats->transitions, summary);
    }
    stats->states = walk(e, op, s, summary, false);
    return stats->states;
}

struct hd_operand hd_emit_delta_states_gradient(struct hd_emit *e, const struct hd_op *op,
                                                const struct hd_emit_segments *s,
                                                struct hd_operand bound)
{
    const struct hd_tensor *qkv = op->in[0];
    const int64_t Dk = op->set.key_width, Dv = op->set.head_width, rows = matrix_rows(op, s);
    const struct hd_emit_stats *stats = hd_emit_get_stats(e);
    struct hd_operand summary;

    if (are_whole(s))
        return hd_emit_none();
    summary = hd_emit_temp(e, "summary", HD_F32, rows, Dk + Dv);
    copy_transitions(e, op, s, summary, stats->transitions);
    (void)hd_emit_delta_state_gradient(
        e,
        HD_ARGS(delta_state_gradient, .B = s->B, .S = s->S, .G = op->set.kv_heads,
                .H = op->set.heads, .Dk = Dk, .Dv = Dv, .eps = (float)op->set.eps,
                .dtype = qkv->dtype),
        HD_OPERANDS(delta_state_gradient, .dstate = hd_emit_at(summary, rows * Dk, HD_F32),
                    .dout = hd_emit_grad(e, op->out), .qkv = hd_emit_value(e, qkv),
                    .gates = stats->gates, .bound = bound, .position = s->position));
    return walk(e, op, s, summary, true);
}

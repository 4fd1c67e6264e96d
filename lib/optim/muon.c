#include "optim/muon.h"
#include <stddef.h>

#include "program/matrices.h"

/* A round while it is emitted. */
struct emitted {
    struct hd_emit *e;
    const struct hd_matrix_plan *plan;
    const struct hd_matrix_round *round;
    struct hd_operand flat; /* steps of this rank's shards */
    enum hd_dtype dtype;
};

static void for_shards(struct emitted *x, void (*emit)(struct emitted *x, int bucket))
{
    const struct hd_registry *r = x->e->registry;

    for (int i = x->round->first_bucket; i < x->round->end_bucket; i++)
        if (hd_bucket_has_matrices(r, &r->buckets[i], r->rank)) {
            x->e->unit = r->buckets[i].unit;
            emit(x, i);
        }
}

static struct hd_operand flat_of(const struct emitted *x, int bucket)
{
    const struct hd_registry *r = x->e->registry;

    return hd_emit_at(x->flat, hd_matrix_flat_at(r, x->round, bucket, r->rank), x->dtype);
}

static void emit_momentum(struct emitted *x, int bucket)
{
    const struct hd_bucket *p = &x->e->registry->buckets[bucket];
    const struct hd_optimizer *o = &x->e->registry->optimizer;
    const int64_t begin = p->shard_begin;

    if (p->shard_end > begin)
        (void)hd_emit_momentum(
            x->e,
            HD_ARGS(momentum, .N = p->shard_end - begin, .range_count = p->range_count,
                    .moment_bytes = p->in_blocks ? p->moment_bytes : 0, .momentum = o->momentum,
                    .nesterov = o->nesterov, .dtype = x->dtype),
            HD_OPERANDS(momentum, .m = hd_emit_bucket(x->e, bucket, HD_STATE_MOMENT1, begin),
                        .step = flat_of(x, bucket),
                        .grad = hd_emit_bucket(x->e, bucket, HD_STATE_GRAD, begin),
                        .block = hd_emit_global(x->e, HD_GLOBAL_STEP_STATE),
                        .ranges = hd_emit_bucket(x->e, bucket, HD_STATE_RANGES, 0)));
}

static void emit_weights(struct emitted *x, int bucket)
{
    const struct hd_bucket *p = &x->e->registry->buckets[bucket];
    const int64_t begin = p->shard_begin;

    if (p->shard_end > begin)
        (void)hd_emit_step_along(
            x->e,
            HD_ARGS(step_along, .N = p->shard_end - begin, .range_count = p->range_count,
                    .copy_dtype = p->compute, .dtype = x->dtype),
            HD_OPERANDS(step_along, .weight = hd_emit_bucket(x->e, bucket, HD_STATE_WEIGHT, begin),
                        .copy = p->copied ? hd_emit_bucket(x->e, bucket, HD_STATE_COPY, begin)
                                          : hd_emit_none(),
                        .step = flat_of(x, bucket),
                        .block = hd_emit_global(x->e, HD_GLOBAL_STEP_STATE),
                        .ranges = hd_emit_bucket(x->e, bucket, HD_STATE_RANGES, 0)));
}

/* ---- whole matrices ---- */

/* Returns the first element of a matrix of this rank in the buffer that has its matrices: with one
 * rank the flat one. */
static int64_t place_of(const struct emitted *x, const struct hd_matrix *m)
{
    const struct hd_registry *r = x->e->registry;
    const struct hd_param *p = &r->params[m->param];

    return x->plan->ranks > 1 ? m->at
                              : hd_matrix_flat_at(r, x->round, p->bucket, r->rank) + p->offset +
                                    m->index * m->rows * m->columns;
}

/* Emits the Newton-Schulz iterations of the matrices that this rank owns. Matrices of one parameter that lie one
 * behind the other, such as experts, are one launch. */
static void emit_iterations(struct emitted *x, struct hd_operand matrices)
{
    const struct hd_registry *r = x->e->registry;
    const struct hd_optimizer *o = &r->optimizer;
    const int mine = hd_mesh_find_group(&r->mesh, HD_GROUP_STAGE, r->rank).index;

    for (int64_t i = x->round->first, count; i < x->round->end; i += count) {
        const struct hd_matrix *m = &x->plan->matrices[i];
        const int64_t elements = m->rows * m->columns;

        count = 1;
        if (m->owner != mine)
            continue;
        while (i + count < x->round->end && m[count].owner == mine && m[count].param == m->param &&
               place_of(x, &m[count]) == place_of(x, m) + count * elements)
            count++;
        x->e->unit = r->params[m->param].unit;
        (void)hd_emit_newton_schulz(
            x->e,
            HD_ARGS(newton_schulz, .count = count, .rows = m->rows, .columns = m->columns,
                    .iterations = o->iterations,
                    .scale = hd_optimizer_scale(o, m->rows, m->columns), .dtype = x->dtype),
            HD_OPERANDS(newton_schulz, .x = hd_emit_at(matrices, place_of(x, m), x->dtype)));
    }
}

/* ---- exchanges ---- */

static struct hd_operand table_at(struct hd_emit *e, int64_t at)
{
    struct hd_operand o = hd_emit_global(e, HD_GLOBAL_MATRICES);

    o.offset_bytes = at;
    return o;
}

static void emit_move(struct emitted *x, enum hd_matrix_move move, struct hd_operand out,
                      struct hd_operand inp)
{
    const bool gathers = move == HD_MOVE_SEND || move == HD_MOVE_RETURN;

    if (x->round->move[move].count)
        (void)hd_emit_move_pieces(x->e,
                                  HD_ARGS(move_pieces, .piece_count = x->round->move[move].count,
                                          .N = x->round->move[move].elements, .gathers = gathers,
                                          .dtype = x->dtype),
                                  HD_OPERANDS(move_pieces, .out = out, .inp = inp,
                                              .pieces = table_at(x->e, x->round->move[move].at)));
}

static struct hd_operand rows_for(struct emitted *x, const char *name, int64_t rows)
{
    return hd_emit_temp(x->e, name, x->dtype, rows ? rows : 1, HD_MATRIX_ROW);
}

/* Emits an exchange from one buffer into another: gathers what this rank sends, moves it between
 * ranks unless no rank sends anything to another, and sorts what it received. */
static void emit_matrix_exchange(struct emitted *x, enum hd_matrix_exchange exchange,
                                 struct hd_operand from, struct hd_operand into)
{
    const bool back = exchange == HD_MATRIX_BACK;
    const int64_t sent = x->round->exchange[exchange].sent;
    const int64_t received = x->round->exchange[exchange].received;
    const int64_t moved = x->round->exchange[exchange].moved;
    const int64_t others = x->plan->ranks - 1;
    const struct hd_node_rows rows = {.sent_max = sent,
                                      .received_max = received,
                                      .elements = HD_MATRIX_ROW,
                                      .even = (moved + others - 1) / others,
                                      .moved = moved};
    struct hd_operand out = rows_for(x, "matrices_sent", sent), arrived = out;
    struct hd_operand exceeded = hd_emit_global(x->e, HD_GLOBAL_STEP_STATE);

    exceeded.offset_bytes = offsetof(struct hd_step_state, too_many_rows);
    emit_move(x, back ? HD_MOVE_RETURN : HD_MOVE_SEND, out, from);
    if (moved) {
        arrived = rows_for(x, "matrices_received", received);
        (void)hd_emit_comm(
            x->e,
            HD_ARGS(comm, .kind = HD_COMM_ALL_TO_ALL_V, .group = HD_GROUP_STAGE, .count = received,
                    .dtype = x->dtype, .rows = rows),
            HD_OPERANDS(comm, .received = arrived, .sent = out,
                        .sent_counts = table_at(x->e, x->round->exchange[exchange].counts_at),
                        .exceeded = exceeded));
    }
    emit_move(x, back ? HD_MOVE_TAKE : HD_MOVE_ARRIVE, into, arrived);
}

static void emit_round(struct emitted *x)
{
    const int64_t flat = x->round->flat, owned = x->round->owned;
    struct hd_operand matrices;

    x->flat = hd_emit_temp(x->e, "steps", x->dtype, flat ? flat : HD_MATRIX_ALIGN, 0);
    for_shards(x, emit_momentum);
    if (x->plan->ranks == 1) {
        emit_iterations(x, x->flat);
    } else {
        matrices = hd_emit_temp(x->e, "matrices", x->dtype, owned ? owned : HD_MATRIX_ALIGN, 0);
        emit_matrix_exchange(x, HD_MATRIX_TO_OWNERS, x->flat, matrices);
        emit_iterations(x, matrices);
        emit_matrix_exchange(x, HD_MATRIX_BACK, matrices, x->flat);
    }
    for_shards(x, emit_weights);
}

void hd_muon_emit(struct hd_emit *e, void (*finish)(struct hd_emit *e, int bucket))
{
    const struct hd_registry *r = e->registry;
    struct emitted x = {
        .e = e, .plan = r->matrices, .dtype = r->compute_dtype == HD_F32 ? HD_F32 : HD_BF16};

    for (int i = 0; x.plan && i < x.plan->round_count; i++) {
        x.round = &x.plan->rounds[i];
        emit_round(&x);
        for (int b = x.round->first_bucket; b < x.round->end_bucket; b++) {
            const struct hd_bucket *p = &r->buckets[b];

            e->unit = p->unit;
            if (hd_bucket_has_matrices(r, p, r->rank))
                finish(e, b);
        }
    }
}

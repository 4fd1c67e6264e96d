#include "program/matrices.h"

#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "comm/comm.h"

/* ---- matrices of a stage ---- */

bool hd_bucket_has_matrices(const struct hd_registry *r, const struct hd_bucket *p, int rank)
{
    return p->trainable && hd_rule_row(p->rule)->matrices && hd_bucket_is_held_by(r, p, rank);
}

static int64_t matrices_of(const struct hd_param *p)
{
    return p->dim_count > 2 ? p->shape[0] : 1;
}

/* Returns the number of matrices of a bucket; adds them to `ret_list` unless it is NULL. */
static int64_t list_matrices(const struct hd_registry *r, int bucket, struct hd_matrix *ret_list)
{
    const struct hd_unit *unit = &r->units[r->buckets[bucket].unit];
    int64_t count = 0;

    for (int i = unit->first_param; i < unit->first_param + unit->param_count; i++) {
        const struct hd_param *p = &r->params[i];

        for (int64_t k = 0; p->bucket == bucket && k < matrices_of(p); k++, count++)
            if (ret_list)
                ret_list[count] = (struct hd_matrix){.param = i,
                                                     .index = k,
                                                     .rows = p->shape[p->dim_count - 2],
                                                     .columns = p->shape[p->dim_count - 1]};
    }
    return count;
}

/* ---- owners ---- */

/* Returns the FLOPs of an iteration. */
static double cost_of(const struct hd_matrix *m)
{
    const double n = (double)(m->rows < m->columns ? m->rows : m->columns);

    return n * n * (4 * (double)m->rows * (double)m->columns / n + 2 * n);
}

struct dear {
    double cost;
    int64_t index;
};

static int dearest_first(const void *left, const void *right)
{
    const struct dear *a = left, *b = right;

    if (a->cost != b->cost)
        return a->cost > b->cost ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Returns the rank that is member `member` of the group stage of `rank`. */
static int member_rank(const struct hd_registry *r, int rank, int member)
{
    const struct hd_mesh_group g = hd_mesh_find_group(&r->mesh, HD_GROUP_STAGE, rank);

    return hd_mesh_member(&g, member);
}

/* Returns true if a rank has a part of the matrix by tp and ep; with ZeRO its shard may be
 * elsewhere. */
static bool may_own(const struct hd_registry *r, const struct hd_matrix *m, int rank)
{
    const struct hd_param *p = &r->params[m->param];

    return !p->experts ||
           hd_mesh_find_group(&r->mesh, HD_GROUP_EP, rank).index == m->index / p->local[0];
}

/* Sets the owners of a round's matrices. work: of each rank, [2 ranks] in this round and in all. */
static void choose_owners(const struct hd_registry *r, const struct hd_matrix_plan *plan,
                          const struct hd_matrix_round *round, struct dear *order, double *work)
{
    const int64_t count = round->end - round->first;
    double *all = work + plan->ranks;

    memset(work, 0, (size_t)plan->ranks * sizeof *work);
    for (int64_t i = 0; i < count; i++)
        order[i] = (struct dear){cost_of(&plan->matrices[round->first + i]), round->first + i};
    qsort(order, (size_t)count, sizeof *order, dearest_first);
    for (int64_t i = 0; i < count; i++) {
        struct hd_matrix *m = &plan->matrices[order[i].index];

        m->owner = -1;
        for (int k = 0; k < plan->ranks; k++) {
            const int best = m->owner;

            if (!may_own(r, m, member_rank(r, plan->rank, k)))
                continue;
            if (best < 0 || work[k] < work[best] || (work[k] == work[best] && all[k] < all[best]))
                m->owner = k;
        }
        work[m->owner] += order[i].cost;
        all[m->owner] += order[i].cost;
    }
}

/* ---- parts ---- */

/* Part of a matrix that one rank has. */
struct matrix_part {
    struct hd_piece piece; /* packed is not set; origin counts from the matrix's first element */
    int64_t flat;          /* first element in the rank's shard of the bucket */
};

/* Finds the part of a matrix that a rank has. Returns false if it has none. */
static bool find_part(const struct hd_registry *r, const struct hd_matrix *m, int rank,
                      struct matrix_part *ret_part)
{
    const struct hd_param *p = &r->params[m->param];
    const int rows = p->dim_count - 2, columns = p->dim_count - 1;
    const struct hd_range shard =
        hd_bucket_range(r, &r->buckets[p->bucket], HD_STATE_MOMENT1, rank);
    const int64_t elements = p->local[rows] * p->local[columns];
    int64_t start[HD_PARAM_DIMS_MAX], real[HD_PARAM_DIMS_MAX], base = p->offset, begin, end;

    hd_param_box(p, hd_param_shard_index(p, &r->mesh, rank), start, real);
    if (p->dim_count > 2) {
        if (m->index < start[0] || m->index >= start[0] + p->local[0])
            return false;
        base += (m->index - start[0]) * elements;
    }
    begin = shard.begin > base ? shard.begin : base;
    end = shard.end < base + elements ? shard.end : base + elements;
    if (begin >= end)
        return false;
    *ret_part = (struct matrix_part){.piece = {.begin = begin - base,
                                               .count = end - begin,
                                               .origin = start[rows] * m->columns + start[columns],
                                               .columns = p->local[columns],
                                               .pitch = m->columns},
                                     .flat = begin - shard.begin};
    return true;
}

/* Returns true if `rank`, which has a part of the matrix, is the one that sends it to the owner: of
 * the ranks with equal parts the one in the owner's copy of the optimizer, and the first of those tp
 * ranks that have equal parts. */
static bool sends(const struct hd_registry *r, const struct hd_matrix *m, int rank, int owner)
{
    const struct hd_param *p = &r->params[m->param];
    const int32_t copies = p->tp_axis < 0 ? r->mesh.sizes.tp : p->tp_copies;
    const int32_t block = r->buckets[p->bucket].shard_count ? r->mesh.sizes.zero_shard : 1;
    const int32_t mine = hd_mesh_find_group(&r->mesh, HD_GROUP_DP_CP, rank).index;
    const int32_t theirs = hd_mesh_find_group(&r->mesh, HD_GROUP_DP_CP, owner).index;

    return mine / block == theirs / block && hd_mesh_coord_of(&r->mesh, rank).tp % copies == 0;
}

static int64_t whole_rows(int64_t elements)
{
    return (elements + HD_MATRIX_ROW - 1) / HD_MATRIX_ROW;
}

int64_t hd_matrix_flat_at(const struct hd_registry *r, const struct hd_matrix_round *round,
                          int bucket, int rank)
{
    int64_t at = 0;

    for (int i = round->first_bucket; i < bucket; i++) {
        const struct hd_bucket *p = &r->buckets[i];

        if (hd_bucket_has_matrices(r, p, rank)) {
            const struct hd_range shard = hd_bucket_range(r, p, HD_STATE_MOMENT1, rank);

            at += hd_round_up(shard.end - shard.begin, HD_MATRIX_ALIGN);
        }
    }
    return at;
}

/* ---- one round ---- */

/* Adds a piece to a move, and writes it if `tables` is not NULL. */
static void add_piece(struct hd_matrix_round *round, enum hd_matrix_move move,
                      const struct hd_piece *piece, char *tables)
{
    if (tables)
        ((struct hd_piece *)(tables + round->move[move].at))[round->move[move].count] = *piece;
    round->move[move].count++;
    round->move[move].elements += piece->count;
}

/* A rank's view of a round while its moves are counted or written. */
struct round_walk {
    const struct hd_registry *r;
    const struct hd_matrix_plan *plan;
    struct hd_matrix_round *round;
    char *tables; /* NULL: only counts */
    int mine;     /* index of this rank in group stage */
};

/* Lists the parts that this rank sends to, and receives from, its peer in both exchanges, in the
 * order of matrices, which is the same on both sides. */
static void walk_peer(struct round_walk *w, int peer)
{
    const struct hd_registry *r = w->r;
    const int me = w->plan->rank, other = member_rank(r, me, peer);
    struct hd_matrix_round *round = w->round;
    int64_t rows[HD_MATRIX_EXCHANGES] = {0};

    for (int64_t i = round->first; i < round->end; i++) {
        const struct hd_matrix *m = &w->plan->matrices[i];
        const int bucket = r->params[m->param].bucket;
        struct matrix_part part;
        struct hd_piece piece;

        if (m->owner == peer && find_part(r, m, me, &part)) { /* flat <-> what travels */
            piece = (struct hd_piece){.count = part.piece.count,
                                      .origin = hd_matrix_flat_at(r, round, bucket, me) + part.flat,
                                      .columns = part.piece.count,
                                      .pitch = part.piece.count};
            piece.packed = round->exchange[HD_MATRIX_BACK].received * HD_MATRIX_ROW;
            add_piece(round, HD_MOVE_TAKE, &piece, w->tables);
            round->exchange[HD_MATRIX_BACK].received += whole_rows(piece.count);
            if (sends(r, m, me, other)) {
                piece.packed = round->exchange[HD_MATRIX_TO_OWNERS].sent * HD_MATRIX_ROW;
                add_piece(round, HD_MOVE_SEND, &piece, w->tables);
                round->exchange[HD_MATRIX_TO_OWNERS].sent += whole_rows(piece.count);
                rows[HD_MATRIX_TO_OWNERS] += whole_rows(piece.count);
            }
        }
        if (m->owner == w->mine && find_part(r, m, other, &part)) { /* matrices <-> what travels */
            piece = part.piece;
            piece.origin += m->at;
            piece.packed = round->exchange[HD_MATRIX_BACK].sent * HD_MATRIX_ROW;
            add_piece(round, HD_MOVE_RETURN, &piece, w->tables);
            round->exchange[HD_MATRIX_BACK].sent += whole_rows(piece.count);
            rows[HD_MATRIX_BACK] += whole_rows(piece.count);
            if (sends(r, m, other, me)) {
                piece.packed = round->exchange[HD_MATRIX_TO_OWNERS].received * HD_MATRIX_ROW;
                add_piece(round, HD_MOVE_ARRIVE, &piece, w->tables);
                round->exchange[HD_MATRIX_TO_OWNERS].received += whole_rows(piece.count);
            }
        }
    }
    for (int k = 0; w->tables && k < HD_MATRIX_EXCHANGES; k++)
        ((int32_t *)(w->tables + round->exchange[k].counts_at))[peer] = (int32_t)rows[k];
}

static void walk_round(struct round_walk *w)
{
    for (int k = 0; k < HD_MATRIX_MOVES; k++)
        w->round->move[k].count = w->round->move[k].elements = 0;
    for (int k = 0; k < HD_MATRIX_EXCHANGES; k++)
        w->round->exchange[k].sent = w->round->exchange[k].received = 0;
    for (int peer = 0; peer < w->plan->ranks; peer++)
        walk_peer(w, peer);
}

/* Counts the rows that all ranks together send to other ranks. */
static void count_moved(const struct hd_registry *r, const struct hd_matrix_plan *plan,
                        struct hd_matrix_round *round)
{
    for (int64_t i = round->first; i < round->end; i++) {
        const struct hd_matrix *m = &plan->matrices[i];
        const int owner = member_rank(r, plan->rank, m->owner);

        for (int k = 0; k < plan->ranks; k++) {
            const int rank = member_rank(r, plan->rank, k);
            struct matrix_part part;

            if (k == m->owner || !find_part(r, m, rank, &part))
                continue;
            round->exchange[HD_MATRIX_BACK].moved += whole_rows(part.piece.count);
            if (sends(r, m, rank, owner))
                round->exchange[HD_MATRIX_TO_OWNERS].moved += whole_rows(part.piece.count);
        }
    }
}

static int64_t take_table(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;

    *end += hd_tensor_align(bytes);
    return at;
}

/* Places the matrices that this rank owns, and counts what a round moves. */
static void lay_out_round(const struct hd_registry *r, struct hd_matrix_plan *plan,
                          struct hd_matrix_round *round)
{
    const int mine = hd_mesh_find_group(&r->mesh, HD_GROUP_STAGE, plan->rank).index;
    struct round_walk w = {r, plan, round, NULL, mine};

    round->flat = hd_matrix_flat_at(r, round, round->end_bucket, plan->rank);
    if (plan->ranks == 1)
        return;
    for (int64_t i = round->first; i < round->end; i++) {
        struct hd_matrix *m = &plan->matrices[i];

        m->at = m->owner == mine ? round->owned : -1;
        if (m->owner == mine)
            round->owned += hd_round_up(m->rows * m->columns, HD_MATRIX_ALIGN);
    }
    walk_round(&w);
    count_moved(r, plan, round);
    for (int k = 0; k < HD_MATRIX_MOVES; k++)
        round->move[k].at =
            take_table(&plan->table_bytes, round->move[k].count * (int64_t)sizeof(struct hd_piece));
    for (int k = 0; k < HD_MATRIX_EXCHANGES; k++)
        round->exchange[k].counts_at =
            take_table(&plan->table_bytes, plan->ranks * (int64_t)sizeof(int32_t));
}

/* ---- all rounds ---- */

/* Divides the buckets with matrices into rounds. Returns their number; sets ret_rounds unless it is
 * NULL. */
static int divide(const struct hd_registry *r, const struct hd_matrix_plan *plan,
                  struct hd_matrix_round *ret_rounds)
{
    int64_t first = 0, end = 0;
    int count = 0, first_bucket = 0;

    for (int i = 0; i < r->bucket_count; i++) {
        const bool counts = hd_bucket_has_matrices(r, &r->buckets[i], plan->rank);

        end += counts ? list_matrices(r, i, NULL) : 0;
        if (end - first < plan->ranks && (i + 1 < r->bucket_count || end == first))
            continue;
        if (ret_rounds)
            ret_rounds[count] = (struct hd_matrix_round){
                .first_bucket = first_bucket, .end_bucket = i + 1, .first = first, .end = end};
        count++;
        first = end;
        first_bucket = i + 1;
    }
    return count;
}

enum hd_status hd_matrix_plan_make(const struct hd_registry *r, int rank,
                                   struct hd_matrix_plan **ret_plan)
{
    struct hd_matrix_plan *plan = hd_arena_alloc(r->arena, sizeof *plan);
    struct dear *order;
    double *work;

    if (!plan)
        return hd_err(HD_NO_MEMORY, "no memory to plan the update of matrices");
    *plan = (struct hd_matrix_plan){
        .rank = rank, .ranks = hd_mesh_find_group(&r->mesh, HD_GROUP_STAGE, rank).size};
    if (plan->ranks > HD_COMM_ROW_MEMBERS_MAX)
        return hd_err(HD_INVALID,
                      "train.optimizer: muon sends matrices between the ranks of a pipeline stage, "
                      "which are %d here (dp x cp x tp), of at most %d; use a larger parallel.pp, "
                      "fewer devices, or adamw or lion",
                      plan->ranks, (int)HD_COMM_ROW_MEMBERS_MAX);
    for (int i = 0; i < r->bucket_count; i++)
        if (hd_bucket_has_matrices(r, &r->buckets[i], rank))
            plan->count += list_matrices(r, i, NULL);
    plan->round_count = divide(r, plan, NULL);
    plan->matrices = hd_arena_array(r->arena, (size_t)plan->count + 1, sizeof *plan->matrices);
    plan->rounds = hd_arena_array(r->arena, (size_t)plan->round_count + 1, sizeof *plan->rounds);
    order = hd_arena_array(r->arena, (size_t)plan->count + 1, sizeof *order);
    work = hd_arena_array(r->arena, 2 * (size_t)plan->ranks, sizeof *work);
    if (!plan->matrices || !plan->rounds || !order || !work)
        return hd_err(HD_NO_MEMORY, "no memory to plan the update of matrices");
    memset(work, 0, 2 * (size_t)plan->ranks * sizeof *work);
    (void)divide(r, plan, plan->rounds);
    for (int i = 0, at = 0; i < r->bucket_count; i++)
        if (hd_bucket_has_matrices(r, &r->buckets[i], rank))
            at += (int)list_matrices(r, i, &plan->matrices[at]);
    for (int i = 0; i < plan->round_count; i++) {
        choose_owners(r, plan, &plan->rounds[i], order, work);
        lay_out_round(r, plan, &plan->rounds[i]);
    }
    *ret_plan = plan;
    return HD_OK;
}

void hd_matrix_plan_fill(const struct hd_registry *r, const struct hd_matrix_plan *plan,
                         void *ret_tables)
{
    memset(ret_tables, 0, (size_t)plan->table_bytes);
    for (int i = 0; plan->ranks > 1 && i < plan->round_count; i++) {
        struct hd_matrix_round round = plan->rounds[i];
        struct round_walk w = {r, plan, &round, ret_tables,
                               hd_mesh_find_group(&r->mesh, HD_GROUP_STAGE, plan->rank).index};

        walk_round(&w);
    }
}

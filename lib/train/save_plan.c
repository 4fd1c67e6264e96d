#include "train/save_plan.h"

#include <stdlib.h>

const enum hd_state_kind hd_saved_kinds[HD_SAVED_KINDS] = {HD_STATE_WEIGHT, HD_STATE_MOMENT1,
                                                           HD_STATE_MOMENT2, HD_STATE_EMA};

bool hd_saved_kind_is_of(const struct hd_registry *registry, const struct hd_param *param, int kind)
{
    if (kind == HD_SAVED_EMA)
        return registry->ema_rate > 0;
    return kind <= hd_rule_row(param->rule)->moments;
}

/* Returns the number of elements of a parameter's shard without the padding at its end. */
static int64_t real_elements(const struct hd_param *p, int share)
{
    int64_t start[HD_PARAM_DIMS_MAX], real[HD_PARAM_DIMS_MAX], elements = 1;

    hd_param_box(p, share, start, real);
    for (int d = 0; d < p->dim_count; d++)
        elements *= real[d];
    return elements;
}

struct hd_range hd_save_plan_piece(const struct hd_registry *r, const struct hd_param *p, int kind,
                                   int rank)
{
    struct hd_range piece = hd_bucket_range(r, &r->buckets[p->bucket], hd_saved_kinds[kind], rank);
    const int64_t real = real_elements(p, hd_param_shard_index(p, &r->mesh, rank));

    piece.begin = piece.begin > p->offset ? piece.begin - p->offset : 0;
    piece.end = piece.end > p->offset ? piece.end - p->offset : 0;
    if (piece.end > real)
        piece.end = real;
    return piece;
}

/* Range of elements (piece) of one kind of state of one parameter that one rank has. */
struct holder {
    int share, rank;
    struct hd_range piece;
};

/* Sorts ranks with the same piece next to each other, the lowest first. */
static int by_piece(const void *left, const void *right)
{
    const struct holder *a = left, *b = right;

    if (a->share != b->share)
        return a->share < b->share ? -1 : 1;
    if (a->piece.begin != b->piece.begin)
        return a->piece.begin < b->piece.begin ? -1 : 1;
    if (a->piece.end != b->piece.end)
        return a->piece.end < b->piece.end ? -1 : 1;
    return a->rank - b->rank;
}

static bool is_same_piece(const struct holder *a, const struct holder *b)
{
    return a->share == b->share && a->piece.begin == b->piece.begin && a->piece.end == b->piece.end;
}

/* Picks the writer of each piece: sets ret_owner[rank - first] of the lowest rank that has the
 * piece to the rank, among those that have it, with the fewest bytes so far; to -1 for all other
 * ranks. */
static void pick_savers(struct holder *holders, int count, int first, const int64_t *bytes,
                        int *ret_owner)
{
    for (int i = 0, end; i < count; i = end) {
        int owner = holders[i].rank;

        for (end = i; end < count && is_same_piece(&holders[end], &holders[i]); end++) {
            if (bytes[holders[end].rank] < bytes[owner])
                owner = holders[end].rank;
            ret_owner[holders[end].rank - first] = -1;
        }
        if (holders[i].piece.begin < holders[i].piece.end)
            ret_owner[holders[i].rank - first] = owner;
    }
}

enum hd_status hd_save_plan_assign(const struct hd_registry *r, struct hd_arena *arena,
                                   hd_put_entry_fn *put, void *context)
{
    const struct hd_mesh *mesh = &r->mesh;
    const int ranks = mesh->world / mesh->sizes.pp; /* ranks of one stage */
    int64_t *bytes = hd_arena_array(arena, (size_t)mesh->world, sizeof *bytes);
    struct holder *holders = hd_arena_array(arena, (size_t)ranks, sizeof *holders);
    int *owner = hd_arena_array(arena, (size_t)ranks, sizeof *owner);

    if (!bytes || !holders || !owner)
        return hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint");
    bytes[0] = hd_save_plan_buffers_bytes(r);
    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        const int first = r->buckets[p->bucket].stage * ranks;
        const bool omitted = (r->omits_frozen || p->quant) && !p->state;

        for (int k = 0; k < HD_SAVED_KINDS; k++) {
            if (p->trainable ? !hd_saved_kind_is_of(r, p, k) : k != HD_SAVED_WEIGHT || omitted)
                continue;
            for (int w = 0; w < ranks; w++)
                holders[w] = (struct holder){hd_param_shard_index(p, mesh, first + w), first + w,
                                             hd_save_plan_piece(r, p, k, first + w)};
            qsort(holders, (size_t)ranks, sizeof *holders, by_piece);
            pick_savers(holders, ranks, first, bytes, owner);
            for (int w = 0; w < ranks; w++) {
                struct hd_range piece;

                if (owner[w] < 0)
                    continue;
                piece = hd_save_plan_piece(r, p, k, first + w);
                bytes[owner[w]] += (piece.end - piece.begin) * (int64_t)sizeof(float);
                put(context, owner[w], i, k, piece);
            }
        }
    }
    return HD_OK;
}

int64_t hd_save_plan_buffers_bytes(const struct hd_registry *registry)
{
    return hd_registry_buffers_count(registry) * (int64_t)sizeof(float);
}

static void add_bytes(void *context, int owner, int param, int kind, struct hd_range piece)
{
    int64_t *bytes = context;

    (void)param, (void)kind;
    bytes[owner] += (piece.end - piece.begin) * (int64_t)sizeof(float);
}

enum hd_status hd_save_plan_bytes(const struct hd_registry *registry, struct hd_arena *arena,
                                  int64_t **ret_bytes)
{
    *ret_bytes = hd_arena_array(arena, (size_t)registry->mesh.world, sizeof **ret_bytes);
    if (!*ret_bytes)
        return hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint");
    (*ret_bytes)[0] = hd_save_plan_buffers_bytes(registry);
    return hd_save_plan_assign(registry, arena, add_bytes, *ret_bytes);
}

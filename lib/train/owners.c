#include "train/owners.h"

const enum hd_state_kind hd_saved_kinds[HD_SAVED_KINDS] = {HD_STATE_WEIGHT, HD_STATE_MOMENT1,
                                                           HD_STATE_MOMENT2};

/* Elements of a share, without padding. Padding is the end of the share. */
static int64_t real_elements(const struct hd_param *p, int share)
{
    int64_t start[HD_PARAM_DIMS_MAX], real[HD_PARAM_DIMS_MAX], elements = 1;

    hd_param_box(p, share, start, real);
    for (int d = 0; d < p->dim_count; d++)
        elements *= real[d];
    return elements;
}

struct hd_range hd_owners_piece(const struct hd_registry *r, const struct hd_param *p, int kind,
                                int rank)
{
    struct hd_range piece = hd_part_range(r, &r->parts[p->part], hd_saved_kinds[kind], rank);
    const int64_t real = real_elements(p, hd_param_share_of(p, &r->mesh, rank));

    piece.begin = piece.begin > p->offset ? piece.begin - p->offset : 0;
    piece.end = piece.end > p->offset ? piece.end - p->offset : 0;
    if (piece.end > real)
        piece.end = real;
    return piece;
}

static bool has_piece(const struct hd_registry *r, const struct hd_param *p, int kind, int rank,
                      int share, struct hd_range piece)
{
    const struct hd_range other = hd_owners_piece(r, p, kind, rank);

    return hd_param_share_of(p, &r->mesh, rank) == share && other.begin == piece.begin &&
           other.end == piece.end;
}

/* The rank with the fewest bytes so far among the ranks of `stage` that have the piece; -1: a rank
 * lower than `rank` has it, too, and the piece got its owner when that rank was asked for. */
static int pick_owner(const struct hd_registry *r, const struct hd_param *p, int kind, int rank,
                      const struct hd_range *stage, const int64_t *bytes)
{
    const struct hd_range piece = hd_owners_piece(r, p, kind, rank);
    const int share = hd_param_share_of(p, &r->mesh, rank);
    int owner = rank;

    for (int w = (int)stage->begin; w < stage->end; w++) {
        if (!has_piece(r, p, kind, w, share, piece))
            continue;
        if (w < rank)
            return -1;
        if (bytes[w] < bytes[owner])
            owner = w;
    }
    return owner;
}

enum hd_status hd_owners_assign(const struct hd_registry *r, struct hd_arena *arena,
                                hd_put_entry_fn *put, void *context)
{
    const struct hd_mesh *mesh = &r->mesh;
    const int ranks = mesh->world / mesh->sizes.pp; /* of a stage */
    int64_t *bytes = hd_arena_array(arena, (size_t)mesh->world, sizeof *bytes);

    if (!bytes)
        return hd_err(HD_NO_MEMORY, "no memory to plan a checkpoint");
    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        const int64_t first = (int64_t)r->parts[p->part].stage * ranks;
        const struct hd_range stage = {first, first + ranks};

        for (int k = 0; k < HD_SAVED_KINDS && (k == 0 || p->trainable); k++)
            for (int w = (int)stage.begin; w < stage.end; w++) {
                const struct hd_range piece = hd_owners_piece(r, p, k, w);
                const int owner =
                    piece.begin < piece.end ? pick_owner(r, p, k, w, &stage, bytes) : -1;

                if (owner < 0)
                    continue;
                bytes[owner] += (piece.end - piece.begin) * (int64_t)sizeof(float);
                put(context, owner, i, k, piece);
            }
    }
    return HD_OK;
}

struct own_bytes {
    int rank;
    int64_t bytes;
};

static void add_own(void *context, int owner, int param, int kind, struct hd_range piece)
{
    struct own_bytes *own = context;

    (void)param, (void)kind;
    if (owner == own->rank)
        own->bytes += (piece.end - piece.begin) * (int64_t)sizeof(float);
}

enum hd_status hd_owners_bytes(const struct hd_registry *registry, struct hd_arena *arena,
                               int64_t *ret_bytes)
{
    struct own_bytes own = {.rank = registry->rank};
    const enum hd_status st = hd_owners_assign(registry, arena, add_own, &own);

    *ret_bytes = own.bytes;
    return st;
}

#include "plan/classes.h"

#include <string.h>

#include "program/matrices.h"

/* The numbers on which a rank's programs depend; ranks with equal numbers run equal programs. */
struct class_key {
    int64_t *numbers;
    int count, capacity;
};

/* The classes of one stage; programs: for each class, the index of its key in finder.programs. */
struct stage_classes {
    int32_t *programs;
    int count, capacity;
};

struct finder {
    const struct hd_rank_program_shared *shared;
    struct hd_arena arena;        /* memory of the keys and of the classes by stage */
    struct stage_classes *stages; /* [pp] classes of each pipeline stage */
    int32_t *of; /* [world] index of each rank's class among those of its pipeline stage */
    /* [program_count] the different keys of all pipeline stages' ranks */
    struct class_key *programs;
    int program_count, program_capacity;
    struct class_key key; /* key of the current rank; its memory is reused for every rank */
};

static void add_number(struct finder *f, int64_t number)
{
    int64_t *numbers = hd_arena_grow(&f->arena, f->key.numbers, f->key.count, &f->key.capacity,
                                     sizeof *f->key.numbers);

    if (!numbers)
        return; /* the allocation failed; hd_arena_failed reports it */
    f->key.numbers = numbers;
    numbers[f->key.count++] = number;
}

/* ---- facts that a rank's programs depend on ---- */

/* Adds to the rank's key the number of query-key pairs in each block of keys, in the order in which
 * the rank attends to them; for model blocks without the window, and with it. */
static void add_attention(struct finder *f, const struct hd_mesh_coord *c)
{
    const int32_t P = f->shared->mesh.sizes.cp;
    const struct hd_model_config *model = &f->shared->config;
    /* the program takes a chunk for a window of its length */
    const int64_t S = f->shared->job.context, window = model->window ? model->window : model->chunk;

    for (int32_t step = 0; P > 1 && step < P; step++) {
        const struct hd_zigzag mine = {S, P, c->cp}, theirs = {S, P, (c->cp - step + P) % P};

        add_number(f, hd_zigzag_pairs(&mine, &theirs, true, 0));
        if (window > 0)
            add_number(f, hd_zigzag_pairs(&mine, &theirs, true, window));
    }
}

/* Adds to the rank's key its place among the ranks that share sequences: by it a rank takes the
 * states of gated delta layers, or the inputs of convolutions, before and after its segments. */
static void add_place(struct finder *f, const struct hd_mesh_coord *c)
{
    const struct hd_model_config *model = &f->shared->config;

    if (f->shared->mesh.sizes.cp > 1 && (model->delta.value_heads || model->conv_width))
        add_number(f, c->cp);
}

/* Adds to the rank's key the number of dp indices, each with its own samples, that its
 * expert-parallel group has. */
static void add_experts(struct finder *f, const struct hd_mesh_coord *c)
{
    const int64_t cp = f->shared->mesh.sizes.cp, ep = f->shared->mesh.sizes.ep;
    const int64_t first = (c->dp * cp + c->cp) / ep * ep;

    if (ep > 1)
        add_number(f, (first + ep - 1) / cp - first / cp);
}

/* Adds to the rank's key the part of a bucket's segment that lies in the rank's shard. The gradient
 * norm sums squares in chunks of fixed size, which depend on the offset at which that part
 * begins. */
static void add_segment(struct finder *f, const struct hd_bucket *p, const struct hd_segment *s)
{
    const int64_t begin = s->begin > p->shard_begin ? s->begin : p->shard_begin;
    const int64_t end = s->end < p->shard_end ? s->end : p->shard_end;

    add_number(f, s->owns_norm);
    add_number(f, end > begin ? end - begin : 0);
    add_number(f, end > begin ? begin % HD_GRAD_CHUNK : 0);
}

/* Adds a bucket to the rank's key. counts: the rank's index in the reduce group is 0, so it counts
 * the bucket in the gradient norm. */
static void add_bucket(struct finder *f, const struct hd_registry *r, int number, bool counts)
{
    const struct hd_bucket *p = &r->buckets[number];
    const struct hd_unit *unit = &r->units[p->unit];

    add_number(f, p->count);
    add_number(f, p->shard_count);
    add_number(f, p->shard_end - p->shard_begin);
    add_number(f, p->range_count);
    add_number(f, p->moment_bytes);
    add_number(f, p->trainable);
    add_number(f, counts);
    for (int k = 0; k < p->segment_count; k++)
        add_segment(f, p, &p->segments[k]);
    for (int i = unit->first_param; i < unit->first_param + unit->param_count; i++)
        for (int d = 0; r->params[i].bucket == number && d < r->params[i].dim_count; d++)
            /* size of the dimension without the padding of the vocabulary */
            add_number(f, r->params[i].real[d]);
}

/* Adds to the rank's key the units of each chunk of its pipeline stage, and the kind of each
 * block. */
static void add_chunks(struct finder *f, const struct hd_rank_program_shared *s, int32_t stage)
{
    const int32_t each = s->pipeline.chunks / s->pipeline.stages;

    for (int32_t k = 0; k < each; k++) {
        const int32_t chunk = hd_pipeline_chunk(&s->pipeline, stage, k);
        const struct hd_units u = s->units[chunk];

        add_number(f,
                   /* backward ends after this chunk, or within it */
                   s->order.frozen > 0 && chunk <= s->order.frozen);
        add_number(f, u.first == HD_UNIT_EMBEDDING);
        add_number(f, u.end - u.first);
        for (int unit = u.first; unit < u.end; unit++)
            add_number(f, unit > HD_UNIT_EMBEDDING && unit <= s->config.L
                              ? hd_model_layer_kind(&s->config, unit - HD_UNIT_FIRST_BLOCK)
                              : -1);
    }
}

/* Adds to the rank's key what its exchanges of matrices move, and the matrices that it owns. */
static enum hd_status add_matrices(struct finder *f, const struct hd_registry *r, int32_t rank)
{
    struct hd_matrix_plan *plan;
    enum hd_status st;
    int mine;

    if (!r->matrices)
        return HD_OK;
    st = hd_matrix_plan_make(r, rank, &plan);
    if (st)
        return st;
    mine = hd_mesh_find_group(&r->mesh, HD_GROUP_STAGE, rank).index;
    for (int i = 0; i < plan->round_count; i++) {
        const struct hd_matrix_round *round = &plan->rounds[i];

        for (int k = 0; k < HD_MATRIX_EXCHANGES; k++) {
            add_number(f, round->exchange[k].sent);
            add_number(f, round->exchange[k].received);
        }
        for (int k = 0; k < HD_MATRIX_MOVES; k++) {
            add_number(f, round->move[k].count);
            add_number(f, round->move[k].elements);
        }
        for (int64_t k = round->first; k < round->end; k++) {
            const struct hd_matrix *m = &plan->matrices[k];

            if (m->owner != mine)
                continue;
            add_number(f, m->rows);
            add_number(f, m->columns);
            add_number(f, k > round->first && m[-1].owner == mine && m[-1].param == m->param);
        }
    }
    return HD_OK;
}

/* Sets f->key to the key of the rank at these coordinates. The registry may be that of another
 * stage: what a bucket contains does not depend on the stage, only which ranks hold it. */
static enum hd_status make_key(struct finder *f, const struct hd_registry *r,
                               struct hd_mesh_coord c)
{
    const int32_t rank = hd_mesh_rank(&f->shared->mesh, c);

    f->key.count = 0;
    add_number(f, c.tp == 0); /* whether this rank counts the loss */
    add_number(f, f->shared->snapshot_bytes ? f->shared->snapshot_bytes[rank] : 0);
    add_attention(f, &c);
    add_place(f, &c);
    add_experts(f, &c);
    add_chunks(f, f->shared, c.pp);
    if (f->shared->frozen) {
        add_chunks(f, f->shared->frozen, c.pp);
        add_number(
            f,
            c.tp); /* its vocabulary may be padded on other ranks than those of the model that trains */
        add_number(f,
                   c.pp == hd_pipeline_stage(&f->shared->pipeline, f->shared->pipeline.chunks - 1));
    }
    for (int i = 0; i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];
        const bool counts = hd_mesh_find_group(&f->shared->mesh, p->reduce_group, rank).index == 0;

        if (hd_bucket_is_held_by(r, p, rank))
            add_bucket(f, r, i, counts && p->stage == c.pp);
    }
    return add_matrices(f, r, rank);
}

/* ---- classes ---- */

/* Returns the index of the current key among those of all ranks so far; adds it if it is new. Ranks
 * with equal keys run equal programs. */
static int32_t find_programs(struct finder *f)
{
    const size_t size = (size_t)f->key.count * sizeof *f->key.numbers;
    struct class_key *keys;

    for (int i = 0; i < f->program_count; i++)
        if (f->programs[i].count == f->key.count &&
            memcmp(f->programs[i].numbers, f->key.numbers, size) == 0)
            return i;
    keys =
        hd_arena_grow(&f->arena, f->programs, f->program_count, &f->program_capacity, sizeof *keys);
    if (!keys)
        return 0;
    f->programs = keys;
    keys[f->program_count] = f->key; /* passes ownership of the key's memory to the array */
    f->key = (struct class_key){0};
    return f->program_count++;
}

/* Returns the index of the stage's class whose key equals the current one; adds a class if there is
 * none. */
static int32_t find_stage_class(struct finder *f, struct stage_classes *stage)
{
    const int32_t programs = find_programs(f);
    int32_t *all;

    for (int i = 0; i < stage->count; i++)
        if (stage->programs[i] == programs)
            return i;
    all = hd_arena_grow(&f->arena, stage->programs, stage->count, &stage->capacity, sizeof *all);
    if (!all)
        return 0;
    stage->programs = all;
    all[stage->count] = programs;
    return stage->count++;
}

/* Assigns a class to each rank with this tp index. What the ranks of all other coordinates have
 * declared is equal, so parameters are declared once. */
static enum hd_status sort_ranks(struct finder *f, int32_t tp)
{
    const struct hd_mesh *mesh = &f->shared->mesh;
    const int32_t ranks = mesh->world / mesh->sizes.pp;
    struct hd_registry registry;
    struct hd_arena arena;
    struct hd_model model;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_rank_program_declare(f->shared, hd_mesh_rank(mesh, (struct hd_mesh_coord){.tp = tp}),
                                 &arena, &registry, &model);
    for (int32_t rank = 0; !st && rank < ranks; rank++) {
        struct hd_mesh_coord c = hd_mesh_coord_of(mesh, rank);

        if (c.tp != tp)
            continue;
        hd_registry_move(&registry, rank);
        for (c.pp = 0; !st && c.pp < mesh->sizes.pp; c.pp++) {
            st = make_key(f, &registry, c);
            f->of[hd_mesh_rank(mesh, c)] = find_stage_class(f, &f->stages[c.pp]);
        }
    }
    hd_arena_done(&arena);
    return st;
}

/* Numbers the classes of all pipeline stages in the order of their lowest ranks. */
static void number_classes(const struct finder *f, struct hd_classes *classes)
{
    const int32_t ranks = f->shared->mesh.world / f->shared->mesh.sizes.pp; /* ranks of one stage */
    int32_t end = 0, numbered;

    for (int32_t stage = 0; stage < f->shared->mesh.sizes.pp; stage++) {
        numbered = 0;
        for (int32_t rank = stage * ranks; rank < (stage + 1) * ranks; rank++) {
            int32_t known = end;

            while (known < end + numbered && f->of[classes->lowest[known]] != f->of[rank])
                known++;
            classes->of[rank] = known;
            if (known == end + numbered)
                classes->lowest[end + numbered++] = rank;
        }
        end += numbered;
    }
    classes->count = end;
}

/* Finds, for each class, the first class with equal programs in any stage. */
static void find_alike(const struct finder *f, struct hd_classes *classes)
{
    const int32_t ranks = f->shared->mesh.world / f->shared->mesh.sizes.pp; /* ranks of one stage */

    for (int32_t i = 0; i < classes->count; i++) {
        const int32_t rank = classes->lowest[i];
        const int32_t programs = f->stages[rank / ranks].programs[f->of[rank]];
        int32_t k = 0;

        for (; k < i; k++) {
            const int32_t other = classes->lowest[k];

            if (f->stages[other / ranks].programs[f->of[other]] == programs)
                break;
        }
        classes->like[i] = k;
    }
}

enum hd_status hd_classes_find(const struct hd_rank_program_shared *shared, struct hd_arena *arena,
                               struct hd_classes *ret_classes)
{
    const struct hd_mesh *mesh = &shared->mesh;
    const size_t world = (size_t)mesh->world;
    struct finder f = {.shared = shared};
    enum hd_status st = HD_OK;

    hd_arena_init(&f.arena, 0);
    *ret_classes = (struct hd_classes){.of = hd_arena_array(arena, world, sizeof(int32_t)),
                                       .lowest = hd_arena_array(arena, world, sizeof(int32_t))};
    f.of = hd_arena_array(&f.arena, world, sizeof *f.of);
    f.stages = hd_arena_array(&f.arena, (size_t)mesh->sizes.pp, sizeof *f.stages);
    if (!hd_arena_failed(&f.arena) && !hd_arena_failed(arena)) {
        for (int32_t tp = 0; !st && tp < mesh->sizes.tp; tp++)
            st = sort_ranks(&f, tp);
        if (!st && !hd_arena_failed(&f.arena)) {
            number_classes(&f, ret_classes);
            ret_classes->like =
                hd_arena_array(arena, (size_t)ret_classes->count, sizeof *ret_classes->like);
            if (ret_classes->like)
                find_alike(&f, ret_classes);
        }
    }
    if (!st && (hd_arena_failed(&f.arena) || hd_arena_failed(arena)))
        st = hd_err(HD_NO_MEMORY, "no memory to compare ranks");
    hd_arena_done(&f.arena);
    return st;
}

#include "program/registry.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "base/random.h"

static void fail_declaration(struct hd_registry *registry, enum hd_status st)
{
    if (registry->status)
        return;
    registry->status = st;
    (void)snprintf(registry->error, sizeof registry->error, "%s", hd_err_message());
}

/* Makes space for one more element in an array of the registry. Returns the array, which may have
 * moved; NULL: memory is exhausted, and the failure is kept in the registry. */
static void *grow(struct hd_registry *registry, void *items, int count, int *capacity,
                  size_t item_bytes)
{
    void *more = hd_arena_grow(registry->arena, items, count, capacity, item_bytes);

    if (!more)
        fail_declaration(
            registry, hd_err(HD_NO_MEMORY, "no memory for %d entries of the registry", count + 1));
    return more;
}

void hd_registry_init(struct hd_registry *registry, struct hd_arena *arena,
                      const struct hd_mesh *mesh, int rank)
{
    *registry = (struct hd_registry){.arena = arena, .rank = rank};
    if (mesh)
        registry->mesh = *mesh;
    else
        (void)hd_mesh_init(&registry->mesh, &(struct hd_mesh_sizes){0}); /* one rank: cannot fail */
    registry->coord = hd_mesh_coord_of(&registry->mesh, rank);
}

void hd_registry_stages(struct hd_registry *registry, const int32_t *unit_stage, int32_t head_stage)
{
    assert(registry->unit_count == 0);
    registry->unit_stage = unit_stage;
    registry->head_stage = head_stage;
}

bool hd_bucket_is_held_by(const struct hd_registry *registry, const struct hd_bucket *bucket,
                          int rank)
{
    const int32_t stage = hd_mesh_coord_of(&registry->mesh, rank).pp;

    return stage == bucket->stage || stage == bucket->tie_stage;
}

bool hd_param_is_local(const struct hd_registry *registry, int param)
{
    return registry->buckets[registry->params[param].bucket].is_local;
}

int hd_registry_unit(struct hd_registry *registry, const char *kind, const char *name)
{
    struct hd_unit *units = grow(registry, registry->units, registry->unit_count,
                                 &registry->unit_capacity, sizeof *units);

    if (!units)
        return 0;
    registry->units = units;
    units[registry->unit_count] = (struct hd_unit){.name = hd_arena_strdup(registry->arena, name),
                                                   .kind = hd_arena_strdup(registry->arena, kind),
                                                   .first_param = registry->param_count};
    return registry->unit_count++;
}

void hd_registry_routers(struct hd_registry *registry, int64_t routers, int64_t experts)
{
    registry->routers = routers;
    registry->experts = experts;
}

/* Returns the bucket of the current unit for this kind of parameter, created for the first one. */
static int find_bucket(struct hd_registry *registry, const struct hd_param *p)
{
    const enum hd_group_name group = p->experts ? HD_GROUP_EXPERT_DP : HD_GROUP_DP_CP;
    const int number = registry->unit_count - 1;
    const int32_t stage = registry->unit_stage ? registry->unit_stage[number] : 0;
    struct hd_unit *unit = &registry->units[number];
    struct hd_bucket *buckets;

    for (int i = 0; i < unit->bucket_count; i++) {
        const struct hd_bucket *bucket = &registry->buckets[unit->buckets[i]];

        if (bucket->trainable == p->trainable && bucket->reduce_group == group &&
            bucket->tied == p->tied && bucket->head == p->head &&
            bucket->keep_fp32 == p->keep_fp32 && bucket->quant == p->quant &&
            bucket->rule == p->rule)
            return unit->buckets[i];
    }
    buckets = grow(registry, registry->buckets, registry->bucket_count, &registry->bucket_capacity,
                   sizeof *buckets);
    if (!buckets)
        return 0;
    registry->buckets = buckets;
    buckets[registry->bucket_count] = (struct hd_bucket){
        .unit = number,
        .trainable = p->trainable,
        .rule = p->rule,
        .tied = p->tied,
        .head = p->head,
        .keep_fp32 = p->keep_fp32,
        .quant = p->quant,
        .stage = stage,
        .tie_stage = p->tied && registry->unit_stage ? registry->head_stage : stage,
        .reduce_group = group,
        .shard_group = p->experts ? HD_GROUP_EXPERT_SHARD : HD_GROUP_ZERO_SHARD};
    buckets[registry->bucket_count].is_local =
        hd_bucket_is_held_by(registry, &buckets[registry->bucket_count], registry->rank);
    unit->buckets[unit->bucket_count++] = registry->bucket_count;
    return registry->bucket_count++;
}

/* ---- shards of a tensor ---- */

int hd_param_shard_index(const struct hd_param *p, const struct hd_mesh *mesh, int rank)
{
    const int tp = p->tp_shards == 1 ? 0 : hd_mesh_coord_of(mesh, rank).tp / p->tp_copies;
    const int ep = p->experts ? hd_mesh_find_group(mesh, HD_GROUP_EP, rank).index : 0;

    return ep * p->tp_shards + tp;
}

void hd_param_box(const struct hd_param *p, int shard_index, int64_t ret_start[HD_PARAM_DIMS_MAX],
                  int64_t ret_real[HD_PARAM_DIMS_MAX])
{
    for (int d = 0; d < HD_PARAM_DIMS_MAX; d++) {
        ret_start[d] = d == p->tp_axis ? p->local[d] * (shard_index % p->tp_shards) : 0;
        if (p->experts && d == 0)
            ret_start[d] = p->local[d] * (shard_index / p->tp_shards);
        ret_real[d] = p->shape[d] - ret_start[d];
        if (ret_real[d] > p->local[d])
            ret_real[d] = p->local[d];
    }
}

/* Returns the extent of a padded shard: a multiple of HD_PARAM_PAD if the last shard is then not
 * empty, else the smallest possible. */
static int64_t padded_extent(int64_t extent, int64_t shards)
{
    const int64_t least = (extent + shards - 1) / shards;
    const int64_t padded = hd_round_up(least, HD_PARAM_PAD);

    return padded * (shards - 1) < extent ? padded : least;
}

static bool split_for_tp(struct hd_registry *registry, const struct hd_param_spec *spec,
                         struct hd_param *p)
{
    const int axis = spec->tp_axis, shards = p->tp_shards;

    if (shards == 1 && !spec->padded)
        return true;
    assert(!spec->padded || axis == 0); /* with axis 0 split, padding is the end of the shard */
    if (!spec->padded && spec->shape[axis] % shards) {
        fail_declaration(registry,
                         hd_err(HD_INVALID, "%s: tp = %d does not divide its extent of %lld",
                                spec->name, shards, (long long)spec->shape[axis]));
        return false;
    }
    p->local[axis] =
        spec->padded ? padded_extent(spec->shape[axis], shards) : spec->shape[axis] / shards;
    if (p->local[axis] * (shards - 1) >= spec->shape[axis]) {
        fail_declaration(
            registry, hd_err(HD_INVALID,
                             "parallel.tp: %d shards of the %lld rows of %s leave a rank without "
                             "a row; use a smaller tp",
                             shards, (long long)spec->shape[axis], spec->name));
        return false;
    }
    return true;
}

static bool split_experts(struct hd_registry *registry, const struct hd_param_spec *spec,
                          struct hd_param *p)
{
    const int ep = registry->mesh.sizes.ep;

    if (!p->experts)
        return true;
    assert(p->tp_axis != 0);
    if (p->shape[0] % ep) {
        fail_declaration(registry,
                         hd_err(HD_INVALID, "%s: ep = %d does not divide its %lld experts",
                                spec->name, ep, (long long)p->shape[0]));
        return false;
    }
    p->local[0] = p->shape[0] / ep;
    p->shards *= ep;
    return true;
}

/* Returns the block size of a parameter's moments, from its global shape and its role; 0: fp32. */
static int64_t block_of(const struct hd_param_spec *spec)
{
    const int last = spec->dim_count - 1;
    const int64_t whole = spec->tp_axis == last ? spec->tp_grain : spec->shape[last];
    int64_t elements = 1, block = HD_BLOCK_MAX;

    for (int d = 0; d < spec->dim_count; d++)
        elements *= spec->shape[d];
    if (spec->dim_count == 1 || elements < HD_BLOCKS_FROM || spec->table || spec->keep_fp32)
        return 0;
    while (whole % block)
        block /= 2;
    return block < HD_BLOCK_MIN ? 0 : block;
}

int64_t hd_registry_buffers_count(const struct hd_registry *registry)
{
    const struct hd_buffer *last;

    if (!registry->buffer_count)
        return 0;
    last = &registry->buffers[registry->buffer_count - 1];
    return last->first + last->rows * last->columns;
}

/* Declares the amax history of the linear whose first parameter this is. Returns its index, or -1
 * after a failure. */
static int declare_history(struct hd_registry *registry, const char *param)
{
    struct hd_buffer *buffers = grow(registry, registry->buffers, registry->buffer_count,
                                     &registry->buffer_capacity, sizeof *buffers);
    struct hd_buffer *b;
    int length;

    if (!buffers)
        return -1;
    b = &buffers[registry->buffer_count];
    *b = (struct hd_buffer){.rows = HD_AMAX_COUNT,
                            .columns = registry->amax_history,
                            .first = hd_registry_buffers_count(registry)};
    length = snprintf(b->name, sizeof b->name, "%s.amax", param);
    assert(length < (int)sizeof b->name);
    (void)length;
    registry->buffers = buffers;
    return registry->buffer_count++;
}

/* ---- quantised weights ---- */

int64_t hd_param_matrices(const struct hd_param *p)
{
    return p->dim_count > 2 ? p->local[0] : 1;
}

struct hd_quant_box hd_param_quant_box(const struct hd_param *p)
{
    const int rows = p->dim_count - 2, columns = p->dim_count - 1;

    return (struct hd_quant_box){.quant = p->quant,
                                 .rows = p->shape[rows],
                                 .columns = p->shape[columns],
                                 .first_row = p->start[rows],
                                 .first_column = p->start[columns],
                                 .box_rows = p->local[rows],
                                 .box_columns = p->local[columns]};
}

struct hd_quant_factor hd_registry_factor(const struct hd_registry *registry, int param,
                                          int fused_count)
{
    const struct hd_param *first = &registry->params[param];
    struct hd_quant_factor f = {.quant = first->quant};

    for (int i = 0; f.quant && i < fused_count; i++) {
        const struct hd_param *p = &registry->params[param + i];
        const struct hd_quant_box box = hd_param_quant_box(p);

        assert(p->bucket == first->bucket);
        f.columns = box.box_columns;
        f.matrix[f.count++] = hd_quant_matrix_at(&box, p->offset - first->offset);
    }
    return f;
}

/* Returns true if a split of the parameter's rows or columns into `shards` leaves whole blocks. */
static bool shards_fit(const struct hd_param *p, int64_t shards)
{
    struct hd_quant_box box = hd_param_quant_box(p);
    const bool by_columns = p->tp_axis == p->dim_count - 1;
    int64_t *extent = by_columns ? &box.box_columns : &box.box_rows;
    int64_t *first = by_columns ? &box.first_column : &box.first_row;
    const int64_t whole = by_columns ? box.columns : box.rows;

    if (whole % shards)
        return false;
    *extent = *first = whole / shards; /* box of the second shard: if its bounds lie between blocks,
                                          those of all shards do */
    if (shards == 1)
        *first = 0;
    return hd_quant_box_fits(&box);
}

static enum hd_status refuse_split(const struct hd_registry *registry, const struct hd_param *p)
{
    char fits[128] = "";
    size_t n = 0;

    for (int64_t tp = 1; tp <= 64 && n < sizeof fits - 8; tp++)
        if (shards_fit(p, tp))
            n +=
                (size_t)snprintf(fits + n, sizeof fits - n, "%s%lld", n ? ", " : "", (long long)tp);
    return hd_err(
        HD_INVALID,
        "parallel.tp: %d cuts through a block of %d weights of %s; with model.quantization: "
        "nf4 its %lld %s can be shared by %s ranks: use such a tp, or int8",
        registry->mesh.sizes.tp, (int)HD_NF4_BLOCK, p->name, (long long)p->shape[p->tp_axis],
        p->tp_axis == p->dim_count - 1 ? "columns" : "rows", fits);
}

static bool choose_quant(struct hd_registry *registry, const struct hd_param_spec *spec,
                         struct hd_param *p)
{
    struct hd_quant_box box;

    if (!registry->quant || !spec->linear)
        return true;
    if (!spec->frozen && !registry->only_computes) {
        fail_declaration(registry,
                         hd_err(HD_INVALID,
                                "model.quantization: %s does not go with %s, which trains: a "
                                "matrix in codes cannot "
                                "be updated; train an adapter (train.adapter) or other parameters "
                                "(train.trainable), or use model.quantization: none",
                                hd_quant_word(registry->quant), spec->name));
        return false;
    }
    p->quant = registry->quant;
    p->block = 0;
    box = hd_param_quant_box(p);
    if (!hd_quant_box_fits(&box)) {
        fail_declaration(registry, refuse_split(registry, p));
        return false;
    }
    p->record_bytes = hd_quant_lay_out(&box).size_bytes;
    return true;
}

/* Sets the rule by which a parameter is updated. A frozen one has none, which is told by 0. */
static void choose_rule(const struct hd_registry *registry, const struct hd_param_spec *spec,
                        struct hd_param *p)
{
    const struct hd_optimizer *o = &registry->optimizer;
    const bool is_matrix = spec->linear && !spec->adapter;

    if (!p->trainable)
        return;
    p->rule = is_matrix ? o->matrices : o->others;
    if (!is_matrix && o->others_lr > 0)
        p->lr_scale *= (float)o->others_lr;
}

int hd_registry_param(struct hd_registry *registry, const struct hd_param_spec *spec)
{
    struct hd_param *params = grow(registry, registry->params, registry->param_count,
                                   &registry->param_capacity, sizeof *params);
    struct hd_param *p;

    assert(registry->unit_count > 0 && spec->dim_count >= 1 &&
           spec->dim_count <= HD_PARAM_DIMS_MAX);
    if (!params)
        return 0;
    registry->params = params;
    p = &params[registry->param_count];
    *p = (struct hd_param){.dim_count = spec->dim_count,
                           .tp_axis = spec->tp_axis,
                           .tp_shards = 1,
                           .experts = spec->experts,
                           .tp_copies = spec->tp_copies > 1 ? spec->tp_copies : 1,
                           .partial = spec->partial,
                           .init = spec->init,
                           .init_std = spec->init_std,
                           .norms_of = spec->norms_of,
                           .decay = spec->decay,
                           .lr_scale = spec->lr_scale > 0 ? (float)spec->lr_scale : 1,
                           .trainable = !spec->frozen && !spec->state,
                           .state = spec->state,
                           .router = spec->router,
                           .rate = spec->rate,
                           .fused = spec->fused,
                           .tied = spec->tied,
                           .head = spec->head,
                           .keep_fp32 = spec->keep_fp32,
                           .scores = spec->scores,
                           .adapter = spec->adapter,
                           .newly_initialized = spec->newly_initialized,
                           .unit = registry->unit_count - 1,
                           .buffer = -1,
                           .count = 1};
    choose_rule(registry, spec, p);
    (void)snprintf(p->name, sizeof p->name, "%s", spec->name);
    memcpy(p->shape, spec->shape, sizeof p->shape);
    memcpy(p->local, spec->shape, sizeof p->local);
    if (p->tp_axis >= 0)
        p->tp_shards = registry->mesh.sizes.tp / p->tp_copies;
    p->shards = p->tp_shards;
    if (!split_for_tp(registry, spec, p) || !split_experts(registry, spec, p))
        return 0;
    hd_param_box(p, hd_param_shard_index(p, &registry->mesh, registry->rank), p->start, p->real);
    for (int d = 0; d < p->dim_count; d++)
        p->count *= p->local[d];
    p->real_count = p->count / p->local[0] * p->real[0];
    if (registry->moments_in_blocks)
        p->block = block_of(spec);
    if (p->block && p->local[p->dim_count - 1] % p->block) {
        fail_declaration(
            registry, hd_err(HD_INVALID,
                             "train.moments: rows of %s in shards of %lld are not whole blocks of "
                             "%lld; use another parallel.tp, or fp32",
                             p->name, (long long)p->local[p->dim_count - 1], (long long)p->block));
        return 0;
    }
    if (!choose_quant(registry, spec, p))
        return 0;
    p->bucket = find_bucket(registry, p);
    if (spec->product && registry->amax_history && !p->quant)
        p->buffer = declare_history(registry, p->name);
    if (registry->status)
        return 0;
    registry->units[p->unit].param_count++;
    return registry->param_count++;
}

static int64_t count_params(const struct hd_registry *registry, bool trained_alone)
{
    int64_t count = 0;

    for (int i = 0; i < registry->param_count; i++) {
        const struct hd_param *p = &registry->params[i];
        int64_t elements = p->trainable || !trained_alone;

        for (int d = 0; d < p->dim_count; d++)
            elements *= p->shape[d];
        count += elements;
    }
    return count;
}

int64_t hd_registry_global_count(const struct hd_registry *registry)
{
    return count_params(registry, false);
}

int64_t hd_registry_trained_count(const struct hd_registry *registry)
{
    return count_params(registry, true);
}

int64_t hd_param_global_index(const struct hd_param *p, int64_t i)
{
    int64_t index = 0, inside[HD_PARAM_DIMS_MAX];

    for (int d = p->dim_count - 1; d >= 0; d--) {
        inside[d] = i % p->local[d];
        i /= p->local[d];
    }
    for (int d = 0; d < p->dim_count; d++) {
        if (inside[d] >= p->real[d])
            return -1;
        index = index * p->shape[d] + p->start[d] + inside[d];
    }
    return index;
}

/* A pair of normal random numbers, kept because neighbours are usually requested one after the
 * other. */
struct normals {
    uint64_t key;
    int64_t pair; /* index of the pair in `values`; -1: none */
    float values[2];
};

static double normal_at(struct normals *n, int64_t index)
{
    if (index / 2 != n->pair) {
        n->pair = index / 2;
        hd_random_normals(n->key, (uint64_t)n->pair, 1, n->values);
    }
    return n->values[index % 2];
}

void hd_param_init_values(const struct hd_param *param, uint64_t seed, int64_t first, int64_t count,
                          float *ret_values)
{
    const uint64_t key = hd_random_key(seed, hd_random_hash(param->name));
    struct normals normals = {.key = key, .pair = -1};

    assert(param->init != HD_INIT_NORMS);
    for (int64_t i = 0; i < count; i++) {
        const int64_t index = hd_param_global_index(param, first + i);

        ret_values[i] = 0;
        if (index >= 0 && param->init == HD_INIT_NORMAL)
            ret_values[i] = (float)(param->init_std * normal_at(&normals, index));
        else if (index >= 0 && param->init == HD_INIT_UNIFORM)
            ret_values[i] =
                (float)(param->init_std * (2 * hd_random_uniform(key, (uint64_t)index) - 1));
        else if (index >= 0 && param->init == HD_INIT_LOG_UNIFORM)
            ret_values[i] = (float)log(0.01 + (param->init_std - 0.01) *
                                                  hd_random_uniform(key, (uint64_t)index));
        else if (index >= 0 && param->init == HD_INIT_ONES)
            ret_values[i] = 1;
    }
}

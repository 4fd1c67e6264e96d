#include "program/registry.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"

static int64_t round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static void fail(struct hd_registry *registry, enum hd_status st)
{
    if (registry->status)
        return;
    registry->status = st;
    (void)snprintf(registry->error, sizeof registry->error, "%s", hd_err_message());
}

/* Room for one more entry; NULL, and the failure sticks, without memory. */
static void *grow(struct hd_registry *registry, void *items, int count, int *room,
                  size_t item_bytes)
{
    void *more = hd_arena_grow(registry->arena, items, count, room, item_bytes);

    if (!more)
        fail(registry, hd_err(HD_NO_MEMORY, "no memory for %d entries of the registry", count + 1));
    return more;
}

void hd_registry_init(struct hd_registry *registry, struct hd_arena *arena, int tp_size,
                      int tp_index)
{
    *registry = (struct hd_registry){.arena = arena, .tp_size = tp_size, .tp_index = tp_index};
}

int hd_registry_unit(struct hd_registry *registry, const char *kind, const char *name)
{
    struct hd_unit *units =
        grow(registry, registry->units, registry->unit_count, &registry->unit_room, sizeof *units);

    if (!units)
        return 0;
    registry->units = units;
    units[registry->unit_count] = (struct hd_unit){.name = hd_arena_strdup(registry->arena, name),
                                                   .kind = hd_arena_strdup(registry->arena, kind),
                                                   .first_param = registry->param_count};
    return registry->unit_count++;
}

/* The part of the current unit for such a parameter, made if it is the first. */
static int find_part(struct hd_registry *registry, bool trainable)
{
    struct hd_unit *unit = &registry->units[registry->unit_count - 1];
    struct hd_part *parts;

    for (int i = 0; i < unit->part_count; i++)
        if (registry->parts[unit->parts[i]].trainable == trainable)
            return unit->parts[i];
    parts =
        grow(registry, registry->parts, registry->part_count, &registry->part_room, sizeof *parts);
    if (!parts)
        return 0;
    registry->parts = parts;
    parts[registry->part_count] = (struct hd_part){
        .unit = registry->unit_count - 1, .trainable = trainable, .reduce_group = HD_GROUP_DP_CP};
    unit->parts[unit->part_count++] = registry->part_count;
    return registry->part_count++;
}

static bool cut_for_tp(struct hd_registry *registry, const struct hd_param_spec *spec,
                       struct hd_param *p)
{
    if (spec->tp_axis < 0)
        return true;
    if (spec->shape[spec->tp_axis] % registry->tp_size) {
        fail(registry,
             hd_err(HD_INVALID, "%s: tp = %d does not divide its extent of %lld", spec->name,
                    registry->tp_size, (long long)spec->shape[spec->tp_axis]));
        return false;
    }
    p->local[spec->tp_axis] /= registry->tp_size;
    p->tp_start = p->local[spec->tp_axis] * registry->tp_index;
    return true;
}

int hd_registry_param(struct hd_registry *registry, const struct hd_param_spec *spec)
{
    struct hd_param *params = grow(registry, registry->params, registry->param_count,
                                   &registry->param_room, sizeof *params);
    struct hd_param *p;
    struct hd_part *part;

    assert(registry->unit_count > 0 && spec->dim_count >= 1 &&
           spec->dim_count <= HD_PARAM_DIMS_MAX);
    if (!params)
        return 0;
    registry->params = params;
    p = &params[registry->param_count];
    *p = (struct hd_param){.dim_count = spec->dim_count,
                           .tp_axis = spec->tp_axis,
                           .init = spec->init,
                           .init_std = spec->init_std,
                           .decay = spec->decay,
                           .trainable = !spec->frozen,
                           .joined = spec->joined,
                           .unit = registry->unit_count - 1,
                           .count = 1};
    (void)snprintf(p->name, sizeof p->name, "%s", spec->name);
    memcpy(p->shape, spec->shape, sizeof p->shape);
    memcpy(p->local, spec->shape, sizeof p->local);
    if (!cut_for_tp(registry, spec, p))
        return 0;
    for (int d = 0; d < p->dim_count; d++)
        p->count *= p->local[d];

    p->part = find_part(registry, p->trainable);
    if (registry->status)
        return 0;
    part = &registry->parts[p->part];
    if (!p->joined)
        part->count = round_up(part->count, HD_PARAM_ALIGN);
    p->offset = part->count;
    part->count += p->count;
    registry->units[p->unit].param_count++;
    return registry->param_count++;
}

/* Neighbours that decay alike share a range; padding belongs to the range before it. */
static enum hd_status make_ranges(struct hd_registry *registry, int part_number)
{
    struct hd_part *part = &registry->parts[part_number];
    struct hd_unit *unit = &registry->units[part->unit];
    struct hd_update_range *r = NULL;

    part->ranges = hd_arena_array(registry->arena, (size_t)unit->param_count, sizeof *r);
    if (!part->ranges)
        return hd_err(HD_NO_MEMORY, "no memory for the update ranges of %s", unit->name);
    for (int i = 0; i < unit->param_count; i++) {
        const struct hd_param *p = &registry->params[unit->first_param + i];
        float decay = p->decay ? 1 : 0;

        if (p->part != part_number)
            continue;
        if (r && r->decay == decay) {
            r->end = p->offset + p->count;
            continue;
        }
        if (r)
            r->end = p->offset;
        r = &part->ranges[part->range_count++];
        *r = (struct hd_update_range){p->offset, p->offset + p->count, decay, 1};
    }
    if (r)
        r->end = part->count;
    return HD_OK;
}

bool hd_state_is_visible(enum hd_state_kind kind)
{
    return kind == HD_STATE_GRAD;
}

bool hd_global_is_visible(enum hd_global global)
{
    return global == HD_GLOBAL_RECORD || global == HD_GLOBAL_RECORDS;
}

static bool part_has_state(const struct hd_registry *registry, const struct hd_part *part,
                           enum hd_state_kind kind)
{
    if (kind == HD_STATE_WEIGHT)
        return true;
    if (kind == HD_STATE_COPY)
        return registry->compute_dtype != HD_F32;
    return registry->trains && part->trainable;
}

int64_t hd_part_state_bytes(const struct hd_registry *registry, const struct hd_part *part,
                            enum hd_state_kind kind)
{
    if (kind == HD_STATE_RANGES)
        return part->range_count * (int64_t)sizeof(struct hd_update_range);
    if (kind == HD_STATE_COPY)
        return part->count * (int64_t)hd_dtype_size(registry->compute_dtype);
    return part->count * (int64_t)sizeof(float);
}

/* Places size_bytes in one half of the region. */
static int64_t take(struct hd_registry *registry, bool visible, int64_t size_bytes)
{
    int64_t *end = visible ? &registry->visible_bytes : &registry->private_bytes;
    int64_t offset = *end;

    *end += round_up(size_bytes, HD_TENSOR_ALIGN);
    return offset;
}

int64_t hd_global_bytes(const struct hd_registry *registry, enum hd_global global)
{
    const int64_t record = HD_EXCHANGE_WORDS * (int64_t)sizeof(double);
    const int64_t bytes[HD_GLOBAL_COUNT] = {
        [HD_GLOBAL_BLOCK] = sizeof(struct hd_step_block),
        [HD_GLOBAL_SUMS] = registry->chunk_count * (int64_t)sizeof(double),
        [HD_GLOBAL_RECORD] = record,
        [HD_GLOBAL_RECORDS] = record * registry->exchange_ranks,
    };

    return bytes[global];
}

static void lay_out_globals(struct hd_registry *registry)
{
    for (int g = 0; g < HD_GLOBAL_COUNT; g++) {
        registry->global_offset[g] = -1;
        if (g == HD_GLOBAL_BLOCK || registry->trains)
            registry->global_offset[g] = take(registry, hd_global_is_visible((enum hd_global)g),
                                              hd_global_bytes(registry, (enum hd_global)g));
    }
}

enum hd_status hd_registry_finish(struct hd_registry *registry, enum hd_dtype compute_dtype,
                                  bool trains, int64_t exchange_ranks)
{
    if (registry->status)
        return hd_err(registry->status, "%s", registry->error);
    registry->compute_dtype = compute_dtype;
    registry->trains = trains;
    registry->exchange_ranks = exchange_ranks;
    for (int i = 0; i < registry->part_count; i++) {
        struct hd_part *part = &registry->parts[i];
        enum hd_status st;

        part->count = round_up(part->count, HD_PARAM_ALIGN);
        st = make_ranges(registry, i);
        if (st)
            return st;
        part->first_chunk = registry->chunk_count;
        if (part->trainable)
            registry->chunk_count += (part->count + HD_GRAD_CHUNK - 1) / HD_GRAD_CHUNK;
        for (int k = 0; k < HD_STATE_KIND_COUNT; k++) {
            enum hd_state_kind kind = (enum hd_state_kind)k;

            part->offset[k] = -1;
            if (part_has_state(registry, part, kind))
                part->offset[k] = take(registry, hd_state_is_visible(kind),
                                       hd_part_state_bytes(registry, part, kind));
        }
        if (part->offset[HD_STATE_COPY] < 0)
            part->offset[HD_STATE_COPY] = part->offset[HD_STATE_WEIGHT];
    }
    lay_out_globals(registry);
    return HD_OK;
}

int64_t hd_registry_global_count(const struct hd_registry *registry)
{
    int64_t count = 0;

    for (int i = 0; i < registry->param_count; i++) {
        const struct hd_param *p = &registry->params[i];

        count += p->dim_count == 2 ? p->shape[0] * p->shape[1] : p->shape[0];
    }
    return count;
}

/* The global row-major index of element i of the share. */
static uint64_t global_index(const struct hd_param *p, int64_t i)
{
    int64_t row, column;

    if (p->dim_count == 1)
        return (uint64_t)(i + p->tp_start);
    row = i / p->local[1] + (p->tp_axis == 0 ? p->tp_start : 0);
    column = i % p->local[1] + (p->tp_axis == 1 ? p->tp_start : 0);
    return (uint64_t)(row * p->shape[1] + column);
}

void hd_param_init_values(const struct hd_param *param, uint64_t seed, int64_t first, int64_t count,
                          float *ret_values)
{
    const uint64_t key = hd_random_key(seed, hd_random_hash(param->name));

    for (int64_t i = 0; i < count; i++) {
        if (param->init == HD_INIT_NORMAL)
            ret_values[i] = (float)(param->init_std *
                                    (double)hd_random_normal(key, global_index(param, first + i)));
        else
            ret_values[i] = param->init == HD_INIT_ONES ? 1.0f : 0.0f;
    }
}

#include "plan/layer_profile.h"

#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "job/frozen_model.h"
#include "plan/rank_map.h"
#include "plan/rates.h"
#include "program/matrices.h"

/* The chunks that are compiled, and the registries of the first and the last stage, which they
 * need. With one stage both registries are the same. */
struct builder {
    const struct hd_cluster *cluster;
    struct hd_arena arena;
    struct hd_rank_program_shared shared;
    struct hd_registry registry[2];
    struct hd_model model[2];
    struct hd_link_group group[HD_GROUP_COUNT];
    bool has_group[HD_GROUP_COUNT];
    bool native;
    /* If pairs of devices in a node differ: the mesh of the whole job, and the device of each rank.
     * Otherwise the mesh of the compiled job, and NULL. */
    struct hd_mesh mesh;
    int32_t *devices;
    /* sequences of a program of decoding, which is compiled in place of those of steps, and tokens of each;
     * 0: those of steps are */
    int64_t slots, rows;
};

/* ---- the time of a program ---- */

void hd_program_time_add(struct hd_program_time *y, double a, const struct hd_program_time *x)
{
    y->run += a * x->run;
    y->compute += a * x->compute;
    y->reduce += a * x->reduce;
    y->reduce_after += a * x->reduce_after;
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        y->waits[g] += a * x->waits[g];
}

static const struct hd_link_group *group_of(struct builder *b, enum hd_group_name name)
{
    if (!b->has_group[name]) {
        b->group[name] = hd_links_group(b->cluster, &b->mesh, name, b->devices);
        b->has_group[name] = true;
    }
    return &b->group[name];
}

/* Returns a collective's bytes per member as comm.h counts them. Assumes balanced routers, which
 * send equally many rows to all members. */
static double collective_bytes(const struct hd_node *node, const struct hd_link_group *g)
{
    const double element = (double)hd_dtype_size(node->dtype);

    if (node->comm == HD_COMM_ALL_TO_ALL_V)
        return (double)(node->rows.even * node->rows.elements) * element * (g->size - 1) / g->size;
    return (double)node->count * element;
}

static double node_seconds(struct builder *b, const struct hd_node *node)
{
    const struct hd_link_group *g;

    if (!node->is_comm)
        return hd_rates_node(&b->cluster->rates, node);
    g = group_of(b, node->group);
    return hd_links_collective(b->cluster, g, node->comm, collective_bytes(node, g), b->native) +
           (g->size > 1 ? b->cluster->rates.wait_s : 0);
}

/* most seconds that a kernel takes longer per second beside a collective (rates.c has the source) */
static const double slowdown_most = 0.5;

/* Returns the seconds that a kernel takes longer per second beside this collective, which takes
 * `seconds`: it reads and writes the device's memory, and occupies multiprocessors, in proportion to
 * the bytes that it passes on. */
static double slowdown_of(struct builder *b, const struct hd_node *node, double seconds)
{
    const struct hd_rates *r = &b->cluster->rates;
    const struct hd_link_group *g = group_of(b, node->group);

    if (seconds <= 0 || g->size <= 1)
        return 0;
    return hd_min_real(slowdown_most,
                       r->beside_collective *
                           hd_links_passed_bytes(node->comm, g->size, collective_bytes(node, g)) /
                           (seconds * r->memory_bytes_per_s));
}

/* The state of a walk over a program's nodes: when each stream and each node ends, seconds. */
struct program_walk {
    double stream_end[HD_STREAM_COUNT];
    /* by stream: seconds that a kernel takes longer per second beside the last collective on it */
    double slowdown[HD_STREAM_COUNT];
    /* by stream: group of the last collective on it */
    enum hd_group_name last_group[HD_STREAM_COUNT];
    double *node_end;
    struct hd_program_time *time;
};

/* Returns the seconds by which a kernel takes longer because collectives that were launched before
 * it still run beside it, and adds them to what the step loses by their groups. */
static double beside_collectives(const struct program_walk *w, double start, double seconds)
{
    double longer = 0;

    for (int s = 0; s < HD_STREAM_COUNT; s++)
        if (s != HD_STREAM_COMPUTE && w->stream_end[s] > start) {
            const double more = w->slowdown[s] * hd_min_real(w->stream_end[s] - start, seconds);

            w->time->waits[w->last_group[s]] += more;
            longer += more;
        }
    return longer;
}

static void walk_node(struct builder *b, struct program_walk *w, const struct hd_program *p,
                      int index)
{
    const struct hd_node *node = p->nodes[index];
    const bool in_thread = node->is_comm && b->cluster->rates.collectives_take_thread;
    const double free = w->stream_end[in_thread ? HD_STREAM_COMPUTE : node->stream];
    const double seconds = node_seconds(b, node);
    double start = free;
    enum hd_group_name awaited = HD_GROUP_COUNT;

    for (int k = 0; k < node->wait_count; k++)
        if (w->node_end[node->waits[k]] > start) {
            start = w->node_end[node->waits[k]];
            awaited = p->nodes[node->waits[k]]->is_comm ? p->nodes[node->waits[k]]->group
                                                        : HD_GROUP_COUNT;
        }
    w->node_end[index] = w->stream_end[node->stream] =
        start + seconds + (node->is_comm ? 0 : beside_collectives(w, start, seconds));
    if (in_thread) {
        w->stream_end[HD_STREAM_COMPUTE] = start + seconds;
        w->time->waits[node->group] += start + seconds - free;
        return;
    }
    if (node->is_comm) {
        w->last_group[node->stream] = node->group;
        w->slowdown[node->stream] = slowdown_of(b, node, seconds);
    }
    if (node->stream == HD_STREAM_COMPUTE) {
        w->time->compute += seconds;
        if (awaited < HD_GROUP_COUNT)
            w->time->waits[awaited] += start - free;
    }
    if (node->stream == HD_STREAM_REDUCE)
        w->time->reduce += seconds;
}

/* Sets the time of the program at the end of the walk. A program's results are complete when all
 * streams but the reductions' have ended. */
static void walk_end(struct program_walk *w)
{
    struct hd_program_time *t = w->time;

    t->run = w->stream_end[HD_STREAM_COMPUTE];
    for (int s = 0; s < HD_STREAM_COUNT; s++)
        if (s != HD_STREAM_REDUCE && w->stream_end[s] > t->run) {
            t->waits[w->last_group[s]] += w->stream_end[s] - t->run;
            t->run = w->stream_end[s];
        }
    t->reduce_after =
        w->stream_end[HD_STREAM_REDUCE] > t->run ? w->stream_end[HD_STREAM_REDUCE] - t->run : 0;
}

static struct hd_program_time program_time(struct builder *b, const struct hd_program *p, bool last)
{
    struct hd_program_time time = {0};
    struct program_walk w = {.time = &time};

    w.node_end = hd_arena_array(&b->arena, (size_t)p->count + 1, sizeof *w.node_end);
    for (int i = 0; w.node_end && i < p->count; i++)
        if (!p->nodes[i]->only_last || last)
            walk_node(b, &w, p, i);
    walk_end(&w);
    return time;
}

/* ---- layer profiles ---- */

static int64_t whole(const struct hd_extent *x)
{
    return x->private_bytes + x->registered_bytes;
}

static enum hd_status measure_units(struct builder *b, int registry, struct hd_units units,
                                    struct hd_layer_profile *ret_profile, int64_t *ret_stage_io)
{
    const enum hd_call calls[HD_LAYER_PROFILE_CALLS] = {b->slots ? HD_CALL_D : HD_CALL_F, HD_CALL_B,
                                                        HD_CALL_W};
    const struct hd_registry *r = &b->registry[registry];
    const struct hd_model *m = &b->model[registry];
    struct hd_chunk *chunk;
    enum hd_status st =
        b->slots ? hd_rank_program_compile_decode(&b->shared, r, m, units, b->slots, b->rows,
                                                  &b->arena, &chunk)
                 : hd_rank_program_compile_units(&b->shared, r, m, units, &b->arena, &chunk);

    if (st)
        return st;
    for (int c = 0; c < HD_LAYER_PROFILE_CALLS; c++) {
        const struct hd_program *p = &chunk->program[calls[c]];
        bool differ = false;

        for (int i = 0; !differ && i < p->count; i++)
            differ = p->nodes[i]->only_last;
        ret_profile->time[c][0] = program_time(b, p, false);
        ret_profile->time[c][1] = differ ? program_time(b, p, true) : ret_profile->time[c][0];
    }
    ret_profile->saved_bytes = whole(&chunk->extent[HD_REGION_SAVED]);
    ret_profile->deferred_bytes = whole(&chunk->extent[HD_REGION_DEFERRED]);
    ret_profile->work_bytes = whole(&chunk->extent[HD_REGION_WORK]);
    if (ret_stage_io)
        *ret_stage_io = chunk->extent[HD_REGION_STAGE_IO].registered_bytes;
    return hd_arena_failed(&b->arena) ? hd_err(HD_NO_MEMORY, "no memory for a price") : HD_OK;
}

/* Subtracts `other` from `profile`, except for the bytes of work memory, of which units do not add
 * up. */
static void subtract(struct hd_layer_profile *profile, const struct hd_layer_profile *other)
{
    for (int c = 0; c < HD_LAYER_PROFILE_CALLS; c++)
        for (int last = 0; last < 2; last++)
            hd_program_time_add(&profile->time[c][last], -1, &other->time[c][last]);
    profile->saved_bytes -= other->saved_bytes;
    profile->deferred_bytes -= other->deferred_bytes;
}

static enum hd_status declare(struct builder *b, int stage)
{
    const int rank = stage * (b->shared.mesh.world / b->shared.mesh.sizes.pp);

    return hd_rank_program_declare(&b->shared, rank, &b->arena, &b->registry[stage],
                                   &b->model[stage]);
}

/* Returns true for work on whole matrices, which one rank of the stage does for all. */
static bool is_owners_work(const struct hd_node *node)
{
    return !node->is_comm && node->kernel == HD_K_newton_schulz;
}

/* Adds a rank's even share of the work on the matrices of each unit: owners have about equally much
 * of a whole model's, but not of the few blocks that a profile has. */
static void share_matrices(const struct builder *b, const struct hd_registry *r, double *units)
{
    const struct hd_matrix_plan *plan = r->matrices;

    for (int64_t i = 0; plan && i < plan->count; i++) {
        const struct hd_matrix *m = &plan->matrices[i];
        struct hd_newton_schulz_args args = {.count = 1,
                                             .rows = m->rows,
                                             .columns = m->columns,
                                             .iterations = r->optimizer.iterations,
                                             .dtype =
                                                 r->compute_dtype == HD_F32 ? HD_F32 : HD_BF16};
        const struct hd_node node = {.kernel = HD_K_newton_schulz, .args = &args};

        units[r->params[m->param].unit] += hd_rates_node(&b->cluster->rates, &node) / plan->ranks;
    }
}

/* Adds the time of a program's nodes to their units: per unit the time of its busiest stream, or
 * the sum over all streams if collectives take the rank's thread. The time of nodes that belong to
 * no unit is added to *ret_base. */
static void share_out(struct builder *b, const struct hd_program *p, double *units, int unit_count,
                      double *ret_base)
{
    const bool one_stream = b->cluster->rates.collectives_take_thread;
    double *busy = hd_arena_array(&b->arena, (size_t)(unit_count * HD_STREAM_COUNT), sizeof *busy);

    for (int i = 0; busy && i < p->count; i++) {
        const struct hd_node *node = p->nodes[i];
        const double seconds = is_owners_work(node) ? 0 : node_seconds(b, node);

        if (node->unit < 0)
            *ret_base += seconds;
        else
            busy[node->unit * HD_STREAM_COUNT +
                 (int)(one_stream ? HD_STREAM_COMPUTE : node->stream)] += seconds;
    }
    for (int u = 0; busy && u < unit_count; u++) {
        double most = 0;

        for (int s = 0; s < HD_STREAM_COUNT; s++)
            most = busy[u * HD_STREAM_COUNT + s] > most ? busy[u * HD_STREAM_COUNT + s] : most;
        units[u] += most;
    }
}

/* Adds the seconds in which the host updates offloaded buckets between U and P. */
static void host_update(const struct builder *b, const struct hd_registry *r, double *units)
{
    for (int i = 0; i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];
        const int64_t count = p->shard_end - p->shard_begin;
        struct hd_costs update = {0};

        if (!p->offloaded || !p->is_local || count <= 0)
            continue;
        hd_rule_update_costs(p->rule, count, p->in_blocks ? p->moment_bytes : 0, p->compute,
                             &update);
        if (r->ema_rate > 0)
            hd_kernel_cost_add(&update, HD_K_ema, &(struct hd_ema_args){.N = count});
        units[p->unit] += hd_rates_host_update(&b->cluster->rates, count, p->compute, &update);
    }
}

/* Computes the seconds of programs U and P of a pipeline stage, by unit; beside decoding there are none. */
static enum hd_status measure_update(struct builder *b, int stage, double *units, int unit_count,
                                     double *ret_base)
{
    struct hd_chunk *chunk;
    enum hd_status st;

    if (b->slots)
        return HD_OK;
    st = hd_rank_program_compile_update(&b->shared, &b->registry[stage], &b->arena, &chunk);
    if (st)
        return st;
    share_out(b, &chunk->program[HD_CALL_U], units, unit_count, ret_base);
    share_out(b, &chunk->program[HD_CALL_P], units, unit_count, ret_base);
    host_update(b, &b->registry[stage], units);
    share_matrices(b, &b->registry[stage], units);
    return HD_OK;
}

/* Computes the seconds of U and P of a block of the builder's kind. */
static enum hd_status measure_block_update(struct builder *b, double *ret_seconds)
{
    double units[8] = {0}, ignored = 0;
    const enum hd_status st = measure_update(b, 0, units, b->model[1].unit_head + 1, &ignored);

    *ret_seconds = units[HD_UNIT_FIRST_BLOCK];
    return st;
}

/* Computes the layer profile of the embedding, and the seconds of the first stage's updates.
 * of_kind->base must still be the profile of one whole block. */
static enum hd_status measure_first(struct builder *b, struct hd_block_profiles *of_kind,
                                    struct hd_layer_profiles *p)
{
    double units[8] = {0};
    enum hd_status st = measure_units(
        b, 0, (struct hd_units){HD_UNIT_EMBEDDING, HD_UNIT_FIRST_BLOCK + 1}, &p->embedding, NULL);

    if (!st)
        st = measure_update(b, 0, units, b->model[1].unit_head + 1, &p->update_base);
    if (st)
        return st;
    p->update_base += b->cluster->rates.step_s;
    subtract(&p->embedding, &of_kind->base);
    of_kind->update = units[HD_UNIT_FIRST_BLOCK];
    p->update_first = units[HD_UNIT_EMBEDDING];
    return HD_OK;
}

/* Computes the layer profile of the head, and the seconds of its updates. of_kind->base must still
 * be the profile of one whole block. */
static enum hd_status measure_head(struct builder *b, const struct hd_block_profiles *of_kind,
                                   struct hd_layer_profiles *p)
{
    const int head = b->model[1].unit_head;
    double units[8] = {0}, ignored = 0;
    enum hd_status st = measure_units(b, 1, (struct hd_units){head - 1, head + 1}, &p->head, NULL);

    if (!st)
        st = measure_update(b, 1, units, head + 1, &ignored);
    if (st)
        return st;
    subtract(&p->head, &of_kind->base);
    /* a tied table is updated on both stages, as the embedding unit; the last stage counts it
     * here */
    p->update_last = units[head] + (b->shared.mesh.sizes.pp > 1 ? units[HD_UNIT_EMBEDDING] : 0);
    return HD_OK;
}

/* ---- segments of recompute ---- */

int64_t hd_layer_profile_segment(const struct hd_job *job)
{
    int64_t blocks = 0;

    (void)hd_recompute_read(job->recompute, &blocks);
    return blocks;
}

bool hd_layer_profile_continues(struct hd_units chunk, int unit, int64_t segment)
{
    const int first = chunk.first > HD_UNIT_FIRST_BLOCK ? chunk.first : (int)HD_UNIT_FIRST_BLOCK;

    return segment > 1 && unit > first && (unit - HD_UNIT_FIRST_BLOCK) % segment != 0;
}

/* Computes the layer profile of a block that continues a recompute segment: the first two blocks of
 * the model as one segment, minus `one`, the first block alone. */
static enum hd_status measure_inner(struct builder *b, const struct hd_layer_profile *one,
                                    struct hd_layer_profile *ret_inner)
{
    enum hd_status st;

    (void)snprintf(b->shared.job.recompute, sizeof b->shared.job.recompute, "full:2");
    st = measure_units(b, 0, (struct hd_units){HD_UNIT_FIRST_BLOCK, HD_UNIT_FIRST_BLOCK + 2},
                       ret_inner, NULL);
    subtract(ret_inner, one);
    return st;
}

/* Computes the layer profiles `base` (as one block, before `block` is subtracted) and `block`. */
static enum hd_status measure_blocks(struct builder *b, struct hd_block_profiles *p,
                                     int64_t *ret_stage_io)
{
    struct hd_layer_profile one = {0}, two = {0};
    enum hd_status st = measure_units(
        b, 0, (struct hd_units){HD_UNIT_FIRST_BLOCK, HD_UNIT_FIRST_BLOCK + 1}, &one, ret_stage_io);

    if (!st)
        st = measure_units(b, 0, (struct hd_units){HD_UNIT_FIRST_BLOCK, HD_UNIT_FIRST_BLOCK + 2},
                           &two, NULL);
    p->base = one;
    p->block = two;
    subtract(&p->block, &one);
    return st;
}

/* All blocks of the model, of whatever kind. */
enum { ALL_KINDS = -1 };

/* Makes all blocks of the job's model blocks of this kind. */
static void choose_kind(struct hd_job *job, int kind)
{
    if (!(kind & HD_LAYER_WINDOWED))
        job->window = job->attention_chunk = 0;
    job->window_from = 0;
    job->window_layers = "all";
    job->rope_layers = kind & HD_LAYER_UNROTATED ? "none" : "all";
    job->experts_layers = kind & HD_LAYER_DENSE ? "none" : "all";
    job->delta_layers = job->conv_layers = kind & HD_LAYER_UNATTENDED ? "all" : "none";
}

/* Shrinks the job to a small one: two blocks of this kind on the first stage and, if the job has
 * several stages, one on the last; one micro-batch. If the job has train.trainable, which names
 * parameters of the whole model, everything trains and no weight is quantized. An adapter stays,
 * since every block has it. ALL_KINDS: the whole model on one stage. */
static void shrink(struct hd_job *job, int kind)
{
    const bool whole = kind == ALL_KINDS, staged = job->pp > 1 && !whole;

    const char *const schedule = !staged                                 ? "none"
                                 : strncmp(job->schedule, "zb-", 3) == 0 ? "zb-h1"
                                                                         : "1f1b";

    (void)snprintf(job->stages, sizeof job->stages, "%s", staged ? "2,1" : "auto");
    (void)snprintf(job->schedule, sizeof job->schedule, "%s", schedule);
    job->pp = staged ? 2 : 1;
    job->virtual_stages = 1;
    job->schedule_order = NULL;
    job->order_micro_batches = 0;
    job->global_batch = job->dp * job->micro_batch;
    job->data_stages = "";
    job->batch_schedule = "";
    job->validate_batches = 1;
    job->checkpoint_async = false;
    job->profile_first = 0;
    if (hd_layer_profile_segment(job) > 1)
        (void)snprintf(job->recompute, sizeof job->recompute, "full");
    if (whole)
        return;
    job->layers = staged ? 3 : 2;
    choose_kind(job, kind);
    job->only = "all";
    job->adapter_also = "";
    if (job->adapter == HD_JOB_ADAPTER_NONE)
        job->model_weights = HD_JOB_MODEL_WEIGHTS_PLAIN;
}

/* The programs that profiles are made of. */
struct profile_scope {
    bool blocks_only;
    int64_t slots, rows; /* as in struct builder */
};

static void builder_begin(struct builder *b, const struct hd_cluster *cluster, bool native)
{
    memset(b, 0, sizeof *b);
    b->cluster = cluster;
    b->native = native;
    hd_arena_init(&b->arena, 0);
}

/* Sets b's mesh and the device of each rank of the job, if pairs of devices in a node differ. */
static enum hd_status choose_devices(struct builder *b, const struct hd_job *job)
{
    const struct hd_mesh_sizes *compiled = &b->shared.mesh.sizes;
    struct hd_mesh_sizes sizes = *compiled;
    enum hd_status st;

    if (!b->cluster->links)
        return HD_OK;
    sizes.pp = (int32_t)job->pp;
    st = hd_mesh_init(&b->mesh, &sizes);
    b->devices = hd_arena_array(&b->arena, (size_t)b->mesh.world, sizeof *b->devices);
    if (!st && !b->devices)
        st = hd_err(HD_NO_MEMORY, "no memory for the devices of ranks");
    return st ? st : hd_rank_map_of_job(b->cluster, job, b->devices);
}

/* Declares the parameters of the first and the last stage of the small job. */
static enum hd_status declare_small(struct builder *b, const struct hd_job *job, int kind)
{
    struct hd_job small = *job;
    enum hd_status st;

    shrink(&small, kind);
    st = hd_rank_program_prepare(&small, &b->cluster->traits, &(struct hd_rank_program_options){0},
                                 &b->arena, &b->shared);
    b->mesh = b->shared.mesh;
    if (!st)
        st = declare(b, 0);
    if (!st && b->shared.mesh.sizes.pp > 1)
        st = declare(b, 1);
    if (!st && b->shared.mesh.sizes.pp == 1) { /* one stage is both the first and the last */
        b->registry[1] = b->registry[0];
        b->model[1] = b->model[0];
    }
    return st;
}

/* Sets has_kind, first_kind and head_kind. */
static enum hd_status find_kinds(const struct hd_job *job, struct hd_layer_profiles *p)
{
    struct hd_model_config config;
    const enum hd_status st = hd_model_config_from_job(job, &config);

    if (st)
        return st;
    for (int64_t layer = 0; layer < config.L; layer++)
        p->has_kind[hd_model_layer_kind(&config, layer)] = true;
    p->first_kind = hd_model_layer_kind(&config, 0);
    p->head_kind = config.further ? hd_model_layer_kind(&config, config.L - 1) : p->first_kind;
    return HD_OK;
}

/* Computes the layer profiles of blocks of this kind; with the kind of the model's first block also
 * the members of *p that do not depend on a kind. */
static enum hd_status measure_kind(const struct hd_job *job, const struct hd_cluster *cluster,
                                   int kind, const struct profile_scope *scope,
                                   struct hd_layer_profiles *p)
{
    struct hd_block_profiles *of_kind = &p->kind[kind];
    const bool first = kind == p->first_kind, blocks_only = scope->blocks_only;
    struct builder b;
    enum hd_status st;

    builder_begin(&b, cluster, job->native_reduction);
    b.slots = scope->slots;
    b.rows = scope->rows;
    st = declare_small(&b, job, kind);
    if (!st)
        st = choose_devices(&b, job);
    if (!st)
        st = measure_blocks(&b, of_kind, first ? &p->stage_io_bytes : NULL);
    if (!st && !blocks_only)
        st = first ? measure_first(&b, of_kind, p) : measure_block_update(&b, &of_kind->update);
    if (!st && !blocks_only && kind == p->head_kind)
        st = measure_head(&b, of_kind, p);
    if (!st && p->has_inner)
        st = measure_inner(&b, &of_kind->base, &of_kind->inner);
    if (!st && first) {
        p->stages = *group_of(&b, HD_GROUP_PP);
        p->tp = *group_of(&b, HD_GROUP_TP);
        p->world = *group_of(&b, HD_GROUP_WORLD);
    }
    if (!st) /* `base` becomes the time and bytes of a chunk besides its blocks */
        subtract(&of_kind->base, &of_kind->block);
    hd_arena_done(&b.arena);
    return st;
}

enum hd_status hd_layer_profiles_whole(const struct hd_job *job, const struct hd_cluster *cluster,
                                       struct hd_units units, struct hd_layer_profile *ret_profile)
{
    struct builder b;
    enum hd_status st;

    builder_begin(&b, cluster, job->native_reduction);
    st = hd_rank_program_prepare(job, &cluster->traits, &(struct hd_rank_program_options){0},
                                 &b.arena, &b.shared);
    b.mesh = b.shared.mesh;
    if (!st)
        st = choose_devices(&b, job);
    if (!st)
        st = declare(&b, 0);
    if (!st)
        st = measure_units(&b, 0, units, ret_profile, NULL);
    hd_arena_done(&b.arena);
    return st;
}

static enum hd_status build(const struct hd_job *job, const struct hd_cluster *cluster,
                            const struct profile_scope *scope,
                            const struct hd_layer_profiles *dense, struct hd_layer_profiles *p);

/* Returns the seconds of F, or of decoding, of all units. */
static double forward_of(const struct hd_layer_profiles *p, const struct hd_model_config *config)
{
    double seconds = p->kind[p->first_kind].base.time[HD_LAYER_PROFILE_F][0].run +
                     p->embedding.time[HD_LAYER_PROFILE_F][0].run +
                     p->head.time[HD_LAYER_PROFILE_F][0].run;

    for (int64_t layer = 0; layer < config->L; layer++)
        seconds +=
            p->kind[hd_model_layer_kind(config, layer)].block.time[HD_LAYER_PROFILE_F][0].run;
    return seconds;
}

static enum hd_status measure_forward(const struct hd_job *job, const struct hd_cluster *cluster,
                                      const struct profile_scope *scope,
                                      struct hd_layer_profiles *p, double *ret_seconds)
{
    struct hd_model_config config;
    enum hd_status st = hd_model_config_from_job(job, &config);

    if (!st)
        st = build(job, cluster, scope, NULL, p);
    if (!st)
        *ret_seconds = forward_of(p, &config);
    return st;
}

/* Computes F of the models that only compute: of the frozen one, which is split as the one that trains, but
 * not by ZeRO, and of the reference, which is the one that trains with other weights. */
static enum hd_status measure_frozen(const struct hd_job *job, const struct hd_cluster *cluster,
                                     struct hd_layer_profiles *p)
{
    struct hd_model_config config;
    struct hd_layer_profiles of_frozen;
    struct hd_job frozen;
    struct hd_arena arena;
    enum hd_status st = hd_model_config_from_job(job, &config);

    hd_arena_init(&arena, 0);
    if (!st && hd_job_has_frozen_model(job)) {
        st = hd_job_of_frozen(job, &arena, &frozen);
        frozen.distill_write = false;
        frozen.zero = 0;
        if (!st)
            st = measure_forward(&frozen, cluster, &(struct profile_scope){0}, &of_frozen,
                                 &p->frozen);
        if (st)
            st = hd_err_prefix(st, "%s", hd_job_frozen_path(job));
    }
    if (!st && hd_job_has_reference(job))
        p->frozen += forward_of(p, &config);
    if (hd_job_has_policy_loss(job)) /* the answers of several updates are rated once */
        p->frozen /= (double)hd_max(job->rollout_updates, 1);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status build(const struct hd_job *job, const struct hd_cluster *cluster,
                            const struct profile_scope *scope,
                            const struct hd_layer_profiles *dense, struct hd_layer_profiles *p)
{
    enum hd_status st;

    memset(p, 0, sizeof *p);
    p->has_inner = hd_layer_profile_segment(job) > 1;
    p->stage_io_bytes = dense ? dense->stage_io_bytes : 0;
    st = find_kinds(job, p);
    for (int kind = 0; !st && kind < HD_LAYER_KINDS; kind++)
        if (p->has_kind[kind] && dense && (kind & HD_LAYER_DENSE))
            p->kind[kind] = dense->kind[kind];
        else if (p->has_kind[kind])
            st = measure_kind(job, cluster, kind, scope, p);
    return st || scope->blocks_only ? st : measure_frozen(job, cluster, p);
}

enum hd_status hd_layer_profiles_build(const struct hd_job *job, const struct hd_cluster *cluster,
                                       struct hd_layer_profiles *ret_profiles)
{
    return build(job, cluster, &(struct profile_scope){0}, NULL, ret_profiles);
}

enum hd_status hd_layer_profiles_blocks(const struct hd_job *job, const struct hd_cluster *cluster,
                                        const struct hd_layer_profiles *dense,
                                        struct hd_layer_profiles *ret_profiles)
{
    return build(job, cluster, &(struct profile_scope){.blocks_only = true}, dense, ret_profiles);
}

enum hd_status hd_layer_profiles_decode(const struct hd_job *job, const struct hd_cluster *cluster,
                                        int64_t slots, int64_t rows,
                                        struct hd_layer_profiles *ret_profiles, double *ret_seconds)
{
    const struct profile_scope scope = {.slots = slots, .rows = rows};

    return measure_forward(job, cluster, &scope, ret_profiles, ret_seconds);
}

/* ---- the state of parameters ---- */

/* Returns the seconds in which a collective moves a bucket, of which each rank has a shard of elements of
 * `width` bytes. */
static double moving_seconds(struct builder *b, const struct hd_bucket *p, enum hd_comm_kind comm,
                             size_t width)
{
    return hd_links_collective(b->cluster, group_of(b, p->shard_group), comm,
                               (double)p->shard_count * (double)width, b->native);
}

/* Adds a bucket that the registry's rank holds to the state of its unit. */
static void add_bucket_state(struct builder *b, const struct hd_registry *r,
                             const struct hd_bucket *p, struct hd_layer_state *state)
{
    const struct hd_job *job = &b->shared.job;
    const size_t width = hd_rank_program_is_fp8(job) ? 1 : hd_dtype_size(p->compute),
                 wire = job->reduce == HD_JOB_REDUCE_BF16 ? 2 : 4;

    for (int k = 0; k < HD_STATE_KIND_COUNT; k++) {
        const enum hd_state_kind kind = (enum hd_state_kind)k;

        if (p->offset[k] >= 0 && (kind != HD_STATE_COPY || p->copied))
            *(hd_state_is_on_host(p, kind) ? &state->host_bytes : &state->device_bytes) +=
                (double)hd_tensor_align(hd_bucket_state_bytes(r, p, kind));
    }
    if (p->zero == 3) {
        state->gathered_bytes =
            hd_max_real(state->gathered_bytes, (double)(p->count - p->shard_count) * (double)width);
        state->gather_s += moving_seconds(b, p, HD_COMM_ALL_GATHER, width);
    }
    if (p->zero >= 2)
        state->reduce_s += moving_seconds(b, p, HD_COMM_REDUCE_SCATTER, wire);
}

/* Lowers the members of *least to those of `one`. */
static void take_lesser(struct hd_layer_state *least, const struct hd_layer_state *one)
{
    least->device_bytes = hd_min_real(least->device_bytes, one->device_bytes);
    least->host_bytes = hd_min_real(least->host_bytes, one->host_bytes);
    least->gathered_bytes = hd_min_real(least->gathered_bytes, one->gathered_bytes);
    least->gather_s = hd_min_real(least->gather_s, one->gather_s);
    least->reduce_s = hd_min_real(least->reduce_s, one->reduce_s);
}

/* Adds up the states of the units that the builder has declared; kind: that of its blocks. Those of
 * embedding and head are taken if `ends`. */
static enum hd_status add_states(struct builder *b, int kind, bool ends,
                                 struct hd_layer_states *states)
{
    const int head = b->model[1].unit_head, stages = b->shared.mesh.sizes.pp;
    struct hd_layer_state *units = hd_arena_array(&b->arena, (size_t)head + 1, sizeof *units);
    bool seen[HD_LAYER_KINDS] = {false};

    if (!units)
        return hd_err(HD_NO_MEMORY, "no memory for the state of a model");
    for (int stage = 0; stage < stages; stage++)
        for (int i = 0; i < b->registry[stage].bucket_count; i++) {
            const struct hd_bucket *p = &b->registry[stage].buckets[i];
            struct hd_layer_state tied = {0};

            if (!p->is_local)
                continue;
            add_bucket_state(b, &b->registry[stage], p,
                             p->stage == stage ? &units[p->unit] : &tied);
            states->tied_bytes += tied.device_bytes;
        }
    if (ends) {
        states->embedding = units[HD_UNIT_EMBEDDING];
        states->head = units[head];
    }
    for (int unit = HD_UNIT_FIRST_BLOCK;
         unit < (kind == ALL_KINDS ? head : HD_UNIT_FIRST_BLOCK + 1); unit++) {
        const int of = kind == ALL_KINDS
                           ? hd_model_layer_kind(&b->shared.config, unit - HD_UNIT_FIRST_BLOCK)
                           : kind;

        if (seen[of])
            take_lesser(&states->block[of], &units[unit]);
        else
            states->block[of] = units[unit];
        seen[of] = true;
    }
    return HD_OK;
}

enum hd_status hd_layer_states_find(const struct hd_job *job, const struct hd_cluster *cluster,
                                    bool whole, struct hd_layer_states *ret_states)
{
    struct hd_layer_profiles kinds = {.has_inner = false};
    enum hd_status st = find_kinds(job, &kinds);

    *ret_states = (struct hd_layer_states){.tied_bytes = 0};
    for (int kind = whole ? ALL_KINDS : 0; !st && kind < (whole ? 0 : HD_LAYER_KINDS); kind++) {
        const bool ends = whole || kind == kinds.head_kind;
        struct hd_job one = *job;
        struct builder b;

        if (!whole && !kinds.has_kind[kind])
            continue;
        if (!ends)
            one.pp = 1;
        builder_begin(&b, cluster, job->native_reduction);
        st = declare_small(&b, &one, kind);
        if (!st)
            st = add_states(&b, kind, ends, ret_states);
        hd_arena_done(&b.arena);
    }
    return st;
}

#include "plan/plan.h"

#include <string.h>

#include "plan/choose.h"
#include "train/source.h"

int64_t hd_memory_total(const struct hd_memory *memory)
{
    return memory->private_bytes + memory->visible_bytes;
}

static void fold_step(const struct hd_layout *l, struct hd_dry *step)
{
    for (int32_t i = 0; i < l->plan.count; i++)
        hd_layout_fold(l, &l->plan.list[i], step);
}

/* ---- the pipeline ---- */

static double chunk_flops(const struct hd_layout *l, int32_t chunk)
{
    double flops = 0;

    for (int unit = l->units[chunk].first; unit < l->units[chunk].end; unit++)
        flops += hd_model_unit_flops(&l->model.config, unit);
    return flops;
}

static struct hd_plan_chunk describe_chunk(const struct hd_layout *l, int32_t chunk)
{
    const struct hd_units u = l->units[chunk];
    const int first = u.first > HD_UNIT_FIRST_BLOCK ? u.first : HD_UNIT_FIRST_BLOCK,
              end = u.end <= l->model.unit_head ? u.end : l->model.unit_head;

    return (struct hd_plan_chunk){first - HD_UNIT_FIRST_BLOCK, end > first ? end - first : 0,
                                  u.first == HD_UNIT_EMBEDDING, u.end > l->model.unit_head};
}

/* A forward takes a third of the FLOPs of training, the gradients of inputs and of weights one each
 * (Korthikanti et al. 2022, appendix A). */
static enum hd_status plan_pipeline(const struct hd_layout *l, struct hd_arena *arena,
                                    struct hd_plan *plan)
{
    const int32_t chunks = l->pipeline.chunks, stages = l->pipeline.stages;
    double *third = hd_arena_array(arena, (size_t)chunks, sizeof *third);
    double *backward = hd_arena_array(arena, (size_t)chunks, sizeof *backward);
    const struct hd_order_costs costs = {third, backward, third, 0};
    struct hd_order_times times;
    double all = 0;
    enum hd_status st;

    plan->pipeline = l->pipeline;
    plan->chunks = hd_arena_array(arena, (size_t)chunks, sizeof *plan->chunks);
    plan->stages = hd_arena_array(arena, (size_t)stages, sizeof *plan->stages);
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    for (int32_t c = 0; c < chunks; c++) {
        plan->chunks[c] = describe_chunk(l, c);
        third[c] = chunk_flops(l, c) / 3;
        backward[c] = l->order.split ? third[c] : 2 * third[c];
        all += chunk_flops(l, c);
        plan->stages[hd_pipeline_stage(&l->pipeline, c)].work += chunk_flops(l, c);
    }
    st = hd_order_walk(&l->order, &costs, arena, &times);
    for (int32_t s = 0; !st && s < stages; s++) {
        plan->stages[s].work *= stages / all;
        plan->stages[s].busy = times.busy[s] / times.total;
    }
    plan->bubble = times.bubble;
    return st;
}

static enum hd_status plan_rank(const struct hd_job *job, const struct hd_traits *traits, int rank,
                                struct hd_arena *kept, struct hd_plan *plan)
{
    struct hd_plan_rank *r = &plan->ranks[rank];
    struct hd_layout layout;
    struct hd_arena arena; /* freed after each rank: a layout is much larger than the result */
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_layout_build(job, rank, traits, &(struct hd_layout_options){0}, &arena, &layout);
    if (!st) {
        r->coord = layout.coord;
        r->memory = layout.memory;
        r->kept_slots = layout.plan.kept_slots;
        r->deferred_slots = layout.plan.deferred_slots;
        r->boundary_slots = layout.plan.boundary_slots;
        fold_step(&layout, &r->step);
        if (hd_traits_is_cuda(traits)) {
            r->reserved_bytes = hd_memory_on_device(&r->memory, traits);
            r->overhead = hd_layout_gpu_overhead(&layout, traits);
            r->device_bytes =
                r->reserved_bytes + r->overhead.process_bytes + r->overhead.communicators_bytes;
        }
        plan->parameters = hd_registry_global_count(&layout.registry);
        plan->micro_batches = layout.micro_batches;
        if (rank == 0)
            st = plan_pipeline(&layout, kept, plan);
    }
    hd_arena_done(&arena);
    return st;
}

enum hd_status hd_plan_build(const struct hd_job *job, const struct hd_traits *traits,
                             struct hd_arena *arena, struct hd_plan *ret_plan)
{
    const int64_t world = job->pp * job->dp * job->cp * job->tp;
    const char *engine;
    const int32_t most = hd_plan_ranks_max(job->device, &engine);
    struct hd_plan plan = {0};
    enum hd_status st = HD_OK;

    if (world < 1 || world > most)
        return hd_err(HD_LIMIT,
                      "a plan is for 1 to %d ranks, which the engine %s connects, not %lld", most,
                      engine, (long long)world);
    plan.world = (int)world;
    plan.ranks = hd_arena_array(arena, (size_t)world, sizeof *plan.ranks);
    if (!plan.ranks)
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    for (int rank = 0; !st && rank < plan.world; rank++)
        st = plan_rank(job, traits, rank, arena, &plan);
    *ret_plan = plan;
    return st;
}

/* The parameters as a job of one rank has them: whole. */
static enum hd_status declare_whole(const struct hd_job *spec, struct hd_arena *arena,
                                    struct hd_registry *registry)
{
    struct hd_model_config config;
    struct hd_model model;
    enum hd_status st = hd_model_config_from_job(spec, &config);

    if (st)
        return st;
    hd_registry_init(registry, arena, NULL, 0);
    return hd_model_declare(&config, registry, arena, &model);
}

enum hd_status hd_plan_check_weights(const struct hd_job *spec)
{
    const bool own = strcmp(spec->init_from, spec->from_dir) == 0;
    struct hd_source *source = NULL;
    struct hd_registry registry;
    struct hd_arena arena;
    enum hd_status st;

    if (spec->init_from[0] != '/') /* "" or none */
        return HD_OK;
    hd_arena_init(&arena, 0);
    st = declare_whole(spec, &arena, &registry);
    if (!st) {
        st = hd_source_open(spec->init_from, spec, &registry, &source);
        if (st == HD_NOT_FOUND || st == HD_CORRUPT || st == HD_LIMIT)
            st = HD_INVALID;
        if (st)
            st = hd_err_prefix(st, own ? "model.from" : "train.init_from");
    }
    hd_source_close(source);
    hd_arena_done(&arena);
    return st;
}

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
    for (int i = 0; i < l->plan.count; i++) {
        const struct hd_instruction *in = &l->plan.list[i];

        if (in->kind == HD_DO_RUN)
            hd_dry_add(step, l->train, in->call, in->first, in->last);
        else if (in->kind == HD_DO_UPDATE)
            hd_dry_add(step, l->update, HD_CALL_U, true, true);
    }
}

static enum hd_status plan_rank(const struct hd_job *job, const struct hd_traits *traits, int rank,
                                struct hd_plan *plan)
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
        fold_step(&layout, &r->step);
        if (hd_traits_is_cuda(traits)) {
            r->reserved_bytes = hd_memory_on_device(&r->memory, traits);
            r->overhead = hd_layout_gpu_overhead(&layout.mesh, traits);
            r->device_bytes =
                r->reserved_bytes + r->overhead.process_bytes + r->overhead.communicators_bytes;
        }
        plan->parameters = hd_registry_global_count(&layout.registry);
        plan->micro_batches = layout.micro_batches;
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
        st = plan_rank(job, traits, rank, &plan);
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

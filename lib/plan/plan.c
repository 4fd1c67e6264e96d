#include "plan/plan.h"

#include <string.h>

#include "plan/choose.h"

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

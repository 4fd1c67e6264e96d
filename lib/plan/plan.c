#include "plan/plan.h"

#include <string.h>

#include "plan/classes.h"
#include "program/matrices.h"
#include "train/source.h"

int64_t hd_memory_total(const struct hd_memory *memory)
{
    return memory->private_bytes + memory->registered_bytes;
}

int64_t hd_plan_class_bytes(const struct hd_plan_class *of)
{
    return of->device_bytes ? of->device_bytes : hd_memory_total(&of->memory);
}

const struct hd_plan_class *hd_plan_fullest(const struct hd_plan *plan, int32_t stage)
{
    const struct hd_plan_class *most = NULL;

    for (int32_t i = 0; i < plan->class_count; i++) {
        const struct hd_plan_class *one = &plan->classes[i];

        if ((stage < 0 || one->stage == stage) &&
            (!most || hd_plan_class_bytes(one) > hd_plan_class_bytes(most)))
            most = one;
    }
    return most;
}

static void add_times(struct hd_dry *sum, const struct hd_dry *one, int64_t times)
{
    sum->costs.flops += (double)times * one->costs.flops;
    sum->costs.read_bytes += times * one->costs.read_bytes;
    sum->costs.write_bytes += times * one->costs.write_bytes;
    sum->gemm_flops += (double)times * one->gemm_flops;
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        for (int k = 0; k < HD_COMM_KIND_COUNT; k++) {
            sum->calls[g][k] += times * one->calls[g][k];
            sum->group_bytes[g][k] += times * one->group_bytes[g][k];
        }
}

/* Returns whether two instructions do the same work: a program or a transfer of one chunk. */
static bool works_like(const struct hd_instruction *a, const struct hd_instruction *b)
{
    return a->kind == b->kind && a->call == b->call && a->chunk == b->chunk && a->last == b->last;
}

/* Adds the work of the frozen model on the micro-batches of a step. */
static void fold_frozen(const struct hd_rank_program *t, int64_t micro_batches, struct hd_dry *step)
{
    const int64_t round = t->eval_order.micro_batches;

    for (int32_t i = 0; i < t->eval_plan.count; i++) {
        const struct hd_instruction *in = &t->eval_plan.list[i];
        struct hd_dry one = {0};

        if (in->kind == HD_DO_SYNCHRONIZE || in->micro_batch >= micro_batches)
            continue;
        hd_rank_program_fold(t, in, &one);
        add_times(step, &one, (micro_batches - 1 - in->micro_batch) / round + 1);
    }
}

/* Adds up the FLOPs and bytes of a step's instruction stream. Each kind of instruction is counted
 * once and multiplied, since a stream has few kinds but thousands of instructions. */
static enum hd_status fold_step(const struct hd_rank_program *l, struct hd_arena *arena,
                                struct hd_dry *step)
{
    const int kinds_max = 16 * (l->chunk_count + 1);
    const struct hd_instruction **kinds = hd_arena_array(arena, (size_t)kinds_max, sizeof *kinds);
    int64_t *times = hd_arena_array(arena, (size_t)kinds_max, sizeof *times);
    int count = 0;

    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    for (int32_t i = 0; i < l->plan.count; i++) {
        int k = 0;

        while (k < count && !works_like(kinds[k], &l->plan.list[i]))
            k++;
        if (k == count)
            kinds[count++] = &l->plan.list[i];
        times[k]++;
    }
    for (int k = 0; k < count; k++) {
        struct hd_dry one = {0};

        hd_rank_program_fold(l, kinds[k], &one);
        add_times(step, &one, times[k]);
    }
    if (l->frozen_program)
        fold_frozen(l->frozen_program, l->micro_batches, step);
    return HD_OK;
}

/* ---- the pipeline ---- */

static double chunk_flops(const struct hd_rank_program *l, int32_t chunk)
{
    double flops = 0;

    for (int unit = l->units[chunk].first; unit < l->units[chunk].end; unit++)
        flops += hd_model_unit_flops(&l->model.config, unit);
    return flops;
}

static struct hd_plan_chunk describe_chunk(const struct hd_rank_program *l, int32_t chunk)
{
    const struct hd_units u = l->units[chunk];
    const int first = u.first > HD_UNIT_FIRST_BLOCK ? u.first : HD_UNIT_FIRST_BLOCK,
              end = u.end <= l->model.unit_head ? u.end : l->model.unit_head;

    return (struct hd_plan_chunk){first - HD_UNIT_FIRST_BLOCK, end > first ? end - first : 0,
                                  u.first == HD_UNIT_EMBEDDING, u.end > l->model.unit_head};
}

/* Computes the busy time of each pipeline stage and the bubble. Forward takes one third of the
 * FLOPs of training, the gradients of inputs and of weights one third each (Korthikanti et al.
 * 2022, appendix A). */
static enum hd_status plan_pipeline(const struct hd_rank_program *l, struct hd_arena *arena,
                                    struct hd_plan *plan)
{
    const int32_t chunks = l->pipeline.chunks, stages = l->pipeline.stages;
    double *third = hd_arena_array(arena, (size_t)chunks, sizeof *third);
    double *backward = hd_arena_array(arena, (size_t)chunks, sizeof *backward);
    const struct hd_schedule_costs costs = {third, backward, third, 0};
    struct hd_schedule_times times;
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
    st = hd_schedule_walk(&l->order, &costs, arena, &times);
    for (int32_t s = 0; !st && s < stages; s++) {
        plan->stages[s].work *= stages / all;
        plan->stages[s].busy = times.busy[s] / times.total;
    }
    plan->bubble = times.bubble;
    return st;
}

/* ---- the classes ---- */

/* Counts the matrices of a class from its lowest rank. */
static void count_matrices(const struct hd_registry *r, struct hd_plan_class *c)
{
    const struct hd_matrix_plan *m = r->matrices;
    const int mine = hd_mesh_find_group(&r->mesh, HD_GROUP_STAGE, r->rank).index;

    if (!m)
        return;
    c->matrix_rounds = m->round_count;
    c->owned_matrices = 0;
    for (int64_t i = 0; i < m->count; i++)
        c->owned_matrices += m->matrices[i].owner == mine;
}

/* Sets memory and work of a class from its lowest rank, which is laid out. */
static enum hd_status plan_class(const struct hd_rank_program *layout,
                                 const struct hd_traits *traits, struct hd_arena *scratch,
                                 struct hd_plan_class *c)
{
    c->stage = layout->coord.pp;
    c->memory = layout->memory;
    count_matrices(&layout->registry, c);
    c->saved_slots = layout->plan.saved_slots;
    c->deferred_slots = layout->plan.deferred_slots;
    c->stage_io_slots = layout->plan.stage_io_slots;
    c->sample_slots = layout->decode.slots;
    c->sample_bytes = layout->decode.bytes;
    c->sample_beyond_bytes = layout->decode.beyond_bytes;
    for (int p = 0; layout->decode.slots && p < HD_DECODE_PROGRAMS; p++)
        for (int k = 0; k < layout->chunk_count; k++)
            hd_dry_add(&c->decode[p], layout->decode.chunks[p][k], HD_CALL_D, true);
    if (hd_traits_is_cuda(traits)) {
        c->reserved_bytes = hd_memory_on_device(&c->memory, traits);
        c->overhead = hd_rank_program_gpu_overhead(layout, traits);
        c->device_bytes =
            c->reserved_bytes + c->overhead.process_bytes + c->overhead.communicators_bytes;
    }
    return fold_step(layout, scratch, &c->step);
}

/* Lays out a class and all classes with the same programs. The first class also sets the values of
 * the plan that all ranks have in common. */
static enum hd_status plan_alike(const struct hd_rank_program_shared *shared,
                                 const struct hd_traits *traits, const struct hd_classes *classes,
                                 int32_t first, struct hd_arena *kept, struct hd_plan *plan)
{
    struct hd_rank_program layout;
    /* freed after each class: a rank program is much larger than the result */
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_rank_program_build_rank(shared, plan->classes[first].lowest, &arena, &layout);
    for (int32_t i = first; !st && i < classes->count; i++) {
        if (classes->like[i] != first)
            continue;
        if (i != first)
            st = hd_rank_program_take_place(shared, plan->classes[i].lowest, &layout);
        if (!st)
            st = plan_class(&layout, traits, &arena, &plan->classes[i]);
    }
    if (!st && first == 0) {
        plan->parameters = hd_registry_global_count(&layout.registry);
        plan->trained = hd_registry_trained_count(&layout.registry);
        plan->micro_batches = layout.micro_batches;
        st = plan_pipeline(&layout, kept, plan);
    }
    hd_arena_done(&arena);
    return st;
}

/* Lays out the first rank of the limit's stage. If it needs more than the limit, makes it the plan's
 * only class. */
static enum hd_status plan_fullest(const struct hd_rank_program_shared *shared,
                                   const struct hd_traits *traits,
                                   const struct hd_plan_limit *limit, struct hd_arena *kept,
                                   struct hd_plan *plan)
{
    const int32_t rank = limit->stage * (shared->mesh.world / shared->mesh.sizes.pp);
    struct hd_plan_class *class = hd_arena_alloc(kept, sizeof *class);
    struct hd_rank_program layout;
    struct hd_arena arena;
    enum hd_status st;

    if (!class)
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    *class = (struct hd_plan_class){.lowest = rank, .ranks = 1};
    hd_arena_init(&arena, 0);
    st = hd_rank_program_build_rank(shared, rank, &arena, &layout);
    if (!st)
        st = plan_class(&layout, traits, &arena, class);
    hd_arena_done(&arena);
    plan->partial = !st && hd_plan_class_bytes(class) > limit->bytes;
    plan->classes = class;
    plan->class_count = 1;
    return st;
}

static enum hd_status plan_classes(const struct hd_rank_program_shared *shared,
                                   const struct hd_traits *traits, struct hd_arena *arena,
                                   struct hd_plan *plan)
{
    struct hd_classes classes;
    enum hd_status st = hd_classes_find(shared, arena, &classes);

    if (st)
        return st;
    plan->mesh = shared->mesh;
    plan->class_of = classes.of;
    plan->class_count = classes.count;
    plan->classes = hd_arena_array(arena, (size_t)classes.count, sizeof *plan->classes);
    if (!plan->classes)
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    for (int32_t rank = 0; rank < shared->mesh.world; rank++)
        plan->classes[classes.of[rank]].ranks++;
    for (int32_t i = 0; i < classes.count; i++)
        plan->classes[i].lowest = classes.lowest[i];
    for (int32_t i = 0; !st && i < classes.count; i++)
        if (classes.like[i] == i)
            st = plan_alike(shared, traits, &classes, i, arena, plan);
    return st;
}

static enum hd_status build_within(const struct hd_job *job, const struct hd_traits *traits,
                                   const struct hd_plan_limit *limit, struct hd_arena *arena,
                                   struct hd_plan *ret_plan)
{
    const double world = (double)job->pp * (double)job->dp * (double)job->cp * (double)job->tp;
    struct hd_rank_program_shared shared;
    struct hd_arena scratch;
    enum hd_status st;

    if (world < 1 || world > HD_PLAN_DEVICES_MAX)
        return hd_err(HD_LIMIT, "a plan is for 1 to %d ranks, not %.0f", HD_PLAN_DEVICES_MAX,
                      world);
    *ret_plan = (struct hd_plan){0};
    hd_arena_init(&scratch, 0);
    st = hd_rank_program_prepare(job, traits, &(struct hd_rank_program_options){0}, &scratch,
                                 &shared);
    if (!st && limit)
        st = plan_fullest(&shared, traits, limit, arena, ret_plan);
    if (!st && !ret_plan->partial)
        st = plan_classes(&shared, traits, arena, ret_plan);
    hd_arena_done(&scratch);
    return st;
}

enum hd_status hd_plan_build_layout(const struct hd_job *spec, const struct hd_layout_sizes *sizes,
                                    const struct hd_traits *device,
                                    const struct hd_plan_limit *limit, struct hd_arena *arena,
                                    struct hd_plan *ret_plan)
{
    struct hd_traits traits = *device;
    struct hd_job job = *spec;

    job.layout = *sizes;
    if (!hd_traits_is_cuda(&traits))
        traits.threads = (int)sizes->threads;
    return build_within(&job, &traits, limit, arena, ret_plan);
}

enum hd_status hd_plan_build(const struct hd_job *job, const struct hd_traits *traits,
                             struct hd_arena *arena, struct hd_plan *ret_plan)
{
    return build_within(job, traits, NULL, arena, ret_plan);
}

/* Declares the model's parameters as a job of one rank has them: not split. */
static enum hd_status declare_whole(const struct hd_job *spec, struct hd_arena *arena,
                                    struct hd_registry *registry)
{
    struct hd_model_config config;
    struct hd_model model;
    enum hd_status st = hd_model_config_from_job(spec, &config);

    if (st)
        return st;
    hd_registry_init(registry, arena, NULL, 0);
    registry->quant = hd_rank_program_quant(spec);
    return hd_model_declare(&config, registry, arena, &model);
}

enum hd_status hd_plan_check_weights(const struct hd_job *spec)
{
    const bool own = strcmp(spec->init_from, spec->from_dir) == 0;
    struct hd_source *source = NULL;
    struct hd_registry registry;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = declare_whole(spec, &arena, &registry);
    if (!st && spec->init_from[0] == '/') { /* an absolute path; otherwise it is "" or "none" */
        const struct hd_source_dirs dirs = {.dir = spec->init_from, .adapter = spec->adapter_from};

        st = hd_source_open(&dirs, spec, &registry, &source);
        if (st == HD_NOT_FOUND || st == HD_CORRUPT || st == HD_LIMIT)
            st = HD_INVALID;
        if (st)
            st = hd_err_prefix(st, *spec->continue_from ? "train.continue_from"
                                   : own                ? "model.from"
                                                        : "train.init_from");
    }
    hd_source_close(source);
    hd_arena_done(&arena);
    return st;
}

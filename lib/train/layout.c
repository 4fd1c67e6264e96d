#include "train/layout.h"

#include <string.h>

#include "comm/nccl.h"
#include "optim/optim.h"

static int64_t round_up(int64_t bytes)
{
    return (bytes + HD_TENSOR_ALIGN - 1) / HD_TENSOR_ALIGN * HD_TENSOR_ALIGN;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

enum hd_dtype hd_layout_compute_dtype(const struct hd_job *job)
{
    return strcmp(job->precision, "bf16") == 0 ? HD_BF16 : HD_F32;
}

static enum hd_status check_plan(const struct hd_job *job)
{
    if (job->pp != 1)
        return hd_err(HD_UNSUPPORTED, "parallel.pp: %lld is not supported yet; set it to 1 or auto",
                      (long long)job->pp);
    if (job->cp > 1 && job->context % (2 * job->cp))
        return hd_err(HD_INVALID,
                      "model.context: %lld is no multiple of 2 x cp = %lld: each rank takes two "
                      "chunks of a sequence",
                      (long long)job->context, (long long)(2 * job->cp));
    if (job->global_batch % (job->dp * job->micro_batch))
        return hd_err(
            HD_INVALID, "train.global_batch: %lld is no multiple of dp x micro_batch = %lld x %lld",
            (long long)job->global_batch, (long long)job->dp, (long long)job->micro_batch);
    if (strcmp(job->precision, "fp32") != 0 && strcmp(job->precision, "bf16") != 0)
        return hd_err(HD_UNSUPPORTED,
                      "train.precision: '%s' is not supported yet; use fp32 or bf16",
                      job->precision);
    return HD_OK;
}

/* Refuses sizes that could overflow the arithmetic of bytes and offsets. */
static enum hd_status check_sizes(const struct hd_job *job, const struct hd_model_config *c)
{
    const double widest = (double)(3 * c->F > 3 * c->C ? 3 * c->F : 3 * c->C);
    const double bytes = (double)job->micro_batch * (double)job->context * widest * 4;

    if (bytes < 0x1p46)
        return HD_OK;
    return hd_err(
        HD_LIMIT,
        "micro_batch %lld x model.context %lld: one activation alone would take %.0f TiB; "
        "lower them",
        (long long)job->micro_batch, (long long)job->context, bytes / 0x1p40);
}

static enum hd_status compile(struct hd_layout *layout, enum hd_record_mode mode,
                              const struct hd_compile_options *options, struct hd_arena *arena,
                              struct hd_chunk **ret_chunk)
{
    const struct hd_rec_shape shape = {.mode = mode,
                                       .B = layout->job.micro_batch,
                                       .S = layout->job.context / layout->job.cp,
                                       .context = layout->job.context,
                                       .bounded = strcmp(layout->job.documents, "bounded") == 0,
                                       .gather_keys =
                                           strcmp(layout->job.cp_exchange, "all_gather") == 0};
    struct hd_rec *rec = hd_rec_new(&layout->registry, &shape, arena);

    if (!rec)
        return hd_err(HD_NO_MEMORY, "no memory to record the model");
    hd_model_record(&layout->model, rec);
    return hd_compile(rec, options, ret_chunk);
}

static enum hd_status compile_all(struct hd_layout *layout, const struct hd_traits *traits,
                                  const struct hd_layout_options *options, struct hd_arena *arena)
{
    struct hd_compile_options o = {
        .precision = hd_precision_uniform(hd_layout_compute_dtype(&layout->job)),
        .mesh = &layout->mesh,
        .traits = *traits,
        .split_backward = options->split_backward,
    };
    enum hd_status st;

    /* as the job's backend sets it; a planner's traits may be of a GPU that was not opened */
    o.traits.dbias_apart |= layout->job.deterministic;
    st = compile(layout, HD_RECORD_TRAIN, &o, arena, &layout->train);

    if (!st)
        st = compile(layout, HD_RECORD_EVAL, &o, arena, &layout->eval);
    if (!st)
        st = hd_optim_compile(&layout->registry, &o, arena, &layout->update);
    return st;
}

/* ---- memory ---- */

static int64_t whole_pages(int64_t bytes, int64_t page_bytes)
{
    return bytes > 0 ? (bytes + page_bytes - 1) / page_bytes * page_bytes : page_bytes;
}

int64_t hd_memory_on_device(const struct hd_memory *memory, const struct hd_traits *traits)
{
    return whole_pages(memory->private_bytes, traits->page_bytes) +
           whole_pages(memory->visible_bytes, traits->page_bytes);
}

struct hd_gpu_overhead hd_layout_gpu_overhead(const struct hd_mesh *mesh,
                                              const struct hd_traits *traits)
{
    enum hd_group_name names[HD_GROUP_COUNT];
    struct hd_gpu_overhead b = {.process_bytes = traits->process_bytes};

    if (mesh->world == 1)
        return b;
    b.communicators = 1 + hd_mesh_divisions(mesh, names);
    b.communicators_bytes = b.communicators * traits->communicator_bytes +
                            whole_pages(HD_COMM_NCCL_BYTES, traits->page_bytes);
    return b;
}

static void add_state(const struct hd_registry *r, struct hd_memory *m)
{
    int64_t parts = 0;

    for (int i = 0; i < r->part_count; i++) {
        const struct hd_part *p = &r->parts[i];
        int64_t *const purpose[HD_STATE_KIND_COUNT] = {
            [HD_STATE_WEIGHT] = &m->weights,  [HD_STATE_COPY] = &m->copies,
            [HD_STATE_GRAD] = &m->gradients,  [HD_STATE_MOMENT1] = &m->moments,
            [HD_STATE_MOMENT2] = &m->moments, [HD_STATE_RANGES] = &m->step_state,
        };

        for (int k = 0; k < HD_STATE_KIND_COUNT; k++) {
            bool shared = k == HD_STATE_COPY && p->offset[k] == p->offset[HD_STATE_WEIGHT];
            int64_t bytes = round_up(hd_part_state_bytes(r, p, (enum hd_state_kind)k));

            if (p->offset[k] < 0 || shared)
                continue;
            *purpose[k] += bytes;
            parts += bytes;
        }
    }
    m->step_state += r->private_bytes + r->visible_bytes - parts; /* the globals */
}

/* The most records of one run of a program: program and input, a launch and a poll per node, a wait
 * per edge, and the waits at the end. */
static int64_t program_records(const struct hd_program *p)
{
    int64_t records = 2 + HD_NODE_WAITS_MAX;

    for (int i = 0; i < p->count; i++)
        records += 2 + p->nodes[i]->wait_count;
    return records;
}

static int64_t profile_records(const struct hd_layout *l)
{
    const int64_t last = l->job.profile_last < l->job.steps ? l->job.profile_last : l->job.steps;
    int64_t records = 2; /* the step, and the join that ends it */

    if (!l->job.profile_first || last < l->job.profile_first)
        return 0;
    for (int i = 0; i < l->plan.count; i++) {
        const struct hd_instruction *in = &l->plan.list[i];

        if (in->kind == HD_DO_RUN)
            records += program_records(&l->train->program[in->call]);
        else if (in->kind == HD_DO_UPDATE)
            records += program_records(&l->update->program[HD_CALL_U]);
        else
            records++;
    }
    return records * (last - l->job.profile_first + 1);
}

/* Places the memory that only the host uses at *end. */
static void place_host_bytes(struct hd_layout *l, int64_t *end)
{
    struct hd_memory *m = &l->memory;
    const int64_t number = (int64_t)sizeof(int32_t);
    const int64_t rows = l->job.micro_batch * l->job.context / l->job.cp;

    l->profile = *end;
    m->profile = round_up(profile_records(l) * HD_PROFILE_RECORD_BYTES);
    l->sample = l->profile + m->profile;
    l->batch = l->sample;
    if (l->mesh.sizes.cp > 1)
        l->batch += round_up(HD_SAMPLE_FIELDS * l->job.context * number);
    m->sample = l->batch - l->sample;
    if (hd_layout_has_device(l))
        m->sample += round_up(HD_BATCH_FIELDS * rows * number);
    *end = l->sample + m->sample;
}

static void place_regions(struct hd_layout *l)
{
    const struct hd_chunk *chunks[] = {l->train, l->eval, l->update};
    int64_t end[2] = {l->registry.private_bytes, l->registry.visible_bytes};
    struct hd_memory *m = &l->memory;

    add_state(&l->registry, m);
    l->train_state = end[0];
    l->eval_state = end[0] + l->train->extent[HD_REGION_STATE].private_bytes;
    m->constants = l->eval_state - end[0] + l->eval->extent[HD_REGION_STATE].private_bytes;
    end[0] += m->constants;
    for (int v = 0; v < 2; v++) {
        const struct hd_extent *kept = &l->train->extent[HD_REGION_KEPT];
        const struct hd_extent *deferred = &l->train->extent[HD_REGION_DEFERRED];
        int64_t work = 0;

        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
            const struct hd_extent *w = &chunks[c]->extent[HD_REGION_WORK];

            work = larger(work, v ? w->visible_bytes : w->private_bytes);
        }
        l->kept_slot[v] = v ? kept->visible_bytes : kept->private_bytes;
        l->deferred_slot[v] = v ? deferred->visible_bytes : deferred->private_bytes;
        l->kept[v] = end[v];
        l->deferred[v] = l->kept[v] + l->kept_slot[v] * l->plan.kept_slots;
        l->work[v] = l->deferred[v] + l->deferred_slot[v] * l->plan.deferred_slots;
        end[v] = l->work[v] + work;
        m->kept += l->deferred[v] - l->kept[v];
        m->deferred += l->work[v] - l->deferred[v];
        m->work += work;
    }
    place_host_bytes(l, hd_layout_has_device(l) ? &m->host_bytes : &end[0]);
    l->exchange = end[1];
    m->exchange = (l->mesh.world + 1) * (int64_t)HD_EXCHANGE_SLOT_BYTES;
    m->private_bytes = end[0];
    m->visible_bytes = end[1] + m->exchange;
}

static enum hd_status check_profile(const struct hd_memory *m)
{
    if (m->profile <= HD_PROFILE_BYTES_MAX)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "train.profile.steps: the records would take %.1f GiB of each rank's memory; "
                  "give fewer steps",
                  (double)m->profile / 0x1p30);
}

enum hd_status hd_layout_build(const struct hd_job *job, int rank, const struct hd_traits *traits,
                               const struct hd_layout_options *options, struct hd_arena *arena,
                               struct hd_layout *ret_layout)
{
    struct hd_layout *l = ret_layout;
    struct hd_model_config config;
    enum hd_status st = check_plan(job);

    *l = (struct hd_layout){.job = *job, .rank = rank};
    if (!st)
        st = hd_model_config_from_job(job, &config);
    if (!st)
        st = hd_mesh_init(
            &l->mesh, &(struct hd_mesh_sizes){.pp = (int32_t)job->pp,
                                              .dp = (int32_t)job->dp,
                                              .cp = (int32_t)job->cp,
                                              .tp = (int32_t)job->tp,
                                              .ep = (int32_t)job->ep,
                                              .kv_replica = hd_model_kv_replica(&config, job->tp)});
    if (!st)
        st = check_sizes(job, &config);
    if (st)
        return st;
    l->coord = hd_mesh_coord(&l->mesh, rank);
    l->micro_batches = job->global_batch / (job->dp * job->micro_batch);
    hd_registry_init(&l->registry, arena, &l->mesh, rank);
    l->registry.sequence = job->sequence && job->tp > 1;
    st = hd_model_declare(&config, &l->registry, arena, &l->model);
    if (!st)
        st = hd_registry_finish(&l->registry, hd_layout_compute_dtype(job), true);
    if (!st)
        st = compile_all(l, traits, options, arena);
    if (!st)
        st = hd_step_plan_build(options->schedule, l->micro_batches, options->split_backward, arena,
                                &l->plan);
    if (!st)
        place_regions(l);
    return st ? st : check_profile(&l->memory);
}

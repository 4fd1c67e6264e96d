#include "train/rank_program.h"

#include "base/math.h"
#include "job/batch_spans.h"
#include "job/data_stages.h"
#include "job/frozen_model.h"
#include "optim/optim.h"
#include "train/partition.h"
#include "train/rank_compile.h"
#include "train/rank_memory.h"
#include "train/save_plan.h"
#include "train/step_plans.h"

/* Checks that the device can multiply in fp8: a GPU needs tensor cores and a library that do. The
 * CPU decodes fp8 first. */
static enum hd_status check_fp8(const struct hd_job *job, const struct hd_traits *traits)
{
    if (!hd_rank_program_is_fp8(job) || !hd_traits_is_cuda(traits))
        return HD_OK;
    if (traits->capability < HD_GPU_FP8_FROM)
        return hd_err(HD_UNSUPPORTED,
                      "train.precision: fp8 needs a GPU of compute capability %d.%d or later (Ada, "
                      "Hopper, Blackwell), and this one has %d.%d; use bf16",
                      HD_GPU_FP8_FROM / 10, HD_GPU_FP8_FROM % 10, traits->capability / 10,
                      traits->capability % 10);
    if (!traits->gemm_scratch_bytes)
        return hd_err(HD_UNSUPPORTED, "train.precision: fp8 is multiplied by cuBLASLt alone, which "
                                      "this backend does not use; use bf16");
    return HD_OK;
}

static enum hd_status check_plan(const struct hd_job *job)
{
    const struct hd_batch_spans batches = hd_job_batch_spans(job);
    int64_t units;

    if (job->cp > 1 && job->context % (2 * job->cp))
        return hd_err(HD_INVALID,
                      "model.context: %lld is no multiple of 2 x cp = %lld: each rank takes two "
                      "chunks of a sequence",
                      (long long)job->context, (long long)(2 * job->cp));
    for (int64_t k = 0; k < batches.count; k++)
        if (batches.list[k].batch % (job->dp * job->micro_batch))
            return hd_err(
                HD_INVALID, "train.%s: %lld is no multiple of dp x micro_batch = %lld x %lld",
                *job->batch_schedule ? "batch_schedule" : "global_batch",
                (long long)batches.list[k].batch, (long long)job->dp, (long long)job->micro_batch);
    if (hd_job_has_policy(job) && job->mtp_layers)
        return hd_err(HD_UNSUPPORTED,
                      "model.mtp.layers: with train.objective: %s no further tokens "
                      "are predicted; remove the line",
                      hd_job_objective_words[job->objective]);
    if (hd_job_has_policy_loss(job) && job->logit_cap > 0 &&
        hd_factor_of((float)job->rollout_temperature) != 1)
        return hd_err(
            HD_UNSUPPORTED,
            "train.rollout.temperature: the logits of this model have a cap, and %g is not "
            "supported beside one; use 1",
            job->rollout_temperature);
    if (!hd_recompute_read(job->recompute, &units))
        return hd_err(HD_INVALID, "parallel.recompute: '%s' is not known", job->recompute);
    if (!job->precision || job->precision == HD_JOB_PRECISION_AUTO)
        return hd_err(HD_UNSUPPORTED,
                      "train.precision: '%s' is not supported; use fp32, bf16, fp16 or fp8",
                      hd_job_precision_words[job->precision]);
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

/* ---- transfers and schedules ---- */

int64_t hd_rank_program_transfer(const struct hd_rank_program *l, const struct hd_instruction *in,
                                 enum hd_dtype *ret_dtype)
{
    const int k = hd_pipeline_index(&l->pipeline, in->chunk);
    /* buffer for the hidden rows of F (`first`), for the gradients of B (`back`) */
    const enum hd_stage_io first = in->kind == HD_DO_SEND ? HD_STAGE_OUTPUT : HD_STAGE_INPUT;
    const enum hd_stage_io back =
        in->kind == HD_DO_SEND ? HD_STAGE_INPUT_GRAD : HD_STAGE_OUTPUT_GRAD;
    const struct hd_store *s =
        hd_chunk_find_stage_io(l->train[k], in->call == HD_CALL_F ? first : back);

    *ret_dtype = s->dtype;
    return s->rows * s->columns;
}

void hd_rank_program_fold(const struct hd_rank_program *l, const struct hd_instruction *in,
                          struct hd_dry *dry)
{
    enum hd_dtype dtype;
    int64_t state, count;

    if (in->kind == HD_DO_RUN || in->kind == HD_DO_BEGIN || in->kind == HD_DO_UPDATE)
        hd_dry_add(dry, hd_rank_program_get(l, in, &state), in->call,
                   in->kind != HD_DO_RUN || in->last);
    if (in->kind == HD_DO_UPDATE)
        hd_dry_add(dry, l->update, HD_CALL_P, true);
    if (in->kind == HD_DO_SEND)
        dry->calls[HD_GROUP_PP][HD_COMM_SEND]++;
    if (in->kind != HD_DO_RECEIVE)
        return;
    count = hd_rank_program_transfer(l, in, &dtype);
    dry->calls[HD_GROUP_PP][HD_COMM_RECV]++;
    dry->group_bytes[HD_GROUP_PP][HD_COMM_RECV] +=
        hd_dry_comm_bytes(HD_COMM_RECV, l->pipeline.stages, count, dtype);
}

/* Returns how many chunks, counted from the first, have no trainable parameter. */
static int32_t untrained_chunks(const struct hd_rank_program_shared *s)
{
    int32_t count = 0;

    while (count < s->pipeline.chunks - 1 && s->units[count].end <= s->config.lowest_trained)
        count++;
    return count;
}

static enum hd_status make_order(struct hd_rank_program_shared *s,
                                 const struct hd_rank_program_options *options,
                                 struct hd_arena *arena)
{
    const struct hd_job *job = &s->job;
    const int64_t windows = job->validate_batches * job->global_batch;
    const int64_t calls =
        *job->choices ? HD_EVAL_ROUND
                      : (windows + job->dp * job->micro_batch - 1) / (job->dp * job->micro_batch);
    enum hd_schedule_kind schedule = options->schedule;
    enum hd_status st;

    if (job->pp > 1 && !job->schedule_order && !hd_schedule_from_name(job->schedule, &schedule))
        return hd_err(HD_INVALID, "parallel.schedule: '%s' is unknown", job->schedule);
    if (job->pp > 1 && job->schedule_order) {
        st = hd_schedule_read(job->schedule_order, &s->pipeline, (int32_t)s->micro_batches, arena,
                              &s->order);
        if (st)
            st = hd_err_prefix(st, "parallel.schedule");
    } else {
        st = hd_schedule_build(schedule, &s->pipeline, (int32_t)s->micro_batches,
                               options->split_backward || hd_schedule_splits(schedule), arena,
                               &s->order);
    }
    if (!st && !job->schedule_order) /* a schedule given by the job is used unchanged */
        hd_schedule_freeze(&s->order, untrained_chunks(s));
    if (!st)
        st = hd_schedule_build(HD_SCHEDULE_FORWARD, &s->pipeline,
                               calls < 1               ? 1
                               : calls < HD_EVAL_ROUND ? (int32_t)calls
                                                       : HD_EVAL_ROUND,
                               false, arena, &s->eval_order);
    if (!st && hd_rank_program_decode_slots(job))
        st =
            hd_schedule_build(HD_SCHEDULE_FORWARD, &s->pipeline, 1, false, arena, &s->decode_order);
    return st;
}

/* ---- shared by all ranks ---- */

/* Returns an array with the pipeline stage of each unit of the model; NULL: no memory. */
static const int32_t *unit_stages(const struct hd_rank_program_shared *s, struct hd_arena *arena)
{
    int32_t *stages =
        hd_arena_array(arena, (size_t)hd_model_unit_count(&s->config), sizeof *stages);

    for (int32_t c = 0; stages && c < s->pipeline.chunks; c++)
        for (int unit = s->units[c].first; unit < s->units[c].end; unit++)
            stages[unit] = hd_pipeline_stage(&s->pipeline, c);
    return stages;
}

static enum hd_status partition_model(struct hd_rank_program_shared *s, struct hd_units *cut,
                                      struct hd_arena *arena)
{
    const enum hd_status st =
        hd_partition_model(&s->job, &s->config, cut, arena, &s->pipeline, &s->units);

    if (st)
        return st;
    s->unit_stages = unit_stages(s, arena);
    return s->unit_stages ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the stages of a model");
}

/* Computes the bytes of the checkpoint entries that each rank saves. Every rank computes the same
 * result, so rank 0's registry serves for all. */
static enum hd_status plan_snapshots(struct hd_rank_program_shared *s, struct hd_arena *arena)
{
    struct hd_registry registry;
    struct hd_model model;
    enum hd_status st;

    if (!s->job.checkpoint_async)
        return HD_OK;
    st = hd_rank_program_declare(s, 0, arena, &registry, &model);
    return st ? st : hd_save_plan_bytes(&registry, arena, &s->snapshot_bytes);
}

enum hd_status hd_rank_program_mesh(const struct hd_job *job, struct hd_mesh *ret_mesh)
{
    struct hd_model_config config;
    const enum hd_status st = hd_model_config_from_job(job, &config);

    return st ? st
              : hd_mesh_init(ret_mesh, &(struct hd_mesh_sizes){
                                           .pp = (int32_t)job->pp,
                                           .dp = (int32_t)job->dp,
                                           .cp = (int32_t)job->cp,
                                           .tp = (int32_t)job->tp,
                                           .ep = (int32_t)job->ep,
                                           .zero_shard = (int32_t)job->zero_shard,
                                           .stages_meet = hd_optimizer_needs_matrices(job),
                                           .kv_replica = hd_model_kv_replica(&config, job->tp)});
}

/* Computes the sizes that all ranks share, and the division of the model into chunks. */
static enum hd_status share_partition(const struct hd_job *job, struct hd_units *cut,
                                      struct hd_arena *arena, struct hd_rank_program_shared *s)
{
    enum hd_status st = check_plan(job);

    if (!st)
        st = hd_model_config_from_job(job, &s->config);
    if (!st)
        st = hd_rank_program_mesh(job, &s->mesh);
    if (!st)
        st = check_sizes(job, &s->config);
    if (st)
        return st;
    s->micro_batches = job->global_batch / (job->dp * job->micro_batch);
    return partition_model(s, cut, arena);
}

enum hd_status hd_rank_program_schedule(const struct hd_job *job, struct hd_units *cut,
                                        struct hd_arena *arena,
                                        struct hd_rank_program_shared *ret_shared)
{
    enum hd_status st;

    *ret_shared = (struct hd_rank_program_shared){.job = *job};
    st = share_partition(job, cut, arena, ret_shared);
    return st ? st : make_order(ret_shared, &(struct hd_rank_program_options){0}, arena);
}

/* Checks that tp and ep ranks can share a frozen model, whose layout is that of the one that trains. */
static enum hd_status check_frozen(const struct hd_job *job)
{
    const struct {
        const char *axis, *what;
        int64_t ranks, size;
    } shares[] = {{"tp", "heads", job->tp, job->heads},
                  {"tp", "ffn_hidden", job->tp, job->ffn_hidden},
                  {"tp", "shared_ffn_hidden", job->tp, job->shared_ffn_hidden},
                  {"tp", "dense_ffn_hidden", job->tp, job->dense_ffn_hidden},
                  {"tp", "delta.key_heads", job->tp, job->delta_key_heads},
                  {"ep", "experts", job->ep, job->experts}};

    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        if (shares[i].size % shares[i].ranks)
            return hd_err(HD_INVALID, "parallel.%s = %lld does not divide its model.%s = %lld",
                          shares[i].axis, (long long)shares[i].ranks, shares[i].what,
                          (long long)shares[i].size);
    if (job->kv_heads % job->tp && job->tp % job->kv_heads)
        return hd_err(HD_INVALID,
                      "parallel.tp = %lld neither divides its model.kv_heads = %lld nor is a "
                      "multiple of it",
                      (long long)job->tp, (long long)job->kv_heads);
    if (job->ep > 1 && !job->experts)
        return hd_err(HD_INVALID, "parallel.ep = %lld ranks share experts, and it has none",
                      (long long)job->ep);
    if (job->pp * job->virtual_stages > job->layers + 2)
        return hd_err(HD_INVALID, "its %lld layers are too few for parallel.pp = %lld",
                      (long long)job->layers, (long long)job->pp);
    return HD_OK;
}

/* Computes what all ranks share of the frozen model. */
static enum hd_status prepare_frozen(struct hd_rank_program_shared *s, struct hd_arena *arena)
{
    struct hd_rank_program_shared *t = hd_arena_alloc(arena, sizeof *t);
    enum hd_status st;

    if (!t)
        return hd_err(HD_NO_MEMORY, "no memory for a frozen model");
    *t = (struct hd_rank_program_shared){.traits = s->traits, .only_evaluates = true};
    st = hd_job_of_frozen(&s->job, arena, &t->job);
    if (!st)
        st = check_frozen(&t->job);
    if (!st)
        st = share_partition(&t->job, NULL, arena, t);
    if (!st)
        st = make_order(t, &(struct hd_rank_program_options){0}, arena);
    if (!st)
        st = hd_schedule_check(&t->eval_order, arena, &t->eval_plans);
    if (st)
        return hd_err_prefix(st, "%s, which takes the layout of the model that trains",
                             hd_job_frozen_path(&s->job));
    t->plans = t->eval_plans;
    s->frozen = t;
    return HD_OK;
}

/* Computes what all ranks share in one span, whose sizes the job has. */
static enum hd_status prepare_span(const struct hd_job *job, const struct hd_traits *traits,
                                   const struct hd_rank_program_options *options,
                                   struct hd_arena *arena, struct hd_rank_program_shared *s)
{
    enum hd_status st = check_fp8(job, traits);

    *s = (struct hd_rank_program_shared){.job = *job, .traits = *traits};
    if (!st)
        st = share_partition(job, NULL, arena, s);
    if (!st)
        st = make_order(s, options, arena);
    if (!st)
        st = hd_step_plans_build(s, options->any_micro_batches, arena);
    if (!st)
        st = hd_schedule_check(&s->eval_order, arena, &s->eval_plans);
    if (!st && hd_rank_program_decode_slots(job))
        st = hd_schedule_check(&s->decode_order, arena, &s->decode_plans);
    if (!st && hd_job_has_frozen_model(job))
        st = prepare_frozen(s, arena);
    return st ? st : plan_snapshots(s, arena);
}

/* Returns whether the sizes of a span are those of `s` or of a span that s->others has. */
static bool has_sizes(const struct hd_rank_program_shared *s, const struct hd_job *job)
{
    bool known = s->job.context == job->context && s->job.global_batch == job->global_batch;

    for (int64_t i = 0; i < s->other_count; i++)
        known |= s->others[i].job.context == job->context &&
                 s->others[i].job.global_batch == job->global_batch;
    return known;
}

/* Prepares the job's spans whose sizes differ from those of `s`. */
static enum hd_status prepare_others(const struct hd_job *job,
                                     const struct hd_rank_program_options *options,
                                     struct hd_arena *arena, struct hd_rank_program_shared *s)
{
    struct hd_data_span span = {.end = 0};
    enum hd_status st = HD_OK;

    if (!hd_job_has_spans(job))
        return HD_OK;
    s->others = hd_arena_array(arena, HD_JOB_STAGES_MAX, sizeof *s->others);
    if (!s->others)
        return hd_err(HD_NO_MEMORY, "no memory for the spans of a job");
    while (!st && span.end < job->steps) {
        struct hd_job now;

        st = hd_job_at_step(job, span.end + 1, &now, &span);
        if (st || has_sizes(s, &now))
            continue;
        st = prepare_span(&now, &s->traits, options, arena, &s->others[s->other_count]);
        s->other_count += !st;
        if (st)
            st = hd_err_prefix(st, "data.stages[%lld]", (long long)span.first);
    }
    return st;
}

enum hd_status hd_rank_program_prepare(const struct hd_job *job, const struct hd_traits *traits,
                                       const struct hd_rank_program_options *options,
                                       struct hd_arena *arena,
                                       struct hd_rank_program_shared *ret_shared)
{
    struct hd_job now = *job;
    enum hd_status st = options->step ? hd_job_at_step(job, options->step, &now, NULL) : HD_OK;

    if (!st)
        st = prepare_span(&now, traits, options, arena, ret_shared);
    return st ? st : prepare_others(job, options, arena, ret_shared);
}

/* ---- one rank ---- */

enum hd_status hd_rank_program_declare(const struct hd_rank_program_shared *s, int rank,
                                       struct hd_arena *arena, struct hd_registry *ret_registry,
                                       struct hd_model *ret_model)
{
    const struct hd_job *job = &s->job;
    enum hd_status st;

    hd_registry_init(ret_registry, arena, &s->mesh, rank);
    hd_registry_stages(ret_registry, s->unit_stages,
                       hd_pipeline_stage(&s->pipeline, s->pipeline.chunks - 1));
    ret_registry->sequence = job->sequence && job->tp > 1;
    ret_registry->moments_in_blocks = job->moments == HD_JOB_MOMENTS_INT8;
    ret_registry->ema_rate = (float)hd_job_ema_rate(job);
    ret_registry->qk_clip =
        (struct hd_qk_clip){(float)job->qk_clip_threshold, (float)job->qk_clip_alpha, job->heads};
    ret_registry->reference = hd_job_has_reference(job);
    ret_registry->optimizer = hd_optimizer_of_job(job);
    ret_registry->quant = hd_rank_program_quant(job);
    ret_registry->only_computes = s->only_evaluates;
    if (hd_rank_program_is_fp8(job) && job->fp8_scaling == HD_JOB_FP8_SCALING_DELAYED)
        ret_registry->amax_history = job->fp8_history;
    ret_registry->zero = job->zero > 0 ? (int)job->zero : 0;
    ret_registry->offload = job->offload == HD_JOB_OFFLOAD_OPTIMIZER && s->traits.memory_bytes > 0;
    ret_registry->omits_frozen = job->checkpoint_base == HD_JOB_CHECKPOINT_BASE_OMIT;
    st = hd_model_declare(&s->config, ret_registry, arena, ret_model);
    return st ? st
              : hd_registry_finish(ret_registry, hd_rank_program_compute_dtype(job),
                                   !s->only_evaluates);
}

static enum hd_status make_chunk_arrays(struct hd_rank_program *l, struct hd_arena *arena)
{
    const size_t count = (size_t)l->chunk_count;

    l->train = hd_arena_array(arena, count, sizeof(struct hd_chunk *));
    l->eval = hd_arena_array(arena, count, sizeof(struct hd_chunk *));
    l->train_state = hd_arena_array(arena, count, sizeof *l->train_state);
    l->eval_state = hd_arena_array(arena, count, sizeof *l->eval_state);
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for chunks") : HD_OK;
}

static void place_rank(const struct hd_rank_program_shared *s, int rank, struct hd_rank_program *l)
{
    l->rank = rank;
    l->coord = hd_mesh_coord_of(&s->mesh, rank);
    l->plan = s->plans[l->coord.pp];
    l->eval_plan = s->eval_plans[l->coord.pp];
    if (s->decode_plans)
        l->decode.plan = s->decode_plans[l->coord.pp];
    l->snapshot_bytes = s->snapshot_bytes ? s->snapshot_bytes[rank] : 0;
}

/* Compiles and places a rank's program of one span. */
static enum hd_status build_span(const struct hd_rank_program_shared *s, int rank,
                                 struct hd_arena *arena, struct hd_rank_program *ret_rank_program);

/* Raises the rank's reservation to what its programs of the job's other spans need. */
static enum hd_status reserve_for_others(const struct hd_rank_program_shared *s,
                                         struct hd_rank_program *l)
{
    struct hd_memory *m = &l->memory;
    struct hd_memory most = *m;
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < s->other_count; i++) {
        struct hd_rank_program *other;
        struct hd_arena scratch;

        hd_arena_init(&scratch, 0);
        other = hd_arena_alloc(&scratch, sizeof *other);
        st = other ? build_span(&s->others[i], l->rank, &scratch, other)
                   : hd_err(HD_NO_MEMORY, "no memory for the spans of a job");
        if (!st) {
            most.private_bytes = hd_max(most.private_bytes, other->memory.private_bytes);
            most.registered_bytes = hd_max(most.registered_bytes, other->memory.registered_bytes);
            most.host_bytes = hd_max(most.host_bytes, other->memory.host_bytes);
        }
        hd_arena_done(&scratch);
    }
    if (st)
        return st;
    m->work += most.private_bytes - m->private_bytes + most.registered_bytes - m->registered_bytes;
    m->sample += most.host_bytes - m->host_bytes;
    m->private_bytes = most.private_bytes;
    m->registered_bytes = most.registered_bytes;
    m->host_bytes = most.host_bytes;
    return HD_OK;
}

enum hd_status hd_rank_program_take_place(const struct hd_rank_program_shared *s, int rank,
                                          struct hd_rank_program *l)
{
    enum hd_status st;

    st = s->frozen ? hd_rank_program_take_place(s->frozen, rank, l->frozen_program) : HD_OK;
    if (st)
        return st;
    place_rank(s, rank, l);
    l->memory = (struct hd_memory){0};
    st = hd_rank_memory_place(l);
    return st ? st : reserve_for_others(s, l);
}

static enum hd_status build_span(const struct hd_rank_program_shared *s, int rank,
                                 struct hd_arena *arena, struct hd_rank_program *ret_rank_program)
{
    struct hd_rank_program *l = ret_rank_program;
    enum hd_status st;

    *l = (struct hd_rank_program){.job = s->job,
                                  .mesh = s->mesh,
                                  .pipeline = s->pipeline,
                                  .order = s->order,
                                  .eval_order = s->eval_order,
                                  .units = s->units,
                                  .chunk_count = s->pipeline.chunks / s->pipeline.stages,
                                  .micro_batches = s->micro_batches};
    place_rank(s, rank, l);
    st = make_chunk_arrays(l, arena);
    if (!st)
        st = hd_rank_program_declare(s, rank, arena, &l->registry, &l->model);
    if (!st)
        st = hd_rank_compile(s, l, arena);
    if (!st && s->frozen) {
        l->frozen_program = hd_arena_alloc(arena, sizeof *l->frozen_program);
        st = l->frozen_program ? build_span(s->frozen, rank, arena, l->frozen_program)
                               : hd_err(HD_NO_MEMORY, "no memory for a frozen model");
    }
    if (st)
        return st;
    return hd_rank_memory_place(l);
}

enum hd_status hd_rank_program_build_rank(const struct hd_rank_program_shared *s, int rank,
                                          struct hd_arena *arena,
                                          struct hd_rank_program *ret_rank_program)
{
    const enum hd_status st = build_span(s, rank, arena, ret_rank_program);

    return st ? st : reserve_for_others(s, ret_rank_program);
}

enum hd_status hd_rank_program_build(const struct hd_job *job, int rank,
                                     const struct hd_traits *traits,
                                     const struct hd_rank_program_options *options,
                                     struct hd_arena *arena,
                                     struct hd_rank_program *ret_rank_program)
{
    struct hd_rank_program_shared shared;
    const enum hd_status st = hd_rank_program_prepare(job, traits, options, arena, &shared);

    return st ? st : hd_rank_program_build_rank(&shared, rank, arena, ret_rank_program);
}

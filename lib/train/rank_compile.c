/* rank_compile: compiles the programs of a rank, or of a few units for the planner. */
#include "train/rank_compile.h"

#include <string.h>

#include "optim/optim.h"
#include "train/rank_decode.h"

static struct hd_distill_settings distill_settings(const struct hd_job *job)
{
    return (struct hd_distill_settings){
        .k = job->distill_top_k,
        .vocab = hd_job_distill_vocab(job),
        .temperature = job->distill_temperature,
        .weight = job->distill_weight,
        .beta = job->distill_beta,
        .loss = job->distill_loss == HD_JOB_DISTILL_LOSS_REVERSE ? HD_DISTILL_REVERSE
                : job->distill_loss == HD_JOB_DISTILL_LOSS_JSD   ? HD_DISTILL_JSD
                                                                 : HD_DISTILL_FORWARD,
        .tail = job->distill_tail};
}

/* Returns the numbers of the loss of completions, with which the head's logits are divided by a
 * temperature. The programs that answer questions divide by none, whatever answers are sampled at. */
static struct hd_policy_factors policy_of(const struct hd_job *job, enum hd_record_mode mode)
{
    struct hd_policy_factors factors = hd_rank_program_policy(job);

    if (mode == HD_RECORD_EVAL && *job->choices)
        factors.temperature = 1;
    return factors;
}

/* Compiles the programs of `units`, for a rank whose parameters are `registry` and `model`. */
static enum hd_status compile(const struct hd_job *job, const struct hd_registry *registry,
                              const struct hd_model *model, enum hd_record_mode mode,
                              struct hd_units units, bool ends_backward,
                              const struct hd_compile_options *options, struct hd_arena *arena,
                              struct hd_chunk **ret_chunk)
{
    /* true: the loss of a student, or the records of a teacher */
    const bool distills = mode == HD_RECORD_TRAIN ? hd_job_has_teacher(job) : job->distill_write;
    /* questions are packed into windows, with bounds */
    const bool scores = mode == HD_RECORD_EVAL && *job->choices && !job->distill_write;
    const bool rates =
        registry->only_computes && hd_job_is_reward(job); /* answers of another model */
    const struct hd_rec_shape shape = {
        .mode = mode,
        .B = job->micro_batch,
        .S = job->context / job->cp,
        .context = job->context,
        .first_position = hd_job_first_position(job),
        .bounded = job->documents == HD_JOB_DOCUMENTS_BOUNDED || scores || hd_job_has_policy(job),
        .scores = scores || rates || (mode == HD_RECORD_EVAL && hd_job_has_policy_loss(job)),
        .gather_keys = job->cp_exchange == HD_JOB_CP_EXCHANGE_ALL_GATHER,
        .ends_backward = ends_backward,
        .preference = hd_rank_program_preference(job),
        .distill = distills ? distill_settings(job) : (struct hd_distill_settings){0},
        .factors = {.beta = (float)job->preference_beta,
                    .center = (float)job->preference_center,
                    .gamma = (float)job->preference_gamma,
                    .smoothing = (float)job->preference_smoothing,
                    .sft = (float)job->preference_sft,
                    .desirable = (float)job->preference_desirable,
                    .undesirable = (float)job->preference_undesirable},
        .has_policy = hd_job_has_policy_loss(job),
        .policy = policy_of(job, mode)};
    struct hd_rec *rec = hd_rec_new(registry, &shape, arena);

    if (!rec)
        return hd_err(HD_NO_MEMORY, "no memory to record the model");
    hd_model_record(model, units, rec);
    return hd_compile(rec, options, ret_chunk);
}

/* Returns true if embedding and head are in two different chunks of this rank. */
static bool ties_chunks(const struct hd_rank_program *l)
{
    const int32_t last = l->pipeline.chunks - 1;

    return last > 0 && hd_pipeline_stage(&l->pipeline, 0) == hd_pipeline_stage(&l->pipeline, last);
}

static enum hd_status compile_chunks(struct hd_rank_program *l,
                                     const struct hd_compile_options *options,
                                     struct hd_arena *arena)
{
    enum hd_status st = HD_OK;

    for (int k = 0; !st && k < l->chunk_count; k++) {
        const int32_t number = hd_rank_program_chunk(l, k);
        struct hd_compile_options o = *options;

        o.tie_began_elsewhere = ties_chunks(l) && number == 0;
        o.tie_ends_elsewhere = ties_chunks(l) && number == l->pipeline.chunks - 1;
        if (l->registry.trains)
            st = compile(&l->job, &l->registry, &l->model, HD_RECORD_TRAIN, l->units[number],
                         number <= l->order.frozen, &o, arena, &l->train[k]);
        if (!st)
            st = compile(&l->job, &l->registry, &l->model, HD_RECORD_EVAL, l->units[number], false,
                         &o, arena, &l->eval[k]);
        if (!st && !l->registry.trains) /* nothing runs it, its sizes count once */
            l->train[k] = l->eval[k];
    }
    return st;
}

static struct hd_recompute recompute_of(const struct hd_job *job)
{
    int64_t units;

    (void)hd_recompute_read(job->recompute, &units);
    return (struct hd_recompute){.policy = units ? HD_RECOMPUTE_FULL
                                           : strcmp(job->recompute, "selective") == 0
                                               ? HD_RECOMPUTE_SELECTIVE
                                               : HD_RECOMPUTE_NONE,
                                 .units = (int)units};
}

static struct hd_compile_options compile_options(const struct hd_rank_program_shared *s)
{
    struct hd_compile_options o = {
        .recompute = recompute_of(&s->job),
        .precision = hd_precision_uniform(hd_rank_program_compute_dtype(&s->job)),
        .mesh = &s->mesh,
        .traits = s->traits,
        .wire = s->job.reduce == HD_JOB_REDUCE_BF16 ? HD_BF16 : HD_F32,
        .split_backward = s->order.split,
        .fp8 = hd_rank_program_is_fp8(&s->job),
    };

    return o;
}

enum hd_status hd_rank_compile(const struct hd_rank_program_shared *shared,
                               struct hd_rank_program *rank_program, struct hd_arena *arena)
{
    const struct hd_compile_options o = compile_options(shared);
    enum hd_status st = compile_chunks(rank_program, &o, arena);

    if (!st)
        st = hd_rank_decode_compile(&o, arena, rank_program);
    if (!st && !rank_program->registry.trains) {
        rank_program->update = rank_program->eval[0];
        return HD_OK;
    }
    return st ? st : hd_optim_compile(&rank_program->registry, &o, arena, &rank_program->update);
}

enum hd_status hd_rank_program_compile_units(const struct hd_rank_program_shared *shared,
                                             const struct hd_registry *registry,
                                             const struct hd_model *model, struct hd_units units,
                                             struct hd_arena *arena, struct hd_chunk **ret_chunk)
{
    struct hd_compile_options o = compile_options(shared);

    o.unplaced = true;
    return compile(&shared->job, registry, model, HD_RECORD_TRAIN, units, false, &o, arena,
                   ret_chunk);
}

enum hd_status hd_rank_program_compile_decode(const struct hd_rank_program_shared *shared,
                                              const struct hd_registry *registry,
                                              const struct hd_model *model, struct hd_units units,
                                              int64_t slots, int64_t rows, struct hd_arena *arena,
                                              struct hd_chunk **ret_chunk)
{
    struct hd_compile_options o = compile_options(shared);

    o.unplaced = true;
    return hd_rank_decode_compile_units(&o, &shared->job, registry, model, units, slots, rows,
                                        arena, ret_chunk);
}

enum hd_status hd_rank_program_compile_update(const struct hd_rank_program_shared *shared,
                                              const struct hd_registry *registry,
                                              struct hd_arena *arena, struct hd_chunk **ret_chunk)
{
    struct hd_compile_options o = compile_options(shared);

    o.unplaced = true;
    return hd_optim_compile(registry, &o, arena, ret_chunk);
}

/* train: opens and closes a trainer: memory, programs and state. Its steps are in step.c. */
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/matrices.h"
#include "train/execute.h"
#include "train/offload.h"
#include "train/policy_feed.h"
#include "train/profile.h"
#include "train/rollout.h"
#include "train/trainer.h"

/* ---- memory ---- */

static enum hd_status check_reservation(const char *half, int64_t given, int64_t needed)
{
    if (given >= needed)
        return HD_OK;
    return hd_err(
        HD_NO_MEMORY,
        "the %s reservation of %lld bytes is smaller than the %lld that the plan needs; take a "
        "smaller micro_batch or a larger device",
        half, (long long)given, (long long)needed);
}

/* Writes the name and size of the largest member of the plan that is on the device, such as "kept
 * takes 1.2 GB of it". */
static void name_largest(const struct hd_rank_program *l, char *ret_text, size_t size_bytes)
{
    struct hd_memory memory = l->memory, *const m = &memory;
    const char *name = "";
    int64_t most = 0;
    char bytes[32];

    m->sample = m->snapshot = m->profile = m->offload = 0;
    if (l->registry.offload)
        m->weights = m->moments = m->ema = 0;
#define X(member, meaning)  \
    if (m->member > most) { \
        most = m->member;   \
        name = #member;     \
    }
    HD_MEMORY_LIST(X)
#undef X
    hd_text_format_bytes(most, bytes);
    (void)snprintf(ret_text, size_bytes, "%s takes %s of it", name, bytes);
}

/* Returns the bytes that this process will still use besides its plan: the assumed overhead minus
 * the memory in use. On an otherwise empty device all memory in use is this process's, so a rank
 * starts exactly if `heddle plan` says that it fits. If other processes use the device too, the
 * difference may be too small; a job of one rank then keeps HD_GPU_LATE_BYTES for kernels that are
 * loaded later. Jobs of several ranks load all kernels when the device is opened
 * (CUDA_MODULE_LOADING). */
static int64_t later_overhead(const struct hd_trainer *t, int64_t in_use_bytes)
{
    const struct hd_gpu_overhead overhead =
        hd_rank_program_gpu_overhead(&t->rank_program, &t->traits);
    const int64_t all = overhead.process_bytes + overhead.communicators_bytes;
    const int64_t least = t->rank_program.mesh.world == 1 ? HD_GPU_LATE_BYTES : 0;

    return all - in_use_bytes > least ? all - in_use_bytes : least;
}

/* Makes all connections that steps and validations use, which must not be made in a step: on shm
 * the first collective of a group maps its peers' memory; NCCL takes device memory for each. */
static enum hd_status connect_peers(struct hd_trainer *t)
{
    const struct hd_rank_program *l = &t->rank_program;
    struct hd_comm_stream *stream = hd_comm_get_stream(t->open.comm, HD_COMM_STREAM_REDUCE);
    enum hd_status st = HD_OK;

    for (int g = 0; !st && g < HD_GROUP_COUNT; g++) {
        const enum hd_group_name name = (enum hd_group_name)g;
        const unsigned uses = hd_rank_program_group_uses(l, name);
        struct hd_comm_group *group;

        if (!uses)
            continue;
        st = hd_comm_mesh_group(t->open.comm, &l->mesh, name, &group);
        if (!st)
            st = hd_comm_connect(group, stream, uses);
    }
    if (!st)
        st = hd_execute_connect(t, &l->plan, stream);
    if (!st)
        st = hd_execute_connect(t, &l->eval_plan, stream);
    /* decoding uses the channels of validation */
    return st ? st : hd_comm_wait(stream, hd_comm_record(stream));
}

/* Checks that the plan fits the device, before anything is reserved, so that the error message has
 * the sizes of the whole plan. The ranks are connected: NCCL's memory is in use already. */
static enum hd_status check_device(struct hd_trainer *t)
{
    const struct hd_memory *m = &t->rank_program.memory;
    const int64_t needed_bytes = hd_memory_on_device(m, &t->traits);
    char needed[32], total[32], left[32], taken[32], largest[96], later[32], assumed[32];
    struct hd_device_memory device;
    int64_t later_bytes;
    enum hd_status st = t->open.table->device->memory(t->open.backend, &device);

    if (st)
        return st;
    /* a trainer before this one has registered memory for collectives; this one uses it, so it is no
     * further need */
    if (hd_comm_has_registered(t->open.comm))
        device.free_bytes += m->registered_bytes;
    later_bytes = later_overhead(t, device.total_bytes - device.free_bytes);
    if (needed_bytes + later_bytes <= device.free_bytes)
        return HD_OK;
    hd_text_format_bytes(needed_bytes, needed);
    hd_text_format_bytes(later_bytes, later);
    hd_text_format_bytes(later_overhead(t, 0), assumed);
    hd_text_format_bytes(device.total_bytes, total);
    hd_text_format_bytes(device.free_bytes, left);
    hd_text_format_bytes(device.total_bytes - device.free_bytes, taken);
    name_largest(&t->rank_program, largest, sizeof largest);
    if (needed_bytes + later_overhead(t, 0) > device.total_bytes)
        return hd_err(
            HD_INVALID,
            "rank %d needs %s of device memory (%s) and %s for kernels and libraries that "
            "are loaded later (assumed), and of the device's %s %s are free: lower "
            "parallel.micro_batch, split the model over more devices (parallel.tp, "
            "parallel.cp), or take larger ones; heddle plan shows every part",
            t->rank_program.rank, needed, largest, later, total, left);
    return hd_err(
        HD_UNAVAILABLE,
        "rank %d needs %s of device memory (%s) and %s for kernels and libraries that are loaded "
        "later (assumed), and of the device's %s only %s are free: %s are in use, of which %s were "
        "assumed for this process and its connections of NCCL. Other processes (nvidia-smi lists "
        "them) have the rest: end them or wait; or NCCL takes more than was assumed: lower "
        "parallel.micro_batch",
        t->rank_program.rank, needed, largest, later, total, left, taken, assumed);
}

/* Allocates registered memory; behind another trainer of the same ranks, takes its memory, which
 * peers may still be reading until they are here, too. */
static enum hd_status take_registered(struct hd_trainer *t, int64_t registered_bytes,
                                      void **ret_base)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(t->open.comm, HD_COMM_STREAM_REDUCE);
    enum hd_status st;

    if (!hd_comm_has_registered(t->open.comm))
        return hd_comm_alloc_registered(t->open.comm, (size_t)registered_bytes, ret_base);
    st = hd_comm_barrier(t->world, stream);
    if (!st)
        st = hd_comm_wait(stream, hd_comm_record(stream));
    return st ? st : hd_comm_reuse_registered(t->open.comm, (size_t)registered_bytes, ret_base);
}

static enum hd_status reserve(struct hd_trainer *t, const struct hd_trainer_options *options)
{
    const struct hd_memory *m = &t->rank_program.memory;
    int64_t private_bytes = options->private_bytes ? options->private_bytes : m->private_bytes;
    int64_t registered_bytes =
        options->registered_bytes ? options->registered_bytes : m->registered_bytes;
    enum hd_status st = check_reservation("private", private_bytes, m->private_bytes);
    struct hd_reservation *r = &t->reservation;
    void *registered;

    if (!st)
        st = check_reservation("registered", registered_bytes, m->registered_bytes);
    if (!st && t->open.table->device)
        st = connect_peers(t);
    if (!st && t->open.table->device)
        st = check_device(t);
    r->resident_before_bytes = hd_memory_resident_bytes();
    if (!st)
        st = hd_rank_reserve(&t->open, private_bytes, m->host_bytes,
                             (int)t->rank_program.job.threads);
    if (!st)
        st = take_registered(t, registered_bytes, &registered);
    if (st)
        return st;
    t->private_base = t->open.memory.base;
    t->host_base = t->open.memory.host_base;
    t->registered_base = registered;
    r->private_bytes = private_bytes;
    r->registered_bytes = registered_bytes;
    r->private_base = t->private_base;
    r->registered_base = t->registered_base;
    return HD_OK;
}

/* ---- binding ---- */

static enum hd_status bind_all(struct hd_trainer *t)
{
    const int32_t slots = hd_rank_program_stage_io_slots(&t->rank_program);
    const int64_t largest = t->rank_program.micro_batches;
    enum hd_status st;

    t->slots = hd_arena_array(&t->arena, (size_t)slots + 1, sizeof *t->slots);
    t->steps =
        hd_arena_array(&t->arena, (size_t)largest + 1, sizeof(struct hd_bound_instructions *));
    t->round = hd_arena_alloc(&t->arena, sizeof *t->round);
    if (!t->slots || !t->steps || !t->round)
        return hd_err(HD_NO_MEMORY, "no memory to bind a step");
    st = hd_trainer_set_micro_batches(t, largest);
    if (!st)
        st = hd_execute_bind(t, &t->rank_program.eval_plan, NULL, t->round);
    return st ? st : hd_rollout_bind(t);
}

/* ---- constants ---- */

/* Writes the tables by which ranks exchange matrices (program/matrices.h). */
static enum hd_status write_matrix_tables(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const int64_t size_bytes = r->matrices ? r->matrices->table_bytes : 0;
    void *tables;
    enum hd_status st;

    if (!size_bytes)
        return HD_OK;
    tables = malloc((size_t)size_bytes);
    if (!tables)
        return hd_err(HD_NO_MEMORY, "no memory for the tables of matrices");
    hd_matrix_plan_fill(r, r->matrices, tables);
    st = hd_staging_write(&t->open.staging, hd_trainer_global(t, HD_GLOBAL_MATRICES), tables,
                          size_bytes);
    free(tables);
    return st;
}

static enum hd_status write_once(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const struct hd_rank_program *l = &t->rank_program;
    enum hd_status st = HD_OK;

    for (int k = 0; !st && k < l->chunk_count; k++) {
        st = hd_staging_write_constants(&t->open.staging, l->train[k],
                                        t->private_base + l->train_state[k]);
        if (!st)
            st = hd_staging_write_constants(&t->open.staging, l->eval[k],
                                            t->private_base + l->eval_state[k]);
    }
    if (!st)
        st = write_matrix_tables(t);
    for (int i = 0; !st && i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];

        if (p->offset[HD_STATE_RANGES] >= 0)
            st = hd_staging_write(&t->open.staging, hd_trainer_state(t, p, HD_STATE_RANGES),
                                  p->ranges, p->range_count * (int64_t)sizeof *p->ranges);
    }
    return st;
}

/* Allocates the host's copies of step results. */
static enum hd_status make_copies(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;

    t->records = hd_arena_alloc(&t->arena, (size_t)hd_global_bytes(r, HD_GLOBAL_RECORDS));
    t->routes = hd_arena_alloc(&t->arena, (size_t)hd_global_bytes(r, HD_GLOBAL_ROUTES) + 1);
    t->further = hd_arena_alloc(&t->arena, (size_t)hd_global_bytes(r, HD_GLOBAL_FURTHER) + 1);
    t->scores = hd_arena_alloc(&t->arena, (size_t)hd_global_bytes(r, HD_GLOBAL_SCORES) + 1);
    t->messages = hd_arena_array(&t->arena, (size_t)r->mesh.world, HD_EXCHANGE_SLOT_BYTES);
    t->reported_busy_ms =
        hd_arena_array(&t->arena, (size_t)r->mesh.world, sizeof *t->reported_busy_ms);
    t->reported_waiting =
        hd_arena_array(&t->arena, (size_t)r->mesh.world, sizeof *t->reported_waiting);
    t->router_load = hd_arena_array(&t->arena, (size_t)r->experts + 1, sizeof *t->router_load);
    return hd_arena_failed(&t->arena) ? hd_err(HD_NO_MEMORY, "no memory for a step's results")
                                      : HD_OK;
}

/* ---- opening and closing ---- */

struct hd_backend_options hd_trainer_backend_options(const struct hd_job *job)
{
    return (struct hd_backend_options){
        .threads = (int)job->threads, .tf32 = job->tf32, .deterministic = job->deterministic};
}

enum hd_status hd_trainer_open_rank(const struct hd_backend_table *table, const struct hd_job *job,
                                    const char *choices_dir, struct hd_comm *host,
                                    const struct hd_shm_fds *fds, struct hd_opened_rank *ret_opened)
{
    struct hd_mesh mesh;
    struct hd_rank_opening opening = {.table = table,
                                      .options = hd_trainer_backend_options(job),
                                      .host = host,
                                      .alone = !host,
                                      .fds = fds,
                                      .nccl_mesh = &mesh,
                                      .native = job->native_reduction,
                                      .deadline_ms = HD_STEP_DEADLINE_MS};
    const enum hd_status st = hd_rank_program_mesh(job, &mesh);

    opening.options.choices_dir = choices_dir;
    if (!st)
        return hd_rank_open(&opening, ret_opened);
    *ret_opened = (struct hd_opened_rank){.table = table, .comm = host};
    return st;
}

static int64_t planned_on_host(const struct hd_trainer *t)
{
    const struct hd_memory *m = &t->rank_program.memory;

    return m->host_bytes + (t->open.table->device ? 0 : m->private_bytes + m->registered_bytes);
}

/* Makes the schedules of the stages that have one of their own; the data must be open. */
static void make_schedules(struct hd_trainer *t, const struct hd_job *job)
{
    const struct hd_data_stage *stages = t->data.stages;

    for (int64_t k = 0; k < t->data.stage_count; k++)
        if (stages[k].has_lr)
            t->stage_schedules[k] =
                hd_lr_schedule_from_stage(&stages[k], hd_data_stage_end(stages, k, job->steps) -
                                                          hd_data_stage_begin(stages, k));
}

/* Opens the data of the span that has the step. */
static enum hd_status open_span_data(struct hd_trainer *t, int64_t step,
                                     const struct hd_trainer_options *options)
{
    const struct hd_job *job = &t->rank_program.job;
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    struct hd_data_span span;
    int64_t count;
    enum hd_status st = hd_data_stages_read(job, stages, &count);

    if (st)
        return st;
    span = hd_data_span_of(stages, count, count ? hd_data_stage_at(stages, count, step) : 0,
                           job->steps);
    t->span_end = span.end;
    return hd_job_data_open_span(job, options->tokenizer, options->tokens, &span, &t->arena,
                                 &t->data);
}

static enum hd_status set_up_trainer(struct hd_trainer *t, const struct hd_job *whole,
                                     const struct hd_trainer_options *options)
{
    const struct hd_job *job = &t->rank_program.job; /* as it is in the trainer's span */
    struct hd_rank_program_options layout = options->layout;
    struct hd_backend_options backend = hd_trainer_backend_options(whole);
    enum hd_status st = hd_backend_check(t->open.table);

    if (st)
        return st;
    backend.force_plain = options->force_plain;
    backend.epilogues_separate = options->epilogues_separate;
    t->open.table->describe(&backend, &t->traits);
    if (!layout.step)
        layout.step = 1;
    st = hd_rank_program_build(whole, options->rank, &t->traits, &layout, &t->arena,
                               &t->rank_program);
    if (st)
        return st;
    if (options->planned)
        options->planned(options->planned_user, planned_on_host(t));
    t->schedule = hd_lr_schedule_from_job(job);
    hd_loss_scale_init(job, &t->scale);
    hd_guard_init(job, &t->guard);
    t->busy_ms = t->awaited = -1;
    st = open_span_data(t, layout.step, options);
    if (!st)
        st = hd_exams_open(job, options->tokenizer, &t->exams);
    if (!st)
        st = hd_trainer_open_samples(t, options->tokenizer);
    if (!st)
        make_schedules(t, job);
    if (!st)
        st = hd_rank_open(&(struct hd_rank_opening){.table = options->backend,
                                                    .instance = options->instance,
                                                    .options = backend,
                                                    .comm = options->comm,
                                                    .mesh = &t->rank_program.mesh},
                          &t->open);
    if (!st)
        st = hd_comm_mesh_group(t->open.comm, &t->rank_program.mesh, HD_GROUP_WORLD, &t->world);
    if (!st)
        st = hd_profile_new(&t->rank_program, t->open.table, t->open.backend, &t->profile);
    if (!st)
        st = reserve(t, options);
    if (!st)
        st = hd_offload_open(t);
    if (!st)
        hd_profile_attach(t->profile, t->host_base + t->rank_program.profile);
    if (!st)
        st = bind_all(t);
    if (!st && !t->open.table->device) /* peers map the reserved memory */
        st = connect_peers(t);
    if (!st)
        st = make_copies(t);
    if (!st && t->rank_program.frozen_program)
        st = hd_trainer_open_frozen(t);
    if (!st)
        st = hd_trainer_settle_choices(t);
    if (!st && job->checkpoint_async)
        st = hd_trainer_background_init(t);
    if (!st)
        st = write_once(t);
    if (st)
        return st;
    t->flops_per_token = hd_model_flops_per_token(&t->rank_program.model.config);
    t->peak = options->peak > 0
                  ? options->peak
                  : t->open.table->measure_peak(t->open.backend, hd_rank_program_peak_dtype(job));
    return HD_OK;
}

enum hd_status hd_trainer_new(const struct hd_job *job, const struct hd_trainer_options *options,
                              struct hd_trainer **ret_trainer)
{
    struct hd_trainer *t = calloc(1, sizeof *t);
    enum hd_status st;

    if (!t)
        return hd_err(HD_NO_MEMORY, "no memory for a trainer");
    hd_arena_init(&t->arena, 0);
    t->open = (struct hd_opened_rank){
        .table = options->backend, .comm = options->comm, .borrows_comm = true};
    hd_trainer_forget_numbers(t);
    t->step_deadline_ms = HD_STEP_DEADLINE_MS;
    t->save_deadline_ms = HD_SAVE_DEADLINE_MS;
    t->alive = options->alive;
    t->alive_user = options->alive_user;
    st = set_up_trainer(t, job, options);
    if (st) {
        hd_trainer_free(t);
        return st;
    }
    *ret_trainer = t;
    return HD_OK;
}

void hd_trainer_free(struct hd_trainer *t)
{
    if (!t)
        return;
    hd_rank_settle(&t->open);
    hd_trainer_background_done(t);
    hd_trainer_close_frozen(t);
    hd_profile_free(t->profile);
    hd_offload_close(t);
    hd_rank_close(&t->open);
    hd_job_data_close(&t->data);
    hd_exams_close(&t->exams);
    hd_prompts_close(&t->prompts);
    hd_trainer_close_reference(t);
    hd_packed_completions_free(t->completions);
    hd_trainer_close_teacher(t);
    hd_arena_done(&t->arena);
    free(t);
}

const struct hd_reservation *hd_trainer_reservation(const struct hd_trainer *t)
{
    return &t->reservation;
}

enum hd_status hd_trainer_device_use(struct hd_trainer *t, struct hd_device_use *ret_use)
{
    const int64_t planned_bytes = hd_memory_on_device(&t->rank_program.memory, &t->traits);
    const struct hd_gpu_overhead overhead =
        hd_rank_program_gpu_overhead(&t->rank_program, &t->traits);
    struct hd_device_memory device;
    int64_t other_bytes;
    enum hd_status st = t->open.table->device
                            ? t->open.table->device->memory(t->open.backend, &device)
                            : hd_err(HD_UNSUPPORTED, "the rank's tensors are in host memory");

    if (st)
        return st;
    /* negative if the plan's memory is host memory that the device reads (host_reachable) */
    other_bytes = device.total_bytes - device.free_bytes - planned_bytes;
    *ret_use = (struct hd_device_use){.planned_bytes = planned_bytes,
                                      .other_bytes = other_bytes > 0 ? other_bytes : 0,
                                      .total_bytes = device.total_bytes,
                                      .assumed_bytes =
                                          overhead.process_bytes + overhead.communicators_bytes};
    return HD_OK;
}

void hd_trainer_set_deadlines(struct hd_trainer *t, int64_t step_ms, int64_t save_ms)
{
    t->step_deadline_ms = step_ms;
    t->save_deadline_ms = save_ms;
    hd_comm_set_deadline(t->open.comm, step_ms);
    if (t->frozen)
        hd_trainer_set_deadlines(t->frozen, step_ms, save_ms);
}

const struct hd_rank_program *hd_trainer_rank_program(const struct hd_trainer *t)
{
    return &t->rank_program;
}

struct hd_runner *hd_trainer_runner(struct hd_trainer *t)
{
    return t->open.runner;
}

int64_t hd_trainer_steps_done(const struct hd_trainer *t)
{
    return t->steps_done;
}

int64_t hd_trainer_span_end(const struct hd_trainer *t)
{
    return t->span_end;
}

int64_t hd_trainer_data_skipped(const struct hd_trainer *t)
{
    return t->data_skipped;
}

struct hd_guard *hd_trainer_guard(struct hd_trainer *t)
{
    return &t->guard;
}

int64_t hd_trainer_updates_done(const struct hd_trainer *t)
{
    return t->updates;
}

int64_t hd_trainer_validation_count(const struct hd_trainer *t)
{
    return t->data.validation_count;
}

bool hd_trainer_can_validate(const struct hd_trainer *t)
{
    return t->data.validation_count > 0 || t->exams.count > 0 || *t->rank_program.job.tasks;
}

void hd_trainer_describe_data(const struct hd_trainer *t, int64_t windows, struct hd_text *ret_text)
{
    hd_job_data_describe(&t->data, windows, ret_text);
}

enum hd_status hd_trainer_check_data(const struct hd_trainer *t)
{
    return hd_job_data_check(&t->data);
}

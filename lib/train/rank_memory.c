#include "train/rank_memory.h"

#include "base/math.h"
#include "job/frozen_model.h"
#include "train/rank_decode.h"

static int64_t whole_pages(int64_t bytes, int64_t page_bytes)
{
    return bytes > 0 ? (bytes + page_bytes - 1) / page_bytes * page_bytes : page_bytes;
}

int64_t hd_memory_on_device(const struct hd_memory *memory, const struct hd_traits *traits)
{
    return whole_pages(memory->private_bytes, traits->page_bytes) +
           whole_pages(memory->registered_bytes, traits->page_bytes);
}

static void add_state(const struct hd_registry *r, struct hd_memory *m)
{
    int64_t buckets = 0;

    for (int i = 0; i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];
        int64_t *const purpose[HD_STATE_KIND_COUNT] = {
            [HD_STATE_WEIGHT] = p->stored == HD_F32 ? &m->weights : &m->copies,
            [HD_STATE_COPY] = &m->copies,
            [HD_STATE_GRAD] = &m->gradients,
            [HD_STATE_MOMENT1] = &m->moments,
            [HD_STATE_MOMENT2] = &m->moments,
            [HD_STATE_EMA] = &m->ema,
            [HD_STATE_REFERENCE] = &m->reference,
            [HD_STATE_RANGES] = &m->step_state,
        };
        int64_t *const on_host[HD_STATE_KIND_COUNT] = {
            [HD_STATE_WEIGHT] = &m->host_weights,  [HD_STATE_MOMENT1] = &m->host_moments,
            [HD_STATE_MOMENT2] = &m->host_moments, [HD_STATE_EMA] = &m->host_ema,
            [HD_STATE_RANGES] = &m->host_ranges,
        };

        for (int k = 0; k < HD_STATE_KIND_COUNT; k++) {
            bool shared = k == HD_STATE_COPY && !p->copied;
            int64_t bytes = hd_tensor_align(hd_bucket_state_bytes(r, p, (enum hd_state_kind)k));

            if (p->offset[k] < 0 || shared)
                continue;
            *purpose[k] += bytes;
            buckets += bytes;
            if (hd_state_is_on_host(p, (enum hd_state_kind)k))
                *on_host[k] += bytes;
        }
    }
    m->step_state +=
        /* bytes of the registry's globals: all bytes that it reserves, except those of buckets */
        r->private_bytes + r->registered_bytes + r->host_bytes - buckets;
}

const struct hd_chunk *hd_rank_program_get(const struct hd_rank_program *l,
                                           const struct hd_instruction *in, int64_t *ret_state)
{
    const int k = in->kind == HD_DO_RUN ? hd_pipeline_index(&l->pipeline, in->chunk) : 0;
    const bool eval = in->call == HD_CALL_E;

    *ret_state = eval ? l->eval_state[k] : l->train_state[k];
    if (in->kind != HD_DO_RUN)
        return l->update;
    return eval ? l->eval[k] : l->train[k];
}

/* Returns the most records of one run of a program: program and input, a launch and a poll per
 * node, a wait per edge, and the waits at the end. */
static int64_t program_records(const struct hd_program *p)
{
    int64_t records = 2 + HD_NODE_WAITS_MAX;

    for (int i = 0; i < p->count; i++)
        records += 2 + p->nodes[i]->wait_count;
    return records;
}

static int64_t profile_records(const struct hd_rank_program *l)
{
    const int64_t last = l->job.profile_last < l->job.steps ? l->job.profile_last : l->job.steps;
    int64_t records = 2; /* two records: the step, and the join that ends it */

    if (!l->job.profile_first || last < l->job.profile_first)
        return 0;
    for (int i = 0; i < l->plan.count; i++) {
        const struct hd_instruction *in = &l->plan.list[i];

        int64_t state;

        if (in->kind == HD_DO_RUN || in->kind == HD_DO_BEGIN || in->kind == HD_DO_UPDATE)
            records += program_records(&hd_rank_program_get(l, in, &state)->program[in->call]) +
                       HD_STAGE_IO_COUNT; /* waits for transfers between stages */
        else
            records += 2;
        if (in->kind == HD_DO_UPDATE)
            records += program_records(&l->update->program[HD_CALL_P]);
    }
    return records * (last - l->job.profile_first + 1);
}

/* Returns the most bytes that hd_offload_update has in host memory at a time: one bucket's
 * gradients and copies. */
static int64_t window_bytes(const struct hd_registry *r)
{
    int64_t most = 0;

    for (int i = 0; i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];

        if (p->offloaded && p->is_local)
            most = hd_max(most, hd_rank_program_window_copy(p) +
                                    hd_tensor_align((p->shard_end - p->shard_begin) *
                                                    (int64_t)hd_dtype_size(p->compute)));
    }
    return most;
}

int64_t hd_rank_program_window_copy(const struct hd_bucket *bucket)
{
    return hd_tensor_align((bucket->shard_end - bucket->shard_begin) * (int64_t)sizeof(float));
}

/* Returns the bytes of a teacher's predictions of the rows of a step; 0: a stage without the head. */
static int64_t lesson_bytes(const struct hd_rank_program *l)
{
    const int64_t rows = l->micro_batches * l->job.micro_batch * l->job.context / l->job.cp;
    const int32_t last = l->pipeline.chunks - 1;

    if (hd_pipeline_stage(&l->pipeline, last) != l->coord.pp)
        return 0;
    return hd_tensor_align(rows * l->job.distill_top_k *
                           (int64_t)(sizeof(int32_t) + sizeof(float)));
}

/* Assigns offsets to the memory that only the host uses, from *end on. */
static void place_host_bytes(struct hd_rank_program *l, int64_t *end)
{
    struct hd_memory *m = &l->memory;
    const int64_t number = (int64_t)sizeof(int32_t);
    const int64_t rows = l->job.micro_batch * l->job.context / l->job.cp;
    int64_t lessons = 0;

    l->profile = *end;
    m->profile = hd_tensor_align(profile_records(l) * HD_PROFILE_RECORD_BYTES);
    l->sample = l->profile + m->profile;
    l->batch = l->sample;
    if (l->mesh.sizes.cp > 1 || l->mesh.sizes.pp > 1)
        l->batch +=
            hd_tensor_align(hd_rank_program_sample_fields(&l->job) * l->job.context * number);
    m->sample = l->batch - l->sample;
    if (hd_rank_program_has_device(l))
        m->sample += hd_tensor_align(hd_rank_program_batch_fields(&l->job) * rows * number);
    l->teacher = l->sample + m->sample;
    if (hd_job_has_teacher_model(&l->job)) {
        lessons = lesson_bytes(l);
    } else if (hd_job_has_teacher(&l->job)) {
        m->sample += hd_tensor_align((rows > l->job.context ? rows : l->job.context) *
                                     (int64_t)sizeof(int64_t));
        if (hd_rank_program_has_device(l))
            m->sample += hd_tensor_align(2 * l->job.distill_top_k * rows * number);
    }
    m->teacher += lessons;
    l->snapshot = l->sample + m->sample + lessons;
    m->snapshot = hd_tensor_align(l->snapshot_bytes);
    l->host_state = l->snapshot + m->snapshot;
    l->window = l->host_state + l->registry.host_bytes;
    m->offload = window_bytes(&l->registry);
    *end = l->window + m->offload;
}

/* Returns the largest extent (private and registered bytes) that any chunk needs in a region.
 * Chunks run one after the other, so they share the work region; slots of saved and deferred
 * activations must fit every chunk. */
static struct hd_extent largest_extent(const struct hd_rank_program *l, enum hd_region region)
{
    struct hd_extent most = l->update->extent[region];

    for (int i = 0; i < 2 * l->chunk_count; i++) {
        const struct hd_chunk *chunk = i % 2 ? l->eval[i / 2] : l->train[i / 2];
        const struct hd_extent *x = &chunk->extent[region];

        most.private_bytes = hd_max(most.private_bytes, x->private_bytes);
        most.registered_bytes = hd_max(most.registered_bytes, x->registered_bytes);
    }
    return most;
}

int32_t hd_rank_program_stage_io_slots(const struct hd_rank_program *l)
{
    return (int32_t)hd_max(hd_max(l->plan.stage_io_slots, l->eval_plan.stage_io_slots),
                           l->decode.slots ? l->decode.plan.stage_io_slots : 0);
}

static void place_constants(struct hd_rank_program *l, int64_t *end)
{
    const int64_t begin = *end;

    for (int k = 0; k < l->chunk_count; k++) {
        l->train_state[k] = l->eval_state[k] = *end;
        if (l->train[k] != l->eval[k])
            l->eval_state[k] += l->train[k]->extent[HD_REGION_STATE].private_bytes;
        *end = l->eval_state[k] + l->eval[k]->extent[HD_REGION_STATE].private_bytes;
    }
    l->memory.constants = *end - begin;
}

/* Places the memory of the frozen model behind ends[half]: private, registered, of the host. */
static void place_frozen(struct hd_rank_program *l, int half, int64_t *end)
{
    const struct hd_memory *m = l->frozen_program ? &l->frozen_program->memory : NULL;
    const int64_t begin = *end;

    if (!m)
        return;
    l->frozen_begin[half] = hd_work_begin(begin);
    *end = l->frozen_begin[half] + (half == 0   ? m->private_bytes
                                    : half == 1 ? m->registered_bytes
                                                : m->host_bytes);
    *(hd_job_has_reward_model(&l->job) ? &l->memory.reward_model : &l->memory.teacher) +=
        *end - begin;
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

enum hd_status hd_rank_memory_place(struct hd_rank_program *l)
{
    const struct hd_extent saved = largest_extent(l, HD_REGION_SAVED),
                           deferred = largest_extent(l, HD_REGION_DEFERRED),
                           work = largest_extent(l, HD_REGION_WORK);
    const int32_t stage_io_slots = hd_rank_program_stage_io_slots(l);
    int64_t end[2] = {l->registry.private_bytes, l->registry.registered_bytes};
    struct hd_memory *m = &l->memory;

    l->work_bytes = work.private_bytes;
    add_state(&l->registry, m);
    place_constants(l, &end[0]);
    for (int v = 0; v < 2; v++) {
        const int64_t work_bytes = v ? work.registered_bytes : work.private_bytes;
        int64_t deferred_end;

        l->saved_slot[v] = v ? saved.registered_bytes : saved.private_bytes;
        l->deferred_slot[v] = v ? deferred.registered_bytes : deferred.private_bytes;
        l->saved[v] = end[v];
        l->deferred[v] = l->saved[v] + l->saved_slot[v] * l->plan.saved_slots;
        deferred_end = l->deferred[v] + l->deferred_slot[v] * l->plan.deferred_slots;
        l->work[v] = work_bytes ? hd_work_begin(deferred_end) : deferred_end;
        end[v] = l->work[v] + work_bytes;
        m->kept += l->deferred[v] - l->saved[v];
        m->deferred += deferred_end - l->deferred[v];
        m->work += end[v] - deferred_end;
    }
    hd_rank_decode_place(l, l->saved, end);
    m->work += l->decode.beyond_bytes;
    l->stage_io = end[1];
    l->stage_io_slot =
        hd_max(largest_extent(l, HD_REGION_STAGE_IO).registered_bytes, hd_rank_decode_stage_io(l));
    m->boundary = l->stage_io_slot * stage_io_slots;
    end[1] += m->boundary;
    place_frozen(l, 0, &end[0]);
    place_frozen(l, 1, &end[1]);
    place_host_bytes(l, hd_rank_program_has_device(l) ? &m->host_bytes : &end[0]);
    if (hd_rank_program_has_device(l))
        place_frozen(l, 2, &m->host_bytes);
    l->exchange = end[1];
    m->exchange = (l->mesh.world + 1) * (int64_t)HD_EXCHANGE_SLOT_BYTES;
    m->private_bytes = end[0];
    m->registered_bytes = end[1] + m->exchange;
    return check_profile(m);
}

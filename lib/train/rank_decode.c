#include "train/rank_decode.h"

#include <assert.h>

#include "base/math.h"

enum {
    PROMPT_ROWS = 64, /* tokens that a call of the program of prompts reads, in all slots */
    /* most of them in a job that trains on its answers, which has a prompt for each group, and the
     * bytes of their logits, above which it has no more than PROMPT_ROWS */
    ROLLOUT_ROWS_MAX = 1024,
    ROLLOUT_LOGITS_MAX = 16 << 20,
    SLOTS_MAX = 8,         /* of a job's samples, which are few, and of its tasks */
    ROLLOUT_SLOTS_MAX = 32 /* of a job that trains on its answers, unless it gives another number */
};

int64_t hd_rank_program_decode_slots(const struct hd_job *job)
{
    if (hd_job_has_policy(job)) {
        const int64_t replicas = hd_max(job->dp * job->cp, 1);
        const int64_t groups = (job->rollout_prompts + replicas - 1) / replicas;

        return job->rollout_slots ? job->rollout_slots
                                  : hd_min(groups * job->rollout_group, ROLLOUT_SLOTS_MAX);
    }
    if (*job->tasks && job->tasks_slots)
        return job->tasks_slots;
    return *job->samples || *job->tasks ? hd_min(hd_max(job->micro_batch, 1), SLOTS_MAX) : 0;
}

/* Reads whole prompts at once, of answers to them, if the program of prompts can. */
int64_t hd_rank_program_decode_rows(const struct hd_job *job, enum hd_decode_program program)
{
    const int64_t slots = hd_rank_program_decode_slots(job);
    int64_t rows = PROMPT_ROWS;

    if (program == HD_DECODE_TOKENS)
        return 1;

    if (hd_job_has_policy(job)) {
        const int64_t bounded = ROLLOUT_LOGITS_MAX / ((int64_t)sizeof(float) * job->vocab);

        rows = hd_max(rows, hd_min(bounded, ROLLOUT_ROWS_MAX));
        rows = hd_min(rows, slots * hd_max(hd_job_rollout_prompt_max(job), 1));
    }
    return hd_min(hd_max(rows / slots, 1), job->context);
}

/* ---- compiling ---- */

enum hd_status hd_rank_decode_compile_units(const struct hd_compile_options *options,
                                            const struct hd_job *job,
                                            const struct hd_registry *registry,
                                            const struct hd_model *model, struct hd_units units,
                                            int64_t slots, int64_t rows, struct hd_arena *arena,
                                            struct hd_chunk **ret_chunk)
{
    const struct hd_rec_shape shape = {.mode = HD_RECORD_DECODE,
                                       .B = slots,
                                       .S = rows,
                                       .slots = slots,
                                       .context = job->context,
                                       .first_position = hd_job_first_position(job)};
    struct hd_compile_options o = *options;
    struct hd_rec *rec = hd_rec_new(registry, &shape, arena);

    if (!rec)
        return hd_err(HD_NO_MEMORY, "no memory to record the model");
    o.fp8 = false; /* only products of training are in fp8 */
    o.split_backward = false;
    hd_model_record(model, units, rec);
    return hd_compile(rec, &o, ret_chunk);
}

enum hd_status hd_rank_decode_compile(const struct hd_compile_options *options,
                                      struct hd_arena *arena, struct hd_rank_program *l)
{
    struct hd_rank_decode *d = &l->decode;
    enum hd_status st = HD_OK;

    d->slots = hd_rank_program_decode_slots(&l->job);
    if (!d->slots)
        return HD_OK;
    d->rows = hd_rank_program_decode_rows(&l->job, HD_DECODE_PROMPTS);
    d->state = hd_arena_array(arena, (size_t)l->chunk_count, sizeof *d->state);
    for (int p = 0; p < HD_DECODE_PROGRAMS; p++)
        d->chunks[p] = hd_arena_array(arena, (size_t)l->chunk_count, sizeof(struct hd_chunk *));
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for chunks");
    for (int p = 0; p < HD_DECODE_PROGRAMS; p++)
        for (int k = 0; !st && k < l->chunk_count; k++)
            st = hd_rank_decode_compile_units(
                options, &l->job, &l->registry, &l->model, l->units[hd_rank_program_chunk(l, k)],
                d->slots, p == HD_DECODE_PROMPTS ? d->rows : 1, arena, &d->chunks[p][k]);
    return st;
}

const struct hd_chunk *hd_rank_program_get_decode(const struct hd_rank_program *l,
                                                  enum hd_decode_program program,
                                                  const struct hd_instruction *in,
                                                  int64_t *ret_state)
{
    const int k = hd_pipeline_index(&l->pipeline, in->chunk);

    *ret_state = l->decode.state[k];
    return l->decode.chunks[program][k];
}

/* ---- memory ---- */

/* Places the caches and constants of each chunk; both programs have them at the same offsets. */
static void place_state(struct hd_rank_program *l, int64_t *end)
{
    struct hd_rank_decode *d = &l->decode;

    for (int k = 0; k < l->chunk_count; k++) {
        const int64_t bytes = d->chunks[HD_DECODE_TOKENS][k]->extent[HD_REGION_STATE].private_bytes;

        assert(d->chunks[HD_DECODE_PROMPTS][k]->extent[HD_REGION_STATE].private_bytes == bytes);
        d->state[k] = *end;
        *end += bytes;
    }
}

/* Returns the bytes of the work memory of the largest program; registered: 0 or 1. */
static int64_t work_bytes(const struct hd_rank_program *l, int registered)
{
    int64_t most = 0;

    for (int p = 0; p < HD_DECODE_PROGRAMS; p++)
        for (int k = 0; k < l->chunk_count; k++) {
            const struct hd_extent *x = &l->decode.chunks[p][k]->extent[HD_REGION_WORK];

            most = hd_max(most, registered ? x->registered_bytes : x->private_bytes);
        }
    return most;
}

/* Returns the bytes of the buffer in which tp ranks gather the logits of all slots; 0: this rank has
 * no head, or all of the vocabulary. */
static int64_t logits_bytes(const struct hd_rank_program *l)
{
    const struct hd_chunk *last = l->decode.chunks[HD_DECODE_TOKENS][l->chunk_count - 1];
    const struct hd_store *logits = hd_chunk_find_kind(last, HD_STORE_OUTPUT);
    const int64_t tp = l->mesh.sizes.tp;

    if (!logits || tp == 1)
        return 0;
    return (tp + 1) * hd_tensor_align(l->decode.slots * logits->columns * (int64_t)sizeof(float));
}

void hd_rank_decode_place(struct hd_rank_program *l, const int64_t begin[2], int64_t end[2])
{
    struct hd_rank_decode *d = &l->decode;
    int64_t at[2] = {hd_work_begin(begin[0]), begin[1]};

    if (!d->slots)
        return;
    place_state(l, &at[0]);
    d->cache_bytes = at[0] - hd_work_begin(begin[0]);
    d->bytes = d->beyond_bytes = 0;
    for (int v = 0; v < 2; v++) {
        const int64_t work = work_bytes(l, v), logits = v ? logits_bytes(l) : 0;

        d->work[v] = work ? hd_work_begin(at[v]) : at[v];
        at[v] = d->work[v] + work;
        if (logits) {
            d->logits = hd_work_begin(at[v]);
            at[v] = d->logits + logits;
        }
        d->bytes += at[v] - begin[v];
        d->beyond_bytes += hd_max(at[v] - end[v], 0);
        end[v] = hd_max(at[v], end[v]);
    }
}

int64_t hd_rank_decode_stage_io(const struct hd_rank_program *l)
{
    int64_t most = 0;

    for (int p = 0; l->decode.slots && p < HD_DECODE_PROGRAMS; p++)
        for (int k = 0; k < l->chunk_count; k++)
            most =
                hd_max(most, l->decode.chunks[p][k]->extent[HD_REGION_STAGE_IO].registered_bytes);
    return most;
}

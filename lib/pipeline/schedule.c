/* schedule: generates the schedules, each a fixed pattern.
 *
 * Patterns that need a certain number of micro-batches (interleaved: a multiple of P; zb-h1: P;
 * zb-v: 2P - 1) are generated for the next such number, and the programs of micro-batches that do
 * not exist are left out. Leaving programs out causes no deadlock and does not increase the number
 * of micro-batches in flight. */
#include <assert.h>
#include <string.h>

#include "pipeline/pipeline_internal.h"

static const char *const schedule_names[] = {
#define X(code, name) [HD_SCHEDULE_##code] = name,
    HD_SCHEDULE_LIST(X)
#undef X
};

const char *hd_schedule_name(enum hd_schedule_kind schedule_kind)
{
    assert(schedule_kind < HD_SCHEDULE_COUNT);
    return schedule_names[schedule_kind];
}

bool hd_schedule_from_name(const char *text, enum hd_schedule_kind *ret_schedule_kind)
{
    for (int i = 0; i < HD_SCHEDULE_COUNT; i++) {
        if (i != HD_SCHEDULE_FORWARD && strcmp(text, schedule_names[i]) == 0) {
            *ret_schedule_kind = (enum hd_schedule_kind)i;
            return true;
        }
    }
    return false;
}

bool hd_schedule_splits(enum hd_schedule_kind schedule_kind)
{
    return schedule_kind == HD_SCHEDULE_ZB_H1 || schedule_kind == HD_SCHEDULE_ZB_V;
}

int32_t hd_pipeline_stage(const struct hd_pipeline *pipeline, int32_t chunk)
{
    if (pipeline->folded)
        return chunk < pipeline->stages ? chunk : 2 * pipeline->stages - 1 - chunk;
    return chunk % pipeline->stages;
}

int32_t hd_pipeline_chunk(const struct hd_pipeline *pipeline, int32_t stage, int32_t k)
{
    if (pipeline->folded)
        return k ? 2 * pipeline->stages - 1 - stage : stage;
    return k * pipeline->stages + stage;
}

int32_t hd_pipeline_index(const struct hd_pipeline *pipeline, int32_t chunk)
{
    return chunk / pipeline->stages;
}

enum hd_status pipeline_check(const struct hd_pipeline *p, int32_t micro_batches)
{
    if (p->stages < 1 || p->chunks < p->stages || p->chunks % p->stages ||
        (p->folded && p->chunks != 2 * p->stages))
        return hd_err(HD_INVALID, "%d chunks cannot lie on %d pipeline stages%s", (int)p->chunks,
                      (int)p->stages, p->folded ? " as a V" : "");
    if (micro_batches < 1)
        return hd_err(HD_INVALID, "a step of %d micro-batches; at least 1 is needed",
                      (int)micro_batches);
    if ((int64_t)(p->chunks / p->stages) * micro_batches > HD_STAGE_PROGRAMS_MAX / PROGRAM_ROWS)
        return hd_err(HD_LIMIT,
                      "%d chunks per stage with %d micro-batches are more than the %d "
                      "programs that a stage may run in a step",
                      (int)(p->chunks / p->stages), (int)micro_batches, HD_STAGE_PROGRAMS_MAX);
    return HD_OK;
}

/* ---- patterns ---- */

/* The schedule of one stage while it is generated. */
struct pattern {
    struct hd_stage_schedule *stage;
    const struct hd_pipeline *pipeline;
    int32_t s; /* index of the stage, from 0 */
    int32_t P, V, M;
    bool split;
};

static void put(struct pattern *p, enum hd_call call, int32_t chunk, int64_t micro_batch)
{
    if (micro_batch < p->M)
        p->stage->entries[p->stage->count++] =
            (struct hd_schedule_entry){call, chunk, (int32_t)micro_batch};
}

/* Appends B of a chunk and micro-batch to the stage's schedule, followed by its W if B and W are
 * split. */
static void put_backward(struct pattern *p, int32_t chunk, int64_t micro_batch)
{
    put(p, HD_CALL_B, chunk, micro_batch);
    if (p->split)
        put(p, HD_CALL_W, chunk, micro_batch);
}

/* Appends the programs of one direction through a V, in which each stage alternates between its two
 * chunks. `near` is the chunk that a micro-batch reaches first, at position s of the 2P positions
 * on its way; `far` is at position 2P - 1 - s. Micro-batch m is at position i at time 2m + i, so a
 * stage never needs both chunks at the same time. */
static void put_folded(struct pattern *p, enum hd_call call, int32_t near, int32_t far)
{
    const int32_t warmup = p->P - p->s; /* number of micro-batches m that `near` runs before `far`
                                           starts, those with times 2m + s < 2P - 1 - s */

    for (int64_t i = 0; i < (int64_t)p->M + warmup; i++) {
        if (i >= warmup)
            put(p, call, far, i - warmup);
        put(p, call, near, i);
    }
}

/* Appends B (or W, as `call` says) of all chunks and micro-batches of the stage, as gpipe runs
 * them. */
static void put_all_backward(struct pattern *p, enum hd_call call)
{
    if (p->pipeline->folded) {
        put_folded(p, call, 2 * p->P - 1 - p->s, p->s);
        return;
    }
    for (int32_t k = p->V - 1; k >= 0; k--)
        for (int32_t m = 0; m < p->M; m++)
            put(p, call, hd_pipeline_chunk(p->pipeline, p->s, k), m);
}

static void gpipe(struct pattern *p)
{
    if (p->pipeline->folded)
        put_folded(p, HD_CALL_F, p->s, 2 * p->P - 1 - p->s);
    else
        for (int32_t k = 0; k < p->V; k++)
            for (int32_t m = 0; m < p->M; m++)
                put(p, HD_CALL_F, hd_pipeline_chunk(p->pipeline, p->s, k), m);
    put_all_backward(p, HD_CALL_B);
    if (p->split)
        put_all_backward(p, HD_CALL_W);
}

static void one_f_one_b(struct pattern *p)
{
    const int32_t warmup = p->P - 1 - p->s;

    for (int64_t i = 0; i < (int64_t)p->M + warmup; i++) {
        put(p, HD_CALL_F, p->s, i);
        if (i >= warmup)
            put_backward(p, p->s, i - warmup);
    }
}

/* Appends program number i of a stage's F, or of its B, in the order of interleaved: groups of P
 * micro-batches, each of which runs chunk by chunk. */
static void put_grouped(struct pattern *p, enum hd_call call, int64_t i)
{
    const int64_t group = i / ((int64_t)p->P * p->V), rest = i % ((int64_t)p->P * p->V);
    const int32_t k = (int32_t)(rest / p->P);
    const int64_t m = group * p->P + rest % p->P;

    if (call == HD_CALL_B)
        put_backward(p, hd_pipeline_chunk(p->pipeline, p->s, p->V - 1 - k), m);
    else
        put(p, call, hd_pipeline_chunk(p->pipeline, p->s, k), m);
}

/* Returns the number of (chunk, micro-batch) pairs of a stage, with M rounded up to whole groups.
 */
static int64_t grouped_count(const struct pattern *p)
{
    return ((int64_t)p->M + p->P - 1) / p->P * p->P * p->V;
}

static void interleaved(struct pattern *p)
{
    const int64_t count = grouped_count(p);
    const int64_t warmup = 2 * (int64_t)(p->P - 1 - p->s) + (int64_t)(p->V - 1) * p->P;

    for (int64_t i = 0; i < count + warmup; i++) {
        if (i < count)
            put_grouped(p, HD_CALL_F, i);
        if (i >= warmup)
            put_grouped(p, HD_CALL_B, i - warmup);
    }
}

/* Appends the whole schedule of a stage for zb-h1: P - s times F, then s times B F, so that s W are
 * deferred; then alternates B W F. At the end the deferred W run where 1f1b would wait. On every
 * stage P micro-batches are in flight until their W. */
static void zb_h1(struct pattern *p)
{
    const int32_t s = p->s, count = p->M > p->P ? p->M : p->P;
    int64_t f = 0, b = 0, w = 0;

    while (f < p->P - s)
        put(p, HD_CALL_F, s, f++);
    while (b < count) {
        put(p, HD_CALL_B, s, b++);
        if (b > s)
            put(p, HD_CALL_W, s, w++);
        if (f < count)
            put(p, HD_CALL_F, s, f++);
    }
    while (w < count)
        put(p, HD_CALL_W, s, w++);
}

/* Appends the whole schedule of a stage for zb-v, the hand-made one of Qi et al.: `down` is the
 * chunk on the way to the bottom of the V, `up` the one on the way back. At most 2P (chunk,
 * micro-batch) pairs are in flight on a stage until their W. */
static void zb_v(struct pattern *p)
{
    const int32_t s = p->s, P = p->P, down = s, up = 2 * P - 1 - s;
    const int64_t count = p->M > 2 * (int64_t)P - 1 ? p->M : 2 * (int64_t)P - 1;
    int64_t f_down = 0, f_up = 0, b_down = 0, b_up = 0, w_down, w_up;

    while (f_down < 2 * (P - s) - 1)
        put(p, HD_CALL_F, down, f_down++);
    while (f_up < s) {
        put(p, HD_CALL_F, up, f_up++);
        put(p, HD_CALL_F, down, f_down++);
    }
    while (f_up < P) {
        put(p, HD_CALL_F, up, f_up++);
        put_backward(p, up, b_up++);
    }
    while (f_up < count) { /* steady state: F B W of one chunk, then F B W of the other */
        if (f_down < count)
            put(p, HD_CALL_F, down, f_down++);
        put_backward(p, down, b_down++);
        put(p, HD_CALL_F, up, f_up++);
        put_backward(p, up, b_up++);
    }
    w_down = b_down;
    w_up = b_up;
    for (int32_t i = 0; i < s; i++) {
        put(p, HD_CALL_B, down, b_down++);
        put(p, HD_CALL_B, up, b_up++);
    }
    while (b_down < count) {
        put(p, HD_CALL_B, down, b_down++);
        put(p, HD_CALL_W, down, w_down++);
    }
    while (w_up < count)
        put(p, HD_CALL_W, up, w_up++);
    while (w_down < count)
        put(p, HD_CALL_W, down, w_down++);
}

/* Appends E in groups like interleaved: few hidden rows wait between two chunks, for any number of
 * micro-batches. */
static void forward(struct pattern *p)
{
    if (p->pipeline->folded)
        put_folded(p, HD_CALL_E, p->s, 2 * p->P - 1 - p->s);
    else
        for (int64_t i = 0; i < grouped_count(p); i++)
            put_grouped(p, HD_CALL_E, i);
}

/* ---- the order ---- */

static enum hd_status check_fit(enum hd_schedule_kind schedule_kind, const struct hd_pipeline *p)
{
    const char *name = hd_schedule_name(schedule_kind);
    const int32_t V = p->chunks / p->stages;

    switch (schedule_kind) {
    case HD_SCHEDULE_1F1B:
    case HD_SCHEDULE_ZB_H1:
        if (V != 1)
            return hd_err(HD_INVALID,
                          "parallel.virtual_stages: schedule %s has 1 chunk per pipeline stage, "
                          "not %d; leave virtual_stages out, or use interleaved or gpipe",
                          name, (int)V);
        return HD_OK;
    case HD_SCHEDULE_INTERLEAVED:
        if (p->folded)
            return hd_err(HD_INVALID, "parallel.schedule: chunks that are laid out as a V are for "
                                      "zb-v, not for interleaved");
        if (V == 1 && p->stages > 1)
            return hd_err(HD_INVALID,
                          "parallel.virtual_stages: schedule interleaved needs at least 2 chunks "
                          "per pipeline stage; set virtual_stages: 2, or use 1f1b");
        return HD_OK;
    case HD_SCHEDULE_ZB_V:
        if (V != 2)
            return hd_err(HD_INVALID,
                          "parallel.virtual_stages: schedule zb-v has 2 chunks per pipeline stage, "
                          "not %d; set virtual_stages: 2",
                          (int)V);
        if (!p->folded)
            return hd_err(HD_INVALID, "parallel.schedule: zb-v needs chunks that are laid out as "
                                      "a V");
        return HD_OK;
    default:
        return HD_OK;
    }
}

enum hd_status hd_schedule_build(enum hd_schedule_kind schedule_kind,
                                 const struct hd_pipeline *pipeline, int32_t micro_batches,
                                 bool split, struct hd_arena *arena,
                                 struct hd_schedule *ret_schedule)
{
    static void (*const patterns[])(struct pattern * p) = {[HD_SCHEDULE_GPIPE] = gpipe,
                                                           [HD_SCHEDULE_1F1B] = one_f_one_b,
                                                           [HD_SCHEDULE_INTERLEAVED] = interleaved,
                                                           [HD_SCHEDULE_ZB_H1] = zb_h1,
                                                           [HD_SCHEDULE_ZB_V] = zb_v,
                                                           [HD_SCHEDULE_FORWARD] = forward};
    struct hd_schedule schedule = {.pipeline = *pipeline, .micro_batches = micro_batches};
    int32_t V, calls;
    enum hd_status st;

    st = pipeline_check(pipeline, micro_batches);
    if (!st)
        st = check_fit(schedule_kind, pipeline);
    if (st)
        return st;
    V = pipeline->chunks / pipeline->stages;
    schedule.split =
        schedule_kind != HD_SCHEDULE_FORWARD && (split || hd_schedule_splits(schedule_kind));
    calls = schedule_kind == HD_SCHEDULE_FORWARD ? 1 : schedule.split ? 3 : 2;
    schedule.stages = hd_arena_array(arena, (size_t)pipeline->stages, sizeof *schedule.stages);
    for (int32_t s = 0; s < pipeline->stages && schedule.stages; s++) {
        struct hd_stage_schedule *stage = &schedule.stages[s];
        struct pattern p = {stage, pipeline, s, pipeline->stages, V, micro_batches, schedule.split};

        stage->entries = hd_arena_array(arena, (size_t)V * (size_t)micro_batches * (size_t)calls,
                                        sizeof *stage->entries);
        if (!stage->entries)
            break;
        patterns[schedule_kind](&p);
        assert(stage->count == V * micro_batches * calls);
    }
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for the schedule of %d pipeline stages",
                      (int)pipeline->stages);
    *ret_schedule = schedule;
    return HD_OK;
}

void hd_schedule_freeze(struct hd_schedule *schedule, int32_t frozen)
{
    if (schedule->frozen || schedule->pipeline.chunks != schedule->pipeline.stages)
        return;
    schedule->frozen = frozen;
    for (int32_t s = 0; s < frozen; s++) {
        struct hd_stage_schedule *stage = &schedule->stages[s];
        int32_t saved = 0;

        for (int32_t i = 0; i < stage->count; i++)
            if (stage->entries[i].call == HD_CALL_F)
                stage->entries[saved++] = stage->entries[i];
        stage->count = saved;
    }
}

enum hd_status hd_schedule_shorten(const struct hd_schedule *schedule, int32_t micro_batches,
                                   struct hd_arena *arena, struct hd_schedule *ret_schedule)
{
    struct hd_schedule s = *schedule;

    assert(micro_batches >= 1 && micro_batches <= schedule->micro_batches);
    s.micro_batches = micro_batches;
    s.stages = hd_arena_array(arena, (size_t)s.pipeline.stages, sizeof *s.stages);
    for (int32_t k = 0; s.stages && k < s.pipeline.stages; k++) {
        const struct hd_stage_schedule *from = &schedule->stages[k];
        struct hd_stage_schedule *to = &s.stages[k];

        to->entries = hd_arena_array(arena, (size_t)from->count, sizeof *to->entries);
        to->count = 0;
        for (int32_t i = 0; to->entries && i < from->count; i++)
            if (from->entries[i].micro_batch < micro_batches)
                to->entries[to->count++] = from->entries[i];
    }
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for the schedule of a shorter step");
    *ret_schedule = s;
    return HD_OK;
}

/* walk: checks a schedule and computes when each program runs. */
#include <stdio.h>
#include <string.h>

#include "pipeline/pipeline_internal.h"

struct walk {
    const struct hd_schedule *schedule;
    const struct hd_schedule_costs *costs;
    const int32_t *lines;
    struct schedule_walk w;
    int32_t *position; /* [stages] index of the stage's next program in its schedule */
    double *free_at;   /* [stages] end of the program that the stage ran last */
};

enum { PLACE_MAX = 96 };

/* Writes "F0.1 (line 3, word 4)", or "F0.1 (stage 2, position 2)". */
static const char *describe_entry(const struct walk *w, int32_t stage, int32_t i,
                                  char ret_text[PLACE_MAX])
{
    const struct hd_schedule_entry *e = &w->schedule->stages[stage].entries[i];
    char where[48];

    if (w->lines) /* + 2: words count from 1, and the first one is the stage */
        (void)snprintf(where, sizeof where, "line %d, word %d", (int)w->lines[stage], (int)i + 2);
    else
        (void)snprintf(where, sizeof where, "stage %d, position %d", (int)stage, (int)i);
    (void)snprintf(ret_text, PLACE_MAX, "%s%d.%d (%s)", hd_call_name(e->call), (int)e->chunk,
                   (int)e->micro_batch, where);
    return ret_text;
}

/* ---- each program once, on its stage, ascending ---- */

static enum hd_status check_entry(struct walk *w, int32_t stage, int32_t i)
{
    const struct hd_schedule *o = w->schedule;
    const struct hd_schedule_entry *e = &o->stages[stage].entries[i];
    const bool forward = schedule_is_forward(o);
    char text[PLACE_MAX];
    int32_t *index;
    int64_t id;

    if (forward
            ? e->call != HD_CALL_E
            : e->call != HD_CALL_F && e->call != HD_CALL_B && !(o->split && e->call == HD_CALL_W))
        return hd_err(HD_INVALID, "%s: a schedule has %s only", describe_entry(w, stage, i, text),
                      forward    ? "E"
                      : o->split ? "F, B and W"
                                 : "F and B");
    if (e->chunk < 0 || e->chunk >= o->pipeline.chunks)
        return hd_err(HD_INVALID, "%s: there is no chunk %d; the last one is %d",
                      describe_entry(w, stage, i, text), (int)e->chunk,
                      (int)o->pipeline.chunks - 1);
    if (hd_pipeline_stage(&o->pipeline, e->chunk) != stage)
        return hd_err(HD_INVALID, "%s: chunk %d is on stage %d", describe_entry(w, stage, i, text),
                      (int)e->chunk, (int)hd_pipeline_stage(&o->pipeline, e->chunk));
    if (e->call != HD_CALL_F && e->chunk < o->frozen)
        return hd_err(HD_INVALID,
                      "%s: no weight is trained in chunk %d or below, so it runs F alone",
                      describe_entry(w, stage, i, text), (int)e->chunk);
    if (e->micro_batch < 0 || e->micro_batch >= o->micro_batches)
        return hd_err(HD_INVALID, "%s: there is no micro-batch %d; the last one is %d",
                      describe_entry(w, stage, i, text), (int)e->micro_batch,
                      (int)o->micro_batches - 1);
    id = program_id(o, e->chunk, e->micro_batch);
    index = w->w.index[program_row(e->call)];
    if (index[id] >= 0)
        return hd_err(HD_INVALID, "%s: it has run before", describe_entry(w, stage, i, text));
    if (e->micro_batch > 0 && index[id - 1] < 0)
        return hd_err(HD_INVALID,
                      "%s: %s%d.%d must come first; a chunk runs its micro-batches in ascending "
                      "order",
                      describe_entry(w, stage, i, text), hd_call_name(e->call), (int)e->chunk,
                      (int)e->micro_batch - 1);
    index[id] = i;
    return HD_OK;
}

static enum hd_status check_entries(struct walk *w)
{
    const struct hd_schedule *o = w->schedule;
    const int32_t V = o->pipeline.chunks / o->pipeline.stages;
    const bool forward = schedule_is_forward(o);
    const enum hd_call calls[] = {forward ? HD_CALL_E : HD_CALL_F, HD_CALL_B, HD_CALL_W};
    const int rows = forward ? 1 : o->split ? 3 : 2;

    for (int32_t s = 0; s < o->pipeline.stages; s++) {
        char where[32];

        for (int32_t i = 0; i < o->stages[s].count; i++) {
            const enum hd_status st = check_entry(w, s, i);

            if (st)
                return st;
        }
        if (w->lines)
            (void)snprintf(where, sizeof where, "line %d", (int)w->lines[s]);
        else
            (void)snprintf(where, sizeof where, "stage %d", (int)s);
        for (int row = 0; row < rows; row++)
            for (int32_t k = 0; k < V; k++)
                for (int32_t m = 0; m < o->micro_batches; m++) {
                    const int32_t chunk = hd_pipeline_chunk(&o->pipeline, s, k);

                    if (row < schedule_programs(o, forward, chunk) &&
                        w->w.index[row][program_id(o, chunk, m)] < 0)
                        return hd_err(HD_INVALID, "%s: %s%d.%d is missing", where,
                                      hd_call_name(calls[row]), (int)chunk, (int)m);
                }
    }
    return HD_OK;
}

/* ---- times ---- */

static double cost_of(const struct walk *w, const struct hd_schedule_entry *e)
{
    switch (program_row(e->call)) {
    case 0:
        return w->costs ? w->costs->forward[e->chunk] : 1;
    case 1:
        return w->costs ? w->costs->backward[e->chunk] : w->schedule->split ? 1 : 2;
    default:
        return w->costs ? w->costs->weights[e->chunk] : 1;
    }
}

/* Number of micro-batches by which a chunk that runs only F (a frozen one) may be ahead of the next
 * chunk. */
enum { AHEAD_MAX = 2 };

/* Sets ret_inputs to the programs that must end before program `e` starts: those whose results `e`
 * reads, and, for a chunk that runs only F, an earlier F of the next chunk. Returns their number, 0
 * to 2. */
static int inputs_of(const struct hd_schedule *o, const struct hd_schedule_entry *e,
                     struct hd_schedule_entry ret_inputs[2])
{
    int n = 0;

    switch (program_row(e->call)) {
    case 0:
        if (e->chunk > 0)
            ret_inputs[n++] = (struct hd_schedule_entry){e->call, e->chunk - 1, e->micro_batch};
        if (e->chunk < o->frozen && e->micro_batch >= AHEAD_MAX)
            ret_inputs[n++] =
                (struct hd_schedule_entry){e->call, e->chunk + 1, e->micro_batch - AHEAD_MAX};
        break;
    case 1:
        ret_inputs[n++] = (struct hd_schedule_entry){HD_CALL_F, e->chunk, e->micro_batch};
        if (e->chunk < o->pipeline.chunks - 1)
            ret_inputs[n++] = (struct hd_schedule_entry){HD_CALL_B, e->chunk + 1, e->micro_batch};
        break;
    default:
        ret_inputs[n++] = (struct hd_schedule_entry){HD_CALL_B, e->chunk, e->micro_batch};
        break;
    }
    return n;
}

static bool has_ended(const struct walk *w, const struct hd_schedule_entry *e)
{
    const int32_t stage = hd_pipeline_stage(&w->schedule->pipeline, e->chunk);

    return w->w.index[program_row(e->call)][program_id(w->schedule, e->chunk, e->micro_batch)] <
           w->position[stage];
}

/* Runs the next program of a stage. Returns false if one of its inputs has not ended. */
static bool advance(struct walk *w, int32_t stage)
{
    const struct hd_schedule *o = w->schedule;
    const struct hd_schedule_entry *e = &o->stages[stage].entries[w->position[stage]];
    const int64_t id = program_id(o, e->chunk, e->micro_batch);
    double start = w->free_at[stage];
    struct hd_schedule_entry inputs[2];
    const int count = inputs_of(o, e, inputs);

    for (int i = 0; i < count; i++) {
        const struct hd_schedule_entry *in = &inputs[i];
        double ready;

        if (!has_ended(w, in))
            return false;
        ready = w->w.end[program_row(in->call)][program_id(o, in->chunk, in->micro_batch)];
        if (w->costs && hd_pipeline_stage(&o->pipeline, in->chunk) != stage)
            ready += w->costs->transfer;
        if (ready > start)
            start = ready;
    }
    w->w.start[program_row(e->call)][id] = start;
    w->w.end[program_row(e->call)][id] = w->free_at[stage] = start + cost_of(w, e);
    w->position[stage]++;
    return true;
}

/* Returns the program that the next program of a stage waits for and that has not run yet. */
static struct hd_schedule_entry awaited_entry(const struct walk *w, int32_t stage)
{
    const struct hd_schedule_entry *e = &w->schedule->stages[stage].entries[w->position[stage]];
    struct hd_schedule_entry inputs[2] = {{0}};
    const int count = inputs_of(w->schedule, e, inputs);

    return count == 2 && has_ended(w, &inputs[0]) ? inputs[1] : inputs[0];
}

/* Reports a deadlock as a cycle of stages: each waits for a program that comes later in the
 * schedule of the next stage of the cycle. */
static enum hd_status schedule_deadlock(const struct walk *w, int32_t stage)
{
    const struct hd_pipeline *p = &w->schedule->pipeline;
    char story[HD_ERR_MAX] = "", a[PLACE_MAX], b[PLACE_MAX], c[PLACE_MAX];
    size_t n = 0;
    int32_t first;

    for (int32_t i = 0; i < p->stages; i++) /* follow from each stage to the stage that it waits
                                               for, once per stage: then `stage` is in the cycle */
        stage = hd_pipeline_stage(p, awaited_entry(w, stage).chunk);
    first = stage;
    do {
        const struct hd_schedule_entry in = awaited_entry(w, stage);
        const int32_t other = hd_pipeline_stage(p, in.chunk);
        const int32_t i =
            w->w.index[program_row(in.call)][program_id(w->schedule, in.chunk, in.micro_batch)];

        n += (size_t)snprintf(story + n, sizeof story - n, "%s%s waits for %s", n ? "; " : "",
                              describe_entry(w, stage, w->position[stage], a),
                              describe_entry(w, other, i, b));
        if (n < sizeof story && i > w->position[other])
            n += (size_t)snprintf(story + n, sizeof story - n, ", which comes after %s",
                                  describe_entry(w, other, w->position[other], c));
        stage = other;
    } while (stage != first && n < sizeof story);
    return hd_err(HD_INVALID, "the schedule deadlocks: %s", story);
}

static enum hd_status run(struct walk *w)
{
    const struct hd_schedule *o = w->schedule;
    bool progress = true;

    while (progress) {
        progress = false;
        for (int32_t s = 0; s < o->pipeline.stages; s++)
            while (w->position[s] < o->stages[s].count && advance(w, s))
                progress = true;
    }
    for (int32_t s = 0; s < o->pipeline.stages; s++)
        if (w->position[s] < o->stages[s].count)
            return schedule_deadlock(w, s);
    return HD_OK;
}

enum hd_status schedule_walk_run(const struct hd_schedule *schedule,
                                 const struct hd_schedule_costs *costs, const int32_t *lines,
                                 struct hd_arena *arena, struct schedule_walk *ret_walk)
{
    struct walk w = {.schedule = schedule, .costs = costs, .lines = lines};
    const size_t stages = (size_t)schedule->pipeline.stages;
    size_t count;
    enum hd_status st;

    st = pipeline_check(&schedule->pipeline, schedule->micro_batches);
    if (st)
        return st;
    count = (size_t)schedule->pipeline.chunks * (size_t)schedule->micro_batches;
    w.position = hd_arena_array(arena, stages, sizeof *w.position);
    w.free_at = hd_arena_array(arena, stages, sizeof *w.free_at);
    for (int row = 0; row < PROGRAM_ROWS; row++) {
        w.w.index[row] = hd_arena_array(arena, count, sizeof *w.w.index[row]);
        w.w.start[row] = hd_arena_array(arena, count, sizeof *w.w.start[row]);
        w.w.end[row] = hd_arena_array(arena, count, sizeof *w.w.end[row]);
        if (w.w.index[row])
            /* -1: the program is not in the schedule */
            memset(w.w.index[row], -1, count * sizeof *w.w.index[row]);
    }
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory to walk the schedule of %d pipeline stages",
                      (int)stages);
    st = check_entries(&w);
    if (!st)
        st = run(&w);
    if (!st)
        *ret_walk = w.w;
    return st;
}

enum hd_status hd_schedule_walk(const struct hd_schedule *schedule,
                                const struct hd_schedule_costs *costs, struct hd_arena *arena,
                                struct hd_schedule_times *ret_times)
{
    struct hd_schedule_times times = {0};
    struct hd_arena scratch;
    struct schedule_walk walk;
    double first = 0, last = 0, busy = 0;
    bool any = false;
    enum hd_status st;

    hd_arena_init(&scratch, 0);
    st = schedule_walk_run(schedule, costs, NULL, &scratch, &walk);
    if (st)
        goto end;
    times.busy = hd_arena_array(arena, (size_t)schedule->pipeline.stages, sizeof *times.busy);
    if (!times.busy) {
        st = hd_err(HD_NO_MEMORY, "no memory for the times of a schedule");
        goto end;
    }
    for (int32_t s = 0; s < schedule->pipeline.stages; s++) {
        for (int32_t i = 0; i < schedule->stages[s].count; i++) {
            const struct hd_schedule_entry *e = &schedule->stages[s].entries[i];
            const int64_t id = program_id(schedule, e->chunk, e->micro_batch);
            const double start = walk.start[program_row(e->call)][id];
            const double finish = walk.end[program_row(e->call)][id];

            first = any && first < start ? first : start;
            last = any && last > finish ? last : finish;
            any = true;
            times.busy[s] += finish - start;
        }
        busy += times.busy[s];
    }
    times.total = last - first;
    times.bubble = times.total > 0 ? 1 - busy / (schedule->pipeline.stages * times.total) : 0;
    *ret_times = times;
end:
    hd_arena_done(&scratch);
    return st;
}

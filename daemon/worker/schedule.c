/* schedule: `heddle-worker schedule`, checks and draws a pipeline schedule, by name or from a
 * file. */
#include <string.h>

#include "base/file.h"
#include "flags/flags.h"
#include "pipeline/pipeline.h"
#include "worker/worker.h"

enum { STAGES_MAX = 256, CHUNKS_MAX = 64, MICRO_BATCHES_MAX = 4096, FILE_BYTES_MAX = 16 << 20 };

static enum hd_status build_order(const char *name, const struct hd_pipeline *pipeline,
                                  int64_t micro_batches, struct hd_arena *arena,
                                  struct hd_schedule *ret_order)
{
    enum hd_schedule_kind schedule;

    if (!hd_schedule_from_name(name, &schedule))
        return hd_err(HD_INVALID,
                      "'%s' is no schedule; use 1f1b, gpipe, interleaved, zb-h1 or zb-v", name);
    return hd_schedule_build(schedule, pipeline, (int32_t)micro_batches, false, arena, ret_order);
}

/* Reads a pipeline schedule from a file. stages, each (chunks per stage), micro_batches: sizes that
 * the caller expects; 0: any. */
static enum hd_status read_order(const char *file, int64_t stages, int64_t each,
                                 int64_t micro_batches, struct hd_arena *arena,
                                 struct hd_schedule *ret_order)
{
    struct hd_pipeline p;
    struct hd_text text = {0};
    int32_t M;
    enum hd_status st = hd_file_read(file, FILE_BYTES_MAX, &text);

    if (!st)
        st = hd_schedule_measure(text.data, &p, &M);
    if (!st && ((stages && stages != p.stages) || (each && each != p.chunks / p.stages) ||
                (micro_batches && micro_batches != M)))
        st = hd_err(HD_INVALID,
                    "the schedule is for %d stages with %d chunks each and %d micro-batches; leave "
                    "--stages, --virtual-stages and --micro-batches out",
                    (int)p.stages, (int)(p.chunks / p.stages), (int)M);
    if (!st)
        st = hd_schedule_read(text.data, &p, M, arena, ret_order);
    hd_text_free(&text);
    return st == HD_INVALID ? hd_err_prefix(st, "%s", file) : st;
}

static enum hd_status show_schedule(const struct hd_schedule *order, bool text,
                                    struct hd_arena *arena)
{
    struct hd_step_plan *plans = NULL;
    struct hd_schedule_times times;
    struct hd_text out = {0};
    enum hd_status st = hd_schedule_check(order, arena, &plans);

    if (!st && text)
        hd_schedule_write(order, &out);
    else if (!st)
        st = hd_schedule_walk(order, NULL, arena, &times);
    if (!st && !text) {
        hd_schedule_draw(order, &out);
        hd_text_add(&out, "idle: %.1f%% of a step on average, with tF = tB = tW\n",
                    100 * times.bubble);
        for (int32_t s = 0; s < order->pipeline.stages; s++)
            hd_text_add(&out, "stage %d: slots kept %d, deferred %d, boundary %d\n", (int)s,
                        (int)plans[s].saved_slots, (int)plans[s].deferred_slots,
                        (int)plans[s].stage_io_slots);
    }
    return hd_worker_print(st, &out);
}

int hd_worker_schedule(int argc, char **argv)
{
    const char *name = NULL, *file = NULL;
    bool text = false;
    int64_t stages = 0, micro_batches = 0, each = -1; /* each: chunks of a stage; -1: not given */
    struct hd_flag f[] = {HD_FLAG_TEXT("--name", name),
                          HD_FLAG_TEXT("--file", file),
                          HD_FLAG_INT64("--stages", stages, 1, STAGES_MAX),
                          HD_FLAG_INT64("--micro-batches", micro_batches, 1, MICRO_BATCHES_MAX),
                          HD_FLAG_INT64("--virtual-stages", each, 1, CHUNKS_MAX),
                          HD_FLAG_SWITCH("--text", text)};
    struct hd_schedule order;
    struct hd_arena arena;
    enum hd_status st = HD_FLAGS_READ(argc, argv, f);
    const bool folded = !st && name && strcmp(name, "zb-v") == 0;

    hd_arena_init(&arena, 0);
    if (!st && (!name == !file || (name && (!stages || !micro_batches))))
        st = hd_err(HD_INVALID, "give --name NAME, --stages P and --micro-batches M, or --file "
                                "FILE");
    if (each < 0)
        each = file ? 0 : folded ? 2 : 1;
    if (!st && file) {
        st = read_order(file, stages, each, micro_batches, &arena, &order);
    } else if (!st) {
        const struct hd_pipeline pipeline = {(int32_t)stages, (int32_t)(stages * each), folded};

        st = build_order(name, &pipeline, micro_batches, &arena, &order);
    }
    if (!st)
        st = show_schedule(&order, text, &arena);
    hd_arena_done(&arena);
    return hd_worker_finish("schedule", st);
}

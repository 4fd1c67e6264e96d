/* schedule: draws a pipeline schedule, by name or from a file, and proves it. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "pipeline/pipeline.h"
#include "worker/flags.h"
#include "worker/worker.h"

enum { STAGES_MAX = 256, CHUNKS_MAX = 64, MICRO_BATCHES_MAX = 4096, FILE_BYTES_MAX = 16 << 20 };

static enum hd_status make_order(const char *name, const char *file,
                                 const struct hd_pipeline *pipeline, int64_t micro_batches,
                                 struct hd_arena *arena, struct hd_order *ret_order)
{
    enum hd_schedule schedule;
    struct hd_text text = {0};
    enum hd_status st;

    if (!file && !hd_schedule_from_name(name, &schedule))
        return hd_err(HD_INVALID,
                      "'%s' is no schedule; use 1f1b, gpipe, interleaved, zb-h1 or zb-v", name);
    if (!file)
        return hd_order_build(schedule, pipeline, (int32_t)micro_batches, false, arena, ret_order);
    st = hd_file_read(file, FILE_BYTES_MAX, &text);
    if (!st)
        st = hd_order_read(text.data, pipeline, (int32_t)micro_batches, arena, ret_order);
    hd_text_free(&text);
    return st == HD_INVALID ? hd_err_prefix(st, "%s", file) : st;
}

static enum hd_status prove(const struct hd_order *order, struct hd_arena *arena,
                            struct hd_step_plan **ret_plans)
{
    const int32_t stages = order->pipeline.stages;
    struct hd_step_plan *plans = hd_arena_array(arena, (size_t)stages, sizeof *plans);
    enum hd_status st = plans ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for lists");

    for (int32_t s = 0; !st && s < stages; s++)
        st = hd_step_plan_build(order, s, arena, &plans[s]);
    *ret_plans = plans;
    return st ? st : hd_step_plan_check(order, plans);
}

static enum hd_status show(const struct hd_order *order, bool text, struct hd_arena *arena)
{
    struct hd_step_plan *plans = NULL;
    struct hd_order_times times;
    struct hd_text out = {0};
    enum hd_status st = prove(order, arena, &plans);

    if (!st && text)
        hd_order_write(order, &out);
    else if (!st)
        st = hd_order_walk(order, NULL, arena, &times);
    if (!st && !text) {
        hd_order_draw(order, &out);
        hd_text_add(&out, "idle: %.1f%% of a step on average, with tF = tB = tW\n",
                    100 * times.bubble);
        for (int32_t s = 0; s < order->pipeline.stages; s++)
            hd_text_add(&out, "stage %d: slots kept %d, deferred %d, boundary %d\n", (int)s,
                        (int)plans[s].kept_slots, (int)plans[s].deferred_slots,
                        (int)plans[s].boundary_slots);
    }
    if (!st && out.failed)
        st = hd_err(HD_NO_MEMORY, "no memory to draw a schedule");
    if (!st)
        (void)fputs(out.data, stdout);
    hd_text_free(&out);
    return st;
}

int hd_worker_schedule(int argc, char **argv)
{
    struct hd_flag f[] = {
        {"--name", false, false, NULL},           {"--file", false, false, NULL},
        {"--stages", true, false, NULL},          {"--micro-batches", true, false, NULL},
        {"--virtual-stages", false, false, NULL}, {"--text", false, true, NULL}};
    int64_t stages = 1, micro_batches = 1, each = 1;
    struct hd_order order;
    struct hd_arena arena;
    enum hd_status st = hd_flags_read(argc, argv, f, sizeof f / sizeof f[0]);
    const bool folded = !st && f[0].value && strcmp(f[0].value, "zb-v") == 0;

    hd_arena_init(&arena, 0);
    if (!st && !f[0].value == !f[1].value)
        st = hd_err(HD_INVALID, "give --name NAME or --file FILE");
    if (!st)
        st = hd_flag_int(&f[2], 1, STAGES_MAX, 1, &stages);
    if (!st)
        st = hd_flag_int(&f[3], 1, MICRO_BATCHES_MAX, 1, &micro_batches);
    if (!st)
        st = hd_flag_int(&f[4], 1, CHUNKS_MAX, folded ? 2 : 1, &each);
    if (!st) {
        const struct hd_pipeline pipeline = {(int32_t)stages, (int32_t)(stages * each), folded};

        st = make_order(f[0].value, f[1].value, &pipeline, micro_batches, &arena, &order);
    }
    if (!st)
        st = show(&order, f[5].value != NULL, &arena);
    hd_arena_done(&arena);
    return hd_worker_finish("schedule", st);
}

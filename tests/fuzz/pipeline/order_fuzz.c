/* Hostile schedule files. What the reader accepts is an order whose step plans are proved, which
 * can be walked and drawn, and which is read again as it is written; what it refuses has a message
 * with a line.
 *
 * An input is one byte that chooses the pipeline, then the text. */
#include <stdlib.h>
#include <string.h>

#include "pipeline/pipeline.h"
#include "tests/fuzz/driver.h"

static const struct target {
    enum hd_schedule_kind seed;
    struct hd_pipeline pipeline;
    int32_t micro_batches;
} targets[] = {
    {HD_SCHEDULE_1F1B, {1, 1, false}, 2},        {HD_SCHEDULE_1F1B, {3, 3, false}, 4},
    {HD_SCHEDULE_INTERLEAVED, {2, 4, false}, 3}, {HD_SCHEDULE_ZB_H1, {2, 2, false}, 3},
    {HD_SCHEDULE_ZB_V, {2, 4, true}, 3},         {HD_SCHEDULE_GPIPE, {2, 6, false}, 1},
};
enum { TARGETS = sizeof targets / sizeof targets[0], STAGES_MAX = 3 };

/* Whatever the order, it is sound without backward of its first chunks. */
static void prove_frozen(const struct hd_schedule *order, const char *text, struct hd_arena *arena)
{
    struct hd_step_plan plans[STAGES_MAX];
    struct hd_schedule copy;

    for (int32_t frozen = 1; frozen < order->pipeline.stages; frozen++) {
        require(hd_schedule_read(text, &order->pipeline, order->micro_batches, arena, &copy) ==
                HD_OK);
        hd_schedule_freeze(&copy, frozen);
        for (int32_t s = 0; s < copy.pipeline.stages; s++)
            require(hd_step_plan_build(&copy, s, arena, &plans[s]) == HD_OK);
        require(hd_step_plan_check(&copy, plans) == HD_OK);
    }
}

static void prove(const struct hd_schedule *order, struct hd_arena *arena)
{
    struct hd_step_plan plans[STAGES_MAX];
    struct hd_text text = {0}, again = {0};
    struct hd_schedule_times times;
    struct hd_schedule copy;

    for (int32_t s = 0; s < order->pipeline.stages; s++)
        require(hd_step_plan_build(order, s, arena, &plans[s]) == HD_OK);
    require(hd_step_plan_check(order, plans) == HD_OK);
    require(hd_schedule_walk(order, NULL, arena, &times) == HD_OK && times.total > 0);
    hd_schedule_draw(order, &again);
    hd_text_clear(&again);
    hd_schedule_write(order, &text);
    require(hd_schedule_read(text.data, &order->pipeline, order->micro_batches, arena, &copy) ==
            HD_OK);
    hd_schedule_write(&copy, &again);
    require(strcmp(text.data, again.data) == 0);
    prove_frozen(order, text.data, arena);
    hd_text_free(&text);
    hd_text_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    const struct target *target;
    struct hd_pipeline measured;
    int32_t micro_batches;
    struct hd_arena arena;
    struct hd_schedule order;
    char *text;

    if (!size_bytes)
        return 0;
    target = &targets[bytes[0] % TARGETS];
    text = malloc(size_bytes);
    require(text != NULL);
    memcpy(text, bytes + 1, size_bytes - 1);
    text[size_bytes - 1] = '\0';
    hd_arena_init(&arena, 0);
    if (hd_schedule_measure(text, &measured, &micro_batches) == HD_OK)
        require(measured.stages >= 1 && measured.chunks % measured.stages == 0 &&
                (size_t)measured.chunks * (size_t)micro_batches <= size_bytes);
    else
        require(strstr(hd_err_message(), "line ") != NULL);
    if (hd_schedule_read(text, &target->pipeline, target->micro_batches, &arena, &order) == HD_OK)
        prove(&order, &arena);
    else
        require(strstr(hd_err_message(), "line ") != NULL);
    hd_arena_done(&arena);
    free(text);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    const struct target *target = &targets[index % TARGETS];
    struct hd_text text = {0};
    struct hd_arena arena;
    struct hd_schedule order;
    size_t n;

    if (index >= TARGETS)
        return 0;
    hd_arena_init(&arena, 0);
    require(hd_schedule_build(target->seed, &target->pipeline, target->micro_batches, false, &arena,
                              &order) == HD_OK);
    hd_text_add(&text, "# seed %u\n", index);
    hd_schedule_write(&order, &text);
    n = text.len_bytes;
    require(n + 1 <= max_bytes);
    ret_bytes[0] = (uint8_t)index;
    memcpy(ret_bytes + 1, text.data, n);
    hd_text_free(&text);
    hd_arena_done(&arena);
    return n + 1;
}

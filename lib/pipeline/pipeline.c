#include "pipeline/pipeline.h"

struct build {
    struct hd_step_plan *plan;
    int64_t micro_batches;
    bool one_slot;
};

static void run(struct build *b, enum hd_call call, int64_t m)
{
    b->plan->list[b->plan->count++] = (struct hd_instruction){.kind = HD_DO_RUN,
                                                              .call = call,
                                                              .micro_batch = m,
                                                              .slot = b->one_slot ? 0 : (int)m,
                                                              .first = m == 0,
                                                              .last = m == b->micro_batches - 1};
}

enum hd_status hd_step_plan_build(enum hd_schedule schedule, int64_t micro_batches, bool split,
                                  struct hd_arena *arena, struct hd_step_plan *ret_plan)
{
    struct hd_step_plan plan = {0};
    struct build b = {&plan, micro_batches, schedule == HD_SCHEDULE_SEQUENTIAL};
    const enum hd_call calls[] = {HD_CALL_F, HD_CALL_B, HD_CALL_W};
    const int call_count = split ? 3 : 2;

    plan.list = hd_arena_array(arena, (size_t)micro_batches * 3 + 2, sizeof *plan.list);
    if (!plan.list)
        return hd_err(HD_NO_MEMORY, "no memory for a step plan");
    if (b.one_slot) {
        for (int64_t m = 0; m < micro_batches; m++)
            for (int c = 0; c < call_count; c++)
                run(&b, calls[c], m);
    } else {
        for (int c = 0; c < call_count; c++)
            for (int64_t m = 0; m < micro_batches; m++)
                run(&b, calls[c], m);
    }
    plan.list[plan.count++] = (struct hd_instruction){.kind = HD_DO_JOIN};
    plan.list[plan.count++] = (struct hd_instruction){.kind = HD_DO_UPDATE};
    plan.kept_slots = b.one_slot ? 1 : (int)micro_batches;
    plan.deferred_slots = split ? plan.kept_slots : 0;
    *ret_plan = plan;
    return HD_OK;
}

/* step_plans: the largest step decides the memory, and programs do not depend on the number of
 * micro-batches; so a shorter step needs nothing but another instruction stream, which is a pure
 * function of the job and that number (hd_schedule_shorten). Saved and deferred activations of a
 * shorter step are a subset of the largest one's. Of the boundary pool it may need a slot more, so the
 * slots are counted for every number that occurs. */
#include "train/step_plans.h"

#include "base/math.h"
#include "job/batch_spans.h"

enum { SIZES = 8 }; /* numbers of micro-batches that a step on answers may have */

int64_t hd_rank_program_round_micro_batches(int64_t largest, int64_t needed)
{
    for (int64_t i = 1; i < SIZES; i++)
        if ((largest * i + SIZES - 1) / SIZES >= needed)
            return (largest * i + SIZES - 1) / SIZES;
    return largest;
}

/* Returns whether steps of the job may have this number of micro-batches, below the largest one. */
static bool occurs(const struct hd_rank_program_shared *s, const struct hd_batch_spans *batches,
                   bool any, int64_t micro_batches)
{
    bool found = any;

    if (hd_job_has_policy(&s->job))
        found |=
            hd_rank_program_round_micro_batches(s->micro_batches, micro_batches) == micro_batches;
    for (int64_t k = 0; k < batches->count; k++)
        found |= batches->list[k].batch == micro_batches * s->job.dp * s->job.micro_batch;
    return found;
}

/* Generates and checks the streams of all stages for a step of `micro_batches`. */
static enum hd_status shorten(const struct hd_schedule *order, int64_t micro_batches,
                              struct hd_arena *arena, struct hd_step_plan **ret_plans)
{
    struct hd_schedule shorter;
    const enum hd_status st = hd_schedule_shorten(order, (int32_t)micro_batches, arena, &shorter);

    return st ? st : hd_schedule_check(&shorter, arena, ret_plans);
}

/* Raises the numbers of slots to those of a step of `micro_batches`. */
static enum hd_status add_slots(struct hd_rank_program_shared *s, int64_t micro_batches)
{
    struct hd_step_plan *plans;
    struct hd_arena scratch;
    enum hd_status st;

    hd_arena_init(&scratch, 0);
    st = shorten(&s->order, micro_batches, &scratch, &plans);
    for (int32_t k = 0; !st && k < s->pipeline.stages; k++) {
        s->plans[k].saved_slots = hd_max(s->plans[k].saved_slots, plans[k].saved_slots);
        s->plans[k].deferred_slots = hd_max(s->plans[k].deferred_slots, plans[k].deferred_slots);
        s->plans[k].stage_io_slots = hd_max(s->plans[k].stage_io_slots, plans[k].stage_io_slots);
    }
    hd_arena_done(&scratch);
    return st;
}

enum hd_status hd_step_plans_build(struct hd_rank_program_shared *s, bool any,
                                   struct hd_arena *arena)
{
    const struct hd_batch_spans batches = hd_job_batch_spans(&s->job);
    enum hd_status st = hd_schedule_check(&s->order, arena, &s->plans);

    /* with one chunk no slot is of the boundary pool */
    if (s->pipeline.chunks == 1)
        return st;
    for (int64_t m = 1; !st && m < s->micro_batches; m++)
        if (occurs(s, &batches, any, m))
            st = add_slots(s, m);
    return st;
}

enum hd_status hd_rank_program_step_plan(const struct hd_rank_program *l, int64_t micro_batches,
                                         struct hd_arena *arena, struct hd_step_plan *ret_plan)
{
    const int32_t stage = l->coord.pp;
    struct hd_step_plan *plans, plan;
    struct hd_schedule shorter;
    struct hd_arena scratch;
    enum hd_status st;

    if (micro_batches < 1 || micro_batches > l->micro_batches)
        return hd_err(HD_INVALID, "a step of %lld micro-batches per rank; the job has 1 to %lld",
                      (long long)micro_batches, (long long)l->micro_batches);
    hd_arena_init(&scratch, 0);
    st = shorten(&l->order, micro_batches, &scratch, &plans);
    if (!st && (plans[stage].saved_slots > l->plan.saved_slots ||
                plans[stage].deferred_slots > l->plan.deferred_slots ||
                plans[stage].stage_io_slots > l->plan.stage_io_slots))
        st = hd_err(HD_INVALID,
                    "a step of %lld micro-batches per rank needs more slots of hidden rows than "
                    "this job's plan reserves",
                    (long long)micro_batches);
    if (!st)
        st = hd_schedule_shorten(&l->order, (int32_t)micro_batches, arena, &shorter);
    if (!st)
        st = hd_step_plan_build(&shorter, stage, arena, &plan);
    if (!st)
        *ret_plan = plan;
    hd_arena_done(&scratch);
    return st;
}

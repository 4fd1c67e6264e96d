/* step_streams: the bound instruction streams of steps, one for each number of micro-batches that has
 * occurred. */
#include "train/execute.h"

/* Binds the instruction stream of a step of `micro_batches`. The largest step is the first one that
 * is bound, and the others share its programs. */
static enum hd_status bind_step(struct hd_trainer *t, int64_t micro_batches,
                                struct hd_bound_instructions **ret_list)
{
    struct hd_step_plan *plan = hd_arena_alloc(&t->arena, sizeof *plan);
    struct hd_bound_instructions *list = hd_arena_alloc(&t->arena, sizeof *list);
    enum hd_status st;

    if (!plan || !list)
        return hd_err(HD_NO_MEMORY, "no memory to bind a step of %lld micro-batches",
                      (long long)micro_batches);
    st = hd_rank_program_step_plan(&t->rank_program, micro_batches, &t->arena, plan);
    if (!st)
        st = hd_execute_bind(t, plan, t->steps[t->rank_program.micro_batches], list);
    if (!st)
        *ret_list = list;
    return st;
}

enum hd_status hd_trainer_set_micro_batches(struct hd_trainer *t, int64_t micro_batches)
{
    const bool known = micro_batches >= 1 && micro_batches <= t->rank_program.micro_batches &&
                       t->steps[micro_batches];
    struct hd_bound_instructions *list = NULL;
    const enum hd_status st = known ? HD_OK : bind_step(t, micro_batches, &list);

    if (st)
        return st;
    if (!known)
        t->steps[micro_batches] = list;
    t->step = t->steps[micro_batches];
    t->micro_batches = micro_batches;
    return HD_OK;
}

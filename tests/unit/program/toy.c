#include <stdlib.h>
#include <string.h>

#include "tests/program/test.h"
#include "tests/unit/program/toy.h"

static int64_t up(int64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

void toy_lay_out(struct toy_memory *m, const struct hd_chunk *c, const struct hd_step_plan *plan,
                 struct hd_comm *comm)
{
    int64_t state[2] = {c->registry->private_bytes + c->extent[HD_REGION_STATE].private_bytes,
                        c->registry->registered_bytes};
    int64_t kept[2], deferred[2], work[2];

    for (int v = 0; v < 2; v++) {
        kept[v] = v ? c->extent[HD_REGION_SAVED].registered_bytes
                    : c->extent[HD_REGION_SAVED].private_bytes;
        deferred[v] = v ? c->extent[HD_REGION_DEFERRED].registered_bytes
                        : c->extent[HD_REGION_DEFERRED].private_bytes;
        work[v] = v ? c->extent[HD_REGION_WORK].registered_bytes
                    : c->extent[HD_REGION_WORK].private_bytes;
    }
    for (int v = 0; v < 2; v++) {
        int64_t total = up(state[v]) + plan->saved_slots * kept[v] +
                        plan->deferred_slots * deferred[v] + work[v] + 64;

        if (v)
            assert_int_equal(hd_comm_alloc_registered(comm, (size_t)total, (void **)&m->base[1]),
                             HD_OK);
        else
            assert_int_equal(posix_memalign((void **)&m->base[0], 4096, (size_t)total), 0);
        memset(m->base[v], 0, (size_t)total);
        for (int s = 0; s < plan->saved_slots; s++) {
            char *slots = m->base[v] + up(state[v]);

            m->slot[s].base[HD_REGION_STATE][v] = m->base[v];
            m->slot[s].base[HD_REGION_SAVED][v] = slots + s * kept[v];
            m->slot[s].base[HD_REGION_DEFERRED][v] =
                slots + plan->saved_slots * kept[v] + s * deferred[v];
            m->slot[s].base[HD_REGION_WORK][v] =
                slots + plan->saved_slots * kept[v] + plan->deferred_slots * deferred[v];
            m->slot[s].chunk_state = m->base[0] + c->registry->private_bytes;
        }
    }
}

struct hd_step_plan toy_plan(enum hd_schedule_kind schedule, int micro_batches, bool split,
                             struct hd_arena *arena)
{
    const struct hd_pipeline pipeline = {1, 1, false};
    struct hd_schedule order;
    struct hd_step_plan plan;

    assert_int_equal(hd_schedule_build(schedule, &pipeline, micro_batches, split, arena, &order),
                     HD_OK);
    assert_int_equal(hd_step_plan_build(&order, 0, arena, &plan), HD_OK);
    assert_int_equal(hd_step_plan_check(&order, &plan), HD_OK);
    return plan;
}

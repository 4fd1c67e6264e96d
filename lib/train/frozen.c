/* frozen: a model that only computes on the ranks of a job: a teacher's (lessons.c) or one that rates
 * answers (policy_score.c).
 *
 * It is a trainer of its own (hd_rank_program.frozen_program), whose memory is a part of the reservation of
 * the one that trains, and whose mesh is that one's. Nothing of it is saved: its weights are read from their
 * folder when an attempt begins. Between steps it shares communicator and device, never at one time.
 */
#include <stdlib.h>

#include "job/frozen_model.h"
#include "train/execute.h"
#include "train/trainer.h"

void hd_trainer_close_frozen(struct hd_trainer *t)
{
    struct hd_trainer *m = t->frozen;

    if (!m)
        return;
    hd_rank_close(&m->open);
    hd_arena_done(&m->arena);
    free(m);
    t->frozen = NULL;
}

/* Gives the frozen model its part of the trainer's memory. */
static void take_memory(const struct hd_trainer *t, struct hd_trainer *m)
{
    const int64_t *begin = t->rank_program.frozen_begin;

    m->private_base = t->private_base + begin[0];
    m->registered_base = t->registered_base + begin[1];
    m->host_base = t->open.table->device ? t->host_base + begin[2] : m->private_base;
    m->open.staging.host_begin = t->open.staging.host_begin;
    m->open.staging.host_end = t->open.staging.host_end;
}

static enum hd_status bind_frozen(struct hd_trainer *m)
{
    const struct hd_rank_program *l = &m->rank_program;
    const int32_t slots = hd_rank_program_stage_io_slots(l);
    enum hd_status st;

    m->slots = hd_arena_array(&m->arena, (size_t)slots + 1, sizeof *m->slots);
    m->round = hd_arena_alloc(&m->arena, sizeof *m->round);
    m->messages = hd_arena_array(&m->arena, (size_t)l->mesh.world, HD_EXCHANGE_SLOT_BYTES);
    if (hd_arena_failed(&m->arena))
        return hd_err(HD_NO_MEMORY, "no memory for a frozen model");
    st = hd_execute_bind(m, &l->eval_plan, NULL, m->round);
    for (int k = 0; !st && k < l->chunk_count; k++)
        st = hd_staging_write_constants(&m->open.staging, l->eval[k],
                                        m->private_base + l->eval_state[k]);
    return st;
}

enum hd_status hd_trainer_open_frozen(struct hd_trainer *t)
{
    struct hd_trainer *m = calloc(1, sizeof *m);
    enum hd_status st;

    if (!m)
        return hd_err(HD_NO_MEMORY, "no memory for a frozen model");
    t->frozen = m;
    hd_arena_init(&m->arena, 0);
    m->rank_program = *t->rank_program.frozen_program;
    m->world = t->world;
    m->traits = t->traits;
    m->step_deadline_ms = t->step_deadline_ms;
    m->save_deadline_ms = t->save_deadline_ms;
    m->alive = t->alive;
    m->alive_user = t->alive_user;
    st = hd_rank_open(&(struct hd_rank_opening){.table = t->open.table,
                                                .instance = t->open.backend,
                                                .comm = t->open.comm,
                                                .mesh = &m->rank_program.mesh},
                      &m->open);
    if (st)
        return st;
    take_memory(t, m);
    return bind_frozen(m);
}

enum hd_status hd_trainer_load_frozen(struct hd_trainer *t)
{
    const enum hd_status st = hd_trainer_init(t->frozen);

    return st ? hd_err_prefix(st, "%s", hd_job_frozen_path(&t->rank_program.job)) : HD_OK;
}

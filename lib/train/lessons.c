/* lessons: the predictions of a teacher's model, which is on the student's ranks, for the batch of each
 * step (train.distill.teacher, a folder with weights).
 *
 *     before a step: its micro-batches --program E of the teacher's model--> the likeliest next tokens of
 *       each row, in host memory --> fields TEACHER_IDS, TEACHER_LOGQ of the student's micro-batches
 *
 * The teacher's model is a trainer of its own (hd_rank_program.teacher_program), whose memory is a part of
 * the student's reservation. It has the student's mesh, so a rank of the stage of the head has its rows'
 * predictions itself; nothing is sent. Nothing of it is saved: its weights are read from their folder when
 * an attempt begins. Between steps it shares the student's communicator and device, never at one time.
 */
#include <stdlib.h>

#include "train/batch.h"
#include "train/execute.h"
#include "train/trainer.h"

/* ---- opening ---- */

void hd_trainer_close_lessons(struct hd_trainer *t)
{
    struct hd_trainer *m = t->teacher_model;

    if (!m)
        return;
    /* waits for the device: after a failure its kernels may still use the memory */
    if (m->table->device && m->runner)
        (void)m->table->synchronize(hd_runner_stream(m->runner));
    hd_staging_done(&m->staging);
    hd_runner_free(m->runner);
    hd_arena_done(&m->arena);
    free(m);
    t->teacher_model = NULL;
}

/* Gives the teacher's model its part of the student's memory. */
static void take_memory(const struct hd_trainer *t, struct hd_trainer *m)
{
    const int64_t *begin = t->rank_program.teacher_begin;

    m->private_base = t->private_base + begin[0];
    m->registered_base = t->registered_base + begin[1];
    m->host_base = t->table->device ? t->host_base + begin[2] : m->private_base;
    m->staging.host_begin = t->staging.host_begin;
    m->staging.host_end = t->staging.host_end;
}

static enum hd_status bind_lessons(struct hd_trainer *m)
{
    const struct hd_rank_program *l = &m->rank_program;
    const int32_t slots = hd_rank_program_stage_io_slots(l);
    enum hd_status st;

    m->slots = hd_arena_array(&m->arena, (size_t)slots + 1, sizeof *m->slots);
    m->round = hd_arena_alloc(&m->arena, sizeof *m->round);
    m->messages = hd_arena_array(&m->arena, (size_t)l->mesh.world, HD_EXCHANGE_SLOT_BYTES);
    if (hd_arena_failed(&m->arena))
        return hd_err(HD_NO_MEMORY, "no memory for the teacher's model");
    st = hd_execute_bind(m, &l->eval_plan, NULL, m->round);
    for (int k = 0; !st && k < l->chunk_count; k++)
        st =
            hd_staging_write_constants(&m->staging, l->eval[k], m->private_base + l->eval_state[k]);
    return st;
}

enum hd_status hd_trainer_open_lessons(struct hd_trainer *t)
{
    struct hd_trainer *m = calloc(1, sizeof *m);
    enum hd_status st;

    if (!m)
        return hd_err(HD_NO_MEMORY, "no memory for the teacher's model");
    t->teacher_model = m;
    hd_arena_init(&m->arena, 0);
    m->rank_program = *t->rank_program.teacher_program;
    m->table = t->table;
    m->backend = t->backend;
    m->comm = t->comm;
    m->world = t->world;
    m->traits = t->traits;
    m->step_deadline_ms = t->step_deadline_ms;
    m->save_deadline_ms = t->save_deadline_ms;
    st = hd_runner_new(m->table, m->backend, m->comm, &m->rank_program.mesh, &m->runner);
    if (!st)
        st = hd_staging_init(m->table, hd_runner_stream(m->runner), &m->staging);
    if (st)
        return st;
    take_memory(t, m);
    return bind_lessons(m);
}

enum hd_status hd_trainer_load_lessons(struct hd_trainer *t)
{
    enum hd_status st;

    hd_comm_set_deadline(t->comm, t->save_deadline_ms); /* disks are slower than steps */
    st = hd_trainer_init(t->teacher_model);
    hd_comm_set_deadline(t->comm, t->step_deadline_ms);
    return st ? hd_err_prefix(st, "train.distill.teacher") : HD_OK;
}

/* ---- a step ---- */

struct lesson_pass {
    const struct hd_trainer *student;
    int64_t first;  /* micro-batch of the student's step with which the round begins */
    float *records; /* [rows of a micro-batch, top_k, 2] {log q, id} */
};

/* Fills a micro-batch of the teacher's model, which is that of the student's step. */
static enum hd_status feed_lesson(struct hd_trainer *m, const struct hd_chunk *chunk,
                                  const struct hd_bases *bases, int64_t micro_batch, void *context)
{
    const struct lesson_pass *p = context;

    return hd_batch_feed_training(m, chunk, bases, p->first + micro_batch, NULL);
}

/* Keeps the predictions of a micro-batch. */
static enum hd_status keep_lesson(struct hd_trainer *m, const struct hd_chunk *chunk,
                                  const struct hd_bases *bases, int64_t micro_batch, void *context)
{
    const struct hd_store *store = hd_chunk_find_kind(chunk, HD_STORE_OUTPUT);
    const struct lesson_pass *p = context;
    const int64_t count = hd_trainer_lesson_elements(p->student),
                  k = p->student->rank_program.job.distill_top_k;
    int32_t *ids = hd_trainer_lesson_ids(p->student, p->first + micro_batch);
    float *logq = hd_trainer_lesson_logq(p->student, p->first + micro_batch);
    enum hd_status st;

    if (!store)
        return HD_OK;
    st = hd_staging_read(&m->staging, p->records, hd_store_address(bases, store),
                         2 * count * (int64_t)sizeof *p->records);
    for (int64_t i = 0; !st && i < count; i++) {
        ids[i] = (int32_t)p->records[2 * i + 1];
        logq[i] = ids[i] < 0 ? 0 : p->records[2 * i];
        /* log q is not above 0, and of logits that are all NaN a row has no first id */
        if ((i % k == 0 && ids[i] < 0) || !(logq[i] <= 0.01f))
            st = hd_err(HD_CORRUPT, "train.distill.teacher: the log-probabilities of its model are "
                                    "not finite; are its weights those of a trained model?");
    }
    return st;
}

static enum hd_status run_lessons(struct hd_trainer *t, struct lesson_pass *p)
{
    struct hd_trainer *m = t->teacher_model;
    const int64_t round = m->rank_program.eval_order.micro_batches;
    int64_t too_many = 0;
    enum hd_status st = hd_trainer_reset_sums(m);

    for (p->first = 0; !st && p->first < t->micro_batches; p->first += round)
        st = hd_execute(m, m->round, t->micro_batches - p->first, feed_lesson, keep_lesson, p);
    if (st || !m->rank_program.job.experts)
        return st;
    st = hd_trainer_read_sums(m);
    if (!st)
        st = hd_trainer_agree(t, m->block.too_many_rows, &too_many);
    return !st && too_many ? hd_err_prefix(hd_trainer_refuse_rows(), "the teacher's model") : st;
}

enum hd_status hd_trainer_take_lessons(struct hd_trainer *t)
{
    struct hd_trainer *m = t->teacher_model;
    struct lesson_pass p = {.student = t};
    enum hd_status st;

    p.records = calloc((size_t)hd_trainer_lesson_elements(t), 2 * sizeof *p.records);
    if (!p.records)
        return hd_err(HD_NO_MEMORY, "no memory for the teacher's predictions");
    m->data = t->data; /* borrowed */
    m->steps_done = t->steps_done;
    m->data_skipped = t->data_skipped;
    m->micro_batches = t->micro_batches;
    st = run_lessons(t, &p);
    free(p.records);
    if (st)
        hd_comm_abort(t->comm, hd_err_message());
    return st;
}

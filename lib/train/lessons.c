/* lessons: the predictions of a teacher's model, which is on the student's ranks, for the batch of each
 * step (train.distill.teacher, a folder with weights).
 *
 *     before a step: its micro-batches, of files or of the student's answers --program E of the teacher's model--> the likeliest next tokens of
 *       each row, in host memory --> fields TEACHER_IDS, TEACHER_LOGQ of the student's micro-batches
 *
 * The teacher's model (frozen.c) has the student's mesh, so a rank of the stage of the head has its rows'
 * predictions itself; nothing is sent.
 */
#include <stdlib.h>

#include "train/batch.h"
#include "train/execute.h"
#include "train/trainer.h"

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
    st = hd_staging_read(&m->open.staging, p->records, hd_store_address(bases, store),
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
    struct hd_trainer *m = t->frozen;
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
    struct hd_trainer *m = t->frozen;
    struct lesson_pass p = {.student = t};
    enum hd_status st;

    p.records = calloc((size_t)hd_trainer_lesson_elements(t), 2 * sizeof *p.records);
    if (!p.records)
        return hd_err(HD_NO_MEMORY, "no memory for the teacher's predictions");
    m->data = t->data; /* borrowed, as the completions */
    m->completions = t->completions;
    m->steps_done = t->steps_done;
    m->data_skipped = t->data_skipped;
    m->micro_batches = t->micro_batches;
    st = run_lessons(t, &p);
    m->completions = NULL;
    free(p.records);
    if (st)
        hd_comm_abort(t->open.comm, hd_err_message());
    return st;
}

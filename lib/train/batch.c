#include "train/batch.h"

#include <string.h>

#include "mesh/zigzag.h"
#include "train/policy_feed.h"
#include "train/profile.h"
#include "train/teacher_record.h"

/* token id of padding rows. The embedding of an id outside its table is zeros, and without biases a
 * row of zeros stays zeros, so that padding does not change the scales of fp8. */
enum { EMPTY_TOKEN = -1 };

/* Copies `count` whole samples from `from`, beginning with sample index `first`, into the fields of
 * a batch. */
typedef enum hd_status fill_fn(struct hd_trainer *t, const void *from, int64_t first, int64_t count,
                               const struct hd_data_batch *batch);

static enum hd_status fill_training(struct hd_trainer *t, const void *from, int64_t first,
                                    int64_t count, const struct hd_data_batch *batch)
{
    (void)from;
    return hd_sampler_fill(hd_job_data_sampler(&t->data, t->steps_done + 1),
                           t->steps_done + t->data_skipped, first, count, batch);
}

static enum hd_status fill_windows(struct hd_trainer *t, const void *from, int64_t first,
                                   int64_t count, const struct hd_data_batch *batch)
{
    (void)t;
    return hd_validation_fill(from, first, count, batch);
}

static enum hd_status fill_exam(struct hd_trainer *t, const void *from, int64_t first,
                                int64_t count, const struct hd_data_batch *batch)
{
    (void)t;
    hd_exam_fill(from, first, count, batch);
    return HD_OK;
}

/* Lists the pointers to a sample's fields as an array; the elements of all fields have 4 bytes. */
static void fields_of(const struct hd_data_batch *b, void *ret_fields[HD_SAMPLE_FIELDS_MAX])
{
    void *const fields[] = {b->tokens,    b->targets, b->positions, b->index,
                            b->bounds,    b->begins,  b->lengths,   b->answers,
                            b->reference, b->sampled, b->advantage};
    const int count = (int)(sizeof fields / sizeof fields[0]);

    _Static_assert(sizeof fields / sizeof fields[0] + 2 * HD_FURTHER_MAX == HD_SAMPLE_FIELDS_MAX,
                   "a field is missing");
    _Static_assert((int)HD_FURTHER_MAX == (int)HD_DATA_FURTHER_MAX, "data has all further tokens");
    memcpy(ret_fields, fields, sizeof fields);
    for (int k = 0; k < HD_FURTHER_MAX; k++) {
        ret_fields[count + 2 * k] = b->ahead[k];
        ret_fields[count + 2 * k + 1] = b->further[k];
    }
}

static void take_rows(const struct hd_zigzag *mine, const struct hd_data_batch *whole,
                      const struct hd_data_batch *batch, int64_t sample)
{
    const int64_t rows = hd_zigzag_rows(mine);
    void *from[HD_SAMPLE_FIELDS_MAX], *to[HD_SAMPLE_FIELDS_MAX];

    fields_of(whole, from);
    fields_of(batch, to);
    for (int f = 0; f < HD_SAMPLE_FIELDS_MAX; f++)
        for (int64_t r = 0; to[f] && r < rows; r++)
            memcpy((int32_t *)to[f] + sample * rows + r,
                   (const int32_t *)from[f] + hd_zigzag_position(mine, r), sizeof(int32_t));
}

/* Host memory of the fields TEACHER_IDS and TEACHER_LOGQ of a batch, and their tensors; NULL: the
 * program has none. */
struct teacher_fields {
    void *ids_tensor, *logq_tensor;
    int32_t *ids; /* [rows, k] */
    float *logq;  /* [rows, k] */
};

/* Copies the teacher's records of this rank's rows of a sample. places: those of the whole sample. */
static void take_teacher(const struct hd_trainer *t, const struct hd_zigzag *mine,
                         const int64_t *places, const struct teacher_fields *teacher,
                         int64_t sample)
{
    const int64_t rows = hd_zigzag_rows(mine), k = t->rank_program.job.distill_top_k;

    for (int64_t r = 0; r < rows; r++)
        hd_teacher_read(t->teacher, k, &places[hd_zigzag_position(mine, r)], 1,
                        teacher->ids + (sample * rows + r) * k,
                        teacher->logq + (sample * rows + r) * k);
}

/* Fills the batch fields with one micro-batch, which begins with sample index `first`. samples:
 * gets, per row of the batch, the index of the sample that the row is from, counted like `first`;
 * may be NULL. */
static enum hd_status fill(struct hd_trainer *t, fill_fn *fill_whole, const void *source,
                           int64_t first, const struct hd_data_batch *asked,
                           const struct teacher_fields *teacher, int32_t *samples)
{
    struct hd_data_batch with_places = *asked;
    const struct hd_data_batch *batch = &with_places;
    const struct hd_rank_program *l = &t->rank_program;
    const int64_t B = l->job.micro_batch, S = l->job.context;
    const struct hd_zigzag mine = {S, l->mesh.sizes.cp, l->coord.cp};
    int32_t *sample = (int32_t *)(t->host_base + l->sample);
    const int64_t answer_fields = hd_rank_program_answer_fields(&l->job);
    struct hd_data_batch whole = {.tokens = sample,
                                  .targets = sample + S,
                                  .positions = sample + 2 * S,
                                  .index = sample + 3 * S,
                                  .bounds = sample + 4 * S,
                                  .begins = sample + 5 * S,
                                  .lengths = sample + 6 * S,
                                  .answers = answer_fields ? sample + 7 * S : NULL,
                                  .reference = answer_fields ? (float *)(sample + 8 * S) : NULL,
                                  .sampled = answer_fields > 2 ? (float *)(sample + 9 * S) : NULL,
                                  .advantage =
                                      answer_fields > 2 ? (float *)(sample + 10 * S) : NULL,
                                  .answer_ends = batch->answer_ends,
                                  .mismatched = batch->mismatched,
                                  .empty_token = EMPTY_TOKEN};
    /* true: whole samples are copied directly into the batch. This needs the batch's tokens, from
     * which the bounds of documents are found; pipeline stages without the embedding have no token
     * field */
    const bool whole_rows = mine.P == 1 && batch->tokens;
    enum hd_status st = HD_OK;

    for (int64_t k = 0; k < l->job.mtp_layers && batch->ahead[k]; k++) {
        whole.ahead[k] = sample + (HD_SAMPLE_FIELDS + 2 * k) * S;
        whole.further[k] = whole.ahead[k] + S;
    }
    if (teacher->ids)
        with_places.target_places = whole.target_places =
            (int64_t *)(void *)(t->host_base + l->teacher);
    if (whole_rows)
        st = fill_whole(t, source, first, B, batch);
    if (whole_rows && !st && teacher->ids)
        hd_teacher_read(t->teacher, l->job.distill_top_k, batch->target_places, B * S, teacher->ids,
                        teacher->logq);
    for (int64_t i = 0; !whole_rows && !st && i < B; i++) {
        st = fill_whole(t, source, first + i, 1, &whole);
        take_rows(&mine, &whole, batch, i);
        if (!st && teacher->ids)
            take_teacher(t, &mine, whole.target_places, teacher, i);
    }
    if (!st && batch->positions)
        hd_data_move_positions(batch->positions, B * S / mine.P, hd_job_first_position(&l->job));
    for (int64_t r = 0; samples && r < B * S / mine.P; r++)
        samples[r] = (int32_t)(first + r / (S / mine.P));
    return st;
}

/* ---- the batch fields of a program ---- */

/* Batch fields of one program: its tensors, and the host memory to fill. A pointer is NULL if the
 * program has no such field. */
struct fields {
    void *tensor[HD_BATCH_FIELDS_MAX], *filled[HD_BATCH_FIELDS_MAX];
    struct hd_data_batch batch; /* the pointers of `filled`, as named members */
    struct teacher_fields teacher;
    int64_t rows;
};

/* indices in a batch's fields: of HD_BATCH_SAMPLES, which is not a field of samples, and of the
 * first field that only some jobs have */
enum { SAMPLES = HD_SAMPLE_FIELDS, OTHERS };

/* Returns the index of the first field of further tokens. */
static int further_from(const struct hd_job *job)
{
    return OTHERS + (int)hd_rank_program_answer_fields(job);
}

static struct teacher_fields find_teacher(const struct hd_trainer *t, const struct hd_chunk *chunk,
                                          const struct hd_bases *bases)
{
    const struct hd_store *ids = hd_chunk_find_batch(chunk, HD_BATCH_TEACHER_IDS);
    const struct hd_store *logq = hd_chunk_find_batch(chunk, HD_BATCH_TEACHER_LOGQ);
    const struct hd_job *job = &t->rank_program.job;
    const int64_t rows = job->micro_batch * job->context / t->rank_program.mesh.sizes.cp;
    const int64_t places = rows > job->context ? rows : job->context;
    struct teacher_fields f = {0};

    if (!ids || !logq)
        return f;
    f.ids_tensor = hd_store_address(bases, ids);
    f.logq_tensor = hd_store_address(bases, logq);
    if (t->frozen) /* hd_batch_feed_training writes its predictions (write_lesson) */
        return f;
    f.ids = f.ids_tensor;
    f.logq = f.logq_tensor;
    if (t->open.staging.device) {
        f.ids = (int32_t *)(void *)(t->host_base + t->rank_program.teacher +
                                    hd_tensor_align(places * (int64_t)sizeof(int64_t)));
        f.logq = (float *)(f.ids + rows * job->distill_top_k);
    }
    return f;
}

/* Finds the batch fields of a chunk. On the CPU `filled` is the tensor itself, on a device it is a
 * host buffer at hd_rank_program.batch. */
static struct fields find_fields(const struct hd_trainer *t, const struct hd_chunk *chunk,
                                 const struct hd_bases *bases)
{
    static const enum hd_batch_field every[] = {
        HD_BATCH_TOKENS, HD_BATCH_TARGETS, HD_BATCH_POSITIONS, HD_BATCH_INDEX,
        HD_BATCH_BOUNDS, HD_BATCH_BEGINS,  HD_BATCH_LENGTHS,   [SAMPLES] = HD_BATCH_SAMPLES};
    static const enum hd_batch_field of_answers[HD_ANSWER_FIELDS_MAX] = {
        HD_BATCH_ANSWERS, HD_BATCH_REFERENCE, HD_BATCH_SAMPLED, HD_BATCH_ADVANTAGE};
    const struct hd_rank_program *l = &t->rank_program;
    const int count = (int)hd_rank_program_batch_fields(&l->job), further = further_from(&l->job);
    enum hd_batch_field names[HD_BATCH_FIELDS_MAX];
    struct fields f = {.rows = l->job.micro_batch * l->job.context / l->mesh.sizes.cp};

    memcpy(names, every, sizeof every);
    memcpy(names + OTHERS, of_answers, sizeof of_answers);
    for (int k = further; k < count; k++)
        names[k] = ((k - further) % 2 ? HD_BATCH_FURTHER1 : HD_BATCH_AHEAD1) + (k - further) / 2;
    for (int k = 0; k < count; k++) {
        const struct hd_store *store = hd_chunk_find_batch(chunk, names[k]);

        if (!store)
            continue;
        f.tensor[k] = hd_store_address(bases, store);
        f.filled[k] = t->open.staging.device ? (int32_t *)(t->host_base + l->batch) + k * f.rows
                                             : f.tensor[k];
    }
    f.batch = (struct hd_data_batch){.tokens = f.filled[0],
                                     .targets = f.filled[1],
                                     .positions = f.filled[2],
                                     .index = f.filled[3],
                                     .bounds = f.filled[4],
                                     .begins = f.filled[5],
                                     .lengths = f.filled[6],
                                     .answer_ends = hd_job_is_reward(&l->job),
                                     .empty_token = EMPTY_TOKEN};
    if (further > OTHERS) {
        f.batch.answers = f.filled[OTHERS];
        f.batch.reference = f.filled[OTHERS + 1];
    }
    if (hd_job_has_policy_loss(&l->job)) {
        f.batch.sampled = f.filled[OTHERS + 2];
        f.batch.advantage = f.filled[OTHERS + 3];
    }
    f.teacher = find_teacher(t, chunk, bases);
    for (int k = further; k < count; k += 2) {
        f.batch.ahead[(k - further) / 2] = f.filled[k];
        f.batch.further[(k - further) / 2] = f.filled[k + 1];
    }
    return f;
}

/* Copies the filled fields to the device; does nothing on the CPU. The copies are ordered after
 * earlier launches, which may still read the previous batch; the compute stream has already waited
 * for that batch's collectives (run.h). */
static enum hd_status write_fields(const struct hd_trainer *t, const struct fields *f)
{
    enum hd_status st = HD_OK;

    for (int k = 0; t->open.staging.device && !st && k < HD_BATCH_FIELDS_MAX; k++)
        if (f->tensor[k])
            st = hd_staging_write(&t->open.staging, f->tensor[k], f->filled[k],
                                  f->rows * (int64_t)sizeof(int32_t));
    if (t->open.staging.device && !st && f->teacher.ids) {
        const int64_t bytes =
            f->rows * t->rank_program.job.distill_top_k * (int64_t)sizeof(int32_t);

        st = hd_staging_write(&t->open.staging, f->teacher.ids_tensor, f->teacher.ids, bytes);
        if (!st)
            st = hd_staging_write(&t->open.staging, f->teacher.logq_tensor, f->teacher.logq, bytes);
    }
    return st;
}

static enum hd_status fill_fields(struct hd_trainer *t, fill_fn *fill_whole, const void *source,
                                  int64_t first, const struct fields *f)
{
    enum hd_status st =
        fill(t, fill_whole, source, first, &f->batch, &f->teacher, f->filled[SAMPLES]);

    if (!st)
        st = write_fields(t, f);
    if (st)
        hd_comm_abort(t->open.comm, hd_err_message());
    return st;
}

/* Writes what the teacher's model predicts of a micro-batch's rows (lessons.c). */
static enum hd_status write_lesson(const struct hd_trainer *t, const struct fields *f,
                                   int64_t micro_batch)
{
    const int64_t bytes = f->rows * t->rank_program.job.distill_top_k * (int64_t)sizeof(int32_t);
    const enum hd_status st = hd_staging_write(&t->open.staging, f->teacher.ids_tensor,
                                               hd_trainer_lesson_ids(t, micro_batch), bytes);

    return st ? st
              : hd_staging_write(&t->open.staging, f->teacher.logq_tensor,
                                 hd_trainer_lesson_logq(t, micro_batch), bytes);
}

/* Fills the batch with training samples. The samples of one dp index (data-parallel rank) in a step
 * are consecutive; each micro-batch has job.micro_batch of them. */
enum hd_status hd_batch_feed_training(struct hd_trainer *t, const struct hd_chunk *chunk,
                                      const struct hd_bases *bases, int64_t micro_batch,
                                      void *context)
{
    const struct hd_rank_program *l = &t->rank_program;
    const struct fields f = find_fields(t, chunk, bases);
    enum hd_status st =
        fill_fields(t, t->completions ? hd_policy_fill : fill_training, NULL,
                    (l->coord.dp * t->micro_batches + micro_batch) * l->job.micro_batch, &f);

    if (!st && t->frozen && f.teacher.ids_tensor)
        st = write_lesson(t, &f, micro_batch);
    (void)context;
    hd_profile_batch_done(t->profile);
    return st;
}

int64_t hd_batch_first_window(const struct hd_trainer *t, const struct hd_batch_windows *windows,
                              int64_t micro_batch)
{
    const struct hd_rank_program *l = &t->rank_program;

    return ((windows->first + micro_batch) * l->mesh.sizes.dp + l->coord.dp) * l->job.micro_batch;
}

enum hd_status hd_batch_feed_windows(struct hd_trainer *t, const struct hd_chunk *chunk,
                                     const struct hd_bases *bases, int64_t micro_batch,
                                     void *context)
{
    const struct hd_batch_windows *windows = context;
    struct fields f = find_fields(t, chunk, bases);
    fill_fn *const fill_whole = windows->completions ? hd_policy_fill_windows
                                : windows->exam      ? fill_exam
                                : windows->windows   ? fill_windows
                                                     : fill_training;
    const void *source = windows->completions ? (const void *)windows->completions
                         : windows->exam      ? (const void *)windows->exam
                                              : (const void *)windows->windows;

    f.batch.mismatched = windows->mismatched;
    return fill_fields(t, fill_whole, source, hd_batch_first_window(t, windows, micro_batch), &f);
}

/* examine: answers the questions of an exam (exam.h) with the programs of validation. */
#include <stdlib.h>
#include <string.h>

#include "mesh/zigzag.h"
#include "train/batch.h"

struct exam_pass {
    struct hd_batch_windows windows; /* must be first: the context of hd_batch_feed_windows */
    double *sums;                    /* [sequences], log-likelihoods of this rank's rows */
    int64_t *sequence;               /* [context], the sequence whose choice has the target of a row
                                        of a window; -1: none */
    float *logp;                     /* [rows of a micro-batch] */
};

/* Lists for each row of a window the sequence to whose log-likelihood it belongs. */
static void place_choices(const struct exam_pass *p, int64_t window)
{
    const struct hd_exam *e = p->windows.exam;
    int64_t at = 0;

    for (int64_t k = window < e->window_count ? e->windows[window] : 0;
         window < e->window_count && k < e->windows[window + 1]; k++)
        for (int64_t j = 0; j < e->sequences[k].rows; j++)
            p->sequence[at++] = j >= e->sequences[k].first ? k : -1;
    for (; at < e->context; at++)
        p->sequence[at] = -1;
}

/* Adds the log-probabilities of a micro-batch to the sums. All tp ranks have equal ones, so only tp
 * rank 0 does. */
static enum hd_status take_scores(struct hd_trainer *t, const struct hd_chunk *chunk,
                                  const struct hd_bases *bases, int64_t micro_batch, void *context)
{
    const struct hd_store *store = hd_chunk_find_kind(chunk, HD_STORE_OUTPUT);
    const struct hd_rank_program *l = &t->rank_program;
    const struct hd_zigzag mine = {l->job.context, l->mesh.sizes.cp, l->coord.cp};
    const int64_t rows = hd_zigzag_rows(&mine);
    struct exam_pass *p = context;
    int64_t window;
    enum hd_status st;

    if (!store || l->coord.tp != 0)
        return HD_OK;
    st = hd_staging_read(&t->open.staging, p->logp, hd_store_address(bases, store),
                         l->job.micro_batch * rows * (int64_t)sizeof *p->logp);
    window = hd_batch_first_window(t, &p->windows, micro_batch);
    for (int64_t i = 0; !st && i < l->job.micro_batch; i++) {
        place_choices(p, window + i);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t k = p->sequence[hd_zigzag_position(&mine, r)];

            if (k >= 0)
                p->sums[k] += (double)p->logp[i * rows + r];
        }
    }
    return st;
}

static enum hd_status run_windows(struct hd_trainer *t, struct exam_pass *p,
                                  void (*alive)(void *user), void *user)
{
    const int64_t together = t->rank_program.mesh.sizes.dp * t->rank_program.job.micro_batch;
    const int64_t calls = (p->windows.exam->window_count + together - 1) / together;
    const int64_t round = t->rank_program.eval_order.micro_batches;
    enum hd_status st = HD_OK;

    for (p->windows.first = 0; !st && p->windows.first < calls; p->windows.first += round) {
        if (alive)
            alive(user);
        st = hd_execute(t, t->round, calls - p->windows.first, hd_batch_feed_windows, take_scores,
                        p);
    }
    return st;
}

/* Adds the sums of all ranks, in rank order, in as many messages as they need. */
static enum hd_status add_ranks(struct hd_trainer *t, double *sums, int64_t count)
{
    enum { PIECE = HD_EXCHANGE_SLOT_BYTES / sizeof(double) };
    enum hd_status st = HD_OK;

    for (int64_t at = 0; !st && at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        const char *all;

        st = hd_trainer_exchange(t, sums + at, (size_t)n * sizeof *sums, &all);
        for (int64_t i = 0; !st && i < n; i++) {
            double sum = 0;

            for (int r = 0; r < t->rank_program.mesh.world; r++) {
                double one;

                memcpy(&one, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES + i * (int64_t)sizeof one,
                       sizeof one);
                sum += one;
            }
            sums[at + i] = sum;
        }
    }
    return st;
}

static void score(const struct hd_exam *e, const double *sums, struct hd_exam_score *ret_score)
{
    int64_t at = 0, acc = 0, acc_norm = 0;

    for (int64_t q = 0; q < e->questions; at += e->choices[q++]) {
        int32_t characters[HD_CHOICES_MAX];
        int best, norm;

        for (int i = 0; i < e->choices[q]; i++)
            characters[i] = e->sequences[at + i].characters;
        hd_question_answer(sums + at, characters, e->choices[q], &best, &norm);
        acc += best == e->right[q];
        acc_norm += norm == e->right[q];
    }
    *ret_score = (struct hd_exam_score){.questions = e->questions,
                                        .cut = e->cut,
                                        .acc = (double)acc / (double)e->questions,
                                        .acc_norm = (double)acc_norm / (double)e->questions};
}

int64_t hd_trainer_exam_count(const struct hd_trainer *t)
{
    return t->exams.count;
}

enum hd_status hd_trainer_examine(struct hd_trainer *t, int64_t index, void (*alive)(void *user),
                                  void *user, struct hd_exam_score *ret_score)
{
    const struct hd_job *job = &t->rank_program.job;
    const struct hd_exam *e = &t->exams.list[index];
    struct exam_pass p = {
        .windows = {.exam = e},
        .sums = calloc((size_t)e->count + 1, sizeof *p.sums), /* the last: too many expert rows */
        .sequence = calloc((size_t)job->context, sizeof *p.sequence),
        .logp = calloc((size_t)(job->micro_batch * job->context), sizeof *p.logp)};
    enum hd_status st = p.sums && p.sequence && p.logp
                            ? hd_trainer_reset_sums(t)
                            : hd_err(HD_NO_MEMORY, "no memory for the answers to questions");

    if (!st)
        st = run_windows(t, &p, alive, user);
    if (!st)
        st = hd_trainer_read_sums(t);
    if (!st) {
        p.sums[e->count] = (double)t->block.too_many_rows;
        st = add_ranks(t, p.sums, e->count + 1);
    }
    if (!st && p.sums[e->count] > 0)
        st = hd_trainer_refuse_rows();
    if (!st) {
        score(e, p.sums, ret_score);
        hd_trainer_note_score(t, index, ret_score);
    }
    free(p.sums);
    free(p.sequence);
    free(p.logp);
    return st;
}

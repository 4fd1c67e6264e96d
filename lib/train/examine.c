/* examine: answers the questions of an exam (exam.h) with the programs of validation. */
#include <stdlib.h>
#include <string.h>

#include "train/trainer.h"
#include "train/window_pass.h"

struct exam_pass {
    const struct hd_exam *exam;
    double *sums;      /* [sequences], log-likelihoods of this rank's rows */
    int64_t *sequence; /* [context], the sequence whose choice has the target of a row of a window;
                          -1: none */
    void (*alive)(void *user);
    void *alive_user;
};

/* Lists for each row of a window the sequence to whose log-likelihood it belongs. */
static enum hd_status place_choices(struct hd_trainer *t, void *user, int64_t window)
{
    const struct exam_pass *p = user;
    const struct hd_exam *e = p->exam;
    int64_t at = 0;

    (void)t;
    for (int64_t k = e->windows[window]; k < e->windows[window + 1]; k++)
        for (int64_t j = 0; j < e->sequences[k].rows; j++)
            p->sequence[at++] = j >= e->sequences[k].first ? k : -1;
    for (; at < e->context; at++)
        p->sequence[at] = -1;
    return HD_OK;
}

static enum hd_status add_score(void *user, int64_t window, int64_t position, const float *logp)
{
    const struct exam_pass *p = user;
    const int64_t k = p->sequence[position];

    (void)window;
    if (k >= 0)
        p->sums[k] += (double)*logp;
    return HD_OK;
}

static enum hd_status tell_alive(void *user, int64_t done)
{
    const struct exam_pass *p = user;

    (void)done;
    if (p->alive)
        p->alive(p->alive_user);
    return HD_OK;
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
        .exam = e,
        .sums = calloc((size_t)e->count + 1, sizeof *p.sums), /* the last: too many expert rows */
        .sequence = calloc((size_t)job->context, sizeof *p.sequence),
        .alive = alive,
        .alive_user = user};
    struct hd_window_pass pass = {.windows = {.exam = e},
                                  .columns = 1,
                                  .prepare = place_choices,
                                  .take = add_score,
                                  .before = tell_alive,
                                  .user = &p};
    enum hd_status st = p.sums && p.sequence
                            ? hd_trainer_reset_sums(t)
                            : hd_err(HD_NO_MEMORY, "no memory for the answers to questions");

    if (!st)
        st = hd_window_pass_run(t, &pass, 0, e->window_count);
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
    return st;
}

/* mismatched: the KL term of KTO (Ethayarajh et al. 2024, section 4.1), one forward pass before each step.
 *
 *     z = max(0, mean over answers of the sum over an answer's targets of log-ratio to the reference)
 *
 * over all answers of the step's global batch, each behind the prompt of another one of its window
 * (data/sampler.c: fill_mismatched). TRL takes the mean over the micro-batch of each device, then over
 * devices, and answers behind the prompt that precedes theirs in the file; here windows decide, so that
 * z depends neither on the layout nor on the micro-batch. The sum is one of integers, exact in any
 * order: each term is rounded to 2^-24. z has no gradient, and nothing of it is saved: it follows from
 * the weights and the number of the step. A validation takes the mean over its own windows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"
#include "train/trainer.h"
#include "train/window_pass.h"

#define UNITS_PER_NAT 0x1p24 /* fixed-point units of the sums */

struct mismatched_pass {
    const struct hd_validation *set; /* NULL: the samples of the next step */
    bool counts;                     /* true: of the cp ranks this one counts the answers */
    /* [context], of the window that is being added */
    int32_t *ids, *targets, *answers;
    float *reference;
    int64_t units, answered; /* sum of log-ratios; number of answers */
};

/* Reads a window, and counts its answers. */
static enum hd_status fill_window(struct hd_trainer *t, void *user, int64_t window)
{
    struct mismatched_pass *p = user;
    const struct hd_data_batch row = {.tokens = p->ids,
                                      .targets = p->targets,
                                      .answers = p->answers,
                                      .reference = p->reference,
                                      .mismatched = true};
    const enum hd_status st =
        p->set ? hd_validation_fill(p->set, window, 1, &row)
               : hd_sampler_fill(hd_job_data_sampler(&t->data, t->steps_done + 1),
                                 t->steps_done + t->data_skipped, window, 1, &row);

    for (int64_t j = 0; !st && p->counts && j < t->rank_program.job.context; j++)
        p->answered += p->answers[j] >= 0 && (j == 0 || p->answers[j] != p->answers[j - 1]);
    return st;
}

/* Adds the log-ratio of a row. */
static enum hd_status add_ratio(void *user, int64_t window, int64_t position, const float *logp)
{
    struct mismatched_pass *p = user;
    const double ratio = (double)*logp - (double)p->reference[position];

    (void)window;
    /* weights whose log-probability is not finite make the step overflow, which skips it */
    if (p->targets[position] >= 0 && isfinite(ratio))
        p->units += llrint(ratio * UNITS_PER_NAT);
    return HD_OK;
}

/* Adds the sums of all ranks; sets the step state's z. HD_LIMIT: experts of a rank had no memory for
 * all rows, so the log-ratios are not those of the model. */
static enum hd_status sum_over_ranks(struct hd_trainer *t, const struct mismatched_pass *p)
{
    struct {
        int64_t units, answered, too_many_rows;
    } mine = {p->units, p->answered, t->block.too_many_rows}, one, total = {0, 0, 0};
    const char *all;
    const enum hd_status st = hd_trainer_exchange(t, &mine, sizeof mine, &all);

    for (int r = 0; !st && r < t->rank_program.mesh.world; r++) {
        memcpy(&one, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, sizeof one);
        total.units += one.units;
        total.answered += one.answered;
        total.too_many_rows += one.too_many_rows;
    }
    if (!st && total.too_many_rows)
        return hd_err_prefix(hd_trainer_refuse_rows(), "the KL term");
    t->block.kl = total.units > 0 && total.answered > 0
                      ? (double)total.units / UNITS_PER_NAT / (double)total.answered
                      : 0;
    return st;
}

enum hd_status hd_trainer_find_kl(struct hd_trainer *t, const struct hd_validation *set)
{
    const struct hd_job *job = &t->rank_program.job;
    const size_t rows = (size_t)job->context;
    struct mismatched_pass p = {.set = set,
                                .counts = t->rank_program.coord.cp == 0,
                                .ids = calloc(rows, sizeof *p.ids),
                                .targets = calloc(rows, sizeof *p.targets),
                                .answers = calloc(rows, sizeof *p.answers),
                                .reference = calloc(rows, sizeof *p.reference)};
    struct hd_window_pass pass = {.windows = {.windows = set, .mismatched = true},
                                  .columns = 1,
                                  .prepare = fill_window,
                                  .take = add_ratio,
                                  .user = &p};
    enum hd_status st = HD_OK;

    if (!p.ids || !p.targets || !p.answers || !p.reference)
        st = hd_err(HD_NO_MEMORY, "no memory for the KL term");
    if (!st)
        st = hd_trainer_reset_sums(t);
    if (!st)
        st = hd_window_pass_run(t, &pass, 0, set ? set->window_count : hd_trainer_batch(t));
    if (!st)
        st = hd_trainer_read_sums(t);
    if (!st)
        st = sum_over_ranks(t, &p);
    free(p.ids);
    free(p.targets);
    free(p.answers);
    free(p.reference);
    return st;
}

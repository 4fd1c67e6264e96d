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

#include "mesh/zigzag.h"
#include "train/batch.h"
#include "train/train.h"
#include "train/trainer.h"

#define UNITS_PER_NAT 0x1p24 /* fixed-point units of the sums */

struct mismatched_pass {
    struct hd_batch_windows windows; /* must be first: the context of hd_batch_feed_windows */
    /* [context], of the window that is being added */
    int32_t *ids, *targets, *answers;
    float *reference;
    float *logp;             /* [rows of a micro-batch] */
    int64_t units, answered; /* sum of log-ratios; number of answers */
};

static enum hd_status fill_window(struct hd_trainer *t, const struct mismatched_pass *p,
                                  int64_t window)
{
    const struct hd_data_batch row = {.tokens = p->ids,
                                      .targets = p->targets,
                                      .answers = p->answers,
                                      .reference = p->reference,
                                      .mismatched = true};

    if (p->windows.windows)
        return hd_validation_fill(p->windows.windows, window, 1, &row);
    return hd_sampler_fill(hd_job_data_sampler(&t->data, t->steps_done + 1),
                           t->steps_done + t->data_skipped, window, 1, &row);
}

/* Adds the log-ratios of a micro-batch. All tp ranks have equal ones, so only tp rank 0 does; ranks of
 * cp have rows of the same answers, which one of them counts. */
static enum hd_status add_ratios(struct hd_trainer *t, const struct hd_chunk *chunk,
                                 const struct hd_bases *bases, int64_t micro_batch, void *context)
{
    const struct hd_store *store = hd_chunk_find_kind(chunk, HD_STORE_OUTPUT);
    const struct hd_rank_program *l = &t->rank_program;
    const struct hd_zigzag mine = {l->job.context, l->mesh.sizes.cp, l->coord.cp};
    const int64_t rows = hd_zigzag_rows(&mine);
    struct mismatched_pass *p = context;
    int64_t window;
    enum hd_status st;

    if (!store || l->coord.tp != 0)
        return HD_OK;
    st = hd_staging_read(&t->open.staging, p->logp, hd_store_address(bases, store),
                         l->job.micro_batch * rows * (int64_t)sizeof *p->logp);
    window = hd_batch_first_window(t, &p->windows, micro_batch);
    for (int64_t i = 0; !st && i < l->job.micro_batch; i++) {
        st = fill_window(t, p, window + i);
        for (int64_t r = 0; !st && r < rows; r++) {
            const int64_t j = hd_zigzag_position(&mine, r);
            const double ratio = (double)p->logp[i * rows + r] - (double)p->reference[j];

            /* weights whose log-probability is not finite make the step overflow, which skips it */
            if (p->targets[j] >= 0 && isfinite(ratio))
                p->units += llrint(ratio * UNITS_PER_NAT);
        }
        for (int64_t j = 0; !st && l->coord.cp == 0 && j < l->job.context; j++)
            p->answered += p->answers[j] >= 0 && (j == 0 || p->answers[j] != p->answers[j - 1]);
    }
    return st;
}

static enum hd_status run_mismatched(struct hd_trainer *t, struct mismatched_pass *p, int64_t count)
{
    const int64_t together = t->rank_program.mesh.sizes.dp * t->rank_program.job.micro_batch;
    const int64_t calls = (count + together - 1) / together;
    const int64_t round = t->rank_program.eval_order.micro_batches;
    enum hd_status st = HD_OK;

    for (p->windows.first = 0; !st && p->windows.first < calls; p->windows.first += round)
        st =
            hd_execute(t, t->round, calls - p->windows.first, hd_batch_feed_windows, add_ratios, p);
    return st;
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
    struct mismatched_pass p = {.windows = {.windows = set, .mismatched = true},
                                .ids = calloc(rows, sizeof *p.ids),
                                .targets = calloc(rows, sizeof *p.targets),
                                .answers = calloc(rows, sizeof *p.answers),
                                .reference = calloc(rows, sizeof *p.reference),
                                .logp = calloc((size_t)job->micro_batch * rows, sizeof *p.logp)};
    enum hd_status st = HD_OK;

    if (!p.ids || !p.targets || !p.answers || !p.reference || !p.logp)
        st = hd_err(HD_NO_MEMORY, "no memory for the KL term");
    if (!st)
        st = hd_trainer_reset_sums(t);
    if (!st)
        st = run_mismatched(t, &p, set ? set->window_count : hd_trainer_batch(t));
    if (!st)
        st = hd_trainer_read_sums(t);
    if (!st)
        st = sum_over_ranks(t, &p);
    free(p.ids);
    free(p.targets);
    free(p.answers);
    free(p.reference);
    free(p.logp);
    return st;
}

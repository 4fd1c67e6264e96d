/* val_numbers: keeps the numbers of the last validation, and decides with them which weights are the
 * best (checkpoint.best) and whether the run ends early (validate.stop).
 *
 * All ranks have the same numbers and decide alike. A number that decides is stored so that lower
 * is better: a loss as it is, a score s as 1 - s. The initial weights (step 0) do not count. The
 * numbers that later validations are compared with are in each checkpoint, so that a run that is
 * killed and starts again from one decides as if it had not been. */
#include <math.h>

#include "train/trainer.h"

void hd_trainer_forget_numbers(struct hd_trainer *t)
{
    struct hd_val_numbers *n = &t->numbers;

    for (int i = 0; i < HD_JOB_VAL_SETS_MAX; i++)
        n->loss_step[i] = n->ema_step[i] = n->score_step[i] = n->pass_step[i] = -1;
    n->stop_step = -1;
    n->stop_best = NAN;
    n->stop_best_step = n->stop_waits = 0;
    t->val_loss = t->lowest_val_loss = NAN;
    t->val_step = t->lowest_step = -1;
}

static bool mean_loss(const struct hd_trainer *t, double *ret_value)
{
    const struct hd_val_numbers *n = &t->numbers;
    double sum = 0;

    for (int64_t i = 0; i < t->data.validation_count; i++) {
        if (n->loss_step[i] != t->steps_done)
            return false;
        sum += n->loss[i];
    }
    *ret_value = sum / (double)t->data.validation_count;
    return true;
}

/* Sets *ret_value to the number of the current weights, so that lower is better. False: this
 * validation has not computed it. It may be NaN or infinite. */
static bool find_number(const struct hd_trainer *t, struct hd_val_metric metric, double *ret_value)
{
    const struct hd_val_numbers *n = &t->numbers;

    switch (metric.kind) {
    case HD_VAL_LOSS:
        *ret_value = n->loss[metric.set];
        return n->loss_step[metric.set] == t->steps_done;
    case HD_VAL_EMA:
        *ret_value = n->ema[metric.set];
        return n->ema_step[metric.set] == t->steps_done;
    case HD_VAL_MEAN:
        return mean_loss(t, ret_value);
    case HD_VAL_ACC:
    case HD_VAL_ACC_NORM:
        *ret_value = 1 - (metric.kind == HD_VAL_ACC ? n->acc : n->acc_norm)[metric.set];
        return n->score_step[metric.set] == t->steps_done;
    case HD_VAL_PASS:
    case HD_VAL_PASS_K:
        *ret_value = 1 - (metric.kind == HD_VAL_PASS ? n->pass : n->pass_k)[metric.set];
        return n->pass_step[metric.set] == t->steps_done;
    }
    return false;
}

static void note_best(struct hd_trainer *t, double value)
{
    t->val_loss = value;
    t->val_step = t->steps_done;
    if (value >= t->lowest_val_loss) /* false if lowest_val_loss is NaN, for the first number */
        return;
    t->lowest_val_loss = value;
    t->lowest_step = t->steps_done;
}

/* Counts a validation for early stopping, once. */
static void note_stop(struct hd_trainer *t, double value)
{
    struct hd_val_numbers *n = &t->numbers;

    if (n->stop_step == t->steps_done)
        return;
    n->stop_step = t->steps_done;
    if (isnan(n->stop_best) || value < n->stop_best - t->rank_program.job.stop_min_delta) {
        n->stop_best = value;
        n->stop_best_step = t->steps_done;
        n->stop_waits = 0;
    } else {
        n->stop_waits++;
    }
}

static void weigh(struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;
    double value;

    if (t->steps_done == 0)
        return;
    if (job->checkpoint_best && find_number(t, hd_job_best_metric(job), &value) && isfinite(value))
        note_best(t, value);
    if (job->stop_patience && find_number(t, hd_job_stop_metric(job), &value))
        note_stop(t, isfinite(value) ? value : (double)INFINITY);
}

void hd_trainer_note_loss(struct hd_trainer *t, int64_t set, double loss)
{
    t->numbers.loss[set] = loss;
    t->numbers.loss_step[set] = t->steps_done;
    weigh(t);
}

void hd_trainer_note_ema(struct hd_trainer *t, int64_t set, double loss)
{
    t->numbers.ema[set] = loss;
    t->numbers.ema_step[set] = t->steps_done;
    weigh(t);
}

void hd_trainer_note_score(struct hd_trainer *t, int64_t index, const struct hd_exam_score *score)
{
    t->numbers.acc[index] = score->acc;
    t->numbers.acc_norm[index] = score->acc_norm;
    t->numbers.score_step[index] = t->steps_done;
    weigh(t);
}

void hd_trainer_note_pass(struct hd_trainer *t, int64_t index, double pass, double pass_k)
{
    t->numbers.pass[index] = pass;
    t->numbers.pass_k[index] = pass_k;
    t->numbers.pass_step[index] = t->steps_done;
    weigh(t);
}

bool hd_trainer_is_best(const struct hd_trainer *t)
{
    return t->lowest_step >= 0 && t->lowest_step == t->steps_done;
}

bool hd_trainer_stops_early(const struct hd_trainer *t)
{
    const int64_t patience = t->rank_program.job.stop_patience;

    return patience && t->numbers.stop_waits >= patience;
}

void hd_trainer_describe_stop(const struct hd_trainer *t, struct hd_text *ret_text)
{
    const struct hd_job *job = &t->rank_program.job;
    const struct hd_val_metric metric = hd_job_stop_metric(job);
    const struct hd_val_numbers *n = &t->numbers;
    const bool rises = hd_job_metric_rises(metric);
    char name[HD_JOB_WORD_MAX];

    hd_job_metric_name(job, metric, name);
    hd_text_add(ret_text,
                "ended early after step %lld: %s has not %s %.4f, that of step %lld, in %lld "
                "validation%s (validate.stop)",
                (long long)t->steps_done, name, rises ? "risen above" : "fallen below",
                rises ? 1 - n->stop_best : n->stop_best, (long long)n->stop_best_step,
                (long long)n->stop_waits, n->stop_waits == 1 ? "" : "s");
}

/* rank_validate: validates on the sets of data.val, with the weights and with their averages, answers
 * the questions of validate.choices and validate.tasks, and reports losses and scores. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "job/choice_sets.h"
#include "worker/rank_internal.h"

/* Adds the numbers of a set to TensorBoard: "validation/loss", of a set with a name
 * "validation/NAME/loss". */
static void show_set(struct rank *r, int64_t step, const char *name, double loss)
{
    const struct hd_pair_result pairs = hd_trainer_validated_pairs(r->trainer);
    const char *const words[] = {"loss", "margin", "accuracy", "reward"};
    const char *const of_answers[] = {"loss", "margin", "rewards/chosen", "rewards/rejected", "kl"};
    const double values[] = {loss, pairs.margin, pairs.accuracy, pairs.reward};
    const double their_values[] = {loss, pairs.margin, pairs.chosen, pairs.rejected, pairs.kl};
    const bool rated = pairs.answers > 0;
    const int count = rated ? 5 : pairs.count ? 4 : 1;
    char tags[5][HD_JOB_WORD_MAX];
    struct hd_scalar scalars[5];

    for (int i = 0; i < count; i++) {
        (void)snprintf(tags[i], sizeof tags[i], "validation/%s%s%s", name, *name ? "/" : "",
                       rated ? of_answers[i] : words[i]);
        scalars[i] = (struct hd_scalar){tags[i], rated ? their_values[i] : values[i]};
    }
    rank_show(r, step, scalars, (size_t)count);
}

/* Says that a number could not be computed, for the reason in the current error. */
static enum hd_status skip(struct rank *r, int64_t step)
{
    char text[256];

    (void)snprintf(text, sizeof text, "no validation at step %lld: %s", (long long)step,
                   hd_err_message());
    rank_say(r, HD_LINK_LEVEL_WARN, text);
    return HD_OK;
}

/* Validates on one set with the averages of the weights, whose name is NAME/ema. */
static enum hd_status validate_averages(struct rank *r, int64_t set)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    char name[HD_JOB_WORD_MAX], tag[HD_JOB_WORD_MAX + 16];
    struct hd_scalar scalar = {.tag = tag};
    int64_t targets;
    enum hd_status st = hd_trainer_validate_set(r->trainer, set, &scalar.value, &targets);

    hd_job_metric_name(&r->job, (struct hd_val_metric){HD_VAL_EMA, set}, name);
    if (st == HD_LIMIT)
        return skip(r, step);
    if (st)
        return hd_err_prefix(st, "data.val, %s", name);
    hd_log(HD_LOG_INFO, "step %lld: val_loss %.4f over %lld targets of %s", (long long)step,
           scalar.value, (long long)targets, name);
    if (r->rank == 0)
        hd_link_report_validation(r->link, step, scalar.value, targets, name);
    (void)snprintf(tag, sizeof tag, "validation/%s", name);
    rank_show(r, step, &scalar, 1);
    return HD_OK;
}

/* Validates on all sets with the averages of the weights, then restores the weights. */
static enum hd_status validate_all_averages(struct rank *r)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    enum hd_status st = hd_trainer_take_averages(r->trainer, true);

    for (int64_t set = 0; !st && set < hd_trainer_validation_count(r->trainer); set++) {
        hd_link_report_phase(r->link, HD_LINK_PHASE_VALIDATING, step);
        st = validate_averages(r, set);
    }
    return st ? st : hd_trainer_take_averages(r->trainer, false);
}

/* Validates on one set. A loss that cannot be computed, for a reason that all ranks have, is an
 * event, and training continues. */
static enum hd_status validate_set(struct rank *r, int64_t set)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    char name[HD_JOB_VAL_NAME_MAX];
    int64_t targets;
    double loss;
    enum hd_status st = hd_trainer_validate_set(r->trainer, set, &loss, &targets);

    hd_job_val_set_name(&r->job, set, name);
    if (st == HD_LIMIT)
        return skip(r, step);
    if (st)
        return *name ? hd_err_prefix(st, "data.val.%s", name) : st;
    if (set == hd_job_val_set_best(&r->job)) /* the first of a validation */
        r->finite = true;
    r->finite = r->finite && (isfinite(loss) || targets == 0);
    hd_log(HD_LOG_INFO, "step %lld: val_loss %.4f over %lld targets%s%s", (long long)step, loss,
           (long long)targets, *name ? " of " : "", name);
    if (r->rank == 0)
        hd_link_report_validation(r->link, step, loss, targets, name);
    show_set(r, step, name, loss);
    return HD_OK;
}

/* ---- questions ---- */

void rank_say_alive(void *rank)
{
    struct rank *r = rank;

    hd_link_report_phase(r->link, HD_LINK_PHASE_VALIDATING, hd_trainer_steps_done(r->trainer));
}

/* Reports a score as a validation with the name "NAME/acc", of as many tokens as it has questions;
 * to TensorBoard as "validation/NAME/acc". */
void rank_report_score(struct rank *r, struct hd_val_metric metric, double score, int64_t questions)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    char name[HD_JOB_WORD_MAX], tag[HD_JOB_WORD_MAX + 16];
    const struct hd_scalar scalar = {tag, score};

    hd_job_metric_name(&r->job, metric, name);
    (void)snprintf(tag, sizeof tag, "validation/%s", name);
    hd_log(HD_LOG_INFO, "step %lld: %s %.4f of %lld questions", (long long)step, name, score,
           (long long)questions);
    if (r->rank == 0)
        hd_link_report_validation(r->link, step, score, questions, name);
    rank_show(r, step, &scalar, 1);
}

/* Answers the questions of one file. */
static enum hd_status answer_questions(struct rank *r, int64_t index)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    struct hd_exam_score score;
    char text[256], name[HD_JOB_WORD_MAX];
    enum hd_status st = hd_trainer_examine(r->trainer, index, rank_say_alive, r, &score);

    if (st == HD_LIMIT)
        return skip(r, step);
    if (st)
        return st;
    rank_report_score(r, (struct hd_val_metric){HD_VAL_ACC, index}, score.acc, score.questions);
    rank_report_score(r, (struct hd_val_metric){HD_VAL_ACC_NORM, index}, score.acc_norm,
                      score.questions);
    if (!score.cut || r->said_cut)
        return HD_OK;
    r->said_cut = true;
    hd_job_metric_name(&r->job, (struct hd_val_metric){HD_VAL_ACC, index}, name);
    (void)snprintf(text, sizeof text,
                   "validate.choices.%.*s: %lld of %lld questions are longer than model.context: "
                   "their beginning is left out",
                   (int)strcspn(name, "/"), name, (long long)score.cut, (long long)score.questions);
    rank_say(r, HD_LINK_LEVEL_WARN, text);
    return HD_OK;
}

/* Returns whether the validation of the current weights answers questions: one in `one_in` does, and
 * those of the first and the last step. */
static bool examines(const struct rank *r, int64_t one_in)
{
    const int64_t step = hd_trainer_steps_done(r->trainer), every = r->job.validate_every;

    return one_in <= 1 || step == 0 || step >= r->job.steps || every <= 0 || step % every != 0 ||
           step / every % one_in == 0;
}

enum hd_status rank_validate(struct rank *r)
{
    const int64_t step = hd_trainer_steps_done(r->trainer), best = hd_job_val_set_best(&r->job);
    const int64_t sets = hd_trainer_validation_count(r->trainer);
    const int64_t exams = examines(r, r->job.choices_every) ? hd_trainer_exam_count(r->trainer) : 0;
    enum hd_status st = HD_OK;

    hd_link_report_phase(r->link, HD_LINK_PHASE_VALIDATING, step);
    if (sets)
        st = validate_set(r, best);
    for (int64_t set = 0; !st && set < sets; set++) {
        if (set == best)
            continue;
        hd_link_report_phase(r->link, HD_LINK_PHASE_VALIDATING, step);
        st = validate_set(r, set);
    }
    if (!st && sets && r->job.validate_ema)
        st = validate_all_averages(r);
    for (int64_t k = 0; !st && k < exams; k++)
        st = answer_questions(r, k);
    if (!st && examines(r, r->job.tasks_every))
        st = rank_answer_tasks(r);
    if (!st)
        rank_check_stop(r);
    return st;
}

void rank_check_stop(struct rank *r)
{
    struct hd_text text = {0};

    if (r->ends_early || hd_trainer_steps_done(r->trainer) >= r->job.steps ||
        !hd_trainer_stops_early(r->trainer))
        return;
    r->ends_early = true;
    hd_trainer_describe_stop(r->trainer, &text);
    rank_say(r, HD_LINK_LEVEL_INFO, text.failed ? "ended early" : text.data);
    hd_text_free(&text);
}

void rank_tell_why_early(struct rank *r)
{
    struct hd_text text = {0};

    hd_trainer_describe_stop(r->trainer, &text);
    hd_link_report_failure(r->link, HD_OK, -1, "", text.failed ? "ended early" : text.data);
    hd_text_free(&text);
}

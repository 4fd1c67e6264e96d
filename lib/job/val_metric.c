/* val_metric: the numbers that a validation yields, by the names that checkpoint.best and
 * validate.stop give them. */
#include <stdio.h>
#include <string.h>

#include "job/choice_sets.h"

#define PASS "/pass@"
enum { PASS_DIGITS_MAX = 4 };
#define EMA "/ema" /* behind the name of a loss: that of the moving average of the weights */

/* The scores of files of questions, by kind: what is behind NAME/. */
static const struct {
    enum hd_val_metric_kind kind;
    enum hd_question_kind of;
    const char *word; /* NULL: pass@K, K of the job */
} scores[] = {{HD_VAL_ACC, HD_QUESTIONS_CHOICES, "acc"},
              {HD_VAL_ACC_NORM, HD_QUESTIONS_CHOICES, "acc_norm"},
              {HD_VAL_PASS, HD_QUESTIONS_TASKS, "pass@1"},
              {HD_VAL_PASS_K, HD_QUESTIONS_TASKS, NULL}};
enum { SCORES = sizeof scores / sizeof scores[0] };

/* Writes what is behind NAME/ of a score; returns false if the job has no such score. */
static bool score_word(const struct hd_job *job, size_t score, char ret_word[32])
{
    if (scores[score].word)
        (void)snprintf(ret_word, 32, "%s", scores[score].word);
    else
        (void)snprintf(ret_word, 32, "pass@%lld", (long long)job->tasks_k);
    return scores[score].word || job->tasks_k > 1;
}

/* Finds the set of questions with this name. */
static bool find_choices(const struct hd_job *job, enum hd_question_kind kind, const char *name,
                         size_t len, int64_t *ret_index)
{
    struct hd_choice_set set;

    for (int64_t i = 0; i < hd_choice_set_count(job, kind); i++)
        if (!hd_choice_set_read(job, kind, i, &set) && strlen(set.name) == len &&
            memcmp(set.name, name, len) == 0) {
            *ret_index = i;
            return true;
        }
    return false;
}

static bool has_losses(const struct hd_job *job)
{
    return job->val_count || job->val_split > 0 || (!*job->choices && !*job->tasks);
}

/* Finds a score by its name; NAME alone is the first of its file. */
static bool find_score(const struct hd_job *job, const char *name, struct hd_val_metric *ret_metric)
{
    const size_t len = strcspn(name, "/");
    char word[32];

    for (size_t i = 0; i < SCORES; i++) {
        ret_metric->kind = scores[i].kind;
        if (score_word(job, i, word) && (!name[len] || strcmp(name + len + 1, word) == 0) &&
            find_choices(job, scores[i].of, name, len, &ret_metric->set))
            return true;
    }
    return false;
}

bool hd_job_find_metric(const struct hd_job *job, const char *name,
                        struct hd_val_metric *ret_metric)
{
    const char *slash = strchr(name, '/');
    const size_t len = slash ? (size_t)(slash - name) : strlen(name);
    const bool ema = slash && strcmp(slash, EMA) == 0;
    char set[HD_JOB_VAL_NAME_MAX];

    *ret_metric = (struct hd_val_metric){.kind = has_losses(job) ? HD_VAL_LOSS
                                                 : *job->choices ? HD_VAL_ACC
                                                                 : HD_VAL_PASS,
                                         .set = 0};
    if (!*name || strcmp(name, "-") == 0)
        return true;
    for (int64_t i = 0; has_losses(job) && i < hd_job_val_set_count(job); i++) {
        const char *loss;

        hd_job_val_set_name(job, i, set);
        loss = *set ? set : HD_VAL_LOSS_NAME;
        if (strncmp(loss, name, len) != 0 || loss[len] || (slash && !ema))
            continue;
        *ret_metric = (struct hd_val_metric){ema ? HD_VAL_EMA : HD_VAL_LOSS, i};
        return !ema || job->validate_ema;
    }
    if (strcmp(name, HD_VAL_MEAN_NAME) == 0 && has_losses(job)) {
        ret_metric->kind = HD_VAL_MEAN;
        return true;
    }
    return find_score(job, name, ret_metric);
}

struct hd_val_metric hd_job_best_metric(const struct hd_job *job)
{
    struct hd_val_metric metric;

    (void)hd_job_find_metric(job, job->checkpoint_best_set, &metric);
    return metric;
}

int64_t hd_job_val_set_best(const struct hd_job *job)
{
    const struct hd_val_metric best = hd_job_best_metric(job);

    return best.kind == HD_VAL_LOSS ? best.set : 0;
}

struct hd_val_metric hd_job_stop_metric(const struct hd_job *job)
{
    const bool named = *job->stop_metric && strcmp(job->stop_metric, "-") != 0;
    struct hd_val_metric metric;

    (void)hd_job_find_metric(job, named ? job->stop_metric : job->checkpoint_best_set, &metric);
    return metric;
}

void hd_job_metric_name(const struct hd_job *job, struct hd_val_metric metric,
                        char ret_name[HD_JOB_WORD_MAX])
{
    char set[HD_JOB_VAL_NAME_MAX], word[32];
    struct hd_choice_set choices;

    switch (metric.kind) {
    case HD_VAL_LOSS:
        hd_job_val_set_name(job, metric.set, set);
        (void)snprintf(ret_name, HD_JOB_WORD_MAX, "%s", *set ? set : HD_VAL_LOSS_NAME);
        break;
    case HD_VAL_EMA:
        hd_job_val_set_name(job, metric.set, set);
        (void)snprintf(ret_name, HD_JOB_WORD_MAX, "%s" EMA, *set ? set : HD_VAL_LOSS_NAME);
        break;
    case HD_VAL_MEAN:
        (void)snprintf(ret_name, HD_JOB_WORD_MAX, "%s", HD_VAL_MEAN_NAME);
        break;
    default:
        for (size_t i = 0; i < SCORES; i++)
            if (scores[i].kind == metric.kind) {
                (void)score_word(job, i, word);
                (void)hd_choice_set_read(job, scores[i].of, metric.set, &choices);
                (void)snprintf(ret_name, HD_JOB_WORD_MAX, "%s/%s", choices.name, word);
            }
    }
}

void hd_job_list_metrics(const struct hd_job *job, struct hd_text *ret_text)
{
    const int64_t losses = has_losses(job) ? hd_job_val_set_count(job) : 0;
    char name[HD_JOB_WORD_MAX], word[32];

    for (int64_t i = 0; i < losses; i++) {
        hd_job_metric_name(job, (struct hd_val_metric){HD_VAL_LOSS, i}, name);
        hd_text_add(ret_text, "%s%s", i ? ", " : "", name);
    }
    for (int64_t i = 0; job->validate_ema && i < losses; i++) {
        hd_job_metric_name(job, (struct hd_val_metric){HD_VAL_EMA, i}, name);
        hd_text_add(ret_text, ", %s", name);
    }
    if (losses > 1)
        hd_text_add(ret_text, ", %s", HD_VAL_MEAN_NAME);
    for (int kind = 0; kind < HD_QUESTION_KINDS; kind++)
        for (int64_t i = 0; i < hd_choice_set_count(job, (enum hd_question_kind)kind); i++)
            for (size_t k = 0; k < SCORES; k++) {
                if ((int)scores[k].of != kind || !score_word(job, k, word))
                    continue;
                hd_job_metric_name(job, (struct hd_val_metric){scores[k].kind, i}, name);
                hd_text_add(ret_text, "%s%s", ret_text->len_bytes ? ", " : "", name);
            }
}

bool hd_job_metric_rises(struct hd_val_metric metric)
{
    return metric.kind >= HD_VAL_ACC;
}

bool hd_job_same_questions(const struct hd_job *a, const struct hd_job *b,
                           struct hd_val_metric metric)
{
    if (metric.kind == HD_VAL_ACC || metric.kind == HD_VAL_ACC_NORM)
        return strcmp(a->choices, b->choices) == 0 && a->choices_limit == b->choices_limit;
    return strcmp(a->tasks, b->tasks) == 0 && strcmp(a->tasks_check, b->tasks_check) == 0 &&
           a->tasks_limit == b->tasks_limit && a->tasks_samples == b->tasks_samples &&
           a->tasks_tokens == b->tasks_tokens && a->tasks_seed == b->tasks_seed &&
           !(a->tasks_temperature < b->tasks_temperature) &&
           !(a->tasks_temperature > b->tasks_temperature) && !(a->tasks_top_p < b->tasks_top_p) &&
           !(a->tasks_top_p > b->tasks_top_p);
}

bool hd_job_val_report_is_score(const char *name)
{
    const char *slash = strchr(name, '/');

    return slash && strcmp(slash, EMA) != 0; /* NAME/acc */
}

bool hd_job_val_report_is_possible(const char *name)
{
    const char *slash = strchr(name, '/');
    char set[HD_JOB_VAL_NAME_MAX];
    size_t digits;

    if (!slash)
        return hd_job_val_name_is_possible(name);
    digits = hd_text_starts(slash, PASS) ? strspn(slash + strlen(PASS), "0123456789") : 0;
    if (slash - name >= HD_JOB_VAL_NAME_MAX ||
        (strcmp(slash, EMA) != 0 && strcmp(slash, "/acc") != 0 && strcmp(slash, "/acc_norm") != 0 &&
         (!digits || digits > PASS_DIGITS_MAX || slash[strlen(PASS) + digits])))
        return false;
    (void)snprintf(set, sizeof set, "%.*s", (int)(slash - name), name);
    return hd_job_val_name_is_possible(set);
}

/* val_metric: the numbers that a validation yields, by the names that checkpoint.best and
 * validate.stop give them. */
#include <stdio.h>
#include <string.h>

#include "job/choice_sets.h"

#define EMA "/ema" /* behind the name of a loss: that of the moving average of the weights */

/* Finds the set of questions with this name. */
static bool find_choices(const struct hd_job *job, const char *name, size_t len, int64_t *ret_index)
{
    struct hd_choice_set set;

    for (int64_t i = 0; i < hd_job_choice_set_count(job); i++)
        if (!hd_choice_set_read(job, i, &set) && strlen(set.name) == len &&
            memcmp(set.name, name, len) == 0) {
            *ret_index = i;
            return true;
        }
    return false;
}

static bool has_losses(const struct hd_job *job)
{
    return job->val_count || job->val_split > 0 || !*job->choices;
}

bool hd_job_find_metric(const struct hd_job *job, const char *name,
                        struct hd_val_metric *ret_metric)
{
    const char *slash = strchr(name, '/');
    const size_t len = slash ? (size_t)(slash - name) : strlen(name);
    const bool ema = slash && strcmp(slash, EMA) == 0;
    char set[HD_JOB_VAL_NAME_MAX];

    *ret_metric =
        (struct hd_val_metric){.kind = has_losses(job) ? HD_VAL_LOSS : HD_VAL_ACC, .set = 0};
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
    ret_metric->kind = slash && strcmp(slash, "/acc_norm") == 0 ? HD_VAL_ACC_NORM : HD_VAL_ACC;
    return (!slash || ret_metric->kind == HD_VAL_ACC_NORM || strcmp(slash, "/acc") == 0) &&
           find_choices(job, name, len, &ret_metric->set);
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
    char set[HD_JOB_VAL_NAME_MAX];
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
    case HD_VAL_ACC:
    case HD_VAL_ACC_NORM:
        (void)hd_choice_set_read(job, metric.set, &choices);
        (void)snprintf(ret_name, HD_JOB_WORD_MAX, "%s/%s", choices.name,
                       metric.kind == HD_VAL_ACC ? "acc" : "acc_norm");
        break;
    }
}

void hd_job_list_metrics(const struct hd_job *job, struct hd_text *ret_text)
{
    const int64_t losses = has_losses(job) ? hd_job_val_set_count(job) : 0;
    char name[HD_JOB_WORD_MAX];

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
    for (int64_t i = 0; i < hd_job_choice_set_count(job); i++)
        for (int k = 0; k < 2; k++) {
            hd_job_metric_name(job, (struct hd_val_metric){k ? HD_VAL_ACC_NORM : HD_VAL_ACC, i},
                               name);
            hd_text_add(ret_text, "%s%s", losses || i || k ? ", " : "", name);
        }
}

bool hd_job_metric_rises(struct hd_val_metric metric)
{
    return metric.kind == HD_VAL_ACC || metric.kind == HD_VAL_ACC_NORM;
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

    if (!slash)
        return hd_job_val_name_is_possible(name);
    if (slash - name >= HD_JOB_VAL_NAME_MAX ||
        (strcmp(slash, EMA) != 0 && strcmp(slash, "/acc") != 0 && strcmp(slash, "/acc_norm") != 0))
        return false;
    (void)snprintf(set, sizeof set, "%.*s", (int)(slash - name), name);
    return hd_job_val_name_is_possible(set);
}

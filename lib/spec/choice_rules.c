/* choice_rules: checks validate.choices, and the numbers that checkpoint.best and validate.stop
 * name. */
#include <string.h>

#include "job/choice_sets.h"
#include "spec_internal.h"

static enum hd_status check_set(const struct hd_job *job, int64_t index)
{
    struct hd_choice_set set, other;
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st = hd_choice_set_read(job, index, &set);

    if (st)
        return st;
    if (!hd_job_val_name_is_possible(set.name) || strcmp(set.name, HD_VAL_MEAN_NAME) == 0 ||
        strcmp(set.name, HD_VAL_LOSS_NAME) == 0)
        return hd_err(
            HD_INVALID,
            "validate.choices: %s is no name of a file of questions; use " SPEC_SET_NAME_RULE
            ", nor mean or loss",
            spec_quote(set.name, quoted));
    if (*job->val_sets && hd_job_val_set_find(job, set.name) >= 0)
        return hd_err(HD_INVALID,
                      "validate.choices.%s: data.val has a set of this name; use another",
                      set.name);
    for (int64_t i = 0; i < index; i++)
        if (!hd_choice_set_read(job, i, &other) && strcmp(other.name, set.name) == 0)
            return hd_err(HD_INVALID,
                          "validate.choices: two files have the name %s; write {NAME: path, ..} "
                          "with other names",
                          set.name);
    return HD_OK;
}

static enum hd_status check_choices(const struct hd_job *job)
{
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < hd_job_choice_set_count(job); i++)
        st = check_set(job, i);
    if (st || !*job->choices)
        return st;
    if (strcmp(job->tokenizer, "none") == 0)
        return hd_err(HD_INVALID,
                      "validate.choices: questions are text, and the job has only token "
                      "files; give data.tokenizer");
    if (hd_job_is_reward(job))
        return hd_err(HD_INVALID,
                      "validate.choices: a reward model has no probabilities of tokens; "
                      "remove the line");
    return HD_OK;
}

/* Checks that a key names a number of the job's validations, and that they compute it. */
static enum hd_status check_metric(const struct hd_job *job, const char *key, const char *name,
                                   struct hd_val_metric *ret_metric)
{
    struct hd_text names = {0};
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st = HD_OK;

    if (!hd_job_find_metric(job, name, ret_metric)) {
        hd_job_list_metrics(job, &names);
        st =
            hd_err(HD_INVALID, "%s: %s is no number of this job's validations, which have %s%s",
                   key, spec_quote(name, quoted), names.data && !names.failed ? names.data : "none",
                   hd_text_ends(name, "/ema") && !job->validate_ema
                       ? "; losses of averages of the weights need validate.ema: true"
                       : "");
        hd_text_free(&names);
    } else if (!hd_job_metric_rises(*ret_metric) && !job->val_count && job->val_split == 0) {
        st = hd_err(HD_INVALID,
                    "%s: there is no validation data; give data.val, data.val_split or "
                    "validate.choices, or remove the line",
                    key);
    } else if (!hd_job_metric_rises(*ret_metric) && !job->validate_batches) {
        st = hd_err(HD_INVALID,
                    "%s: nothing is validated, as validate.batches is 0; raise it, or "
                    "remove the line",
                    key);
    }
    return st;
}

enum hd_status spec_check_choices(const struct hd_job *job)
{
    struct hd_val_metric metric;
    enum hd_status st = check_choices(job);

    if (!st &&
        (job->checkpoint_best || !hd_job_find_metric(job, job->checkpoint_best_set, &metric)))
        st = check_metric(job, "checkpoint.best", job->checkpoint_best_set, &metric);
    if (st || !job->stop_patience)
        return st;
    metric = hd_job_stop_metric(job);
    if (*job->stop_metric && strcmp(job->stop_metric, "-") != 0)
        return check_metric(job, "validate.stop.metric", job->stop_metric, &metric);
    return check_metric(job, "validate.stop", job->checkpoint_best_set, &metric);
}

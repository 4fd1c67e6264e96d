/* choice_rules: checks validate.choices and validate.tasks, and the numbers that checkpoint.best and validate.stop
 * name. */
#include <string.h>

#include "job/choice_sets.h"
#include "job/rewards.h"
#include "spec_internal.h"

static bool is_name_of_files(const struct hd_job *job, enum hd_question_kind kind, int64_t count,
                             const char *name)
{
    struct hd_choice_set other;

    for (int64_t i = 0; i < count; i++)
        if (!hd_choice_set_read(job, kind, i, &other) && strcmp(other.name, name) == 0)
            return true;
    return false;
}

static enum hd_status check_set(const struct hd_job *job, enum hd_question_kind kind, int64_t index)
{
    const char *const key = hd_choice_set_key(kind);
    struct hd_choice_set set;
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st = hd_choice_set_read(job, kind, index, &set);

    if (st)
        return st;
    if (!hd_job_val_name_is_possible(set.name) || strcmp(set.name, HD_VAL_MEAN_NAME) == 0 ||
        strcmp(set.name, HD_VAL_LOSS_NAME) == 0)
        return hd_err(HD_INVALID,
                      "%s: %s is no name of a file of questions; use " SPEC_SET_NAME_RULE
                      ", nor mean or loss",
                      key, spec_quote(set.name, quoted));
    if (*job->val_sets && hd_job_val_set_find(job, set.name) >= 0)
        return hd_err(HD_INVALID, "%s.%s: data.val has a set of this name; use another", key,
                      set.name);
    if (is_name_of_files(job, kind, index, set.name))
        return hd_err(HD_INVALID,
                      "%s: two files have the name %s; write {NAME: path, ..} with other names",
                      key, set.name);
    if (kind == HD_QUESTIONS_TASKS &&
        is_name_of_files(job, HD_QUESTIONS_CHOICES, hd_choice_set_count(job, HD_QUESTIONS_CHOICES),
                         set.name))
        return hd_err(HD_INVALID, "%s.%s: validate.choices has a file of this name; use another",
                      key, set.name);
    return HD_OK;
}

static enum hd_status check_choices(const struct hd_job *job, enum hd_question_kind kind)
{
    const char *const key = hd_choice_set_key(kind);
    const int64_t count = hd_choice_set_count(job, kind);
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < count; i++)
        st = check_set(job, kind, i);
    if (st || !count)
        return st;
    if (strcmp(job->tokenizer, "none") == 0)
        return hd_err(HD_INVALID,
                      "%s: questions are text, and the job has only token files; give "
                      "data.tokenizer",
                      key);
    if (hd_job_is_reward(job))
        return hd_err(HD_INVALID,
                      "%s: a reward model has no probabilities of tokens; remove the line", key);
    return HD_OK;
}

/* Refuses settings of tasks that the job does not have. */
static enum hd_status check_unused_tasks(const struct hd_job *job)
{
    for (const struct hd_key *key = NULL; (key = hd_job_next_key("validate.tasks.", key));)
        if (!hd_job_is_default(key, job))
            return hd_err(HD_INVALID,
                          "%s: there are no tasks; give validate.tasks.files, or remove the line",
                          key->hidden ? "validate.tasks.check" : key->path);
    return HD_OK;
}

static enum hd_status check_tasks(const struct hd_job *job)
{
    struct hd_rewards rewards;
    struct hd_arena arena;
    enum hd_status st;

    if (!*job->tasks)
        return check_unused_tasks(job);
    if (!*job->tasks_check)
        return hd_err(HD_INVALID, "validate.tasks.check: is missing: what says whether an answer "
                                  "is right, such as [{builtin: number, field: answer}]");
    hd_arena_init(&arena, 0);
    st = hd_rewards_read("validate.tasks.check", job->tasks_check, &arena, &rewards);
    if (!st && hd_rewards_find(&rewards, HD_REWARD_MODEL) >= 0)
        st = hd_err(HD_INVALID, "validate.tasks.check: a reward model does not say whether an "
                                "answer is right; use a builtin or a program");
    if (!st)
        st = spec_check_overlong("validate.tasks.check", &rewards, "validate.tasks.tokens",
                                 job->tasks_tokens);
    hd_arena_done(&arena);
    if (st)
        return st;
    if (job->tasks_k > job->tasks_samples)
        return hd_err(HD_INVALID,
                      "validate.tasks.k: pass@%lld is not estimated from %lld answer%s; raise "
                      "validate.tasks.samples, or lower k",
                      (long long)job->tasks_k, (long long)job->tasks_samples,
                      job->tasks_samples == 1 ? "" : "s");
    if (job->tasks_samples > 1 && !(job->tasks_temperature > 0))
        return hd_err(HD_INVALID, "validate.tasks.temperature: without one all answers to a task "
                                  "are the same; give one, such as 0.8, or one sample");
    if (job->tasks_top_p < 1 && !(job->tasks_temperature > 0))
        return hd_err(HD_INVALID,
                      "validate.tasks.top_p: without a temperature the likeliest token is taken, "
                      "so it would change nothing; give validate.tasks.temperature, or remove it");
    if (job->tasks_tokens >= job->context)
        return hd_err(HD_INVALID,
                      "validate.tasks.tokens: answers of up to %lld tokens leave no room for a "
                      "prompt in model.context = %lld; lower it",
                      (long long)job->tasks_tokens, (long long)job->context);
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
                    "%s: there is no validation data; give data.val, data.val_split, "
                    "validate.choices or validate.tasks, or remove the line",
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
    enum hd_status st = HD_OK;

    for (int kind = 0; !st && kind < HD_QUESTION_KINDS; kind++)
        st = check_choices(job, (enum hd_question_kind)kind);
    if (!st)
        st = check_tasks(job);
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

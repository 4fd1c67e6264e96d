/* policy: refuses, before a step runs, settings that do not work where a model trains on its own
 * answers (train.objective: grpo, gkd), and settings of such jobs in others. */
#include <string.h>

#include "job/frozen_model.h"
#include "job/rewards.h"
#include "spec_internal.h"

/* Returns whether a key whose default depends on others has a value that other jobs do
 * not have: the default of `dapo`, or 0 in stored jobs of old versions. */
static bool is_derived_given(const struct hd_job *job, const char *path)
{
    if (strcmp(path, "train.policy.kl") ==
        0) /* kl_beta alone sets it, and is told by its own name */
        return job->policy_kl > HD_JOB_POLICY_KL_NONE && !(job->policy_kl_beta > 0);
    if (strcmp(path, "train.policy.scale") == 0)
        return job->policy_scale > HD_JOB_POLICY_SCALE_GROUP;
    if (strcmp(path, "train.policy.clip_low") == 0)
        return job->policy_clip_low > 0 &&
               (job->policy_clip_low < 0.2 || job->policy_clip_low > 0.2);
    if (strcmp(path, "train.policy.clip_high") == 0)
        return job->policy_clip_high > 0 &&
               (job->policy_clip_high < 0.28 || job->policy_clip_high > 0.28);
    if (strcmp(path, "train.rollout.prompts") == 0)
        return job->rollout_prompts > 0;
    return strcmp(path, "train.rollout.stop") == 0 && *job->rollout_stop;
}

/* Refuses keys that only grpo has, and keys of answers if there are none. */
static enum hd_status check_unused_policy(const struct hd_job *job)
{
    static const char *const groups[] = {"train.policy.", "train.rollout."};
    static const char *const others[] = {"grpo", "grpo or gkd"};
    const bool answers = hd_job_has_policy(job);

    if (*job->rewards)
        return hd_err(HD_INVALID, "train.rewards: rates the answers of train.objective: grpo; add "
                                  "that line, or remove this one");
    for (int g = 0; g < (answers ? 1 : 2); g++)
        for (const struct hd_key *key = NULL; (key = hd_job_next_key(groups[g], key));)
            if (key->derived ? is_derived_given(job, key->path) : !hd_job_is_default(key, job))
                return hd_err(HD_INVALID,
                              "%s: is a setting of train.objective: %s; add that line, or remove "
                              "this one",
                              key->path, others[g]);
    return HD_OK;
}

/* Checks what only gkd has: a teacher beside the student, and no rewards. */
static enum hd_status check_gkd(const struct hd_job *job)
{
    if (!hd_job_has_teacher_model(job))
        return hd_err(HD_INVALID,
                      "train.distill.teacher: train.objective: gkd needs a model folder or "
                      "checkpoint, which is there when the job is made%s%s%s",
                      *job->distill_teacher ? "; " : "", job->distill_teacher,
                      *job->distill_teacher
                          ? " is neither: a teacher's file has no predictions of the student's "
                            "answers, and of a run one of its checkpoints is to be named (heddle "
                            "checkpoint ls)"
                          : "; add the line");
    if (job->distill_weight < 1)
        return spec_refuse_with(job, "train.distill.weight", "there is no loss of labels; set 1");
    if (job->rollout_resample > 1)
        return spec_refuse_with(job, "train.rollout.resample",
                                "there are no rewards; remove the line");
    return check_unused_policy(job);
}

static enum hd_status check_policy_data(const struct hd_job *job)
{
    if (strcmp(job->tokenizer, "none") == 0)
        return spec_refuse_with(job, "data.tokenizer", "prompts are text; give a tokenizer");
    if (job->data_format != HD_JOB_DATA_FORMAT_AUTO)
        return spec_refuse_with(job, "data.format",
                                "a row is {prompt, ..} or {messages, ..}; remove the line");
    if (job->data_loss != HD_JOB_DATA_LOSS_ANSWERS)
        return spec_refuse_with(job, "data.loss",
                                "the answers that the model writes count; remove the "
                                "line");
    if (job->too_long == HD_JOB_TOO_LONG_CUT)
        return spec_refuse_with(job, "data.too_long",
                                "a prompt that is cut is another one; use drop or "
                                "error");
    if (strcmp(job->bad_rows, "error") != 0)
        return spec_refuse_with(job, "data.bad_rows",
                                "a row that is no prompt ends the job; mend or "
                                "remove such rows, and remove the line");
    if (job->weight_count || hd_job_stage_count(job))
        return spec_refuse_with(job, "data.train",
                                "prompts are one list of files, without weights and "
                                "stages; join the files");
    if (job->val_count || job->val_split > 0)
        return spec_refuse_with(job, job->val_count ? "data.val" : "data.val_split",
                                "there is no validation loss; use validate.tasks or "
                                "validate.choices, and remove the line");
    if (*job->batch_schedule)
        return spec_refuse_with(job, "train.batch_schedule",
                                "a step has the windows that its answers may "
                                "need; remove the line");
    if (hd_job_has_policy_loss(job) && (*job->distill_teacher || job->distill_write))
        return spec_refuse_with(job, "train.distill", "there is no teacher; remove its keys");
    if (job->epochs > 0)
        return spec_refuse_with(job, "train.epochs",
                                "steps are not counted by data; give train.steps");
    return HD_OK;
}

/* Refuses whatever makes the log-probabilities of training others than those of drawing. */
static enum hd_status check_equal_passes(const struct hd_job *job)
{
    const struct {
        const char *key;
        bool is_set;
        const char *why;
    } not_both[] = {
        {"train.dropout",
         job->dropout_embedding > 0 || job->dropout_attention > 0 || job->dropout_residual > 0,
         "answers are drawn without dropout; set 0"},
        {"train.adapter.dropout", job->adapter_dropout > 0,
         "answers are drawn without dropout; set 0"},
        {"train.neftune_alpha", job->neftune_alpha > 0, "answers are drawn without noise; set 0"},
        {"model.router.noisy", job->noisy, "answers are drawn without noise; set false"},
        {"train.precision", job->precision == HD_JOB_PRECISION_FP8,
         "answers are not drawn in fp8; use bf16"},
        {"train.z_loss", job->head_z_loss > 0, "there is no loss of tokens; set 0"},
        {"model.router.balance", job->experts && job->balance > 0,
         "the balancing loss of routers is not supported; set 0"},
        {"model.router.z_loss", job->experts && job->z_loss > 0,
         "the z-loss of routers is not supported; set 0"},
        {"model.mtp.layers", job->mtp_layers > 0, "no further tokens are predicted; remove it"},
        {"train.guard.action", job->guard_action == HD_JOB_GUARD_ACTION_ROLLBACK,
         "rollback is not supported; use skip or stop"},
    };

    for (size_t i = 0; i < sizeof not_both / sizeof not_both[0]; i++)
        if (not_both[i].is_set)
            return spec_refuse_with(job, not_both[i].key, not_both[i].why);
    return HD_OK;
}

/* Checks that the answers of a step always fit its windows. */
static enum hd_status check_windows_of_answers(const struct hd_job *job)
{
    const int64_t answers = job->rollout_prompts * job->rollout_group;
    const int64_t prompt_max = hd_job_rollout_prompt_max(job);

    if (prompt_max >= 1)
        return HD_OK;
    if (job->rollout_max_tokens >= job->context)
        return hd_err(HD_INVALID,
                      "train.rollout.max_tokens: answers of up to %lld tokens leave no room for a "
                      "prompt in model.context = %lld; lower it, or give a longer context",
                      (long long)job->rollout_max_tokens, (long long)job->context);
    return hd_err(
        HD_INVALID,
        "train.global_batch: %lld windows of model.context = %lld tokens must always take "
        "prompts x group = %lld answers of up to max_tokens = %lld with their prompts; "
        "raise it to %lld, or give a longer context or fewer or shorter answers",
        (long long)job->global_batch, (long long)job->context, (long long)answers,
        (long long)job->rollout_max_tokens, (long long)answers);
}

/* Checks the divergence from the reference. */
static enum hd_status check_divergence(const struct hd_job *job)
{
    const bool has_kl = hd_job_has_reference(job);

    if (has_kl && !(job->policy_kl_beta > 0))
        return hd_err(HD_INVALID,
                      "train.policy.kl_beta: is missing or 0: the factor of the divergence %s, "
                      "such as 0.01; or set train.policy.kl to none",
                      hd_job_policy_kl_words[job->policy_kl]);
    if (!has_kl && job->policy_kl_beta > 0)
        return hd_err(HD_INVALID, "train.policy.kl_beta: is the factor of a divergence, and "
                                  "train.policy.kl is none; use k1, k2 or k3, or remove this line");
    if (!has_kl && job->policy_kl_in == HD_JOB_POLICY_KL_IN_REWARD)
        return hd_err(HD_INVALID, "train.policy.kl_in: there is no divergence; give "
                                  "train.policy.kl_beta, or remove this line");
    if (has_kl && *job->choices && (job->rollout_temperature > 1 || job->rollout_temperature < 1))
        return hd_err(HD_INVALID,
                      "train.policy.kl: the programs that compare with the reference at "
                      "train.rollout.temperature answer validate.choices at 1; set 1, or "
                      "remove one of the two");
    if (has_kl && job->router_bias_rate > 0)
        return hd_err(HD_INVALID, "model.router.bias_rate: with train.policy.kl the biases of "
                                  "routers must stay those of the reference; set 0");
    return HD_OK;
}

/* Refuses answers that the windows of the reward model could never take. */
static enum hd_status check_reward_model(const struct hd_job *job)
{
    struct hd_arena arena;
    struct hd_job model;
    enum hd_status st;

    if (!hd_job_has_reward_model(job))
        return HD_OK;
    hd_arena_init(&arena, 0);
    st = hd_job_of_reward_model(job, &arena, &model);
    hd_arena_done(&arena);
    if (!st && model.context <= job->rollout_max_tokens)
        st = hd_err(HD_INVALID,
                    "train.rollout.max_tokens: answers of up to %lld tokens leave no room for a "
                    "prompt in the %lld tokens of the reward model %s; lower it",
                    (long long)job->rollout_max_tokens, (long long)model.context, job->reward_dir);
    return st;
}

static enum hd_status check_loss_keys(const struct hd_job *job)
{
    const bool cispo = job->policy_loss == HD_JOB_POLICY_LOSS_CISPO;
    const bool rloo = job->policy_loss == HD_JOB_POLICY_LOSS_RLOO;

    if (!cispo && job->policy_cispo_max != 5)
        return hd_err(HD_INVALID,
                      "train.policy.cispo_max: is a bound of cispo, and train.policy.loss is %s",
                      hd_job_policy_loss_words[job->policy_loss]);
    if (job->policy_dual_clip != 0 && job->policy_dual_clip <= 1)
        return hd_err(HD_INVALID,
                      "train.policy.dual_clip: %.6g is not above 1; 3 is usual, 0: none",
                      job->policy_dual_clip);
    if (job->policy_dual_clip != 0 && job->policy_dual_clip < 1 + job->policy_clip_high)
        return hd_err(
            HD_INVALID,
            "train.policy.dual_clip: %.6g is below 1 + train.policy.clip_high = %.6g, and so "
            "would bound tokens that are to become likelier, too; raise it, or remove it",
            job->policy_dual_clip, 1 + job->policy_clip_high);
    if (rloo && job->policy_scale != HD_JOB_POLICY_SCALE_NONE)
        return hd_err(HD_INVALID, "train.policy.scale: rloo compares an answer with the others of "
                                  "its group and divides by nothing; remove the line");
    if (job->policy_correction == HD_JOB_POLICY_CORRECTION_NONE && job->policy_correction_max != 3)
        return hd_err(HD_INVALID, "train.policy.correction_max: there is no correction; give "
                                  "train.policy.correction, or remove the line");
    if (job->policy_correction == HD_JOB_POLICY_CORRECTION_TRUNCATE && job->rollout_updates > 1)
        return hd_err(HD_INVALID, "train.policy.correction: with train.rollout.updates above 1 the "
                                  "ratios are already those to the drawn log-probabilities; use "
                                  "none or mask_sequence");
    return HD_OK;
}

enum hd_status spec_check_overlong(const char *key, const struct hd_rewards *rewards,
                                   const char *limit, int64_t max_tokens)
{
    for (int64_t i = 0; i < rewards->count; i++) {
        const struct hd_reward *reward = &rewards->list[i];

        if (reward->kind == HD_REWARD_OVERLONG && reward->buffer > max_tokens)
            return hd_err(HD_INVALID,
                          "%s: the buffer of %s, %lld tokens, is longer than any answer (%s = "
                          "%lld); lower it",
                          key, reward->name, (long long)reward->buffer, limit,
                          (long long)max_tokens);
    }
    return HD_OK;
}

static enum hd_status check_rewards(const struct hd_job *job)
{
    struct hd_rewards rewards;
    struct hd_arena arena;
    enum hd_status st;

    if (!*job->rewards)
        return hd_err(HD_INVALID, "train.rewards: is missing: what rates an answer, such as "
                                  "[{builtin: number, field: answer}]");
    if (job->rollout_group < 2)
        return spec_refuse_with(job, "train.rollout.group",
                                "the answers to a prompt are compared; give at least 2");
    hd_arena_init(&arena, 0);
    st = hd_rewards_read("train.rewards", job->rewards, &arena, &rewards);
    if (!st)
        st = spec_check_overlong("train.rewards", &rewards, "train.rollout.max_tokens",
                                 job->rollout_max_tokens);
    hd_arena_done(&arena);
    return st;
}

/* Checks the loss by rewards. */
static enum hd_status check_policy_loss(const struct hd_job *job)
{
    enum hd_status st = check_loss_keys(job);

    if (!st)
        st = check_divergence(job);
    if (!st)
        st = check_reward_model(job);
    if (!st && job->rollout_resample > 1 && job->rollout_updates > 1)
        st = hd_err(HD_INVALID, "train.rollout.resample: not with train.rollout.updates above 1; "
                                "remove one of the two");
    return st;
}

enum hd_status spec_check_policy(const struct hd_job *job)
{
    const bool rates = hd_job_has_policy_loss(job);
    enum hd_status st;

    if (!hd_job_has_policy(job))
        return check_unused_policy(job);
    if (!job->rollout_prompts)
        return hd_err(HD_INVALID, "train.rollout.prompts: is missing: the number of prompts that a "
                                  "step answers, such as 16");
    st = rates ? check_rewards(job) : check_gkd(job);
    if (!st)
        st = check_policy_data(job);
    if (!st)
        st = check_equal_passes(job);
    if (!st && rates)
        st = check_policy_loss(job);
    return st ? st : check_windows_of_answers(job);
}

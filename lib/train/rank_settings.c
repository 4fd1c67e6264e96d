/* rank_settings: what the words of a job mean to its programs. */
#include "train/rank_program.h"

enum hd_dtype hd_rank_program_compute_dtype(const struct hd_job *job)
{
    switch (job->precision) {
    case HD_JOB_PRECISION_FP16:
        return HD_F16;
    case HD_JOB_PRECISION_BF16:
    case HD_JOB_PRECISION_FP8: /* only products are in fp8 */
        return HD_BF16;
    case HD_JOB_PRECISION_FP32:
    case HD_JOB_PRECISION_AUTO: /* refused by check_plan */
        break;
    }
    return HD_F32;
}

enum hd_quant hd_rank_program_quant(const struct hd_job *job)
{
    switch (job->model_weights) {
    case HD_JOB_MODEL_WEIGHTS_NF4:
        return HD_QUANT_NF4;
    case HD_JOB_MODEL_WEIGHTS_INT8:
        return HD_QUANT_INT8;
    case HD_JOB_MODEL_WEIGHTS_FP8:
        return HD_QUANT_FP8;
    case HD_JOB_MODEL_WEIGHTS_PLAIN:
        break;
    }
    return HD_QUANT_NONE;
}

static enum hd_preference preference_of_dpo(const struct hd_job *job)
{
    switch (job->preference_loss) {
    case HD_JOB_PREFERENCE_LOSS_SIGMOID:
        return HD_PREFERENCE_DPO;
    case HD_JOB_PREFERENCE_LOSS_ROBUST:
        return HD_PREFERENCE_ROBUST;
    case HD_JOB_PREFERENCE_LOSS_HINGE:
        return HD_PREFERENCE_HINGE;
    case HD_JOB_PREFERENCE_LOSS_IPO:
        return HD_PREFERENCE_IPO;
    case HD_JOB_PREFERENCE_LOSS_SIGMOID_NORM:
        return HD_PREFERENCE_SIGMOID_NORM;
    case HD_JOB_PREFERENCE_LOSS_APO_ZERO:
        return HD_PREFERENCE_APO_ZERO;
    case HD_JOB_PREFERENCE_LOSS_APO_DOWN:
        return HD_PREFERENCE_APO_DOWN;
    case HD_JOB_PREFERENCE_LOSS_KTO:
    case HD_JOB_PREFERENCE_LOSS_APO_ZERO_UNPAIRED:
        break; /* losses of kto */
    }
    return HD_PREFERENCE_NONE;
}

enum hd_preference hd_rank_program_preference(const struct hd_job *job)
{
    switch (job->objective) {
    case HD_JOB_OBJECTIVE_DPO:
        return preference_of_dpo(job);
    case HD_JOB_OBJECTIVE_SIMPO:
        return HD_PREFERENCE_SIMPO;
    case HD_JOB_OBJECTIVE_CPO:
        return HD_PREFERENCE_CPO;
    case HD_JOB_OBJECTIVE_ORPO:
        return HD_PREFERENCE_ORPO;
    case HD_JOB_OBJECTIVE_KTO:
        return HD_PREFERENCE_KTO;
    case HD_JOB_OBJECTIVE_REWARD:
        return HD_PREFERENCE_REWARD;
    case HD_JOB_OBJECTIVE_NEXT_TOKEN:
    case HD_JOB_OBJECTIVE_GRPO:
    case HD_JOB_OBJECTIVE_GKD:
        break;
    }
    return HD_PREFERENCE_NONE;
}

static enum hd_policy_mean mean_of(enum hd_job_policy_loss loss)
{
    switch (loss) {
    case HD_JOB_POLICY_LOSS_GRPO:
    case HD_JOB_POLICY_LOSS_GSPO:
        return HD_POLICY_MEAN_COMPLETIONS;
    case HD_JOB_POLICY_LOSS_DR_GRPO:
    case HD_JOB_POLICY_LOSS_RLOO:
        return HD_POLICY_MEAN_LENGTH;
    case HD_JOB_POLICY_LOSS_DAPO:
    case HD_JOB_POLICY_LOSS_CISPO:
        break;
    }
    return HD_POLICY_MEAN_TOKENS;
}

enum hd_policy_kl hd_rank_program_kl(const struct hd_job *job)
{
    switch (job->policy_kl) {
    case HD_JOB_POLICY_KL_K1:
        return HD_POLICY_K1;
    case HD_JOB_POLICY_KL_K2:
        return HD_POLICY_K2;
    case HD_JOB_POLICY_KL_K3:
        return HD_POLICY_K3;
    case HD_JOB_POLICY_KL_NONE:
        break;
    }
    return HD_POLICY_KL_NONE;
}

static enum hd_policy_correction correction_of(enum hd_job_policy_correction correction)
{
    switch (correction) {
    case HD_JOB_POLICY_CORRECTION_TRUNCATE:
        return HD_POLICY_TRUNCATE;
    case HD_JOB_POLICY_CORRECTION_MASK_SEQUENCE:
        return HD_POLICY_MASK_SEQUENCE;
    case HD_JOB_POLICY_CORRECTION_NONE:
        break;
    }
    return HD_POLICY_CORRECT_NONE;
}

struct hd_policy_factors hd_rank_program_policy(const struct hd_job *job)
{
    return (struct hd_policy_factors){
        .level = job->policy_loss == HD_JOB_POLICY_LOSS_GSPO ? HD_POLICY_SEQUENCE : HD_POLICY_TOKEN,
        .clip = job->policy_loss == HD_JOB_POLICY_LOSS_CISPO ? HD_POLICY_CISPO : HD_POLICY_PPO,
        .mean = mean_of(job->policy_loss),
        .kl = job->policy_kl_in == HD_JOB_POLICY_KL_IN_REWARD ? HD_POLICY_KL_NONE
                                                              : hd_rank_program_kl(job),
        .correction = correction_of(job->policy_correction),
        .clip_low = (float)job->policy_clip_low,
        .clip_high = (float)job->policy_clip_high,
        .dual_clip = (float)job->policy_dual_clip,
        .cispo_max = (float)job->policy_cispo_max,
        .kl_beta = (float)job->policy_kl_beta,
        .correction_max = (float)job->policy_correction_max,
        .temperature = (float)job->rollout_temperature,
        /* rloo adds up the tokens of a completion, and divides by completions alone */
        .max_tokens = job->policy_loss == HD_JOB_POLICY_LOSS_RLOO ? 1 : job->rollout_max_tokens,
        .old_is_sampled = job->rollout_updates > 1};
}

bool hd_rank_program_is_fp8(const struct hd_job *job)
{
    return job->precision == HD_JOB_PRECISION_FP8;
}

enum hd_dtype hd_rank_program_peak_dtype(const struct hd_job *job)
{
    return hd_rank_program_is_fp8(job) ? HD_U8 : hd_rank_program_compute_dtype(job);
}

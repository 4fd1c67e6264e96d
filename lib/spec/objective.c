/* objective: refuses, before a step runs, settings that do not work with losses on pairs of answers
 * (train.objective: dpo, simpo, cpo, orpo, reward) and on rated answers (kto). */
#include <string.h>

#include "base/words.h"
#include "job/frozen_model.h"
#include "spec_internal.h"

/* Checks that the data fits pairs: two whole answers to one prompt, of which only the answers
 * count. */
static enum hd_status check_objective_data(const struct hd_job *job)
{
    if (job->data_format != HD_JOB_DATA_FORMAT_AUTO)
        return spec_refuse_with(job, "data.format",
                                "lines are pairs of answers, or rated ones; remove the line");
    if (job->data_loss != HD_JOB_DATA_LOSS_ANSWERS)
        return spec_refuse_with(job, "data.loss", "the answers of a pair count; remove the line");
    if (job->too_long == HD_JOB_TOO_LONG_CUT)
        return spec_refuse_with(
            job, "data.too_long",
            "a pair that is cut would compare parts of answers; use drop or error");
    return HD_OK;
}

/* Refuses router losses: they are sums over rows, while a step of pairs divides by the number of
 * pairs. */
static enum hd_status check_routers(const struct hd_job *job)
{
    if (!job->experts)
        return HD_OK;
    if (job->balance > 0)
        return spec_refuse_with(job, "model.router.balance",
                                "the balancing loss of routers is not supported; set 0");
    if (job->z_loss > 0)
        return spec_refuse_with(job, "model.router.z_loss",
                                "the z-loss of routers is not supported; set 0");
    return HD_OK;
}

/* Refuses dropout, router noise and fp8 with DPO. DPO compares with log-probabilities that an
 * evaluation computed, so a difference that only training makes in a forward pass would count as a
 * preference. */
static enum hd_status check_reference(const struct hd_job *job)
{
    const struct {
        const char *key;
        double value;
    } dropout[] = {{"train.dropout.embedding", job->dropout_embedding},
                   {"train.dropout.attention", job->dropout_attention},
                   {"train.dropout.residual", job->dropout_residual},
                   {"train.adapter.dropout", job->adapter_dropout}};

    if (job->neftune_alpha > 0)
        return spec_refuse_with(
            job, "train.neftune_alpha",
            "answers are compared with a reference, whose embeddings have no noise; set 0");

    for (size_t i = 0; i < sizeof dropout / sizeof dropout[0]; i++)
        if (dropout[i].value > 0)
            return spec_refuse_with(
                job, dropout[i].key,
                "answers are compared with a reference, which has no dropout; set 0");
    if (job->noisy)
        return spec_refuse_with(
            job, "model.router.noisy",
            "answers are compared with a reference, whose routers have no noise; set false");
    if (job->precision == HD_JOB_PRECISION_FP8)
        return spec_refuse_with(
            job, "train.precision",
            "answers are compared with a reference, which is not computed in fp8; use bf16");
    return HD_OK;
}

/* Keys of train.preference and the losses that have them. */
static const struct {
    enum hd_key_index key;
    const char *objectives; /* separated by blanks */
    const char *losses;     /* with dpo: of train.preference.loss; NULL: any */
    const char *without;    /* what is to be said without such a loss */
} factors[] = {
    {HD_KEY_INDEX_preference_center, "reward", NULL,
     "only a reward model has rewards to center; add train.objective: reward, or remove it"},
    {HD_KEY_INDEX_preference_loss, "dpo kto", NULL,
     "it names a loss of dpo or kto; add train.objective: dpo, or remove it"},
    {HD_KEY_INDEX_preference_desirable, "kto", NULL,
     "it weighs the rated answers of kto; add train.objective: kto, or remove it"},
    {HD_KEY_INDEX_preference_undesirable, "kto", NULL,
     "it weighs the rated answers of kto; add train.objective: kto, or remove it"},
    {HD_KEY_INDEX_preference_gamma, "simpo", NULL,
     "it is the margin of simpo; add train.objective: simpo, or remove it"},
    {HD_KEY_INDEX_preference_smoothing, "dpo simpo cpo", "sigmoid robust",
     "dpo has it with train.preference.loss: sigmoid or robust, and simpo and cpo have it; use one "
     "of "
     "these, or remove it"},
    {HD_KEY_INDEX_preference_sft, "dpo simpo cpo", NULL,
     "the loss of the chosen answer is added to those of dpo, simpo and cpo; use one of them, or "
     "remove it"},
};

/* Refuses keys of train.preference that the loss does not have. */
static enum hd_status check_factors(const struct hd_job *job)
{
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        const bool has =
            hd_words_have(factors[i].objectives, hd_job_objective_words[job->objective]) &&
            (!factors[i].losses || job->objective != HD_JOB_OBJECTIVE_DPO ||
             hd_words_have(factors[i].losses, hd_job_preference_loss_words[job->preference_loss]));

        if (!has && !hd_job_is_default(&hd_job_keys[factors[i].key], job))
            return hd_err(HD_INVALID, "%s: %s", hd_job_keys[factors[i].key].path,
                          factors[i].without);
    }
    if ((!hd_job_has_pairs(job) || hd_job_is_reward(job)) &&
        !hd_job_is_default(HD_KEY(preference_beta), job))
        return hd_err(HD_INVALID,
                      "train.preference.beta: %s; add train.objective: dpo, or remove it",
                      hd_job_is_reward(job) ? "the loss of a reward model has no such factor"
                                            : "there are no pairs");
    return HD_OK;
}

/* Checks that the loss is one of the objective's. That of kto is kto by default, although the key's
 * default is a word of dpo. */
static enum hd_status check_loss(const struct hd_job *job)
{
    const bool rated = job->preference_loss == HD_JOB_PREFERENCE_LOSS_KTO ||
                       job->preference_loss == HD_JOB_PREFERENCE_LOSS_APO_ZERO_UNPAIRED;
    const bool is_kto = hd_job_is_unpaired(job);

    if (is_kto && !rated && !hd_job_is_default(HD_KEY(preference_loss), job))
        return hd_err(HD_INVALID,
                      "train.preference.loss: %s compares two answers, and with train.objective: "
                      "kto each answer is rated by itself; use kto or apo_zero_unpaired",
                      hd_job_preference_loss_words[job->preference_loss]);
    if (!is_kto && rated)
        return hd_err(HD_INVALID,
                      "train.preference.loss: %s is a loss on rated answers; use train.objective: "
                      "kto",
                      hd_job_preference_loss_words[job->preference_loss]);
    if (is_kto && job->preference_desirable == 0 && job->preference_undesirable == 0)
        return hd_err(HD_INVALID, "train.preference.desirable_weight: both weights are 0, so that "
                                  "nothing is learned; raise one");
    return HD_OK;
}

/* ---- distillation ---- */

/* Refuses keys of train.distill without a teacher, and beta with another loss. */
static enum hd_status check_distill_keys(const struct hd_job *job)
{
    static const enum hd_key_index keys[] = {
        HD_KEY_INDEX_distill_top_k, HD_KEY_INDEX_distill_temperature, HD_KEY_INDEX_distill_loss,
        HD_KEY_INDEX_distill_beta,  HD_KEY_INDEX_distill_weight,      HD_KEY_INDEX_distill_tail,
        HD_KEY_INDEX_distill_vocab};
    const bool distills = job->distill_write || hd_job_has_teacher(job) ||
                          job->objective == HD_JOB_OBJECTIVE_GKD; /* which is told what it lacks */

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!distills && !hd_job_is_default(&hd_job_keys[keys[i]], job))
            return hd_err(HD_INVALID,
                          "%s: there is no teacher; name its file in train.distill.teacher, or "
                          "remove the line",
                          hd_job_keys[keys[i]].path);
    if (job->objective != HD_JOB_OBJECTIVE_GKD &&
        !hd_job_is_default(HD_KEY(distill_on_policy), job))
        return hd_err(HD_INVALID,
                      "train.distill.on_policy: only train.objective: gkd has answers of the "
                      "student; use that, or remove the line");
    if (job->distill_loss != HD_JOB_DISTILL_LOSS_JSD &&
        !hd_job_is_default(HD_KEY(distill_beta), job))
        return hd_err(HD_INVALID,
                      "train.distill.beta: only train.distill.loss: jsd has it; use that, or "
                      "remove the line");
    if (job->distill_loss == HD_JOB_DISTILL_LOSS_JSD &&
        (job->distill_beta <= 0 || job->distill_beta >= 1))
        return hd_err(HD_INVALID,
                      "train.distill.beta: %g is not between 0 and 1; in place of 0 use "
                      "train.distill.loss: forward, in place of 1 reverse",
                      job->distill_beta);
    return HD_OK;
}

/* Checks that teacher and student have the token ids that are compared. */
static enum hd_status check_teacher_model(const struct hd_job *job)
{
    struct hd_job teacher;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_job_of_teacher(job, &arena, &teacher);
    hd_arena_done(&arena);
    if (st)
        return st;
    if (teacher.vocab < hd_job_distill_vocab(job) ||
        (!job->distill_vocab && teacher.vocab != job->vocab))
        return hd_err(
            HD_INVALID,
            "train.distill.teacher: its model has %lld token ids, and the student's %lld; "
            "with one tokenizer give the number of its ids in train.distill.vocab, at "
            "most the smaller of the two",
            (long long)teacher.vocab, (long long)job->vocab);
    return HD_OK;
}

static enum hd_status check_distill(const struct hd_job *job)
{
    const enum hd_status st = check_distill_keys(job);

    if (st || (!job->distill_write && !hd_job_has_teacher(job)))
        return st;
    if (job->distill_write && hd_job_has_teacher(job))
        return hd_err(HD_INVALID, "train.distill.write: the job has a teacher of its own; remove "
                                  "train.distill.teacher, or write it from another job");
    if (hd_job_has_teacher(job) && job->distill_teacher[0] != '/')
        return hd_err(HD_INVALID, "train.distill.teacher: is not an absolute path");
    if (job->objective != HD_JOB_OBJECTIVE_NEXT_TOKEN &&
        (job->distill_write || job->objective != HD_JOB_OBJECTIVE_GKD))
        return spec_refuse_with(
            job, job->distill_write ? "train.distill.write" : "train.distill.teacher",
            "the loss is not that of next tokens, which a teacher predicts; use "
            "next_token, or gkd on the student's own answers");
    if (hd_job_has_teacher(job) && job->head_z_loss > 0)
        return hd_err(HD_INVALID, "train.z_loss: with train.distill.teacher there is none; set 0");
    if (job->vocab && job->distill_vocab > job->vocab && job->tokenizer[0] != '/')
        return hd_err(HD_INVALID,
                      "train.distill.vocab: %lld is more than model.vocab = %lld; lower it",
                      (long long)job->distill_vocab, (long long)job->vocab);
    if (job->vocab && job->distill_top_k > hd_job_distill_vocab(job))
        return hd_err(HD_INVALID,
                      "train.distill.top_k: %lld is more than the %lld token ids; lower it",
                      (long long)job->distill_top_k, (long long)hd_job_distill_vocab(job));
    return job->vocab && hd_job_has_teacher_model(job) ? check_teacher_model(job) : HD_OK;
}

enum hd_status spec_check_objective(const struct hd_job *job)
{
    enum hd_status st = check_factors(job);

    if (!st)
        st = check_distill(job);

    if (!st)
        st = check_loss(job);
    if (st || !hd_job_has_pairs(job))
        return st;
    if (job->head_z_loss > 0)
        return spec_refuse_with(
            job, "train.z_loss",
            "the loss compares answers, and a z-loss is a loss of tokens; set 0");
    st = check_objective_data(job);
    if (!st)
        st = check_routers(job);
    if (!st && (job->objective == HD_JOB_OBJECTIVE_DPO || hd_job_is_unpaired(job)))
        st = check_reference(job);
    return st;
}

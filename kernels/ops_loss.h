/* ops_loss: the contracts of the device operations behind a model's head: the map of logits, cross-entropy,
 * distillation, losses of pairs of answers and of sampled completions, and rewards; see also ops.h.
 *
 * Used by: kernels.h.   Uses: ops.h.   Threads: pure declarations.
 */
#ifndef HD_KERNELS_OPS_LOSS_H
#define HD_KERNELS_OPS_LOSS_H

#include "kernels/ops.h"

/* Map of logits before the softmax: z' = cap * tanh(scale * z / cap); without a cap z' = scale * z.
 * Gradient: dz = dz' * scale * (1 - (z' / cap)^2). (Gemma Team 2024, "Gemma 2", for the cap.) */
struct hd_logit_map {
    float scale; /* > 0; 0: 1 */
    float cap;   /* > 0; 0: none */
};

/* logits = their map, in place, for N logits. */
struct hd_map_logits_args {
    void *logits; /* [N]  dtype */
    int64_t N;
    struct hd_logit_map map;
    enum hd_dtype dtype;
};

/* Softmax cross-entropy over V of Vp columns (columns from V on are padding, never predicted):
 *   loss_sum += sum_r -log softmax(logits[r,:])[target[r]],  target_count += targets in [0, V),
 *   dlogits[r,v] = loss_scale * (softmax(logits[r,:])[v] - [v == target[r]]), 0 in padding.
 * A row with a negative target is masked: no loss, zero gradient. A target >= V is invalid: no
 * loss, zero gradient, and block->overflow is set. dlogits may alias logits. Losses are added in
 * double, in a fixed order. The softmax is that of the mapped logits, dlogits the gradient of the
 * logits in memory, which `map` maps; padding is excluded after the map.
 *
 * For a loss that is a function of log-probabilities (preference below): logp[r] = log
 * softmax(logits[r,:])[target[r]], 0 in masked rows, and weight[r] multiplies the gradient of row
 * r. With logp or weight nothing is added to loss_sum and target_count.
 *
 * A loss of further tokens (multi-token prediction, docs/engine/further-tokens.md) has a record, in place of the
 * sums of block: losses and targets are added to it, and its factor multiplies the gradients.
 *
 * With z > 0, and neither logp, weight nor record, a z-loss is trained beside the loss (Chowdhery et al.
 * 2022, "PaLM", section 5): z log^2 Z of each row with a target, Z the sum of the exponentials of its
 * mapped logits. Its gradient multiplies the softmax of the row by 1 + 2 z log Z. loss_sum does not
 * contain it; z_sum += sum_r log^2 Z. */
enum {
    HD_FURTHER_FACTOR,  /* factor of the gradients, which is only read */
    HD_FURTHER_LOSS,    /* sum of the losses */
    HD_FURTHER_TARGETS, /* number of targets */
    HD_FURTHER_HITS,    /* number of targets with the largest logit of their row */
    HD_FURTHER_WORDS
};
enum { HD_FURTHER_MAX = 4 }; /* most further tokens that a model predicts */
struct hd_cross_entropy_args {
    void *dlogits;  /* [R, Vp]  dtype, or NULL */
    float *logp;    /* [R], or NULL            */
    double *record; /* [HD_FURTHER_WORDS], or NULL */
    struct hd_step_state *block;
    const void *logits;    /* [R, Vp]  dtype          */
    const int32_t *target; /* [R]                     */
    const float *weight;   /* [R], or NULL: all are 1 */
    void *scratch;
    int64_t R, V, Vp;
    struct hd_logit_map map;
    float z; /* factor of the z-loss; 0: none */
    enum hd_dtype dtype;
};

/* Vocabulary-parallel cross-entropy (Shoeybi et al. 2020, section 3): each rank holds the logits of
 * V tokens of the vocabulary, from token `first` on. No rank gathers all logits; per row, the ranks
 * exchange these numbers, all of the mapped logits: with m = max_v logits[r,v] over the rank's V
 * columns
 *   stats[r,:] = {m, sum_v exp(logits[r,v] - m), logits[r, target[r] - first] or 0, 1 if the target
 *                 is among the V, else 0} */
struct hd_cross_entropy_stats_args {
    float *stats;          /* [R, HD_CROSS_ENTROPY_STATS] */
    const void *logits;    /* [R, Vp]  dtype              */
    const int32_t *target; /* [R]                         */
    int64_t R, V, Vp, first;
    struct hd_logit_map map;
    enum hd_dtype dtype;
};
enum { HD_CROSS_ENTROPY_STATS = 4 };

/* cross_entropy for this rank's V columns, from the stats of all P ranks in rank order:
 *   M = max_p m_p,  Z = sum_p (sum of rank p) * exp(m_p - M),  loss = log Z + M - target's logit.
 * Every rank adds the same losses to its block. A target in no rank's V sets overflow. */
struct hd_cross_entropy_shared_args {
    void *dlogits;  /* [R, Vp]  dtype, or NULL; may alias logits */
    float *logp;    /* [R], or NULL                              */
    double *record; /* [HD_FURTHER_WORDS], or NULL              */
    struct hd_step_state *block;
    const void *logits;    /* [R, Vp]  dtype                 */
    const float *stats;    /* [P, R, HD_CROSS_ENTROPY_STATS] */
    const int32_t *target; /* [R]                            */
    const float *weight;   /* [R], or NULL: all are 1        */
    void *scratch;
    int64_t R, V, Vp, P, first;
    struct hd_logit_map map;
    float z; /* factor of the z-loss; 0: none */
    enum hd_dtype dtype;
};

/* ---- Distillation (Hinton et al. 2015) ----
 *
 * y[r,v] = map(logits[r,v]) / temperature, over the first `real` token ids of the vocabulary alone:
 * ids behind them are padding, whose logits differ between models. q and p are the softmax of the
 * teacher's and the student's y. A record of the teacher has the k largest log q of a row with
 * their ids, the `kept` ones: log q is log softmax over all real ids, not over the k. */

/* The largest y of this rank's V columns, which are token ids from `first` on (V: those below
 * `real`; may be 0):
 *   top[r,:] = {m, s, y, id, y, id ..}: m = max_v y[r,v], s = sum_v exp(y[r,v] - m), and the k
 * largest y in descending order, of equal ones the lowest id first. ids are exact in fp32 (< 2^24).
 * Behind the last of fewer than k: -infinity, -1. With V = 0: m = -infinity, s = 0. */
struct hd_top_logits_args {
    float *top;         /* [R, HD_TOP_WORDS(k)] */
    const void *logits; /* [R, Vp]  dtype */
    int64_t R, V, Vp, first, k;
    float temperature; /* > 0 */
    struct hd_logit_map map;
    enum hd_dtype dtype;
};
#define HD_TOP_WORDS(k) (2 + 2 * (k))

/* out[r,:] = {log q, id, log q, id ..}, the k largest of the tops of all P ranks in rank order:
 * log q = y - (M + log sum_p s_p exp(m_p - M)),  M = max_p m_p. */
struct hd_top_merge_args {
    float *out;       /* [R, 2 k] */
    const float *top; /* [P, R, HD_TOP_WORDS(k)] */
    int64_t R, P, k;
};

/* Numbers that the ranks that split the vocabulary exchange for `distill`, of this rank's V columns, which
 * are token ids from `first` on; `real` is the number of them that are real ids:
 *   stats[r,:] = {max, sum of exponentials, target's logit, 1 for an own target: as in
 *                 cross_entropy_stats; m = max y of real columns (-infinity: none), sum over real
 *                 columns that are not kept of exp(y - m), then y of each kept id, 0 where another
 *                 rank has it} */
struct hd_distill_stats_args {
    float *stats;          /* [R, HD_DISTILL_WORDS(k)] */
    const void *logits;    /* [R, Vp]  dtype */
    const int32_t *target; /* [R] */
    const int32_t *ids;    /* [R, k], each at most once in a row; negative: none */
    int64_t R, V, Vp, first, real, k;
    float temperature;
    struct hd_logit_map map;
    enum hd_dtype dtype;
};
#define HD_DISTILL_WORDS(k) (6 + (k))
enum { HD_DISTILL_K_MAX = 256 };

/* Divergences of the student's p from the teacher's q. Sums are over the buckets b of a row: each
 * kept id is one, and with `tail` all other real ids together are one more, with the teacher's mass
 * 1 - sum of kept q and the student's sum of p (summed, not by subtraction). */
enum hd_distill_loss {
    HD_DISTILL_FORWARD, /* KL(q || p) = sum_b q_b (log q_b - log p_b) */
    HD_DISTILL_REVERSE, /* KL(p || q) = sum_b p_b (log p_b - log q_b) (Gu et al. 2024) */
    /* generalised Jensen-Shannon divergence (Agarwal et al. 2024), with m = (1 - beta) p + beta q:
     * beta KL(q || m) + (1 - beta) KL(p || m) */
    HD_DISTILL_JSD
};

/* The label loss mixed with a divergence D from the teacher, for this rank's V columns, from the
 * stats of all P ranks in rank order:
 *   loss of a row = (1 - weight) (-log softmax(map(logits))[target]) + weight D
 * Rows without a target have no loss; rows with one, but without a teacher's record (ids[r,0] < 0),
 * have the label loss alone, with factor 1. loss_sum gets -log p of the targets without the factor,
 * distill_sum D without it. No factor temperature^2 is applied. dlogits is 0 from column V on and
 * may alias logits. With f_b = dD/dp_b and F = sum_b p_b f_b, dD/dy_v = p_v (f_b(v) - F).
 * A target in no rank's V sets overflow. */
struct hd_distill_args {
    void *dlogits; /* [R, Vp]  dtype, or NULL */
    struct hd_step_state *block;
    const void *logits;    /* [R, Vp]  dtype */
    const float *stats;    /* [P, R, HD_DISTILL_WORDS(k)] */
    const int32_t *target; /* [R] */
    const int32_t *ids;    /* [R, k] */
    const float *logq;     /* [R, k] */
    void *scratch;
    int64_t R, V, Vp, P, first, real, k;
    float temperature, weight, beta;
    enum hd_distill_loss loss;
    bool tail;
    struct hd_logit_map map;
    enum hd_dtype dtype;
};

/* ---- Preferences: losses of pairs of answers ----
 *
 * The R rows are R / S samples of S rows each. A sample has at most A answers; answer[r]
 * is the number of the row's answer in its sample, negative in rows without one. Answers 2 k and 2
 * k + 1 are pair k: the chosen and the rejected answer to one prompt. A pair counts only if both
 * answers have targets. */

/* sums[i, a] = {sum of logp[r] - reference[r], number of rows}, both over the rows r of answer a of
 * sample i that have a target (target[r] >= 0). The rows of an answer are consecutive. Sums are in
 * double, in the order of the rows. */
struct hd_answer_sums_args {
    double *sums;           /* [R / S, A, 2] */
    const float *logp;      /* [R] */
    const float *reference; /* [R], or NULL: 0 */
    const int32_t *answer;  /* [R] */
    const int32_t *target;  /* [R], or NULL: every row of an answer has one */
    int64_t R, S, A;
};

/* Loss and margin of each pair of answers. s and n are the two numbers of `sums` of an answer,
 * added over all ranks that have rows of the answer:
 *
 *   DPO and the losses below it: s is the log-ratio to the reference, summed over an answer's tokens, and
 *   a = s / n its mean. x = beta (s_chosen - s_rejected), e = smoothing:
 *     DPO (Rafailov et al. 2023, equation 7; e > 0: cDPO, Mitchell 2023)
 *                   loss = -(1 - e) log sigmoid(x) - e log sigmoid(-x)
 *     ROBUST (Ray Chowdhury et al. 2024, equation 12)
 *                   loss = (-(1 - e) log sigmoid(x) + e log sigmoid(-x)) / (1 - 2 e)
 *     HINGE (Zhao et al. 2023)           loss = max(0, 1 - x)
 *     APO_ZERO (D'Oosterlinck et al. 2024)  loss = 1 - sigmoid(beta s_chosen) + sigmoid(beta s_rejected)
 *     APO_DOWN (the same)                loss = sigmoid(beta s_chosen) + 1 - sigmoid(x)
 *     IPO (Azar et al. 2024, equation 17; of means)  loss = (a_chosen - a_rejected - 1 / (2 beta))^2
 *     SIGMOID_NORM (Lambert et al. 2024, equation 6)
 *                   the loss of DPO with x = beta (a_chosen - a_rejected)
 *     margin = x, of means where the loss is.
 *   SIMPO (Meng et al. 2024, equation 6), without a reference: a = s / n, the mean log-probability,
 *     margin = beta (a_chosen - a_rejected), the loss of DPO with x = margin - gamma.
 *   CPO (Xu et al. 2024, equation 6), without a reference: s the log-probability of an answer, the loss of
 *     DPO; its term of likelihood is `sft`.
 *   To each of these, sft times -a_chosen is added; beside a reference that is relative to it, too.
 *   ORPO (Hong et al. 2024, equations 6 and 7): a = s / n, the mean log-probability of a token,
 *     odds = log(exp(a) / (1 - exp(a))) of the chosen minus that of the rejected answer,
 *     loss = -a_chosen - beta log sigmoid(odds),   margin = beta (a_chosen - a_rejected).
 *     In odds a is limited to -1e-6 (a certain answer).
 *   REWARD (Bradley & Terry 1952; Ouyang et al. 2022, equation 1): s is the reward of an answer,
 *     margin = s_chosen - s_rejected,   loss = -log sigmoid(margin) + center (s_chosen +
 *     s_rejected)^2, whose last term draws rewards to 0 (Eisenstein et al. 2023).
 *   KTO (Ethayarajh et al. 2024, section 4.1) is a loss of answers: a pair counts if one of its answers has
 *     targets, and the loss is the sum over these. z = block->kl, which has no gradient:
 *       chosen: desirable (1 - sigmoid(beta (s - z))),   rejected: undesirable sigmoid(beta (s - z))
 *     With z = 0 it is the unpaired form of APO_ZERO. The block then counts answers in place of pairs in
 *     target_count, chosen ones in correct_pairs; margin_sum is the sum of the rewards of the chosen
 *     answers, and reward_sum that of all.
 *
 * The reward of an answer is beta s, or beta a where the loss is of means; by REWARD it is s.
 *
 * weight[r] = -d loss / d logp[r], the factor of the row's gradient of -logp; with REWARD, of
 * -value. `counts`: this rank adds the losses to loss_sum, the pairs to target_count, and the sums
 * of margins, of pairs with a margin > 0, of targets and of mean rewards to the block; it is true
 * on one of several ranks with the same sums. */
enum hd_preference {
    HD_PREFERENCE_NONE,
    HD_PREFERENCE_DPO,
    HD_PREFERENCE_ROBUST,
    HD_PREFERENCE_HINGE,
    HD_PREFERENCE_IPO,
    HD_PREFERENCE_SIGMOID_NORM,
    HD_PREFERENCE_APO_ZERO,
    HD_PREFERENCE_APO_DOWN,
    HD_PREFERENCE_SIMPO,
    HD_PREFERENCE_CPO,
    HD_PREFERENCE_ORPO,
    HD_PREFERENCE_REWARD,
    HD_PREFERENCE_KTO
};

/* Returns whether the loss is relative to a reference model. */
static inline bool hd_preference_has_reference(enum hd_preference p)
{
    return (p >= HD_PREFERENCE_DPO && p <= HD_PREFERENCE_APO_DOWN) || p == HD_PREFERENCE_KTO;
}

/* Numbers in the formulas above. */
struct hd_preference_factors {
    float beta, center, gamma, smoothing, sft;
    float desirable, undesirable; /* weights of both kinds of answers in KTO */
};

struct hd_preference_args {
    float *weight; /* [R], or NULL */
    struct hd_step_state *block;
    const double *sums;    /* [R / S, A, 2] */
    const int32_t *answer; /* [R] */
    int64_t R, S, A;
    enum hd_preference objective;
    struct hd_preference_factors factors;
    bool counts;
};

/* ---- Policy gradients: losses of completions that the model has sampled ----
 *
 * Rows, samples and answers are those of the preferences above; an answer is a completion, whose
 * tokens are the targets of its rows. Row r has three log-probabilities of its target: logp[r] of
 * this pass, sampled[r] of the sampler, reference[r] of the reference model; and advantage[r], A, of
 * its completion. sums[i, a] = {sum of logp - sampled, number of targets n} of a completion, over all
 * ranks that have rows of it (answer_sums).
 *
 *   ratio: r = exp(x) with x = logp - old (TOKEN), or the mean of that over the completion's tokens
 *     (SEQUENCE; Zheng et al. 2025, "GSPO", equation 7). old is `sampled` if old_is_sampled; else it
 *     is logp itself: r = 1, and the gradient is that of logp alone.
 *   objective: PPO (Schulman et al. 2017, equation 7)  u = min(r A, limit(r, 1 - clip_low, 1 + clip_high) A),
 *     with dual_clip > 0 of min(r, dual_clip) in the first term (Ye et al. 2020, equation 5)
 *     CISPO (MiniMax 2025, equation 5)  u = min(r, cispo_max) A logp, the factor of logp without a gradient.
 *   correction w, without a gradient (Yao et al. 2025), of q = exp(logp - sampled), with SEQUENCE of q =
 *     exp(sum of that over the completion): TRUNCATE  min(q, correction_max);  MASK_SEQUENCE, always of the
 *     completion's q:  q, or 0 where q > correction_max. If old_is_sampled, r is the ratio to the sampler:
 *     w is then 1, and MASK_SEQUENCE only masks.
 *   divergence d from the reference (Schulman 2020), with y = reference - logp: K1  -y,  K2  y^2 / 2,
 *     K3  exp(y) - y - 1.
 *   loss of a token: l = kl_beta d - w u.
 *
 * A step divides the sum of c l by the number of terms:
 *   COMPLETIONS  c = 1 / n, a term per completion (Shao et al. 2024, "GRPO", equation 3)
 *   TOKENS       c = 1, a term per token (Yu et al. 2025, "DAPO", equation 8)
 *   LENGTH       c = 1, max_tokens terms per completion (Liu et al. 2025, "Dr. GRPO", section 3.2)
 *
 * The logarithms of ratios are within [-10, 10]; outside, PPO has no gradient, and the exponential of K3
 * is continued by its tangent. */
enum hd_policy_level { HD_POLICY_TOKEN, HD_POLICY_SEQUENCE };
enum hd_policy_clip { HD_POLICY_PPO, HD_POLICY_CISPO };
enum hd_policy_mean { HD_POLICY_MEAN_COMPLETIONS, HD_POLICY_MEAN_TOKENS, HD_POLICY_MEAN_LENGTH };
enum hd_policy_kl { HD_POLICY_KL_NONE, HD_POLICY_K1, HD_POLICY_K2, HD_POLICY_K3 };
enum hd_policy_correction { HD_POLICY_CORRECT_NONE, HD_POLICY_TRUNCATE, HD_POLICY_MASK_SEQUENCE };

/* Numbers in the formulas above. */
struct hd_policy_factors {
    enum hd_policy_level level;
    enum hd_policy_clip clip;
    enum hd_policy_mean mean;
    enum hd_policy_kl kl;
    enum hd_policy_correction correction;
    float clip_low, clip_high;
    float dual_clip; /* 0: none */
    float cispo_max, kl_beta, correction_max;
    float temperature; /* the head divides logits by it; 0: 1 */
    int64_t max_tokens;
    bool old_is_sampled;
};

/* weight[r] = -d (c l) / d logp[r], 0 in rows without a target. The losses and the numbers of the rows are
 * added to loss_sum and policy of the block, with TOKENS the tokens to target_count. counts_answers: the number
 * of completions is added to policy and their terms to target_count, too; it is true on one of several ranks
 * that have rows of the same completions. Sums are in double. */
struct hd_policy_args {
    float *weight; /* [R], or NULL */
    struct hd_step_state *block;
    const float *logp, *sampled; /* [R] */
    const float *reference;      /* [R], or NULL without a divergence */
    const float *advantage;      /* [R] */
    const double *sums;          /* [R / S, A, 2] */
    const int32_t *answer;       /* [R] */
    const int32_t *target;       /* [R] */
    const float *spread;         /* [P, R, HD_ENTROPY_WORDS], or NULL: entropies are not counted */
    int64_t R, S, A, P;
    struct hd_policy_factors factors;
    bool counts_answers;
};

/* Numbers from which follows the entropy of each row's distribution: of the mapped logits y of this
 * rank's V columns, with m = max_v y[r, v],
 *   spread[r, :] = {m, sum_v exp(y - m), sum_v exp(y - m) (y - m)},  0 in rows without a target.
 * With M the largest m of P ranks, Z = sum_p exp(m_p - M) s_p and T = sum_p exp(m_p - M) (t_p + (m_p - M) s_p),
 * the entropy -sum_v p log p is log Z - T / Z. */
enum { HD_ENTROPY_WORDS = 3 };
struct hd_entropy_args {
    float *spread;         /* [R, HD_ENTROPY_WORDS] */
    const void *logits;    /* [R, Vp]  dtype */
    const int32_t *target; /* [R] */
    int64_t R, V, Vp;
    struct hd_logit_map map;
    enum hd_dtype dtype;
};

/* The reward of an answer is read at its last row, with the head's weight:
 *
 *   value[i] = sum_c x[i - first, c] weight[c]
 *
 * in the rows i that have an answer (answer[i] >= 0) and are among the R rows of x, else 0. With
 * sequence parallelism a rank's x has rows first .. first + R - 1 of the N. The sum is fp32. */
struct hd_score_forward_args {
    float *value;          /* [N]           */
    const void *x;         /* [R, C]  dtype */
    const void *weight;    /* [C]     dtype */
    const int32_t *answer; /* [N]           */
    int64_t N, R, C, first;
    enum hd_dtype dtype;
};

/* With d = -pull[first + r] * block->loss_scale, the gradient of value[first + r]:
 *   dx[r, c] = d weight[c],   dweight[c] (+)= sum_r d x[r, c]   (r ascending, in fp32) */
struct hd_score_backward_args {
    void *dx;       /* [R, C]  dtype, or NULL */
    float *dweight; /* [C], or NULL           */
    const struct hd_step_state *block;
    const float *pull;  /* [N]: the `weight` output of hd_preference_args */
    const void *x;      /* [R, C]  dtype */
    const void *weight; /* [C]     dtype */
    int64_t N, R, C, first;
    bool accumulate; /* true: dweight is added to instead of stored */
    enum hd_dtype dtype;
};

#endif

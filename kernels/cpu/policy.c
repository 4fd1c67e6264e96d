/* policy: losses of completions that the model has sampled. The numbers are few compared with the
 * logits, so one thread computes them, in the order of the rows. */
#include "kernels/policy.h"

#include "kernels/cpu/cpu.h"

/* Returns whether the row's target counts. */
static bool counts(const struct hd_policy_args *a, int64_t r)
{
    return a->answer[r] >= 0 && a->target[r] >= 0;
}

static struct hd_policy_row row_at(const struct hd_policy_args *a, int64_t r)
{
    const double *sums = a->sums + 2 * (r / a->S * a->A + a->answer[r]);
    const struct hd_policy_token t = {.logp = (double)a->logp[r],
                                      .sampled = (double)a->sampled[r],
                                      .reference = a->reference ? (double)a->reference[r] : 0,
                                      .advantage = (double)a->advantage[r],
                                      .difference_sum = sums[0],
                                      .count = sums[1]};
    struct hd_policy_row row = hd_policy_of(&a->factors, &t);

    if (a->spread)
        row.words[HD_POLICY_ENTROPY_SUM] = hd_policy_entropy(a->spread, a->P, a->R, r);
    return row;
}

static void count_answers(const struct hd_policy_args *a)
{
    int64_t answers = 0;

    for (int64_t i = 0; i < a->R / a->S * a->A; i++)
        answers += a->sums[2 * i + 1] > 0;
    a->block->policy[HD_POLICY_COMPLETIONS] += (double)answers;
    a->block->target_count += answers * hd_policy_terms(&a->factors);
}

enum hd_status KERNEL(policy)(struct hd_backend *cpu, const struct hd_policy_args *a)
{
    (void)cpu;
    for (int64_t r = 0; r < a->R; r++) {
        struct hd_policy_row row = {0};

        if (counts(a, r)) {
            row = row_at(a, r);
            a->block->loss_sum += row.loss;
            a->block->target_count += a->factors.mean == HD_POLICY_MEAN_TOKENS;
            hd_policy_add(a->block->policy, row.words);
        }
        if (a->weight)
            a->weight[r] = (float)row.weight;
    }
    if (a->counts_answers)
        count_answers(a);
    return HD_OK;
}

/* preference: sums of log-probabilities by answer, and the losses of pairs of answers. The numbers
 * are few compared with the logits, so one thread computes them. */
#include "kernels/cpu/cpu.h"
#include "kernels/pair.h"

enum hd_status KERNEL(answer_sums)(struct hd_backend *cpu, const struct hd_answer_sums_args *a)
{
    (void)cpu;
    memset(a->sums, 0, (size_t)(a->R / a->S * a->A) * 2 * sizeof *a->sums);
    for (int64_t r = 0; r < a->R; r++) {
        double *sums;

        if (a->answer[r] < 0 || (a->target && a->target[r] < 0))
            continue;
        sums = a->sums + 2 * (r / a->S * a->A + a->answer[r]);
        sums[0] += (double)a->logp[r] - (a->reference ? (double)a->reference[r] : 0);
        sums[1] += 1;
    }
    return HD_OK;
}

static struct hd_pair pair_at(const struct hd_preference_args *a, int64_t sample, int64_t answer)
{
    return hd_pair_of(a->objective, &a->factors, a->block->kl,
                      a->sums + 2 * (sample * a->A + answer / 2 * 2));
}

static void add_pairs(const struct hd_preference_args *a)
{
    struct hd_step_state *block = a->block;

    for (int64_t i = 0; i < a->R / a->S; i++)
        for (int64_t answer = 0; answer + 1 < a->A; answer += 2) {
            const struct hd_pair p = pair_at(a, i, answer);
            const double *sums = a->sums + 2 * (i * a->A + answer);

            if (!p.present)
                continue;
            block->loss_sum += p.loss;
            block->target_count += hd_pair_terms(a->objective, sums);
            block->margin_sum += p.margin;
            block->correct_pairs += hd_pair_correct(a->objective, &p, sums);
            block->answer_targets += sums[1] + sums[3];
            block->reward_sum += p.reward;
        }
}

enum hd_status KERNEL(preference)(struct hd_backend *cpu, const struct hd_preference_args *a)
{
    struct hd_pair p = {0};

    (void)cpu;
    for (int64_t r = 0; a->weight && r < a->R; r++) {
        if (a->answer[r] >= 0 && (r % a->S == 0 || a->answer[r] != a->answer[r - 1]))
            p = pair_at(a, r / a->S, a->answer[r]);
        a->weight[r] = (float)(a->answer[r] < 0 ? 0 : a->answer[r] % 2 ? p.rejected : p.chosen);
    }
    if (a->counts)
        add_pairs(a);
    return HD_OK;
}

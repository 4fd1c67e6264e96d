#include "train/advantage.h"

#include <math.h>

#include "kernels/policy.h"

static const double std_floor = 1e-4; /* added to a standard deviation (TRL) */

/* Mean and standard deviation of the rewards that are numbers. */
struct reward_spread {
    int64_t count;
    double mean, std; /* std 0: fewer than two rewards */
};

static struct reward_spread reward_spread_of(const double *rewards, int64_t count)
{
    struct reward_spread s = {.count = 0};
    double squares = 0;

    for (int64_t i = 0; i < count; i++)
        if (!isnan(rewards[i])) {
            s.mean += rewards[i];
            s.count++;
        }
    s.mean = s.count ? s.mean / (double)s.count : 0;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(rewards[i]))
            squares += (rewards[i] - s.mean) * (rewards[i] - s.mean);
    s.std = s.count > 1 ? sqrt(squares / (double)(s.count - 1)) : 0;
    return s;
}

double hd_advantage_divergence(enum hd_policy_kl kl, const float *sampled, const float *reference,
                               int64_t count)
{
    double sum = 0, pull;

    for (int64_t i = 0; kl != HD_POLICY_KL_NONE && i < count; i++)
        if (isfinite(sampled[i]) && isfinite(reference[i]))
            sum += hd_policy_divergence(kl, (double)sampled[i], (double)reference[i], &pull);
    return sum;
}

void hd_advantage_take(const double *divergence, int64_t count, double beta, double *rewards)
{
    for (int64_t i = 0; i < count; i++)
        rewards[i] -= beta * divergence[i];
}

bool hd_advantage_is_flat(const double *rewards, int64_t group)
{
    double least = INFINITY, most = -INFINITY;

    for (int64_t i = 0; i < group; i++) {
        least = fmin(least, rewards[i]); /* fmin and fmax leave NaN out */
        most = fmax(most, rewards[i]);
    }
    return !(most > least);
}

void hd_advantages(const double *rewards, int64_t count, int64_t group,
                   enum hd_advantage_scale scale, bool leave_one_out, float *ret_advantages,
                   struct hd_reward_numbers *ret_numbers)
{
    const struct reward_spread all = reward_spread_of(rewards, count);
    int64_t flat = 0;
    double std = 0;

    for (int64_t at = 0; at < count; at += group) {
        const bool is_flat = hd_advantage_is_flat(rewards + at, group);
        const struct reward_spread own = reward_spread_of(rewards + at, group);
        double factor = 1;

        flat += is_flat;
        std += own.std;
        if (leave_one_out) /* R - (n m - R) / (n - 1) = (R - m) n / (n - 1) */
            factor = own.count > 1 ? (double)own.count / (double)(own.count - 1) : 0;
        else if (scale != HD_ADVANTAGE_NONE)
            factor = 1 / ((scale == HD_ADVANTAGE_GROUP ? own.std : all.std) + std_floor);
        for (int64_t i = at; i < at + group; i++)
            ret_advantages[i] =
                is_flat || isnan(rewards[i]) ? 0 : (float)((rewards[i] - own.mean) * factor);
    }
    *ret_numbers = (struct hd_reward_numbers){
        .mean = all.mean,
        .std = count ? std * (double)group / (double)count : 0,
        .zero_std = count ? (double)flat * (double)group / (double)count : 0,
        .missing = count - all.count,
    };
}

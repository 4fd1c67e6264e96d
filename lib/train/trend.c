#include "train/trend.h"

#include <math.h>

void hd_trend_add(struct hd_trend *t, int64_t step, double loss, double grad_norm)
{
    const int64_t at = t->steps % HD_TREND_STEPS;

    if (!isfinite(loss)) /* a run that diverges to NaN is detected by its gradients */
        return;
    if (t->steps == 0 || loss < t->lowest) {
        t->lowest = loss;
        t->lowest_step = step;
    }
    t->last = loss;
    t->losses[at] = loss;
    t->grad_norms[at] = grad_norm;
    t->steps++;
}

struct spread {
    double least, most;
    bool no_gradient;
};

/* Returns the smallest and the largest loss of the last `count` steps, 1 to HD_TREND_STEPS, and
 * whether every gradient was 0. */
static struct spread spread_of(const struct hd_trend *t, int64_t count)
{
    struct spread s = {t->last, t->last, true};

    for (int64_t i = t->steps - count; i < t->steps; i++) {
        const int64_t at = i % HD_TREND_STEPS;

        s.least = fmin(s.least, t->losses[at]);
        s.most = fmax(s.most, t->losses[at]);
        s.no_gradient &= t->grad_norms[at] == 0;
    }
    return s;
}

/* Returns true if `least`, the smallest loss, is at ln V or above, as from a model that guesses;
 * allows for fp32 sums, whose result for many equal losses is not exactly ln V. */
static bool is_guessing(double least, double ln_vocab)
{
    return least >= 0.999 * ln_vocab;
}

bool hd_trend_is_stuck(const struct hd_trend *t, int64_t vocab)
{
    const double ln_vocab = log((double)vocab);
    struct spread s;

    if (t->steps < HD_TREND_STEPS)
        return false;
    s = spread_of(t, HD_TREND_STEPS);
    if (!s.no_gradient && s.most - s.least > 1e-6 * s.least)
        return false;
    return is_guessing(s.least, ln_vocab) || s.least > t->lowest + 0.1 * ln_vocab;
}

bool hd_trend_is_lost(const struct hd_trend *t, int64_t vocab)
{
    const double ln_vocab = log((double)vocab);
    const int64_t half = (t->steps + 1) / 2;
    struct spread s;

    if (t->steps < 2) /* a comparison needs two steps */
        return false;
    s = spread_of(t, half < HD_TREND_STEPS ? half : HD_TREND_STEPS);
    return is_guessing(s.least, ln_vocab) && s.least > t->lowest + 0.1 * ln_vocab;
}

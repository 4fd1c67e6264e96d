#include "generate/speculate.h"

static double total_of(const float *weights, int64_t V)
{
    double total = 0;

    for (int64_t v = 0; v < V; v++)
        total += (double)weights[v];
    return total;
}

int32_t hd_speculate_draw(const float *weights, int64_t V, double u)
{
    const double target = u * total_of(weights, V);
    double sum = 0;
    int32_t last = 0;

    for (int64_t v = 0; v < V; v++) {
        if (weights[v] <= 0)
            continue;
        last = (int32_t)v;
        sum += (double)weights[v];
        if (sum > target)
            return last;
    }
    return last; /* reached only by rounding errors */
}

/* Returns max(0, p - q) of one id, for distributions with these totals. */
static double rest_of(const double *p, const float *q, double p_total, double q_total, int64_t v)
{
    const double rest = p[v] / p_total - (double)q[v] / q_total;

    return rest > 0 ? rest : 0;
}

int32_t hd_speculate_token(const double *p, const float *q, int64_t V, int32_t draft, double accept,
                           double rest)
{
    const double q_total = total_of(q, V);
    double p_total = 0, sum = 0, target = 0;
    int32_t last = draft;

    for (int64_t v = 0; v < V; v++)
        p_total += p[v];
    if (accept * (double)q[draft] * p_total < p[draft] * q_total)
        return draft;
    for (int64_t v = 0; v < V; v++)
        target += rest_of(p, q, p_total, q_total, v);
    target *= rest;
    for (int64_t v = 0; v < V; v++) {
        const double more = rest_of(p, q, p_total, q_total, v);

        if (more <= 0)
            continue;
        last = (int32_t)v;
        sum += more;
        if (sum > target)
            return last;
    }
    return last; /* reached only by rounding errors */
}

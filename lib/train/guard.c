#include "train/guard.h"

#include <math.h>
#include <string.h>

#define DEVIATION_MIN 0.01 /* smallest standard deviation, as a fraction of the mean */

void hd_guard_init(const struct hd_job *job, struct hd_guard *ret_guard)
{
    *ret_guard = (struct hd_guard){.spike = job->guard_spike};
}

void hd_guard_add(struct hd_guard *guard, double loss, double norm)
{
    const int64_t at = guard->count++ % HD_GUARD_STEPS;

    guard->losses[at] = (float)loss;
    guard->norms[at] = (float)norm;
}

static double limit_of(const float *values, int64_t count, double spike)
{
    double sum = 0, squares = 0, mean, deviation;

    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i];
    mean = sum / (double)count;
    for (int64_t i = 0; i < count; i++)
        squares += ((double)values[i] - mean) * ((double)values[i] - mean);
    deviation = sqrt(squares / (double)count);
    return mean + spike * fmax(deviation, DEVIATION_MIN * fabs(mean));
}

struct hd_guard_limits hd_guard_get_limits(const struct hd_guard *guard)
{
    const int64_t count = guard->count < HD_GUARD_STEPS ? guard->count : HD_GUARD_STEPS;

    if (!(guard->spike > 0) || count < HD_GUARD_STEPS_MIN)
        return (struct hd_guard_limits){0, 0};
    return (struct hd_guard_limits){limit_of(guard->losses, count, guard->spike),
                                    limit_of(guard->norms, count, guard->spike)};
}

int64_t hd_guard_pack(const struct hd_guard *guard, int i)
{
    uint32_t loss, norm;
    uint64_t both;
    int64_t packed;

    memcpy(&loss, &guard->losses[i], sizeof loss);
    memcpy(&norm, &guard->norms[i], sizeof norm);
    both = (uint64_t)loss << 32 | norm;
    memcpy(&packed, &both, sizeof packed);
    return packed;
}

void hd_guard_unpack(struct hd_guard *guard, int i, int64_t packed)
{
    uint64_t both;
    uint32_t loss, norm;

    memcpy(&both, &packed, sizeof both);
    loss = (uint32_t)(both >> 32);
    norm = (uint32_t)both;
    memcpy(&guard->losses[i], &loss, sizeof loss);
    memcpy(&guard->norms[i], &norm, sizeof norm);
}

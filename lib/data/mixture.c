#include "data/mixture.h"

#include <assert.h>

#include "base/random.h"

void hd_mixture_init(struct hd_mixture *ret_mixture, const double *weights, int64_t count,
                     uint64_t seed)
{
    const uint64_t key = hd_random_key(seed, hd_random_hash("mixture"));
    struct hd_mixture m = {.count = count};
    uint64_t left = UINT64_C(1) << 32;
    int64_t largest = 0;
    double sum = 0;

    assert(count >= 1 && count <= HD_MIXTURE_SOURCES_MAX);
    for (int64_t k = 0; k < count; k++)
        sum += weights[k];
    for (int64_t k = 0; k < count; k++) {
        m.share[k] = (uint64_t)(weights[k] / sum * (0x1p32 - (double)count)) + 1; /* at least 1 */
        m.phase[k] = (hd_random_u64(key, (uint64_t)k) >> 32) | 1;
        left -= m.share[k];
        largest = weights[k] > weights[largest] ? k : largest;
    }
    m.share[largest] += left;
    *ret_mixture = m;
}

/* Returns the number of samples of source k that are due at `time` or earlier: floor((time * share
 * - phase) / 2^32) + 1, with a 64-bit product in two halves. One unit of time is one sample on
 * average. */
static int64_t due(const struct hd_mixture *m, int64_t k, int64_t time)
{
    const uint64_t t = (uint64_t)time, low = (t & UINT32_MAX) * m->share[k];
    const int64_t high = (int64_t)((t >> 32) * m->share[k]);

    return low >= m->phase[k] ? high + (int64_t)((low - m->phase[k]) >> 32) + 1 : high;
}

static int64_t all_due(const struct hd_mixture *m, int64_t time)
{
    int64_t sum = 0;

    for (int64_t k = 0; k < m->count; k++)
        sum += due(m, k, time);
    return sum;
}

/* Returns the first time at which more than `id` samples are due. A binary search: all_due(t)
 * differs from t by at most K, the number of sources. */
static int64_t time_of(const struct hd_mixture *m, int64_t id)
{
    int64_t lo = id > m->count ? id - m->count : 0, hi = id + m->count + 1;

    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;

        if (all_due(m, middle) > id)
            hi = middle;
        else
            lo = middle + 1;
    }
    return lo;
}

int64_t hd_mixture_source(const struct hd_mixture *m, int64_t id, int64_t *ret_number)
{
    const int64_t time = time_of(m, id);
    /* number of samples of all sources that are due before this unit of time */
    int64_t before = time > 0 ? all_due(m, time - 1) : 0;

    for (int64_t k = 0; k < m->count; k++) {
        const int64_t number = time > 0 ? due(m, k, time - 1) : 0;

        if (due(m, k, time) > number && before++ == id) {
            *ret_number = number;
            return k;
        }
    }
    assert(!"unreachable: the sample is due in this unit of time");
    return 0;
}

int64_t hd_mixture_count(const struct hd_mixture *m, int64_t id, int64_t source)
{
    const int64_t time = time_of(m, id);
    int64_t before = time > 0 ? all_due(m, time - 1) : 0;

    for (int64_t k = 0; k < m->count && before < id; k++) {
        const int64_t number = time > 0 ? due(m, k, time - 1) : 0;

        if (due(m, k, time) == number)
            continue;
        before++;
        if (k == source)
            return number + 1;
    }
    return time > 0 ? due(m, source, time - 1) : 0;
}

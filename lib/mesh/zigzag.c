#include "mesh/zigzag.h"

/* The two ranges of positions of a sequence that a context-parallel rank holds; with P = 1 ranks
 * the second is empty. */
struct runs {
    int64_t begin[2], end[2];
};

static struct runs runs_of(const struct hd_zigzag *z)
{
    const int64_t chunk = z->P == 1 ? z->S : z->S / (2 * z->P), last = 2 * z->P - 1 - z->rank;

    if (z->P == 1)
        return (struct runs){{0, z->S}, {z->S, z->S}};
    return (struct runs){{z->rank * chunk, last * chunk},
                         {(z->rank + 1) * chunk, (last + 1) * chunk}};
}

int64_t hd_zigzag_rows(const struct hd_zigzag *z)
{
    return z->S / z->P;
}

int64_t hd_zigzag_position(const struct hd_zigzag *z, int64_t row)
{
    const struct runs r = runs_of(z);
    const int64_t first = r.end[0] - r.begin[0];

    return row < first ? r.begin[0] + row : r.begin[1] + row - first;
}

/* Returns the number of pairs of a query position q from begin to end - 1 and a key position k >=
 * `key` with k <= q: the sum of max(0, p - key) over p from begin + 1 to end. */
static int64_t beyond(int64_t begin, int64_t end, int64_t key)
{
    const int64_t from = begin > key ? begin - key : 0, to = end > key ? end - key : 0;

    return to * (to + 1) / 2 - from * (from + 1) / 2;
}

/* Returns the number of pairs of a query position q from begin to end - 1 and a key position k from
 * low to high - 1 with k < q + 1 - back. */
static int64_t pairs_before(int64_t begin, int64_t end, int64_t back, int64_t low, int64_t high)
{
    return beyond(begin - back, end - back, low) - beyond(begin - back, end - back, high);
}

int64_t hd_zigzag_pairs(const struct hd_zigzag *queries, const struct hd_zigzag *keys, bool causal,
                        int64_t window)
{
    const struct runs q = runs_of(queries), k = runs_of(keys);
    int64_t pairs = 0;

    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            pairs += causal ? pairs_before(q.begin[i], q.end[i], 0, k.begin[j], k.end[j])
                            : (q.end[i] - q.begin[i]) * (k.end[j] - k.begin[j]);
            if (window > 0) /* subtract the pairs whose key is outside of the query's window */
                pairs -= pairs_before(q.begin[i], q.end[i], window, k.begin[j], k.end[j]);
        }
    return pairs;
}

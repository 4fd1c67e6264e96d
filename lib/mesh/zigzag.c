#include "mesh/zigzag.h"

/* The two ranges of positions that a rank holds; if P = 1 the second is empty. */
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

static int64_t overlap(int64_t begin, int64_t end, int64_t low, int64_t high)
{
    begin = begin > low ? begin : low;
    end = end < high ? end : high;
    return end > begin ? end - begin : 0;
}

int64_t hd_zigzag_pairs(const struct hd_zigzag *queries, const struct hd_zigzag *keys, bool causal,
                        int64_t window)
{
    const struct runs k = runs_of(keys);
    int64_t pairs = 0;

    for (int64_t row = 0; row < hd_zigzag_rows(queries); row++) {
        const int64_t q = hd_zigzag_position(queries, row);
        const int64_t low = window > 0 ? q - window + 1 : 0, high = causal ? q + 1 : queries->S;

        for (int i = 0; i < 2; i++)
            pairs += overlap(k.begin[i], k.end[i], low, high);
    }
    return pairs;
}

#include "train/sample.h"

#include <math.h>
#include <stdbool.h>

#include "base/random.h"

static int32_t most_likely(const float *logits, int64_t V)
{
    int64_t best = 0;

    for (int64_t v = 1; v < V; v++)
        if (logits[v] > logits[best])
            best = v;
    return (int32_t)best;
}

/* Returns true if id a ranks before id b: it has the larger logit, or an equal one and is the
 * smaller id. */
static bool before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

/* Moves order[root] down in a heap whose root ranks before all others. */
static void sift(const float *logits, int32_t *order, int64_t root, int64_t count)
{
    for (int64_t child = 2 * root + 1; child < count; child = 2 * root + 1) {
        const int32_t found = order[root];

        if (child + 1 < count && before(logits, order[child + 1], order[child]))
            child++;
        if (!before(logits, order[child], found))
            return;
        order[root] = order[child];
        order[child] = found;
        root = child;
    }
}

static void build_heap(const float *logits, int64_t V, int32_t *order)
{
    for (int64_t v = 0; v < V; v++)
        order[v] = (int32_t)v;
    for (int64_t root = V / 2 - 1; root >= 0; root--)
        sift(logits, order, root, V);
}

/* Ranking of ids by logit, computed lazily: most samples need few ids, and sorting a vocabulary of
 * 150,000 takes longer than a small model's step. */
struct ranking {
    const float *logits;
    int32_t *order; /* [0, V - taken): a heap; behind it the ids taken, in reverse order */
    int64_t V, taken;
};

/* Returns the id of rank i, counted from 0 (the most likely id). */
static int32_t ranked(struct ranking *r, int64_t i)
{
    for (; r->taken <= i; r->taken++) {
        const int64_t last = r->V - r->taken - 1;
        const int32_t next = r->order[0];

        r->order[0] = r->order[last];
        r->order[last] = next;
        sift(r->logits, r->order, 0, last);
    }
    return r->order[r->V - 1 - i];
}

/* Returns the weight of an id, e^((logit - largest) / temperature). */
static double weight_of(const float *logits, const struct hd_sampling *s, double largest,
                        int32_t id)
{
    return exp(((double)logits[id] - largest) / s->temperature);
}

/* Returns the number of ids among which the settings sample, the ids of the first ranks, and sets
 * *ret_total to the sum of their weights. */
static int64_t count_candidates(struct ranking *r, const struct hd_sampling *s, double largest,
                                double *ret_total)
{
    const bool few = s->top_k > 0 && s->top_k < r->V;
    int64_t count = few ? s->top_k : r->V;
    double total = 0, kept = 0;

    for (int64_t i = 0; i < count; i++)
        total += weight_of(r->logits, s, largest, few ? ranked(r, i) : (int32_t)i);
    if (s->top_p < 1) {
        const int64_t all = count;

        for (count = 0; count < all && (count == 0 || kept < s->top_p * total); count++)
            kept += weight_of(r->logits, s, largest, ranked(r, count));
        total = kept;
    }
    *ret_total = total;
    return count;
}

int32_t hd_sample_token(const float *logits, int64_t V, const struct hd_sampling *s, uint64_t index,
                        int32_t *order)
{
    struct ranking r = {.logits = logits, .order = order, .V = V};
    double total, target, largest;
    int64_t count;

    if (s->temperature <= 0)
        return most_likely(logits, V);
    build_heap(logits, V, order);
    largest = (double)logits[order[0]];
    count = count_candidates(&r, s, largest, &total);
    target = hd_random_uniform(hd_random_key(s->seed, hd_random_hash("sample")), index) * total;
    for (int64_t i = 0; i < count; i++) {
        target -= weight_of(logits, s, largest, ranked(&r, i));
        if (target < 0)
            return ranked(&r, i);
    }
    return ranked(&r, count - 1); /* reached only by rounding errors */
}

void hd_sample_weights(const float *logits, int64_t V, const struct hd_sampling *s, int32_t *order,
                       double *ret_weights)
{
    struct ranking r = {.logits = logits, .order = order, .V = V};
    double total, largest;
    int64_t count;

    build_heap(logits, V, order);
    largest = (double)logits[order[0]];
    count = count_candidates(&r, s, largest, &total);
    for (int64_t v = 0; v < V; v++)
        ret_weights[v] = count < V ? 0 : weight_of(logits, s, largest, (int32_t)v);
    for (int64_t i = 0; count < V && i < count; i++)
        ret_weights[ranked(&r, i)] = weight_of(logits, s, largest, ranked(&r, i));
}

double hd_sample_norm(const float *logits, int64_t V)
{
    const double largest = (double)logits[most_likely(logits, V)];
    double sum = 0;

    for (int64_t v = 0; v < V; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum);
}

void hd_sample_top(const float *logits, int64_t V, int count, int32_t *ret_ids)
{
    int found = 0;

    for (int64_t v = 0; v < V; v++) {
        int at = found < count ? found : count;

        if (at == count && (count == 0 || !before(logits, (int32_t)v, ret_ids[count - 1])))
            continue;
        if (found < count)
            found++;
        else
            at = count - 1;
        for (; at > 0 && before(logits, (int32_t)v, ret_ids[at - 1]); at--)
            ret_ids[at] = ret_ids[at - 1];
        ret_ids[at] = (int32_t)v;
    }
}

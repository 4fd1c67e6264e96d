/* sample: the next token from logits. */
#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "train/generate.h"

static int32_t most_likely(const float *logits, int64_t V)
{
    int64_t best = 0;

    for (int64_t v = 1; v < V; v++)
        if (logits[v] > logits[best])
            best = v;
    return (int32_t)best;
}

/* a before b: larger logit, then smaller id. */
static int before(const float *logits, int32_t a, int32_t b)
{
    if (logits[a] != logits[b])
        return logits[a] > logits[b];
    return a < b;
}

/* Moves order[root] down in a heap whose root is the last element of the order. */
static void sift(const float *logits, int32_t *order, int64_t root, int64_t count)
{
    for (int64_t child = 2 * root + 1; child < count; child = 2 * root + 1) {
        int32_t held = order[root];

        if (child + 1 < count && before(logits, order[child], order[child + 1]))
            child++;
        if (!before(logits, held, order[child]))
            return;
        order[root] = order[child];
        order[child] = held;
        root = child;
    }
}

/* Heap sort, most likely first: no memory, no recursion, equal results on every platform. */
static void sort_by_logit(const float *logits, int64_t V, int32_t *order)
{
    for (int64_t v = 0; v < V; v++)
        order[v] = (int32_t)v;
    for (int64_t root = V / 2 - 1; root >= 0; root--)
        sift(logits, order, root, V);
    for (int64_t end = V - 1; end > 0; end--) {
        int32_t held = order[0];

        order[0] = order[end];
        order[end] = held;
        sift(logits, order, 0, end);
    }
}

int32_t hd_sample(const float *logits, int64_t V, const struct hd_sampling *s, uint64_t index,
                  int32_t *order)
{
    double total = 0, kept = 0, target, largest;
    int64_t count = V, most;

    if (s->temperature <= 0)
        return most_likely(logits, V);
    sort_by_logit(logits, V, order);
    if (s->top_k > 0 && s->top_k < V)
        count = s->top_k;
    largest = (double)logits[order[0]];
    for (int64_t i = 0; i < count; i++)
        total += exp(((double)logits[order[i]] - largest) / s->temperature);
    for (most = 0; most < count && kept < s->top_p * total; most++)
        kept += exp(((double)logits[order[most]] - largest) / s->temperature);
    if (most == 0) /* the most likely token is always allowed */
        most = 1, kept = 1;
    target = hd_random_uniform(hd_random_key(s->seed, hd_random_hash("sample")), index) * kept;
    for (int64_t i = 0; i < most; i++) {
        target -= exp(((double)logits[order[i]] - largest) / s->temperature);
        if (target < 0)
            return order[i];
    }
    return order[most - 1]; /* reached only by rounding errors */
}

/* bigram: counts the pairs of adjacent tokens in a growing hash table, as far fewer than V * V
 * pairs occur. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/pieces.h"
#include "data/data_internal.h"

enum { READ_TOKENS = HD_PIECE(4096, 37), FIRST_CAPACITY = 1 << 12 };

struct bigram_pair {
    uint64_t key;  /* token pair: before << 32 | token */
    int64_t count; /* occurrences of the pair; 0: free slot */
};

struct hd_bigram {
    struct bigram_pair *pairs; /* hash table of n(a,b), open addressing */
    size_t capacity, used;     /* slots of the hash table (a power of two); used slots */
    int64_t *before;           /* [V] n(a) = sum_b n(a,b): pairs that begin with a token */
    int64_t *single;           /* [V] n(b): occurrences of a token */
    int64_t total, vocab;      /* N, number of tokens counted; V, size of the vocabulary */
};

static struct bigram_pair *find_bigram(struct bigram_pair *pairs, size_t capacity, uint64_t key)
{
    uint64_t hash = key * UINT64_C(0x9E3779B97F4A7C15); /* Fibonacci hashing */
    size_t at = (size_t)(hash >> 20) & (capacity - 1);

    while (pairs[at].count && pairs[at].key != key)
        at = (at + 1) & (capacity - 1);
    return &pairs[at];
}

static enum hd_status grow(struct hd_bigram *m)
{
    const size_t capacity = 2 * m->capacity;
    struct bigram_pair *pairs = calloc(capacity, sizeof *pairs);

    if (!pairs)
        return hd_err(HD_NO_MEMORY, "no memory for %zu pairs of tokens", m->used);
    for (size_t i = 0; i < m->capacity; i++)
        if (m->pairs[i].count)
            *find_bigram(pairs, capacity, m->pairs[i].key) = m->pairs[i];
    free(m->pairs);
    m->pairs = pairs;
    m->capacity = capacity;
    return HD_OK;
}

static enum hd_status count_bigram(struct hd_bigram *m, int32_t before, int32_t token)
{
    const uint64_t key = (uint64_t)before << 32 | (uint32_t)token;
    struct bigram_pair *p = find_bigram(m->pairs, m->capacity, key);
    enum hd_status st;

    if (!p->count) {
        st = 4 * ++m->used > 3 * m->capacity ? grow(m) : HD_OK;
        if (st)
            return st;
        p = find_bigram(m->pairs, m->capacity, key);
        p->key = key;
    }
    p->count++;
    m->before[before]++;
    return HD_OK;
}

/* Counts each token of the training range, and each pair of a token and its target. */
static enum hd_status count_range(struct hd_bigram *m, struct hd_data_range range)
{
    struct hd_document_walk walk = hd_document_walk_run(range.corpus, range.first);
    int32_t tokens[READ_TOKENS], before = -1;
    enum hd_status st = HD_OK;

    for (int64_t done = 0; !st && done < range.count; done += READ_TOKENS) {
        const int64_t left = range.count - done, n = left < READ_TOKENS ? left : READ_TOKENS;

        st = hd_corpus_read(range.corpus, range.first + done, n, tokens);
        for (int64_t i = 0; !st && i < n; i++) {
            if (tokens[i] >= m->vocab)
                return hd_err(HD_INVALID, "token id %d is outside 0 to %" PRId64, (int)tokens[i],
                              m->vocab - 1);
            m->single[tokens[i]]++;
            if (before >= 0)
                st = count_bigram(m, before, tokens[i]);
            before = hd_document_walk_ends(&walk, tokens[i]) ? -1 : tokens[i];
        }
    }
    return st;
}

enum hd_status hd_bigram_fit(struct hd_data_range train, int64_t vocab,
                             struct hd_bigram **ret_bigram)
{
    struct hd_bigram *m;
    enum hd_status st = HD_OK;

    if (train.count < 1)
        return hd_err(HD_INVALID, "a bigram model needs at least one token of text");
    m = calloc(1, sizeof *m);
    if (!m)
        return hd_err(HD_NO_MEMORY, "no memory for a bigram model");
    *m = (struct hd_bigram){.pairs = calloc(FIRST_CAPACITY, sizeof *m->pairs),
                            .capacity = FIRST_CAPACITY,
                            .before = calloc((size_t)vocab, sizeof *m->before),
                            .single = calloc((size_t)vocab, sizeof *m->single),
                            .total = train.count,
                            .vocab = vocab};
    if (!m->pairs || !m->before || !m->single)
        st = hd_err(HD_NO_MEMORY, "no memory for the counts of a bigram model");
    if (!st)
        st = count_range(m, train);
    if (st)
        hd_bigram_free(m);
    else
        *ret_bigram = m;
    return st;
}

void hd_bigram_free(struct hd_bigram *m)
{
    if (!m)
        return;
    free(m->pairs);
    free(m->before);
    free(m->single);
    free(m);
}

double hd_bigram_probability(const struct hd_bigram *m, int32_t before, int32_t token)
{
    const double single = ((double)m->single[token] + 1) / ((double)m->total + (double)m->vocab);
    const struct bigram_pair *p =
        find_bigram(m->pairs, m->capacity, (uint64_t)before << 32 | (uint32_t)token);

    return ((double)p->count + single) / ((double)m->before[before] + 1);
}

enum hd_status hd_bigram_entropy(const struct hd_bigram *m, const struct hd_validation *validation,
                                 double *ret_nats)
{
    const int64_t S = validation->context;
    struct hd_data_batch row = {.tokens = calloc((size_t)S, sizeof *row.tokens),
                                .targets = calloc((size_t)S, sizeof *row.targets)};
    enum hd_status st = HD_OK;
    int64_t targets = 0;
    double sum = 0;

    if (!row.tokens || !row.targets)
        st = hd_err(HD_NO_MEMORY, "no memory for a validation window");
    for (int64_t w = 0; !st && w < validation->window_count; w++) {
        st = hd_validation_fill(validation, w, 1, &row);
        for (int64_t j = 0; !st && j < S; j++) {
            if (row.targets[j] == HD_DATA_TARGET_NONE)
                continue;
            if (row.tokens[j] >= m->vocab || row.targets[j] >= m->vocab) {
                st = hd_err(HD_INVALID, "a token id of the validation data is not below %" PRId64,
                            m->vocab);
                break;
            }
            sum -= log(hd_bigram_probability(m, row.tokens[j], row.targets[j]));
            targets++;
        }
    }
    free(row.tokens);
    free(row.targets);
    if (!st && !targets)
        st = hd_err(HD_INVALID, "the validation data has no target");
    if (!st)
        *ret_nats = sum / (double)targets;
    return st;
}

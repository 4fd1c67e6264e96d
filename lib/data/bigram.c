#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "data/data_internal.h"

enum { BYTES = 256 };

struct hd_bigram {
    int64_t pair[BYTES][BYTES]; /* n(a,b): b follows a */
    int64_t before[BYTES];      /* n(a) = sum_b n(a,b) */
    int64_t single[BYTES];      /* n(b) */
    int64_t total;              /* N    */
};

/* pair[a][b] += 1 for each neighbouring a, b of [first, first + count). */
static void count_pairs(struct hd_data_range range, int64_t pair[BYTES][BYTES])
{
    int64_t done = 0;
    int before = -1;

    while (done < range.count) {
        int64_t n;
        const unsigned char *bytes =
            hd_corpus_span(range.corpus, range.first + done, range.count - done, &n);

        for (int64_t i = 0; i < n; i++) {
            if (before >= 0)
                pair[before][bytes[i]]++;
            before = bytes[i];
        }
        done += n;
    }
}

enum hd_status hd_bigram_fit(struct hd_data_range train, struct hd_bigram **ret_bigram)
{
    struct hd_bigram *model;
    int64_t n;

    if (train.count < 1)
        return hd_err(HD_INVALID, "a bigram model needs at least one byte of text");
    model = calloc(1, sizeof *model);
    if (!model)
        return hd_err(HD_NO_MEMORY, "no memory for the counts of a bigram model");
    count_pairs(train, model->pair);
    for (int a = 0; a < BYTES; a++)
        for (int b = 0; b < BYTES; b++) {
            model->before[a] += model->pair[a][b];
            model->single[b] += model->pair[a][b];
        }
    model->single[*hd_corpus_span(train.corpus, train.first, 1, &n)]++; /* it follows nothing */
    model->total = train.count;
    *ret_bigram = model;
    return HD_OK;
}

void hd_bigram_free(struct hd_bigram *bigram)
{
    free(bigram);
}

double hd_bigram_probability(const struct hd_bigram *bigram, unsigned char before,
                             unsigned char byte)
{
    const double single = ((double)bigram->single[byte] + 1) / ((double)bigram->total + BYTES);

    return ((double)bigram->pair[before][byte] + single) / ((double)bigram->before[before] + 1);
}

/* The targets of all windows are one stretch of text, each seen after the byte before it; so the
 * counts of its pairs say all, and each pair's logarithm is taken once. */
enum hd_status hd_bigram_entropy(const struct hd_bigram *bigram,
                                 const struct hd_validation *validation, double *ret_nats)
{
    struct hd_data_range range = validation->range;
    int64_t(*seen)[BYTES] = calloc(BYTES, sizeof *seen);
    double sum = 0;

    if (!seen)
        return hd_err(HD_NO_MEMORY, "no memory for the pairs of the validation text");
    range.count = validation->window_count * validation->context + 1;
    count_pairs(range, seen);
    for (int a = 0; a < BYTES; a++)
        for (int b = 0; b < BYTES; b++)
            if (seen[a][b])
                sum -= (double)seen[a][b] *
                       log(hd_bigram_probability(bigram, (unsigned char)a, (unsigned char)b));
    free(seen);
    *ret_nats = sum / (double)(range.count - 1);
    return HD_OK;
}

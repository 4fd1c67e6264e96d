#include "job/batch_spans.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { BATCH_MAX = 1 << 24 };                      /* the limit of train.global_batch */
static const double TOKENS_MAX = 0x1p60;           /* a limit for the arithmetic */
static const int64_t STEPS_MAX = INT64_C(1) << 37; /* STEPS_MAX * BATCH_MAX is 2^61 */

struct hd_batch_spans hd_batch_spans_even(int64_t batch)
{
    return (struct hd_batch_spans){1, {{0, batch, 0}}};
}

/* ---- the text ---- */

/* Returns the factor of a suffix of tokens; 0: it is none. */
static double factor_of(char suffix)
{
    switch (suffix) {
    case 'K':
        return 1e3;
    case 'M':
        return 1e6;
    case 'B':
        return 1e9;
    case 'T':
        return 1e12;
    default:
        return 0;
    }
}

/* Reads "BEGIN:BATCH". *ret_tokens: the begin in tokens; below 0: *ret_steps has it. */
static bool read_entry(const char *text, size_t len, int64_t *ret_steps, double *ret_tokens,
                       int64_t *ret_batch)
{
    char copy[64], *colon, *end;
    double factor;

    if (len >= sizeof copy)
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    colon = strchr(copy, ':');
    if (!colon || colon == copy)
        return false;
    *colon = '\0';
    if (hd_text_to_int64(colon + 1, 1, BATCH_MAX, ret_batch))
        return false;
    *ret_tokens = -1;
    factor = factor_of(colon[-1]);
    if (factor == 0)
        return hd_text_to_int64(copy, 0, STEPS_MAX, ret_steps) == HD_OK;
    colon[-1] = '\0';
    *ret_tokens = strtod(copy, &end) * factor;
    return end != copy && !*end && *ret_tokens > 0 && *ret_tokens <= TOKENS_MAX;
}

/* Returns the first step of a new span behind `spans` that begins after so many tokens. */
static int64_t step_after(const struct hd_batch_spans *spans, double tokens, int64_t context)
{
    return hd_batch_spans_steps(spans, (int64_t)ceil(tokens / (double)(context > 0 ? context : 1)));
}

static enum hd_status add_entry(struct hd_batch_spans *spans, const char *text, size_t len,
                                int64_t context)
{
    struct hd_batch_span *span = &spans->list[spans->count];
    double tokens;

    if (spans->count == HD_BATCH_SPANS_MAX)
        return hd_err(HD_INVALID, "more than %d spans", HD_BATCH_SPANS_MAX);
    if (!read_entry(text, len, &span->first_step, &tokens, &span->batch))
        return hd_err(HD_INVALID,
                      "'%.*s' is no span; write STEP:SEQUENCES, or TOKENS:SEQUENCES with a suffix "
                      "K, M, B or T behind the tokens, such as \"0:256 10B:512\"",
                      len > 60 ? 60 : (int)len, text);
    if (tokens >= 0 && spans->count)
        span->first_step = step_after(spans, tokens, context);
    if (!spans->count && (tokens >= 0 || span->first_step))
        return hd_err(HD_INVALID, "the first span begins at step 0: write 0:%lld",
                      (long long)span->batch);
    if (spans->count && (span->first_step <= span[-1].first_step || span->first_step > STEPS_MAX))
        return hd_err(
            HD_INVALID,
            "'%.*s' begins at step %lld, and the span before at step %lld; let each begin "
            "after the one before",
            (int)len, text, (long long)span->first_step, (long long)span[-1].first_step);
    span->first_sample = spans->count ? hd_batch_spans_before(spans, span->first_step) : 0;
    spans->count++;
    return HD_OK;
}

enum hd_status hd_batch_spans_read(const char *text, int64_t context,
                                   struct hd_batch_spans *ret_spans)
{
    static const char between[] = " ,\t";
    struct hd_batch_spans spans = {0};
    enum hd_status st = HD_OK;

    for (const char *at = text + strspn(text, between); *at && !st; at += strspn(at, between)) {
        const size_t len = strcspn(at, between);

        st = add_entry(&spans, at, len, context);
        at += len;
    }
    if (!st && !spans.count)
        st = hd_err(HD_INVALID, "has no span; write STEP:SEQUENCES, such as \"0:256 1000:512\"");
    if (!st)
        *ret_spans = spans;
    return st;
}

struct hd_batch_spans hd_job_batch_spans(const struct hd_job *job)
{
    struct hd_batch_spans spans;

    if (!*job->batch_schedule || hd_batch_spans_read(job->batch_schedule, job->context, &spans))
        return hd_batch_spans_even(job->global_batch);
    return spans;
}

/* ---- closed forms ---- */

static const struct hd_batch_span *find_step(const struct hd_batch_spans *spans, int64_t step)
{
    const struct hd_batch_span *span = &spans->list[spans->count - 1];

    assert(step >= 0 && spans->count > 0);
    while (span->first_step > step)
        span--;
    return span;
}

int64_t hd_batch_spans_batch(const struct hd_batch_spans *spans, int64_t step)
{
    return find_step(spans, step)->batch;
}

int64_t hd_batch_spans_before(const struct hd_batch_spans *spans, int64_t step)
{
    const struct hd_batch_span *span = find_step(spans, step);

    return span->first_sample + (step - span->first_step) * span->batch;
}

int64_t hd_batch_spans_step_of(const struct hd_batch_spans *spans, int64_t sample)
{
    const struct hd_batch_span *span = &spans->list[spans->count - 1];

    assert(sample >= 0 && spans->count > 0);
    while (span->first_sample > sample)
        span--;
    return span->first_step + (sample - span->first_sample) / span->batch;
}

int64_t hd_batch_spans_steps(const struct hd_batch_spans *spans, int64_t samples)
{
    return samples > 0 ? hd_batch_spans_step_of(spans, samples - 1) + 1 : 0;
}

int64_t hd_batch_spans_largest(const struct hd_batch_spans *spans)
{
    int64_t largest = 0;

    for (int64_t k = 0; k < spans->count; k++)
        largest = spans->list[k].batch > largest ? spans->list[k].batch : largest;
    return largest;
}

int64_t hd_batch_spans_divisor(const struct hd_batch_spans *spans)
{
    int64_t divisor = 0;

    for (int64_t k = 0; k < spans->count; k++) {
        int64_t b = spans->list[k].batch;

        while (b) {
            const int64_t rest = divisor % b;

            divisor = b;
            b = rest;
        }
    }
    return divisor;
}

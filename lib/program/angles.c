/* angles: the frequencies of RoPE, the table of their angles, and the factors of queries by
 * position. */
#include <math.h>
#include <string.h>

#include "program/angles.h"

static const double pi = 3.14159265358979323846;

/* Returns the frequency of a pair by the three ranges of wavelength of HD_ROPE_LLAMA3
 * (angles.h). */
static double llama3(const struct hd_rope *rope, double frequency)
{
    const double length = 2 * pi / frequency;
    const double longest = rope->original_context / rope->low_freq_factor;
    const double shortest = rope->original_context / rope->high_freq_factor;
    double keep;

    if (length < shortest)
        return frequency;
    if (length > longest || longest <= shortest) /* Llama 4 Scout has equal bounds */
        return frequency / rope->factor;
    keep = (rope->original_context / length - rope->low_freq_factor) /
           (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - keep) * frequency / rope->factor + keep * frequency;
}

/* Returns the index of the pair, as a real number, that rotates `turns` times in the original
 * context; W channels rotate. */
static double yarn_pair(const struct hd_rope *rope, int64_t W, double turns)
{
    return (double)W * log(rope->original_context / (turns * 2 * pi)) / (2 * log(rope->theta));
}

/* Returns the frequency of pair i by HD_ROPE_YARN. The bounds of the interpolated range are indices
 * of pairs, rounded outward unless yarn_no_truncate. */
static double yarn(const struct hd_rope *rope, int64_t W, int64_t i, double frequency)
{
    double first = yarn_pair(rope, W, rope->beta_fast);
    double last = yarn_pair(rope, W, rope->beta_slow);
    double stretch;

    if (!rope->yarn_no_truncate) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, (double)(W - 1));
    if (last == first)
        last += 0.001; /* avoids a division by zero */
    stretch = fmin(fmax(((double)i - first) / (last - first), 0), 1);
    return stretch * frequency / rope->factor + (1 - stretch) * frequency;
}

/* Returns the attention factor by the rules of struct hd_rope. */
static double attention_factor(const struct hd_rope *rope)
{
    const double stretch = rope->factor > 1 ? log(rope->factor) : 0;

    if (rope->kind != HD_ROPE_YARN && rope->kind != HD_ROPE_LONGROPE)
        return 1;
    if (rope->attention_factor > 0)
        return rope->attention_factor;
    if (rope->kind == HD_ROPE_LONGROPE)
        return sqrt(1 + stretch / log(rope->original_context));
    if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        return (0.1 * rope->mscale * stretch + 1) / (0.1 * rope->mscale_all_dim * stretch + 1);
    return 0.1 * stretch + 1;
}

int64_t hd_rope_width(const struct hd_rope *rope, int64_t D)
{
    return rope->rotated > 0 ? rope->rotated : D;
}

double hd_rope_frequencies(const struct hd_rope *rope, int64_t D, double *ret_frequency)
{
    const int64_t W = hd_rope_width(rope, D);

    for (int64_t i = 0; i < W / 2; i++) {
        const double plain = pow(rope->theta, -2.0 * (double)i / (double)W);

        switch (rope->kind) {
        case HD_ROPE_NONE:
            ret_frequency[i] = plain;
            break;
        case HD_ROPE_LINEAR:
            ret_frequency[i] = plain / rope->factor;
            break;
        case HD_ROPE_LLAMA3:
            ret_frequency[i] = llama3(rope, plain);
            break;
        case HD_ROPE_YARN:
            ret_frequency[i] = yarn(rope, W, i, plain);
            break;
        case HD_ROPE_LONGROPE:
            ret_frequency[i] = plain / (double)rope->pair_factor[i];
            break;
        }
    }
    return attention_factor(rope);
}

bool hd_rope_equal(const struct hd_rope *a, const struct hd_rope *b)
{
    return a->kind == b->kind && a->rotated == b->rotated && a->first == b->first &&
           a->interleaved == b->interleaved && a->theta == b->theta && a->factor == b->factor &&
           a->original_context == b->original_context && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->yarn_no_truncate == b->yarn_no_truncate &&
           a->mscale == b->mscale && a->mscale_all_dim == b->mscale_all_dim &&
           a->attention_factor == b->attention_factor &&
           memcmp(a->pair_factor, b->pair_factor, sizeof a->pair_factor) == 0;
}

void hd_rope_fill(const struct hd_rope *rope, int64_t P, int64_t D, float *ret_table)
{
    double frequency[HD_ROPE_WIDTH_MAX / 2];
    const double factor = hd_rope_frequencies(rope, D, frequency);
    const int64_t W = hd_rope_width(rope, D);

    for (int64_t p = 0; p < P; p++)
        for (int64_t i = 0; i < W / 2; i++) {
            const double angle = (double)p * frequency[i];

            ret_table[p * W + 2 * i] = (float)(factor * cos(angle));
            ret_table[p * W + 2 * i + 1] = (float)(factor * sin(angle));
        }
}

void hd_query_factor_fill(const struct hd_query_factor *factor, int64_t P, float *ret_table)
{
    for (int64_t p = 0; p < P; p++)
        ret_table[p] =
            (float)(1 + factor->beta *
                            log1p(floor(((double)p + factor->floor_offset) / factor->original)));
}

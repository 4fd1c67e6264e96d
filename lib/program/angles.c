/* angles: the frequencies of RoPE and the table of their angles. */
#include <math.h>

#include "program/program.h"

static const double pi = 3.14159265358979323846;

/* Returns the frequency of a pair by the three ranges of wavelength of HD_ROPE_LLAMA3
 * (program.h). */
static double llama3(const struct hd_rope *rope, double frequency)
{
    const double length = 2 * pi / frequency;
    const double longest = rope->original_context / rope->low_freq_factor;
    const double shortest = rope->original_context / rope->high_freq_factor;
    double keep;

    if (length < shortest)
        return frequency;
    if (length > longest)
        return frequency / rope->factor;
    keep = (rope->original_context / length - rope->low_freq_factor) /
           (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - keep) * frequency / rope->factor + keep * frequency;
}

/* Returns the index of the pair, as a real number, that rotates `turns` times in the original
 * context. */
static double yarn_pair(const struct hd_rope *rope, int64_t D, double turns)
{
    return (double)D * log(rope->original_context / (turns * 2 * pi)) / (2 * log(rope->theta));
}

/* Returns the frequency of pair i by HD_ROPE_YARN. The bounds of the interpolated range are indices
 * of pairs, rounded outward. */
static double yarn(const struct hd_rope *rope, int64_t D, int64_t i, double frequency)
{
    const double first = fmax(floor(yarn_pair(rope, D, rope->beta_fast)), 0);
    double last = fmin(ceil(yarn_pair(rope, D, rope->beta_slow)), (double)(D - 1));
    double stretch;

    if (last == first)
        last += 0.001; /* avoids a division by zero */
    stretch = fmin(fmax(((double)i - first) / (last - first), 0), 1);
    return stretch * frequency / rope->factor + (1 - stretch) * frequency;
}

double hd_rope_frequencies(const struct hd_rope *rope, int64_t D, double *ret_frequency)
{
    for (int64_t i = 0; i < D / 2; i++) {
        const double plain = pow(rope->theta, -2.0 * (double)i / (double)D);

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
            ret_frequency[i] = yarn(rope, D, i, plain);
            break;
        }
    }
    if (rope->kind != HD_ROPE_YARN)
        return 1;
    return rope->attention_factor > 0 ? rope->attention_factor : 0.1 * log(rope->factor) + 1;
}

bool hd_rope_equal(const struct hd_rope *a, const struct hd_rope *b)
{
    return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor &&
           a->original_context == b->original_context && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->attention_factor == b->attention_factor;
}

void hd_rope_fill(const struct hd_rope *rope, int64_t P, int64_t D, float *ret_table)
{
    double frequency[HD_ROPE_WIDTH_MAX / 2];
    const double factor = hd_rope_frequencies(rope, D, frequency);

    for (int64_t p = 0; p < P; p++)
        for (int64_t i = 0; i < D / 2; i++) {
            const double angle = (double)p * frequency[i];

            ret_table[p * D + 2 * i] = (float)(factor * cos(angle));
            ret_table[p * D + 2 * i + 1] = (float)(factor * sin(angle));
        }
}

/* speculate: decides on a drafted token so that what is kept is distributed as if no draft had been
 * made (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"; Chen et
 * al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling").
 *
 * Distributions are given as weights, numbers >= 0 in proportion to the probabilities.
 *
 * Used by: drafts, tests.   Uses: nothing.   Threads: any; pure. */
#ifndef HD_GENERATE_SPECULATE_H
#define HD_GENERATE_SPECULATE_H

#include <stdint.h>

/* Returns the id at which the running sum of weights[V] exceeds u times their total: an id of the
 * distribution for a uniform u in [0, 1). */
int32_t hd_speculate_draw(const float *weights, int64_t V, double u);

/* Returns the token for a draft that was drawn from q, where the model's distribution is p: the draft
 * with probability min(1, p / q), else a token of the distribution max(0, p - q), scaled to 1. Then the
 * token has the distribution p. accept, rest: independent uniform numbers in [0, 1). */
int32_t hd_speculate_token(const double *p, const float *q, int64_t V, int32_t draft, double accept,
                           double rest);

#endif

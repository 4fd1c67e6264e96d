/* mixture: which of several weighted sources each sample of a run reads.
 *
 * Sample j of source k is due at time (j + u_k) / w_k: w_k its share, the shares sum to 1, u_k in
 * (0, 1) from the seed so that sources do not come in step. The samples of the run are those of all
 * sources in the order in which they are due, the lower source first where two are due together. So
 * in any stretch each source comes as often as its weight says, to within 2 + K w_k samples for K
 * sources, and the shares of a long run are exact to 2^-32, that of the arithmetic. There is no
 * state: which source sample g reads, and how many of each came before it, are functions of g.
 *
 * Used by: sampler.   Uses: base.   Threads: immutable after hd_mixture_init.
 */
#ifndef HD_DATA_MIXTURE_H
#define HD_DATA_MIXTURE_H

#include <stdint.h>

enum { HD_MIXTURE_SOURCES_MAX = 64 };

struct hd_mixture {
    int64_t count;
    uint64_t share[HD_MIXTURE_SOURCES_MAX]; /* w_k 2^32; their sum is 2^32 */
    uint64_t phase[HD_MIXTURE_SOURCES_MAX]; /* u_k 2^32 */
};

/* weights: `count` of them, at least 1, each finite and > 0; only their ratios count. */
void hd_mixture_init(struct hd_mixture *ret_mixture, const double *weights, int64_t count,
                     uint64_t seed);

/* The source of sample `id`; ret_number: how many samples of that source come before. */
int64_t hd_mixture_source(const struct hd_mixture *mixture, int64_t id, int64_t *ret_number);

/* How many of the samples 0 .. id - 1 are of `source`. */
int64_t hd_mixture_count(const struct hd_mixture *mixture, int64_t id, int64_t source);

#endif

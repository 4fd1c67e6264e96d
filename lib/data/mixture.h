/* mixture: chooses the source of each sample of a run among several weighted sources.
 *
 * Sample j of source k is due at time (j + u_k) / w_k. w_k is the source's share; the shares sum to
 * 1. u_k in (0, 1) is a random phase from the seed. The run takes the samples of all sources in the
 * order of due time, then of source. So in any interval the count of each source differs from its
 * share by at most 2 + K w_k samples (K sources), and long-run shares are exact to 2^-32. There is
 * no state: the source of sample g, and its number within that source, are functions of g.
 *
 * Used by: sampler.   Uses: base.   Threads: any; immutable after hd_mixture_init.
 */
#ifndef HD_DATA_MIXTURE_H
#define HD_DATA_MIXTURE_H

#include <stdint.h>

enum { HD_MIXTURE_SOURCES_MAX = 64 };

struct hd_mixture {
    int64_t count;
    uint64_t share[HD_MIXTURE_SOURCES_MAX]; /* w_k 2^32 of each source; the sum is 2^32 */
    uint64_t phase[HD_MIXTURE_SOURCES_MAX]; /* phase u_k of each source, times 2^32 */
};

/* Initialises a mixture. weights: [count], each finite and > 0; only their ratios matter. count >=
 * 1. */
void hd_mixture_init(struct hd_mixture *ret_mixture, const double *weights, int64_t count,
                     uint64_t seed);

/* Returns the index of the source of sample `id`; sets *ret_number to the number of earlier samples
 * of that source. */
int64_t hd_mixture_source(const struct hd_mixture *mixture, int64_t id, int64_t *ret_number);

/* Returns the number of samples of `source` among samples 0 .. id - 1. */
int64_t hd_mixture_count(const struct hd_mixture *mixture, int64_t id, int64_t source);

#endif

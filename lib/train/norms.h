/* norms: what magnitudes begin with (HD_INIT_NORMS; Liu et al. 2024, "DoRA"): the norms of a
 * weight's rows, of the values that compute: rounded to their encoding, or decoded from their
 * codes. Sums are in double, so a norm depends on the weight alone, not on the layout. Every rank
 * reads the rows of its share, whole, in pieces; a matrix in codes whole.
 *
 * Used by: the files of lib/train.   Uses: encoded.   Threads: the caller's.
 */
#ifndef HD_TRAIN_NORMS_H
#define HD_TRAIN_NORMS_H

#include "train/source.h"

/* Values of elements [first, first + count) of this rank's share of parameter `param`. source: of
 * the weight, see hd_whole_init. */
enum hd_status hd_norms_make(struct hd_source *source, const struct hd_registry *registry,
                             int param, uint64_t seed, int64_t first, int64_t count,
                             float *ret_values);

#endif

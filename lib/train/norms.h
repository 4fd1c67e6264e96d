/* norms: computes the initial values of magnitudes (HD_INIT_NORMS; Liu et al. 2024, "DoRA"): the
 * norms of a weight's rows. The norms are of the values that the programs compute with: rounded to
 * their encoding, or decoded from their codes. Sums are in double, so a norm depends on the weight
 * alone, not on the layout. Every rank reads the rows of its shard in pieces of whole rows; a
 * quantized matrix it reads whole.
 *
 * Used by: the files of lib/train.   Uses: encoded.   Threads: the caller's.
 */
#ifndef HD_TRAIN_NORMS_H
#define HD_TRAIN_NORMS_H

#include "train/source.h"

/* Computes initial values of parameter `param` (a magnitude), elements [first, first + count) of
 * this rank's shard, from the rows of the weight that it scales. The weight is read from `source`;
 * if source is NULL or lacks the weight, the weight's initial values are drawn by a seed, as in
 * hd_whole_init. */
enum hd_status hd_norms_make(struct hd_source *source, const struct hd_registry *registry,
                             int param, uint64_t seed, int64_t first, int64_t count,
                             float *ret_values);

#endif

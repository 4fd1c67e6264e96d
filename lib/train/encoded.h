/* encoded: makes the codes of a matrix (base/quant.h) from what a model is read from, or from the
 * seed. Every rank reads the whole matrix, in pieces, and keeps the codes of its box.
 *
 * Used by: the files of lib/train.   Uses: source, program (the registry).   Threads: the caller's.
 */
#ifndef HD_TRAIN_ENCODED_H
#define HD_TRAIN_ENCODED_H

#include "train/source.h"

/* The record of matrix `index` of this rank's (0, or that of an expert) of an encoded parameter.
 * source without the parameter: initial values by its seed; NULL: by `seed`. A folder whose
 * matrices are in the same codes is taken as it is. ret_record: hd_param.record_bytes. */
enum hd_status hd_encoded_make(struct hd_source *source, const struct hd_registry *registry,
                               int param, uint64_t seed, int64_t index, void *ret_record);

#endif

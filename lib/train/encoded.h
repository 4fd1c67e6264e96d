/* encoded: makes the codes of a matrix (base/quant.h) from what a model is read from, or from the
 * seed. Every rank reads the whole matrix, in pieces, and keeps the codes of its box.
 *
 * Used by: the files of lib/train.   Uses: source, program (the registry).   Threads: the caller's.
 */
#ifndef HD_TRAIN_ENCODED_H
#define HD_TRAIN_ENCODED_H

#include "train/source.h"

/* One matrix of a parameter, whole, as its values are read. */
struct hd_whole {
    struct hd_source *source; /* NULL: values by the seed */
    int number;               /* of the parameter */
    int64_t expert;           /* of a parameter of experts */
    uint64_t seed;
    struct hd_param param; /* as one rank alone would hold it */
};

/* Matrix `index` of this rank's (0, or that of an expert). source without the parameter: initial
 * values by its seed; NULL: by `seed`. */
void hd_whole_init(struct hd_whole *whole, struct hd_source *source,
                   const struct hd_registry *registry, int param, uint64_t seed, int64_t index);
/* Elements [first, first + count) of the matrix, row-major. context: a struct hd_whole. */
enum hd_status hd_whole_read(void *context, int64_t first, int64_t count, float *ret_values);

/* The record of a box of an encoded parameter's matrix. A folder whose matrices are in the same
 * codes is taken as it is. ret_record: as hd_quant_lay_out says, of any contents. */
enum hd_status hd_encoded_make_box(struct hd_whole *whole, const struct hd_quant_box *box,
                                   void *ret_record);
/* The same of this rank's box of matrix `index`. ret_record: hd_param.record_bytes. */
enum hd_status hd_encoded_make(struct hd_source *source, const struct hd_registry *registry,
                               int param, uint64_t seed, int64_t index, void *ret_record);

#endif

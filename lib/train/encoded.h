/* encoded: makes the quantized codes of a matrix (base/quant.h), from the values of a model or from
 * the seed. Every rank reads the whole matrix, in pieces, and keeps the codes of its own box.
 *
 * Used by: the files of lib/train.   Uses: source, program (the registry).   Threads: the caller's.
 */
#ifndef HD_TRAIN_ENCODED_H
#define HD_TRAIN_ENCODED_H

#include "train/source.h"

/* One whole matrix of a parameter, as its values are read. */
struct hd_whole {
    struct hd_source *source; /* NULL: initial values by the seed */
    int number;               /* index of the parameter in the registry */
    int64_t expert;           /* index of the expert; 0 for a parameter without experts */
    uint64_t seed;
    struct hd_param param; /* the parameter, with the shape that one rank alone would hold */
};

/* Initialises `whole` for matrix `index` of this rank (0, or the index of an expert held here). If
 * source lacks the parameter, its values are initial ones by the source's seed; if source is NULL,
 * by `seed`. */
void hd_whole_init(struct hd_whole *whole, struct hd_source *source,
                   const struct hd_registry *registry, int param, uint64_t seed, int64_t index);
/* Reads elements [first, first + count) of the matrix, row-major. context: a struct hd_whole. */
enum hd_status hd_whole_read(void *context, int64_t first, int64_t count, float *ret_values);

/* Makes the record of a box of a quantized parameter's matrix. If the source already stores the
 * matrix in the same codes, they are copied unchanged. ret_record:
 * hd_quant_lay_out(box).size_bytes, need not be cleared. */
enum hd_status hd_encoded_make_box(struct hd_whole *whole, const struct hd_quant_box *box,
                                   void *ret_record);
/* Makes the record of this rank's box of matrix `index`; source and seed as in hd_whole_init.
 * ret_record: hd_param.record_bytes. */
enum hd_status hd_encoded_make(struct hd_source *source, const struct hd_registry *registry,
                               int param, uint64_t seed, int64_t index, void *ret_record);

#endif

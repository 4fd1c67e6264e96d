/* encoded: makes the quantized codes of a matrix (base/quant.h), from the values of a model or from
 * the seed. Every rank reads the whole matrix, in pieces, and keeps the codes of its own box.
 *
 * Used by: the files of lib/train.   Uses: source, program (the registry).   Threads: the caller's.
 */
#ifndef HD_TRAIN_ENCODED_H
#define HD_TRAIN_ENCODED_H

#include "train/source.h"

/* One whole matrix of a parameter, whose values are read from a source or drawn by the seed. */
struct hd_whole {
    /* directories that have the values; NULL: initial values are drawn by `seed` */
    struct hd_source *source;
    int number;     /* index of the parameter in the registry */
    int64_t expert; /* index of the expert; 0 for a parameter without experts */
    uint64_t seed;
    struct hd_param param; /* the parameter, with the shape that one rank alone would hold */
};

/* Initialises `whole` for one matrix of a parameter: index 0, or the index of an expert among those
 * that this rank holds. If `source` lacks the parameter, its values are initial ones by the
 * source's seed; if source is NULL, by `seed`. */
void hd_whole_init(struct hd_whole *whole, struct hd_source *source,
                   const struct hd_registry *registry, int param, uint64_t seed, int64_t index);
/* Reads elements [first, first + count) of the matrix, row-major. context: a struct hd_whole. */
enum hd_status hd_whole_read(void *context, int64_t first, int64_t count, float *ret_values);

/* Makes the record (codes and scales) of a box, which is this rank's part of a quantized matrix. If
 * the source already stores the matrix in these codes, they are copied unchanged. ret_record:
 * hd_quant_lay_out(box).size_bytes, need not be cleared. */
enum hd_status hd_encoded_make_box(struct hd_whole *whole, const struct hd_quant_box *box,
                                   void *ret_record);
/* Makes the record (codes and scales) of this rank's part of matrix `index` of a parameter; index,
 * source and seed as in hd_whole_init. ret_record: hd_param.record_bytes. */
enum hd_status hd_encoded_make(struct hd_source *source, const struct hd_registry *registry,
                               int param, uint64_t seed, int64_t index, void *ret_record);

#endif

/* document: finds the document of a row, and the position of a row of a sequence on the ranks that
 * share it (ops_moe.h); one code for every backend.
 *
 * Used by: kernels/cpu, kernels/cuda.   Uses: kernels.h.   Threads: pure functions. */
#ifndef HD_KERNELS_DOCUMENT_H
#define HD_KERNELS_DOCUMENT_H

#include <math.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
#define HD_DOCUMENT_FUNCTION static __device__ __forceinline__
#else
#define HD_DOCUMENT_FUNCTION static inline
#endif

/* A row, and the document to which it belongs. A place is an index of a row in the whole
 * sequence. */
struct hd_document_row {
    int64_t place;  /* index of the row in the whole sequence */
    int64_t begin;  /* index of the document's first token in the whole sequence */
    int64_t length; /* number of tokens of the document; 0: the row is empty (no token) */
    int64_t first;  /* index of the first row of the document in the run (ops_moe.h) that has the
                       row, among this rank's rows */
};

/* Returns the number of rows of a whole sequence. */
HD_DOCUMENT_FUNCTION int64_t hd_sequence_length(const struct hd_row_runs *at, int64_t R)
{
    return R / at->Q * at->runs * at->P;
}

/* Returns the place and the document of this rank's row r. begins, lengths: [R], the index in the
 * sequence at which the row's document begins (NULL: 0), and its number of tokens (NULL: of a whole
 * sequence). */
HD_DOCUMENT_FUNCTION struct hd_document_row hd_document_of(const struct hd_row_runs *at, int64_t R,
                                                           const int32_t *begins,
                                                           const int32_t *lengths, int64_t r)
{
    const int64_t rows = R / at->Q, q = r / rows, within = r % rows;
    const int64_t piece = q % at->runs ? 2 * at->P - 1 - at->rank : at->rank;
    struct hd_document_row d;
    int64_t before;

    d.place = piece * rows + within;
    d.begin = begins ? begins[r] : 0;
    d.length = lengths ? lengths[r] : hd_sequence_length(at, R);
    before = d.place - d.begin;
    d.first = r - (before < within ? before : within);
    return d;
}

/* Returns the index, among the [P, R] rows of all P ranks in rank order, of the row whose index in
 * sequence b is `place`. */
HD_DOCUMENT_FUNCTION int64_t hd_row_of_place(const struct hd_row_runs *at, int64_t R, int64_t b,
                                             int64_t place)
{
    const int64_t rows = R / at->Q, piece = place / rows;
    const int64_t p = piece < at->P ? piece : 2 * at->P - 1 - piece;
    const int64_t run = b * at->runs + (piece < at->P ? 0 : 1);

    return p * R + run * rows + place % rows;
}

/* Returns the largest number of choices of one expert that are kept in a document of n tokens
 * (hd_assign_args): ceil(capacity n K / E). */
HD_DOCUMENT_FUNCTION int64_t hd_document_capacity(double capacity, int64_t n, int64_t K, int64_t E)
{
    return (int64_t)ceil(capacity * (double)(n * K) / (double)E);
}

#endif

/* zigzag: which positions of a sequence a context-parallel rank works on.
 *
 * A sequence of S positions is cut into 2 P chunks; rank i of P has chunks i and 2P-1-i, in this
 * order. Under a causal mask a position's work grows with its place, so an early and a late chunk
 * together cost each rank the same (the load balancing of ring attention as in Brandon et al. 2023,
 * "Striped Attention", with whole chunks). Pure arithmetic.
 *
 * Used by: program, train.   Uses: base.   Threads: pure.
 */
#ifndef HD_MESH_ZIGZAG_H
#define HD_MESH_ZIGZAG_H

#include <stdbool.h>
#include <stdint.h>

/* S is a multiple of 2 P, or P = 1. */
struct hd_zigzag {
    int64_t S;
    int32_t P, rank;
};

/* Rows of each sequence that the rank has: S / P. */
int64_t hd_zigzag_rows(const struct hd_zigzag *zigzag);

/* The position of its row `row`, 0 <= row < S / P; ascending in row. */
int64_t hd_zigzag_position(const struct hd_zigzag *zigzag, int64_t row);

/* Pairs of a query position q of `queries` and a key position k of `keys` with, when causal,
 * k <= q, and with a window > 0, q - k < window. Both of one S and P. */
int64_t hd_zigzag_pairs(const struct hd_zigzag *queries, const struct hd_zigzag *keys, bool causal,
                        int64_t window);

#endif

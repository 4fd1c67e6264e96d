/* zigzag: the positions of a sequence that a context-parallel rank holds.
 *
 * A sequence of S positions is split into 2 P chunks; rank i of P holds chunks i and 2P-1-i, in
 * this order. Under a causal mask the work of a position grows with the position, so an early and a
 * late chunk together balance the load of ring attention (compare Brandon et al. 2023, "Striped
 * Attention"). Pure arithmetic.
 *
 * Used by: program, train.   Uses: base.   Threads: pure.
 */
#ifndef HD_MESH_ZIGZAG_H
#define HD_MESH_ZIGZAG_H

#include <stdbool.h>
#include <stdint.h>

/* The share of one context-parallel rank: S positions, P ranks; S is a multiple of 2 P, or P = 1.
 */
struct hd_zigzag {
    int64_t S;
    int32_t P, rank;
};

/* Returns the number of positions of each sequence that the rank holds as rows of its tensors: S /
 * P. */
int64_t hd_zigzag_rows(const struct hd_zigzag *zigzag);

/* Returns the position in the sequence of row `row` of the rank's tensors, 0 <= row < S / P.
 * Positions ascend with the row. */
int64_t hd_zigzag_position(const struct hd_zigzag *zigzag, int64_t row);

/* Returns the number of (query, key) pairs that attention computes between two ranks: pairs (q, k),
 * q a position of `queries` and k one of `keys`, with k <= q if causal and q - k < window if window
 * > 0. `queries` and `keys` must have equal S and P. */
int64_t hd_zigzag_pairs(const struct hd_zigzag *queries, const struct hd_zigzag *keys, bool causal,
                        int64_t window);

#endif

/* principal: the largest singular values of a matrix and their vectors, by subspace iteration from random
 * vectors of a fixed seed (Halko, Martinsson & Tropp 2011, "Finding Structure with Randomness"), or
 * exactly where the matrix is small. In double, and with sums in an order that neither threads nor
 * instruction sets change: a matrix always gives the same bits.
 *
 * Used by: pissa, tests.   Uses: base.   Threads: starts `threads`, and ends them before it returns.
 */
#ifndef HD_TRAIN_PRINCIPAL_H
#define HD_TRAIN_PRINCIPAL_H

#include "base/status.h"

#include <stdint.h>

/* Sets ret_a [r, n] and ret_b [m, r] so that b a = U S V^T, the part of w [m, n] with its r largest singular
 * values S: a = sqrt(S) V^T, b = U sqrt(S). 1 <= r <= min(m, n). */
enum hd_status hd_principal_find(const float *w, int64_t m, int64_t n, int64_t r, int threads,
                                 float *ret_a, float *ret_b);

#endif

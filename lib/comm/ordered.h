/* ordered: the sum (or maximum) of several vectors in a fixed order, rounded once.
 *
 * out[i] = in[0][i] + in[1][i] + ... + in[in_count - 1][i], added from left to right in fp32 for
 * f32, bf16 and f16, in f64 for f64, modulo 2^n for integers. Each element is computed alone, so
 * splitting a vector does not change the result. With `keep_fp32`, a sum of bf16 is written as fp32
 * and not rounded to bf16.
 *
 * Used by: the engines of lib/comm.   Uses: base.   Threads: any. */
#ifndef HD_COMM_ORDERED_H
#define HD_COMM_ORDERED_H

#include "comm/comm.h"

/* Writes to `out` the element-by-element sum (or maximum) of the `in_count` >= 1 inputs. `out` is
 * one of the inputs or disjoint from all of them. keep_fp32: sums of bf16 only; `out` is fp32 and
 * disjoint from the inputs. */
void hd_ordered_reduce(void *out, const void *const *in, int in_count, int64_t count,
                       enum hd_dtype dtype, enum hd_comm_reduce reduce, bool keep_fp32);

#endif

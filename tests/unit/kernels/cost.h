/* cost: one launch's counts against those made by hand.
 *
 * Used by: the tests of costs.   Uses: the harness.
 */
#ifndef HD_TEST_KERNELS_COST_H
#define HD_TEST_KERNELS_COST_H

#include "tests/unit/kernels/harness.h"

static inline struct hd_costs cost_of(enum hd_kernel kernel, const void *args)
{
    struct hd_costs costs = {0};

    hd_kernel_cost_add(&costs, kernel, args);
    return costs;
}

static inline void check(struct hd_costs costs, int64_t flops, int64_t read_bytes,
                         int64_t write_bytes)
{
    assert_int_equal((int64_t)costs.flops, flops);
    assert_int_equal(costs.read_bytes, read_bytes);
    assert_int_equal(costs.write_bytes, write_bytes);
}

#endif

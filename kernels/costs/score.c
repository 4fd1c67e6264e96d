#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(score_forward)
HD_COSTS_NO_SCRATCH(score_backward)

/* Returns the largest number of answers' last rows among R rows, since an answer takes two rows or
 * more; the real number depends on the data. */
static int64_t rows_max(int64_t R)
{
    return R / 2;
}

void hd_cost_score_forward(struct hd_costs *costs, const struct hd_score_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), rows = rows_max(a->R);

    costs->flops += 2 * (double)rows * (double)a->C;
    costs->read_bytes += a->N * 4 + (rows + 1) * a->C * e;
    costs->write_bytes += a->N * 4;
}

void hd_cost_score_backward(struct hd_costs *costs, const struct hd_score_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), rows = rows_max(a->R);

    costs->read_bytes += a->R * 4;
    if (a->dx) {
        costs->flops += (double)rows * (double)a->C;
        costs->read_bytes += a->C * e;
        costs->write_bytes += a->R * a->C * e;
    }
    if (a->dweight) {
        costs->flops += 2 * (double)rows * (double)a->C;
        costs->read_bytes += rows * a->C * e + (a->accumulate ? a->C * 4 : 0);
        costs->write_bytes += a->C * 4;
    }
}

#include "kernels/dry/dry.h"

/* The loss of each row in double, so that they can be added in order. */
int64_t hd_dry_scratch_cross_entropy(const struct hd_cross_entropy_args *args,
                                     const struct hd_traits *traits)
{
    (void)traits;
    return args->R * (int64_t)sizeof(double);
}

/* Per logit: maximum, subtraction, exp, add; for the gradient exp again with its subtraction, and a
 * multiply. */
void hd_dry_cost_cross_entropy(struct hd_costs *costs, const struct hd_cross_entropy_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)a->R * (double)a->V * (a->dlogits ? 7 : 4);
    costs->read_bytes += a->R * (a->V * e + 4);
    costs->write_bytes += a->dlogits ? a->R * a->Vp * e : 0;
}

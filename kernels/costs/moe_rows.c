#include "kernels/costs/costs.h"

/* Returns the layout of the scratch of regroup. The CPU needs only `places`: it walks the rows in
 * order. */
struct hd_costs_regroup_layout hd_costs_lay_out_regroup(const struct hd_regroup_args *args)
{
    const int64_t count = args->P * args->E, bytes = (int64_t)sizeof(int64_t);

    return (struct hd_costs_regroup_layout){
        .places = 0, .arrivals = count * bytes, .scratch_bytes = (2 * count + 1) * bytes};
}

int64_t hd_scratch_regroup(const struct hd_regroup_args *args, const struct hd_traits *traits)
{
    if (hd_traits_is_cuda(traits))
        return hd_costs_lay_out_regroup(args).scratch_bytes;
    return args->P * args->E * (int64_t)sizeof(int64_t);
}

#include "kernels/costs/costs.h"

enum hd_status hd_costs_route_check(const struct hd_route_forward_args *args)
{
    const int64_t groups = args->form.groups, kept = args->form.kept;
    const int64_t size = groups > 1 ? args->E / groups : args->E;

    if (args->K < 1 || args->K > args->E)
        return hd_err(HD_INVALID, "route_forward: cannot choose %lld of %lld experts",
                      (long long)args->K, (long long)args->E);
    if (groups > 1 &&
        (groups > HD_ROUTE_GROUPS_MAX || args->E % groups || kept < 1 || kept > groups ||
         args->K > kept * size || (args->form.rule == HD_ROUTE_GROUPS_BEST_TWO && size < 2)))
        return hd_err(HD_INVALID,
                      "route_forward: cannot choose %lld experts in %lld of %lld groups of %lld "
                      "experts",
                      (long long)args->K, (long long)kept, (long long)groups, (long long)args->E);
    return HD_OK;
}

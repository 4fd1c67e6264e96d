#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(permute_forward)
HD_COSTS_NO_SCRATCH(permute_backward)
HD_COSTS_NO_SCRATCH(combine_forward)
HD_COSTS_NO_SCRATCH(combine_backward)

/* Returns the bytes for the next slot of each run and expert, and for the choices of a document by
 * run and expert. */
int64_t hd_scratch_assign(const struct hd_assign_args *args, const struct hd_traits *traits)
{
    (void)traits;
    return args->at.Q * args->E * 2 * (int64_t)sizeof(int64_t);
}

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

void hd_cost_assign(struct hd_costs *costs, const struct hd_assign_args *a)
{
    costs->flops += (double)a->R * (double)a->K;
    costs->read_bytes += 4 * a->R * (a->K + (a->begins ? 1 : 0) + (a->lengths ? 1 : 0));
    costs->write_bytes += 4 * (a->R * a->K + a->E + a->P);
}

/* Returns the number of the R * K choices that have a slot: at most T. */
static int64_t slots(int64_t R, int64_t K, int64_t T)
{
    return R * K < T ? R * K : T;
}

void hd_cost_permute_forward(struct hd_costs *costs, const struct hd_permute_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->read_bytes += a->R * a->C * e + 4 * a->R * a->K;
    costs->write_bytes += slots(a->R, a->K, a->T) * a->C * e;
}

void hd_cost_permute_backward(struct hd_costs *costs, const struct hd_permute_backward_args *a)
{
    const int64_t n = slots(a->R, a->K, a->T) * a->C, e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)n;
    costs->read_bytes += n * e + 4 * a->R * a->K;
    costs->write_bytes += a->R * a->C * e;
}

void hd_cost_combine_forward(struct hd_costs *costs, const struct hd_combine_forward_args *a)
{
    const int64_t n = slots(a->R, a->K, a->T) * a->C, e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += 2.0 * (double)n;
    costs->read_bytes += n * e + 8 * a->R * a->K;
    costs->write_bytes += a->R * a->C * e;
}

void hd_cost_combine_backward(struct hd_costs *costs, const struct hd_combine_backward_args *a)
{
    const int64_t n = slots(a->R, a->K, a->T) * a->C, e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += ((a->dinp ? 1.0 : 0.0) + (a->dgate ? 2.0 : 0.0)) * (double)n;
    costs->read_bytes += ((a->dgate ? n : 0) + a->R * a->C) * e + 8 * a->R * a->K;
    costs->write_bytes += (a->dinp ? n * e : 0) + (a->dgate ? 4 * a->R * a->K : 0);
}

void hd_cost_regroup(struct hd_costs *costs, const struct hd_regroup_args *a)
{
    const int64_t bytes = a->T * a->C * (int64_t)hd_dtype_size(a->dtype);

    costs->read_bytes += bytes + 4 * a->P * a->E;
    costs->write_bytes += bytes + (a->counts ? 4 * a->E : 0);
}

#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(route_noise)
HD_COSTS_NO_SCRATCH(route_forward)
HD_COSTS_NO_SCRATCH(route_sums)
HD_COSTS_NO_SCRATCH(route_totals)
HD_COSTS_NO_SCRATCH(route_record)
HD_COSTS_NO_SCRATCH(route_backward)

/* 66 operations per two numbers: ten rounds of six, and six for Box and Muller. */
void hd_cost_route_noise(struct hd_costs *costs, const struct hd_route_noise_args *a)
{
    costs->flops += 33.0 * (double)a->R * (double)a->E;
    costs->read_bytes += 8 * a->R;
    costs->write_bytes += 4 * a->R * a->E;
}

/* Per logit: a comparison, maximum, subtraction, exp, add, multiply; with noise the softplus (5), a
 * multiply and an add. Per gate four more to renormalize. */
void hd_cost_route_forward(struct hd_costs *costs, const struct hd_route_forward_args *a)
{
    const int64_t logits = a->R * a->E, gates = a->R * a->K;

    costs->flops += (a->noise_logits ? 13.0 : 6.0) * (double)logits;
    costs->flops += a->renormalize ? 4.0 * (double)gates : 0;
    costs->read_bytes += 4 * logits * (a->noise_logits ? 3 : 1);
    costs->write_bytes += 4 * (logits + a->R + 2 * gates);
}

void hd_cost_route_sums(struct hd_costs *costs, const struct hd_route_sums_args *a)
{
    costs->flops += (double)(a->R * a->E + a->R * a->K);
    costs->read_bytes += 4 * (a->R * a->E + a->R * a->K);
    costs->write_bytes += 4 * 2 * a->Q * a->E;
}

void hd_cost_route_totals(struct hd_costs *costs, const struct hd_route_totals_args *a)
{
    const int64_t sums = a->Q * a->E, all = a->P * sums;

    costs->flops += 3.0 * (double)all;
    costs->read_bytes += 4 * 2 * all;
    costs->write_bytes += 4 * (2 * sums / a->runs + sums);
}

void hd_cost_route_record(struct hd_costs *costs, const struct hd_route_record_args *a)
{
    const int64_t sums = a->Q * a->E, record = HD_ROUTE_WORDS + a->E;

    costs->flops += 2.0 * (double)(a->R + sums / a->runs) + 2.0 * (double)sums;
    costs->read_bytes += 4 * (a->R + 2 * sums / a->runs + (a->taken ? 2 : 1) * sums) + 8 * record;
    costs->write_bytes += 8 * record;
}

/* Per logit: the mean (3), the gradient (3); with noise the sigmoid (3) and two multiplies. Per
 * gate: the mean (2), the gradient (3). */
void hd_cost_route_backward(struct hd_costs *costs, const struct hd_route_backward_args *a)
{
    const int64_t logits = a->R * a->E, gates = a->R * a->K;

    costs->flops += (a->noise_logits ? 11.0 : 6.0) * (double)logits + 5.0 * (double)gates;
    costs->read_bytes += 4 * (logits + a->R + 3 * gates) + (a->counts ? 4 * a->B * a->E : 0);
    costs->read_bytes += a->noise_logits ? 8 * logits : 0;
    costs->write_bytes += 4 * logits * (a->noise_logits ? 2 : 1);
}

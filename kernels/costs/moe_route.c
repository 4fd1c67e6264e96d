#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(route_noise)
HD_COSTS_NO_SCRATCH(route_forward)
HD_COSTS_NO_SCRATCH(route_counts)
HD_COSTS_NO_SCRATCH(route_backward)
HD_COSTS_NO_SCRATCH(route_bias)

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

/* Returns the bytes of one router record per thread block on a GPU; 0 on a CPU, which adds all rows
 * in order. */
int64_t hd_scratch_route_record(const struct hd_route_record_args *args,
                                const struct hd_traits *traits)
{
    const int64_t record = HD_ROUTE_WORDS + args->E;

    return hd_traits_is_cuda(traits) ? HD_COSTS_RECORD_BLOCKS * record * (int64_t)sizeof(double)
                                     : 0;
}

/* Counts 66 operations per two numbers: ten rounds of six, and six for Box and Muller. */
void hd_cost_route_noise(struct hd_costs *costs, const struct hd_route_noise_args *a)
{
    costs->flops += 33.0 * (double)a->R * (double)a->E;
    costs->read_bytes += 8 * a->R;
    costs->write_bytes += 4 * a->R * a->E;
}

/* Counts per logit: a comparison, maximum, subtraction, exp, add, multiply; with noise the softplus
 * (5), a multiply and an add; one for a select bias, and three for groups. Counts per gate four
 * more to renormalize, and one for a scale. */
void hd_cost_route_forward(struct hd_costs *costs, const struct hd_route_forward_args *a)
{
    const int64_t logits = a->R * a->E, gates = a->R * a->K;

    costs->flops += (a->noise_logits ? 13.0 : 6.0) * (double)logits;
    costs->flops += (double)logits * ((a->select_bias ? 1 : 0) + (a->form.groups > 1 ? 3 : 0));
    costs->flops += (a->renormalize ? 4.0 : 0) * (double)gates;
    costs->flops += (a->form.scale > 0 && a->form.scale != 1 ? 1.0 : 0) * (double)gates;
    costs->read_bytes += a->select_bias ? 4 * a->E : 0;
    costs->read_bytes += 4 * logits * (a->noise_logits ? 3 : 1) + (a->lengths ? 4 * a->R : 0);
    costs->write_bytes += 4 * (logits + a->R + 2 * gates);
}

/* Returns the bytes of the batch fields begins and lengths, which locate a row's document; 0 for
 * one that is NULL. */
static int64_t documents(const int32_t *begins, const int32_t *lengths, int64_t R)
{
    return 4 * R * ((begins ? 1 : 0) + (lengths ? 1 : 0));
}

/* Counts each run as one document: its choices are read, those of the other ranks too, and one row
 * of counts is written. */
void hd_cost_route_counts(struct hd_costs *costs, const struct hd_route_counts_args *a)
{
    const int64_t choices = a->at.P * a->R * a->K;

    costs->flops += (double)choices;
    costs->read_bytes += 4 * choices + documents(a->begins, a->lengths, a->R);
    costs->write_bytes += 4 * a->at.Q * a->E;
}

/* Counts two operations per probability, two per row for the z loss, two for the sum of sigmoids,
 * and two per choice. */
void hd_cost_route_record(struct hd_costs *costs, const struct hd_route_record_args *a)
{
    const int64_t record = HD_ROUTE_WORDS + a->E;

    costs->flops += 2.0 * (double)(a->R * a->E + a->R + a->R * a->K);
    costs->flops += a->score == HD_ROUTE_SIGMOID ? 2.0 * (double)a->R : 0;
    costs->read_bytes += 4 * (a->R * a->E + a->R + 2 * a->R * a->K + a->at.Q * a->E) + 8 * record;
    costs->read_bytes += documents(a->begins, a->lengths, a->R);
    costs->write_bytes += 8 * record;
}

/* Counts per logit: the mean (3), the gradient (3); with a sigmoid two multiplies and a
 * subtraction; with noise the sigmoid (3) and two multiplies. Counts per gate: the mean (2), the
 * gradient (3). */
void hd_cost_route_backward(struct hd_costs *costs, const struct hd_route_backward_args *a)
{
    const int64_t logits = a->R * a->E, gates = a->R * a->K;

    costs->flops += (a->noise_logits ? 11.0 : 6.0) * (double)logits + 5.0 * (double)gates;
    costs->flops += a->form.score == HD_ROUTE_SIGMOID ? 3.0 * (double)logits : 0;
    costs->read_bytes += 4 * (logits + a->R + 3 * gates) + (a->counts ? 4 * a->at.Q * a->E : 0);
    costs->read_bytes += documents(a->begins, a->lengths, a->R);
    costs->read_bytes += a->noise_logits ? 8 * logits : 0;
    costs->write_bytes += 4 * logits * (a->noise_logits ? 2 : 1);
}

/* Counts per expert: the sum, the comparison, the product. */
void hd_cost_route_bias(struct hd_costs *costs, const struct hd_route_bias_args *a)
{
    costs->flops += 3.0 * (double)a->E;
    costs->read_bytes += 12 * a->E;
    costs->write_bytes += 4 * a->E;
}

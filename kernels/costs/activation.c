#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(glu_forward)
HD_COSTS_NO_SCRATCH(glu_backward)
HD_COSTS_NO_SCRATCH(activation_forward)
HD_COSTS_NO_SCRATCH(activation_backward)

enum hd_status hd_costs_activation_check(enum hd_activation act)
{
    if (act == HD_ACT_OSS)
        return hd_err(HD_INVALID, "activation: HD_ACT_OSS needs an up projection; use glu");
    return HD_OK;
}

/* Operations per element of act(x), and of dout * act'(x). A sigmoid is 3 (exp, add, divide). */
struct operations {
    int forward, backward;
};

/* SILU: sigmoid and product; backward also 1 - s, two products and an add, then dout.
 * GELU_ERF: the exponential of -x^2 / 2 (3), t (3), a polynomial of degree 8 (16), its two products
 * and 1 - tail (3), x (1); backward instead of x: x exp / sqrt(2 pi) (2), the sum (1), dout (1).
 * RELU2: maximum and square; backward maximum, doubling, dout. RELU: maximum; backward comparison,
 * dout.
 * OSS, with its up projection: three clamps, alpha g, a sigmoid, u + 1, two products; backward the
 * first 8, then dgate from them (6), dup (2), and 3 comparisons with the limits. */
static struct operations operations_of(enum hd_activation act)
{
    switch (act) {
    case HD_ACT_SILU:
        break;
    case HD_ACT_GELU_TANH:
        return (struct operations){HD_COSTS_GELU_FLOPS, HD_COSTS_GELU_BACKWARD_FLOPS};
    case HD_ACT_GELU_ERF:
        return (struct operations){26, 29};
    case HD_ACT_RELU2:
        return (struct operations){2, 3};
    case HD_ACT_RELU:
        return (struct operations){1, 2};
    case HD_ACT_OSS:
        return (struct operations){10, 19};
    }
    return (struct operations){4, 8};
}

/* Counts the activation of the gate and its product with the up projection, which OSS includes. */
void hd_cost_glu_forward(struct hd_costs *costs, const struct hd_glu_forward_args *a)
{
    const int64_t outputs = a->R * a->F, e = (int64_t)hd_dtype_size(a->dtype);
    const int flops = operations_of(a->act).forward + (a->act == HD_ACT_OSS ? 0 : 1);

    costs->flops += flops * (double)outputs;
    costs->read_bytes += 2 * outputs * e;
    costs->write_bytes += outputs * e;
    HD_COSTS_ADD_CODES(costs, a, outputs);
}

/* Counts dgate = dout * up * act'(gate) and dup = dout * act(gate), whose act(gate) costs one
 * product more, because act' has computed the rest of it. */
void hd_cost_glu_backward(struct hd_costs *costs, const struct hd_glu_backward_args *a)
{
    const int64_t outputs = a->R * a->F, e = (int64_t)hd_dtype_size(a->dtype);
    const int flops = operations_of(a->act).backward + (a->act == HD_ACT_OSS ? 0 : 3);

    costs->flops += flops * (double)outputs;
    costs->read_bytes += 3 * outputs * e;
    costs->write_bytes += 2 * outputs * e;
    HD_COSTS_ADD_CODES(costs, a, 2 * outputs);
}

void hd_cost_activation_forward(struct hd_costs *costs, const struct hd_activation_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += operations_of(a->act).forward * (double)a->N;
    costs->read_bytes += a->N * e;
    costs->write_bytes += a->N * e;
    HD_COSTS_ADD_CODES(costs, a, a->N);
}

void hd_cost_activation_backward(struct hd_costs *costs,
                                 const struct hd_activation_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (operations_of(a->act).backward + (a->sums ? 1 : 0)) * (double)a->N;
    costs->read_bytes += 2 * a->N * e;
    costs->write_bytes +=
        a->N * e + (a->sums ? hd_costs_sums_bytes(a->sums, a->R, a->N / a->R) : 0);
    HD_COSTS_ADD_CODES(costs, a, a->N);
}

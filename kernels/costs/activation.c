#include "kernels/costs/costs.h"

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

int hd_costs_activation_flops(enum hd_activation act, bool backward)
{
    return backward ? operations_of(act).backward : operations_of(act).forward;
}

/* Adds the product with the up projection, which OSS includes. Backward: dgate = dout * up * act'(gate),
 * and dup = dout * act(gate), whose act(gate) costs one product more, because act' has computed the rest
 * of it. */
int hd_costs_glu_flops(enum hd_activation act, bool backward)
{
    return hd_costs_activation_flops(act, backward) + (act == HD_ACT_OSS ? 0 : backward ? 3 : 1);
}

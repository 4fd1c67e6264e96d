/* delta: scratch and costs of gated delta layers. */
#include "base/math.h"
#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(delta_gates_forward)
HD_COSTS_NO_SCRATCH(delta_gates_backward)

enum hd_status hd_costs_check_delta(int64_t G, int64_t H, int64_t Dk, int64_t Dv)
{
    if (G > 0 && H % G == 0 && Dk > 0 && Dv > 0 && Dk % 8 == 0 && Dv % 8 == 0 &&
        Dk <= HD_DELTA_WIDTH_MAX && Dv <= HD_DELTA_WIDTH_MAX)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED,
                  "gated delta: %lld key heads of %lld channels, %lld value heads of %lld; the "
                  "number of key heads divides that of value heads, and widths are multiples of 8 "
                  "up to %d",
                  (long long)G, (long long)Dk, (long long)H, (long long)Dv, HD_DELTA_WIDTH_MAX);
}

static int64_t take_area(struct hd_costs_delta_layout *layout, int64_t floats)
{
    const int64_t offset = layout->floats;

    layout->floats += hd_round_up(floats, HD_TENSOR_ALIGN / (int64_t)sizeof(float));
    return offset;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns the areas of forward, for `states` states. */
static struct hd_costs_delta_layout areas(int64_t S, int64_t Dk, int64_t Dv, int64_t states)
{
    struct hd_costs_delta_layout l = {.rows = HD_DELTA_CHUNK,
                                      .key = hd_round_up(Dk, 16),
                                      .value = hd_round_up(Dv, 16),
                                      .chunks = (S + HD_DELTA_CHUNK - 1) / HD_DELTA_CHUNK};
    const int64_t wide = larger(l.key, l.value);

    l.q = take_area(&l, l.rows * l.key);
    l.k = take_area(&l, l.rows * l.key);
    l.transposed = take_area(&l, wide * larger(l.rows, wide));
    l.qk = take_area(&l, l.rows * l.rows);
    l.kk = take_area(&l, l.rows * l.rows);
    l.a = take_area(&l, l.rows * l.rows);
    l.l = take_area(&l, l.rows * l.rows);
    l.u = take_area(&l, l.rows * l.value);
    l.km = take_area(&l, l.rows * l.value);
    l.wide = take_area(&l, l.rows * larger(l.rows, wide));
    l.state = take_area(&l, states * l.key * l.value);
    l.vectors = take_area(&l, HD_COSTS_DELTA_VECTORS * l.rows);
    return l;
}

struct hd_costs_delta_layout
hd_costs_delta_forward_layout(const struct hd_gated_delta_forward_args *a,
                              const struct hd_traits *traits)
{
    const bool cuda = hd_traits_is_cuda(traits);
    struct hd_costs_delta_layout l = areas(a->S, a->Dk, a->Dv, cuda ? 1 : a->H / a->G);

    l.scratch_floats = l.floats * (cuda ? a->B * a->H : traits->threads);
    return l;
}

struct hd_costs_delta_layout
hd_costs_delta_backward_layout(const struct hd_gated_delta_backward_args *a,
                               const struct hd_traits *traits)
{
    const bool cuda = hd_traits_is_cuda(traits);
    const int64_t heads = cuda ? 1 : a->H / a->G;
    const int64_t chunks = (a->S + HD_DELTA_CHUNK - 1) / HD_DELTA_CHUNK;
    struct hd_costs_delta_layout l = areas(a->S, a->Dk, a->Dv, chunks * heads);

    l.dout = take_area(&l, l.rows * l.value);
    l.du = take_area(&l, l.rows * l.value);
    l.qm = take_area(&l, l.rows * l.value);
    l.dq = take_area(&l, l.rows * l.key);
    l.dk = take_area(&l, l.rows * l.key);
    l.da = take_area(&l, l.rows * l.rows);
    l.dl = take_area(&l, l.rows * l.rows);
    l.dstate = take_area(&l, heads * l.key * l.value);
    l.scratch_floats = l.floats * (cuda ? a->B * a->H : traits->threads);
    if (cuda) {
        l.dq_of = l.scratch_floats;
        l.dk_of = l.dq_of + a->B * a->S * a->H * a->Dk;
        l.scratch_floats = l.dk_of + a->B * a->S * a->H * a->Dk;
    }
    return l;
}

int64_t hd_scratch_gated_delta_forward(const struct hd_gated_delta_forward_args *args,
                                       const struct hd_traits *traits)
{
    return hd_costs_delta_forward_layout(args, traits).scratch_floats * (int64_t)sizeof(float);
}

int64_t hd_scratch_gated_delta_backward(const struct hd_gated_delta_backward_args *args,
                                        const struct hd_traits *traits)
{
    return hd_costs_delta_backward_layout(args, traits).scratch_floats * (int64_t)sizeof(float);
}

/* Counts per element: exponential, addition, division for beta; exponential, logarithm and two
 * products for g. */
void hd_cost_delta_gates_forward(struct hd_costs *costs,
                                 const struct hd_delta_gates_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), numbers = a->R * 2 * a->H;

    costs->flops += 4.0 * (double)numbers;
    costs->read_bytes += numbers * e + 2 * a->H * 4;
    costs->write_bytes += numbers * 4;
}

/* Counts forward, and a product with the derivative. */
void hd_cost_delta_gates_backward(struct hd_costs *costs,
                                  const struct hd_delta_gates_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), numbers = a->R * 2 * a->H;

    costs->flops += 6.0 * (double)numbers;
    costs->read_bytes += numbers * (e + 4) + 2 * a->H * 4;
    costs->write_bytes += numbers * (e + (a->terms ? 4 : 0));
}

/* Returns the operations of one value head in a chunk of c rows, as products of matrices: those
 * with the state, K M, Q M and (fK)^T U; and those among the rows, on and below the diagonal: L and
 * A, the solution and A U. */
static double chunk_flops(double c, double Dk, double Dv)
{
    return 6.0 * c * Dk * Dv + 2.0 * c * c * (Dk + Dv);
}

/* Returns the sum of chunk_flops over the chunks of all sequences and heads. */
static double delta_flops(int64_t B, int64_t S, int64_t H, int64_t Dk, int64_t Dv)
{
    const int64_t rest = S % HD_DELTA_CHUNK;
    const double whole = chunk_flops(HD_DELTA_CHUNK, (double)Dk, (double)Dv);

    return (double)(B * H) * ((double)(S / HD_DELTA_CHUNK) * whole +
                              chunk_flops((double)rest, (double)Dk, (double)Dv));
}

void hd_cost_gated_delta_forward(struct hd_costs *costs,
                                 const struct hd_gated_delta_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), R = a->B * a->S;
    const int64_t states = a->state ? a->B * a->H * a->Dk * a->Dv * 4 : 0;

    costs->flops += delta_flops(a->B, a->S, a->H, a->Dk, a->Dv);
    costs->read_bytes += R * (2 * a->G * a->Dk + a->H * a->Dv) * e + R * 2 * a->H * 4 + states +
                         (a->bound ? R * 4 : 0);
    costs->write_bytes += R * a->H * a->Dv * e + states;
}

/* Counts forward, and twice as much for the gradients. */
void hd_cost_gated_delta_backward(struct hd_costs *costs,
                                  const struct hd_gated_delta_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), R = a->B * a->S;
    const int64_t row = 2 * a->G * a->Dk + a->H * a->Dv;

    costs->flops += 3.0 * delta_flops(a->B, a->S, a->H, a->Dk, a->Dv);
    costs->read_bytes += R * (row + a->H * a->Dv) * e + R * 2 * a->H * 4 + (a->bound ? R * 4 : 0);
    costs->write_bytes += R * row * e + R * 2 * a->H * 4;
}

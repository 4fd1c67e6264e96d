/* delta: scratch and costs of gated delta layers. */
#include "base/math.h"
#include "kernels/costs/costs.h"

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

/* Sizes of gated_delta, named as in its arguments. */
struct sizes {
    int64_t B, S, G, H, Dk, Dv;
};

/* Kernels that have areas of scratch. */
enum delta_user { FORWARD, BACKWARD, SUMMARY, STATE_GRADIENT };

/* Sets the offsets of the areas of a thread or block. Areas that the kernel does not use have no
 * floats. */
static void place_areas(struct hd_costs_delta_layout *l, int64_t heads, enum delta_user user)
{
    const int64_t wide = hd_max(l->key, l->value), widest = hd_max(l->rows, wide);
    const int64_t b = user == BACKWARD, s = user == SUMMARY, g = b || user == STATE_GRADIENT;
    const int64_t states = user == STATE_GRADIENT ? 0 : heads * (b ? l->chunks : 1);
    const int64_t values = user == STATE_GRADIENT ? 0 : l->rows * (s ? wide : l->value);
    const struct {
        int64_t *offset, floats;
    } areas[] = {{&l->q, s ? 0 : l->rows * l->key},
                 {&l->k, l->rows * l->key},
                 {&l->transposed, wide * widest},
                 {&l->qk, s ? 0 : l->rows * l->rows},
                 {&l->kk, l->rows * l->rows},
                 {&l->a, s ? 0 : l->rows * l->rows},
                 {&l->l, l->rows * l->rows},
                 {&l->u, values},
                 {&l->km, values},
                 {&l->wide, l->rows * widest},
                 {&l->state, states * l->key * l->value},
                 {&l->transition, s * heads * l->key * l->key},
                 {&l->vectors, HD_COSTS_DELTA_VECTORS * l->rows},
                 {&l->dout, g * l->rows * l->value},
                 {&l->du, g * l->rows * l->value},
                 {&l->qm, b * l->rows * l->value},
                 {&l->dq, b * l->rows * l->key},
                 {&l->dk, b * l->rows * l->key},
                 {&l->da, b * l->rows * l->rows},
                 {&l->dl, b * l->rows * l->rows},
                 {&l->dstate, g * heads * l->key * l->value}};

    for (size_t i = 0; i < sizeof areas / sizeof areas[0]; i++) {
        *areas[i].offset = l->floats;
        l->floats += hd_round_up(areas[i].floats, HD_TENSOR_ALIGN / (int64_t)sizeof(float));
    }
}

static struct hd_costs_delta_layout layout_of(const struct sizes *s, enum delta_user user,
                                              const struct hd_traits *traits)
{
    const bool cuda = hd_traits_is_cuda(traits);
    const int64_t by_head = s->B * s->S * s->H * s->Dk; /* gradients of q, or of k, by value head */
    struct hd_costs_delta_layout l = {.rows = HD_DELTA_CHUNK,
                                      .key = hd_round_up(s->Dk, 16),
                                      .value = hd_round_up(s->Dv, 16),
                                      .chunks = hd_divide_up(s->S, HD_DELTA_CHUNK)};

    place_areas(&l, cuda ? 1 : s->H / s->G, user);
    l.scratch_floats =
        l.floats * (cuda ? s->B * s->H * (user == SUMMARY ? 2 : 1) : traits->threads);
    if (cuda && user == BACKWARD) {
        l.dq_of = l.scratch_floats;
        l.dk_of = l.dq_of + by_head;
        l.scratch_floats = l.dk_of + by_head;
    }
    return l;
}

struct hd_costs_delta_layout
hd_costs_delta_forward_layout(const struct hd_gated_delta_forward_args *a,
                              const struct hd_traits *traits)
{
    return layout_of(&(struct sizes){a->B, a->S, a->G, a->H, a->Dk, a->Dv}, FORWARD, traits);
}

struct hd_costs_delta_layout
hd_costs_delta_backward_layout(const struct hd_gated_delta_backward_args *a,
                               const struct hd_traits *traits)
{
    return layout_of(&(struct sizes){a->B, a->S, a->G, a->H, a->Dk, a->Dv}, BACKWARD, traits);
}

struct hd_costs_delta_layout hd_costs_delta_summary_layout(const struct hd_delta_summary_args *a,
                                                           const struct hd_traits *traits)
{
    return layout_of(&(struct sizes){a->B, a->S, a->G, a->H, a->Dk, a->Dv}, SUMMARY, traits);
}

struct hd_costs_delta_layout
hd_costs_delta_state_gradient_layout(const struct hd_delta_state_gradient_args *a,
                                     const struct hd_traits *traits)
{
    return layout_of(&(struct sizes){a->B, a->S, a->G, a->H, a->Dk, a->Dv}, STATE_GRADIENT, traits);
}

/* Returns the operations of one value head in a chunk of c rows, as products of matrices: those
 * with the state, K M, Q M and (fK)^T U; and those among the rows, on and below the diagonal: L and
 * A, the solution and A U. */
static double chunk_flops(double c, double Dk, double Dv)
{
    return 6.0 * c * Dk * Dv + 2.0 * c * c * (Dk + Dv);
}

/* Returns those of a chunk in delta_summary: K M, K T and two products (fK)^T U; L, and the
 * solutions of M and T. */
static double chunk_summary_flops(double c, double Dk, double Dv)
{
    return 4.0 * c * Dk * (Dk + Dv) + c * c * (2.0 * Dk + Dv);
}

/* Returns the sum of `flops` over the chunks of all sequences and heads. */
static double sum_chunks(double (*flops)(double c, double Dk, double Dv), int64_t B, int64_t S,
                         int64_t H, int64_t Dk, int64_t Dv)
{
    const int64_t rest = S % HD_DELTA_CHUNK;
    const double whole = flops(HD_DELTA_CHUNK, (double)Dk, (double)Dv);

    return (double)(B * H) *
           ((double)(S / HD_DELTA_CHUNK) * whole + flops((double)rest, (double)Dk, (double)Dv));
}

double hd_costs_delta_flops(int64_t B, int64_t S, int64_t H, int64_t Dk, int64_t Dv)
{
    return sum_chunks(chunk_flops, B, S, H, Dk, Dv);
}

double hd_costs_delta_summary_flops(const struct hd_delta_summary_args *a)
{
    return sum_chunks(chunk_summary_flops, a->B, a->S, a->H, a->Dk, a->Dv);
}

int64_t hd_costs_delta_prefix_steps(const struct hd_delta_prefix_args *a)
{
    return 2 * a->P - 1 - a->rank;
}

/* delta_segment: gated delta layers of sequences that ranks share. The ranks' kernels run one rank
 * after another on the segments that each has, with what the others computed for them, and together
 * give the results and gradients of whole sequences. */
#include <string.h>

#include "tests/unit/kernels/harness.h"

enum { UNITS = 64, G = 1, H = 2, W = 4 };

/* P ranks, segments of S rows, shorter and longer than a chunk of the rule; widths that are those of
 * keys or not; documents of a few rows, longer than segments, or as long as they, so that some begin
 * with a segment; 0: one per sequence. */
struct shape {
    int64_t P, B, S, Dk, Dv, documents;
};
static const struct shape shapes[] = {
    {2, 2, 37, 16, 8, 0}, {2, 1, 70, 8, 24, 29}, {4, 1, 5, 8, 8, 12}, {3, 1, 6, 24, 16, 6}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static int64_t rows_of(const struct shape *s) /* rows of a whole sequence */
{
    return 2 * s->P * s->S;
}

/* Returns the row among those of all whole sequences that is row r of a rank, which has segments rank
 * and 2P-1-rank of each. */
static int64_t whole_row(const struct shape *s, int64_t rank, int64_t r)
{
    const int64_t segment = r / s->S % 2 ? 2 * s->P - 1 - rank : rank;

    return r / (2 * s->S) * rows_of(s) + segment * s->S + r % s->S;
}

/* Returns the rows of a rank [2 B S, width]. */
static struct tensor *share(const struct shape *s, int64_t rank, const struct tensor *whole,
                            int64_t width)
{
    struct tensor *t = tensor_new(2 * s->B * s->S * width, whole->dtype);

    for (int64_t i = 0; i < t->count; i++)
        tensor_put(t, i, whole->values[whole_row(s, rank, i / width) * width + i % width]);
    return t;
}

/* Sets rows of a tensor of whole sequences to those of a rank. */
static void collect(const struct shape *s, int64_t rank, struct tensor *whole,
                    const struct tensor *part, int64_t width)
{
    for (int64_t i = 0; i < part->count; i++)
        tensor_put(whole, whole_row(s, rank, i / width) * width + i % width, tensor_get(part, i));
}

/* Return int32s of a rank's rows: positions, and the positions at which documents begin. */
static struct tensor *positions(const struct shape *s, int64_t rank)
{
    struct tensor *t = tensor_int32(2 * s->B * s->S, 0, 0);

    for (int64_t r = 0; r < t->count; r++)
        ((int32_t *)t->data)[r] = (int32_t)(whole_row(s, rank, r) % rows_of(s));
    return t;
}

static int32_t bound_at(const struct shape *s, int64_t position)
{
    return (int32_t)(position / s->documents * s->documents);
}

static const int32_t *bounds(const struct shape *s, int64_t rank)
{
    struct tensor *t = positions(s, rank);

    for (int64_t r = 0; s->documents && r < t->count; r++)
        ((int32_t *)t->data)[r] = bound_at(s, ((int32_t *)t->data)[r]);
    return s->documents ? t->data : NULL;
}

static const int32_t *whole_bounds(const struct shape *s)
{
    struct tensor *t = tensor_int32(s->B * rows_of(s), 0, 0);

    for (int64_t r = 0; s->documents && r < t->count; r++)
        ((int32_t *)t->data)[r] = bound_at(s, r % rows_of(s));
    return s->documents ? t->data : NULL;
}

/* ---- the gated delta rule ---- */

struct problem {
    const struct shape *s;
    enum hd_dtype dtype;
    int64_t width, values, matrices; /* numbers of a row of qkv and of results; of T and X of all
                                        segments of a rank, which begin with transitions */
    int64_t transitions;
    const struct tensor *qkv, *gates, *dout;
    struct tensor *summaries, *gradients; /* by rank */
};

/* The members that arguments of all kernels of the rule have in common. */
#define SIZES                                                                          \
    .B = 2 * s->B, .S = s->S, .G = G, .H = H, .Dk = s->Dk, .Dv = s->Dv, .eps = 1e-6f,  \
    .dtype = p->dtype, .bound = bounds(s, rank), .position = positions(s, rank)->data, \
    .qkv = share(s, rank, p->qkv, p->width)->data, .gates = share(s, rank, p->gates, 2 * H)->data

/* Computes what a rank sends: its segments' matrices, and the gradients of the states before. */
static void send(struct device *device, const struct problem *p, int64_t rank)
{
    const struct shape *s = p->s;
    float *summary = (float *)p->summaries->data + rank * p->matrices;
    float *gradient = (float *)p->gradients->data + rank * p->matrices;
    struct hd_delta_summary_args a = {SIZES, .summary = summary};
    struct hd_delta_state_gradient_args g = {SIZES, .dstate = gradient + p->transitions,
                                             .dout = share(s, rank, p->dout, p->values)->data};

    device_launch(device, HD_K_delta_summary, &a);
    memcpy(gradient, summary, (size_t)p->transitions * sizeof *gradient);
    device_launch(device, HD_K_delta_state_gradient, &g);
}

static const float *walk(struct device *device, const struct problem *p, int64_t rank,
                         const struct tensor *summaries, bool reverse)
{
    const struct shape *s = p->s;
    struct tensor *states = tensor_new(2 * s->B * H * s->Dk * s->Dv, HD_F32);
    struct hd_delta_prefix_args a = {.state = states->data,
                                     .summaries = summaries->data,
                                     .P = s->P,
                                     .rank = rank,
                                     .B = s->B,
                                     .H = H,
                                     .Dk = s->Dk,
                                     .Dv = s->Dv,
                                     .reverse = reverse};

    device_launch(device, HD_K_delta_prefix, &a);
    return states->data;
}

static void check_delta(struct device *device, const struct shape *s, enum hd_dtype dtype)
{
    const int64_t R = s->B * rows_of(s), width = 2 * G * s->Dk + H * s->Dv, values = H * s->Dv;
    struct problem problem = {.s = s,
                              .dtype = dtype,
                              .width = width,
                              .values = values,
                              .matrices = 2 * s->B * H * s->Dk * (s->Dk + s->Dv),
                              .transitions = 2 * s->B * H * s->Dk * s->Dk,
                              .qkv = tensor_random(R * width, dtype, 1, 1),
                              .dout = tensor_random(R * values, dtype, 1, 3)};
    const struct problem *p = &problem;
    const struct ref_delta ref = {.B = s->B,
                                  .S = rows_of(s),
                                  .G = G,
                                  .H = H,
                                  .Dk = s->Dk,
                                  .Dv = s->Dv,
                                  .bound = whole_bounds(s),
                                  .eps = 1e-6};
    struct tensor *gates = tensor_new(R * 2 * H, HD_F32), *out = tensor_new(R * values, dtype);
    struct tensor *dqkv = tensor_new(R * width, dtype), *dgates = tensor_new(R * 2 * H, HD_F32);
    double *want = doubles(R * values), *want_dqkv = doubles(R * width);
    double *want_dgates = doubles(R * 2 * H);

    for (int64_t i = 0; i < gates->count; i++) /* beta, and decays that last through segments */
        tensor_put(gates, i, i / H % 2 ? -0.01 * (double)(i % 5) : 0.1 * (double)(i % 9));
    problem.gates = gates;
    problem.summaries = tensor_new(s->P * p->matrices, HD_F32);
    problem.gradients = tensor_new(s->P * p->matrices, HD_F32);
    ref_gated_delta(&ref, want, p->qkv->values, gates->values);
    ref_gated_delta_backward(&ref, want_dqkv, want_dgates, p->dout->values, p->qkv->values,
                             gates->values);
    for (int64_t rank = 0; rank < s->P; rank++)
        send(device, p, rank);
    for (int64_t rank = 0; rank < s->P; rank++) {
        const int64_t rows = 2 * s->B * s->S;
        const float *initial = walk(device, p, rank, p->summaries, false);
        struct tensor *part = tensor_new(rows * values, dtype);
        struct tensor *dpart = tensor_new(rows * width, dtype);
        struct tensor *dgates_part = tensor_new(rows * 2 * H, HD_F32);
        struct hd_gated_delta_forward_args f = {SIZES, .out = part->data, .initial = initial};
        struct hd_gated_delta_backward_args b = {SIZES,
                                                 .dqkv = dpart->data,
                                                 .dgates = dgates_part->data,
                                                 .dout = share(s, rank, p->dout, values)->data,
                                                 .initial = initial,
                                                 .dfinal =
                                                     walk(device, p, rank, p->gradients, true)};

        device_launch(device, HD_K_gated_delta_forward, &f);
        device_launch(device, HD_K_gated_delta_backward, &b);
        collect(s, rank, out, part, values);
        collect(s, rank, dqkv, dpart, width);
        collect(s, rank, dgates, dgates_part, 2 * H);
    }
    assert_close("out", out, want, UNITS);
    assert_close("dqkv", dqkv, want_dqkv, 4 * UNITS);
    assert_close("dgates", dgates, want_dgates, 4 * UNITS);
}

/* ---- convolution ---- */

enum { N = 136 };

/* Returns the inputs before a rank's segments, zeros before a sequence. */
static struct tensor *halo_of(const struct shape *s, int64_t rank, const struct tensor *inp)
{
    struct tensor *halo = tensor_new(2 * s->B * (W - 1) * N, inp->dtype);

    for (int64_t i = 0; i < halo->count; i++) {
        const int64_t row = whole_row(s, rank, i / N / (W - 1) * s->S);
        const int64_t before = W - 1 - i / N % (W - 1);

        tensor_put(halo, i, row % rows_of(s) ? inp->values[(row - before) * N + i % N] : 0);
    }
    return halo;
}

/* Adds a rank's gradients, those of its inputs and those of its halos, to those of all. */
static void add_gradients(const struct shape *s, int64_t rank, double *sum,
                          const struct tensor *dinp, const struct tensor *dhalo)
{
    for (int64_t i = 0; i < dinp->count; i++)
        sum[whole_row(s, rank, i / N) * N + i % N] += tensor_get(dinp, i);
    for (int64_t i = 0; i < dhalo->count; i++) {
        const int64_t row = whole_row(s, rank, i / N / (W - 1) * s->S);
        const int64_t before = W - 1 - i / N % (W - 1);

        if (row % rows_of(s))
            sum[(row - before) * N + i % N] += tensor_get(dhalo, i);
    }
}

static void check_conv_form(struct device *device, const struct shape *s, enum hd_dtype dtype,
                            bool plain)
{
    const int64_t R = s->B * rows_of(s), rows = 2 * s->B * s->S;
    const struct tensor *inp = tensor_random(R * N, dtype, 1, 1);
    const struct tensor *weight = tensor_random((int64_t)N * W, dtype, 1, 2);
    const struct tensor *dout = tensor_random(R * N, dtype, 1, 3);
    struct tensor *out = tensor_new(R * N, dtype), *dweight = tensor_new((int64_t)N * W, HD_F32);
    struct tensor *dinp = tensor_new(R * N, HD_F32);
    double *want = doubles(R * N), *want_dinp = doubles(R * N), *sum = doubles(R * N);
    double *want_dweight = doubles((int64_t)N * W);

    ref_conv(want, inp->values, weight->values, whole_bounds(s), s->B, rows_of(s), N, W, plain);
    ref_conv_backward(want_dinp, want_dweight, dout->values, inp->values, weight->values,
                      whole_bounds(s), s->B, rows_of(s), N, W, plain);
    for (int64_t rank = 0; rank < s->P; rank++) {
        struct tensor *part = tensor_new(rows * N, dtype), *dpart = tensor_new(rows * N, dtype);
        struct tensor *dhalo = tensor_new(2 * s->B * (W - 1) * N, HD_F32);
        struct hd_conv_forward_args f = {.out = part->data,
                                         .inp = share(s, rank, inp, N)->data,
                                         .weight = weight->data,
                                         .bound = bounds(s, rank),
                                         .halo = halo_of(s, rank, inp)->data,
                                         .position = positions(s, rank)->data,
                                         .B = 2 * s->B,
                                         .S = s->S,
                                         .N = N,
                                         .W = W,
                                         .plain = plain,
                                         .dtype = dtype};
        struct hd_conv_backward_args b = {.dinp = dpart->data,
                                          .dhalo = dhalo->data,
                                          .dout = share(s, rank, dout, N)->data,
                                          .inp = f.inp,
                                          .weight = weight->data,
                                          .bound = f.bound,
                                          .halo = f.halo,
                                          .position = f.position,
                                          .B = f.B,
                                          .S = f.S,
                                          .N = N,
                                          .W = W,
                                          .plain = plain,
                                          .dtype = dtype};
        struct hd_conv_backward_weight_args w = {.dweight = dweight->data,
                                                 .dout = b.dout,
                                                 .inp = f.inp,
                                                 .weight = weight->data,
                                                 .bound = f.bound,
                                                 .halo = f.halo,
                                                 .position = f.position,
                                                 .B = f.B,
                                                 .S = f.S,
                                                 .N = N,
                                                 .W = W,
                                                 .accumulate = rank > 0,
                                                 .plain = plain,
                                                 .dtype = dtype};

        device_launch(device, HD_K_conv_forward, &f);
        device_launch(device, HD_K_conv_backward, &b);
        device_launch(device, HD_K_conv_backward_weight, &w);
        collect(s, rank, out, part, N);
        add_gradients(s, rank, sum, dpart, dhalo);
    }
    for (int64_t i = 0; i < R * N; i++)
        tensor_put(dinp, i, sum[i]);
    assert_close("out", out, want, 16);
    if (dtype == HD_F32) /* else the sum has more than one rounding */
        assert_close("dinp", dinp, want_dinp, 16);
    assert_close("dweight", dweight, want_dweight, UNITS);
}

static void check_conv(struct device *device, const struct shape *s, enum hd_dtype dtype)
{
    check_conv_form(device, s, dtype, false);
    check_conv_form(device, s, dtype, true);
}

/* ---- everywhere ---- */

static void everywhere(void (*check)(struct device *, const struct shape *, enum hd_dtype))
{
    for (int i = 0; i < SHAPES * float_type_count; i++)
        for (int setting = 0; setting < setting_count; setting++) {
            struct device device;

            if (!on_takes(setting, i, setting_count))
                continue;
            device = device_open(&settings[setting]);
            check(&device, &shapes[i / float_type_count], float_types[i % float_type_count]);
            device_close(&device);
            tensors_free();
        }
}

static void ranks_that_share_sequences_compute_the_rule_and_its_gradients(void **state)
{
    everywhere(check_delta);
}

static void ranks_that_share_sequences_compute_the_convolution_and_its_gradients(void **state)
{
    everywhere(check_conv);
}

RUN_CASES()

/* delta: the kernels of gated delta layers against plain recurrences in double, forward and
 * gradients. */
#include <math.h>

#include "tests/unit/kernels/harness.h"

enum { UNITS = 64 }; /* units of fp32 in a chain of sums, beside FP32_UNITS of one sum */

/* ---- the gated delta rule ---- */

/* Sequences shorter and longer than a chunk (64), of whole chunks, one row; key heads with one and
 * more value heads; widths that no vector divides. documents: rows of a document, 0: one per
 * sequence. decay: size of -g; large ones forget within rows. */
struct delta_shape {
    int64_t B, S, G, H, Dk, Dv, documents;
    double decay;
};
static const struct delta_shape delta_shapes[] = {
    {1, 1, 1, 1, 8, 8, 0, 1},        {2, 37, 2, 4, 8, 24, 0, 0.1},  {1, 64, 1, 2, 16, 8, 0, 0.02},
    {1, 193, 2, 2, 24, 16, 0, 0.05}, {2, 130, 1, 3, 8, 8, 29, 0.1}, {1, 140, 1, 1, 8, 40, 64, 8},
    {1, 70, 2, 4, 40, 8, 3, 0.3}};
enum { DELTA_SHAPES = sizeof delta_shapes / sizeof delta_shapes[0] };

struct delta_problem {
    struct ref_delta ref;
    int64_t R, width;
    struct tensor *qkv, *gates, *dout, *bound;
    double *out, *dqkv, *dgates;
};

/* Returns the first row of each row's document; NULL: one document per sequence. */
static struct tensor *bounds_of(int64_t B, int64_t S, int64_t rows)
{
    struct tensor *bound = rows ? tensor_int32(B * S, 0, 0) : NULL;

    for (int64_t r = 0; bound && r < B * S; r++)
        ((int32_t *)bound->data)[r] = (int32_t)((r % S + r / S) / rows * rows - r / S > 0
                                                    ? (r % S + r / S) / rows * rows - r / S
                                                    : 0);
    return bound;
}

static struct delta_problem delta_problem_of(const struct delta_shape *s, enum hd_dtype dtype)
{
    const int64_t R = s->B * s->S, width = 2 * s->G * s->Dk + s->H * s->Dv;
    struct delta_problem p = {
        .ref = {.B = s->B, .S = s->S, .G = s->G, .H = s->H, .Dk = s->Dk, .Dv = s->Dv, .eps = 1e-6},
        .R = R,
        .width = width,
        .qkv = tensor_random(R * width, dtype, 1, 1),
        .gates = tensor_random(R * 2 * s->H, HD_F32, 1, 2),
        .dout = tensor_random(R * s->H * s->Dv, dtype, 1, 3),
        .bound = bounds_of(s->B, s->S, s->documents),
        .out = doubles(R * s->H * s->Dv),
        .dqkv = doubles(R * width),
        .dgates = doubles(R * 2 * s->H)};

    for (int64_t i = 0; i < R * 2 * s->H; i++) { /* beta in (0, 1), g below 0 */
        const double x = p.gates->values[i];

        tensor_put(p.gates, i, i / s->H % 2 ? -s->decay * exp(x) : 1 / (1 + exp(-x)));
    }
    p.ref.bound = p.bound ? p.bound->data : NULL;
    ref_gated_delta(&p.ref, p.out, p.qkv->values, p.gates->values);
    ref_gated_delta_backward(&p.ref, p.dqkv, p.dgates, p.dout->values, p.qkv->values,
                             p.gates->values);
    return p;
}

static void check_delta(struct device *device, const struct delta_problem *p)
{
    const struct ref_delta *s = &p->ref;
    const enum hd_dtype dtype = p->qkv->dtype;
    struct tensor *out = tensor_new(p->R * s->H * s->Dv, dtype);
    struct tensor *dqkv = tensor_new(p->R * p->width, dtype);
    struct tensor *dgates = tensor_new(p->R * 2 * s->H, HD_F32);
    struct hd_gated_delta_forward_args f = {.out = out->data,
                                            .qkv = p->qkv->data,
                                            .gates = p->gates->data,
                                            .bound = s->bound,
                                            .B = s->B,
                                            .S = s->S,
                                            .G = s->G,
                                            .H = s->H,
                                            .Dk = s->Dk,
                                            .Dv = s->Dv,
                                            .eps = 1e-6f,
                                            .dtype = dtype};
    struct hd_gated_delta_backward_args b = {.dqkv = dqkv->data,
                                             .dgates = dgates->data,
                                             .dout = p->dout->data,
                                             .qkv = p->qkv->data,
                                             .gates = p->gates->data,
                                             .bound = s->bound,
                                             .B = s->B,
                                             .S = s->S,
                                             .G = s->G,
                                             .H = s->H,
                                             .Dk = s->Dk,
                                             .Dv = s->Dv,
                                             .eps = 1e-6f,
                                             .dtype = dtype};

    device_launch(device, HD_K_gated_delta_forward, &f);
    device_launch(device, HD_K_gated_delta_backward, &b);
    assert_close("out", out, p->out, UNITS);
    assert_close("dqkv", dqkv, p->dqkv, 4 * UNITS);
    assert_close("dgates", dgates, p->dgates, 4 * UNITS);
}

/* Sums in fp32 of numbers that lose a few units in a chain of chunks. */
static void chunks_compute_the_recurrence_and_its_gradients(void **state)
{
    for (int i = 0; i < DELTA_SHAPES * float_type_count; i++)
        for (int setting = 0; setting < setting_count; setting++) {
            struct delta_problem p;
            struct device device;

            if (!on_takes(setting, i, setting_count))
                continue;
            p = delta_problem_of(&delta_shapes[i / float_type_count],
                                 float_types[i % float_type_count]);
            device = device_open(&settings[setting]);
            check_delta(&device, &p);
            device_close(&device);
            tensors_free();
        }
}

/* ---- gates ---- */

static void check_gates(struct device *device, int64_t R, int64_t H, enum hd_dtype dtype)
{
    const int64_t N = R * 2 * H;
    const struct tensor *inp = tensor_random(N, dtype, 4, 1);
    const struct tensor *A_log = tensor_random(H, HD_F32, 1, 2);
    const struct tensor *dt_bias = tensor_random(H, HD_F32, 1, 3);
    const struct tensor *dgates = tensor_random(N, HD_F32, 1, 4);
    struct tensor *gates = tensor_new(N, HD_F32), *dinp = tensor_new(N, dtype);
    struct tensor *terms = tensor_new(N, HD_F32);
    double *want = doubles(N), *want_dinp = doubles(N), *sums = doubles(2 * H);
    struct hd_delta_gates_forward_args f = {.gates = gates->data,
                                            .inp = inp->data,
                                            .A_log = A_log->data,
                                            .dt_bias = dt_bias->data,
                                            .R = R,
                                            .H = H,
                                            .dtype = dtype};
    struct hd_delta_gates_backward_args b = {.dinp = dinp->data,
                                             .terms = terms->data,
                                             .dgates = dgates->data,
                                             .inp = inp->data,
                                             .A_log = A_log->data,
                                             .dt_bias = dt_bias->data,
                                             .R = R,
                                             .H = H,
                                             .dtype = dtype};

    ref_delta_gates(want, inp->values, A_log->values, dt_bias->values, R, H);
    ref_delta_gates_backward(want_dinp, sums, sums + H, dgates->values, inp->values, A_log->values,
                             dt_bias->values, R, H);
    device_launch(device, HD_K_delta_gates_forward, &f);
    device_launch(device, HD_K_delta_gates_backward, &b);
    assert_close("gates", gates, want, 16);
    assert_close("dinp", dinp, want_dinp, 16);
    for (int64_t h = 0; h < 2 * H; h++) {
        double sum = 0, size = 0;

        for (int64_t r = 0; r < R; r++) {
            sum += tensor_get(terms, r * 2 * H + h);
            size += fabs(tensor_get(terms, r * 2 * H + h));
        }
        assert_close_at("terms", h, sum, sums[h], 16 * 0x1p-24 * size);
    }
    b.terms = NULL;
    tensor_poison(dinp);
    device_launch(device, HD_K_delta_gates_backward, &b);
    assert_close("dinp", dinp, want_dinp, 16);
}

/* ---- convolution ---- */

/* More channels than a block, and rows of documents shorter than the convolution. */
static void check_conv(struct device *device, const int64_t *size, enum hd_dtype dtype, bool plain)
{
    const int64_t B = size[0], S = size[1], N = size[2], W = size[3], R = B * S;
    const struct tensor *inp = tensor_random(R * N, dtype, 1, 1);
    const struct tensor *weight = tensor_random(N * W, dtype, 1, 2);
    const struct tensor *dout = tensor_random(R * N, dtype, 1, 3);
    const struct tensor *bound = bounds_of(B, S, size[4]);
    struct tensor *out = tensor_new(R * N, dtype), *dinp = tensor_new(R * N, dtype);
    struct tensor *dweight = tensor_random(N * W, HD_F32, 1, 4);
    double *want = doubles(R * N), *want_dinp = doubles(R * N), *want_dweight = doubles(N * W);
    struct hd_conv_forward_args f = {.out = out->data,
                                     .inp = inp->data,
                                     .weight = weight->data,
                                     .bound = bound ? bound->data : NULL,
                                     .B = B,
                                     .S = S,
                                     .N = N,
                                     .W = W,
                                     .plain = plain,
                                     .dtype = dtype};
    struct hd_conv_backward_args b = {.dinp = dinp->data,
                                      .dout = dout->data,
                                      .inp = inp->data,
                                      .weight = weight->data,
                                      .bound = f.bound,
                                      .B = B,
                                      .S = S,
                                      .N = N,
                                      .W = W,
                                      .plain = plain,
                                      .dtype = dtype};
    struct hd_conv_backward_weight_args w = {.dweight = dweight->data,
                                             .dout = dout->data,
                                             .inp = inp->data,
                                             .weight = weight->data,
                                             .bound = f.bound,
                                             .B = B,
                                             .S = S,
                                             .N = N,
                                             .W = W,
                                             .plain = plain,
                                             .dtype = dtype};

    ref_conv(want, inp->values, weight->values, f.bound, B, S, N, W, plain);
    ref_conv_backward(want_dinp, want_dweight, dout->values, inp->values, weight->values, f.bound,
                      B, S, N, W, plain);
    device_launch(device, HD_K_conv_forward, &f);
    device_launch(device, HD_K_conv_backward, &b);
    assert_close("out", out, want, 16);
    assert_close("dinp", dinp, want_dinp, 16);
    device_launch(device, HD_K_conv_backward_weight, &w);
    assert_close("dweight", dweight, want_dweight, UNITS);
    w.accumulate = true;
    device_launch(device, HD_K_conv_backward_weight, &w);
    for (int64_t i = 0; i < N * W; i++)
        want_dweight[i] *= 2;
    assert_close("dweight twice", dweight, want_dweight, UNITS);
}

/* ---- norm and gate ---- */

static void check_gated_norm(struct device *device, int64_t H, int64_t D, enum hd_dtype dtype)
{
    const int64_t R = 37, heads = R * H, N = heads * D;
    const struct tensor *inp = tensor_random(N, dtype, 1, 1), *gate = tensor_random(N, dtype, 3, 2);
    const struct tensor *weight = tensor_random(D, dtype, 1, 3);
    const struct tensor *dout = tensor_random(N, dtype, 1, 4);
    struct tensor *out = tensor_new(N, dtype), *rstd = tensor_new(heads, HD_F32);
    struct tensor *dinp = tensor_new(N, dtype), *dgate = tensor_new(N, dtype);
    struct tensor *dweight = tensor_random(D, HD_F32, 1, 5);
    double *want = doubles(N), *want_rstd = doubles(heads), *want_dweight = doubles(D);
    double *want_dinp = doubles(N), *want_dgate = doubles(N);
    struct hd_gated_norm_forward_args f = {.out = out->data,
                                           .rstd = rstd->data,
                                           .inp = inp->data,
                                           .gate = gate->data,
                                           .weight = weight->data,
                                           .R = R,
                                           .H = H,
                                           .D = D,
                                           .eps = 1e-3f,
                                           .dtype = dtype};
    struct hd_gated_norm_backward_args b = {.dinp = dinp->data,
                                            .dgate = dgate->data,
                                            .dout = dout->data,
                                            .inp = inp->data,
                                            .gate = gate->data,
                                            .rstd = rstd->data,
                                            .weight = weight->data,
                                            .R = R,
                                            .H = H,
                                            .D = D,
                                            .dtype = dtype};
    struct hd_gated_norm_backward_weight_args w = {.dweight = dweight->data,
                                                   .dout = dout->data,
                                                   .inp = inp->data,
                                                   .gate = gate->data,
                                                   .rstd = rstd->data,
                                                   .R = R,
                                                   .H = H,
                                                   .D = D,
                                                   .dtype = dtype};

    ref_gated_norm(want, want_rstd, inp->values, gate->values, weight->values, heads, D,
                   (double)f.eps);
    ref_gated_norm_backward(want_dinp, want_dgate, want_dweight, dout->values, inp->values,
                            gate->values, weight->values, heads, D, (double)f.eps);
    device_launch(device, HD_K_gated_norm_forward, &f);
    assert_close("out", out, want, UNITS);
    assert_close("rstd", rstd, want_rstd, UNITS);
    device_launch(device, HD_K_gated_norm_backward, &b);
    assert_close("dinp", dinp, want_dinp, UNITS);
    assert_close("dgate", dgate, want_dgate, UNITS);
    for (int k = 0; k < 2; k++) {
        w.accumulate = k > 0;
        device_launch(device, HD_K_gated_norm_backward_weight, &w);
        for (int64_t d = 0; k && d < D; d++)
            want_dweight[d] *= 2;
        assert_close("dweight", dweight, want_dweight, UNITS);
    }
}

/* The first `cut` elements are a call of their own, behind which the others begin. */
static void check_sigmoid_gate(struct device *device, int64_t N, int64_t cut, enum hd_dtype dtype,
                               bool in_place, bool plain)
{
    const struct tensor *y = tensor_random(N, dtype, 1, 1), *g = tensor_random(N, dtype, 3, 2);
    const struct tensor *dout = tensor_random(N, dtype, 1, 3);
    struct tensor *out = in_place ? tensor_copy(y) : tensor_new(N, dtype);
    struct tensor *dy = tensor_new(N, dtype), *dg = tensor_new(N, dtype);
    double *want = doubles(N), *want_dy = doubles(N), *want_dg = doubles(N);

    for (int64_t i = 0; i < N; i++) {
        const double s = plain ? g->values[i] : 1 / (1 + exp(-g->values[i]));

        want[i] = y->values[i] * s;
        want_dy[i] = dout->values[i] * s;
        want_dg[i] = dout->values[i] * y->values[i] * (plain ? 1 : s * (1 - s));
    }
    for (int part = 0; part < 2; part++) {
        const int64_t n = part ? N - cut : cut, at = part * cut * (int64_t)hd_dtype_size(dtype);
        const char *own_y = in_place ? out->data : y->data;

        device_launch(device, HD_K_sigmoid_gate_forward,
                      &(struct hd_sigmoid_gate_forward_args){.out = (char *)out->data + at,
                                                             .y = own_y + at,
                                                             .g = (char *)g->data + at,
                                                             .N = n,
                                                             .plain = plain,
                                                             .dtype = dtype});
        device_launch(device, HD_K_sigmoid_gate_backward,
                      &(struct hd_sigmoid_gate_backward_args){.dy = (char *)dy->data + at,
                                                              .dg = (char *)dg->data + at,
                                                              .dout = (char *)dout->data + at,
                                                              .y = (char *)y->data + at,
                                                              .g = (char *)g->data + at,
                                                              .N = n,
                                                              .plain = plain,
                                                              .dtype = dtype});
    }
    assert_close("out", out, want, 8);
    assert_close("dy", dy, want_dy, 8);
    assert_close("dg", dg, want_dg, 16);
}

/* Calls `check` for every setting and encoding. */
static void everywhere(void (*check)(struct device *device, enum hd_dtype dtype))
{
    for (int i = 0; i < setting_count * float_type_count; i++) {
        struct device device = device_open(&settings[i / float_type_count]);

        check(&device, float_types[i % float_type_count]);
        device_close(&device);
        tensors_free();
    }
}

static void gates_of_each_size(struct device *device, enum hd_dtype dtype)
{
    check_gates(device, 5, 3, dtype);
    check_gates(device, 70, 32, dtype);
}

static void gates_are_those_of_the_reference(void **state)
{
    everywhere(gates_of_each_size);
}

static void convolutions_of_each_size(struct device *device, enum hd_dtype dtype)
{
    /* B, S, N, W, rows of a document or 0 */
    static const int64_t sizes[][5] = {
        {2, 40, 136, 4, 0}, {1, 33, 20, 4, 2}, {3, 5, 8, 2, 3}, {1, 3, 257, 3, 0}};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int plain = 0; plain < 2; plain++)
            check_conv(device, sizes[i], dtype, plain);
}

static void convolutions_are_those_of_the_reference(void **state)
{
    everywhere(convolutions_of_each_size);
}

static void norms_of_each_size(struct device *device, enum hd_dtype dtype)
{
    check_gated_norm(device, 3, 40, dtype);
    check_gated_norm(device, 2, 13, dtype);
}

static void gated_norms_are_those_of_the_reference(void **state)
{
    everywhere(norms_of_each_size);
}

static void gates_of_elements(struct device *device, enum hd_dtype dtype)
{
    for (int plain = 0; plain < 2; plain++) {
        check_sigmoid_gate(device, 1003, 0, dtype, false, plain);
        check_sigmoid_gate(device, 1003, 1, dtype, false, plain);
        check_sigmoid_gate(device, 4096, 0, dtype, true, plain);
        /* three threads' pieces */
        check_sigmoid_gate(device, 2 * 16384 + 1, 0, dtype, false, plain);
    }
}

static void elements_are_gated_by_others_or_by_their_sigmoids(void **state)
{
    everywhere(gates_of_elements);
}

RUN_CASES()

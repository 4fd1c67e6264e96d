/* dora: norms of rows of W + s B A without that matrix, against double of that matrix; rows scaled
 * by magnitudes; the gradient of a magnitude, against double and against finite differences. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/harness.h"

static void everywhere(void (*check)(struct device *device, enum hd_dtype dtype))
{
    for (int setting = 0; setting < setting_count; setting++)
        for (int t = 0; t < float_type_count; t++) {
            struct device device = device_open(&settings[setting]);

            check(&device, float_types[t]);
            tensors_free();
            device_close(&device);
        }
}

/* ---- squares ---- */

struct squares_case {
    int64_t N, K, r;
    enum hd_quant quant;
    double scale;
};

struct squares_problem {
    struct tensor *w, *a, *b, *p, *g, *squares; /* w: the values that are computed with */
    void *codes_memory;
    struct hd_dora_squares_args args;
};

/* Encodes w, which then has the decoded values. */
static void encode(struct squares_problem *q, const struct squares_case *c)
{
    const struct hd_quant_box box = {
        .quant = c->quant, .rows = c->N, .columns = c->K, .box_rows = c->N, .box_columns = c->K};
    const size_t bytes = (size_t)hd_quant_lay_out(&box).size_bytes;
    void *record = calloc(1, bytes);
    float *values = calloc((size_t)(c->N * c->K), sizeof *values);

    assert_true(record && values);
    q->args.codes = (struct hd_quant_factor){
        .quant = c->quant, .count = 1, .columns = c->K, .matrix = {hd_quant_matrix_at(&box, 0)}};
    assert_int_equal(hd_quant_encode(&box, tensor_read, q->w, record), HD_OK);
    hd_quant_decode(&q->args.codes, record, 0, c->N * c->K, values);
    for (int64_t i = 0; i < c->N * c->K; i++)
        tensor_put(q->w, i, (double)values[i]);
    q->args.weight = reachable(record, bytes);
    free(values);
    free(record);
}

/* P = A W^T and G = A A^T, rounded to fp32. */
static void multiply(struct squares_problem *q, const struct squares_case *c)
{
    for (int64_t i = 0; i < c->r; i++) {
        for (int64_t n = 0; n < c->N; n++) {
            double sum = 0;

            for (int64_t k = 0; k < c->K; k++)
                sum += q->a->values[i * c->K + k] * q->w->values[n * c->K + k];
            tensor_put(q->p, i * c->N + n, sum);
        }
        for (int64_t j = 0; j < c->r; j++) {
            double sum = 0;

            for (int64_t k = 0; k < c->K; k++)
                sum += q->a->values[i * c->K + k] * q->a->values[j * c->K + k];
            tensor_put(q->g, i * c->r + j, sum);
        }
    }
}

static struct squares_problem make_squares(const struct squares_case *c, enum hd_dtype dtype)
{
    struct squares_problem q = {.w = tensor_random(c->N * c->K, dtype, 0.5, 1),
                                .a = tensor_random(c->r * c->K, dtype, 0.2, 2),
                                .b = tensor_random(c->N * c->r, dtype, 0.4, 3),
                                .p = tensor_new(c->r * c->N, HD_F32),
                                .g = tensor_new(c->r * c->r, HD_F32),
                                .squares = tensor_new(c->N, HD_F32)};

    q.args = (struct hd_dora_squares_args){.squares = q.squares->data,
                                           .weight = q.w->data,
                                           .b = q.b->data,
                                           .p = q.p->data,
                                           .g = q.g->data,
                                           .N = c->N,
                                           .K = c->K,
                                           .r = c->r,
                                           .scale = (float)c->scale,
                                           .dtype = dtype};
    if (c->quant)
        encode(&q, c);
    multiply(&q, c);
    return q;
}

/* The terms' absolute values bound the rounding: w^2, 2 s b p and s^2 b g b. */
static void check_squares_of(struct device *device, const struct squares_case *c,
                             enum hd_dtype dtype)
{
    struct squares_problem q = make_squares(c, dtype);

    device_launch(device, HD_K_dora_squares, &q.args);
    for (int64_t n = 0; n < c->N; n++) {
        double want = 0, size = 0;

        for (int64_t k = 0; k < c->K; k++) {
            const double w = q.w->values[n * c->K + k];
            double added = 0, most = 0;

            for (int64_t i = 0; i < c->r; i++) {
                const double term =
                    c->scale * q.b->values[n * c->r + i] * q.a->values[i * c->K + k];

                added += term;
                most += fabs(term);
            }
            want += (w + added) * (w + added);
            size += (fabs(w) + most) * (fabs(w) + most);
        }
        assert_close_at("squares", n, tensor_get(q.squares, n), want, FP32_UNITS * 0x1p-24 * size);
    }
    tensors_free();
}

/* Sides on both sides of a vector, of a thread's run, of the piece that is added in fp32, and of a
 * block's pass; a rank above a block's threads; codes whose blocks lie in two rows. */
static void check_squares(struct device *device, enum hd_dtype dtype)
{
    static const struct squares_case cases[] = {
        {1, 1, 1, .scale = 2},          {5, 7, 3, .scale = 0.5},     {9, 513, 4, .scale = 1.5},
        {3, 2100, 16, .scale = 2},      {2, 40, 300, .scale = 0.25}, {6, 72, 5, HD_QUANT_NF4, 1.5},
        {5, 33, 3, HD_QUANT_INT8, 1.5}, {4, 600, 2, HD_QUANT_FP8, 1}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_squares_of(device, &cases[i], dtype);
}

static void squares_are_those_of_the_sum(void **state)
{
    everywhere(check_squares);
}

/* ---- inverse, scale, gradient ---- */

/* Columns 3 to 3 + N of rows of ld. */
enum { R = 70, N = 45, LD = 56, FIRST = 3 };

static void check_inverse(struct device *device, enum hd_dtype dtype)
{
    static const double squares[] = {4, 0, -1e-9, 1e30, 0.25, 9e-30};
    struct tensor *s = tensor_new(6, HD_F32);

    for (int i = 0; i < 6; i++)
        tensor_put(s, i, squares[i]);
    device_launch(device, HD_K_dora_inverse,
                  &(struct hd_dora_inverse_args){.inverse = s->data, .squares = s->data, .N = 6});
    for (int i = 0; i < 6; i++) {
        const double want = squares[i] > 0 ? 1 / sqrt(squares[i]) : 0;

        assert_close_at("inverse", i, tensor_get(s, i), want, 4 * 0x1p-24 * want);
    }
}

struct scale_problem {
    struct tensor *inp, *out, *m, *inverse;
    struct hd_dora_scale_args args;
};

static struct scale_problem make_scale(enum hd_dtype dtype)
{
    struct scale_problem s = {.inp = tensor_random(R * LD, dtype, 2, 5),
                              .out = tensor_new(R * LD, dtype),
                              .m = tensor_random(N, HD_F32, 2, 6),
                              .inverse = tensor_random(N, HD_F32, 1, 7)};

    for (int64_t i = 0; i < R * LD; i++)
        tensor_put(s.out, i, 77); /* what is not written stays */
    s.args = (struct hd_dora_scale_args){
        .out = (char *)s.out->data + FIRST * (int64_t)hd_dtype_size(dtype),
        .inp = (char *)s.inp->data + FIRST * (int64_t)hd_dtype_size(dtype),
        .magnitude = s.m->data,
        .inverse = s.inverse->data,
        .R = R,
        .N = N,
        .ldo = LD,
        .ldi = LD,
        .dtype = dtype};
    return s;
}

static void check_scale(struct device *device, enum hd_dtype dtype)
{
    struct scale_problem s = make_scale(dtype);
    double *want = doubles(R * LD);

    for (int64_t i = 0; i < R * LD; i++) {
        const int64_t n = i % LD - FIRST;

        want[i] = n < 0 || n >= N ? 77 : s.inp->values[i] * s.m->values[n] * s.inverse->values[n];
    }
    device_launch(device, HD_K_dora_scale, &s.args);
    assert_close("out", s.out, want, 3);             /* two products */
    s.args.out = (void *)(s.args.inp = s.inp->data); /* in place, from the first column on */
    s.args.N = 40;
    device_launch(device, HD_K_dora_scale, &s.args);
    for (int64_t i = 0; i < R * LD; i++)
        want[i] =
            s.inp->values[i] * (i % LD < 40 ? s.m->values[i % LD] * s.inverse->values[i % LD] : 1);
    assert_close("in place", s.inp, want, 3);
}

/* sum dout * scaled(inp), of which dm and dinp are the gradients. */
static double loss_of(struct device *device, struct scale_problem *s, const struct tensor *dout)
{
    double loss = 0;

    device_launch(device, HD_K_dora_scale, &s->args);
    for (int64_t r = 0; r < R; r++)
        for (int64_t n = 0; n < N; n++)
            loss += dout->values[r * LD + FIRST + n] * tensor_get(s->out, r * LD + FIRST + n);
    return loss;
}

/* Checks the first columns, whose packs are wide. */
static void check_aligned(struct device *device, struct hd_dora_backward_args a,
                          const struct scale_problem *s, const struct tensor *dout)
{
    enum { WIDE = 40 };
    struct tensor *dm = tensor_new(WIDE, HD_F32);
    double *want = doubles(WIDE);

    for (int64_t n = 0; n < WIDE; n++)
        for (int64_t r = 0; r < R; r++)
            want[n] +=
                dout->values[r * LD + n] * s->inp->values[r * LD + n] * s->inverse->values[n];
    a.dmagnitude = dm->data;
    a.dout = dout->data;
    a.inp = s->inp->data;
    a.N = WIDE;
    a.accumulate = false;
    device_launch(device, HD_K_dora_backward, &a);
    assert_close_terms("dmagnitude of whole packs", dm, want, FP32_UNITS, 8);
}

static void check_gradient(struct device *device, enum hd_dtype dtype)
{
    struct scale_problem s = make_scale(dtype);
    struct tensor *dout = tensor_random(R * LD, dtype, 1, 8), *dm = tensor_new(N, HD_F32);
    const int64_t at = FIRST * (int64_t)hd_dtype_size(dtype);
    struct hd_dora_backward_args a = {.dmagnitude = dm->data,
                                      .dout = (char *)dout->data + at,
                                      .inp = (char *)s.inp->data + at,
                                      .inverse = s.inverse->data,
                                      .R = R,
                                      .N = N,
                                      .ldd = LD,
                                      .ldi = LD,
                                      .dtype = dtype};
    double *want = doubles(N);

    for (int64_t n = 0; n < N; n++)
        for (int64_t r = 0; r < R; r++)
            want[n] += dout->values[r * LD + FIRST + n] * s.inp->values[r * LD + FIRST + n] *
                       s.inverse->values[n];
    device_launch(device, HD_K_dora_backward, &a);
    assert_close_terms("dmagnitude", dm, want, FP32_UNITS, 8);
    a.accumulate = true;
    device_launch(device, HD_K_dora_backward, &a);
    for (int64_t n = 0; n < N; n++)
        want[n] *= 2;
    assert_close_terms("dmagnitude, twice", dm, want, FP32_UNITS, 8);
    check_aligned(device, a, &s, dout);
    if (dtype != HD_F32)
        return;
    for (int64_t n = 0; n < N; n += 11) { /* the loss is linear: no step is too wide */
        const double old = s.m->values[n];
        double difference;

        tensor_put(s.m, n, old + 1);
        difference = loss_of(device, &s, dout);
        tensor_put(s.m, n, old - 1);
        difference -= loss_of(device, &s, dout);
        tensor_put(s.m, n, old);
        assert_close_at("dmagnitude by differences", n, tensor_get(dm, n) / 2, difference / 2,
                        1e-4);
    }
}

static void inverses_of_norms_are_finite(void **state)
{
    everywhere(check_inverse);
}

static void columns_are_scaled_and_others_stay(void **state)
{
    everywhere(check_scale);
}

static void the_gradient_of_a_magnitude_is_the_difference(void **state)
{
    everywhere(check_gradient);
}

RUN_CASES()

/* element: everything that works element by element or moves rows: activations, add, cast, zero,
 * rotary positions, embeddings, the cache. */
#include <math.h>
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

typedef void check_one(struct device *device, enum hd_dtype dtype, bool option);

static void everywhere(check_one *check)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int kind = 0; kind < 2 * float_type_count; kind++) {
            if (!on_takes(setting, kind + kind / 2, 2))
                continue;
            check(&device, float_types[kind / 2], kind & 1);
            tensors_free();
        }
        device_close(&device);
    }
}

/* Some pieces of work; rows are no multiple of any vector, or one of all. */
enum { ROWS = 67, WIDTH = 531, WHOLE = 136 };

/* From small values to where the sigmoid is 0 and 1 in fp32. */
static struct tensor *activations(int64_t count, enum hd_dtype dtype)
{
    struct tensor *t = tensor_random(count, dtype, 3, 31);

    tensor_put(t, 0, 0);
    tensor_put(t, 1, -120);
    tensor_put(t, 2, 120);
    return t;
}

static void check_glu_of(struct device *device, int64_t rows, int64_t F, struct ref_glu kind,
                         enum hd_dtype dtype, bool in_place)
{
    struct tensor *inp = activations(rows * 2 * F, dtype);
    const struct tensor *dout = tensor_random(rows * F, dtype, 1, 32);
    struct tensor *out = tensor_new(rows * F, dtype);
    struct tensor *dinp = in_place ? inp : tensor_new(inp->count, dtype);
    double *want = doubles(out->count), *want_dinp = doubles(inp->count);
    struct hd_glu_forward_args f = {.out = out->data,
                                    .inp = inp->data,
                                    .R = rows,
                                    .F = F,
                                    .alpha = (float)kind.alpha,
                                    .limit = (float)kind.limit,
                                    .act = kind.act,
                                    .dtype = dtype};
    struct hd_glu_backward_args b = {.dinp = dinp->data,
                                     .dout = dout->data,
                                     .inp = inp->data,
                                     .R = rows,
                                     .F = F,
                                     .alpha = f.alpha,
                                     .limit = f.limit,
                                     .act = kind.act,
                                     .dtype = dtype};
    const double units = kind.act == HD_ACT_SILU ? 8 : 24; /* see check_activation */

    ref_glu(want, inp->values, rows, F, kind);
    ref_glu_backward(want_dinp, dout->values, inp->values, rows, F, kind);
    device_launch(device, HD_K_glu_forward, &f);
    device_launch(device, HD_K_glu_backward, &b);
    assert_close("out", out, want, units);
    assert_close("dinp", dinp, want_dinp, units);
}

/* alpha and limit are numbers of fp32; a third of the values is beyond the limit. */
static void check_glu(struct device *device, enum hd_dtype dtype, bool in_place)
{
    struct ref_glu kind = {HD_ACT_SILU, 1.75, 3};

    check_glu_of(device, ROWS, WIDTH, kind, dtype, in_place);
    for (int act = HD_ACT_SILU; act <= HD_ACT_OSS; act++) {
        kind.act = (enum hd_activation)act;
        check_glu_of(device, 3, WIDTH, kind, dtype, in_place);
        check_glu_of(device, 3, WHOLE, kind, dtype, in_place);
    }
}

static void gated_activations_are_the_reference(void **state)
{
    everywhere(check_glu);
}

/* In GELU the exponent is a square or a cubic of x, up to 10 before the sigmoid is 0 or 1 in fp32:
 * its rounding enters the result that many times. */
static void check_activation_of(struct device *device, int64_t R, int64_t C, enum hd_activation act,
                                enum hd_dtype dtype, bool in_place)
{
    const int64_t N = R * C;
    struct tensor *inp = activations(N, dtype);
    struct tensor *dout = tensor_random(N, dtype, 1, 32);
    struct tensor *out = tensor_new(N, dtype);
    struct tensor *dinp = in_place ? inp : tensor_new(N, dtype);
    struct tensor *summed = tensor_copy(dout);
    struct tensor *sums = tensor_new(sums_count(device, R, C), HD_F32);
    double *want = doubles(N), *want_dinp = doubles(N);
    struct hd_activation_forward_args f = {
        .out = out->data, .inp = inp->data, .N = N, .act = act, .dtype = dtype};
    struct hd_activation_backward_args b = {.dinp = dinp->data,
                                            .dout = dout->data,
                                            .inp = inp->data,
                                            .N = N,
                                            .act = act,
                                            .dtype = dtype};

    for (int64_t i = 0; i < N; i++) {
        want[i] = ref_act(inp->values[i], act);
        want_dinp[i] = dout->values[i] * ref_act_slope(inp->values[i], act);
    }
    device_launch(device, HD_K_activation_forward, &f);
    device_launch(device, HD_K_activation_backward, &b);
    assert_close("out", out, want, 24);
    assert_close("dinp", dinp, want_dinp, 24);
    if (!in_place) { /* the other aliases: dinp in the place of dout, out in that of inp */
        b.dout = b.dinp = tensor_copy(dout)->data;
        device_launch(device, HD_K_activation_backward, &b);
        assert_memory_equal(b.dinp, dinp->data, (size_t)dinp->count * hd_dtype_size(dtype));
        b.dout = b.dinp = summed->data; /* with sums of its rows for a bias: dinp keeps its bits */
        b.sums = sums->data;
        b.R = R;
        device_launch(device, HD_K_activation_backward, &b);
        assert_same_bits("dinp", summed, dinp);
        assert_row_sums(device, dinp, sums, R, C);
        f.inp = f.out = tensor_copy(inp)->data;
        device_launch(device, HD_K_activation_forward, &f);
        assert_memory_equal(f.out, out->data, (size_t)out->count * hd_dtype_size(dtype));
    }
}

static void check_activation(struct device *device, enum hd_dtype dtype, bool in_place)
{
    check_activation_of(device, ROWS, WIDTH, HD_ACT_GELU_TANH, dtype, in_place);
    for (int act = HD_ACT_SILU; act < HD_ACT_OSS; act++) {
        check_activation_of(device, 3, WIDTH, (enum hd_activation)act, dtype, in_place);
        check_activation_of(device, 3, WHOLE, (enum hd_activation)act, dtype, in_place);
    }
}

static void activations_are_the_reference(void **state)
{
    everywhere(check_activation);
}

static void a_clamped_activation_needs_its_up_projection(void **state)
{
    struct device device = device_open(&settings[0]);
    struct hd_activation_forward_args f = {.N = 1, .act = HD_ACT_OSS, .dtype = HD_F32};
    struct hd_activation_backward_args b = {.N = 1, .act = HD_ACT_OSS, .dtype = HD_F32};

    assert_int_equal(device_try(&device, HD_K_activation_forward, &f), HD_INVALID);
    assert_int_equal(device_try(&device, HD_K_activation_backward, &b), HD_INVALID);
    device_close(&device);
}

/* Values of -6 to 6 and a bound of 2: some are bounded on either side, and one is the bound. Elements
 * before the first are not bounded. */
static void check_clamp_from(struct device *device, int64_t first, enum hd_dtype dtype,
                             bool in_place)
{
    const int64_t N = 3 * WIDTH, skipped = first * (int64_t)hd_dtype_size(dtype);
    const double limit = 2;
    struct tensor *inp = tensor_random(N, dtype, 6, 1), *dout = tensor_random(N, dtype, 1, 2);
    struct tensor *out = tensor_random(N, dtype, 6, 3);
    struct tensor *dinp = in_place ? dout : tensor_random(N, dtype, 1, 4);
    double *want = doubles(N), *want_dinp = doubles(N);

    tensor_put(inp, 5, limit);
    for (int64_t i = 0; i < first; i++) {
        want[i] = out->values[i];
        want_dinp[i] = dinp->values[i];
    }
    for (int64_t i = first; i < N; i++) {
        const double x = tensor_get(inp, i);

        want[i] = x > limit ? limit : x < -limit ? -limit : x;
        want_dinp[i] = x >= -limit && x <= limit ? dout->values[i] : 0;
    }
    device_launch(device, HD_K_clamp_forward,
                  &(struct hd_clamp_forward_args){.out = (char *)out->data + skipped,
                                                  .inp = (char *)inp->data + skipped,
                                                  .N = N - first,
                                                  .limit = (float)limit,
                                                  .dtype = dtype});
    assert_close("out", out, want, 0);
    device_launch(device, HD_K_clamp_backward,
                  &(struct hd_clamp_backward_args){.dinp = (char *)dinp->data + skipped,
                                                   .dout = (char *)dout->data + skipped,
                                                   .inp = (char *)inp->data + skipped,
                                                   .N = N - first,
                                                   .limit = (float)limit,
                                                   .dtype = dtype});
    assert_close("dinp", dinp, want_dinp, 0);
}

static void check_clamp(struct device *device, enum hd_dtype dtype, bool in_place)
{
    check_clamp_from(device, 0, dtype, in_place);
    check_clamp_from(device, 1, dtype, in_place); /* an address that no vector is aligned to */
}

static void values_are_bounded_on_both_sides(void **state)
{
    everywhere(check_clamp);
}

static void check_row_gate_of(struct device *device, int64_t C, enum hd_dtype dtype, bool in_place)
{
    const int64_t R = ROWS;
    const struct tensor *g = tensor_random(R, dtype, 3, 1), *y = tensor_random(R * C, dtype, 1, 2);
    struct tensor *dout = tensor_random(R * C, dtype, 1, 3);
    struct tensor *out = in_place ? tensor_copy(y) : tensor_new(R * C, dtype);
    struct tensor *dy = in_place ? dout : tensor_new(R * C, dtype), *dg = tensor_new(R, dtype);
    double *want = doubles(R * C), *want_dy = doubles(R * C), *want_dg = doubles(R);
    struct hd_row_gate_forward_args f = {.out = out->data,
                                         .y = in_place ? out->data : y->data,
                                         .g = g->data,
                                         .R = R,
                                         .C = C,
                                         .dtype = dtype};
    struct hd_row_gate_backward_args b = {.dy = dy->data,
                                          .dg = dg->data,
                                          .dout = dout->data,
                                          .y = y->data,
                                          .g = g->data,
                                          .R = R,
                                          .C = C,
                                          .dtype = dtype};

    ref_row_gate(want, y->values, g->values, R, C);
    ref_row_gate_backward(want_dy, want_dg, dout->values, y->values, g->values, R, C);
    device_launch(device, HD_K_row_gate_forward, &f);
    device_launch(device, HD_K_row_gate_backward, &b);
    assert_close("out", out, want, 8);
    assert_close("dy", dy, want_dy, 8);
    assert_close("dg", dg, want_dg, FP32_UNITS);
}

/* With a vector's remainder, and without; the last row of a GPU's second pack is short. */
static void check_row_gate(struct device *device, enum hd_dtype dtype, bool in_place)
{
    check_row_gate_of(device, WIDTH, dtype, in_place);
    check_row_gate_of(device, WHOLE, dtype, in_place);
}

static void rows_are_gated_by_the_reference(void **state)
{
    everywhere(check_row_gate);
}

static void check_add_of(struct device *device, float factor, enum hd_dtype dtype, bool in_place)
{
    struct tensor *a = tensor_random(40000, dtype, 1, 1), *b = tensor_random(40000, dtype, 1, 2);
    struct tensor *out = in_place ? b : tensor_new(40000, dtype);
    double *want = doubles(40000);
    struct hd_add_args args = {
        .out = out->data, .a = a->data, .b = b->data, .N = 40000, .factor = factor, .dtype = dtype};

    for (int i = 0; i < 40000; i++)
        want[i] = a->values[i] + (factor != 0 ? (double)factor : 1) * b->values[i];
    device_launch(device, HD_K_add, &args);
    assert_close("out", out, want, 1);
}

/* Products by a power of 2 are exact. */
static void check_add(struct device *device, enum hd_dtype dtype, bool in_place)
{
    check_add_of(device, 0, dtype, in_place);
    check_add_of(device, 0.25f, dtype, in_place);
}

static void add_adds(void **state)
{
    everywhere(check_add);
}

/* Goal: a tensor need not begin where a vector may. Method: each operand in turn begins one element
 * further, or all do; the bits are those of operands on bounds, and nothing stands before them. */
static void check_addresses_of(struct device *device, enum hd_activation act, enum hd_dtype dtype,
                               bool all)
{
    enum { N = 1003, OUT = 3 };
    const int64_t size = (int64_t)hd_dtype_size(dtype);
    const struct tensor *values[2] = {activations(N, dtype), tensor_random(N, dtype, 1, 32)};
    struct tensor *want[OUT] = {tensor_new(N, dtype), tensor_new(N, dtype), tensor_new(N, dtype)};

    for (int which = -1; which < 3; which++) { /* -1: none; what is wanted */
        struct tensor *in[2], *out[OUT];
        int64_t at[3];

        for (int i = 0; i < 3; i++)
            at[i] = which >= 0 && (all || i == which);
        for (int i = 0; i < 2; i++) {
            in[i] = tensor_new(N + at[i], dtype);
            memcpy((char *)in[i]->data + at[i] * size, values[i]->data, (size_t)(N * size));
        }
        for (int i = 0; i < OUT; i++)
            out[i] = which < 0 ? want[i] : tensor_new(N + at[2], dtype);
        const void *a = (char *)in[0]->data + at[0] * size, *b = (char *)in[1]->data + at[1] * size;

        device_launch(device, HD_K_add,
                      &(struct hd_add_args){.out = (char *)out[0]->data + at[2] * size,
                                            .a = a,
                                            .b = b,
                                            .N = N,
                                            .dtype = dtype});
        device_launch(
            device, HD_K_activation_forward,
            &(struct hd_activation_forward_args){.out = (char *)out[1]->data + at[2] * size,
                                                 .inp = a,
                                                 .N = N,
                                                 .act = act,
                                                 .dtype = dtype});
        device_launch(
            device, HD_K_activation_backward,
            &(struct hd_activation_backward_args){.dinp = (char *)out[2]->data + at[2] * size,
                                                  .dout = b,
                                                  .inp = a,
                                                  .N = N,
                                                  .act = act,
                                                  .dtype = dtype});
        for (int i = 0; which >= 0 && i < OUT; i++) {
            assert_memory_equal((char *)out[i]->data + at[2] * size, want[i]->data,
                                (size_t)(N * size));
            assert_true(!at[2] || isnan(tensor_get(out[i], 0)));
        }
    }
}

static void check_addresses(struct device *device, enum hd_dtype dtype, bool all)
{
    for (int act = HD_ACT_SILU; act < HD_ACT_OSS; act++)
        check_addresses_of(device, (enum hd_activation)act, dtype, all);
}

static void operands_may_begin_anywhere(void **state)
{
    everywhere(check_addresses);
}

static void check_bias_of(struct device *device, int64_t N, enum hd_dtype dtype, bool in_place)
{
    enum { R = 7 };
    struct tensor *inp = tensor_random(R * N, dtype, 2, 1), *bias = tensor_random(N, dtype, 2, 2);
    struct tensor *out = in_place ? inp : tensor_new(R * N, dtype);
    double *want = doubles(R * N);

    for (int64_t i = 0; i < R * N; i++)
        want[i] = inp->values[i] + bias->values[i % N];
    device_launch(device, HD_K_bias_forward,
                  &(struct hd_bias_forward_args){.out = out->data,
                                                 .inp = inp->data,
                                                 .bias = bias->data,
                                                 .R = R,
                                                 .N = N,
                                                 .dtype = dtype});
    assert_close("out", out, want, 1);
}

static void check_bias(struct device *device, enum hd_dtype dtype, bool in_place)
{
    check_bias_of(device, 37, dtype, in_place);
    check_bias_of(device, 40, dtype, in_place);
    check_bias_of(device, 4104, dtype, in_place);
}

static void bias_is_added_to_every_row(void **state)
{
    everywhere(check_bias);
}

/* Goal: casts round to nearest even, keep infinities and NaN, and fill exactly N. Method: bit
 * patterns around ties and the ends of the range, against the scalar conversions of base. */
static void check_cast(struct device *device, enum hd_dtype out_dtype, enum hd_dtype inp_dtype)
{
    static const uint32_t patterns[] = {0x3f800000, 0x3f808000, 0x3f808001, 0x3f818000, 0x3f817fff,
                                        0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001,
                                        0x00000001, 0x80000000, 0x00008000, 0x33333333, 0x3f801000,
                                        0x3f803000, 0x477ff000, 0x387fe000, 0x33000000, 0xffc12000};
    enum { N = 20011, PATTERNS = sizeof patterns / sizeof patterns[0] };
    struct tensor *inp = tensor_random(N, inp_dtype, 1e3, 1), *out = tensor_new(N, out_dtype);
    struct tensor *want = tensor_new(N, out_dtype);
    struct hd_cast_args a = {
        .out = out->data, .inp = inp->data, .N = N, .out_dtype = out_dtype, .inp_dtype = inp_dtype};

    for (int i = 0; i < PATTERNS; i++) {
        float value;

        memcpy(&value, &patterns[i], sizeof value);
        if (inp_dtype == HD_F32)
            memcpy((float *)inp->data + i * 7, &value, sizeof value);
        else
            ((uint16_t *)inp->data)[i * 7] =
                inp_dtype == HD_BF16 ? hd_f32_to_bf16(value) : hd_f32_to_f16(value);
    }
    for (int i = 0; i < N; i++) {
        const uint16_t *halves = inp->data;
        const float x = inp_dtype == HD_F32    ? ((const float *)inp->data)[i]
                        : inp_dtype == HD_BF16 ? hd_bf16_to_f32(halves[i])
                                               : hd_f16_to_f32(halves[i]);

        if (out_dtype == HD_F32)
            memcpy((float *)want->data + i, &x, sizeof x);
        else
            ((uint16_t *)want->data)[i] =
                out_dtype == HD_BF16 ? hd_f32_to_bf16(x) : hd_f32_to_f16(x);
    }
    device_launch(device, HD_K_cast, &a);
    assert_same_bits("out", out, want);

    a.out = (char *)out->data + hd_dtype_size(out_dtype); /* off any vector's bound */
    a.inp = (char *)inp->data + hd_dtype_size(inp_dtype);
    a.N = N - 1;
    tensor_poison(out);
    memcpy(out->data, want->data, hd_dtype_size(out_dtype));
    device_launch(device, HD_K_cast, &a);
    assert_same_bits("out", out, want);
}

static void cast_rounds_to_nearest_even(void **state)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int pair = 0; pair < float_type_count * float_type_count; pair++) {
            check_cast(&device, float_types[pair / float_type_count],
                       float_types[pair % float_type_count]);
            tensors_free();
        }
        device_close(&device);
    }
}

/* Columns of wider rows, from one encoding to another and times a factor, bit for bit; what lies
 * between them stays. */
static void check_copy_columns_of(struct device *device, enum hd_dtype dtype,
                                  enum hd_dtype out_dtype, bool whole, float factor)
{
    enum { R = 5 };
    const int64_t N = whole ? 40 : 37, LDI = whole ? 48 : 50, LDO = whole ? 64 : 61;
    const struct tensor *inp = tensor_random(R * LDI, dtype, 2, 1);
    struct tensor *out = tensor_random(R * LDO, out_dtype, 2, 2), *want = tensor_copy(out);

    for (int64_t i = 0; i < R * N; i++)
        tensor_put(want, i / N * LDO + i % N, factor * inp->values[i / N * LDI + i % N]);
    device_launch(device, HD_K_copy_columns,
                  &(struct hd_copy_columns_args){.out = out->data,
                                                 .inp = inp->data,
                                                 .R = R,
                                                 .N = N,
                                                 .ldo = LDO,
                                                 .ldi = LDI,
                                                 .factor = factor,
                                                 .out_dtype = out_dtype,
                                                 .inp_dtype = dtype});
    assert_same_bits("out", out, want);
}

static void check_copy_columns(struct device *device, enum hd_dtype dtype, bool whole)
{
    for (int i = 0; i < float_type_count; i++) {
        check_copy_columns_of(device, dtype, float_types[i], whole, 1);
        check_copy_columns_of(device, dtype, float_types[i], whole, 1.375F);
    }
}

static void columns_are_copied_and_nothing_beside_them(void **state)
{
    everywhere(check_copy_columns);
}

static void zero_stores_exactly_its_bytes(void **state)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        struct tensor *t = tensor_new(300001, HD_U8); /* several pieces, and a guard behind */
        struct hd_zero_args a = {.out = t->data, .size_bytes = t->count};

        device_launch(&device, HD_K_zero, &a);
        for (int64_t i = 0; i < t->count; i++)
            assert_int_equal(((unsigned char *)t->data)[i], 0);
        tensor_poison(t); /* from within a vector to within another */
        a.out = (char *)t->data + 3;
        a.size_bytes = 1000;
        device_launch(&device, HD_K_zero, &a);
        for (int64_t i = 0; i < t->count; i++)
            assert_int_equal(((unsigned char *)t->data)[i], i >= 3 && i < 1003 ? 0 : 0xff);
        tensors_free();
        device_close(&device);
    }
}

/* Widths with rests, rows with a distance: every channel of a head turns, or some of them, from the
 * first on or later (W and first), in halves or in neighbours. */
struct turn {
    int64_t D, H, gap, W, first;
    bool interleaved;
};
static const struct turn turns[2][4] = {{{10, 5, 7, 10, 0, false},
                                         {11, 5, 3, 6, 5, false},
                                         {10, 5, 7, 10, 0, true},
                                         {45, 3, 0, 34, 11, true}},
                                        {{64, 11, 8, 64, 0, false},
                                         {96, 3, 8, 64, 32, false},
                                         {64, 11, 8, 64, 0, true},
                                         {96, 3, 0, 32, 64, true}}};

/* Heads of a fused row; turning back gives x again; channels that do not turn keep their bits. */
static void check_rope_of(struct device *device, enum hd_dtype dtype, const struct turn *t)
{
    enum { R = 37, P = 50 };
    const int64_t D = t->D, H = t->H, W = t->W, ldx = H * D + t->gap;
    const struct ref_rope turn = {.W = W, .first = t->first, .interleaved = t->interleaved};
    const struct tensor *dense = tensor_random(R * H * D, dtype, 1, 1);
    const struct tensor *position = tensor_random_int32(R, 0, P, 2);
    struct tensor *table = tensor_new(P * W, HD_F32), *x = tensor_new(R * ldx, dtype);
    struct tensor *turned = tensor_new(R * H * D, dtype);
    double *want = doubles(R * H * D);
    struct hd_rope_args a = {.x = x->data,
                             .position = position->data,
                             .table = table->data,
                             .R = R,
                             .H = H,
                             .D = D,
                             .P = P,
                             .ldx = ldx,
                             .rotated = W == D ? 0 : W,
                             .first = t->first,
                             .interleaved = t->interleaved,
                             .dtype = dtype};

    for (int64_t i = 0; i < P * W / 2; i++) {
        const double angle =
            (double)(i / (W / 2)) * pow(10000, -2.0 * (double)(i % (W / 2)) / (double)W);

        tensor_put(table, 2 * i, cos(angle));
        tensor_put(table, 2 * i + 1, sin(angle));
    }
    for (int64_t i = 0; i < dense->count; i++) {
        want[i] = dense->values[i];
        tensor_put(x, i / (H * D) * ldx + i % (H * D), want[i]);
    }
    ref_rope(want, position->data, table->values, R, H, D, &turn);
    device_launch(device, HD_K_rope, &a);
    for (int64_t i = 0; i < dense->count; i++)
        tensor_put(turned, i, tensor_get(x, i / (H * D) * ldx + i % (H * D)));
    assert_close("x", turned, want, 8);
    for (int64_t i = 0; i < dense->count; i++)
        if (i % D < t->first || i % D >= t->first + W)
            assert_true(tensor_get(turned, i) == dense->values[i]);

    /* A bf16 pair was rounded once: turned back, up to 2^-8 of each of its members is wrong; of an
     * f16 pair 2^-11. */
    a.inverse = true;
    device_launch(device, HD_K_rope, &a);
    for (int64_t i = 0; i < dense->count; i++)
        tensor_put(turned, i, tensor_get(x, i / (H * D) * ldx + i % (H * D)));
    assert_close("x", turned, dense->values,
                 16 + (dtype == HD_BF16  ? 2 * 0x1p16
                       : dtype == HD_F16 ? 2 * 0x1p13
                                         : 0));
}

static void check_rope(struct device *device, enum hd_dtype dtype, bool wide)
{
    for (int i = 0; i < 4; i++)
        check_rope_of(device, dtype, &turns[wide][i]);
}

static void rope_turns_and_turns_back(void **state)
{
    everywhere(check_rope);
}

static void channels_that_are_no_pairs_of_a_head_are_refused(void **state)
{
    struct device device = device_open(&settings[0]);
    struct hd_rope_args odd = {.H = 2, .D = 8, .ldx = 16, .rotated = 3, .dtype = HD_F32};
    struct hd_rope_args beyond = {
        .H = 2, .D = 8, .ldx = 16, .rotated = 6, .first = 4, .dtype = HD_F32};

    assert_int_equal(device_try(&device, HD_K_rope, &odd), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "3 channels"));
    assert_int_equal(device_try(&device, HD_K_rope, &beyond), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "channels 4 to 9 rotate"));
    device_close(&device);
}

/* The first columns of a row are multiplied by the number that the table has for the row's
 * position; those behind them keep their bits. */
static void check_query_factor(struct device *device, enum hd_dtype dtype, bool wide)
{
    enum { R = 37, P = 50 };
    const int64_t N = wide ? WHOLE : 45, ldx = N + (wide ? 64 : 13);
    struct tensor *x = tensor_random(R * ldx, dtype, 1, 1);
    const struct tensor *position = tensor_random_int32(R, 0, P, 2);
    const struct tensor *table = tensor_random(P, HD_F32, 2, 3);
    double *want = doubles(R * ldx);
    struct hd_query_factor_args a = {.x = x->data,
                                     .position = position->data,
                                     .table = table->data,
                                     .R = R,
                                     .N = N,
                                     .P = P,
                                     .ldx = ldx,
                                     .dtype = dtype};

    for (int64_t i = 0; i < R * ldx; i++)
        want[i] = x->values[i] *
                  (i % ldx < N ? table->values[((const int32_t *)position->data)[i / ldx]] : 1);
    device_launch(device, HD_K_query_factor, &a);
    assert_close("x", x, want, 8);
    for (int64_t i = 0; i < R * ldx; i++)
        assert_true(i % ldx < N || tensor_get(x, i) == want[i]);
}

static void queries_are_multiplied_by_the_factor_of_their_position(void **state)
{
    everywhere(check_query_factor);
}

static void check_embedding_of(struct device *device, int64_t C, float scale, enum hd_dtype dtype,
                               bool two_tables)
{
    enum { R = 130, V = 40, V2 = 70 };
    const struct tensor *weight = tensor_random(V * C, dtype, 1, 1);
    double *scaled = doubles(V * C);
    const struct tensor *weight2 = tensor_random(V2 * C, dtype, 1, 2);
    struct tensor *index = tensor_random_int32(R, 0, V, 3);
    const struct tensor *index2 = tensor_random_int32(R, 0, V2, 4);
    struct tensor *out = tensor_new(R * C, dtype);
    double *want = doubles(R * C);
    struct hd_embedding_forward_args a = {.out = out->data,
                                          .index = index->data,
                                          .weight = weight->data,
                                          .index2 = two_tables ? index2->data : NULL,
                                          .weight2 = two_tables ? weight2->data : NULL,
                                          .R = R,
                                          .C = C,
                                          .V = V,
                                          .V2 = V2,
                                          .scale = scale,
                                          .dtype = dtype};

    for (int64_t i = 0; i < V * C; i++)
        scaled[i] = (scale != 0 ? (double)scale : 1) * weight->values[i];
    tensor_put(index, 5, -1);
    tensor_put(index, 6, V);
    ref_embedding(want, index->data, scaled, a.index2, weight2->values, R, C, V, V2);
    device_launch(device, HD_K_embedding_forward, &a);
    assert_close("out", out, want, 1);

    for (int64_t r = 0; r < R; r++) /* the same table as a share that begins at 1000 */
        tensor_put(index, r, index->values[r] + 1000);
    a.first = 1000;
    tensor_poison(out);
    device_launch(device, HD_K_embedding_forward, &a);
    assert_close("out", out, want, 1);
}

static void check_embedding(struct device *device, enum hd_dtype dtype, bool two_tables)
{
    check_embedding_of(device, 45, 0, dtype, two_tables);
    check_embedding_of(device, 48, 0, dtype, two_tables);
    check_embedding_of(device, 45, 4, dtype, two_tables); /* exact products */
    check_embedding_of(device, 48, 4, dtype, two_tables);
}

static void embedding_reads_the_named_rows(void **state)
{
    everywhere(check_embedding);
}

/* The indices of a table that begins at `first`. */
static const int32_t *indices_of(const struct tensor *index, int64_t first)
{
    struct tensor *out = tensor_copy(index);

    for (int64_t r = 0; r < index->count; r++)
        tensor_put(out, r, index->values[r] - (double)first);
    return out->data;
}

/* Checks a table of V rows of which `named` are named, of them by many. */
static void check_embedding_backward_of(struct device *device, int64_t R, int64_t C, int64_t V,
                                        int64_t named, float scale, enum hd_dtype dtype,
                                        bool accumulate)
{
    struct tensor *index = tensor_random_int32(R, 0, named, 3);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    struct tensor *dweight =
        accumulate ? tensor_random(V * C, HD_F32, 1, 5) : tensor_new(V * C, HD_F32);
    const double factor = scale != 0 ? (double)scale : 1;
    double *want = doubles(V * C);
    struct hd_embedding_backward_args a = {.dweight = dweight->data,
                                           .index = index->data,
                                           .dout = dout->data,
                                           .R = R,
                                           .C = C,
                                           .V = V,
                                           .scale = scale,
                                           .accumulate = accumulate,
                                           .dtype = dtype};

    tensor_put(index, 5, -1);
    tensor_put(index, 6, V);
    ref_embedding_backward(want, index->data, dout->values, R, C, V);
    for (int64_t i = 0; i < V * C; i++)
        want[i] = factor * want[i] + (accumulate ? dweight->values[i] : 0);
    device_launch(device, HD_K_embedding_backward, &a);
    assert_close("dweight", dweight, want, FP32_UNITS);

    for (int64_t r = 0; r < R; r++)
        tensor_put(index, r, index->values[r] + 1000);
    a.first = 1000;
    a.accumulate = false;
    ref_embedding_backward(want, indices_of(index, 1000), dout->values, R, C, V);
    for (int64_t i = 0; i < V * C; i++)
        want[i] *= factor;
    device_launch(device, HD_K_embedding_backward, &a);
    assert_close("dweight", dweight, want, FP32_UNITS);
}

/* An index that few rows name, and one that no row names; ones that a GPU sums in pieces, which end
 * and begin in each other's neighbourhood; a table of more rows than a block of its has warps. */
static void check_embedding_backward(struct device *device, enum hd_dtype dtype, bool accumulate)
{
    check_embedding_backward_of(device, 130, 45, 40, 33, 0, dtype, accumulate);
    check_embedding_backward_of(device, 130, 48, 40, 33, 3.5f, dtype, accumulate);
    check_embedding_backward_of(device, 700, 48, 7, 5, 0.25f, dtype, accumulate);
    if (!accumulate)
        check_embedding_backward_of(device, 321, 5, 300, 3, 0, dtype, false);
    if (dtype == HD_F32)
        check_embedding_backward_of(device, 5000, 3, 8300, 8300, 0, dtype, accumulate);
}

static void embedding_gradient_gathers_the_named_rows(void **state)
{
    everywhere(check_embedding_backward);
}

/* Goal: rows land behind the filled ones of each sequence's slot, with both row distances; what
 * does not fit is dropped and said. Method: each sequence has another number of rows; only the last
 * one of them may be too long. */
static void check_cache_of(struct device *device, bool whole, enum hd_dtype dtype, bool too_long)
{
    enum { B = 3, SLOTS = 4, ROWS_MAX = 20, NEW = 6 };
    const int64_t N = whole ? 16 : 11, LDI = whole ? 24 : 13, LDC = whole ? 32 : 17;
    const int32_t filled[B] = {4, 0, too_long ? ROWS_MAX - 2 : 9}, slot[B] = {2, 0, 3};
    const int sequence[SLOTS] = {1, -1, 0, 2}; /* of each slot */
    const struct tensor *inp = tensor_random(B * NEW * LDI, dtype, 1, 1);
    struct tensor *cache = tensor_new(SLOTS * ROWS_MAX * LDC, dtype);
    int64_t *overflow = reachable(NULL, sizeof *overflow);
    struct hd_cache_append_args a = {.cache = cache->data,
                                     .overflow = overflow,
                                     .inp = inp->data,
                                     .filled = reachable(filled, sizeof filled),
                                     .slot = reachable(slot, sizeof slot),
                                     .B = B,
                                     .rows = ROWS_MAX,
                                     .new_rows = NEW,
                                     .N = N,
                                     .ldi = LDI,
                                     .ldc = LDC,
                                     .dtype = dtype};

    device_launch(device, HD_K_cache_append, &a);
    assert_int_equal(*overflow, too_long);
    for (int64_t i = 0; i < cache->count; i++) {
        const int b = sequence[i / LDC / ROWS_MAX];
        const int64_t row = i / LDC % ROWS_MAX - (b < 0 ? 0 : filled[b]), n = i % LDC;

        if (b >= 0 && row >= 0 && row < NEW && n < N)
            assert_true(tensor_get(cache, i) == inp->values[(b * NEW + row) * LDI + n]);
        else
            assert_true(isnan(tensor_get(cache, i)));
    }
}

static void check_cache(struct device *device, enum hd_dtype dtype, bool too_long)
{
    check_cache_of(device, false, dtype, too_long);
    check_cache_of(device, true, dtype, too_long);
}

static void cache_append_writes_behind_the_filled_rows(void **state)
{
    everywhere(check_cache);
}

/* Goal: nothing is nothing. Method: no elements and no rows, at addresses that may not be touched.
 */
static void nothing_is_done_with_no_elements(void **state)
{
    struct device device = device_open(&settings[0]);
    struct hd_add_args add = {.dtype = HD_F32};
    struct hd_cast_args cast = {.out_dtype = HD_BF16, .inp_dtype = HD_F32};
    struct hd_copy_columns_args copy = {
        .N = 8, .factor = 1, .out_dtype = HD_F32, .inp_dtype = HD_F32};
    struct hd_zero_args zero = {0};
    struct hd_glu_forward_args glu = {.F = 8, .dtype = HD_F32};
    struct hd_activation_backward_args activation = {.dtype = HD_F32};
    struct hd_bias_forward_args bias = {.N = 8, .dtype = HD_F32};
    struct hd_rope_args rope = {.H = 2, .D = 8, .ldx = 16, .dtype = HD_F32};
    struct hd_query_factor_args factor = {.N = 8, .ldx = 16, .dtype = HD_F32};
    struct hd_embedding_forward_args embedding = {.C = 8, .V = 3, .dtype = HD_F32};
    struct tensor *dweight = tensor_new(24, HD_F32);
    struct hd_embedding_backward_args b = {
        .dweight = dweight->data, .C = 8, .V = 3, .dtype = HD_F32};

    device_launch(&device, HD_K_add, &add);
    device_launch(&device, HD_K_cast, &cast);
    device_launch(&device, HD_K_copy_columns, &copy);
    device_launch(&device, HD_K_zero, &zero);
    device_launch(&device, HD_K_glu_forward, &glu);
    device_launch(&device, HD_K_activation_backward, &activation);
    device_launch(&device, HD_K_bias_forward, &bias);
    device_launch(&device, HD_K_rope, &rope);
    device_launch(&device, HD_K_query_factor, &factor);
    device_launch(&device, HD_K_embedding_forward, &embedding);
    device_launch(&device, HD_K_embedding_backward, &b); /* but the table is stored whole */
    for (int64_t i = 0; i < dweight->count; i++)
        assert_true(tensor_get(dweight, i) == 0);
    device_close(&device);
    tensors_free();
}

static void an_encoding_that_is_not_computed_with_is_refused(void **state)
{
    struct device device = device_open(&settings[0]);
    struct hd_add_args a = {.N = 1, .dtype = HD_F64};
    struct hd_gemm_args g = {.M = 1, .N = 1, .K = 1, .ab_dtype = HD_F32, .c_dtype = HD_F64};

    assert_int_equal(device_try(&device, HD_K_add, &a), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "f64"));
    assert_int_equal(device_try(&device, HD_K_gemm, &g), HD_UNSUPPORTED);
    device_close(&device);
}

RUN_CASES()

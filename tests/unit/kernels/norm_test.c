/* norm: RMSNorm and LayerNorm, forward and both backwards, and the sum over rows of a bias. */
#include <math.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {5, 64}, {130, 33}, {200, 129}};
/* Rows that a GPU shares among lanes, warps and blocks, with and without whole vectors; too long
 * for registers; more of them than it takes at a time. Each in one setting. */
static const int64_t wide_sizes[][2] = {{1, 768},   {3, 1023},  {2, 1024}, {2, 4104},
                                        {2, 12296}, {1, 20008}, {2, 2051}, {4099, 5}};
enum {
    SIZE_COUNT = sizeof sizes / sizeof sizes[0],
    WIDE_COUNT = sizeof wide_sizes / sizeof wide_sizes[0]
};

/* Calls `check` in every size and encoding, with and without `option`; settings share the cases. */
typedef void check_norm(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                        bool option);

static void up_to(int64_t C_max, check_norm *check)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int i = 0; i < SIZE_COUNT + WIDE_COUNT; i++)
            for (int kind = 0; kind < 2 * float_type_count; kind++) {
                const bool wide = i >= SIZE_COUNT;
                const int64_t *size = wide ? wide_sizes[i - SIZE_COUNT] : sizes[i];

                if (size[1] > C_max || (wide ? i % setting_count != setting
                                             : !on_takes(setting, i + kind + kind / 2, 2)))
                    continue;
                check(&device, size[0], size[1], float_types[kind / 2], kind & 1);
                tensors_free();
            }
        device_close(&device);
    }
}

static void everywhere(check_norm *check)
{
    up_to(INT64_MAX, check);
}

/* Sums over rows: what is wide is only more of the same. */
static void up_to_4104(check_norm *check)
{
    up_to(4104, check);
}

/* And rows of several chunks, some of them rows beyond the last whole round of a block. */
static void with_many_rows(check_norm *check)
{
    static const int64_t many[][2] = {{75, 64}, {520, 8}, {33, 1000}};

    up_to(12296, check);
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int kind = 0; kind < 2 * float_type_count * 3; kind++) {
            if (!on_takes(setting, kind + kind / 6, 3))
                continue;
            check(&device, many[kind % 3][0], many[kind % 3][1], float_types[kind / 6],
                  kind / 3 & 1);
            tensors_free();
        }
        device_close(&device);
    }
}

/* Sums of many thousand terms in a row may err by more than the standard tolerance. */
static double units(int64_t C)
{
    return FP32_UNITS + (double)C / 64;
}

/* The factor of the added rows: a power of 2, whose products are exact; 0, which is 1, with every
 * second width. */
static float factor_of(int64_t C)
{
    return C / 2 % 2 ? 0.25f : 0;
}

/* The sum is compared exactly rounded, then the norm with that of the stored sum. */
static struct tensor *check_sum(const struct tensor *inp, const struct tensor *add, float factor,
                                struct tensor *sum)
{
    double *want = doubles(inp->count);

    for (int64_t i = 0; i < inp->count; i++)
        want[i] = inp->values[i] + (double)factor * add->values[i];
    assert_close("sum", sum, want, 1);
    for (int64_t i = 0; i < sum->count; i++)
        sum->values[i] = tensor_get(sum, i);
    return sum;
}

static void check_rmsnorm(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                          bool with_add)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1), *inp_given = inp;
    const struct tensor *add = tensor_random(R * C, dtype, 2, 2);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    struct tensor *out = tensor_new(R * C, dtype), *sum = tensor_new(R * C, dtype);
    struct tensor *rstd = tensor_new(R, HD_F32);
    double *want = doubles(R * C), *want_rstd = doubles(R);
    struct hd_rmsnorm_forward_args a = {.out = out->data,
                                        .sum = with_add ? sum->data : NULL,
                                        .rstd = rstd->data,
                                        .inp = inp->data,
                                        .add = with_add ? add->data : NULL,
                                        .weight = weight->data,
                                        .R = R,
                                        .C = C,
                                        .eps = 1e-3f,
                                        .factor = factor_of(C),
                                        .dtype = dtype};

    device_launch(device, HD_K_rmsnorm_forward, &a);
    if (with_add)
        inp = check_sum(inp, add, hd_factor_of(a.factor), sum);
    ref_rmsnorm(want, want_rstd, inp->values, weight->values, R, C, (double)a.eps);
    assert_close("out", out, want, units(C));
    assert_close("rstd", rstd, want_rstd, units(C));
    for (int alias = 0; with_add && alias < 2; alias++) { /* the sum in place of inp, or of add */
        struct tensor *place = tensor_copy(alias ? add : inp_given),
                      *again = tensor_new(R * C, dtype);

        a.out = again->data;
        a.sum = place->data;
        a.inp = alias ? inp_given->data : place->data;
        a.add = alias ? place->data : add->data;
        device_launch(device, HD_K_rmsnorm_forward, &a);
        assert_same_bits("sum in place", place, sum);
        assert_same_bits("out", again, out);
    }
}

static void rmsnorm_is_the_reference(void **state)
{
    everywhere(check_rmsnorm);
}

/* The largest of rstd * weight * dout: gradients are differences of such terms, and with one
 * channel nothing but their rounding is left. */
static double largest_term(const struct tensor *rstd, const struct tensor *weight,
                           const struct tensor *dout)
{
    double largest = 0;

    for (int64_t i = 0; i < dout->count; i++)
        largest = fmax(largest, fabs(rstd->values[i / weight->count] *
                                     weight->values[i % weight->count] * dout->values[i]));
    return largest;
}

static void check_rmsnorm_backward(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                                   bool with_add)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *add = tensor_random(R * C, dtype, 2, 2);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    struct tensor *dinp = tensor_new(R * C, dtype), *rstd = tensor_new(R, HD_F32);
    double *want = doubles(R * C), *want_rstd = doubles(R), *scrap = doubles(R * C);
    struct hd_rmsnorm_backward_args a = {.dinp = dinp->data,
                                         .dout = dout->data,
                                         .inp = inp->data,
                                         .rstd = rstd->data,
                                         .weight = weight->data,
                                         .add = with_add ? add->data : NULL,
                                         .R = R,
                                         .C = C,
                                         .dtype = dtype};

    ref_rmsnorm(scrap, want_rstd, inp->values, weight->values, R, C, 1e-3);
    for (int64_t r = 0; r < R; r++)
        tensor_put(rstd, r, want_rstd[r]);
    ref_rmsnorm_backward(want, NULL, dout->values, inp->values, weight->values, R, C, 1e-3);
    for (int64_t i = 0; with_add && i < R * C; i++)
        want[i] += add->values[i];
    device_launch(device, HD_K_rmsnorm_backward, &a);
    assert_close_terms("dinp", dinp, want, units(C), largest_term(rstd, weight, dout));

    /* in place of dout, then of add */
    a.dinp = tensor_copy(dout)->data;
    a.dout = a.dinp;
    device_launch(device, HD_K_rmsnorm_backward, &a);
    assert_memory_equal(a.dinp, dinp->data, (size_t)(R * C) * hd_dtype_size(dtype));
    if (with_add) {
        a.dout = dout->data;
        a.dinp = tensor_copy(add)->data;
        a.add = a.dinp;
        device_launch(device, HD_K_rmsnorm_backward, &a);
        assert_memory_equal(a.dinp, dinp->data, (size_t)(R * C) * hd_dtype_size(dtype));
    }
}

static void rmsnorm_backward_is_the_reference(void **state)
{
    everywhere(check_rmsnorm_backward);
}

/* Goal: rows may begin at any element. Method: the same operands one element further on in memory,
 * with rows that would be whole vectors; results as close as ever. */
static void check_odd_addresses(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype)
{
    const size_t e = hd_dtype_size(dtype);
    const struct tensor *inp = tensor_random(R * C + 1, dtype, 2, 1);
    const struct tensor *weight = tensor_random(C + 1, dtype, 1, 3);
    struct tensor *out = tensor_new(R * C + 1, dtype), *rstd = tensor_new(R, HD_F32);
    double *want = doubles(R * C + 1), *want_rstd = doubles(R);
    struct hd_rmsnorm_forward_args a = {.out = (char *)out->data + e,
                                        .rstd = rstd->data,
                                        .inp = (char *)inp->data + e,
                                        .weight = (char *)weight->data + e,
                                        .R = R,
                                        .C = C,
                                        .eps = 1e-3f,
                                        .dtype = dtype};
    struct hd_rmsnorm_backward_args b = {.dinp = a.out,
                                         .dout = a.inp,
                                         .inp = a.inp,
                                         .rstd = rstd->data,
                                         .weight = a.weight,
                                         .R = R,
                                         .C = C,
                                         .dtype = dtype};

    tensor_put(out, 0, 1);
    want[0] = 1; /* what lies before is nobody's */
    ref_rmsnorm(want + 1, want_rstd, inp->values + 1, weight->values + 1, R, C, (double)a.eps);
    device_launch(device, HD_K_rmsnorm_forward, &a);
    assert_close("out", out, want, units(C));
    ref_rmsnorm_backward(want + 1, NULL, inp->values + 1, inp->values + 1, weight->values + 1, R, C,
                         (double)a.eps);
    device_launch(device, HD_K_rmsnorm_backward, &b);
    assert_close("dinp", out, want, units(C));
}

static void rows_may_begin_at_any_element(void **state)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int type = 0; type < float_type_count; type++) {
            check_odd_addresses(&device, 5, 64, float_types[type]);
            check_odd_addresses(&device, 2, 2056, float_types[type]);
            tensors_free();
        }
        device_close(&device);
    }
}

/* Goal: nothing is nothing. Method: no rows; a sum over them is zero, or what was there. */
static void no_rows_store_zeros_into_gradients_and_nothing_else(void **state)
{
    enum { C = 40 };

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        struct tensor *dbias = tensor_new(C, HD_F32), *other = tensor_new(C, HD_F32);
        struct hd_rmsnorm_forward_args f = {.out = other->data, .C = C, .dtype = HD_F32};
        struct hd_rmsnorm_backward_args b = {.dinp = other->data, .C = C, .dtype = HD_F32};
        struct hd_bias_backward_args s = {.dbias = dbias->data, .N = C, .ldd = C, .dtype = HD_F32};

        device_launch(&device, HD_K_rmsnorm_forward, &f);
        device_launch(&device, HD_K_rmsnorm_backward, &b);
        device_launch(&device, HD_K_bias_backward, &s);
        s.accumulate = true;
        device_launch(&device, HD_K_bias_backward, &s);
        for (int64_t c = 0; c < C; c++) {
            assert_true(tensor_get(dbias, c) == 0);
            assert_true(isnan(tensor_get(other, c)));
        }
        tensors_free();
        device_close(&device);
    }
}

/* An old value to add to, or NaN that must be stored over. */
static struct tensor *gradient(int64_t count, bool accumulate, uint64_t key)
{
    return accumulate ? tensor_random(count, HD_F32, 1, key) : tensor_new(count, HD_F32);
}

static void check_gradient(const char *what, const struct tensor *got, double *want,
                           bool accumulate)
{
    for (int64_t i = 0; accumulate && i < got->count; i++)
        want[i] += got->values[i];
    assert_close(what, got, want, FP32_UNITS);
}

static void check_rmsnorm_weight(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                                 bool accumulate)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    struct tensor *dweight = gradient(C, accumulate, 5), *rstd = tensor_new(R, HD_F32);
    double *want = doubles(C), *want_rstd = doubles(R), *scrap = doubles(R * C);
    struct hd_rmsnorm_backward_weight_args a = {.dweight = dweight->data,
                                                .dout = dout->data,
                                                .inp = inp->data,
                                                .rstd = rstd->data,
                                                .R = R,
                                                .C = C,
                                                .accumulate = accumulate,
                                                .dtype = dtype};

    ref_rmsnorm(scrap, want_rstd, inp->values, weight->values, R, C, 1e-3);
    for (int64_t r = 0; r < R; r++)
        tensor_put(rstd, r, want_rstd[r]);
    ref_rmsnorm_backward(NULL, want, dout->values, inp->values, weight->values, R, C, 1e-3);
    device_launch(device, HD_K_rmsnorm_backward_weight, &a);
    check_gradient("dweight", dweight, want, accumulate);
}

static void rmsnorm_weight_gradient_is_the_reference(void **state)
{
    up_to_4104(check_rmsnorm_weight);
}

/* Both gradients in one pass, also in place of dout, and the same bits when it is repeated with the
 * partial sums of what is stored. */
static void check_rmsnorm_both(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                               bool accumulate)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *add = tensor_random(R * C, dtype, 2, 2);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    struct tensor *dinp = tensor_copy(dout), *rstd = tensor_new(R, HD_F32);
    struct tensor *dweight = gradient(C, accumulate, 5), *again = tensor_copy(dweight);
    struct tensor *repeated = tensor_new(R * C, dtype);
    struct tensor *sums = tensor_new(sums_count(device, R, C), HD_F32);
    double *want = doubles(R * C), *want_dweight = doubles(C), *want_rstd = doubles(R);
    struct hd_rmsnorm_backward_args a = {.dinp = dinp->data,
                                         .dweight = dweight->data,
                                         .dout = dinp->data,
                                         .inp = inp->data,
                                         .rstd = rstd->data,
                                         .weight = weight->data,
                                         .add = accumulate ? add->data : NULL,
                                         .R = R,
                                         .C = C,
                                         .accumulate = accumulate,
                                         .dtype = dtype};

    ref_rmsnorm(doubles(R * C), want_rstd, inp->values, weight->values, R, C, 1e-3);
    for (int64_t r = 0; r < R; r++)
        tensor_put(rstd, r, want_rstd[r]);
    ref_rmsnorm_backward(want, want_dweight, dout->values, inp->values, weight->values, R, C, 1e-3);
    for (int64_t i = 0; accumulate && i < R * C; i++)
        want[i] += add->values[i];
    device_launch(device, HD_K_rmsnorm_backward, &a);
    assert_close_terms("dinp", dinp, want, units(C), largest_term(rstd, weight, dout));
    check_gradient("dweight", dweight, want_dweight, accumulate);
    a.dinp = repeated->data;
    a.dweight = again->data;
    a.dout = dout->data;
    a.sums = sums->data;
    device_launch(device, HD_K_rmsnorm_backward, &a);
    assert_same_bits("dweight", again, dweight);
    assert_same_bits("dinp", repeated, dinp);
    assert_row_sums(device, dinp, sums, R, C);
}

static void rmsnorm_makes_both_gradients_in_one_pass(void **state)
{
    with_many_rows(check_rmsnorm_both);
}

static void check_layernorm(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                            bool with_add)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *add = tensor_random(R * C, dtype, 2, 2);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    const struct tensor *bias = tensor_random(C, dtype, 1, 6);
    struct tensor *out = tensor_new(R * C, dtype), *sum = tensor_new(R * C, dtype);
    struct tensor *mean = tensor_new(R, HD_F32), *rstd = tensor_new(R, HD_F32);
    double *want = doubles(R * C), *want_mean = doubles(R), *want_rstd = doubles(R);
    struct hd_layernorm_forward_args a = {.out = out->data,
                                          .sum = with_add ? sum->data : NULL,
                                          .mean = mean->data,
                                          .rstd = rstd->data,
                                          .inp = inp->data,
                                          .add = with_add ? add->data : NULL,
                                          .weight = weight->data,
                                          .bias = bias->data,
                                          .R = R,
                                          .C = C,
                                          .eps = 1e-3f,
                                          .factor = factor_of(C),
                                          .dtype = dtype};

    device_launch(device, HD_K_layernorm_forward, &a);
    if (with_add)
        inp = check_sum(inp, add, hd_factor_of(a.factor), sum);
    ref_layernorm(want, want_mean, want_rstd, inp->values, weight->values, bias->values, R, C,
                  (double)a.eps);
    assert_close("out", out, want, units(C));
    assert_close("mean", mean, want_mean, units(C));
    assert_close("rstd", rstd, want_rstd, units(C));
}

static void layernorm_is_the_reference(void **state)
{
    everywhere(check_layernorm);
}

/* mean and rstd as the forward kernel keeps them: rounded to fp32. */
static void put_moments(struct tensor *mean, struct tensor *rstd, const struct tensor *inp,
                        int64_t R, int64_t C)
{
    double *want_mean = doubles(R), *want_rstd = doubles(R), *scrap = doubles(R * C);

    ref_layernorm(scrap, want_mean, want_rstd, inp->values, scrap, scrap, R, C, 1e-3);
    for (int64_t r = 0; r < R; r++) {
        tensor_put(mean, r, want_mean[r]);
        tensor_put(rstd, r, want_rstd[r]);
    }
}

static void check_layernorm_backward(struct device *device, int64_t R, int64_t C,
                                     enum hd_dtype dtype, bool with_add)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *add = tensor_random(R * C, dtype, 2, 2);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    struct tensor *dinp = tensor_new(R * C, dtype);
    struct tensor *mean = tensor_new(R, HD_F32), *rstd = tensor_new(R, HD_F32);
    double *want = doubles(R * C);
    struct hd_layernorm_backward_args a = {.dinp = dinp->data,
                                           .dout = dout->data,
                                           .inp = inp->data,
                                           .mean = mean->data,
                                           .rstd = rstd->data,
                                           .weight = weight->data,
                                           .add = with_add ? add->data : NULL,
                                           .R = R,
                                           .C = C,
                                           .dtype = dtype};

    put_moments(mean, rstd, inp, R, C);
    ref_layernorm_backward(want, NULL, NULL, dout->values, inp->values, weight->values, R, C, 1e-3);
    for (int64_t i = 0; with_add && i < R * C; i++)
        want[i] += add->values[i];
    device_launch(device, HD_K_layernorm_backward, &a);
    assert_close_terms("dinp", dinp, want, units(C), largest_term(rstd, weight, dout));

    a.dinp = tensor_copy(dout)->data;
    a.dout = a.dinp;
    device_launch(device, HD_K_layernorm_backward, &a);
    assert_memory_equal(a.dinp, dinp->data, (size_t)(R * C) * hd_dtype_size(dtype));
}

static void layernorm_backward_is_the_reference(void **state)
{
    everywhere(check_layernorm_backward);
}

static void check_layernorm_weight(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                                   bool accumulate)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    struct tensor *dweight = gradient(C, accumulate, 5), *dbias = gradient(C, accumulate, 7);
    struct tensor *mean = tensor_new(R, HD_F32), *rstd = tensor_new(R, HD_F32);
    double *want = doubles(C), *want_bias = doubles(C);
    struct hd_layernorm_backward_weight_args a = {.dweight = dweight->data,
                                                  .dbias = dbias->data,
                                                  .dout = dout->data,
                                                  .inp = inp->data,
                                                  .mean = mean->data,
                                                  .rstd = rstd->data,
                                                  .R = R,
                                                  .C = C,
                                                  .accumulate = accumulate,
                                                  .dtype = dtype};

    put_moments(mean, rstd, inp, R, C);
    ref_layernorm_backward(NULL, want, want_bias, dout->values, inp->values, weight->values, R, C,
                           1e-3);
    device_launch(device, HD_K_layernorm_backward_weight, &a);
    if (C > 1) /* with one channel x - mean is 0, and so is the gradient of the weight */
        check_gradient("dweight", dweight, want, accumulate);
    check_gradient("dbias", dbias, want_bias, accumulate);
}

static void layernorm_weight_gradients_are_the_reference(void **state)
{
    up_to_4104(check_layernorm_weight);
}

static void check_layernorm_both(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                                 bool accumulate)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    struct tensor *dinp = tensor_copy(dout), *again = tensor_new(R * C, dtype);
    struct tensor *sums = tensor_new(sums_count(device, R, C), HD_F32);
    struct tensor *dweight = gradient(C, accumulate, 5), *dbias = gradient(C, accumulate, 7);
    struct tensor *mean = tensor_new(R, HD_F32), *rstd = tensor_new(R, HD_F32);
    double *want = doubles(R * C), *want_dweight = doubles(C), *want_dbias = doubles(C);
    struct hd_layernorm_backward_args a = {.dinp = dinp->data,
                                           .dweight = dweight->data,
                                           .dbias = dbias->data,
                                           .dout = dinp->data,
                                           .inp = inp->data,
                                           .mean = mean->data,
                                           .rstd = rstd->data,
                                           .weight = weight->data,
                                           .R = R,
                                           .C = C,
                                           .accumulate = accumulate,
                                           .dtype = dtype};

    put_moments(mean, rstd, inp, R, C);
    ref_layernorm_backward(want, want_dweight, want_dbias, dout->values, inp->values,
                           weight->values, R, C, 1e-3);
    device_launch(device, HD_K_layernorm_backward, &a);
    assert_close_terms("dinp", dinp, want, units(C), largest_term(rstd, weight, dout));
    if (C > 1) /* as above */
        check_gradient("dweight", dweight, want_dweight, accumulate);
    check_gradient("dbias", dbias, want_dbias, accumulate);
    a.dinp = again->data;
    a.dout = dout->data;
    a.sums = sums->data;
    if (!accumulate) /* sums in a pass of their own */
        a.dweight = a.dbias = NULL;
    device_launch(device, HD_K_layernorm_backward, &a);
    assert_same_bits("dinp", again, dinp);
    assert_row_sums(device, dinp, sums, R, C);
}

static void layernorm_makes_all_gradients_in_one_pass(void **state)
{
    with_many_rows(check_layernorm_both);
}

/* Goal: each head of q and of k is a row of RMSNorm with its weight, v is copied; the gradients
 * likewise. Method: the reference row by row. R sequences of C rows: H, G and D come from them, so
 * that D takes sizes with and without a tail. */
static void check_head_norm(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                            bool accumulate)
{
    enum { H = 3, G = 2 };
    const int64_t D = C, heads = H + 2 * G, normed = H + G;
    const struct tensor *inp = tensor_random(R * heads * D, dtype, 2, 1);
    const struct tensor *dout = tensor_random(R * heads * D, dtype, 1, 4);
    const struct tensor *weight[2] = {tensor_random(D, dtype, 1, 2), tensor_random(D, dtype, 1, 3)};
    struct tensor *out = tensor_new(R * heads * D, dtype), *dinp = tensor_new(R * heads * D, dtype);
    struct tensor *rstd = tensor_new(R * normed, HD_F32);
    struct tensor *dweight[2] = {gradient(D, accumulate, 5), gradient(D, accumulate, 6)};
    double *want = doubles(R * heads * D), *want_rstd = doubles(R * normed);
    double *want_dinp = doubles(R * heads * D), *want_dweight[2] = {doubles(D), doubles(D)};
    double *dweight_of_head = doubles(D);
    struct hd_head_norm_forward_args f = {.out = out->data,
                                          .rstd = rstd->data,
                                          .inp = inp->data,
                                          .q_weight = weight[0]->data,
                                          .k_weight = weight[1]->data,
                                          .R = R,
                                          .H = H,
                                          .G = G,
                                          .D = D,
                                          .eps = 1e-3f,
                                          .dtype = dtype};
    struct hd_head_norm_backward_args b = {.dinp = dinp->data,
                                           .dout = dout->data,
                                           .inp = inp->data,
                                           .rstd = rstd->data,
                                           .q_weight = weight[0]->data,
                                           .k_weight = weight[1]->data,
                                           .R = R,
                                           .H = H,
                                           .G = G,
                                           .D = D,
                                           .dtype = dtype};
    struct hd_head_norm_backward_weight_args w = {.dq_weight = dweight[0]->data,
                                                  .dk_weight = dweight[1]->data,
                                                  .dout = dout->data,
                                                  .inp = inp->data,
                                                  .rstd = rstd->data,
                                                  .R = R,
                                                  .H = H,
                                                  .G = G,
                                                  .D = D,
                                                  .accumulate = accumulate,
                                                  .dtype = dtype};
    double largest = 0;

    for (int64_t r = 0; r < R; r++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t at = (r * heads + h) * D;
            const int k = h >= H;

            if (h >= normed) {
                memcpy(want + at, inp->values + at, (size_t)D * sizeof *want);
                memcpy(want_dinp + at, dout->values + at, (size_t)D * sizeof *want);
                continue;
            }
            ref_rmsnorm(want + at, &want_rstd[r * normed + h], inp->values + at, weight[k]->values,
                        1, D, (double)f.eps);
            ref_rmsnorm_backward(want_dinp + at, dweight_of_head, dout->values + at,
                                 inp->values + at, weight[k]->values, 1, D, (double)f.eps);
            for (int64_t d = 0; d < D; d++)
                want_dweight[k][d] += dweight_of_head[d];
            for (int64_t d = 0; d < D; d++)
                largest = fmax(largest, fabs(want_rstd[r * normed + h] * weight[k]->values[d] *
                                             dout->values[at + d]));
        }
    device_launch(device, HD_K_head_norm_forward, &f);
    assert_close("out", out, want, units(D));
    assert_close("rstd", rstd, want_rstd, units(D));
    device_launch(device, HD_K_head_norm_backward, &b);
    assert_close_terms("dinp", dinp, want_dinp, units(D), largest);
    b.dinp = tensor_copy(dout)->data;
    b.dout = b.dinp;
    device_launch(device, HD_K_head_norm_backward, &b);
    assert_memory_equal(b.dinp, dinp->data, (size_t)dinp->count * hd_dtype_size(dtype));
    device_launch(device, HD_K_head_norm_backward_weight, &w);
    check_gradient("dq_weight", dweight[0], want_dweight[0], accumulate);
    check_gradient("dk_weight", dweight[1], want_dweight[1], accumulate);
}

static void head_norm_is_the_reference_head_by_head(void **state)
{
    up_to_4104(check_head_norm);
}

static void check_bias(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                       bool accumulate)
{
    const int64_t ldd = C + 3; /* the columns between rows hold NaN, which may not enter a sum */
    struct tensor *dout = tensor_new(R * ldd, dtype), *dbias = gradient(C, accumulate, 5);
    const struct tensor *values = tensor_random(R * C, dtype, 1, 8);
    double *want = doubles(C);
    struct hd_bias_backward_args a = {.dbias = dbias->data,
                                      .dout = dout->data,
                                      .R = R,
                                      .N = C,
                                      .ldd = ldd,
                                      .accumulate = accumulate,
                                      .dtype = dtype};

    for (int64_t i = 0; i < R * C; i++) {
        tensor_put(dout, i / C * ldd + i % C, values->values[i]);
        want[i % C] += values->values[i];
    }
    device_launch(device, HD_K_bias_backward, &a);
    check_gradient("dbias", dbias, want, accumulate);
}

static void bias_gradient_is_the_sum_of_rows(void **state)
{
    up_to_4104(check_bias);
}

/* Goal: sums over rows are chunked by shape. Method: 4500 rows, which make 64 chunks of 71 rows,
 * the last one shorter; 1, 2 and 3 threads give the same bits. */
static void threads_do_not_change_a_bit_of_a_sum_over_rows(void **state)
{
    enum { R = 4500, C = 37 };
    const struct tensor *dout = tensor_random(R * C, HD_F32, 1, 9);
    struct tensor *dbias[3];
    double *want = doubles(C);

    for (int64_t i = 0; i < R * C; i++)
        want[i % C] += dout->values[i];
    for (int i = 0; i < 3; i++) {
        struct device device = device_open(&settings[i]);
        struct hd_bias_backward_args a = {
            .dout = dout->data, .R = R, .N = C, .ldd = C, .dtype = HD_F32};

        dbias[i] = tensor_new(C, HD_F32);
        a.dbias = dbias[i]->data;
        device_launch(&device, HD_K_bias_backward, &a);
        assert_close("dbias", dbias[i], want, FP32_UNITS);
        assert_same_bits("dbias", dbias[i], dbias[0]);
        device_close(&device);
    }
    tensors_free();
}

RUN_CASES()

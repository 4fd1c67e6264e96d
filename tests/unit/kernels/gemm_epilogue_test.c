/* gemm with GELU or its derivative behind the product: against double, as the product and the other
 * pass are each on their own. */
#include <math.h>

#include "tests/unit/kernels/harness.h"

struct fused {
    int64_t M, N, K, pad; /* pad: elements between the rows of c, pre and gelu_inp */
    bool trans_a, trans_b, bias, keep;
    enum hd_gemm_epilogue epilogue;
    enum hd_dtype ab, c;
};

/* The largest error of the result at one place. `sum` is the product there, `size` the product of
 * absolute values: the sum errs as in units_of_sum (u = 2^-24), plus a few u of what is added.
 * GELU's slope is at most 1.13, and a launch may round the sum to c's encoding before GELU, as the
 * pair does; GELU itself errs some units of its argument. */
struct bounds {
    double pre, c;
};

static struct bounds bounds_of(const struct fused *p, double sum, double size, double added,
                               double want)
{
    const double fp32 = (units_of_sum(p->ab, p->K) + 4) * 0x1p-24 * (size + fabs(sum) + 4);
    struct bounds b = {.pre = fp32 + rounding_of_product(p->c, sum, added)};

    b.c = 1.2 * b.pre + rounding_of(p->c, want) + 16 * 0x1p-24 * (fabs(sum) + 1);
    return b;
}

static void check_between_rows(const struct tensor *t, int64_t rows, int64_t columns, int64_t ld)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = columns; j < ld; j++)
            assert_true(isnan(tensor_get(t, i * ld + j)));
}

static void check(struct device *device, const struct fused *p)
{
    const int64_t outputs = p->M * p->N, ldc = p->N + p->pad;
    const bool forward = p->epilogue == HD_EPILOGUE_GELU;
    const struct tensor *a = tensor_random(p->M * p->K, p->ab, 1, 1);
    const struct tensor *b = tensor_random(p->K * p->N, p->ab, 1, 2);
    const struct tensor *bias = tensor_random(p->N, p->ab, 3, 3);
    const struct tensor *at = tensor_random(outputs, p->c, 4, 4);
    const struct tensor *gelu_inp = tensor_rows(at->values, p->M, p->N, ldc, p->c);
    struct tensor *c = tensor_new(p->M * ldc, p->c), *pre = tensor_new(p->M * ldc, p->c);
    const struct product_in_double exact =
        product_in_double(a, b, p->bias ? bias : NULL, p->M, p->N, p->K, p->trans_a, p->trans_b);
    const double *sum = exact.sum, *size = exact.size;
    double *want = doubles(outputs);
    struct hd_gemm_args args = {.c = c->data,
                                .pre = p->keep ? pre->data : NULL,
                                .a = a->data,
                                .b = b->data,
                                .bias = p->bias ? bias->data : NULL,
                                .gelu_inp = forward ? NULL : gelu_inp->data,
                                .M = p->M,
                                .N = p->N,
                                .K = p->K,
                                .lda = p->trans_a ? p->M : p->K,
                                .ldb = p->trans_b ? p->K : p->N,
                                .ldc = ldc,
                                .trans_a = p->trans_a,
                                .trans_b = p->trans_b,
                                .epilogue = p->epilogue,
                                .ab_dtype = p->ab,
                                .c_dtype = p->c};

    if (forward)
        ref_gelu(want, sum, outputs);
    else
        ref_gelu_backward(want, sum, at->values, outputs);

    device_launch(device, HD_K_gemm, &args);
    for (int64_t i = 0; i < outputs; i++) {
        const double added = p->bias ? fabs(bias->values[i % p->N]) : 0;
        const struct bounds may = bounds_of(p, sum[i], size[i], added, want[i]);
        const int64_t place = i / p->N * ldc + i % p->N;

        assert_close_at("c", i, tensor_get(c, place), want[i], may.c);
        if (p->keep)
            assert_close_at("pre", i, tensor_get(pre, place), sum[i], may.pre);
        else
            assert_true(isnan(tensor_get(pre, place)));
    }
    check_between_rows(c, p->M, p->N, ldc);
    check_between_rows(pre, p->M, p->N, ldc);
}

/* Sizes: one of everything, a row (decoding), odd ones, whole tiles, a depth of several slices, and
 * shapes whose rows are multiples of 8, which the libraries take as they are. */
static void every_epilogue_is_right(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},    {1, 40, 33},   {7, 5, 3},
                                       {3, 129, 65}, {28, 64, 64},  {64, 48, 32},
                                       {17, 8, 513}, {50, 72, 400}, {6, 40, 1100}};
    static const int64_t pads[] = {0, 5, 8};
    static const enum hd_dtype types[][2] = {{HD_F32, HD_F32},  {HD_BF16, HD_BF16},
                                             {HD_BF16, HD_F32}, {HD_F32, HD_BF16},
                                             {HD_F16, HD_F16},  {HD_F16, HD_F32}};
    const int type_count = sizeof types / sizeof types[0];

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int type = 0; type < type_count; type++)
                for (int bits = 0; bits < 12; bits++) {
                    const bool forward = bits < 8;
                    const struct fused p = {.M = sizes[i][0],
                                            .N = sizes[i][1],
                                            .K = sizes[i][2],
                                            .pad = pads[(i + (size_t)type + (size_t)bits / 4) % 3],
                                            .trans_a = (bits + type) & 1,
                                            .trans_b = (bits ^ (int)i) & 2,
                                            .bias = forward && bits & 1,
                                            .keep = forward && bits & 2,
                                            .epilogue = forward ? HD_EPILOGUE_GELU
                                                                : HD_EPILOGUE_GELU_BACKWARD,
                                            .ab = types[type][0],
                                            .c = types[type][1]};

                    if (!setting_takes(s, p.ab) ||
                        !on_takes(s, (int64_t)i + type + bits, gemm_setting_count))
                        continue;
                    check(&device, &p);
                    tensors_free();
                }
        device_close(&device);
    }
    kept_free();
}

/* ---- The rest ---- */

/* Nothing to add up: GELU of the bias, and a gradient of zeros. */
static void an_empty_depth_has_its_epilogue(void **state)
{
    enum { M = 3, N = 8 };

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);
        const struct tensor *bias = tensor_random(N, HD_F32, 2, 1);
        const struct tensor *inp = tensor_random(M * N, HD_F32, 2, 2);
        struct tensor *c = tensor_new(M * N, HD_F32), *pre = tensor_new(M * N, HD_F32);
        double sums[M * N], want[M * N], zeros[M * N] = {0};
        struct hd_gemm_args args = {.c = c->data,
                                    .pre = pre->data,
                                    .bias = bias->data,
                                    .M = M,
                                    .N = N,
                                    .lda = 1,
                                    .ldb = N,
                                    .ldc = N,
                                    .epilogue = HD_EPILOGUE_GELU,
                                    .ab_dtype = HD_F32,
                                    .c_dtype = HD_F32};

        for (int i = 0; i < M * N; i++)
            sums[i] = bias->values[i % N];
        ref_gelu(want, sums, (int64_t)M * N);
        device_launch(&device, HD_K_gemm, &args);
        assert_close("pre", pre, sums, 0);
        assert_close("c", c, want, FP32_UNITS);
        args.pre = NULL;
        args.bias = NULL;
        args.gelu_inp = inp->data;
        args.epilogue = HD_EPILOGUE_GELU_BACKWARD;
        device_launch(&device, HD_K_gemm, &args);
        assert_close("c", c, zeros, 0);
        tensors_free();
        device_close(&device);
    }
}

/* Goal: a meaningless epilogue is refused: GELU of a part of a sum, and a bias in a gradient. */
static void what_an_epilogue_cannot_stand_behind_is_refused(void **state)
{
    struct device device = device_open(&settings[0]);
    void *x = reachable(NULL, sizeof(float));
    struct hd_gemm_args args = {.c = x,
                                .a = x,
                                .b = x,
                                .M = 1,
                                .N = 1,
                                .K = 1,
                                .lda = 1,
                                .ldb = 1,
                                .ldc = 1,
                                .accumulate = true,
                                .epilogue = HD_EPILOGUE_GELU};

    assert_int_equal(device_try(&device, HD_K_gemm, &args), HD_INVALID);
    args.epilogue = HD_EPILOGUE_GELU_BACKWARD;
    args.gelu_inp = x;
    assert_int_equal(device_try(&device, HD_K_gemm, &args), HD_INVALID);
    args.accumulate = false;
    args.bias = x;
    assert_int_equal(device_try(&device, HD_K_gemm, &args), HD_INVALID);
    tensors_free();
    device_close(&device);
}

/* Goal: the last bit of what backward reads is what forward made GELU of. Method: pre of a fused
 * launch and c of the product alone, bit for bit, on own code, whose order of sums knows nothing of
 * the epilogue; then GELU's gradient behind a product against the pair, in fp32 units. */
static void the_pair_and_the_fused_launch_agree(void **state)
{
    enum { M = 37, N = 48, K = 300 };

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);
        const struct tensor *a = tensor_random(M * K, HD_F32, 1, 1);
        const struct tensor *b = tensor_random(K * N, HD_F32, 1, 2);
        struct tensor *alone = tensor_new(M * N, HD_F32), *pre = tensor_new(M * N, HD_F32);
        struct tensor *c = tensor_new(M * N, HD_F32), *pair = tensor_new(M * N, HD_F32);
        struct hd_gemm_args args = {.c = alone->data,
                                    .a = a->data,
                                    .b = b->data,
                                    .M = M,
                                    .N = N,
                                    .K = K,
                                    .lda = K,
                                    .ldb = N,
                                    .ldc = N,
                                    .ab_dtype = HD_F32,
                                    .c_dtype = HD_F32};
        struct hd_activation_backward_args gelu = {.dinp = pair->data,
                                                   .dout = alone->data,
                                                   .N = M * N,
                                                   .act = HD_ACT_GELU_TANH,
                                                   .dtype = HD_F32};

        device_launch(&device, HD_K_gemm, &args);
        args.c = c->data;
        args.pre = pre->data;
        args.epilogue = HD_EPILOGUE_GELU;
        device_launch(&device, HD_K_gemm, &args);
        if (device.traits.gemm_scratch_bytes == 0)
            assert_same_bits("pre", pre, alone);
        gelu.inp = pre->data;
        device_launch(&device, HD_K_activation_backward, &gelu);
        args.pre = NULL;
        args.gelu_inp = pre->data;
        args.epilogue = HD_EPILOGUE_GELU_BACKWARD;
        device_launch(&device, HD_K_gemm, &args);
        for (int64_t i = 0; i < (int64_t)M * N; i++)
            pair->values[i] = tensor_get(pair, i);
        assert_close("c", c, pair->values, FP32_UNITS);
        tensors_free();
        device_close(&device);
    }
}

RUN_CASES()

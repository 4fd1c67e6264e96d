/* gemm: both the library and own code, against double. */
#include <math.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

struct product {
    int64_t M, N, K,
        pad; /* pad: elements between rows; -1: as many as make 8 divide the distance */
    bool trans_a, trans_b, accumulate, bias, residual;
    enum hd_dtype ab, c;
};

static int64_t distance(int64_t columns, int64_t pad)
{
    return pad < 0 ? (columns + 7) / 8 * 8 : columns + pad;
}

/* The error of an element is at most that of its sum (units_of_sum), plus a few u = 2^-24 of what
 * is added; a bf16 result is rounded once more, or twice (rounding_of_product). */
static void check(struct device *device, const struct product *p)
{
    const struct tensor *a = tensor_random(p->M * p->K, p->ab, 1, 1);
    const struct tensor *b = tensor_random(p->K * p->N, p->ab, 1, 2);
    const struct tensor *bias = tensor_random(p->N, p->ab, 3, 3);
    const struct tensor *old = tensor_random(p->M * p->N, p->c, 3, 4); /* of c, or the residual */
    const int64_t a_rows = p->trans_a ? p->K : p->M, a_columns = p->trans_a ? p->M : p->K;
    const int64_t b_rows = p->trans_b ? p->N : p->K, b_columns = p->trans_b ? p->K : p->N;
    struct hd_gemm_args args = {.M = p->M,
                                .N = p->N,
                                .K = p->K,
                                .lda = distance(a_columns, p->pad),
                                .ldb = distance(b_columns, p->pad),
                                .ldc = distance(p->N, p->pad),
                                .trans_a = p->trans_a,
                                .trans_b = p->trans_b,
                                .accumulate = p->accumulate,
                                .ab_dtype = p->ab,
                                .c_dtype = p->c};
    struct tensor *c = p->accumulate ? tensor_rows(old->values, p->M, p->N, args.ldc, p->c)
                                     : tensor_new(p->M * args.ldc, p->c);
    const struct product_in_double exact =
        product_in_double(a, b, p->bias ? bias : NULL, p->M, p->N, p->K, p->trans_a, p->trans_b);

    args.a = tensor_rows(a->values, a_rows, a_columns, args.lda, p->ab)->data;
    args.b = tensor_rows(b->values, b_rows, b_columns, args.ldb, p->ab)->data;
    args.bias = p->bias ? bias->data : NULL;
    args.add = p->residual ? tensor_rows(old->values, p->M, p->N, args.ldc, p->c)->data : NULL;
    args.c = c->data;
    device_launch(device, HD_K_gemm, &args);
    for (int64_t i = 0; i < p->M; i++) {
        for (int64_t j = 0; j < p->N; j++) {
            const int64_t at = i * p->N + j;
            const double before = p->accumulate || p->residual ? old->values[at] : 0;
            const double added = fabs(before) + (p->bias ? fabs(bias->values[j]) : 0);
            const double sum = exact.sum[at] + before;
            const double round =
                (units_of_sum(p->ab, p->K) + 4) * 0x1p-24 * (exact.size[at] + fabs(sum) + 4);

            assert_close_at("c", at, tensor_get(c, i * args.ldc + j), sum,
                            round + rounding_of_product(p->c, sum, added));
        }
        for (int64_t j = p->N; j < args.ldc; j++) /* between rows nothing is written */
            assert_true(isnan(tensor_get(c, i * args.ldc + j)));
    }
}

static void every_combination_is_right(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},     {1, 40, 33},    {7, 5, 3},
                                       {3, 129, 65},  {28, 64, 64},   {64, 48, 32},
                                       {50, 33, 400}, {200, 300, 17}, {17, 1, 513}};
    static const enum hd_dtype types[][2] = {
        {HD_F32, HD_F32}, {HD_BF16, HD_BF16}, {HD_BF16, HD_F32}, {HD_F32, HD_BF16},
        {HD_F16, HD_F16}, {HD_F16, HD_F32},   {HD_F32, HD_F16}};
    const int type_count = sizeof types / sizeof types[0];

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int type = 0; type < type_count; type++)
                for (int bits = 0; bits < 16; bits++) {
                    const struct product p = {.M = sizes[i][0],
                                              .N = sizes[i][1],
                                              .K = sizes[i][2],
                                              .pad = !(bits & 8) ? 0
                                                     : i % 2     ? -1
                                                                 : 5,
                                              .trans_a = bits & 1,
                                              .trans_b = bits & 2,
                                              .accumulate = bits & 4,
                                              .bias = !(bits & 4) && bits & 1,
                                              .residual = !(bits & 4) && (i + type) % 3 == 0,
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

/* Goal: products of several slabs and of several slices of the depth are whole. Method: more rows
 * than a slab has (672, with pairs 1344), more columns (1024), and a depth of more than one slice
 * (1024 values). */
static void slabs_and_slices_are_put_together(void **state)
{
    static const int64_t sizes[][3] = {{1350, 5, 1030}, {5, 1030, 1031}};

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int i = 0; i < 2; i++)
            for (int bits = 0; bits < 4; bits++) {
                const struct product p = {.M = sizes[i][0],
                                          .N = sizes[i][1],
                                          .K = sizes[i][2],
                                          .trans_a = bits & 1,
                                          .trans_b = bits & 2,
                                          .accumulate = bits & 2,
                                          .bias = !(bits & 2),
                                          .residual = bits == 1,
                                          .ab = HD_BF16,
                                          .c = bits & 1 ? HD_F32 : HD_BF16};

                if (!on_takes(s, bits + i, gemm_setting_count))
                    continue;
                check(&device, &p);
                tensors_free();
            }
        device_close(&device);
    }
    kept_free();
}

/* sum of a[k * a_step] b[k * b_step], as the tensor cores of an A100 compute it (harness.h,
 * units_of_sum). Written independently of the emulator; every step is exact in double. */
static double truncating_loop(const double *a, int64_t a_step, const double *b, int64_t b_step,
                              int64_t K)
{
    enum { PRODUCTS = 8 };
    double sum = 0;

    for (int64_t begin = 0; begin < K; begin += PRODUCTS) {
        const int64_t end = begin + PRODUCTS < K ? begin + PRODUCTS : K;
        double largest = sum != 0 ? logb(sum) : -HUGE_VAL, unit, next;

        for (int64_t k = begin; k < end; k++)
            largest = fmax(largest, logb(a[k * a_step]) + logb(b[k * b_step]));
        if (isinf(largest)) /* zeros only */
            continue;
        unit = ldexp(1, (int)largest - 24);
        next = trunc(sum / unit);
        for (int64_t k = begin; k < end; k++)
            next += trunc(a[k * a_step] * b[k * b_step] / unit);
        sum = next * unit;
        if (sum != 0) {
            unit = ldexp(1, (int)logb(sum) - 23);
            sum = trunc(sum / unit) * unit;
        }
    }
    return sum;
}

/* Goal: the rule for low precision: against double, an error at most twice that of the plain loop
 * in the same precision: bf16 factors, and sums of fp32, or of the least accurate tensor cores that
 * the backend supports, which truncate. Their error grows with every operation in one direction, so
 * it is several times that of the fp32 loop; it is largest in one long sum, so tiles and slices of
 * the depth, and GPUs with more products per operation, only lower it. Method: the root of the mean
 * square over a product deep enough for rounding to show. */
static void products_of_bf16_err_no_more_than_twice_the_plain_loop(void **state)
{
    enum { M = 30, N = 40, K = 3000 };
    const bool on_tensor_cores = on_backend()->device;
    const struct tensor *a = tensor_random(M * K, HD_BF16, 1, 1);
    const struct tensor *b = tensor_random(K * N, HD_BF16, 1, 2);
    double *want = doubles(M * N), plain = 0;

    ref_gemm(want, a->values, b->values, NULL, M, N, K, false, false);
    for (int64_t i = 0; i < M * N; i++) {
        const double *row = &a->values[i / N * K], *column = &b->values[i % N];
        double sum = 0;

        if (on_tensor_cores)
            sum = truncating_loop(row, 1, column, N, K);
        else
            for (int64_t k = 0; k < K; k++)
                sum = (double)((float)sum + (float)row[k] * (float)column[k * N]);
        plain += (sum - want[i]) * (sum - want[i]);
    }
    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);
        struct tensor *c = tensor_new(M * N, HD_F32);
        struct hd_gemm_args args = {.c = c->data,
                                    .a = a->data,
                                    .b = b->data,
                                    .M = M,
                                    .N = N,
                                    .K = K,
                                    .lda = K,
                                    .ldb = N,
                                    .ldc = N,
                                    .ab_dtype = HD_BF16,
                                    .c_dtype = HD_F32};
        double error = 0;

        device_launch(&device, HD_K_gemm, &args);
        for (int64_t i = 0; i < M * N; i++) {
            const double off = tensor_get(c, i) - want[i];

            error += off * off;
        }
        assert_true(sqrt(error) <= 2 * sqrt(plain));
        device_close(&device);
    }
    tensors_free();
}

/* Goal: own code gives the same bits on any number of threads, or in any order of them, and both
 * give the same bits again when asked again. Method: a product of several blocks and slices of the
 * depth, on 1 and 3 threads of the portable path, twice each; then the library twice. On a device
 * the first three settings, and the portable path twice. */
static void results_repeat_bit_for_bit(void **state)
{
    enum { M = 400, N = 300, K = 500 };
    static const int on_cpu[][2] = {{3, 4}, {5, 5}, {1, 1}}; /* settings that must agree */
    static const int on_device[][2] = {{0, 1}, {1, 2}, {3, 3}};
    const int(*ways)[2] = on_backend()->device ? on_device : on_cpu;
    const struct tensor *a = tensor_random(M * K, HD_BF16, 1, 1);
    const struct tensor *b = tensor_random(K * N, HD_BF16, 1, 2);

    for (int way = 0; way < 3; way++) {
        struct tensor *c[4];

        for (int i = 0; i < 4; i++) {
            struct device device = device_open(&settings[ways[way][i / 2]]);
            struct hd_gemm_args args = {.a = a->data,
                                        .b = b->data,
                                        .M = M,
                                        .N = N,
                                        .K = K,
                                        .lda = K,
                                        .ldb = N,
                                        .ldc = N,
                                        .ab_dtype = HD_BF16,
                                        .c_dtype = HD_F32};

            c[i] = tensor_new(M * N, HD_F32);
            args.c = c[i]->data;
            assert_int_equal(on_backend()->prepare(device.backend, HD_K_gemm, &args), HD_OK);
            device_launch(&device, HD_K_gemm, &args);
            device_close(&device);
            assert_same_bits("c", c[i], c[0]);
        }
    }
    tensors_free();
}

/* Nothing to add up: the bias, what was there, or both that are added. */
static void an_empty_depth_stores_what_is_added(void **state)
{
    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);
        const struct tensor *bias = tensor_random(5, HD_F32, 1, 1);
        struct tensor *c = tensor_new(3 * 5, HD_F32);
        double want[15];
        struct hd_gemm_args args = {.c = c->data,
                                    .bias = bias->data,
                                    .M = 3,
                                    .N = 5,
                                    .K = 0,
                                    .lda = 1,
                                    .ldb = 5,
                                    .ldc = 5,
                                    .ab_dtype = HD_F32,
                                    .c_dtype = HD_F32};

        for (int i = 0; i < 15; i++)
            want[i] = bias->values[i % 5];
        device_launch(&device, HD_K_gemm, &args);
        assert_close("c", c, want, 0);
        args.bias = NULL;
        args.accumulate = true;
        device_launch(&device, HD_K_gemm, &args);
        assert_close("c", c, want, 0);
        args.accumulate = false;
        args.bias = bias->data;
        args.add = tensor_copy(c)->data;
        for (int i = 0; i < 15; i++)
            want[i] *= 2;
        device_launch(&device, HD_K_gemm, &args);
        assert_close("c", c, want, 0);
        tensors_free();
        device_close(&device);
    }
}

static void a_bias_and_a_residual_cannot_accumulate(void **state)
{
    struct device device = device_open(&settings[0]);
    void *x = reachable(NULL, sizeof(float));
    struct hd_gemm_args args = {.c = x,
                                .a = x,
                                .b = x,
                                .bias = x,
                                .M = 1,
                                .N = 1,
                                .K = 1,
                                .lda = 1,
                                .ldb = 1,
                                .ldc = 1,
                                .accumulate = true};

    assert_int_equal(device_try(&device, HD_K_gemm, &args), HD_INVALID);
    args.bias = NULL;
    args.add = x;
    assert_int_equal(device_try(&device, HD_K_gemm, &args), HD_INVALID);
    args.accumulate = false;
    args.epilogue = HD_EPILOGUE_GELU;
    assert_int_equal(device_try(&device, HD_K_gemm, &args), HD_INVALID);
    tensors_free();
    device_close(&device);
}

RUN_CASES()

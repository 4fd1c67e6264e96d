/* fp8: scales, codes, products of codes, and the history of maxima. base/fp8_test has the formats.
 */
#include <math.h>
#include <string.h>

#include "tests/unit/kernels/harness.h"

enum { PARTS = HD_AMAX_PARTS };

static float *floats(const float *values, int64_t count)
{
    return reachable(values, (size_t)count * sizeof(float));
}

static double largest(const double *values, int64_t count)
{
    double most = 0;

    for (int64_t i = 0; i < count; i++)
        if (isfinite(values[i]) && fabs(values[i]) > most)
            most = fabs(values[i]);
    return most;
}

static float max_of(const float *amax)
{
    float most = 0;

    for (int i = 0; i < PARTS; i++) {
        assert_true(amax[i] >= 0);
        most = amax[i] > most ? amax[i] : most;
    }
    return most;
}

/* ---- amax ---- */

/* Returns amax of the elements of inp from `first` on: from 1 on they are not aligned. */
static float amax_with(struct device *device, const struct tensor *inp, int64_t first,
                       const float *history, int64_t history_len)
{
    float *amax = floats(NULL, PARTS);
    struct hd_fp8_amax_args args = {.amax = amax,
                                    .inp = (uint16_t *)inp->data + first,
                                    .history = history ? floats(history, history_len) : NULL,
                                    .N = inp->count - first,
                                    .history_len = history ? history_len : 0};

    memset(amax, 0xff, PARTS * sizeof *amax);
    device_launch(device, HD_K_fp8_amax, &args);
    return max_of(amax);
}

/* Goal: the history counts, and where it is empty the tensor; what is not finite never does. */
static void the_scale_follows_the_history_or_the_tensor(void **state)
{
    static const int64_t sizes[] = {1, 255, 257, 5000, 100000};
    static const float history[] = {0.5f, 3, 0, 2}, empty[] = {0, 0, 0};

    for (int s = 0; s < setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int64_t i = 0; i < 5; i++)
            for (int first = 0; first < 2; first++) {
                struct tensor *inp = tensor_random(sizes[i] + 1, HD_BF16, 7, 1);

                if (!on_takes(s, i + first, setting_count))
                    continue;
                tensor_put(inp, 1 + sizes[i] / 2, -896); /* alone the largest */
                assert_true(amax_with(&device, inp, first, NULL, 0) == 896);
                assert_true(amax_with(&device, inp, first, empty, 3) == 896);
                assert_true(amax_with(&device, inp, first, history, 4) == 3);
                if (sizes[i] > 2) {
                    tensor_put(inp, 1, (double)NAN);
                    tensor_put(inp, sizes[i], (double)-INFINITY);
                    assert_true(amax_with(&device, inp, first, NULL, 0) == 896);
                }
                tensors_free();
            }
        device_close(&device);
    }
}

/* ---- codes ---- */

/* The code whose value is nearest to x, of two the even one; x is finite. */
static int nearest(double x, enum hd_fp8 format)
{
    int best = 0;

    for (int code = 0; code < (format == HD_E4M3 ? 0x7f : 0x7c); code++) {
        const double d = fabs((double)hd_fp8_value((uint8_t)code, format) - fabs(x));
        const double least = fabs((double)hd_fp8_value((uint8_t)best, format) - fabs(x));

        if (d < least || (d == least && code % 2 == 0))
            best = code;
    }
    return best | (signbit(x) ? 0x80 : 0);
}

/* Orders in which codes are stored. */
enum { ROWS = 1, TRANSPOSED = 2, BOTH = ROWS | TRANSPOSED };

static void check_codes(struct device *device, int64_t R, int64_t C, int64_t first, int orders,
                        enum hd_fp8 format, double amax)
{
    struct tensor *inp = tensor_random(first + R * C, HD_BF16, 2, (uint64_t)(R + C));
    const double *values = inp->values + first;
    uint8_t *code = reachable(NULL, (size_t)(R * C)), *turned = reachable(NULL, (size_t)(R * C));
    float *parts = floats(NULL, PARTS), *factor = floats(NULL, 1), *seen = floats(NULL, 1);
    struct hd_fp8_encode_args args = {.code = orders & ROWS ? code : NULL,
                                      .transposed = orders & TRANSPOSED ? turned : NULL,
                                      .factor = factor,
                                      .seen = seen,
                                      .inp = (uint16_t *)inp->data + first,
                                      .amax = parts,
                                      .R = R,
                                      .C = C,
                                      .format = format};
    double scale = 1;

    for (int64_t i = 0; i < inp->count; i += 5) /* of all sizes, down to what becomes zero */
        tensor_put(inp, i, ldexp(inp->values[i], -(int)(i % 23)));
    parts[PARTS - 3] = (float)amax;
    *seen = 0.125f;
    while (amax * scale * 2 <= (double)hd_fp8_largest(format))
        scale *= 2;
    while (amax * scale > (double)hd_fp8_largest(format))
        scale /= 2;
    device_launch(device, HD_K_fp8_encode, &args);
    assert_true((double)*factor == 1 / scale);
    assert_true((double)*seen == fmax(0.125, largest(values, R * C)));
    for (int64_t r = 0; r < R; r++)
        for (int64_t c = 0; c < C; c++) {
            const uint8_t want = nearest(values[r * C + c] * scale, format);

            assert_int_equal(code[r * C + c], orders & ROWS ? want : 0);
            assert_int_equal(turned[c * R + r], orders & TRANSPOSED ? want : 0);
        }
    *seen = 1e9f; /* a larger one stays; without the operand nothing is written */
    device_launch(device, HD_K_fp8_encode, &args);
    assert_true(*seen == 1e9f);
    args.seen = NULL;
    device_launch(device, HD_K_fp8_encode, &args);
    tensors_free();
}

/* Goal: every element has its code at its place. Method: nearest values by search, in double. An
 * amax below the tensor's own clamps. Half of the cases are not aligned. */
static void elements_become_the_nearest_codes(void **state)
{
    static const int64_t sizes[][2] = {{16, 16},  {1, 40},   {48, 80},
                                       {300, 16}, {33, 130}, {64, 257}};
    static const double amaxes[] = {2, 0.3, 1e-3, 700};

    for (int s = 0; s < setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int i = 0; i < 6; i++)
            for (int v = 0; v < 12; v++)
                if (on_takes(s, i + v, setting_count))
                    check_codes(&device, sizes[i][0], sizes[i][1], v & 1, 1 + v / 2 % BOTH,
                                v < 6 ? HD_E4M3 : HD_E5M2, amaxes[(i + v) % 4]);
        device_close(&device);
    }
}

/* ---- codes of a kernel's result ---- */

/* A result of R rows of C columns, and where its codes go. */
struct coded {
    struct tensor *result;
    uint8_t *code, *turned;
    float *factor, *seen;
    int64_t R, C;
    enum hd_fp8 format;
};

static struct coded coded_new(int64_t R, int64_t C, enum hd_fp8 format)
{
    return (struct coded){tensor_new(R * C, HD_BF16),
                          reachable(NULL, (size_t)(R * C)),
                          reachable(NULL, (size_t)(R * C)),
                          floats(NULL, 1),
                          floats(NULL, 1),
                          R,
                          C,
                          format};
}

/* Makes the codes of got's result as nodes of their own do, and compares. */
static void assert_coded(struct device *device, const struct coded *got, const float *history,
                         int64_t history_len, int orders)
{
    const size_t size = (size_t)(got->R * got->C);
    const struct coded want = coded_new(got->R, got->C, got->format);
    float *amax = floats(NULL, PARTS);
    struct hd_fp8_amax_args a = {.amax = amax,
                                 .inp = got->result->data,
                                 .history = history,
                                 .N = got->R * got->C,
                                 .history_len = history_len};
    struct hd_fp8_encode_args e = {.code = orders & ROWS ? want.code : NULL,
                                   .transposed = orders & TRANSPOSED ? want.turned : NULL,
                                   .factor = want.factor,
                                   .seen = want.seen,
                                   .inp = got->result->data,
                                   .amax = amax,
                                   .R = got->R,
                                   .C = got->C,
                                   .format = got->format};

    device_launch(device, HD_K_fp8_amax, &a);
    device_launch(device, HD_K_fp8_encode, &e);
    assert_memory_equal(got->code, want.code, size);
    assert_memory_equal(got->turned, want.turned, size);
    assert_true(*got->factor == *want.factor);
    assert_true(*got->seen == *want.seen);
}

/* Launches the kernel three times: without codes; with codes, and the result must be the same; and with
 * codes_only, where no other kernel reads the result. There a GPU does not write the result if the
 * history gave it the scale, and the codes must be the same. */
#define CHECK_CODED(device, kernel, args, result_of, coded, old, some)           \
    do {                                                                         \
        struct tensor *plain = tensor_new((coded)->result->count, HD_BF16);      \
        const size_t bytes = (size_t)plain->count * sizeof(uint16_t);            \
                                                                                 \
        (args)->result_of = plain->data;                                         \
        device_launch(device, kernel, args);                                     \
        (args)->result_of = (coded)->result->data;                               \
        (args)->code = (some)&ROWS ? (coded)->code : NULL;                       \
        (args)->code_t = (some)&TRANSPOSED ? (coded)->turned : NULL;             \
        (args)->code_factor = (coded)->factor;                                   \
        (args)->seen = (coded)->seen;                                            \
        (args)->history = old;                                                   \
        (args)->history_len = HISTORY;                                           \
        device_launch(device, kernel, args);                                     \
        assert_memory_equal((coded)->result->data, plain->data, bytes);          \
        assert_coded(device, coded, old, HISTORY, some);                         \
        tensor_poison((coded)->result);                                          \
        memset((coded)->code, 0, (size_t)plain->count);                          \
        memset((coded)->turned, 0, (size_t)plain->count);                        \
        *(coded)->factor = *(coded)->seen = 0;                                   \
        (args)->codes_only = true;                                               \
        device_launch(device, kernel, args);                                     \
        assert_int_equal(memcmp((coded)->result->data, plain->data, bytes) != 0, \
                         hd_traits_is_cuda(&(device)->traits) && (old)[0] > 0);  \
        memcpy((coded)->result->data, plain->data, bytes);                       \
        assert_coded(device, coded, old, HISTORY, some);                         \
    } while (0)

enum { HISTORY = 3 };

static void check_activations(struct device *device, enum hd_activation act, const float *history,
                              int orders)
{
    enum { R = 48, F = 80 };
    struct tensor *wide = tensor_random(2 * R * F, HD_BF16, 2, 1);
    struct tensor *dout = tensor_random(R * F, HD_BF16, 1, 2);
    const struct coded out = coded_new(R, F, HD_E4M3), dinp = coded_new(R, F, HD_E5M2);
    const struct coded gated = coded_new(R, F, HD_E4M3), dgated = coded_new(R, 2 * F, HD_E5M2);
    struct hd_glu_forward_args glu = {
        .inp = wide->data, .R = R, .F = F, .alpha = 1.7f, .limit = 1, .act = act, .dtype = HD_BF16};
    struct hd_glu_backward_args glu_back = {.dout = dout->data,
                                            .inp = wide->data,
                                            .R = R,
                                            .F = F,
                                            .alpha = 1.7f,
                                            .limit = 1,
                                            .act = act,
                                            .dtype = HD_BF16};
    struct hd_activation_forward_args forward = {
        .inp = wide->data, .N = R * F, .R = R, .act = act, .dtype = HD_BF16};
    struct hd_activation_backward_args back = {
        .dout = dout->data, .inp = wide->data, .N = R * F, .R = R, .act = act, .dtype = HD_BF16};

    CHECK_CODED(device, HD_K_glu_forward, &glu, out, &gated, history, orders);
    CHECK_CODED(device, HD_K_glu_backward, &glu_back, dinp, &dgated, history, orders);
    if (act != HD_ACT_OSS) {
        CHECK_CODED(device, HD_K_activation_forward, &forward, out, &out, history, orders);
        CHECK_CODED(device, HD_K_activation_backward, &back, dinp, &dinp, history, orders);
    }
    tensors_free();
}

/* Rows that some lanes of a warp share, and rows of a block. */
static void check_norms(struct device *device, int64_t C, const float *history, int form,
                        int orders)
{
    enum { R = 48 }; /* the last tile of rows is not a whole one */
    struct tensor *inp = tensor_random(R * C, HD_BF16, 2, 3), *add = tensor_copy(inp);
    struct tensor *weight = tensor_random(C, HD_BF16, 1, 4), *sum = tensor_new(R * C, HD_BF16);
    const struct coded out = coded_new(R, C, HD_E4M3);
    struct hd_rmsnorm_forward_args rms = {.sum = sum->data,
                                          .rstd = floats(NULL, R),
                                          .inp = inp->data,
                                          .add = add->data,
                                          .weight = weight->data,
                                          .R = R,
                                          .C = C,
                                          .eps = 1e-5f,
                                          .one_plus = form,
                                          .dtype = HD_BF16};
    struct hd_layernorm_forward_args layer = {.mean = floats(NULL, R),
                                              .rstd = floats(NULL, R),
                                              .inp = inp->data,
                                              .weight = form < 2 ? weight->data : NULL,
                                              .bias = form < 2 ? weight->data : NULL,
                                              .R = R,
                                              .C = C,
                                              .eps = 1e-5f,
                                              .one_plus = form == 1,
                                              .dtype = HD_BF16};

    assert_true(hd_norm_takes_codes(&device->traits, C));
    if (form < 2) {
        CHECK_CODED(device, HD_K_rmsnorm_forward, &rms, out, &out, history, orders);
        memset(out.code, 0, (size_t)(R * C));
        memset(out.turned, 0, (size_t)(R * C));
        *out.seen = 0;
    }
    CHECK_CODED(device, HD_K_layernorm_forward, &layer, out, &out, history, orders);
    tensors_free();
}

/* Goal: a kernel that computes a tensor makes the same codes of it as nodes of their own, with the
 * scale of the history, and where that has only zeros, with the tensor's. */
static void a_result_has_the_codes_of_its_tensor(void **state)
{
    static const float histories[2][HISTORY] = {{0.5f, 3, 0}, {0, 0, 0}};
    static const int64_t widths[] = {16, 1040, 80, 1040, 16, 8192, 80, 1040, 16, 1040, 80, 1040};

    for (int s = 0; s < setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int i = 0; i < 12; i++) {
            const int form = i % 3;

            if (!on_takes(s, i, setting_count))
                continue;
            check_activations(&device, (enum hd_activation)(i % 6),
                              floats(histories[i / 6], HISTORY), 1 + (i + i / 6) % BOTH);
            check_norms(&device, widths[i], floats(histories[i / 6], HISTORY), form,
                        1 + (i + i / 6) % BOTH);
        }
        device_close(&device);
    }
}

/* A GPU's products in fp8 are the library's, from one capability on. */
static bool multiplies(const struct device *device)
{
    return !hd_traits_is_cuda(&device->traits) ||
           (device->traits.gemm_scratch_bytes > 0 && device->traits.capability >= HD_GPU_FP8_FROM);
}

static void what_is_not_finite_is_no_number(void **state)
{
    enum { SIDE = HD_FP8_SIDE, COUNT = SIDE * SIDE };

    for (int s = 0; s < setting_count; s++)
        for (int f = 0; f < 2; f++) {
            const enum hd_fp8 format = f ? HD_E5M2 : HD_E4M3;
            struct device device = device_open(&settings[s]);
            struct tensor *inp = tensor_random(COUNT, HD_BF16, 1, 5),
                          *c = tensor_new(COUNT, HD_F32);
            uint8_t *code = reachable(NULL, COUNT);
            float *parts = floats(NULL, PARTS), *factor = floats(NULL, 1), *seen = floats(NULL, 1);

            if (!multiplies(&device)) {
                tensors_free();
                device_close(&device);
                continue;
            }
            parts[0] = 1;
            tensor_put(inp, 0, (double)INFINITY);
            tensor_put(inp, 2 * SIDE + 1, (double)NAN);
            device_launch(&device, HD_K_fp8_encode,
                          &(struct hd_fp8_encode_args){.code = code,
                                                       .factor = factor,
                                                       .seen = seen,
                                                       .inp = inp->data,
                                                       .amax = parts,
                                                       .R = SIDE,
                                                       .C = SIDE,
                                                       .format = format});
            device_launch(&device, HD_K_fp8_gemm,
                          &(struct hd_fp8_gemm_args){.c = c->data,
                                                     .a = code,
                                                     .b = reachable(NULL, COUNT), /* zeros */
                                                     .a_factor = factor,
                                                     .b_factor = factor,
                                                     .M = SIDE,
                                                     .N = SIDE,
                                                     .K = SIDE,
                                                     .a_format = format,
                                                     .b_format = HD_E4M3,
                                                     .c_dtype = HD_F32});
            for (int i = 0; i < COUNT; i++)
                assert_int_equal(isnan(tensor_get(c, i)), i / SIDE == 0 || i / SIDE == 2);
            assert_true((double)*seen == largest(inp->values, COUNT));
            tensors_free();
            device_close(&device);
        }
}

/* ---- products ---- */

struct product {
    int64_t M, N, K;
    enum hd_fp8 a, b;
    enum hd_dtype c;
    bool accumulate, bias, residual;
};

/* Random codes of numbers, and the same numbers times a scale as bf16, which has all of them. */
static uint8_t *codes(int64_t count, enum hd_fp8 format, double factor, uint64_t key,
                      struct tensor **ret_values)
{
    const struct tensor *random = tensor_random_int32(count, 0, 0x77, key);
    struct tensor *values = tensor_new(count, HD_BF16);
    uint8_t *code = reachable(NULL, (size_t)count);

    for (int64_t i = 0; i < count; i++) {
        code[i] = (uint8_t)((int)random->values[i] | (i * 7 % 3 == 0 ? 0x80 : 0));
        tensor_put(values, i, (double)hd_fp8_value(code[i], format) * factor);
    }
    *ret_values = values;
    return code;
}

/* The bound is that of a GEMM of bf16 (gemm_test): its factors are such numbers. */
static void check_product(struct device *device, const struct product *p)
{
    const double a_factor = 0x1p-9, b_factor = 0x1p-7;
    struct tensor *a, *b, *bias = tensor_random(p->N, HD_BF16, 3, 3);
    struct tensor *old = tensor_random(p->M * p->N, p->c, 3, 4);
    struct tensor *c = p->accumulate ? tensor_copy(old) : tensor_new(p->M * p->N, p->c);
    const float of_a = (float)a_factor, of_b = (float)b_factor;
    struct hd_fp8_gemm_args args = {.c = c->data,
                                    .a_factor = floats(&of_a, 1),
                                    .b_factor = floats(&of_b, 1),
                                    .bias = p->bias ? bias->data : NULL,
                                    .add = p->residual ? old->data : NULL,
                                    .M = p->M,
                                    .N = p->N,
                                    .K = p->K,
                                    .accumulate = p->accumulate,
                                    .a_format = p->a,
                                    .b_format = p->b,
                                    .c_dtype = p->c};
    struct product_in_double exact;

    args.a = codes(p->M * p->K, p->a, a_factor, 1, &a);
    args.b = codes(p->N * p->K, p->b, b_factor, 2, &b);
    exact = product_in_double(a, b, p->bias ? bias : NULL, p->M, p->N, p->K, false, true);
    device_launch(device, HD_K_fp8_gemm, &args);
    for (int64_t i = 0; i < p->M * p->N; i++) {
        const double before = p->accumulate || p->residual ? old->values[i] : 0;
        const double added = fabs(before) + (p->bias ? fabs(bias->values[i % p->N]) : 0);
        const double sum = exact.sum[i] + before;
        const double round =
            (units_of_sum(HD_U8, p->K) + 4) * 0x1p-24 * (exact.size[i] + fabs(sum) + 4);

        assert_close_at("c", i, tensor_get(c, i), sum,
                        round + rounding_of_product(p->c, sum, added));
    }
    tensors_free();
}

static void products_of_codes_are_those_of_their_values(void **state)
{
    static const struct product products[] = {
        {16, 16, 16, HD_E4M3, HD_E4M3, HD_BF16, false, false, false},
        {64, 48, 32, HD_E4M3, HD_E4M3, HD_BF16, false, true, false},
        {64, 48, 32, HD_E4M3, HD_E4M3, HD_BF16, false, true, true},
        {32, 80, 112, HD_E4M3, HD_E4M3, HD_BF16, false, false, true},
        {32, 80, 112, HD_E5M2, HD_E4M3, HD_BF16, false, false, false},
        {32, 80, 112, HD_E5M2, HD_E4M3, HD_BF16, true, false, false},
        {48, 64, 144, HD_E5M2, HD_E4M3, HD_F32, true, false, false},
        {48, 64, 144, HD_E5M2, HD_E4M3, HD_F32, false, false, false},
        {16, 32, 1040, HD_E4M3, HD_E5M2, HD_F32, false, false, false},
    };

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int i = 0; i < (int)(sizeof products / sizeof products[0]); i++)
            if (setting_takes(s, HD_BF16) && multiplies(&device))
                check_product(&device, &products[i]);
        device_close(&device);
    }
    kept_free();
}

static void forbidden_products_are_refused(void **state)
{
    struct device device = device_open(&settings[0]);
    const struct hd_fp8_gemm_args good = {.M = 16, .N = 16, .K = 16, .c_dtype = HD_F32};
    struct hd_fp8_gemm_args args[] = {good, good, good, good, good, good, good, good};
    struct tensor *all = tensor_random(256, HD_F32, 1, 1);

    args[0].M = 8;
    args[1].N = 24;
    args[2].K = 17;
    args[3].a_format = args[3].b_format = HD_E5M2;
    args[4].c_dtype = HD_F16;
    args[5].accumulate = true;
    args[5].bias = all->data;
    args[6].accumulate = true;
    args[6].add = all->data;
    for (int i = 0; i < 8; i++) {
        args[i].c = all->data;
        args[i].a = args[i].b = all->data;
        args[i].a_factor = all->data;
        args[i].b_factor = (const float *)all->data + (i == 7);
        assert_int_equal(device_try(&device, HD_K_fp8_gemm, &args[i]), HD_INVALID);
    }
    tensors_free();
    device_close(&device);
}

/* A GPU without the library, or too old for it: by name, and before the first step. */
static void what_a_device_cannot_multiply_is_refused(void **state)
{
    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);
        struct tensor *all = tensor_random(256, HD_F32, 1, 1);
        const struct hd_fp8_gemm_args args = {.c = all->data,
                                              .a = all->data,
                                              .b = all->data,
                                              .a_factor = all->data,
                                              .b_factor = all->data,
                                              .M = 16,
                                              .N = 16,
                                              .K = 16,
                                              .c_dtype = HD_F32};
        const enum hd_status st = on_backend()->prepare(device.backend, HD_K_fp8_gemm, &args);

        assert_int_equal(st, multiplies(&device) ? HD_OK : HD_UNSUPPORTED);
        if (st)
            assert_non_null(strstr(hd_err_message(), "does not multiply [16,16] in E4M3"));
        tensors_free();
        device_close(&device);
    }
}

/* ---- history ---- */

static void a_step_enters_the_history_if_it_changes_weights(void **state)
{
    static const float before[] = {4, 3, 2, 10, 20, 30, 0, 0, 0}, now[] = {5, 0, 1};
    static const float after[] = {5, 4, 3, 0, 10, 20, 1, 0, 0};

    for (int s = 0; s < setting_count; s++) {
        struct device device = device_open(&settings[s]);
        float *history = floats(before, 9);
        struct hd_step_state block = {.skip_update = 1};
        struct hd_fp8_history_args args = {
            .history = history, .seen = floats(now, 3), .block = &block, .N = 3, .history_len = 3};

        device_launch(&device, HD_K_fp8_history, &args);
        assert_memory_equal(history, before, sizeof before);
        block.skip_update = 0;
        device_launch(&device, HD_K_fp8_history, &args);
        assert_memory_equal(history, after, sizeof after);
        args.history_len = 1;
        device_launch(&device, HD_K_fp8_history, &args);
        assert_memory_equal(history, now, sizeof now);
        tensors_free();
        device_close(&device);
    }
}

RUN_CASES()

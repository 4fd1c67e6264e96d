/* norm_forms: norms whose factor is 1 + weight or none, LayerNorm without a bias, and RMSNorm over
 * all heads of queries and of keys (qk_norm). What norm_test shows of the common forms - aliases,
 * odd addresses, orders of sums - is not repeated. */
#include <math.h>
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

/* Rows and columns: with rests and in whole vectors, and with the lengths that a GPU treats
 * differently: rows that share a warp, that fill blocks, that are read again. */
static const int64_t sizes[][2] = {{5, 7},    {37, 64},  {35, 33},   {2, 1023},
                                   {2, 2048}, {2, 2051}, {1, 12296}, {1, 20008}};
enum { SIZE_COUNT = sizeof sizes / sizeof sizes[0] };

typedef void check_form(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                        bool option);

static void everywhere(int64_t C_max, check_form *check)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int i = 0; i < SIZE_COUNT && sizes[i][1] <= C_max; i++)
            for (int kind = 0; kind < 2 * float_type_count; kind++) {
                if (sizes[i][1] > 64 ? (i + kind) % setting_count != setting
                                     : !on_takes(setting, i + kind + kind / 2, 2))
                    continue;
                check(&device, sizes[i][0], sizes[i][1], float_types[kind / 2], kind & 1);
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

/* Returns 1 + the weights, exact in double; weights are small, as those of such models are. */
static double *one_plus(const struct tensor *weight)
{
    double *w = doubles(weight->count);

    for (int64_t i = 0; i < weight->count; i++)
        w[i] = 1 + weight->values[i];
    return w;
}

static double *ones(int64_t count)
{
    double *w = doubles(count);

    for (int64_t i = 0; i < count; i++)
        w[i] = 1;
    return w;
}

/* The factors of a norm: the weight, 1 + weight, or none. */
enum form { PLAIN, ONE_PLUS, NONE };

static const double *factors(const struct tensor *weight, enum form form)
{
    return form == PLAIN      ? weight->values
           : form == ONE_PLUS ? one_plus(weight)
                              : ones(weight->count);
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

/* The largest |weight * dout| * largest rstd: the size of the terms of gradients of inputs. */
static double largest_term(const double *rstd, int64_t rstd_count, const double *weight, int64_t C,
                           const struct tensor *dout)
{
    double largest = 0, largest_rstd = 0;

    for (int64_t r = 0; r < rstd_count; r++)
        largest_rstd = fmax(largest_rstd, rstd[r]);
    for (int64_t i = 0; i < dout->count; i++)
        largest = fmax(largest, fabs(largest_rstd * weight[i % C] * dout->values[i]));
    return largest;
}

/* ---- 1 + weight ---- */

static void check_rmsnorm(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                          bool accumulate)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    const struct tensor *weight = tensor_random(C, dtype, 0.25, 3);
    const double *w = one_plus(weight);
    struct tensor *out = tensor_new(R * C, dtype), *rstd = tensor_new(R, HD_F32);
    struct tensor *dinp = tensor_new(R * C, dtype), *again = tensor_new(R * C, dtype);
    struct tensor *dweight = gradient(C, accumulate, 5);
    struct tensor *sums = tensor_new(sums_count(device, R, C), HD_F32);
    double *want = doubles(R * C), *want_rstd = doubles(R), *want_dweight = doubles(C);
    double *want_dinp = doubles(R * C);
    struct hd_rmsnorm_forward_args f = {.out = out->data,
                                        .rstd = rstd->data,
                                        .inp = inp->data,
                                        .weight = weight->data,
                                        .R = R,
                                        .C = C,
                                        .eps = 1e-3f,
                                        .one_plus = true,
                                        .dtype = dtype};
    struct hd_rmsnorm_backward_args b = {.dinp = dinp->data,
                                         .dout = dout->data,
                                         .inp = inp->data,
                                         .rstd = rstd->data,
                                         .weight = weight->data,
                                         .R = R,
                                         .C = C,
                                         .accumulate = accumulate,
                                         .one_plus = true,
                                         .dtype = dtype};

    ref_rmsnorm(want, want_rstd, inp->values, w, R, C, 1e-3);
    ref_rmsnorm_backward(want_dinp, want_dweight, dout->values, inp->values, w, R, C, 1e-3);
    device_launch(device, HD_K_rmsnorm_forward, &f);
    assert_close("out", out, want, units(C));
    device_launch(device, HD_K_rmsnorm_backward, &b);
    assert_close_terms("dinp", dinp, want_dinp, units(C), largest_term(want_rstd, R, w, C, dout));
    b.dinp = again->data; /* with the gradient of the weight, which does not know of the 1 */
    b.dweight = dweight->data;
    b.sums = accumulate ? sums->data : NULL;
    device_launch(device, HD_K_rmsnorm_backward, &b);
    assert_close_terms("dinp", again, want_dinp, units(C), largest_term(want_rstd, R, w, C, dout));
    check_gradient("dweight", dweight, want_dweight, accumulate);
    if (accumulate)
        assert_row_sums(device, again, sums, R, C);
}

static void one_is_added_to_the_weight_of_rmsnorm(void **state)
{
    everywhere(INT64_MAX, check_rmsnorm);
}

/* Goal: 1 + weight is not rounded to the tensor's encoding. Method: a weight of 2^-10, of which
 * bf16 loses the sum with 1 (8 bits); a row of one value is normalised to nearly 1, and times
 * 1 + 2^-10 to a number that fp32 shows. */
static void one_plus_a_small_weight_is_not_rounded(void **state)
{
    enum { C = 64 };
    struct device device = device_open(&settings[0]);
    struct tensor *inp = tensor_new(C, HD_F32), *weight = tensor_new(C, HD_F32);
    struct tensor *out = tensor_new(C, HD_F32), *rstd = tensor_new(1, HD_F32);
    struct hd_rmsnorm_forward_args a = {.out = out->data,
                                        .rstd = rstd->data,
                                        .inp = inp->data,
                                        .weight = weight->data,
                                        .R = 1,
                                        .C = C,
                                        .eps = 1e-12f,
                                        .one_plus = true,
                                        .dtype = HD_F32};

    for (int64_t c = 0; c < C; c++) {
        tensor_put(inp, c, 3);
        tensor_put(weight, c, 0x1p-10);
    }
    device_launch(&device, HD_K_rmsnorm_forward, &a);
    for (int64_t c = 0; c < C; c++)
        assert_true(fabs(tensor_get(out, c) - (1 + 0x1p-10)) < 0x1p-21);
    device_close(&device);
    tensors_free();
}

/* ---- LayerNorm without a bias: with a weight, with 1 + weight, without a weight ---- */

static void check_layernorm_of(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                               bool accumulate, enum form form)
{
    const struct tensor *inp = tensor_random(R * C, dtype, 2, 1);
    const struct tensor *dout = tensor_random(R * C, dtype, 1, 4);
    const struct tensor *weight = tensor_random(C, dtype, 1, 3);
    struct tensor *out = tensor_new(R * C, dtype);
    struct tensor *dinp = tensor_new(R * C, dtype), *again = tensor_new(R * C, dtype);
    struct tensor *mean = tensor_new(R, HD_F32), *rstd = tensor_new(R, HD_F32);
    struct tensor *dweight[2] = {gradient(C, accumulate, 5), gradient(C, accumulate, 5)};
    const double *w_of = factors(weight, form);
    const void *given = form == NONE ? NULL : weight->data;
    struct tensor *sums = tensor_new(sums_count(device, R, C), HD_F32);
    double *want = doubles(R * C), *want_mean = doubles(R), *want_rstd = doubles(R);
    double *want_dinp = doubles(R * C), *want_dweight[2] = {doubles(C), doubles(C)};
    struct hd_layernorm_forward_args f = {.out = out->data,
                                          .mean = mean->data,
                                          .rstd = rstd->data,
                                          .inp = inp->data,
                                          .weight = given,
                                          .R = R,
                                          .C = C,
                                          .eps = 1e-3f,
                                          .one_plus = form == ONE_PLUS,
                                          .dtype = dtype};
    struct hd_layernorm_backward_args b = {.dinp = dinp->data,
                                           .dout = dout->data,
                                           .inp = inp->data,
                                           .mean = mean->data,
                                           .rstd = rstd->data,
                                           .weight = given,
                                           .one_plus = form == ONE_PLUS,
                                           .R = R,
                                           .C = C,
                                           .accumulate = accumulate,
                                           .dtype = dtype};
    struct hd_layernorm_backward_weight_args w = {.dweight = dweight[1]->data,
                                                  .dout = dout->data,
                                                  .inp = inp->data,
                                                  .mean = mean->data,
                                                  .rstd = rstd->data,
                                                  .R = R,
                                                  .C = C,
                                                  .accumulate = accumulate,
                                                  .dtype = dtype};

    ref_layernorm(want, want_mean, want_rstd, inp->values, w_of, NULL, R, C, 1e-3);
    ref_layernorm_backward(want_dinp, want_dweight[0], NULL, dout->values, inp->values, w_of, R, C,
                           1e-3);
    memcpy(want_dweight[1], want_dweight[0], (size_t)C * sizeof(double));
    device_launch(device, HD_K_layernorm_forward, &f);
    assert_close("out", out, want, units(C));
    for (int64_t r = 0; r < R; r++) { /* gradients are compared for equal statistics */
        tensor_put(mean, r, want_mean[r]);
        tensor_put(rstd, r, want_rstd[r]);
    }
    device_launch(device, HD_K_layernorm_backward, &b);
    assert_close_terms("dinp", dinp, want_dinp, units(C),
                       largest_term(want_rstd, R, w_of, C, dout));
    if (!given)
        return;
    b.dinp = again->data;
    b.dweight = dweight[0]->data;
    b.sums = accumulate ? sums->data : NULL;
    device_launch(device, HD_K_layernorm_backward, &b);
    assert_close_terms("dinp", again, want_dinp, units(C),
                       largest_term(want_rstd, R, w_of, C, dout));
    check_gradient("dweight", dweight[0], want_dweight[0], accumulate);
    device_launch(device, HD_K_layernorm_backward_weight, &w);
    check_gradient("dweight", dweight[1], want_dweight[1], accumulate);
    if (accumulate)
        assert_row_sums(device, again, sums, R, C);
}

static void check_layernorm(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                            bool accumulate)
{
    check_layernorm_of(device, R, C, dtype, accumulate, PLAIN);
}

static void check_layernorm_forms(struct device *device, int64_t R, int64_t C, enum hd_dtype dtype,
                                  bool accumulate)
{
    check_layernorm_of(device, R, C, dtype, accumulate, ONE_PLUS);
    check_layernorm_of(device, R, C, dtype, accumulate, NONE);
}

static void layernorm_needs_no_bias(void **state)
{
    everywhere(INT64_MAX, check_layernorm);
}

static void layernorm_takes_one_plus_the_weight_or_none(void **state)
{
    everywhere(INT64_MAX, check_layernorm_forms);
}

/* ---- heads ---- */

enum { H = 3, G = 2, NORMED = H + G, HEADS = H + 2 * G };

/* The reference of the norms of parts of rows: part p of a row of `columns` channels is its
 * channels [at[p], at[p+1]), with its own weight [w] and statistic; channels from the last on are
 * copied. */
struct parts {
    int64_t R, columns;
    int count;
    int64_t at[NORMED + 1];
    const double *weight[NORMED]; /* by part */
    double *dweight[NORMED];      /* sums over rows and over the parts that share one */
    double *out, *dinp, *rstd;    /* [R, columns], [R, count] */
};

static void reference_of_parts(const struct parts *p, const double *inp, const double *dout)
{
    double *scrap = doubles(p->columns);

    memcpy(p->out, inp, (size_t)(p->R * p->columns) * sizeof *inp);
    memcpy(p->dinp, dout, (size_t)(p->R * p->columns) * sizeof *dout);
    for (int64_t r = 0; r < p->R; r++)
        for (int i = 0; i < p->count; i++) {
            const int64_t begin = r * p->columns + p->at[i], n = p->at[i + 1] - p->at[i];

            ref_rmsnorm(p->out + begin, &p->rstd[r * p->count + i], inp + begin, p->weight[i], 1, n,
                        1e-3);
            ref_rmsnorm_backward(p->dinp + begin, scrap, dout + begin, inp + begin, p->weight[i], 1,
                                 n, 1e-3);
            for (int64_t c = 0; c < n; c++)
                p->dweight[i][c] += scrap[c];
        }
}

/* Each head of q and k with 1 + weight, or without a weight. */
static void check_heads(struct device *device, int64_t R, int64_t D, enum hd_dtype dtype,
                        bool weighted)
{
    const int64_t count = R * HEADS * D;
    const struct tensor *inp = tensor_random(count, dtype, 2, 1);
    const struct tensor *dout = tensor_random(count, dtype, 1, 4);
    const struct tensor *weight[2] = {tensor_random(D, dtype, 0.25, 2),
                                      tensor_random(D, dtype, 0.25, 3)};
    const enum form form = weighted ? ONE_PLUS : NONE;
    const double *w[2] = {factors(weight[0], form), factors(weight[1], form)};
    struct tensor *out = tensor_new(count, dtype), *dinp = tensor_new(count, dtype);
    struct tensor *rstd = tensor_new(R * NORMED, HD_F32);
    struct parts want = {.R = R,
                         .columns = HEADS * D,
                         .count = NORMED,
                         .out = doubles(count),
                         .dinp = doubles(count),
                         .rstd = doubles(R * NORMED)};
    struct hd_head_norm_forward_args f = {.out = out->data,
                                          .rstd = rstd->data,
                                          .inp = inp->data,
                                          .q_weight = weighted ? weight[0]->data : NULL,
                                          .k_weight = weighted ? weight[1]->data : NULL,
                                          .R = R,
                                          .H = H,
                                          .G = G,
                                          .D = D,
                                          .eps = 1e-3f,
                                          .one_plus = weighted,
                                          .dtype = dtype};
    struct hd_head_norm_backward_args b = {.dinp = dinp->data,
                                           .dout = dout->data,
                                           .inp = inp->data,
                                           .rstd = rstd->data,
                                           .q_weight = f.q_weight,
                                           .k_weight = f.k_weight,
                                           .R = R,
                                           .H = H,
                                           .G = G,
                                           .D = D,
                                           .one_plus = weighted,
                                           .dtype = dtype};

    for (int i = 0; i <= NORMED; i++)
        want.at[i] = i * D;
    for (int i = 0; i < NORMED; i++) {
        want.weight[i] = w[i >= H];
        want.dweight[i] = doubles(D);
    }
    reference_of_parts(&want, inp->values, dout->values);
    device_launch(device, HD_K_head_norm_forward, &f);
    assert_close("out", out, want.out, units(D));
    assert_close("rstd", rstd, want.rstd, units(D));
    device_launch(device, HD_K_head_norm_backward, &b);
    assert_close_terms("dinp", dinp, want.dinp, units(D),
                       largest_term(want.rstd, R * NORMED, w[0], D, dout) +
                           largest_term(want.rstd, R * NORMED, w[1], D, dout));
}

static void heads_take_one_plus_the_weight_or_none(void **state)
{
    everywhere(2048, check_heads);
}

/* Returns columns [h D, (h + 1) D) of R rows of `columns` values, or puts them back. */
static double *head_of(const double *all, int64_t R, int64_t columns, int64_t h, int64_t D)
{
    double *one = doubles(R * D);

    for (int64_t i = 0; i < R * D; i++)
        one[i] = all[i / D * columns + h * D + i % D];
    return one;
}

static void put_head(double *all, const double *one, int64_t R, int64_t columns, int64_t h,
                     int64_t D)
{
    for (int64_t i = 0; i < R * D; i++)
        all[i / D * columns + h * D + i % D] = one[i];
}

/* Each head of q and k by LayerNorm, with weights of its own: against the reference of one head. */
static void check_centered_heads(struct device *device, int64_t R, int64_t D, enum hd_dtype dtype,
                                 bool accumulate)
{
    const int64_t columns = HEADS * D, count = R * columns;
    const struct tensor *inp = tensor_random(count, dtype, 2, 1);
    const struct tensor *dout = tensor_random(count, dtype, 1, 4);
    const struct tensor *weight[2] = {tensor_random(H * D, dtype, 1, 2),
                                      tensor_random(G * D, dtype, 1, 3)};
    struct tensor *out = tensor_new(count, dtype), *dinp = tensor_copy(dout);
    struct tensor *rstd = tensor_new(2 * R * NORMED, HD_F32);
    struct tensor *dweight[2] = {gradient(H * D, accumulate, 5), gradient(G * D, accumulate, 6)};
    double *want = doubles(count), *want_dinp = doubles(count);
    double *want_rstd = doubles(2 * R * NORMED),
           *want_dweight[2] = {doubles(H * D), doubles(G * D)};
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
                                          .layer = true,
                                          .dtype = dtype};
    struct hd_head_norm_backward_args b = {.dinp = dinp->data, /* in place */
                                           .dout = dinp->data,
                                           .inp = inp->data,
                                           .rstd = rstd->data,
                                           .q_weight = f.q_weight,
                                           .k_weight = f.k_weight,
                                           .R = R,
                                           .H = H,
                                           .G = G,
                                           .D = D,
                                           .layer = true,
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
                                                  .layer = true,
                                                  .dtype = dtype};

    memcpy(want, inp->values, (size_t)count * sizeof *want);
    memcpy(want_dinp, dout->values, (size_t)count * sizeof *want);
    for (int64_t h = 0; h < NORMED; h++) {
        const int k = h >= H;
        const double *x = head_of(inp->values, R, columns, h, D);
        const double *dy = head_of(dout->values, R, columns, h, D);
        const double *of_head = weight[k]->values + (k ? h - H : h) * D;
        double *y = doubles(R * D), *mean = doubles(R), *r = doubles(R);

        ref_layernorm(y, mean, r, x, of_head, NULL, R, D, 1e-3);
        put_head(want, y, R, columns, h, D);
        for (int64_t i = 0; i < R; i++) {
            want_rstd[2 * i * NORMED + h] = r[i];
            want_rstd[(2 * i + 1) * NORMED + h] = mean[i];
        }
        ref_layernorm_backward(y, want_dweight[k] + (k ? h - H : h) * D, NULL, dy, x, of_head, R, D,
                               1e-3);
        put_head(want_dinp, y, R, columns, h, D);
    }
    device_launch(device, HD_K_head_norm_forward, &f);
    assert_close("out", out, want, units(D));
    assert_close("rstd", rstd, want_rstd, units(D));
    for (int64_t i = 0; i < rstd->count; i++) /* gradients are compared for equal statistics */
        tensor_put(rstd, i, want_rstd[i]);
    device_launch(device, HD_K_head_norm_backward_weight, &w);
    check_gradient("dq_weight", dweight[0], want_dweight[0], accumulate);
    check_gradient("dk_weight", dweight[1], want_dweight[1], accumulate);
    device_launch(device, HD_K_head_norm_backward, &b);
    assert_close_terms("dinp", dinp, want_dinp, units(D),
                       largest_term(want_rstd, 2 * R * NORMED, weight[0]->values, H * D, dout) +
                           largest_term(want_rstd, 2 * R * NORMED, weight[1]->values, G * D, dout));
}

static void heads_take_layernorm_with_weights_of_their_own(void **state)
{
    everywhere(2048, check_centered_heads);
}

/* ---- all heads at once ---- */

/* A rank's part of rows of q, k and v: heads [h, h + n H) of q and so on, out of `ranks` ranks. */
struct share {
    struct tensor *inp, *dout, *out, *dinp, *rstd, *sums, *dots;
    struct tensor *weight[2], *dweight[2];
};

/* Copies the columns of q, k and v that rank `rank` of `ranks` has from rows of all ranks. */
static struct tensor *columns_of(const struct tensor *all, int64_t R, int64_t D, int ranks,
                                 int rank)
{
    struct tensor *t = tensor_new(R * HEADS * D, all->dtype);

    for (int64_t i = 0; i < t->count; i++) {
        const int64_t r = i / (HEADS * D), c = i % (HEADS * D);
        const int64_t part = c < H * D ? 0 : c < NORMED * D ? 1 : 2;
        const int64_t width = (part ? G : H) * D, begin = part == 0 ? 0 : part == 1 ? H : NORMED;

        tensor_put(t, i,
                   all->values[r * ranks * HEADS * D + ranks * begin * D + rank * width +
                               (c - begin * D)]);
    }
    return t;
}

static struct tensor *slice_of(const struct tensor *all, int64_t count, int rank)
{
    struct tensor *t = tensor_new(count, all->dtype);

    for (int64_t i = 0; i < count; i++)
        tensor_put(t, i, all->values[rank * count + i]);
    return t;
}

static void launch_sums(struct device *device, const struct share *s, int64_t R, int64_t D,
                        const void *dout, enum form form, struct tensor *sums)
{
    struct hd_qk_norm_sums_args a = {.sums = sums->data,
                                     .inp = s->inp->data,
                                     .dout = dout,
                                     .q_weight = dout && form != NONE ? s->weight[0]->data : NULL,
                                     .k_weight = dout && form != NONE ? s->weight[1]->data : NULL,
                                     .R = R,
                                     .H = H,
                                     .G = G,
                                     .D = D,
                                     .one_plus = form == ONE_PLUS,
                                     .dtype = s->inp->dtype};

    device_launch(device, HD_K_qk_norm_sums, &a);
}

/* Adds the sums of both ranks and gives them to both, as an all-reduce does. */
static void reduce(struct tensor *a, struct tensor *b)
{
    for (int64_t i = 0; i < a->count; i++) {
        tensor_put(a, i, tensor_get(a, i) + tensor_get(b, i));
        tensor_put(b, i, tensor_get(a, i));
    }
}

static void launch_norm(struct device *device, const struct share *s, int64_t R, int64_t D,
                        int ranks, enum form form, bool backward)
{
    struct hd_qk_norm_forward_args f = {.out = s->out->data,
                                        .rstd = s->rstd->data,
                                        .inp = s->inp->data,
                                        .sums = ranks > 1 ? s->sums->data : NULL,
                                        .q_weight = form != NONE ? s->weight[0]->data : NULL,
                                        .k_weight = form != NONE ? s->weight[1]->data : NULL,
                                        .R = R,
                                        .H = H,
                                        .G = G,
                                        .D = D,
                                        .ranks = ranks,
                                        .eps = 1e-3f,
                                        .one_plus = form == ONE_PLUS,
                                        .dtype = s->inp->dtype};
    struct hd_qk_norm_backward_args b = {.dinp = s->dinp->data,
                                         .dout = s->dout->data,
                                         .inp = s->inp->data,
                                         .rstd = s->rstd->data,
                                         .sums = ranks > 1 ? s->dots->data : NULL,
                                         .q_weight = f.q_weight,
                                         .k_weight = f.k_weight,
                                         .R = R,
                                         .H = H,
                                         .G = G,
                                         .D = D,
                                         .ranks = ranks,
                                         .one_plus = form == ONE_PLUS,
                                         .dtype = s->inp->dtype};

    if (backward)
        device_launch(device, HD_K_qk_norm_backward, &b);
    else
        device_launch(device, HD_K_qk_norm_forward, &f);
}

static void check_share(const struct share *s, const struct parts *want, int64_t R, int64_t D,
                        int ranks, int rank, double largest)
{
    const struct tensor all_out = {.values = want->out, .dtype = HD_F32};
    const struct tensor all_dinp = {.values = want->dinp, .dtype = HD_F32};
    double *want_rstd = doubles(2 * R);

    for (int64_t i = 0; i < 2 * R; i++)
        want_rstd[i] = want->rstd[i];
    assert_close("out", s->out, columns_of(&all_out, R, D, ranks, rank)->values,
                 units(ranks * H * D) + 2);
    assert_close("rstd", s->rstd, want_rstd, units(ranks * H * D));
    assert_close_terms("dinp", s->dinp, columns_of(&all_dinp, R, D, ranks, rank)->values,
                       units(ranks * H * D) + 2, largest);
}

/* One rank with all heads, then two ranks with half of them each, whose sums are added between. */
static void check_ranks(struct device *device, int64_t R, int64_t D, enum hd_dtype dtype, int ranks,
                        enum form form)
{
    const int64_t columns = ranks * HEADS * D, q = ranks * H * D, k = ranks * G * D;
    const struct tensor *inp = tensor_random(R * columns, dtype, 2, 1);
    const struct tensor *dout = tensor_random(R * columns, dtype, 1, 4);
    const struct tensor *weight[2] = {tensor_random(q, dtype, 0.25, 2),
                                      tensor_random(k, dtype, 0.25, 3)};
    const double *w[2] = {factors(weight[0], form), factors(weight[1], form)};
    const bool accumulate = form == ONE_PLUS;
    const struct parts want = {.R = R,
                               .columns = columns,
                               .count = 2,
                               .at = {0, q, q + k},
                               .weight = {w[0], w[1]},
                               .dweight = {doubles(q), doubles(k)},
                               .out = doubles(R * columns),
                               .dinp = doubles(R * columns),
                               .rstd = doubles(2 * R)};
    struct share s[2];

    reference_of_parts(&want, inp->values, dout->values);
    for (int i = 0; i < ranks; i++) {
        s[i] = (struct share){
            .inp = columns_of(inp, R, D, ranks, i),
            .dout = columns_of(dout, R, D, ranks, i),
            .out = tensor_new(R * HEADS * D, dtype),
            .dinp = tensor_new(R * HEADS * D, dtype),
            .rstd = tensor_new(2 * R, HD_F32),
            .sums = tensor_new(2 * R, HD_F32),
            .dots = tensor_new(2 * R, HD_F32),
            .weight = {slice_of(weight[0], H * D, i), slice_of(weight[1], G * D, i)},
            .dweight = {gradient(H * D, accumulate, 5), gradient(G * D, accumulate, 6)}};
        launch_sums(device, &s[i], R, D, NULL, form, s[i].sums);
        launch_sums(device, &s[i], R, D, s[i].dout->data, form, s[i].dots);
    }
    if (ranks > 1) {
        reduce(s[0].sums, s[1].sums);
        reduce(s[0].dots, s[1].dots);
    }
    for (int i = 0; i < ranks; i++) {
        struct hd_qk_norm_backward_weight_args b = {.dq_weight = s[i].dweight[0]->data,
                                                    .dk_weight = s[i].dweight[1]->data,
                                                    .dout = s[i].dout->data,
                                                    .inp = s[i].inp->data,
                                                    .rstd = s[i].rstd->data,
                                                    .R = R,
                                                    .H = H,
                                                    .G = G,
                                                    .D = D,
                                                    .accumulate = accumulate,
                                                    .dtype = dtype};

        launch_norm(device, &s[i], R, D, ranks, form, false);
        launch_norm(device, &s[i], R, D, ranks, form, true);
        check_share(&s[i], &want, R, D, ranks, i,
                    largest_term(want.rstd, 2 * R, w[0], q, dout) +
                        largest_term(want.rstd, 2 * R, w[1], k, dout));
        device_launch(device, HD_K_qk_norm_backward_weight, &b);
        check_gradient("dq_weight", s[i].dweight[0], want.dweight[0] + i * H * D, accumulate);
        check_gradient("dk_weight", s[i].dweight[1], want.dweight[1] + i * G * D, accumulate);
    }
}

static void check_all_heads(struct device *device, int64_t R, int64_t D, enum hd_dtype dtype,
                            bool one_more)
{
    check_ranks(device, R, D, dtype, 1, one_more ? ONE_PLUS : NONE);
    check_ranks(device, R, D, dtype, 2, one_more ? ONE_PLUS : NONE);
    check_ranks(device, R, D, dtype, one_more ? 1 : 2, PLAIN);
}

static void all_heads_are_one_row_also_if_ranks_share_them(void **state)
{
    everywhere(2048, check_all_heads);
}

/* Goal: the gradient may be written over dout, and no rows are no work. Method: bits of another
 * place; addresses that would fault. */
static void check_in_place(struct device *device, int64_t R, int64_t D, enum hd_dtype dtype,
                           bool weighted)
{
    const int64_t count = R * HEADS * D;
    const struct tensor *inp = tensor_random(count, dtype, 2, 1);
    const struct tensor *dout = tensor_random(count, dtype, 1, 4);
    const struct tensor *weight[2] = {tensor_random(H * D, dtype, 1, 2),
                                      tensor_random(G * D, dtype, 1, 3)};
    const struct tensor *rstd = tensor_random(2 * R, HD_F32, 1, 5);
    struct tensor *dinp = tensor_new(count, dtype), *place = tensor_copy(dout);
    struct hd_qk_norm_backward_args b = {.dinp = dinp->data,
                                         .dout = dout->data,
                                         .inp = inp->data,
                                         .rstd = rstd->data,
                                         .q_weight = weighted ? weight[0]->data : NULL,
                                         .k_weight = weighted ? weight[1]->data : NULL,
                                         .R = R,
                                         .H = H,
                                         .G = G,
                                         .D = D,
                                         .ranks = 1,
                                         .dtype = dtype};
    struct hd_qk_norm_forward_args f = {
        .H = H, .G = G, .D = D, .ranks = 1, .eps = 1e-3f, .dtype = dtype};

    device_launch(device, HD_K_qk_norm_backward, &b);
    b.dinp = place->data;
    b.dout = place->data;
    device_launch(device, HD_K_qk_norm_backward, &b);
    assert_same_bits("dinp", place, dinp);
    b.R = 0;
    b.dinp = NULL;
    device_launch(device, HD_K_qk_norm_backward, &b);
    device_launch(device, HD_K_qk_norm_forward, &f);
}

static void the_gradient_of_all_heads_may_take_the_place_of_the_other(void **state)
{
    everywhere(64, check_in_place);
}

RUN_CASES()

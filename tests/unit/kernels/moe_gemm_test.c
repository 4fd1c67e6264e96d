/* moe_gemm: experts' products, activations of the rows in use, and a whole mixture-of-experts layer
 * with its gradients, against double. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

enum { EXPERTS_MAX = 8 };

/* How rows fall on experts, with room for T of them. */
struct load {
    int64_t E, T;
    int32_t counts[EXPERTS_MAX];
};

static const struct load loads[] = {
    {.E = 5, .T = 37, .counts = {3, 0, 17, 1, 9}},               /* small ones, room behind */
    {.E = 3, .T = 40, .counts = {0, 40, 0}},                     /* all to one, to the bound */
    {.E = 8, .T = 700, .counts = {520, 5, 0, 40, 2, 60, 9, 17}}, /* a large one beside small ones */
    {.E = 3, .T = 6, .counts = {2, 0, 1}},                       /* decoding */
    {.E = 3, .T = 33, .counts = {10, 20, 30}},                   /* cut to 10, 20, 3 */
    {.E = 4, .T = 20, .counts = {0, 0, 0, 0}},                   /* nothing at all */
};
enum { LOADS = sizeof loads / sizeof loads[0] };

struct product {
    const struct load *load;
    int64_t N, K, pad; /* elements between rows and matrices; -1: as many as make 8 divide them */
    bool trans_b, accumulate;
    enum hd_dtype ab, c;
};

/* Rows [ret_begin, end) are e's. */
static int64_t rows_of(const struct load *l, int64_t e, int64_t *ret_begin)
{
    int64_t begin = 0, end = 0;

    for (int64_t i = 0; i <= e; i++) {
        begin = end;
        end = end + l->counts[i] < l->T ? end + l->counts[i] : l->T;
    }
    *ret_begin = begin;
    return end - begin;
}

static int64_t total_of(const struct load *l)
{
    int64_t begin;
    const int64_t rows = rows_of(l, l->E - 1, &begin);

    return begin + rows;
}

/* Rows of `columns` values with row distance ld; the first `used` rows random, everything else NaN.
 */
static struct tensor *random_rows(int64_t rows, int64_t used, int64_t columns, int64_t ld,
                                  enum hd_dtype dtype, uint64_t key)
{
    struct tensor *t = tensor_random(rows * ld, dtype, 1, key);

    for (int64_t i = 0; i < rows * ld; i++)
        if (i / ld >= used || i % ld >= columns)
            tensor_put(t, i, NAN);
    return t;
}

/* |sum - exact| for a sum of K products whose sizes add up to `size`, as in gemm_test. */
static double bound_of(enum hd_dtype factors, int64_t K, double size, double sum, enum hd_dtype c)
{
    return (units_of_sum(factors, K) + 4) * 0x1p-24 * (size + fabs(sum) + 4) + rounding_of(c, sum);
}

static int64_t distance(int64_t count, int64_t pad)
{
    return pad < 0 ? (count + 7) / 8 * 8 : count + pad;
}

/* Returns for every element of every expert's rows [T, N]: the sum, then the sum of absolute
 * values; kept. */
static const double *exact_rows(const struct product *p, const struct tensor *a, int64_t lda,
                                const struct tensor *b, int64_t ldb, int64_t stride_b)
{
    const struct load *l = p->load;
    const int64_t shape[] = {l->E, l->T, p->N, p->K, lda, ldb, stride_b, p->trans_b};
    struct hd_hash hash;
    double *exact;
    bool is_new;

    hd_hash_begin(&hash);
    hd_hash_add(&hash, shape, sizeof shape);
    hd_hash_add(&hash, l->counts, sizeof l->counts);
    hd_hash_add(&hash, a->values, (size_t)a->count * sizeof(double));
    hd_hash_add(&hash, b->values, (size_t)b->count * sizeof(double));
    exact = kept_doubles(hd_hash_value(&hash), 2 * l->T * p->N, &is_new);
    for (int64_t e = 0; is_new && e < l->E; e++) {
        int64_t begin;
        const int64_t rows = rows_of(l, e, &begin);

        for (int64_t i = begin; i < begin + rows; i++)
            for (int64_t j = 0; j < p->N; j++) {
                double sum = 0, size = 0;

                for (int64_t k = 0; k < p->K; k++) {
                    const double w =
                        b->values[e * stride_b + (p->trans_b ? j * ldb + k : k * ldb + j)];

                    sum += a->values[i * lda + k] * w;
                    size += fabs(a->values[i * lda + k] * w);
                }
                exact[i * p->N + j] = sum;
                exact[(l->T + i) * p->N + j] = size;
            }
    }
    return exact;
}

static void check_product(struct device *device, const struct product *p)
{
    const struct load *l = p->load;
    const int64_t lda = distance(p->K, p->pad), ldc = distance(p->N, p->pad);
    const int64_t b_rows = p->trans_b ? p->N : p->K, b_columns = p->trans_b ? p->K : p->N;
    const int64_t ldb = distance(b_columns, p->pad), stride_b = distance(b_rows * ldb, p->pad);
    const struct tensor *a = random_rows(l->T, total_of(l), p->K, lda, p->ab, 1);
    const struct tensor *b = random_rows(l->E * stride_b, l->E * stride_b, 1, 1, p->ab, 2);
    struct tensor *c = tensor_new(l->T * ldc, p->c);
    struct hd_grouped_gemm_args args = {.c = c->data,
                                        .a = a->data,
                                        .b = b->data,
                                        .counts = reachable(l->counts, sizeof l->counts),
                                        .E = l->E,
                                        .T = l->T,
                                        .N = p->N,
                                        .K = p->K,
                                        .lda = lda,
                                        .ldb = ldb,
                                        .ldc = ldc,
                                        .stride_b = stride_b,
                                        .trans_b = p->trans_b,
                                        .accumulate = p->accumulate,
                                        .ab_dtype = p->ab,
                                        .c_dtype = p->c};
    const double *exact = exact_rows(p, a, lda, b, ldb, stride_b);
    const struct tensor *before;

    for (int64_t i = 0; p->accumulate && i < c->count; i++)
        if (i / ldc < total_of(l) && i % ldc < p->N)
            tensor_put(c, i, (double)(i % 7) - 3);
    before = tensor_copy(c);
    device_launch(device, HD_K_grouped_gemm, &args);
    for (int64_t i = 0; i < total_of(l); i++)
        for (int64_t j = 0; j < p->N; j++) {
            const double old = p->accumulate ? tensor_get(before, i * ldc + j) : 0;
            const double sum = exact[i * p->N + j] + old;
            const double size = exact[(l->T + i) * p->N + j] + fabs(old);

            assert_close_at("c", i * p->N + j, tensor_get(c, i * ldc + j), sum,
                            bound_of(p->ab, p->K, size, sum, p->c));
        }
    for (int64_t i = 0; i < c->count; i++) /* behind the last row, and between rows */
        if (i / ldc >= total_of(l) || i % ldc >= p->N)
            assert_true(isnan(tensor_get(c, i)));
}

static void every_expert_multiplies_its_rows(void **state)
{
    static const int64_t sizes[][2] = {{33, 40}, {7, 1100}, {130, 16}};
    static const enum hd_dtype types[][2] = {
        {HD_F32, HD_F32}, {HD_BF16, HD_BF16}, {HD_BF16, HD_F32}, {HD_F16, HD_F16}};
    const int type_count = sizeof types / sizeof types[0];

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int i = 0; i < LOADS * 3 * 3 * type_count; i++) { /* plain, transposed, added */
            const struct product p = {.load = &loads[i % LOADS],
                                      .N = sizes[i / LOADS % 3][0],
                                      .K = sizes[i / LOADS % 3][1],
                                      .pad = i % 3 == 0   ? 0
                                             : i % 3 == 1 ? 5
                                                          : -1,
                                      .trans_b = i / LOADS / 3 % 3 == 1,
                                      .accumulate = i / LOADS / 3 % 3 == 2,
                                      .ab = types[i / LOADS / 9][0],
                                      .c = types[i / LOADS / 9][1]};

            if (!setting_takes(s, p.ab) || !on_takes(s, i, gemm_setting_count - 1))
                continue;
            check_product(&device, &p);
            tensors_free();
        }
        device_close(&device);
    }
    kept_free();
}

/* Here p->K is the number of rows of a gradient. */
static void check_weight(struct device *device, const struct product *p)
{
    const struct load *l = p->load;
    const int64_t M = p->K, lda = distance(M, p->pad), ldb = distance(p->N, p->pad), ldc = ldb;
    const int64_t stride_c = distance(M * ldc, p->pad);
    const struct tensor *a = random_rows(l->T, total_of(l), M, lda, p->ab, 1);
    const struct tensor *b = random_rows(l->T, total_of(l), p->N, ldb, p->ab, 2);
    const struct tensor *old = tensor_random(l->E * stride_c, HD_F32, 1, 3);
    struct tensor *c = p->accumulate ? tensor_copy(old) : tensor_new(old->count, HD_F32);
    struct hd_grouped_gemm_weight_args args = {.c = c->data,
                                               .a = a->data,
                                               .b = b->data,
                                               .counts = reachable(l->counts, sizeof l->counts),
                                               .E = l->E,
                                               .T = l->T,
                                               .M = M,
                                               .N = p->N,
                                               .lda = lda,
                                               .ldb = ldb,
                                               .ldc = ldc,
                                               .stride_c = stride_c,
                                               .accumulate = p->accumulate,
                                               .ab_dtype = p->ab};

    device_launch(device, HD_K_grouped_gemm_weight, &args);
    for (int64_t at = 0; at < c->count; at++) {
        const int64_t e = at / stride_c, i = at % stride_c / ldc, j = at % stride_c % ldc;
        double sum = p->accumulate ? old->values[at] : 0, size = 0;
        int64_t begin;
        const int64_t rows = rows_of(l, e, &begin);

        if (i >= M || j >= p->N) { /* between rows and matrices nothing is written */
            assert_true(p->accumulate ? tensor_get(c, at) == old->values[at]
                                      : isnan(tensor_get(c, at)));
            continue;
        }
        for (int64_t r = begin; r < begin + rows; r++) {
            sum += a->values[r * lda + i] * b->values[r * ldb + j];
            size += fabs(a->values[r * lda + i] * b->values[r * ldb + j]);
        }
        if (rows == 0) /* zeros, or what was there, to the bit */
            assert_true(tensor_get(c, at) == sum);
        assert_close_at("c", at, tensor_get(c, at), sum, bound_of(p->ab, rows, size, sum, HD_F32));
    }
}

static void every_expert_gets_its_gradient(void **state)
{
    static const int64_t sizes[][2] = {{33, 40}, {70, 5}};
    static const struct load deep = {.E = 2, .T = 1300, .counts = {1100, 200}};

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int i = 0; i < (LOADS + 1) * 4 * float_type_count; i++) {
            const int which = i % (LOADS + 1), rest = i / (LOADS + 1);
            const struct product p = {.load = which < LOADS ? &loads[which] : &deep,
                                      .N = sizes[rest % 2][0],
                                      .K = sizes[rest % 2][1],
                                      .pad = i % 3 == 0   ? 0
                                             : i % 3 == 1 ? 3
                                                          : -1,
                                      .accumulate = rest / 2 % 2,
                                      .ab = float_types[rest / 4]};

            if (!setting_takes(s, p.ab) || !on_takes(s, i, gemm_setting_count - 1))
                continue;
            check_weight(&device, &p);
            tensors_free();
        }
        device_close(&device);
    }
}

/* Goal: products with large tiles, too: a GPU has them where an expert's share of the rows is 128,
 * and for gradients of 256 x 256. */
static void large_products_have_every_tile(void **state)
{
    static const struct load many = {.E = 2, .T = 300, .counts = {165, 70}};

    for (int i = 0; i < 2 * float_type_count; i++) {
        struct device device = device_open(&settings[i % 3]);
        const enum hd_dtype type = float_types[i / 2];
        const struct product rows = {
            .load = &many, .N = 130, .K = 72, .pad = -1, .trans_b = i % 2, .ab = type, .c = type};
        const struct product weight = {
            .load = &many, .N = 260, .K = 264, .pad = -1, .accumulate = i % 2, .ab = type};

        check_product(&device, &rows);
        tensors_free();
        check_weight(&device, &weight);
        tensors_free();
        device_close(&device);
    }
    kept_free();
}

/* Goal: a row's result does not depend on who else is sent to its expert, nor on threads. Method:
 * expert 1 gets the same first 30 rows, alone, then behind 40 rows of another expert and before
 * 600 more of its own; a count that one thread takes alone, and one that threads share. */
static void a_row_does_not_see_the_other_rows(void **state)
{
    enum { T = 700, ROWS = 30, N = 70, K = 90 };
    static const int32_t counts[][4] = {
        {0, ROWS, 0, 0}, {40, ROWS + 600, 10, 1}, {40, ROWS, 10, 1}};

    for (int dtype = 0; dtype < 2; dtype++) {
        const enum hd_dtype type = dtype ? HD_BF16 : HD_F32;
        const struct tensor *rows = tensor_random(ROWS * K, type, 1, 1);
        const struct tensor *b = tensor_random(4 * N * K, type, 1, 2);
        struct tensor *first = NULL;

        for (int s = 0; s < 3; s++) { /* 1, 2 or 3 threads */
            struct device device = device_open(&settings[s]);

            for (int i = 0; i < 3; i++) {
                struct tensor *a = tensor_random(T * K, type, 1, 3);
                struct tensor *c = tensor_new(T * N, type), *mine = tensor_new(ROWS * N, type);
                struct hd_grouped_gemm_args args = {.c = c->data,
                                                    .a = a->data,
                                                    .b = b->data,
                                                    .counts =
                                                        reachable(counts[i], sizeof counts[i]),
                                                    .E = 4,
                                                    .T = T,
                                                    .N = N,
                                                    .K = K,
                                                    .lda = K,
                                                    .ldb = K,
                                                    .ldc = N,
                                                    .stride_b = N * K,
                                                    .trans_b = true,
                                                    .ab_dtype = type,
                                                    .c_dtype = type};
                const size_t e = hd_dtype_size(type), begin = (size_t)counts[i][0];

                memcpy((char *)a->data + begin * K * e, rows->data, ROWS * K * e);
                device_launch(&device, HD_K_grouped_gemm, &args);
                memcpy(mine->data, (const char *)c->data + begin * N * e, ROWS * N * e);
                if (!first)
                    first = mine;
                assert_same_bits("rows", mine, first);
            }
            device_close(&device);
        }
        tensors_free();
    }
}

/* ---- activations of the rows in use ---- */

static void activations_leave_unused_rows_alone(void **state)
{
    enum { T = 50, F = 37, GROUPS = 3, USED = 31 };
    static const int32_t counts[GROUPS] = {20, 0, 11}, too_many[GROUPS] = {20, 20, 20};

    for (int s = 0; s < setting_count * 2; s++) {
        struct device device = device_open(&settings[s / 2]);
        const enum hd_dtype dtype = s % 2 ? HD_BF16 : HD_F32;
        const struct tensor *inp = random_rows(T, USED, 2 * F, 2 * F, dtype, 1);
        const struct tensor *dout = random_rows(T, USED, F, F, dtype, 2);
        const struct tensor *all = tensor_random(T * 2 * F, dtype, 1, 1);
        struct tensor *out[2] = {tensor_new(T * F, dtype), tensor_new(T * F, dtype)};
        struct tensor *dinp[2] = {tensor_new(T * 2 * F, dtype), tensor_new(T * F, dtype)};
        struct hd_glu_forward_args sf = {.out = out[0]->data,
                                         .inp = inp->data,
                                         .counts = reachable(counts, sizeof counts),
                                         .R = T,
                                         .F = F,
                                         .groups = GROUPS,
                                         .dtype = dtype};
        struct hd_glu_backward_args sb = {.dinp = dinp[0]->data,
                                          .dout = dout->data,
                                          .inp = inp->data,
                                          .counts = reachable(counts, sizeof counts),
                                          .R = T,
                                          .F = F,
                                          .groups = GROUPS,
                                          .dtype = dtype};
        struct hd_activation_forward_args gf = {.out = out[1]->data,
                                                .inp = dout->data,
                                                .counts = reachable(counts, sizeof counts),
                                                .N = T * F,
                                                .R = T,
                                                .groups = GROUPS,
                                                .dtype = dtype};
        struct hd_activation_backward_args gb = {.dinp = dinp[1]->data,
                                                 .dout = dout->data,
                                                 .inp = dout->data,
                                                 .counts = reachable(counts, sizeof counts),
                                                 .N = T * F,
                                                 .R = T,
                                                 .groups = GROUPS,
                                                 .dtype = dtype};

        device_launch(&device, HD_K_glu_forward, &sf);
        device_launch(&device, HD_K_glu_backward, &sb);
        device_launch(&device, HD_K_activation_forward, &gf);
        device_launch(&device, HD_K_activation_backward, &gb);
        for (int64_t i = 0; i < T * 2 * F; i++) {
            assert_int_equal(isnan(tensor_get(dinp[0], i)), i >= USED * 2 * F);
            if (i >= T * F)
                continue;
            assert_int_equal(isnan(tensor_get(out[0], i)), i >= USED * F);
            assert_int_equal(isnan(tensor_get(out[1], i)), i >= USED * F);
            assert_int_equal(isnan(tensor_get(dinp[1], i)), i >= USED * F);
        }
        sf.counts =
            reachable(too_many, sizeof too_many); /* the bound holds: the guards are looked at */
        sf.inp = all->data;
        device_launch(&device, HD_K_glu_forward, &sf);
        assert_false(isnan(tensor_get(out[0], T * F - 1)));
        tensors_free();
        device_close(&device);
    }
}

/* ---- the whole layer ---- */

enum { B = 2, S = 9, R = B * S, E = 4, K = 2, C = 10, F = 7, T = R * K + 3 };

struct layer {
    bool renormalize, noisy;
    int64_t capacity; /* choices that an expert takes of a sequence */
    enum hd_dtype dtype;
    /* what is differentiated; the router's are fp32 */
    struct tensor *x;  /* [R, C] dtype */
    struct tensor *wr; /* [E, C] fp32: logits */
    struct tensor *wn; /* [E, C] fp32: noise */
    struct tensor *w1; /* [E, 2F, C] dtype */
    struct tensor *w2; /* [E, C, F]  dtype */
    struct tensor *noise, *dout;
    float balance, z;
};

static struct layer make_layer(bool renormalize, bool noisy, int64_t capacity, enum hd_dtype dtype)
{
    return (struct layer){.renormalize = renormalize,
                          .noisy = noisy,
                          .capacity = capacity,
                          .dtype = dtype,
                          .x = tensor_random(R * C, dtype, 1, 1),
                          .wr = tensor_random(E * C, HD_F32, 0.5, 2),
                          .wn = tensor_random(E * C, HD_F32, 0.5, 3),
                          .w1 = tensor_random(E * 2 * F * C, dtype, 0.5, 4),
                          .w2 = tensor_random(E * C * F, dtype, 0.5, 5),
                          .noise = tensor_random(R * E, HD_F32, 1, 6),
                          .dout = tensor_random(R * C, dtype, 1, 7),
                          .balance = 0.5f,
                          .z = 0.1f};
}

struct exact {
    double *logits, *noise_logits, *h, *probs, *lse, *gate;
    int32_t *chosen;
};

static struct exact make_exact(void)
{
    return (struct exact){doubles(R * E), doubles(R * E), doubles(R * E),           doubles(R * E),
                          doubles(R),     doubles(R * K), (int32_t *)doubles(R * K)};
}

/* gate * dout . expert(x), by the formulas, for one row. */
static double expert_loss(const struct layer *l, int64_t r, int64_t e)
{
    double inner[2 * F] = {0}, act[F], sum = 0;

    for (int64_t f = 0; f < 2 * F; f++)
        for (int64_t c = 0; c < C; c++)
            inner[f] += l->w1->values[(e * 2 * F + f) * C + c] * l->x->values[r * C + c];
    for (int64_t f = 0; f < F; f++)
        act[f] = inner[f] / (1 + exp(-inner[f])) * inner[F + f];
    for (int64_t c = 0; c < C; c++)
        for (int64_t f = 0; f < F; f++)
            sum += l->dout->values[r * C + c] * l->w2->values[(e * C + c) * F + f] * act[f];
    return sum;
}

/* sum dout * layer(x) + balance * (E sum f P of each row's sequence) + z * (lse^2 of each row);
 * experts one row at a time, without buffers or orders. */
static double layer_loss(const struct layer *l, struct exact *x)
{
    double sum = 0;

    ref_gemm(x->logits, l->x->values, l->wr->values, NULL, R, E, C, false, true);
    ref_gemm(x->noise_logits, l->x->values, l->wn->values, NULL, R, E, C, false, true);
    ref_route(x->h, x->probs, x->lse, x->chosen, x->gate, x->logits, x->noise_logits,
              l->noisy ? l->noise->values : NULL, R, E, K, l->renormalize);
    for (int64_t b = 0; b < B; b++) {
        double counts[E] = {0}, probs[E] = {0};

        for (int64_t i = b * S * K; i < (b + 1) * S * K; i++) {
            const int32_t e = x->chosen[i];

            if (l->capacity == 0 || counts[e] < (double)l->capacity)
                sum += x->gate[i] * expert_loss(l, i / K, e);
            counts[e]++;
        }
        for (int64_t i = b * S * E; i < (b + 1) * S * E; i++)
            probs[i % E] += x->probs[i];
        for (int64_t e = 0; e < E; e++)
            sum += (double)l->balance * S * E * (counts[e] / (K * S)) * (probs[e] / S);
    }
    for (int64_t r = 0; r < R; r++)
        sum += (double)l->z * x->lse[r] * x->lse[r];
    return sum;
}

static double *differences(const struct layer *l, struct exact *x, const struct tensor *of)
{
    const double h = 1e-5;
    double *want = doubles(of->count);

    for (int64_t i = 0; i < of->count; i++) {
        const double at = of->values[i];
        double above;

        of->values[i] = at + h;
        above = layer_loss(l, x);
        of->values[i] = at - h;
        want[i] = (above - layer_loss(l, x)) / (2 * h);
        of->values[i] = at;
    }
    return want;
}

/* The layer by kernels. */
struct pass {
    struct device *device;
    const struct layer *l;
    struct hd_step_state block;
    struct tensor *x32; /* what the router reads */
    struct tensor *logits, *noise_logits, *probs, *lse, *chosen, *gate, *choices;
    struct tensor *slot, *counts, *sent;
    struct tensor *rows, *inner, *act, *y, *out;
    struct tensor *dx, *dwr, *dwn, *dw1, *dw2; /* dx: fp32 sum of its three parts */
};

static void multiply(struct pass *p, struct tensor *c, const struct tensor *a,
                     const struct tensor *b, int64_t M, int64_t N, int64_t depth, bool trans_a,
                     bool trans_b)
{
    struct hd_gemm_args g = {.c = c->data,
                             .a = a->data,
                             .b = b->data,
                             .M = M,
                             .N = N,
                             .K = depth,
                             .lda = trans_a ? M : depth,
                             .ldb = trans_b ? depth : N,
                             .ldc = N,
                             .trans_a = trans_a,
                             .trans_b = trans_b,
                             .ab_dtype = HD_F32,
                             .c_dtype = HD_F32};

    device_launch(p->device, HD_K_gemm, &g);
}

static struct tensor *by_experts(struct pass *p, const struct tensor *a, const struct tensor *w,
                                 int64_t N, int64_t depth, bool trans_b)
{
    struct tensor *c = tensor_new(T * N, p->l->dtype);
    struct hd_grouped_gemm_args g = {.c = c->data,
                                     .a = a->data,
                                     .b = w->data,
                                     .counts = p->counts->data,
                                     .E = E,
                                     .T = T,
                                     .N = N,
                                     .K = depth,
                                     .lda = depth,
                                     .ldb = trans_b ? depth : N,
                                     .ldc = N,
                                     .stride_b = N * depth,
                                     .trans_b = trans_b,
                                     .ab_dtype = p->l->dtype,
                                     .c_dtype = p->l->dtype};

    device_launch(p->device, HD_K_grouped_gemm, &g);
    return c;
}

static struct tensor *weight_gradient(struct pass *p, const struct tensor *dout,
                                      const struct tensor *inp, int64_t M, int64_t N)
{
    struct tensor *c = tensor_new(E * M * N, HD_F32);
    struct hd_grouped_gemm_weight_args g = {.c = c->data,
                                            .a = dout->data,
                                            .b = inp->data,
                                            .counts = p->counts->data,
                                            .E = E,
                                            .T = T,
                                            .M = M,
                                            .N = N,
                                            .lda = M,
                                            .ldb = N,
                                            .ldc = N,
                                            .stride_c = M * N,
                                            .ab_dtype = p->l->dtype};

    device_launch(p->device, HD_K_grouped_gemm_weight, &g);
    return c;
}

static void route(struct pass *p)
{
    const struct layer *l = p->l;
    struct hd_route_forward_args f = {.probs = (p->probs = tensor_new(R * E, HD_F32))->data,
                                      .lse = (p->lse = tensor_new(R, HD_F32))->data,
                                      .chosen = (p->chosen = tensor_new(R * K, HD_I32))->data,
                                      .gate = (p->gate = tensor_new(R * K, HD_F32))->data,
                                      .logits = p->logits->data,
                                      .noise_logits = l->noisy ? p->noise_logits->data : NULL,
                                      .noise = l->noisy ? l->noise->data : NULL,
                                      .R = R,
                                      .E = E,
                                      .K = K,
                                      .renormalize = l->renormalize};
    const struct hd_row_runs at = {.Q = B, .runs = 1, .P = 1};
    /* the kernel rounds factor S K / E up */
    const double factor = l->capacity ? ((double)l->capacity - 0.1) * E / (S * K) : 0;
    struct hd_route_counts_args s = {.counts = (p->choices = tensor_new(R * E, HD_I32))->data,
                                     .chosen = p->chosen->data,
                                     .at = at,
                                     .R = R,
                                     .E = E,
                                     .K = K};
    struct hd_assign_args a = {.slot = (p->slot = tensor_new(R * K, HD_I32))->data,
                               .counts = (p->counts = tensor_new(E, HD_I32))->data,
                               .sent = (p->sent = tensor_new(1, HD_I32))->data,
                               .block = &p->block,
                               .chosen = p->chosen->data,
                               .at = at,
                               .R = R,
                               .E = E,
                               .K = K,
                               .T = T,
                               .P = 1,
                               .capacity = factor};

    device_launch(p->device, HD_K_route_forward, &f);
    device_launch(p->device, HD_K_route_counts, &s);
    device_launch(p->device, HD_K_assign, &a);
}

static void forward(struct pass *p)
{
    const struct layer *l = p->l;
    struct hd_permute_forward_args in = {
        .inp = l->x->data, .R = R, .K = K, .C = C, .T = T, .dtype = l->dtype};
    struct hd_glu_forward_args act = {.R = T, .F = F, .groups = E, .dtype = l->dtype};
    struct hd_combine_forward_args back = {.R = R, .K = K, .C = C, .T = T, .dtype = l->dtype};

    p->x32 = tensor_new(R * C, HD_F32);
    for (int64_t i = 0; i < R * C; i++)
        tensor_put(p->x32, i, l->x->values[i]);
    p->logits = tensor_new(R * E, HD_F32);
    p->noise_logits = tensor_new(R * E, HD_F32);
    multiply(p, p->logits, p->x32, l->wr, R, E, C, false, true);
    multiply(p, p->noise_logits, p->x32, l->wn, R, E, C, false, true);
    route(p);
    in.out = (p->rows = tensor_new(T * C, l->dtype))->data;
    in.slot = p->slot->data;
    device_launch(p->device, HD_K_permute_forward, &in);
    p->inner = by_experts(p, p->rows, l->w1, 2 * F, C, true);
    act.out = (p->act = tensor_new(T * F, l->dtype))->data;
    act.inp = p->inner->data;
    act.counts = p->counts->data;
    device_launch(p->device, HD_K_glu_forward, &act);
    p->y = by_experts(p, p->act, l->w2, C, F, true);
    back.out = (p->out = tensor_new(R * C, l->dtype))->data;
    back.inp = p->y->data;
    back.gate = p->gate->data;
    back.slot = p->slot->data;
    device_launch(p->device, HD_K_combine_forward, &back);
}

/* Gradients of the router's logits from those of the gates and of the losses. */
static void route_back(struct pass *p, const struct tensor *dgate)
{
    const struct layer *l = p->l;
    struct tensor *dlogits = tensor_new(R * E, HD_F32), *dnoise = tensor_new(R * E, HD_F32);
    struct tensor *dx = tensor_new(R * C, HD_F32);
    struct hd_route_backward_args b = {.dlogits = dlogits->data,
                                       .dnoise_logits = l->noisy ? dnoise->data : NULL,
                                       .dgate = dgate->data,
                                       .probs = p->probs->data,
                                       .lse = p->lse->data,
                                       .chosen = p->chosen->data,
                                       .gate = p->gate->data,
                                       .noise_logits = l->noisy ? p->noise_logits->data : NULL,
                                       .noise = l->noisy ? l->noise->data : NULL,
                                       .counts = p->choices->data,
                                       .block = &p->block,
                                       .at = {.Q = B, .runs = 1, .P = 1},
                                       .R = R,
                                       .E = E,
                                       .K = K,
                                       .balance = l->balance,
                                       .z = l->z,
                                       .share = 1,
                                       .renormalize = l->renormalize};

    device_launch(p->device, HD_K_route_backward, &b);
    p->dwr = tensor_new(E * C, HD_F32);
    multiply(p, p->dwr, dlogits, p->x32, E, C, R, true, false);
    multiply(p, dx, dlogits, l->wr, R, C, E, false, false);
    for (int64_t i = 0; i < R * C; i++)
        tensor_put(p->dx, i, p->dx->values[i] + tensor_get(dx, i));
    if (!l->noisy)
        return;
    p->dwn = tensor_new(E * C, HD_F32);
    multiply(p, p->dwn, dnoise, p->x32, E, C, R, true, false);
    multiply(p, dx, dnoise, l->wn, R, C, E, false, false);
    for (int64_t i = 0; i < R * C; i++)
        tensor_put(p->dx, i, p->dx->values[i] + tensor_get(dx, i));
}

static void backward(struct pass *p)
{
    const struct layer *l = p->l;
    struct tensor *dy = tensor_new(T * C, l->dtype), *dgate = tensor_new(R * K, HD_F32);
    struct tensor *dinner = tensor_new(T * 2 * F, l->dtype), *dx = tensor_new(R * C, l->dtype);
    struct hd_combine_backward_args back = {.dinp = dy->data,
                                            .dgate = dgate->data,
                                            .dout = l->dout->data,
                                            .inp = p->y->data,
                                            .gate = p->gate->data,
                                            .slot = p->slot->data,
                                            .R = R,
                                            .K = K,
                                            .C = C,
                                            .T = T,
                                            .dtype = l->dtype};
    struct hd_glu_backward_args act = {.dinp = dinner->data,
                                       .inp = p->inner->data,
                                       .counts = p->counts->data,
                                       .R = T,
                                       .F = F,
                                       .groups = E,
                                       .dtype = l->dtype};
    struct hd_permute_backward_args in = {
        .dinp = dx->data, .slot = p->slot->data, .R = R, .K = K, .C = C, .T = T, .dtype = l->dtype};

    device_launch(p->device, HD_K_combine_backward, &back);
    p->dw2 = weight_gradient(p, dy, p->act, C, F);
    act.dout = by_experts(p, dy, l->w2, F, C, false)->data;
    device_launch(p->device, HD_K_glu_backward, &act);
    p->dw1 = weight_gradient(p, dinner, p->rows, 2 * F, C);
    in.dout = by_experts(p, dinner, l->w1, C, 2 * F, false)->data;
    device_launch(p->device, HD_K_permute_backward, &in);
    p->dx = tensor_new(R * C, HD_F32);
    for (int64_t i = 0; i < R * C; i++)
        tensor_put(p->dx, i, tensor_get(dx, i));
    route_back(p, dgate);
}

static struct pass run_layer(struct device *device, const struct layer *l)
{
    struct pass p = {.device = device, .l = l, .block = {.loss_scale = 1, .loss_per_token = 1}};

    forward(&p);
    backward(&p);
    assert_int_equal(p.block.overflow, 0);
    return p;
}

/* fp32: as everywhere. bf16: on its way a value is rounded some eight times, each time by up to
 * 2^-9 of its size; errors of that size in all terms are 2^-6 of the gradient's norm. */
static void assert_gradient(const char *what, const struct tensor *got, const double *want,
                            enum hd_dtype dtype)
{
    double error = 0, norm = 0;

    if (dtype == HD_F32) {
        assert_close(what, got, want, 2 * FP32_UNITS);
        return;
    }
    for (int64_t i = 0; i < got->count; i++) {
        error += pow(tensor_get(got, i) - want[i], 2);
        norm += want[i] * want[i];
    }
    assert_close_at(what, 0, sqrt(error), 0, 0x1p-6 * sqrt(norm));
}

static void a_whole_layer_has_the_gradients_of_its_formula(void **state)
{
    for (int kind = 0; kind < 6; kind++) { /* in fp32 every combination, in bf16 the two ends */
        const bool one = kind % 4 == 1 || kind == 3, two = kind == 2 || kind == 3 || kind == 5;
        const struct layer l = make_layer(one, two, one ? 5 : 0, kind < 4 ? HD_F32 : HD_BF16);
        struct exact x = make_exact();
        const double *dx = differences(&l, &x, l.x), *dwr = differences(&l, &x, l.wr);
        const double *dwn = differences(&l, &x, l.wn), *dw1 = differences(&l, &x, l.w1);
        const double *dw2 = differences(&l, &x, l.w2);
        int64_t dropped = 0;

        for (int setting = 0; setting < setting_count; setting++) {
            struct device device = device_open(&settings[setting]);
            struct pass p = run_layer(&device, &l);

            for (int64_t i = 0; i < R * K; i++) {
                assert_true(tensor_get(p.chosen, i) == x.chosen[i]);
                dropped += tensor_get(p.slot, i) < 0;
            }
            assert_gradient("dx", p.dx, dx, l.dtype);
            assert_gradient("dwr", p.dwr, dwr, l.dtype);
            if (l.noisy)
                assert_gradient("dwn", p.dwn, dwn, l.dtype);
            assert_gradient("dw1", p.dw1, dw1, l.dtype);
            assert_gradient("dw2", p.dw2, dw2, l.dtype);
            device_close(&device);
        }
        assert_int_equal(dropped > 0, l.capacity > 0);
        tensors_free();
    }
}

/* Adds biases to the rows of a load, and sums rows again; pad: elements between rows. */
static void check_bias(struct device *device, const struct load *l, int64_t N, int64_t pad,
                       bool accumulate, enum hd_dtype dtype)
{
    const int64_t ld = N + pad;
    const struct tensor *x = random_rows(l->T, total_of(l), N, ld, dtype, 1);
    const struct tensor *bias = tensor_random(l->E * N, dtype, 1, 2);
    const struct tensor *old = tensor_random(l->E * N, HD_F32, 1, 3);
    struct tensor *out = tensor_copy(x);
    struct tensor *dbias = accumulate ? tensor_copy(old) : tensor_new(l->E * N, HD_F32);
    const int32_t *counts = reachable(l->counts, sizeof l->counts);
    struct hd_expert_bias_forward_args forward = {.out = out->data,
                                                  .bias = bias->data,
                                                  .counts = counts,
                                                  .E = l->E,
                                                  .T = l->T,
                                                  .N = N,
                                                  .ldo = ld,
                                                  .dtype = dtype};
    struct hd_expert_bias_backward_args backward = {.dbias = dbias->data,
                                                    .dout = x->data,
                                                    .counts = counts,
                                                    .E = l->E,
                                                    .T = l->T,
                                                    .N = N,
                                                    .ldd = ld,
                                                    .accumulate = accumulate,
                                                    .dtype = dtype};

    device_launch(device, HD_K_expert_bias_forward, &forward);
    device_launch(device, HD_K_expert_bias_backward, &backward);
    for (int64_t e = 0; e < l->E; e++) {
        int64_t begin;
        const int64_t rows = rows_of(l, e, &begin);

        for (int64_t c = 0; c < N; c++) {
            double sum = accumulate ? old->values[e * N + c] : 0, size = fabs(sum);

            for (int64_t r = begin; r < begin + rows; r++) {
                const double value = x->values[r * ld + c], with = value + bias->values[e * N + c];

                assert_close_at("out", r * ld + c, tensor_get(out, r * ld + c), with,
                                bound_of(dtype, 1, fabs(with), with, dtype));
                sum += value;
                size += fabs(value);
            }
            assert_close_at("dbias", e * N + c, tensor_get(dbias, e * N + c), sum,
                            bound_of(HD_F32, rows + 1, size, sum, HD_F32));
        }
    }
    for (int64_t i = 0; i < out->count; i++) /* behind the last row, and between rows */
        if (i / ld >= total_of(l) || i % ld >= N)
            assert_true(isnan(tensor_get(out, i)));
}

/* Sizes: several pieces of columns with a rest, whole packs, and less than one pack. */
static void every_expert_adds_its_bias(void **state)
{
    static const int64_t sizes[] = {300, 64, 3};
    struct device device = device_open(&settings[0]);

    for (int i = 0; i < LOADS * 3 * 2 * float_type_count; i++) {
        check_bias(&device, &loads[i % LOADS], sizes[i / LOADS % 3], i / LOADS / 3 % 2 ? 0 : 5,
                   i / LOADS / 3 % 2, float_types[i / LOADS / 6]);
        tensors_free();
    }
    device_close(&device);
}

static void threads_change_no_bit_of_a_layer(void **state)
{
    static const struct setting by[2] = {{.threads = 1, .gemm_by = HD_GEMM_BY_OWN},
                                         {.threads = 3, .gemm_by = HD_GEMM_BY_OWN}};

    for (int kind = 0; kind < 2; kind++) {
        const struct layer l = make_layer(true, true, 5, kind ? HD_BF16 : HD_F32);
        struct pass p[2];

        for (int i = 0; i < 2; i++) {
            struct device device = device_open(&by[i]);

            p[i] = run_layer(&device, &l);
            device_close(&device);
        }
        assert_same_bits("out", p[0].out, p[1].out);
        assert_same_bits("dx", p[0].dx, p[1].dx);
        assert_same_bits("dwr", p[0].dwr, p[1].dwr);
        assert_same_bits("dwn", p[0].dwn, p[1].dwn);
        assert_same_bits("dw1", p[0].dw1, p[1].dw1);
        assert_same_bits("dw2", p[0].dw2, p[1].dw2);
        tensors_free();
    }
}

RUN_CASES()

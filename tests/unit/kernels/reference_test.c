/* reference: the gradients that kernels are compared with are themselves right.
 *
 * For each operation f and a random cotangent w, L = sum w f(x) is differentiated by central
 * differences in double for every element of every input. With h = 1e-5 and values of order 1 the
 * differences are wrong by some h^2 (third derivative) + 2^-53 / h: 1e-10; 1e-7 is allowed. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

static double *normals(int64_t count, uint64_t key)
{
    double *x = doubles(count);

    for (int64_t i = 0; i < count; i++)
        x[i] = (double)hd_random_normal(key, (uint64_t)i);
    return x;
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;

    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Compares `gradient` with the central differences of `loss` in the elements of x. */
static void check_gradient(const char *what, double *x, const double *gradient, int64_t count,
                           double (*loss)(const void *problem), const void *problem)
{
    const double h = 1e-5;

    for (int64_t i = 0; i < count; i++) {
        const double at = x[i];
        double above, below;

        x[i] = at + h;
        above = loss(problem);
        x[i] = at - h;
        below = loss(problem);
        x[i] = at;
        assert_close_at(what, i, gradient[i], (above - below) / (2 * h), 1e-7);
    }
}

enum { R = 5, C = 7 };
static const double eps = 1e-3;

struct norm {
    double *inp, *weight, *bias, *dout, *out, *mean, *rstd;
};

static struct norm make_norm(void)
{
    return (struct norm){normals(R * C, 1), normals(C, 2), normals(C, 3), normals(R * C, 4),
                         doubles(R * C),    doubles(R),    doubles(R)};
}

static double rmsnorm_loss(const void *problem)
{
    const struct norm *p = problem;

    ref_rmsnorm(p->out, p->rstd, p->inp, p->weight, R, C, eps);
    return dot(p->out, p->dout, R * C);
}

static void rmsnorm_gradient(void **state)
{
    const struct norm p = make_norm();
    double *dinp = doubles(R * C), *dweight = doubles(C);

    ref_rmsnorm_backward(dinp, dweight, p.dout, p.inp, p.weight, R, C, eps);
    check_gradient("dinp", p.inp, dinp, R * C, rmsnorm_loss, &p);
    check_gradient("dweight", p.weight, dweight, C, rmsnorm_loss, &p);
    tensors_free();
}

static double layernorm_loss(const void *problem)
{
    const struct norm *p = problem;

    ref_layernorm(p->out, p->mean, p->rstd, p->inp, p->weight, p->bias, R, C, eps);
    return dot(p->out, p->dout, R * C);
}

static void layernorm_gradient(void **state)
{
    const struct norm p = make_norm();
    double *dinp = doubles(R * C), *dweight = doubles(C), *dbias = doubles(C);

    ref_layernorm_backward(dinp, dweight, dbias, p.dout, p.inp, p.weight, R, C, eps);
    check_gradient("dinp", p.inp, dinp, R * C, layernorm_loss, &p);
    check_gradient("dweight", p.weight, dweight, C, layernorm_loss, &p);
    check_gradient("dbias", p.bias, dbias, C, layernorm_loss, &p);
    tensors_free();
}

struct map { /* of one input to one output */
    double *inp, *dout, *out;
    struct ref_glu kind;
};

static double glu_loss(const void *problem)
{
    const struct map *p = problem;

    ref_glu(p->out, p->inp, R, C, p->kind);
    return dot(p->out, p->dout, R * C);
}

static double activation_loss(const void *problem)
{
    const struct map *p = problem;

    for (int64_t i = 0; i < R * C; i++)
        p->out[i] = ref_act(p->inp[i], p->kind.act);
    return dot(p->out, p->dout, R * C);
}

static void activation_gradients(void **state)
{
    struct map p = {normals(R * 2 * C, 5), normals(R * C, 6), doubles(R * C), {0, 1.7, 0.8}};
    double *dinp = doubles(R * 2 * C);

    for (int act = HD_ACT_SILU; act <= HD_ACT_OSS; act++) {
        p.kind.act = (enum hd_activation)act;
        ref_glu_backward(dinp, p.dout, p.inp, R, C, p.kind);
        check_gradient("glu dinp", p.inp, dinp, R * 2 * C, glu_loss, &p);
        if (act == HD_ACT_OSS)
            continue;
        for (int64_t i = 0; i < R * C; i++)
            dinp[i] = p.dout[i] * ref_act_slope(p.inp[i], p.kind.act);
        check_gradient("activation dinp", p.inp, dinp, R * C, activation_loss, &p);
    }
    tensors_free();
}

struct product {
    double *a, *b, *dc, *c;
};

static double gemm_loss(const void *problem)
{
    const struct product *p = problem;

    ref_gemm(p->c, p->a, p->b, NULL, 4, 6, 5, false, true);
    return dot(p->c, p->dc, 4 * 6);
}

/* The products that the model uses: Y = X W^T, dX = dY W, dW = dY^T X. */
static void gemm_gradients_are_gemms(void **state)
{
    const struct product p = {normals(4 * 5, 1), normals(6 * 5, 2), normals(4 * 6, 3),
                              doubles(4 * 6)};
    double *da = doubles(4 * 5), *db = doubles(6 * 5);

    ref_gemm(da, p.dc, p.b, NULL, 4, 5, 6, false, false);
    ref_gemm(db, p.dc, p.a, NULL, 6, 5, 4, true, false);
    check_gradient("da", p.a, da, 4 * 5, gemm_loss, &p);
    check_gradient("db", p.b, db, 6 * 5, gemm_loss, &p);
    tensors_free();
}

struct lookup {
    double *weight, *dout, *out;
};
static const int32_t tokens[] = {3, 0, 3, -1, 8};

static double embedding_loss(const void *problem)
{
    const struct lookup *p = problem;

    ref_embedding(p->out, tokens, p->weight, NULL, NULL, 5, C, 8, 0);
    return dot(p->out, p->dout, 5 * C);
}

static void embedding_gradient(void **state)
{
    const struct lookup p = {normals(8 * C, 1), normals(5 * C, 2), doubles(5 * C)};
    double *dweight = doubles(8 * C);

    ref_embedding_backward(dweight, tokens, p.dout, 5, C, 8);
    check_gradient("dweight", p.weight, dweight, 8 * C, embedding_loss, &p);
    tensors_free();
}

struct turn {
    double *x, *table, *dout, *out;
};
static const int32_t positions[] = {2, 0, 3};

static double rope_loss(const void *problem)
{
    const struct turn *p = problem;

    memcpy(p->out, p->x, 3 * 2 * 6 * sizeof *p->x);
    ref_rope(p->out, positions, p->table, 3, 2, 6, &(struct ref_rope){.W = 6});
    return dot(p->out, p->dout, 3 * 2 * 6);
}

static void rope_turned_back_is_its_gradient(void **state)
{
    const struct turn p = {normals(36, 1), doubles(4 * 6), normals(36, 2), doubles(36)};
    double *dx = doubles(36);

    for (int i = 0; i < 4 * 3; i++) {
        p.table[2 * i] = cos(i * 0.7);
        p.table[2 * i + 1] = sin(i * 0.7);
    }
    memcpy(dx, p.dout, 36 * sizeof *dx);
    ref_rope(dx, positions, p.table, 3, 2, 6, &(struct ref_rope){.W = 6, .inverse = true});
    check_gradient("dx", p.x, dx, 36, rope_loss, &p);
    tensors_free();
}

struct loss {
    double *logits;
};
static const int32_t targets[] = {4, -1, 0, 5};

static double cross_entropy_loss(const void *problem)
{
    const struct loss *p = problem;

    return 3 * ref_cross_entropy(NULL, p->logits, targets, 4, 6, 8, 3);
}

static void cross_entropy_gradient(void **state)
{
    const struct loss p = {normals(4 * 8, 1)};
    double *dlogits = doubles(4 * 8);

    (void)ref_cross_entropy(dlogits, p.logits, targets, 4, 6, 8, 3);
    check_gradient("dlogits", p.logits, dlogits, 4 * 8, cross_entropy_loss, &p);
    tensors_free();
}

static double mapped_loss(const void *problem)
{
    const struct loss *p = problem;
    double mapped[4 * 8];

    ref_map_logits(mapped, p->logits, 4 * 8, 0.7, 1.5);
    return ref_cross_entropy(NULL, mapped, targets, 4, 6, 8, 1);
}

static void mapped_cross_entropy_gradient(void **state)
{
    const struct loss p = {normals(4 * 8, 1)};
    double *dlogits = doubles(4 * 8), mapped[4 * 8];

    ref_map_logits(mapped, p.logits, 4 * 8, 0.7, 1.5);
    (void)ref_cross_entropy(dlogits, mapped, targets, 4, 6, 8, 1);
    ref_map_backward(dlogits, p.logits, 4 * 8, 0.7, 1.5);
    check_gradient("dlogits", p.logits, dlogits, 4 * 8, mapped_loss, &p);
    tensors_free();
}

struct gated {
    double *y, *g, *dout, *out;
};

static double gated_loss(const void *problem)
{
    const struct gated *p = problem;

    ref_row_gate(p->out, p->y, p->g, R, C);
    return dot(p->out, p->dout, R * C);
}

static void row_gate_gradients(void **state)
{
    const struct gated p = {normals(R * C, 1), normals(R, 2), normals(R * C, 3), doubles(R * C)};
    double *dy = doubles(R * C), *dg = doubles(R);

    ref_row_gate_backward(dy, dg, p.dout, p.y, p.g, R, C);
    check_gradient("dy", p.y, dy, R * C, gated_loss, &p);
    check_gradient("dg", p.g, dg, R, gated_loss, &p);
    tensors_free();
}

/* A gated delta layer: 2 sequences of 6 rows, 2 key heads of 3 channels, 4 value heads of 2; the
 * first sequence has three documents. */
enum { DELTA_ROWS = 12, DELTA_HEADS = 4, DELTA_VALUES = 4 * 2, DELTA_WIDTH = 2 * 2 * 3 + 4 * 2 };
static const int32_t delta_bounds[DELTA_ROWS] = {0, 0, 2, 3, 3, 3};
struct delta {
    struct ref_delta spec;
    double *qkv, *ba, *A_log, *dt_bias, *dout, *gates, *out;
};

static double delta_loss(const void *problem)
{
    const struct delta *p = problem;

    ref_delta_gates(p->gates, p->ba, p->A_log, p->dt_bias, DELTA_ROWS, DELTA_HEADS);
    ref_gated_delta(&p->spec, p->out, p->qkv, p->gates);
    return dot(p->out, p->dout, (int64_t)DELTA_ROWS * DELTA_VALUES);
}

static void gated_delta_gradients(void **state)
{
    const struct delta p = {
        {.B = 2, .S = 6, .G = 2, .H = 4, .Dk = 3, .Dv = 2, .bound = delta_bounds, .eps = 1e-2},
        normals((int64_t)DELTA_ROWS * DELTA_WIDTH, 1),
        normals((int64_t)DELTA_ROWS * 2 * DELTA_HEADS, 2),
        normals(DELTA_HEADS, 3),
        normals(DELTA_HEADS, 4),
        normals((int64_t)DELTA_ROWS * DELTA_VALUES, 5),
        doubles((int64_t)DELTA_ROWS * 2 * DELTA_HEADS),
        doubles((int64_t)DELTA_ROWS * DELTA_VALUES)};
    double *dqkv = doubles((int64_t)DELTA_ROWS * DELTA_WIDTH);
    double *dgates = doubles((int64_t)DELTA_ROWS * 2 * DELTA_HEADS);
    double *dba = doubles((int64_t)DELTA_ROWS * 2 * DELTA_HEADS);
    double *dA_log = doubles(DELTA_HEADS), *ddt_bias = doubles(DELTA_HEADS);

    ref_delta_gates(p.gates, p.ba, p.A_log, p.dt_bias, DELTA_ROWS, DELTA_HEADS);
    ref_gated_delta_backward(&p.spec, dqkv, dgates, p.dout, p.qkv, p.gates);
    ref_delta_gates_backward(dba, dA_log, ddt_bias, dgates, p.ba, p.A_log, p.dt_bias, DELTA_ROWS,
                             DELTA_HEADS);
    check_gradient("dqkv", p.qkv, dqkv, (int64_t)DELTA_ROWS * DELTA_WIDTH, delta_loss, &p);
    check_gradient("dba", p.ba, dba, (int64_t)DELTA_ROWS * 2 * DELTA_HEADS, delta_loss, &p);
    check_gradient("dA_log", p.A_log, dA_log, DELTA_HEADS, delta_loss, &p);
    check_gradient("ddt_bias", p.dt_bias, ddt_bias, DELTA_HEADS, delta_loss, &p);
    tensors_free();
}

struct conv {
    bool plain;
    double *inp, *weight, *dout, *out;
};

static double conv_loss(const void *problem)
{
    const struct conv *p = problem;

    ref_conv(p->out, p->inp, p->weight, delta_bounds, 2, 6, C, 4, p->plain);
    return dot(p->out, p->dout, (int64_t)DELTA_ROWS * C);
}

static void conv_gradients(void **state)
{
    struct conv p = {false, normals((int64_t)DELTA_ROWS * C, 1), normals(4 * C, 2),
                     normals((int64_t)DELTA_ROWS * C, 3), doubles((int64_t)DELTA_ROWS * C)};
    double *dinp = doubles((int64_t)DELTA_ROWS * C), *dweight = doubles(4 * C);

    for (int plain = 0; plain < 2; plain++) {
        p.plain = plain;
        ref_conv_backward(dinp, dweight, p.dout, p.inp, p.weight, delta_bounds, 2, 6, C, 4, plain);
        check_gradient("dinp", p.inp, dinp, (int64_t)DELTA_ROWS * C, conv_loss, &p);
        check_gradient("dweight", p.weight, dweight, 4 * C, conv_loss, &p);
    }
    tensors_free();
}

struct gated_norm {
    double *inp, *gate, *weight, *dout, *out, *rstd;
};

static double gated_norm_loss(const void *problem)
{
    const struct gated_norm *p = problem;

    ref_gated_norm(p->out, p->rstd, p->inp, p->gate, p->weight, R, C, eps);
    return dot(p->out, p->dout, R * C);
}

static void gated_norm_gradients(void **state)
{
    const struct gated_norm p = {normals(R * C, 1), normals(R * C, 2), normals(C, 3),
                                 normals(R * C, 4), doubles(R * C),    doubles(R)};
    double *dinp = doubles(R * C), *dgate = doubles(R * C), *dweight = doubles(C);

    ref_gated_norm_backward(dinp, dgate, dweight, p.dout, p.inp, p.gate, p.weight, R, C, eps);
    check_gradient("dinp", p.inp, dinp, R * C, gated_norm_loss, &p);
    check_gradient("dgate", p.gate, dgate, R * C, gated_norm_loss, &p);
    check_gradient("dweight", p.weight, dweight, C, gated_norm_loss, &p);
    tensors_free();
}

struct heads {
    struct ref_attention spec;
    double *q, *k, *v, *dout, *out, *lse;
};

static double attention_loss(const void *problem)
{
    const struct heads *p = problem;

    ref_attention(&p->spec, p->out, p->lse, p->q, p->k, p->v);
    return dot(p->out, p->dout, 2 * 5 * 4 * 3);
}

/* 2 sequences, 5 queries, 6 of 7 keys, 4 heads on 2 groups, D = 3; every kind of mask. */
static void attention_gradient(void **state)
{
    static const int32_t q_index[] = {1, 2, 3, 4, 5, 1, 2, 3, 4, 5};
    static const int32_t kv_index[] = {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6};
    static const int32_t q_bound[] = {0, 0, 3, 3, 3, 2, 2, 2, 2, 4};
    static const double slopes[] = {0.5, 0.25, 0.1, 0};
    static const int32_t filled[] = {4, 3};

    /* 6: caps; 7: chunks of documents; 8: sinks, all three */
    for (int kind = 0; kind < 9; kind++) {
        double *factor = doubles(2 * 4 * 5 * 6); /* dropout of every third weight */
        double *sinks = normals(4, 5);
        const struct heads p = {{.B = 2,
                                 .q_len = 5,
                                 .kv_len = 6,
                                 .kv_stride = 7,
                                 .H = 4,
                                 .G = 2,
                                 .D = 3,
                                 .window = kind == 1 ? 3 : 0,
                                 .q_index = q_index,
                                 .kv_index = kv_index,
                                 .chunk = kind >= 7 ? 2 : 0,
                                 .q_bound = kind == 2 || kind >= 7 ? q_bound : NULL,
                                 .sinks = kind == 8 ? sinks : NULL,
                                 .cap = kind == 6 || kind == 8 ? 0.7 : 0,
                                 .slopes = kind == 3 ? slopes : NULL,
                                 .factor = kind == 5 ? factor : NULL,
                                 .kv_filled = kind == 4 ? filled : NULL,
                                 .scale = 0.6,
                                 .causal = kind != 4},
                                normals(2 * 5 * 4 * 3, 1),
                                normals(2 * 7 * 2 * 3, 2),
                                normals(2 * 7 * 2 * 3, 3),
                                normals(2 * 5 * 4 * 3, 4),
                                doubles(2 * 5 * 4 * 3),
                                doubles(4 * 2 * 5)};
        double *dq = doubles(2 * 5 * 4 * 3), *dk = doubles(2 * 7 * 2 * 3);
        double *dv = doubles(2 * 7 * 2 * 3);

        for (int i = 0; i < 2 * 4 * 5 * 6; i++)
            factor[i] = i % 3 ? 1.5 : 0;
        (void)attention_loss(&p);
        ref_attention_backward(&p.spec, dq, dk, dv, p.dout, p.q, p.k, p.v, p.out, p.lse);
        check_gradient("dq", p.q, dq, 2 * 5 * 4 * 3, attention_loss, &p);
        check_gradient("dk", p.k, dk, 2 * 7 * 2 * 3, attention_loss, &p);
        check_gradient("dv", p.v, dv, 2 * 7 * 2 * 3, attention_loss, &p);
        if (kind == 8) {
            double *dsinks = doubles(4);

            ref_attention_sinks_backward(&p.spec, dsinks, p.dout, p.out, p.lse);
            check_gradient("dsinks", sinks, dsinks, 4, attention_loss, &p);
        }
        tensors_free();
    }
}

RUN_CASES()

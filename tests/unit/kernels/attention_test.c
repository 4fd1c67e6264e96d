/* attention: forward and backward against double, over the whole contract of the header. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dry/dry.h"
#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

struct shape {
    int64_t B, q_len, kv_len, kv_stride, H, G, D;
    int64_t window, kv_filled; /* 0: none; -1: none */
    int64_t pad;               /* elements between rows */
    double spread;             /* of q; 0: 1 */
    bool causal, bound, slopes;
};

/* Key tiles are 64 long (on panels 256, 128 or 126) and blocks of rows 512: lengths on both sides
 * of each. */
static const struct shape shapes[] = {
    /* of a whole tile one key of one row is hidden: by the order, the window, a document's start */
    {.B = 1,
     .q_len = 10,
     .kv_len = 72,
     .kv_stride = 72,
     .H = 1,
     .G = 1,
     .D = 8,
     .kv_filled = -1,
     .causal = true},
    {.B = 1,
     .q_len = 10,
     .kv_len = 72,
     .kv_stride = 72,
     .H = 1,
     .G = 1,
     .D = 8,
     .kv_filled = -1,
     .window = 71},
    {.B = 1,
     .q_len = 124,
     .kv_len = 192,
     .kv_stride = 192,
     .H = 1,
     .G = 1,
     .D = 8,
     .kv_filled = -1,
     .bound = true},
    /* the last key that a row of the tile after next sees is the last of a tile */
    {.B = 1,
     .q_len = 200,
     .kv_len = 200,
     .kv_stride = 200,
     .H = 1,
     .G = 1,
     .D = 8,
     .kv_filled = -1,
     .window = 66,
     .causal = true},
    {.B = 1, .q_len = 1, .kv_len = 2, .kv_stride = 2, .H = 1, .G = 1, .D = 8, .kv_filled = -1},
    {.B = 2,
     .q_len = 65,
     .kv_len = 65,
     .kv_stride = 65,
     .H = 2,
     .G = 2,
     .D = 40,
     .kv_filled = -1,
     .causal = true},
    {.B = 1,
     .q_len = 130,
     .kv_len = 130,
     .kv_stride = 133,
     .H = 4,
     .G = 2,
     .D = 64,
     .kv_filled = -1,
     .pad = 3,
     .causal = true,
     .slopes = true},
    {.B = 2,
     .q_len = 70,
     .kv_len = 70,
     .kv_stride = 70,
     .H = 3,
     .G = 1,
     .D = 24,
     .kv_filled = -1,
     .window = 17,
     .pad = 8,
     .causal = true},
    {.B = 2,
     .q_len = 100,
     .kv_len = 100,
     .kv_stride = 128,
     .H = 2,
     .G = 1,
     .D = 16,
     .kv_filled = -1,
     .causal = true,
     .bound = true},
    {.B = 3,
     .q_len = 1,
     .kv_len = 150,
     .kv_stride = 160,
     .H = 8,
     .G = 2,
     .D = 32,
     .kv_filled = 77,
     .causal = true,
     .slopes = true},
    {.B = 1,
     .q_len = 5,
     .kv_len = 90,
     .kv_stride = 90,
     .H = 2,
     .G = 1,
     .D = 128,
     .kv_filled = 90,
     .window = 64,
     .causal = true,
     .bound = true,
     .slopes = true,
     .pad = 1},
    {.B = 1,
     .q_len = 33,
     .kv_len = 200,
     .kv_stride = 200,
     .H = 1,
     .G = 1,
     .D = 256,
     .kv_filled = -1,
     .slopes = true},
    {.B = 1,
     .q_len = 300,
     .kv_len = 300,
     .kv_stride = 300,
     .H = 4,
     .G = 2,
     .D = 8,
     .kv_filled = -1,
     .window = 90,
     .causal = true,
     .bound = true},
    {.B = 1,
     .q_len = 261,
     .kv_len = 275,
     .kv_stride = 280,
     .H = 6,
     .G = 3,
     .D = 72,
     .kv_filled = -1,
     .window = 140,
     .pad = 1,
     .causal = true},
    {.B = 1,
     .q_len = 40,
     .kv_len = 20,
     .kv_stride = 20,
     .H = 2,
     .G = 2,
     .D = 48,
     .kv_filled = -1,
     .causal = true,
     .bound = true},
    /* every restriction and the slopes at once, over several tiles */
    {.B = 1,
     .q_len = 200,
     .kv_len = 230,
     .kv_stride = 230,
     .H = 4,
     .G = 2,
     .D = 32,
     .kv_filled = -1,
     .window = 90,
     .causal = true,
     .bound = true,
     .slopes = true},
    /* tiles of tensor cores, 128 queries and 64 or 128 keys: left out, masked and whole ones; rows
     * on bounds of 16 bytes, as those kernels take them */
    {.B = 1,
     .q_len = 300,
     .kv_len = 300,
     .kv_stride = 300,
     .H = 4,
     .G = 2,
     .D = 64,
     .kv_filled = -1,
     .causal = true},
    {.B = 1,
     .q_len = 128,
     .kv_len = 256,
     .kv_stride = 256,
     .H = 1,
     .G = 1,
     .D = 64,
     .kv_filled = -1,
     .pad = 8},
    {.B = 1,
     .q_len = 261,
     .kv_len = 275,
     .kv_stride = 280,
     .H = 2,
     .G = 1,
     .D = 128,
     .kv_filled = -1,
     .window = 90,
     .pad = 8,
     .causal = true},
    {.B = 2,
     .q_len = 130,
     .kv_len = 130,
     .kv_stride = 130,
     .H = 4,
     .G = 1,
     .D = 96,
     .kv_filled = -1,
     .pad = 8,
     .causal = true,
     .bound = true},
    {.B = 1,
     .q_len = 40,
     .kv_len = 200,
     .kv_stride = 200,
     .H = 2,
     .G = 1,
     .D = 64,
     .kv_filled = -1,
     .slopes = true},
    {.B = 1,
     .q_len = 200,
     .kv_len = 230,
     .kv_stride = 230,
     .H = 2,
     .G = 2,
     .D = 128,
     .kv_filled = -1,
     .window = 90,
     .causal = true,
     .bound = true,
     .slopes = true},
    {.B = 1,
     .q_len = 150,
     .kv_len = 150,
     .kv_stride = 150,
     .H = 1,
     .G = 1,
     .D = 96,
     .kv_filled = -1,
     .window = 40,
     .causal = true,
     .slopes = true},
    {.B = 3,
     .q_len = 1,
     .kv_len = 150,
     .kv_stride = 160,
     .H = 8,
     .G = 2,
     .D = 64,
     .kv_filled = 77,
     .causal = true},
    {.B = 1, .q_len = 9, .kv_len = 150, .kv_stride = 150, .H = 2, .G = 1, .D = 96, .kv_filled = 0},
    /* an emulated device's L2 holds two heads of three: blocks come in sections of two and one */
    {.B = 1, .q_len = 130, .kv_len = 40, .kv_stride = 40, .H = 3, .G = 3, .D = 64, .kv_filled = -1},
    /* scores so wide that most rows find a larger one behind their first tile of keys: by so much
     * that what they summed is rescaled, or by less */
    {.B = 1,
     .q_len = 70,
     .kv_len = 290,
     .kv_stride = 290,
     .H = 2,
     .G = 1,
     .D = 64,
     .kv_filled = -1,
     .spread = 14},
    {.B = 1,
     .q_len = 70,
     .kv_len = 290,
     .kv_stride = 290,
     .H = 2,
     .G = 1,
     .D = 128,
     .kv_filled = -1,
     .spread = 14,
     .causal = true,
     .slopes = true},
    {.B = 1,
     .q_len = 40,
     .kv_len = 20,
     .kv_stride = 20,
     .H = 8,
     .G = 1,
     .D = 128,
     .kv_filled = -1,
     .causal = true,
     .bound = true},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

/* One problem: dense values for the reference, spread rows for the kernel. */
struct problem {
    const struct shape *s;
    enum hd_dtype dtype;
    struct ref_attention ref;
    const struct tensor *q, *k, *v, *dout; /* dense */
    const struct tensor *q_index, *kv_index, *q_bound, *slopes, *kv_filled;
    struct tensor *out_dense, *lse; /* of the reference, rounded */
    double *out, *lse_exact;
    int64_t ldq, ldkv; /* of the kernel's tensors */
};

/* Dense rows of `width` to rows of distance ld, between which nothing is read. */
static struct tensor *spread_rows(const struct tensor *dense, int64_t width, int64_t ld)
{
    struct tensor *t = tensor_new(dense->count / width * ld, dense->dtype);

    for (int64_t i = 0; i < dense->count; i++)
        tensor_put(t, i / width * ld + i % width, dense->values[i]);
    return t;
}

/* The kernel's rows back to dense ones. */
static struct tensor *gather_rows(const struct tensor *spread, int64_t rows, int64_t width,
                                  int64_t ld)
{
    struct tensor *t = tensor_new(rows * width, spread->dtype);

    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < width; j++)
            tensor_put(t, i * width + j, tensor_get(spread, i * ld + j));
        for (int64_t j = width; j < ld; j++)
            assert_true(isnan(tensor_get(spread, i * ld + j)));
    }
    return t;
}

/* Queries are the last q_len of kv_len positions; with bounds documents of 33 positions follow one
 * another, so that one begins at the last key of a tile. */
static struct problem make(const struct shape *s, enum hd_dtype dtype)
{
    struct problem p = {
        .s = s, .dtype = dtype, .ldq = s->H * s->D + s->pad, .ldkv = s->G * s->D + s->pad};
    const int64_t q_rows = s->B * s->q_len, kv_rows = s->B * s->kv_stride;
    struct tensor *q_index = tensor_new(q_rows, HD_I32), *q_bound = tensor_new(q_rows, HD_I32);
    struct tensor *kv_index = tensor_new(kv_rows, HD_I32);

    for (int64_t r = 0; r < q_rows; r++) {
        const int64_t index = r % s->q_len + s->kv_len - s->q_len + 3;

        tensor_put(q_index, r, (double)index);
        tensor_put(q_bound, r, (double)(index / 33 * 33));
    }
    for (int64_t r = 0; r < kv_rows; r++)
        tensor_put(kv_index, r, (double)(r % s->kv_stride + 3));
    p.q_index = q_index;
    p.q_bound = q_bound;
    p.kv_index = kv_index;
    p.slopes = tensor_random(s->H, HD_F32, 0.1, 15);
    p.kv_filled = tensor_int32(1, s->kv_filled, 0);
    p.q = tensor_random(q_rows * s->H * s->D, dtype, s->spread > 0 ? s->spread : 1, 11);
    p.k = tensor_random(kv_rows * s->G * s->D, dtype, 1, 12);
    p.v = tensor_random(kv_rows * s->G * s->D, dtype, 1, 13);
    p.dout = tensor_random(q_rows * s->H * s->D, dtype, 1, 14);
    p.ref = (struct ref_attention){.B = s->B,
                                   .q_len = s->q_len,
                                   .kv_len = s->kv_len,
                                   .kv_stride = s->kv_stride,
                                   .H = s->H,
                                   .G = s->G,
                                   .D = s->D,
                                   .window = s->window,
                                   .q_index = q_index->data,
                                   .kv_index = kv_index->data,
                                   .q_bound = s->bound ? q_bound->data : NULL,
                                   .slopes = s->slopes ? p.slopes->values : NULL,
                                   .kv_filled = s->kv_filled,
                                   .scale = (double)(float)(1 / sqrt((double)s->D)),
                                   .causal = s->causal};
    p.out = doubles(q_rows * s->H * s->D);
    p.lse_exact = doubles(s->H * q_rows);
    ref_attention(&p.ref, p.out, p.lse_exact, p.q->values, p.k->values, p.v->values);
    p.out_dense = tensor_new(q_rows * s->H * s->D, dtype);
    p.lse = tensor_new(s->H * q_rows, HD_F32);
    for (int64_t i = 0; i < p.out_dense->count; i++)
        tensor_put(p.out_dense, i, p.out[i]);
    for (int64_t i = 0; i < p.lse->count; i++)
        tensor_put(p.lse, i, p.lse_exact[i]);
    return p;
}

/* Rows of keys or values as the kernel has them: those of a cache that are not filled, and those
 * past kv_len, hold NaN. */
static void *cache_rows(const struct problem *p, const struct tensor *dense)
{
    const struct shape *s = p->s;
    const int64_t width = s->G * s->D;
    const int64_t filled = s->kv_filled >= 0 && s->kv_filled < s->kv_len ? s->kv_filled : s->kv_len;
    struct tensor *t = tensor_new(dense->count / width * p->ldkv, dense->dtype);

    for (int64_t i = 0; i < dense->count; i++)
        if (i / width % s->kv_stride < filled)
            tensor_put(t, i / width * p->ldkv + i % width, dense->values[i]);
    return t->data;
}

static struct hd_attention_forward_args forward_args(const struct problem *p, struct tensor *out,
                                                     struct tensor *lse)
{
    const struct shape *s = p->s;

    return (struct hd_attention_forward_args){.out = out->data,
                                              .lse = lse->data,
                                              .q = spread_rows(p->q, s->H * s->D, p->ldq)->data,
                                              .k = cache_rows(p, p->k),
                                              .v = cache_rows(p, p->v),
                                              .q_index = p->q_index->data,
                                              .kv_index = p->kv_index->data,
                                              .q_bound = s->bound ? p->q_bound->data : NULL,
                                              .slopes = s->slopes ? p->slopes->data : NULL,
                                              .kv_filled =
                                                  s->kv_filled >= 0 ? p->kv_filled->data : NULL,
                                              .B = s->B,
                                              .q_len = s->q_len,
                                              .kv_len = s->kv_len,
                                              .kv_stride = s->kv_stride,
                                              .H = s->H,
                                              .G = s->G,
                                              .D = s->D,
                                              .ldq = p->ldq,
                                              .ldk = p->ldkv,
                                              .ldv = p->ldkv,
                                              .ldo = p->ldq,
                                              .window = s->window,
                                              .scale = (float)p->ref.scale,
                                              .causal = s->causal,
                                              .dtype = p->dtype};
}

/* On panels, and on a GPU, weights are rounded before they multiply: the rule for low precision.
 * Elsewhere the result alone is rounded. */
static bool rounds_weights(const struct device *device, const struct problem *p)
{
    if (hd_traits_is_cuda(&device->traits))
        return p->dtype != HD_F32;
    return hd_dry_attention_is_on_panels(p->dtype, p->s->H / p->s->G * p->s->q_len,
                                         &device->traits);
}

static struct ref_attention naive_of(const struct problem *p)
{
    struct ref_attention naive = p->ref;

    naive.is_naive = true;
    naive.naive_bits = p->dtype == HD_F16 ? 11 : 8;
    return naive;
}

static void check_values(const char *what, const struct device *device, const struct problem *p,
                         const struct tensor *got, const double *want, const double *naive,
                         double fp32_units)
{
    if (rounds_weights(device, p))
        assert_close_as_naive(what, got, want, naive);
    else /* errors of scores are in proportion to them */
        assert_close(what, got, want, fp32_units * (p->s->spread > 0 ? p->s->spread : 1));
}

/* An error of the score of 2^-24 relative to its size (some 10) changes p by as much. */
static void forward_is_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPE_COUNT * float_type_count; i++) {
        const struct problem p =
            make(&shapes[i / float_type_count], float_types[i % float_type_count]);
        const int64_t rows = p.s->B * p.s->q_len, width = p.s->H * p.s->D;
        struct tensor *out = tensor_new(rows * p.ldq, p.dtype);
        struct tensor *lse = tensor_new(p.s->H * rows, HD_F32);
        struct hd_attention_forward_args args = forward_args(&p, out, lse);
        const struct ref_attention naive = naive_of(&p);
        double *naive_out = doubles(rows * width);

        ref_attention(&naive, naive_out, doubles(p.s->H * rows), p.q->values, p.k->values,
                      p.v->values);
        for (int setting = 0; setting < attention_setting_count; setting++) {
            struct device device;

            if (!setting_is_in_turn(setting, i))
                continue;
            device = device_open(&settings[setting]);
            tensor_poison(out);
            tensor_poison(lse);
            device_launch(&device, HD_K_attention_forward, &args);
            check_values("out", &device, &p, gather_rows(out, rows, width, p.ldq), p.out, naive_out,
                         FP32_UNITS);
            assert_close("lse", lse, p.lse_exact, FP32_UNITS);
            device_close(&device);
        }
        tensors_free();
    }
}

/* Shapes with queries that see nothing must be among the tested ones. */
static void some_queries_see_no_key(void **state)
{
    int64_t blind = 0;

    (void)state;
    for (int i = 0; i < SHAPE_COUNT; i++) {
        const struct problem p = make(&shapes[i], HD_F32);

        for (int64_t r = 0; r < p.lse->count; r++)
            blind += isinf(p.lse_exact[r]) ? 1 : 0;
        tensors_free();
    }
    assert_true(blind > 0);
}

static struct hd_attention_backward_args backward_args(const struct problem *p)
{
    const struct shape *s = p->s;

    return (struct hd_attention_backward_args){
        .dout = spread_rows(p->dout, s->H * s->D, p->ldq)->data,
        .q = spread_rows(p->q, s->H * s->D, p->ldq)->data,
        .k = cache_rows(p, p->k),
        .v = cache_rows(p, p->v),
        .out = spread_rows(p->out_dense, s->H * s->D, p->ldq)->data,
        .lse = p->lse->data,
        .q_index = p->q_index->data,
        .kv_index = p->kv_index->data,
        .q_bound = s->bound ? p->q_bound->data : NULL,
        .slopes = s->slopes ? p->slopes->data : NULL,
        .B = s->B,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .kv_stride = s->kv_stride,
        .H = s->H,
        .G = s->G,
        .D = s->D,
        .ldq = p->ldq,
        .ldk = p->ldkv,
        .ldv = p->ldkv,
        .ldo = p->ldq,
        .lddq = p->ldq,
        .lddk = p->ldkv,
        .lddv = p->ldkv,
        .lddo = p->ldq,
        .window = s->window,
        .scale = (float)p->ref.scale,
        .causal = s->causal,
        .dtype = p->dtype};
}

/* The gradients of q, k and v: as they should be, as the naive ones are, and what was there. */
struct gradient {
    double *want, *naive;
    const struct tensor *old;
    struct tensor *got; /* spread */
};

static void add_old(struct gradient *g)
{
    for (int64_t i = 0; i < g->old->count; i++) {
        g->want[i] += g->old->values[i];
        g->naive[i] += g->old->values[i];
    }
}

static void make_gradients(const struct problem *p, enum hd_dtype dtype, bool accumulate,
                           struct gradient g[3])
{
    const struct ref_attention naive = naive_of(p);

    for (int i = 0; i < 3; i++) {
        const int64_t count = (i ? p->k : p->q)->count;

        g[i].want = doubles(count);
        g[i].naive = doubles(count);
        g[i].old = tensor_random(count, dtype, 1, 21 + (uint64_t)i);
    }
    ref_attention_backward(&p->ref, g[0].want, g[1].want, g[2].want, p->dout->values, p->q->values,
                           p->k->values, p->v->values, p->out_dense->values, p->lse->values);
    ref_attention_backward(&naive, g[0].naive, g[1].naive, g[2].naive, p->dout->values,
                           p->q->values, p->k->values, p->v->values, p->out_dense->values,
                           p->lse->values);
    for (int i = 0; i < 3 && accumulate; i++)
        add_old(&g[i]);
}

/* Rows of keys that a cache has but the launch does not name (kv_len <= j < kv_stride) must stay as
 * they were; the others are returned, the unnamed ones as they should be. */
static struct tensor *named_keys(const struct problem *p, const struct gradient *g)
{
    const int64_t width = p->s->G * p->s->D;
    struct tensor *dense = gather_rows(g->got, p->s->B * p->s->kv_stride, width, p->ldkv);

    for (int64_t i = 0; i < dense->count; i++)
        if (i / width % p->s->kv_stride >= p->s->kv_len) {
            assert_true(tensor_get(dense, i) == g->old->values[i]);
            tensor_put(dense, i, g->want[i] = g->naive[i] = 0);
        }
    return dense;
}

static void check_backward(const struct setting *setting, const struct problem *p,
                           enum hd_dtype grad_dtype, bool accumulate, struct gradient g[3])
{
    static const char *const names[3] = {"dq", "dk", "dv"};
    const struct shape *s = p->s;
    struct device device = device_open(setting);
    struct hd_attention_backward_args args = backward_args(p);

    for (int i = 0; i < 3; i++)
        g[i].got = spread_rows(g[i].old, i ? s->G * s->D : s->H * s->D, i ? p->ldkv : p->ldq);
    args.dq = g[0].got->data;
    args.dk = g[1].got->data;
    args.dv = g[2].got->data;
    args.grad_dtype = grad_dtype;
    args.accumulate = accumulate;
    device_launch(&device, HD_K_attention_backward, &args);
    for (int i = 0; i < 3; i++)
        check_values(names[i], &device, p,
                     i ? named_keys(p, &g[i])
                       : gather_rows(g[i].got, s->B * s->q_len, s->H * s->D, p->ldq),
                     g[i].want, g[i].naive, 2 * FP32_UNITS);
    device_close(&device);
}

static bool has_f16(void)
{
    return float_type_count > 2;
}

/* An encoding, its gradients' and whether they are added. */
static const struct kind {
    enum hd_dtype dtype, grad_dtype;
    bool accumulate;
} kinds[] = {{HD_F32, HD_F32, false},  {HD_F32, HD_F32, true},  {HD_BF16, HD_BF16, false},
             {HD_BF16, HD_F32, false}, {HD_BF16, HD_F32, true}, {HD_F16, HD_F16, false},
             {HD_F16, HD_F32, true}};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

static void backward_is_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPE_COUNT * KIND_COUNT; i++) {
        const struct kind *kind = &kinds[i % KIND_COUNT];
        const struct shape *shape = &shapes[i / KIND_COUNT];
        struct gradient gradients[3];
        struct problem p;

        if (shape->kv_filled >= 0 || (kind->dtype == HD_F16 && !has_f16()))
            continue; /* backward has no cache */
        p = make(shape, kind->dtype);
        make_gradients(&p, kind->grad_dtype, kind->accumulate, gradients);
        for (int setting = 0; setting < attention_setting_count; setting++)
            if (setting_is_in_turn(setting, i))
                check_backward(&settings[setting], &p, kind->grad_dtype, kind->accumulate,
                               gradients);
        tensors_free();
    }
}

/* Goal: no length is special. Method: all up to half a tile of tensor cores and those around a
 * whole one, each of one width, encoding and number of heads that share keys. */
static void every_length_is_right(void **state)
{
    static const int64_t widths[] = {64, 96, 128}, shared[] = {1, 4, 8};

    (void)state;
    for (int64_t i = 0; i < 69; i++) {
        const int64_t length = i < 65 ? i + 1 : i + 62; /* 1 .. 65, 127 .. 130 */
        const struct shape shape = {.B = 1,
                                    .q_len = length,
                                    .kv_len = length,
                                    .kv_stride = length,
                                    .H = shared[i / 3 % 3],
                                    .G = 1,
                                    .D = widths[i % 3],
                                    .kv_filled = -1,
                                    .causal = true};
        const struct problem p = make(&shape, has_f16() && i % 2 ? HD_F16 : HD_BF16);
        const struct ref_attention naive = naive_of(&p);
        const struct setting *setting = &settings[i % setting_count];
        struct tensor *out = tensor_new(p.q->count, p.dtype);
        struct tensor *lse = tensor_new(p.lse->count, HD_F32);
        struct hd_attention_forward_args args = forward_args(&p, out, lse);
        double *naive_out = doubles(p.q->count);
        struct device device = device_open(setting);
        struct gradient gradients[3];

        ref_attention(&naive, naive_out, doubles(p.lse->count), p.q->values, p.k->values,
                      p.v->values);
        device_launch(&device, HD_K_attention_forward, &args);
        check_values("out", &device, &p, out, p.out, naive_out, FP32_UNITS);
        assert_close("lse", lse, p.lse_exact, FP32_UNITS);
        device_close(&device);
        make_gradients(&p, p.dtype, false, gradients);
        check_backward(setting, &p, p.dtype, false, gradients);
        tensors_free();
    }
}

/* Goal: on a GPU, dk and dv are right however the heads that share keys are cut into parts: not,
 * into parts of several, of one, of unequal numbers; where a part sees nothing of a tile of keys,
 * too. Method: one shape of each against the reference. 512 blocks are asked for with a head of 64
 * channels, else 256; a shape has `tiles` of 128 keys times B times G of them for each part. What
 * the parts cost is scratch, fp32 sums for dk and dv of every part, that fp32 programs of the same
 * shape do without. */
static void heads_that_share_keys_are_cut(void **state)
{
    static const struct {
        int64_t B, q_len, kv_len, H, G, D, window, parts, part_heads;
    } cuts[] = {
        {32, 3, 3, 24, 8, 128, 0, 1, 3},    /* 1 x 32 x 8 = 256: enough */
        {16, 3, 5, 24, 8, 96, 0, 2, 2},     /* 128: 2 parts, of 2 heads and of 1 */
        {16, 2, 2, 40, 8, 128, 0, 2, 3},    /* 3 and 2 of 5 heads */
        {32, 3, 3, 16, 8, 64, 0, 2, 1},     /* 256 are half of 512 */
        {1, 130, 130, 12, 2, 128, 0, 6, 1}, /* 2 x 1 x 2: as many as there are */
        {1, 20, 280, 4, 2, 64, 40, 2, 1},   /* keys of the first tile that nobody sees */
        {2, 20, 150, 6, 2, 64, 0, 3, 1},
    };
    const struct hd_traits traits = {.multiprocessors = 1}; /* a GPU */

    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        const struct shape shape = {.B = cuts[i].B,
                                    .q_len = cuts[i].q_len,
                                    .kv_len = cuts[i].kv_len,
                                    .kv_stride = cuts[i].kv_len,
                                    .H = cuts[i].H,
                                    .G = cuts[i].G,
                                    .D = cuts[i].D,
                                    .window = cuts[i].window,
                                    .kv_filled = -1,
                                    .causal = true};
        const int64_t sums_bytes =
            cuts[i].parts * 2 * shape.B * shape.G * shape.kv_len * shape.D * 4;
        struct problem p = make(&shape, has_f16() && i % 4 > 1 ? HD_F16 : HD_BF16);
        struct hd_attention_backward_args args = backward_args(&p), plain = args;
        const struct hd_dry_attention_sights sights = hd_dry_attention_backward_sights(&args);
        struct gradient gradients[3];

        plain.dtype = HD_F32;
        assert_int_equal(sights.parts, cuts[i].parts);
        assert_int_equal(sights.part_heads, cuts[i].part_heads);
        assert_int_equal(hd_dry_scratch_attention_backward(&args, &traits) -
                             hd_dry_scratch_attention_backward(&plain, &traits),
                         cuts[i].parts > 1 ? sums_bytes : 0);
        make_gradients(&p, i % 2 ? HD_F32 : p.dtype, i % 2, gradients);
        check_backward(&settings[(int)i % setting_count], &p, i % 2 ? HD_F32 : p.dtype, i % 2,
                       gradients);
        tensors_free();
    }
}

static void bits_are_the_same_in_every_setting(const struct shape *shape)
{
    const struct problem p = make(shape, HD_BF16);
    const int64_t rows = p.s->B * p.s->q_len;
    struct tensor *out[3], *dq[3], *dk[3], *dv[3];

    for (int i = 0; i < 3; i++) {
        struct device device = device_open(&settings[i]);
        struct tensor *lse = tensor_new(p.lse->count, HD_F32);
        struct hd_attention_forward_args f;
        struct hd_attention_backward_args b = backward_args(&p);

        out[i] = tensor_new(rows * p.ldq, HD_BF16);
        dq[i] = tensor_new(rows * p.ldq, HD_BF16);
        dk[i] = tensor_new(p.s->B * p.s->kv_stride * p.ldkv, HD_BF16);
        dv[i] = tensor_new(p.s->B * p.s->kv_stride * p.ldkv, HD_BF16);
        f = forward_args(&p, out[i], lse);
        b.dq = dq[i]->data;
        b.dk = dk[i]->data;
        b.dv = dv[i]->data;
        b.grad_dtype = HD_BF16;
        device_launch(&device, HD_K_attention_forward, &f);
        device_launch(&device, HD_K_attention_backward, &b);
        device_close(&device);
        assert_same_bits("out", out[i], out[0]);
        assert_same_bits("dq", dq[i], dq[0]);
        assert_same_bits("dk", dk[i], dk[0]);
        assert_same_bits("dv", dv[i], dv[0]);
    }
    tensors_free();
}

/* Goal: results do not depend on the number of threads. Method: 1, 2 and 3 threads, bit for bit; of
 * a shape for plain code, and of one for tensor cores whose heads are cut into parts. */
static void threads_do_not_change_a_bit(void **state)
{
    static const struct shape cut = {.B = 2,
                                     .q_len = 70,
                                     .kv_len = 150,
                                     .kv_stride = 150,
                                     .H = 4,
                                     .G = 1,
                                     .D = 64,
                                     .kv_filled = -1,
                                     .causal = true};

    (void)state;
    bits_are_the_same_in_every_setting(&shapes[6]);
    bits_are_the_same_in_every_setting(&cut);
}

static void a_head_width_that_does_not_fit_is_refused(void **state)
{
    static const int64_t widths[] = {4, 12, 264};
    struct device device = device_open(&settings[0]);

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct hd_attention_forward_args f = {.B = 1,
                                              .q_len = 1,
                                              .kv_len = 1,
                                              .kv_stride = 1,
                                              .H = 1,
                                              .G = 1,
                                              .D = widths[i],
                                              .dtype = HD_F32};
        struct hd_attention_backward_args b = {.B = 1,
                                               .q_len = 1,
                                               .kv_len = 1,
                                               .kv_stride = 1,
                                               .H = 1,
                                               .G = 1,
                                               .D = widths[i],
                                               .dtype = HD_F32,
                                               .grad_dtype = HD_F32};

        assert_int_equal(device_try(&device, HD_K_attention_forward, &f), HD_UNSUPPORTED);
        assert_non_null(strstr(hd_err_message(), "multiples of 8 up to 256"));
        assert_int_equal(device_try(&device, HD_K_attention_backward, &b), HD_UNSUPPORTED);
    }
    device_close(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_the_reference),
        cmocka_unit_test(some_queries_see_no_key),
        cmocka_unit_test(heads_that_share_keys_are_cut),
        cmocka_unit_test(backward_is_the_reference),
        cmocka_unit_test(every_length_is_right),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(a_head_width_that_does_not_fit_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

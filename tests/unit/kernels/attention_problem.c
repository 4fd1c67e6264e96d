#include "tests/unit/kernels/attention_problem.h"

#include <math.h>

#include "kernels/costs/costs.h"

enum { FILLED_STEP = 20 };

/* Dense rows of `width` to rows of distance ld, between which nothing is read. */
static struct tensor *spread_rows(const struct tensor *dense, int64_t width, int64_t ld)
{
    struct tensor *t = tensor_new(dense->count / width * ld, dense->dtype);

    for (int64_t i = 0; i < dense->count; i++)
        tensor_put(t, i / width * ld + i % width, dense->values[i]);
    return t;
}

struct tensor *gather_rows(const struct tensor *spread, int64_t rows, int64_t width, int64_t ld)
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

struct problem attention_problem(const struct shape *s, enum hd_dtype dtype)
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
    p.kv_index = s->q_len == s->kv_stride ? q_index : kv_index; /* self-attention: the same rows */
    p.slopes = tensor_random(s->H, HD_F32, 0.1, 15);
    p.sinks = tensor_random(s->H, dtype, 2, 16);
    p.kv_filled = tensor_int32(s->B, s->kv_filled, -FILLED_STEP);
    p.kv_slot = tensor_int32(s->B, s->B - 1, -1);
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
                                   .chunk = s->chunk,
                                   .cap = s->cap,
                                   .q_index = q_index->data,
                                   .kv_index = kv_index->data,
                                   .q_bound = s->bound ? q_bound->data : NULL,
                                   .slopes = s->slopes ? p.slopes->values : NULL,
                                   .sinks = s->sinks ? p.sinks->values : NULL,
                                   .kv_filled = s->kv_filled >= 0 ? p.kv_filled->data : NULL,
                                   .top = doubles(s->H),
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

static void *cache_rows(const struct problem *p, const struct tensor *dense)
{
    const struct shape *s = p->s;
    const int64_t width = s->G * s->D;
    const bool is_cache = s->kv_filled >= 0;
    struct tensor *t = tensor_new(dense->count / width * p->ldkv, dense->dtype);

    for (int64_t i = 0; i < dense->count; i++) {
        const int64_t b = i / width / s->kv_stride, j = i / width % s->kv_stride;
        const int64_t slot = is_cache ? s->B - 1 - b : b;

        if (j < s->kv_len && (!is_cache || j < s->kv_filled - FILLED_STEP * b))
            tensor_put(t, (slot * s->kv_stride + j) * p->ldkv + i % width, dense->values[i]);
    }
    return t->data;
}

struct hd_attention_forward_args attention_forward_args(const struct problem *p, struct tensor *out,
                                                        struct tensor *lse)
{
    const struct shape *s = p->s;

    return (struct hd_attention_forward_args){
        .out = out->data,
        .lse = lse->data,
        .q = spread_rows(p->q, s->H * s->D, p->ldq)->data,
        .k = cache_rows(p, p->k),
        .v = cache_rows(p, p->v),
        .q_index = p->q_index->data,
        .kv_index = p->kv_index->data,
        .q_bound = s->bound ? p->q_bound->data : NULL,
        .slopes = s->slopes ? p->slopes->data : NULL,
        .kv_filled = s->kv_filled >= 0 ? p->kv_filled->data : NULL,
        .kv_slot = s->kv_filled >= 0 ? p->kv_slot->data : NULL,
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
        .chunk = s->chunk,
        .scale = (float)p->ref.scale,
        .cap = (float)s->cap,
        .causal = s->causal,
        .dtype = p->dtype};
}

/* On panels, and on a GPU, weights are rounded before they multiply: the rule for low precision.
 * Elsewhere the result alone is rounded. */
static bool rounds_weights(const struct device *device, const struct problem *p)
{
    if (hd_traits_is_cuda(&device->traits))
        return p->dtype != HD_F32;
    return hd_costs_attention_is_on_panels(p->dtype, p->s->H / p->s->G * p->s->q_len,
                                           &device->traits);
}

struct ref_attention attention_naive(const struct problem *p)
{
    struct ref_attention naive = p->ref;

    naive.is_naive = true;
    naive.top = NULL;
    naive.naive_bits = p->dtype == HD_F16 ? 11 : 8;
    return naive;
}

void attention_check(const char *what, const struct device *device, const struct problem *p,
                     const struct tensor *got, const double *want, const double *naive,
                     double fp32_units)
{
    if (rounds_weights(device, p))
        assert_close_as_naive(what, got, want, naive);
    else /* errors of scores are in proportion to them */
        assert_close(what, got, want, fp32_units * (p->s->spread > 0 ? p->s->spread : 1));
}

struct hd_attention_backward_args attention_backward_args(const struct problem *p)
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
        .chunk = s->chunk,
        .scale = (float)p->ref.scale,
        .cap = (float)s->cap,
        .causal = s->causal,
        .dtype = p->dtype};
}

static void add_old(struct gradient *g)
{
    for (int64_t i = 0; i < g->old->count; i++) {
        g->want[i] += g->old->values[i];
        g->naive[i] += g->old->values[i];
    }
}

void attention_gradients(const struct problem *p, enum hd_dtype dtype, bool accumulate,
                         struct gradient g[3])
{
    const struct ref_attention naive = attention_naive(p);

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

void attention_check_backward(const struct setting *setting, const struct problem *p,
                              enum hd_dtype grad_dtype, bool accumulate, struct gradient g[3])
{
    static const char *const names[3] = {"dq", "dk", "dv"};
    const struct shape *s = p->s;
    struct device device = device_open(setting);
    struct hd_attention_backward_args args = attention_backward_args(p);

    for (int i = 0; i < 3; i++)
        g[i].got = spread_rows(g[i].old, i ? s->G * s->D : s->H * s->D, i ? p->ldkv : p->ldq);
    args.dq = g[0].got->data;
    args.dk = g[1].got->data;
    args.dv = g[2].got->data;
    args.grad_dtype = grad_dtype;
    args.accumulate = accumulate;
    device_launch(&device, HD_K_attention_backward, &args);
    for (int i = 0; i < 3; i++)
        attention_check(names[i], &device, p,
                        i ? named_keys(p, &g[i])
                          : gather_rows(g[i].got, s->B * s->q_len, s->H * s->D, p->ldq),
                        g[i].want, g[i].naive, 2 * FP32_UNITS);
    device_close(&device);
}

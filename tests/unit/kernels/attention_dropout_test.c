/* attention_dropout: weights that are dropped after the softmax, forward and backward, on every
 * path, against double with the mask of the contract recomputed from base/random. A path with
 * another mask than the reference's would be wrong by whole terms. */
#include <math.h>
#include <string.h>

#include "kernels/costs/costs.h"
#include "tests/unit/kernels/harness.h"

/* How the keys' indices follow one another: one by one from 0 or from the middle of four, as two
 * chunks of a cut sequence, or with gaps everywhere. */
enum numbering { FROM_0, FROM_3, TWO_RUNS, APART };

struct shape {
    int64_t B, q_len, kv_len, H, G, D, window, first_head;
    enum numbering numbering;
    float p, cap; /* cap 0: none */
    bool causal, bound, slopes;
};
static const struct shape shapes[] = {
    /* B, q_len, kv_len, H, G, D, window, first_head, numbering */
    {2, 65, 65, 2, 1, 16, 0, 0, FROM_0, .p = 0.1f, .causal = true},
    /* few rows: on vectors everywhere */
    {3, 1, 90, 4, 2, 24, 0, 0, FROM_3, .p = 0.5f},
    {1, 200, 330, 4, 2, 40, 150, 4, FROM_3, .p = 0.3f, .causal = true, .bound = true,
     .slopes = true},
    {2, 130, 130, 3, 1, 64, 0, 0, TWO_RUNS, .p = 0.25f, .causal = true},
    {1, 70, 150, 2, 2, 32, 0, 0, APART, .p = 0.6f},
    {1, 70, 150, 2, 1, 96, 0, 0, APART, .p = 0.2f},
    {1, 140, 140, 2, 2, 128, 0, 2, FROM_3, .p = 0.1f, .causal = true, .slopes = true},
    {1, 100, 110, 2, 1, 64, 0, 1, FROM_3, .p = 0.2f, .cap = 0.75f, .causal = true},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0], STEP = 9 };

static int64_t number_of(const struct shape *s, int64_t j)
{
    switch (s->numbering) {
    case FROM_0:
        return j;
    case FROM_3:
        return j + 3;
    case TWO_RUNS:
        return j < s->kv_len / 2 ? j : j + 37;
    case APART:
        return 3 * j;
    }
    return -1;
}

struct problem {
    const struct shape *s;
    enum hd_dtype dtype;
    struct hd_step_state block;
    struct dropping dropping;
    struct ref_attention ref, naive;
    const struct tensor *q, *k, *v, *dout, *slopes, *sample;
    struct tensor *out_rounded, *lse_rounded; /* of the reference */
    double *out, *lse, *naive_out;
};

static void make(struct problem *p, const struct shape *s, enum hd_dtype dtype)
{
    const int64_t q_rows = s->B * s->q_len, kv_rows = s->B * s->kv_len;
    struct tensor *q_index = tensor_new(q_rows, HD_I32), *bound = tensor_new(q_rows, HD_I32);
    struct tensor *kv_index = tensor_new(kv_rows, HD_I32), *sample = tensor_new(q_rows, HD_I32);

    for (int64_t r = 0; r < q_rows; r++) {
        const int64_t index = number_of(s, s->kv_len - s->q_len + r % s->q_len);

        tensor_put(q_index, r, (double)index);
        tensor_put(bound, r, (double)(index / 133 * 133));
        tensor_put(sample, r, (double)(70 + r / s->q_len));
    }
    for (int64_t r = 0; r < kv_rows; r++)
        tensor_put(kv_index, r, (double)number_of(s, r % s->kv_len));
    *p = (struct problem){.s = s,
                          .dtype = dtype,
                          .block = {.step = STEP},
                          .dropping = {hd_dropout_key(1, 2, 3), STEP, (double)s->p},
                          .q = tensor_random(q_rows * s->H * s->D, dtype, 1, 11),
                          .k = tensor_random(kv_rows * s->G * s->D, dtype, 1, 12),
                          .v = tensor_random(kv_rows * s->G * s->D, dtype, 1, 13),
                          .dout = tensor_random(q_rows * s->H * s->D, dtype, 1, 14),
                          .slopes = tensor_random(s->H, HD_F32, 0.1, 15),
                          .sample = sample};
    p->ref = (struct ref_attention){.B = s->B,
                                    .q_len = s->q_len,
                                    .kv_len = s->kv_len,
                                    .kv_stride = s->kv_len,
                                    .H = s->H,
                                    .G = s->G,
                                    .D = s->D,
                                    .window = s->window,
                                    .q_index = q_index->data,
                                    .kv_index = kv_index->data,
                                    .q_bound = s->bound ? bound->data : NULL,
                                    .slopes = s->slopes ? p->slopes->values : NULL,
                                    .scale = (double)(float)(1 / sqrt((double)s->D)),
                                    .cap = (double)s->cap,
                                    .causal = s->causal};
    p->ref.factor = dropout_factors(&p->dropping, &p->ref, sample->data, s->first_head);
    p->naive = p->ref;
    p->naive.is_naive = true;
    p->naive.naive_bits = dtype == HD_F16 ? 11 : 8;
    p->out = doubles(p->q->count);
    p->naive_out = doubles(p->q->count);
    p->lse = doubles(s->H * q_rows);
    ref_attention(&p->naive, p->naive_out, p->lse, p->q->values, p->k->values, p->v->values);
    ref_attention(&p->ref, p->out, p->lse, p->q->values, p->k->values, p->v->values);
    p->out_rounded = tensor_new(p->q->count, dtype);
    p->lse_rounded = tensor_new(s->H * q_rows, HD_F32);
    for (int64_t i = 0; i < p->q->count; i++)
        tensor_put(p->out_rounded, i, p->out[i]);
    for (int64_t i = 0; i < p->lse_rounded->count; i++)
        tensor_put(p->lse_rounded, i, p->lse[i]);
}

static struct hd_attention_forward_args forward_args(const struct problem *p, struct tensor *out,
                                                     struct tensor *lse)
{
    const struct shape *s = p->s;

    return (struct hd_attention_forward_args){.out = out->data,
                                              .lse = lse->data,
                                              .q = p->q->data,
                                              .k = p->k->data,
                                              .v = p->v->data,
                                              .q_index = p->ref.q_index,
                                              .kv_index = p->ref.kv_index,
                                              .q_bound = p->ref.q_bound,
                                              .slopes = s->slopes ? p->slopes->data : NULL,
                                              .sample = p->sample->data,
                                              .block = &p->block,
                                              .dropout_key = p->dropping.key,
                                              .B = s->B,
                                              .q_len = s->q_len,
                                              .kv_len = s->kv_len,
                                              .kv_stride = s->kv_len,
                                              .H = s->H,
                                              .G = s->G,
                                              .D = s->D,
                                              .ldq = s->H * s->D,
                                              .ldk = s->G * s->D,
                                              .ldv = s->G * s->D,
                                              .ldo = s->H * s->D,
                                              .first_head = s->first_head,
                                              .window = s->window,
                                              .scale = (float)p->ref.scale,
                                              .cap = s->cap,
                                              .dropout = s->p,
                                              .causal = s->causal,
                                              .dtype = p->dtype};
}

static struct hd_attention_backward_args backward_args(const struct problem *p,
                                                       struct tensor *const gradients[3])
{
    const struct hd_attention_forward_args f = forward_args(p, p->out_rounded, p->lse_rounded);

    return (struct hd_attention_backward_args){.dq = gradients[0]->data,
                                               .dk = gradients[1]->data,
                                               .dv = gradients[2]->data,
                                               .dout = p->dout->data,
                                               .q = f.q,
                                               .k = f.k,
                                               .v = f.v,
                                               .out = f.out,
                                               .lse = f.lse,
                                               .q_index = f.q_index,
                                               .kv_index = f.kv_index,
                                               .q_bound = f.q_bound,
                                               .slopes = f.slopes,
                                               .sample = f.sample,
                                               .block = f.block,
                                               .dropout_key = f.dropout_key,
                                               .B = f.B,
                                               .q_len = f.q_len,
                                               .kv_len = f.kv_len,
                                               .kv_stride = f.kv_stride,
                                               .H = f.H,
                                               .G = f.G,
                                               .D = f.D,
                                               .ldq = f.ldq,
                                               .ldk = f.ldk,
                                               .ldv = f.ldv,
                                               .ldo = f.ldo,
                                               .lddq = f.ldq,
                                               .lddk = f.ldk,
                                               .lddv = f.ldv,
                                               .lddo = f.ldo,
                                               .first_head = f.first_head,
                                               .window = f.window,
                                               .scale = f.scale,
                                               .cap = f.cap,
                                               .dropout = f.dropout,
                                               .causal = f.causal,
                                               .dtype = f.dtype,
                                               .grad_dtype = HD_F32};
}

/* On panels, and on a GPU, weights are rounded: the rule for low precision. */
static void check(const char *what, const struct device *device, const struct problem *p,
                  const struct tensor *got, const double *want, const double *naive,
                  double fp32_units)
{
    if (hd_traits_is_cuda(&device->traits)
            ? p->dtype != HD_F32
            : hd_costs_attention_is_on_panels(p->dtype, p->s->H / p->s->G * p->s->q_len,
                                              &device->traits))
        assert_close_as_naive(what, got, want, naive);
    else
        assert_close(what, got, want, fp32_units);
}

static void forward_drops_the_contracts_weights(void **state)
{
    for (int i = 0; i < SHAPE_COUNT * float_type_count; i++) {
        struct problem p;
        struct tensor *out, *lse;

        make(&p, &shapes[i / float_type_count], float_types[i % float_type_count]);
        out = tensor_new(p.q->count, p.dtype);
        lse = tensor_new(p.lse_rounded->count, HD_F32);
        for (int setting = 0; setting < attention_setting_count; setting++) {
            struct hd_attention_forward_args args = forward_args(&p, out, lse);
            struct device device;

            if (!setting_is_in_turn(setting, i) || !setting_takes(setting, p.dtype))
                continue;
            device = device_open(&settings[setting]);
            tensor_poison(out);
            tensor_poison(lse);
            device_launch(&device, HD_K_attention_forward, &args);
            check("out", &device, &p, out, p.out, p.naive_out, FP32_UNITS);
            assert_close("lse", lse, p.lse, FP32_UNITS); /* of all weights */
            device_close(&device);
        }
        tensors_free();
    }
}

static void backward_drops_the_same(void **state)
{
    static const char *const names[3] = {"dq", "dk", "dv"};

    for (int i = 0; i < SHAPE_COUNT * float_type_count; i++) {
        double *want[3], *naive[3];
        struct tensor *got[3];
        struct problem p;

        make(&p, &shapes[i / float_type_count], float_types[i % float_type_count]);
        for (int j = 0; j < 3; j++) {
            const int64_t count = (j ? p.k : p.q)->count;

            want[j] = doubles(count);
            naive[j] = doubles(count);
            got[j] = tensor_new(count, HD_F32);
        }
        ref_attention_backward(&p.ref, want[0], want[1], want[2], p.dout->values, p.q->values,
                               p.k->values, p.v->values, p.out_rounded->values,
                               p.lse_rounded->values);
        ref_attention_backward(&p.naive, naive[0], naive[1], naive[2], p.dout->values, p.q->values,
                               p.k->values, p.v->values, p.out_rounded->values,
                               p.lse_rounded->values);
        for (int setting = 0; setting < attention_setting_count; setting++) {
            struct hd_attention_backward_args args = backward_args(&p, got);
            struct device device;

            if (!setting_is_in_turn(setting, i) || !setting_takes(setting, p.dtype))
                continue;
            device = device_open(&settings[setting]);
            for (int j = 0; j < 3; j++)
                tensor_poison(got[j]);
            device_launch(&device, HD_K_attention_backward, &args);
            for (int j = 0; j < 3; j++)
                check(names[j], &device, &p, got[j], want[j], naive[j], 2 * FP32_UNITS);
            device_close(&device);
        }
        tensors_free();
    }
}

/* Goal: tensor parallelism changes no mask. Method: half of the heads, in a launch of its own that
 * is told which is the first, against the same heads of the whole, bit for bit. */
static void heads_apart_are_the_whole(void **state)
{
    static const struct shape whole = {
        .B = 1, .q_len = 80, .kv_len = 80, .H = 4, .G = 2, .D = 16, .p = 0.2f, .causal = true};

    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct device device = device_open(&settings[1]);
        struct hd_attention_forward_args args;
        struct tensor *out[2], *lse[2];
        struct problem p;

        make(&p, &whole, bf16 ? HD_BF16 : HD_F32);
        for (int i = 0; i < 2; i++) {
            out[i] = tensor_new(p.q->count, p.dtype);
            lse[i] = tensor_new(p.lse_rounded->count, HD_F32);
        }
        args = forward_args(&p, out[0], lse[0]);
        device_launch(&device, HD_K_attention_forward, &args);
        for (int64_t half = 0; half < 2; half++) {
            const size_t size = hd_dtype_size(p.dtype), head = (size_t)(half * whole.D) * size;

            args = forward_args(&p, out[1], lse[1]);
            args.H = 2;
            args.G = 1;
            args.first_head = 2 * half;
            args.q = (const char *)args.q + 2 * head;
            args.out = (char *)args.out + 2 * head;
            args.k = (const char *)args.k + head;
            args.v = (const char *)args.v + head;
            args.lse += 2 * half * whole.q_len;
            device_launch(&device, HD_K_attention_forward, &args);
        }
        assert_same_bits("out", out[1], out[0]);
        assert_same_bits("lse", lse[1], lse[0]);
        device_close(&device);
        tensors_free();
    }
}

static void dropout_without_samples_is_refused(void **state)
{
    struct device device = device_open(&settings[0]);
    struct hd_attention_backward_args b;
    struct hd_attention_forward_args f;
    struct tensor *gradients[3];
    struct problem p;

    make(&p, &shapes[0], HD_F32);
    gradients[0] = gradients[1] = gradients[2] = tensor_new(p.q->count, HD_F32);
    f = forward_args(&p, p.out_rounded, p.lse_rounded);
    f.sample = NULL;
    assert_int_equal(device_try(&device, HD_K_attention_forward, &f), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "needs the samples"));
    b = backward_args(&p, gradients);
    b.block = NULL;
    assert_int_equal(device_try(&device, HD_K_attention_backward, &b), HD_INVALID);
    b = backward_args(&p, gradients);
    b.dropout = 1;
    assert_int_equal(device_try(&device, HD_K_attention_backward, &b), HD_INVALID);
    device_close(&device);
    tensors_free();
}

RUN_CASES()

/* attention_blocks: keys taken block by block, merged by log-sum-exp, as a sequence that is cut
 * over ranks needs it: the same as all keys at once, in both directions. */
#include <math.h>
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

/* A sequence of 2*ranks chunks; rank i has chunks i and 2*ranks-1-i, so that under a causal mask
 * all ranks have equal work (zig-zag). Each rank's queries attend each rank's keys. */
struct shape {
    int64_t B, chunk, ranks, H, G, D, window;
    float dropout, cap; /* cap 0: none */
    int64_t mask_chunk; /* in rows; 0: none */
    bool causal, bound, slopes;
};
static const struct shape shapes[] = {
    /* B, chunk, ranks, H, G, D, window */
    {2, 32, 3, 4, 2, 16, 0, .causal = true},
    /* most ranks see nothing of most others */
    {1, 24, 4, 2, 1, 40, 20, .causal = true},
    {1, 24, 4, 3, 3, 8, 0, .causal = true, .bound = true, .slopes = true},
    {2, 37, 2, 2, 1, 24, 0, .causal = false},
    {2, 37, 2, 2, 1, 32, 0, .dropout = 0.2f, .causal = true},
    /* runs that do not begin with a tile, tiles that span two runs */
    {1, 150, 2, 2, 1, 64, 200, .causal = true, .bound = true, .slopes = true},
    /* tiles of tensor cores: runs that end within one, some of them seen whole */
    {1, 100, 2, 2, 1, 64, 0, .causal = true},
    {1, 30, 2, 2, 1, 64, 0, .cap = 0.75f, .mask_chunk = 21, .causal = true, .bound = true},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

enum { KEY = 77 };
static const struct hd_step_state step_block = {.step = 3};

struct problem {
    const struct shape *s;
    enum hd_dtype dtype;
    int64_t S, local; /* rows of a sequence, and of it on a rank */
    struct ref_attention ref, naive;
    const struct tensor *q, *k, *v, *dout, *slopes, *sample;
    struct tensor *out_rounded, *lse_rounded; /* of the reference */
    double *out, *lse, *naive_out;
};

/* Row of the whole problem that is local row `row` of a rank. */
static int64_t whole_row(const struct problem *p, int64_t rank, int64_t row)
{
    const int64_t chunk = p->s->chunk, in = row % p->local;
    const int64_t number = in < chunk ? rank : 2 * p->s->ranks - 1 - rank;

    return row / p->local * p->S + number * chunk + in % chunk;
}

static struct problem make(const struct shape *s, enum hd_dtype dtype)
{
    const int64_t S = 2 * s->ranks * s->chunk, rows = s->B * S;
    struct problem p = {.s = s, .dtype = dtype, .S = S, .local = 2 * s->chunk};
    struct tensor *index = tensor_new(rows, HD_I32), *bound = tensor_new(rows, HD_I32);
    struct tensor *sample = tensor_new(rows, HD_I32);
    const struct dropping dropping = {KEY, step_block.step, (double)s->dropout};

    for (int64_t r = 0; r < rows; r++) {
        tensor_put(index, r, (double)(r % S));
        tensor_put(bound, r, (double)(r % S / 33 * 33));
        tensor_put(sample, r, (double)(r / S + 8));
    }
    p.q = tensor_random(rows * s->H * s->D, dtype, 1, 11);
    p.k = tensor_random(rows * s->G * s->D, dtype, 1, 12);
    p.v = tensor_random(rows * s->G * s->D, dtype, 1, 13);
    p.dout = tensor_random(rows * s->H * s->D, dtype, 1, 14);
    p.slopes = tensor_random(s->H, HD_F32, 0.1, 15);
    p.ref = (struct ref_attention){.B = s->B,
                                   .q_len = S,
                                   .kv_len = S,
                                   .kv_stride = S,
                                   .H = s->H,
                                   .G = s->G,
                                   .D = s->D,
                                   .window = s->window,
                                   .chunk = s->mask_chunk,
                                   .cap = (double)s->cap,
                                   .q_index = index->data,
                                   .kv_index = index->data,
                                   .q_bound = s->bound ? bound->data : NULL,
                                   .slopes = s->slopes ? p.slopes->values : NULL,
                                   .scale = (double)(float)(1 / sqrt((double)s->D)),
                                   .causal = s->causal};
    p.sample = sample;
    if (s->dropout > 0)
        p.ref.factor = dropout_factors(&dropping, &p.ref, sample->data, 0);
    p.naive = p.ref;
    p.naive.is_naive = true;
    p.naive.naive_bits = dtype == HD_F16 ? 11 : 8;
    p.out = doubles(p.q->count);
    p.lse = doubles(s->H * rows);
    p.naive_out = doubles(p.q->count);
    ref_attention(&p.naive, p.naive_out, p.lse, p.q->values, p.k->values, p.v->values);
    ref_attention(&p.ref, p.out, p.lse, p.q->values, p.k->values, p.v->values);
    p.out_rounded = tensor_new(p.q->count, dtype);
    p.lse_rounded = tensor_new(s->H * rows, HD_F32);
    for (int64_t i = 0; i < p.q->count; i++)
        tensor_put(p.out_rounded, i, p.out[i]);
    for (int64_t i = 0; i < s->H * rows; i++)
        tensor_put(p.lse_rounded, i, p.lse[i]);
    return p;
}

/* A rank's rows of a tensor of the whole, of `width` elements each. */
static struct tensor *rows_of(const struct problem *p, int64_t rank, const struct tensor *whole,
                              int64_t width)
{
    struct tensor *t = tensor_new(p->s->B * p->local * width, whole->dtype);

    for (int64_t i = 0; i < t->count; i++)
        tensor_put(t, i, tensor_get(whole, whole_row(p, rank, i / width) * width + i % width));
    return t;
}

static struct tensor *lse_of(const struct problem *p, int64_t rank)
{
    const int64_t rows = p->s->B * p->local;
    struct tensor *t = tensor_new(p->s->H * rows, HD_F32);

    for (int64_t i = 0; i < t->count; i++)
        tensor_put(
            t, i, p->lse_rounded->values[i / rows * p->s->B * p->S + whole_row(p, rank, i % rows)]);
    return t;
}

static struct tensor *indices_of(const struct problem *p, int64_t rank, const int32_t *whole)
{
    struct tensor *t = tensor_new(p->s->B * p->local, HD_I32);

    for (int64_t i = 0; i < t->count; i++)
        tensor_put(t, i, whole[whole_row(p, rank, i)]);
    return t;
}

/* Tensors of one rank. */
struct rank {
    struct tensor *q, *k, *v, *dout, *out, *lse, *index, *bound, *sample;
    struct tensor *dq, *dk, *dv;
};

static struct rank rank_of(const struct problem *p, int64_t number)
{
    const int64_t q_width = p->s->H * p->s->D, kv_width = p->s->G * p->s->D;
    struct rank r = {.q = rows_of(p, number, p->q, q_width),
                     .k = rows_of(p, number, p->k, kv_width),
                     .v = rows_of(p, number, p->v, kv_width),
                     .dout = rows_of(p, number, p->dout, q_width),
                     .out = rows_of(p, number, p->out_rounded, q_width),
                     .lse = lse_of(p, number),
                     .index = indices_of(p, number, p->ref.q_index),
                     .sample = indices_of(p, number, p->sample->data)};

    r.dq = tensor_new(r.q->count, HD_F32);
    r.dk = tensor_new(r.k->count, HD_F32);
    r.dv = tensor_new(r.v->count, HD_F32);
    r.bound = p->s->bound ? indices_of(p, number, p->ref.q_bound) : NULL;
    return r;
}

static struct hd_attention_forward_args forward_args(const struct problem *p, const struct rank *q,
                                                     const struct rank *kv)
{
    const struct shape *s = p->s;

    return (struct hd_attention_forward_args){.q = q->q->data,
                                              .k = kv->k->data,
                                              .v = kv->v->data,
                                              .q_index = q->index->data,
                                              .kv_index = kv->index->data,
                                              .q_bound = q->bound ? q->bound->data : NULL,
                                              .slopes = s->slopes ? p->slopes->data : NULL,
                                              .sample = q->sample->data,
                                              .block = &step_block,
                                              .dropout_key = KEY,
                                              .dropout = s->dropout,
                                              .B = s->B,
                                              .q_len = p->local,
                                              .kv_len = p->local,
                                              .kv_stride = p->local,
                                              .H = s->H,
                                              .G = s->G,
                                              .D = s->D,
                                              .ldq = s->H * s->D,
                                              .ldk = s->G * s->D,
                                              .ldv = s->G * s->D,
                                              .ldo = s->H * s->D,
                                              .window = s->window,
                                              .chunk = s->mask_chunk,
                                              .cap = s->cap,
                                              .scale = (float)p->ref.scale,
                                              .causal = s->causal,
                                              .dtype = p->dtype};
}

/* Attends the keys of all ranks, nearest first, as a ring brings them. Returns how many blocks of
 * keys were not seen at all. */
static int64_t attend_blocks(struct device *device, const struct problem *p,
                             const struct rank *ranks, int64_t number, struct tensor *out,
                             struct tensor *lse)
{
    const int64_t count = p->s->ranks, rows = p->s->B * p->local;
    struct tensor *acc = tensor_new(out->count, HD_F32);
    struct tensor *block_out = tensor_new(out->count, p->dtype);
    struct tensor *block_lse = tensor_new(lse->count, HD_F32);
    int64_t blind = 0;

    for (int64_t i = 0; i < count; i++) {
        const struct rank *keys = &ranks[(number + count - i) % count];
        struct hd_attention_forward_args a = forward_args(p, &ranks[number], keys);
        struct hd_attention_merge_args merge = {.out = i == count - 1 ? out->data : NULL,
                                                .acc = acc->data,
                                                .lse = lse->data,
                                                .block_out = block_out->data,
                                                .block_lse = block_lse->data,
                                                .R = rows,
                                                .H = p->s->H,
                                                .D = p->s->D,
                                                .first = i == 0,
                                                .dtype = p->dtype};
        bool seen = false;

        a.out = block_out->data;
        a.lse = block_lse->data;
        device_launch(device, HD_K_attention_forward, &a);
        device_launch(device, HD_K_attention_merge, &merge);
        for (int64_t r = 0; r < block_lse->count; r++)
            seen |= !isinf(tensor_get(block_lse, r));
        blind += seen ? 0 : 1;
    }
    return blind;
}

/* Back to the rows of the whole. */
static void put_rows(const struct problem *p, int64_t rank, struct tensor *whole,
                     const struct tensor *part, int64_t width)
{
    for (int64_t i = 0; i < part->count; i++)
        tensor_put(whole, whole_row(p, rank, i / width) * width + i % width, tensor_get(part, i));
}

/* Weights and blocks' results of bf16 are rounded: the rule for low precision. */
static void check(const char *what, const struct problem *p, const struct tensor *got,
                  const double *want, const double *naive, double fp32_units)
{
    if (p->dtype != HD_F32)
        assert_close_as_naive(what, got, want, naive);
    else
        assert_close(what, got, want, fp32_units);
}

static void merged_blocks_are_the_whole(void **state)
{
    int64_t blind = 0;

    for (int i = 0; i < SHAPE_COUNT * float_type_count; i++) {
        const struct problem p =
            make(&shapes[i / float_type_count], float_types[i % float_type_count]);
        const int64_t rows = p.s->B * p.local;
        struct rank ranks[4];

        for (int64_t r = 0; r < p.s->ranks; r++)
            ranks[r] = rank_of(&p, r);
        for (int setting = 0; setting < attention_setting_count; setting++) {
            struct tensor *out, *lse;
            struct device device;

            if (!setting_is_in_turn(setting, i) || !setting_takes(setting, p.dtype))
                continue;
            out = tensor_new(p.q->count, p.dtype);
            lse = tensor_new(p.lse_rounded->count, HD_F32);
            device = device_open(&settings[setting]);
            for (int64_t r = 0; r < p.s->ranks; r++) {
                struct tensor *part = tensor_new(ranks[r].q->count, p.dtype);
                struct tensor *part_lse = tensor_new(ranks[r].lse->count, HD_F32);

                blind += attend_blocks(&device, &p, ranks, r, part, part_lse);
                put_rows(&p, r, out, part, p.s->H * p.s->D);
                for (int64_t j = 0; j < part_lse->count; j++)
                    tensor_put(lse, j / rows * p.s->B * p.S + whole_row(&p, r, j % rows),
                               tensor_get(part_lse, j));
            }
            check("out", &p, out, p.out, p.naive_out, FP32_UNITS);
            assert_close("lse", lse, p.lse, FP32_UNITS);
            device_close(&device);
        }
        tensors_free();
    }
    assert_true(blind > 0); /* or the shapes do not test what they should */
}

/* Goal: the blocks' gradients, each from the merged result and added to what is there, sum up to
 * the gradient of the whole. */
static void gradients_of_blocks_add_up(void **state)
{
    for (int i = 0; i < SHAPE_COUNT * float_type_count; i++) {
        const struct problem p =
            make(&shapes[i / float_type_count], float_types[i % float_type_count]);
        double *want[3], *naive[3];
        struct tensor *got[3];
        struct rank ranks[4];

        for (int j = 0; j < 3; j++) {
            want[j] = doubles((j ? p.k : p.q)->count);
            naive[j] = doubles((j ? p.k : p.q)->count);
            got[j] = tensor_new((j ? p.k : p.q)->count, HD_F32);
        }
        ref_attention_backward(&p.ref, want[0], want[1], want[2], p.dout->values, p.q->values,
                               p.k->values, p.v->values, p.out_rounded->values,
                               p.lse_rounded->values);
        ref_attention_backward(&p.naive, naive[0], naive[1], naive[2], p.dout->values, p.q->values,
                               p.k->values, p.v->values, p.out_rounded->values,
                               p.lse_rounded->values);
        for (int64_t r = 0; r < p.s->ranks; r++)
            ranks[r] = rank_of(&p, r);
        for (int setting = 0; setting < attention_setting_count; setting++) {
            struct device device;

            if (!setting_is_in_turn(setting, i) || !setting_takes(setting, p.dtype))
                continue;
            device = device_open(&settings[setting]);
            for (int64_t r = 0; r < p.s->ranks; r++) {
                memset(ranks[r].dq->data, 0, (size_t)ranks[r].dq->count * sizeof(float));
                memset(ranks[r].dk->data, 0, (size_t)ranks[r].dk->count * sizeof(float));
                memset(ranks[r].dv->data, 0, (size_t)ranks[r].dv->count * sizeof(float));
            }
            for (int64_t pair = 0; pair < p.s->ranks * p.s->ranks; pair++) {
                const struct rank *q = &ranks[pair / p.s->ranks], *kv = &ranks[pair % p.s->ranks];
                const struct hd_attention_forward_args f = forward_args(&p, q, kv);
                struct hd_attention_backward_args a = {.dq = q->dq->data,
                                                       .dk = kv->dk->data,
                                                       .dv = kv->dv->data,
                                                       .dout = q->dout->data,
                                                       .q = f.q,
                                                       .k = f.k,
                                                       .v = f.v,
                                                       .out = q->out->data,
                                                       .lse = q->lse->data,
                                                       .q_index = f.q_index,
                                                       .kv_index = f.kv_index,
                                                       .q_bound = f.q_bound,
                                                       .slopes = f.slopes,
                                                       .sample = f.sample,
                                                       .block = f.block,
                                                       .dropout_key = f.dropout_key,
                                                       .dropout = f.dropout,
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
                                                       .window = f.window,
                                                       .chunk = f.chunk,
                                                       .cap = f.cap,
                                                       .scale = f.scale,
                                                       .causal = f.causal,
                                                       .accumulate = true,
                                                       .dtype = p.dtype,
                                                       .grad_dtype = HD_F32};

                device_launch(&device, HD_K_attention_backward, &a);
            }
            for (int64_t r = 0; r < p.s->ranks; r++) {
                put_rows(&p, r, got[0], ranks[r].dq, p.s->H * p.s->D);
                put_rows(&p, r, got[1], ranks[r].dk, p.s->G * p.s->D);
                put_rows(&p, r, got[2], ranks[r].dv, p.s->G * p.s->D);
            }
            check("dq", &p, got[0], want[0], naive[0], 2 * FP32_UNITS);
            check("dk", &p, got[1], want[1], naive[1], 2 * FP32_UNITS);
            check("dv", &p, got[2], want[2], naive[2], 2 * FP32_UNITS);
            device_close(&device);
        }
        tensors_free();
    }
}

/* ---- the merge alone ---- */

/* ---- partial sums of the gradients' rows ---- */

/* Arguments for rows [q | k | v] and their gradients [dq | dk | dv]; a query sees the keys up to its own. */
static struct hd_attention_backward_args summing_args(int64_t B, int64_t S, int64_t H, int64_t G,
                                                      int64_t D, const struct tensor *qkv,
                                                      const struct tensor *dout,
                                                      const struct tensor *lse, struct tensor *dqkv)
{
    const size_t size = hd_dtype_size(qkv->dtype);
    const int64_t ld = (H + 2 * G) * D;
    const char *q = qkv->data;
    char *dq = dqkv->data;
    int32_t *index = reachable(NULL, (size_t)(B * S) * sizeof *index);

    for (int64_t r = 0; r < B * S; r++)
        index[r] = (int32_t)(r % S);
    return (struct hd_attention_backward_args){.dq = dq,
                                               .dk = dq + (size_t)(H * D) * size,
                                               .dv = dq + (size_t)((H + G) * D) * size,
                                               .dout = dout->data,
                                               .q = q,
                                               .k = q + (size_t)(H * D) * size,
                                               .v = q + (size_t)((H + G) * D) * size,
                                               .out = dout->data,
                                               .lse = lse->data,
                                               .q_index = index,
                                               .kv_index = index,
                                               .B = B,
                                               .q_len = S,
                                               .kv_len = S,
                                               .kv_stride = S,
                                               .H = H,
                                               .G = G,
                                               .D = D,
                                               .ldq = ld,
                                               .ldk = ld,
                                               .ldv = ld,
                                               .ldo = H * D,
                                               .lddq = ld,
                                               .lddk = ld,
                                               .lddv = ld,
                                               .lddo = H * D,
                                               .scale = 0.125f,
                                               .causal = true,
                                               .dtype = qkv->dtype,
                                               .grad_dtype = qkv->dtype};
}

/* Goal: the gradient of the bias of q, k and v reads no rows of gradients, and sums what is stored.
 * Method: the rows with sums and without are the same bits, and the sums are those of the rows:
 * tensor cores with a head of each width, with key heads that are shared (in a pass of its own,
 * where their gradients are added up in parts), and plain code. Half a piece is refused. */
static void rows_of_gradients_are_summed(void **state)
{
    enum { B = 2, S = HD_ATTENTION_SUM_ROWS };
    static const struct {
        int64_t H, G, D;
        enum hd_dtype dtype;
    } cases[] = {{2, 2, 64, HD_BF16},
                 {1, 1, 96, HD_F16},
                 {1, 1, 128, HD_BF16},
                 {4, 2, 64, HD_F16},
                 {1, 1, 40, HD_F32}};

    for (int s = 0; s < attention_setting_count; s++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const int64_t H = cases[i].H, G = cases[i].G, D = cases[i].D, N = (H + 2 * G) * D;
            struct device device;
            struct tensor *dqkv[2], *sums, *lse;
            struct hd_attention_backward_args a;

            if (!on_takes(s, (int64_t)i, attention_setting_count))
                continue;
            device = device_open(&settings[s]);
            lse = tensor_random(H * B * S, HD_F32, 1, 3);
            sums = tensor_new(B * S / HD_ATTENTION_SUM_ROWS * N, HD_F32);
            for (int k = 0; k < 2; k++) {
                dqkv[k] = tensor_new(B * S * N, cases[i].dtype);
                a = summing_args(B, S, H, G, D, tensor_random(B * S * N, cases[i].dtype, 1, 1),
                                 tensor_random(B * S * H * D, cases[i].dtype, 1, 2), lse, dqkv[k]);
                a.sums = k ? sums->data : NULL;
                device_launch(&device, HD_K_attention_backward, &a);
            }
            assert_same_bits("dqkv", dqkv[1], dqkv[0]);
            assert_row_sums(&device, dqkv[1], sums, B * S, N);
            a.q_len = a.kv_len = a.kv_stride = S / 2;
            assert_int_equal(device_try(&device, HD_K_attention_backward, &a), HD_INVALID);
            tensors_free();
            device_close(&device);
        }
}

/* Pairs of log-sum-exps: equal, near, far on either side, absent on one side or on both. */
static const float pairs[][2] = {{0, 0},         {3.5f, 3.25f},  {-2, 7},
                                 {60, -60},      {-300, 20},     {1000, 999},
                                 {-INFINITY, 4}, {5, -INFINITY}, {-INFINITY, -INFINITY}};
enum { PAIR_COUNT = sizeof pairs / sizeof pairs[0] };

struct merge {
    struct tensor *out, *acc, *lse, *block_out, *block_lse;
    double *want, *want_lse;
    struct hd_attention_merge_args args;
};

static struct merge make_merge(int64_t R, int64_t H, int64_t D, enum hd_dtype dtype)
{
    struct merge m = {.out = tensor_new(R * H * D, dtype),
                      .acc = tensor_random(R * H * D, HD_F32, 1, 31),
                      .lse = tensor_new(R * H, HD_F32),
                      .block_out = tensor_random(R * H * D, dtype, 1, 32),
                      .block_lse = tensor_new(R * H, HD_F32),
                      .want = doubles(R * H * D),
                      .want_lse = doubles(R * H)};

    for (int64_t i = 0; i < R * H; i++) {
        const float *pair = pairs[(i + i / PAIR_COUNT) % PAIR_COUNT];
        const double old = (double)pair[0], block = (double)pair[1], max = fmax(old, block);
        const double sum = isinf(max) ? 0 : exp(old - max) + exp(block - max);
        const int64_t at = (i % R * H + i / R) * D;

        tensor_put(m.lse, i, old);
        tensor_put(m.block_lse, i, block);
        m.want_lse[i] = max + log(sum);
        for (int64_t d = at; d < at + D; d++) {
            if (isinf(old)) /* what attention gives for no key */
                tensor_put(m.acc, d, 0);
            if (isinf(block))
                tensor_put(m.block_out, d, 0);
            m.want[d] = isinf(max) ? 0
                                   : exp(old - max) / sum * m.acc->values[d] +
                                         exp(block - max) / sum * m.block_out->values[d];
        }
    }
    m.args = (struct hd_attention_merge_args){.acc = m.acc->data,
                                              .lse = m.lse->data,
                                              .block_out = m.block_out->data,
                                              .block_lse = m.block_lse->data,
                                              .R = R,
                                              .H = H,
                                              .D = D,
                                              .dtype = dtype};
    return m;
}

/* Rows and heads on both sides of what is taken at a time (16 heads, a vector of rows); heads that
 * no vector divides. */
static const int64_t sizes[][3] = {{1, 1, 8}, {37, 3, 40}, {16, 17, 64}, {5, 40, 24}, {7, 3, 13}};
enum { SIZE_COUNT = sizeof sizes / sizeof sizes[0] };
enum { MERGE_UNITS = 8 }; /* two exponents, a quotient and the sum, each within 2 units */

static void merging_is_exact_to_a_few_units(void **state)
{
    for (int i = 0; i < SIZE_COUNT * 2 * float_type_count; i++)
        for (int setting = 0; setting < setting_count; setting++) {
            const int64_t *size = sizes[i / 2 / float_type_count];
            struct merge m =
                make_merge(size[0], size[1], size[2], float_types[i / 2 % float_type_count]);
            const struct tensor *before = tensor_copy(m.acc);
            struct device device = device_open(&settings[setting]);

            if (i % 2)
                m.args.out = m.out->data;
            device_launch(&device, HD_K_attention_merge, &m.args);
            assert_close("merged", m.args.out ? m.out : m.acc, m.want, MERGE_UNITS);
            for (int64_t r = 0; r < m.lse->count; r++) /* each in its own size */
                assert_close_at("lse", r, tensor_get(m.lse, r), m.want_lse[r],
                                isinf(m.want_lse[r])
                                    ? 0
                                    : MERGE_UNITS * 0x1p-24 * fmax(1, fabs(m.want_lse[r])));
            if (m.args.out)
                assert_same_bits("acc with out", m.acc, before);
            device_close(&device);
            tensors_free();
        }
}

/* The first block is stored whatever was there (NaN here); with `out`, in one pass, even without an
 * accumulator. */
static void the_first_block_is_stored(void **state)
{
    for (int i = 0; i < float_type_count; i++)
        for (int setting = 0; setting < setting_count; setting++) {
            struct merge m = make_merge(37, 3, 40, float_types[i]);
            struct device device = device_open(&settings[setting]);

            tensor_poison(m.acc);
            tensor_poison(m.lse);
            m.args.first = true;
            device_launch(&device, HD_K_attention_merge, &m.args);
            assert_close("acc", m.acc, m.block_out->values, 0);
            assert_same_bits("lse", m.lse, m.block_lse);
            tensor_poison(m.lse);
            m.args.acc = NULL;
            m.args.out = m.out->data;
            device_launch(&device, HD_K_attention_merge, &m.args);
            assert_same_bits("out", m.out, m.block_out);
            assert_same_bits("lse", m.lse, m.block_lse);
            device_close(&device);
            tensors_free();
        }
}

RUN_CASES()

/* attention_backward: backward in fp32 vectors. One thread computes a whole task (all rows and keys
 * of a group), so it sums dk and dv without atomics. */
#include "kernels/cpu/attention_vectors.h"

struct cpu_backward {
    const struct hd_attention_backward_args *args;
    struct hd_costs_attention_layout layout;
    struct weight_drop drop;
    int64_t threads; /* of the launch: the next piece of a thread is probably as many later */
};

/* One thread's slice of the scratch of attention backward. */
struct backward_tiles {
    float *q, *dout, *dq, *lse, *delta;
    float *k, *k_t, *v_t, *score, *dscore, *dk, *dv;
    int32_t *key_index;
    struct mask_extent mask_extent;
    struct later later;
};

static struct task backward_task_of(const struct cpu_backward *f, int64_t b, int64_t g)
{
    return TASK_OF(f->args, &f->drop, b, g, f->args->kv_len, f->layout.width);
}

static struct backward_tiles backward_tiles_of(const struct cpu_backward *f, int thread)
{
    const struct hd_costs_attention_layout *l = &f->layout;
    float *base = (float *)f->args->scratch + thread * l->thread_floats;

    return (struct backward_tiles){.q = base + l->q,
                                   .dout = base + l->dout,
                                   .dq = base + l->dq,
                                   .lse = base + l->lse,
                                   .delta = base + l->delta,
                                   .k = base + l->k,
                                   .k_t = base + l->k_t,
                                   .v_t = base + l->v_t,
                                   .score = base + l->score,
                                   .dscore = base + l->dscore,
                                   .dk = base + l->dk,
                                   .dv = base + l->dv,
                                   .key_index = (int32_t *)(base + l->key_index),
                                   .mask_extent = {.index = (int32_t *)(base + l->index),
                                                   .bound = (int32_t *)(base + l->bound),
                                                   .slope = base + l->slope}};
}

/* Turns the first n scores of a row of a tile into p = exp(score - lse), and dscore, which is dout
 * v^T, into p * (dscore - delta); with `capped` also times the derivative of the capped score, 0
 * where the score is -inf. Sets the others to 0. */
INLINE void softmax_backward_row(const struct task *t, float *score, float *dscore, int64_t n,
                                 float lse, float delta, bool capped)
{
    const float inverse = capped ? 1.0f / t->cap : 0;

    for (int64_t j = 0; j < n; j += VL) {
        const vf s = vf_load_f32(score + j, VL), p = vf_exp_weight(s - lse);
        vf ds = p * (vf_load_f32(dscore + j, VL) - delta);

        if (capped)
            ds *= cap_slope(s * inverse);
        vf_store_f32(score + j, VL, p);
        vf_store_f32(dscore + j, VL, ds);
    }
    if (n < TILE) { /* a call costs as much as two vectors of exponentials */
        memset(score + n, 0, (size_t)(TILE - n) * sizeof *score);
        memset(dscore + n, 0, (size_t)(TILE - n) * sizeof *dscore);
    }
}

/* Computes what softmax_backward_row computes, with dropout: ds from all attention weights, dv from
 * the kept ones. */
static __attribute__((noinline)) void
softmax_backward_dropped_row(const struct task *t, int64_t row, const int32_t *keys, int64_t count,
                             float *score, float *dscore, int64_t n, float lse, float delta)
{
    const struct drop *drop = &t->drop->drop;
    uint8_t bytes[TILE + DROP_LINE_PAD];
    const uint8_t *dropped = drop_numbers(drop, place_of(t, row), bytes, keys, count);

    drop_floats(dscore, dropped, count, drop->scale);
    if (t->cap > 0)
        softmax_backward_row(t, score, dscore, n, lse, delta, true);
    else
        softmax_backward_row(t, score, dscore, n, lse, delta, false);
    drop_floats(score, dropped, count, drop->scale);
}

static void differentiate_tile(const struct task *t, struct backward_tiles *s, int64_t first,
                               int64_t rows, int64_t key, int64_t count,
                               const struct attention_extent *keys)
{
    const int64_t width = t->width;
    struct ahead ahead = {.key = key + TILE};

    pack_keys_transposed(t, s->k_t, t->k, t->ldk, key, count);
    pack_keys_transposed(t, s->v_t, t->v, t->ldv, key, count);
    pack_keys(t, s->k, t->k, t->ldk, key, count);
    for (int64_t i = 0; i < rows; i += TILE) {
        const int64_t m = hd_min(TILE, rows - i);
        const struct row_extent extent = row_extent_of(&s->mask_extent, i, m);
        const enum cover cover = cover_of(t, &extent, keys);
        struct reach reach;

        if (cover == NOTHING)
            continue;
        look_ahead(&ahead, t, key, (rows - i + TILE - 1) / TILE);
        reach = find_reach(t, &s->mask_extent, i, m, s->key_index, count, cover);
        multiply_keys(s->score, s->q + i * width, width, s->k_t, m, t->D, &reach);
        if (t->cap > 0)
            cap_tile(t, s->score, m);
        mask_tile(t, s->score, &s->mask_extent, i, m, s->key_index, count, cover);
        multiply_keys(s->dscore, s->dout + i * width, width, s->v_t, m, t->D, &reach);
        for (int64_t r = 0; r < m; r++) {
            float *score = s->score + r * TILE, *dscore = s->dscore + r * TILE;
            const float lse = s->lse[i + r], delta = s->delta[i + r];
            const int64_t n = scores_of(&reach, r);

            prefetch_next_key(&ahead, t);
            prefetch_later(&s->later, 1);
            if (t->drop)
                softmax_backward_dropped_row(t, first + i + r, s->key_index, count, score, dscore,
                                             n, lse, delta);
            else if (t->cap > 0)
                softmax_backward_row(t, score, dscore, n, lse, delta, true);
            else
                softmax_backward_row(t, score, dscore, n, lse, delta, false);
        }
        multiply_weights_transposed(s->dv + key * width, s->score, s->dout + i * width, width,
                                    count, channels(t), m, &reach);
        multiply_weights_transposed(s->dk + key * width, s->dscore, s->q + i * width, width, count,
                                    channels(t), m, &reach);
        multiply_weights(s->dq + i * width, s->dscore, s->k, width, m, channels(t), &reach);
    }
}

/* Loads a block of rows of q, dout, lse and delta. A row that sees no key has lse = -inf, which is
 * replaced by +inf, so that every p of the row is zero. */
INLINE void load_block(const struct hd_attention_backward_args *a, const struct task *t,
                       struct backward_tiles *s, int64_t first, int64_t rows, enum hd_dtype dtype)
{
    load_rows(t, s->q, t->q, t->ldq, first, rows, t->scale, dtype);
    load_rows(t, s->dout, a->dout, a->lddo, first, rows, 1.0f, dtype);
    memset(s->dq, 0, (size_t)(rows * t->width) * sizeof *s->dq);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t head = task_head(t, first + i), query = task_query(t, first + i);
        const float lse = a->lse[head * a->B * a->q_len + query];
        vf products = {0};

        FOR_VECTORS (d, n, 0, a->D) {
            products += vf_load_f32(s->dout + i * t->width + d, n) *
                        vf_load(a->out, query * a->ldo + head * a->D + d, n, dtype);
        }
        s->delta[i] = vf_sum(products);
        s->lse[i] = lse == -INFINITY ? INFINITY : lse;
    }
}

INLINE void store_queries(const struct hd_attention_backward_args *a, const struct task *t,
                          const struct backward_tiles *s, int64_t first, int64_t rows,
                          enum hd_dtype dtype)
{
    for (int64_t i = 0; i < rows; i++)
        store_row(a->dq, task_query(t, first + i) * a->lddq + task_head(t, first + i) * a->D,
                  s->dq + i * t->width, a->D, a->scale, a->accumulate, dtype);
}

INLINE void store_keys(const struct hd_attention_backward_args *a, const struct task *t,
                       const struct backward_tiles *s, enum hd_dtype dtype)
{
    for (int64_t j = 0; j < a->kv_len; j++) {
        store_row(a->dk, key_at(t, j, a->lddk), s->dk + j * t->width, a->D, 1.0f, a->accumulate,
                  dtype);
        store_row(a->dv, key_at(t, j, a->lddv), s->dv + j * t->width, a->D, 1.0f, a->accumulate,
                  dtype);
    }
}

static void differentiate_block(const struct hd_attention_backward_args *a, const struct task *t,
                                struct backward_tiles *s, int64_t first, int64_t rows)
{
    struct row_extent extent;

    load_mask_extent(t, first, rows, &s->mask_extent);
    extent = row_extent_of(&s->mask_extent, 0, rows);
    if (a->accumulate && !sees_a_key(t, &extent, TILE))
        return; /* no row of the block sees a key, so no gradient is added */
    WITH_FLOATS(a->dtype, T, load_block(a, t, s, first, rows, T));
    for (int64_t key = 0; key < t->kv_len; key += TILE) {
        const int64_t count = hd_min(TILE, t->kv_len - key);
        const struct attention_extent keys = load_keys(t, s->key_index, key, count);

        if (cover_of(t, &extent, &keys) != NOTHING)
            differentiate_tile(t, s, first, rows, key, count, &keys);
    }
    WITH_FLOATS(a->grad_dtype, T, store_queries(a, t, s, first, rows, T));
}

/* The keys' gradients are stored behind the last block. */
static struct later backward_later(const struct cpu_backward *f, const struct task *t,
                                   int64_t group, int64_t first)
{
    const struct hd_attention_backward_args *a = f->args;
    const int64_t rows = f->layout.block_rows;
    const bool is_last = first + rows >= t->heads * t->q_len;
    const int64_t next = is_last ? group + f->threads : group, from = is_last ? 0 : first + rows;
    struct later later = {.count = 0};

    add_run(&later, run_of_queries(t, a->dq, a->lddq, first, rows, a->grad_dtype));
    if (is_last) {
        add_run(&later, run_of_keys(t, a->dk, a->lddk, 0, t->kv_len, a->grad_dtype));
        add_run(&later, run_of_keys(t, a->dv, a->lddv, 0, t->kv_len, a->grad_dtype));
    }
    if (next < a->B * a->G) {
        const struct task n = backward_task_of(f, next / a->G, next % a->G);

        add_run(&later, run_of_queries(&n, n.q, n.ldq, from, rows, n.dtype));
        add_run(&later, run_of_queries(&n, a->dout, a->lddo, from, rows, n.dtype));
        add_run(&later, run_of_queries(&n, a->out, a->ldo, from, rows, n.dtype));
        add_run(&later, run_of_keys(&n, n.k, n.ldk, 0, TILE, n.dtype));
        add_run(&later, run_of_keys(&n, n.v, n.ldv, 0, TILE, n.dtype));
    }
    return later;
}

static void differentiate_groups(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct cpu_backward *f = args;
    const struct hd_attention_backward_args *a = f->args;
    struct backward_tiles s = backward_tiles_of(f, thread);

    for (int64_t group = begin; group < end; group++) {
        const struct task t = backward_task_of(f, group / a->G, group % a->G);
        const int64_t rows = t.heads * t.q_len;
        const size_t bytes = (size_t)(a->kv_len * t.width) * sizeof(float);

        memset(s.dk, 0, bytes);
        memset(s.dv, 0, bytes);
        for (int64_t first = 0; first < rows; first += f->layout.block_rows) {
            s.later = backward_later(f, &t, group, first);
            differentiate_block(a, &t, &s, first, hd_min(f->layout.block_rows, rows - first));
        }
        WITH_FLOATS(a->grad_dtype, T, store_keys(a, &t, &s, T));
    }
}

enum hd_status KERNEL(attention_backward)(struct hd_backend *cpu,
                                          const struct hd_attention_backward_args *args)
{
    struct cpu_backward f = {.args = args};
    enum hd_status st = hd_cpu_check_float("attention_backward", args->dtype);

    if (!st)
        st = hd_cpu_check_float("attention_backward", args->grad_dtype);
    if (!st)
        st = check_heads("attention_backward", args->H, args->G, args->D);
    if (!st)
        st = CHECK_SCORES("attention_backward", args);
    if (!st)
        st = WEIGHT_DROP_OF("attention_backward", args, &f.drop);
    if (!st)
        st = hd_costs_attention_check_sums(args);
    if (st)
        return st;
    if (hd_costs_attention_is_on_panels(args->dtype, args->H / args->G * args->q_len,
                                        &cpu->traits)) {
        KERNEL(attention_backward_panels)(cpu, args, &f.drop);
    } else {
        f.layout = hd_costs_attention_backward_layout(args);
        f.threads = cpu->traits.threads;
        hd_cpu_parallel(cpu, args->B * args->G, 1, differentiate_groups, &f);
    }
    if (args->sums)
        st = KERNEL(sum_row_chunks)(cpu, args->sums, args->dq, args->B * args->q_len,
                                    (args->H + 2 * args->G) * args->D, HD_ATTENTION_SUM_ROWS,
                                    args->dtype);
    return st;
}

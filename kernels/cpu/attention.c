/* attention: forward in fp32 vectors, with the online softmax: each row keeps the maximum score and
 * the sum of exponentials so far; a tile of keys with a larger maximum rescales the earlier sums.
 */
#include "kernels/cpu/attention_vectors.h"

struct cpu_forward {
    const struct hd_attention_forward_args *args;
    struct hd_costs_attention_layout layout;
    struct weight_drop drop;
    int64_t blocks;  /* number of blocks of rows per group of query heads */
    int64_t threads; /* of the launch: the next piece of a thread is probably as many later */
};

/* One thread's slice of the scratch of attention forward. */
struct forward_tiles {
    float *q, *out, *max, *sum, *k_t, *v, *score;
    int32_t *key_index;
    struct mask_extent mask_extent;
    struct later later;
};

static struct task forward_task_of(const struct cpu_forward *f, int64_t b, int64_t g)
{
    struct task t = TASK_OF(f->args, &f->drop, b, g, f->args->kv_len, f->layout.width);

    task_take_slot(&t, f->args);
    return t;
}

static struct forward_tiles forward_tiles_of(const struct cpu_forward *f, int thread)
{
    const struct hd_costs_attention_layout *l = &f->layout;
    float *base = (float *)f->args->scratch + thread * l->thread_floats;

    return (struct forward_tiles){.q = base + l->q,
                                  .out = base + l->out,
                                  .max = base + l->max,
                                  .sum = base + l->sum,
                                  .k_t = base + l->k_t,
                                  .v = base + l->v,
                                  .score = base + l->score,
                                  .key_index = (int32_t *)(base + l->key_index),
                                  .mask_extent = {.index = (int32_t *)(base + l->index),
                                                  .bound = (int32_t *)(base + l->bound),
                                                  .slope = base + l->slope}};
}

/* Returns the largest of the first n of one row's scores of a tile of keys. */
INLINE float largest_score(const float *score, int64_t n)
{
    vf max = vf_set(-INFINITY);

    for (int64_t j = 0; j < n; j += VL)
        max = vf_max(max, vf_load_f32(score + j, VL));
    return vf_max_lane(max);
}

/* Computes score[:] = exp(score - max) for the first n of one row's scores of a tile of keys, which are
 * all that products read, and rescales the row's sums over earlier tiles (*row_sum, out[D]) by
 * `factor`. */
INLINE void softmax_tile_row(float *score, int64_t n, float max, float factor, float *row_sum,
                             float *out, int64_t D)
{
    vf sum = {0};

    if (max == -INFINITY) { /* the row has seen no visible key yet */
        memset(score, 0, (size_t)n * sizeof *score);
        return;
    }
    for (int64_t j = 0; j < n; j += VL) {
        const vf p = vf_exp_weight(vf_load_f32(score + j, VL) - max);

        sum += p;
        vf_store_f32(score + j, VL, p);
    }
    if (factor != 1) {
        *row_sum *= factor;
        for (int64_t d = 0; d < D; d += VL)
            vf_store_f32(out + d, VL, vf_load_f32(out + d, VL) * factor);
    }
    *row_sum += vf_sum(sum);
}

/* Raises the maxima of rows, `old`, to `max`, and turns those into the factors of sums over earlier
 * tiles; a vector for as many rows, as most of a row's exponentials would be those of its factor. */
INLINE void raise_maxima(float *old, float *max, int64_t rows)
{
    FOR_VECTORS (r, n, 0, rows) {
        const vf before = vf_load_f32(old + r, n), now = vf_max(before, vf_load_f32(max + r, n));

        vf_store_f32(max + r, n, vf_exp_weight(before - now));
        vf_store_f32(old + r, n, now);
    }
}

/* Applies dropout to one row's attention weights for a tile of keys. */
static __attribute__((noinline)) void drop_float_weights(const struct task *t, int64_t row,
                                                         const int32_t *keys, int64_t count,
                                                         float *weight)
{
    const struct drop *drop = &t->drop->drop;
    uint8_t bytes[TILE + DROP_LINE_PAD];

    drop_floats(weight, drop_numbers(drop, place_of(t, row), bytes, keys, count), count,
                drop->scale);
}

/* Computes attention from all rows of a block to one tile of keys, and adds it to the rows'
 * sums. */
static void attend_tile(const struct task *t, struct forward_tiles *s, int64_t first, int64_t rows,
                        int64_t key, int64_t count, const struct attention_extent *keys)
{
    struct ahead ahead = {.key = key + TILE};

    pack_keys_transposed(t, s->k_t, t->k, t->ldk, key, count);
    pack_keys(t, s->v, t->v, t->ldv, key, count);
    for (int64_t i = 0; i < rows; i += TILE) {
        const int64_t m = hd_min(TILE, rows - i);
        const struct row_extent extent = row_extent_of(&s->mask_extent, i, m);
        const enum cover cover = cover_of(t, &extent, keys);
        struct reach reach;
        float factor[TILE];

        if (cover == NOTHING)
            continue;
        look_ahead(&ahead, t, key, (rows - i + TILE - 1) / TILE);
        reach = find_reach(t, &s->mask_extent, i, m, s->key_index, count, cover);
        multiply_keys(s->score, s->q + i * t->width, t->width, s->k_t, m, t->D, &reach);
        if (t->cap > 0)
            cap_tile(t, s->score, m);
        mask_tile(t, s->score, &s->mask_extent, i, m, s->key_index, count, cover);
        for (int64_t r = 0; r < m; r++) {
            prefetch_next_key(&ahead, t);
            prefetch_later(&s->later, 1);
            factor[r] = largest_score(s->score + r * TILE, scores_of(&reach, r));
        }
        raise_maxima(s->max + i, factor, m);
        for (int64_t r = 0; r < m; r++)
            softmax_tile_row(s->score + r * TILE, scores_of(&reach, r), s->max[i + r], factor[r],
                             s->sum + i + r, s->out + (i + r) * t->width, channels(t));
        for (int64_t r = 0; t->drop && r < m; r++)
            drop_float_weights(t, first + i + r, s->key_index, count, s->score + r * TILE);
        multiply_weights(s->out + i * t->width, s->score, s->v, t->width, m, channels(t), &reach);
    }
}

static void load_queries(const struct task *t, struct forward_tiles *s, int64_t first, int64_t rows)
{
    load_mask_extent(t, first, rows, &s->mask_extent);
    WITH_FLOATS(t->dtype, T, load_rows(t, s->q, t->q, t->ldq, first, rows, t->scale, T));
    memset(s->out, 0, (size_t)(rows * t->width) * sizeof *s->out);
    for (int64_t i = 0; i < rows; i++) {
        s->max[i] = -INFINITY;
        s->sum[i] = 0;
    }
}

INLINE void store_output_block(const struct hd_attention_forward_args *a, const struct task *t,
                               const struct forward_tiles *s, int64_t first, int64_t rows,
                               enum hd_dtype dtype)
{
    for (int64_t i = 0; i < rows; i++) {
        const int64_t head = task_head(t, first + i), query = task_query(t, first + i);
        const float factor = s->sum[i] > 0 || s->sum[i] != s->sum[i] ? 1.0f / s->sum[i] : 0.0f;

        FOR_VECTORS (d, n, 0, a->D) {
            vf_store(a->out, query * a->ldo + head * a->D + d, n,
                     vf_load_f32(s->out + i * t->width + d, n) * factor, dtype);
        }
        a->lse[head * a->B * a->q_len + query] = s->max[i] + logf(s->sum[i]);
        if (a->top_score)
            raise_top_score(a->top_score + head, s->max[i]);
    }
}

static void attend_block(const struct cpu_forward *f, const struct task *t, struct forward_tiles *s,
                         int64_t first, int64_t rows)
{
    struct row_extent extent;

    load_queries(t, s, first, rows);
    extent = row_extent_of(&s->mask_extent, 0, rows);
    for (int64_t key = 0; key < t->kv_len; key += TILE) {
        const int64_t count = hd_min(TILE, t->kv_len - key);
        const struct attention_extent keys = load_keys(t, s->key_index, key, count);

        if (cover_of(t, &extent, &keys) != NOTHING)
            attend_tile(t, s, first, rows, key, count, &keys);
    }
    WITH_FLOATS(t->dtype, T, store_output_block(f->args, t, s, first, rows, T));
}

static struct later forward_later(const struct cpu_forward *f, const struct task *t, int64_t block,
                                  int64_t first)
{
    const struct hd_attention_forward_args *a = f->args;
    const int64_t next = block + f->threads, group = next / f->blocks, rows = f->layout.block_rows;
    struct later later = {.count = 0};

    add_run(&later, run_of_queries(t, a->out, a->ldo, first, rows, a->dtype));
    if (next < a->B * a->G * f->blocks) {
        const struct task n = forward_task_of(f, group / a->G, group % a->G);

        add_run(&later, run_of_queries(&n, n.q, n.ldq, next % f->blocks * rows, rows, n.dtype));
        add_run(&later, run_of_keys(&n, n.k, n.ldk, 0, TILE, n.dtype));
        add_run(&later, run_of_keys(&n, n.v, n.ldv, 0, TILE, n.dtype));
    }
    return later;
}

static void attend_blocks(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct cpu_forward *f = args;
    struct forward_tiles tiles = forward_tiles_of(f, thread);

    for (int64_t i = begin; i < end; i++) {
        const int64_t group = i / f->blocks, first = i % f->blocks * f->layout.block_rows;
        const struct task t = forward_task_of(f, group / f->args->G, group % f->args->G);

        tiles.later = forward_later(f, &t, i, first);
        attend_block(f, &t, &tiles, first, hd_min(f->layout.block_rows, t.heads * t.q_len - first));
    }
}

enum hd_status KERNEL(attention_forward)(struct hd_backend *cpu,
                                         const struct hd_attention_forward_args *args)
{
    struct cpu_forward f = {.args = args};
    enum hd_status st = hd_cpu_check_float("attention_forward", args->dtype);

    if (!st)
        st = check_heads("attention_forward", args->H, args->G, args->D);
    if (!st)
        st = CHECK_SCORES("attention_forward", args);
    if (!st)
        st = WEIGHT_DROP_OF("attention_forward", args, &f.drop);
    if (st)
        return st;
    if (hd_costs_attention_is_on_panels(args->dtype, args->H / args->G * args->q_len,
                                        &cpu->traits)) {
        KERNEL(attention_forward_panels)(cpu, args, &f.drop);
        return HD_OK;
    }
    f.layout = hd_costs_attention_forward_layout(args);
    f.blocks = (args->H / args->G * args->q_len + f.layout.block_rows - 1) / f.layout.block_rows;
    f.threads = cpu->traits.threads;
    hd_cpu_parallel(cpu, args->B * args->G * f.blocks, 1, attend_blocks, &f);
    return HD_OK;
}

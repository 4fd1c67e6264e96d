/* attention_panels_backward: bf16 backward on panels. Scores of a block of rows against a tile of
 * keys are transposed: a panel of scores has one line per key and 32 columns, one per row.
 *
 *   s^T = k q^T,  p^T = exp(scale s^T - lse);  dp^T = v dout^T,  ds^T = p^T (dp^T - delta)
 *   dv += p^T dout,  dk += ds^T q,  dq^T += k^T ds^T
 *
 * p^T and ds^T, rounded to bf16, can be used as left factors without packing. As a right factor,
 * ds^T is stored a second time with pairs of its lines interleaved. q and dout are packed in both
 * orders once per block, k and v once per block and tile. One thread sums dk and dv of the whole
 * group in fp32. */
#include "kernels/cpu/attention_panels.h"

enum {
    QUERIES = HD_COSTS_ATTENTION_QUERIES,
    KEYS_MAX = HD_COSTS_ATTENTION_KEYS_BACKWARD,
    ROW_PANELS = HD_COSTS_ATTENTION_ROWS / COLUMNS,
    KEY_PANELS_MAX = KEYS_MAX / 8 /* largest number of panels of keys in a tile: a panel has 8 rows
                                     or more */
};

_Static_assert((int)DROP_ROWS == (int)COLUMNS, "drop_panel computes one panel of rows");

struct panel_backward {
    const struct hd_attention_backward_args *args;
    const struct hd_cpu_panels *panels;
    struct hd_costs_attention_panels layout;
    const struct weight_drop *drop;
    int64_t tile_keys; /* number of keys of a tile: a multiple of panels->rows */
    int64_t threads;   /* of the launch: the next piece of a thread is probably as many later */
};

enum { ROWS_AT_ONCE = 4 }; /* that are prefetched at each panel of scores */

/* One thread's slice of the scratch of attention backward on panels. */
struct panel_backward_tiles {
    uint32_t *q_t, *dout_t, *q_words, *dout_words, *ds_words;
    uint16_t *k, *v, *k_t, *p, *ds;
    float *dq, *dk, *dv, *lse, *delta, *score, *dscore;
    int32_t *key_index;
    struct mask_extent mask_extent;
    struct later later;
};

/* A block of rows (queries), with the minimum and maximum index of each of its panels. */
struct block {
    int64_t first, count;
    struct row_extent panel[ROW_PANELS];
};

/* A tile of keys, with the minimum and maximum index of each of its panels. */
struct panel_backward_keys {
    int64_t first, count;
    struct attention_extent panel[KEY_PANELS_MAX];
};

static struct panel_backward_tiles panel_backward_tiles_of(const struct panel_backward *f,
                                                           int thread)
{
    const struct hd_costs_attention_panels *l = &f->layout;
    char *base = (char *)f->args->scratch + thread * l->thread_bytes;

    return (struct panel_backward_tiles){.q_t = (uint32_t *)(base + l->q_t),
                                         .dout_t = (uint32_t *)(base + l->dout_t),
                                         .q_words = (uint32_t *)(base + l->q_words),
                                         .dout_words = (uint32_t *)(base + l->dout_words),
                                         .ds_words = (uint32_t *)(base + l->ds_words),
                                         .k = (uint16_t *)(base + l->k),
                                         .v = (uint16_t *)(base + l->v),
                                         .k_t = (uint16_t *)(base + l->k_t),
                                         .p = (uint16_t *)(base + l->p),
                                         .ds = (uint16_t *)(base + l->ds),
                                         .dq = (float *)(base + l->dq),
                                         .dk = (float *)(base + l->dk),
                                         .dv = (float *)(base + l->dv),
                                         .lse = (float *)(base + l->lse),
                                         .delta = (float *)(base + l->delta),
                                         .score = (float *)(base + l->score),
                                         .dscore = (float *)(base + l->dscore),
                                         .key_index = (int32_t *)(base + l->key_index),
                                         .mask_extent = {.index = (int32_t *)(base + l->index),
                                                         .bound = (int32_t *)(base + l->bound),
                                                         .slope = (float *)(base + l->slope)}};
}

/* Packs the rows of q or dout of a block as right factors, twice: as words along D to `across`, and
 * as words along the rows to `words`. */
static void pack_block(const struct panel_backward *f, const struct task *t, uint32_t *across,
                       uint32_t *words, const struct block_rows *rows, int64_t count)
{
    const int64_t width = t->width, depth = panels_for(count) * COLUMNS / 2;

    for (int64_t i = 0; i < count; i += COLUMNS)
        pack_pairs_transposed(across + i * width / 2, COLUMNS, rows->at + i * rows->ld, rows->ld,
                              hd_min(COLUMNS, count - i), width, width / 2, COLUMNS);
    for (int64_t d = 0; d < width; d += COLUMNS)
        pack_pairs(words + d * f->layout.block_rows / 2, COLUMNS, rows->at + d, rows->ld, count,
                   COLUMNS, depth, COLUMNS);
}

/* Loads lse and computes delta for each row of the block. A row that sees no key has lse = -inf,
 * which is replaced by +inf, so that every p of the row is zero; rows that pad the last panel get
 * +inf, too. */
static void load_lse(const struct panel_backward *f, const struct task *t,
                     const struct panel_backward_tiles *s, const struct block *block,
                     const struct block_rows *dout)
{
    const struct hd_attention_backward_args *a = f->args;

    for (int64_t i = 0; i < block->count; i++) {
        const int64_t head = task_head(t, block->first + i);
        const int64_t query = task_query(t, block->first + i);
        const uint16_t *out = (const uint16_t *)a->out + query * a->ldo + head * a->D;
        const float lse = a->lse[head * a->B * a->q_len + query];
        vf products = {0};

        if (i + PREFETCH_ROWS < block->count)
            prefetch_row(out, PREFETCH_ROWS * a->ldo, a->D, HD_BF16); /* the row PREFETCH_ROWS later
                                                                         is usually of the same
                                                                         head */
        FOR_VECTORS (d, n, 0, a->D)
            products += vf_load_bf16(dout->at + i * dout->ld + d, n) * vf_load_bf16(out + d, n);
        s->delta[i] = vf_sum(products);
        s->lse[i] = lse == -INFINITY ? INFINITY : lse;
    }
    for (int64_t i = block->count; i < panels_for(block->count) * COLUMNS; i++) {
        s->mask_extent.index[i] = s->mask_extent.bound[i] = 0;
        s->mask_extent.slope[i] = s->delta[i] = 0;
        s->lse[i] = INFINITY;
    }
}

/* Loads and packs a block of rows. The memory of dq holds the rows of q and dout while they are
 * packed. */
static void load_block_panels(const struct panel_backward *f, const struct task *t,
                              const struct panel_backward_tiles *s, struct block *block)
{
    const struct hd_attention_backward_args *a = f->args;
    uint16_t *copies = (uint16_t *)s->dq;
    const struct block_rows q =
        panel_rows_of(t, copies, t->q, t->ldq, block->first, block->count, false);
    const struct block_rows dout =
        panel_rows_of(t, copies + f->layout.block_rows * t->width, a->dout, a->lddo, block->first,
                      block->count, false);

    pack_block(f, t, s->q_t, s->q_words, &q, block->count);
    pack_block(f, t, s->dout_t, s->dout_words, &dout, block->count);
    load_lse(f, t, s, block, &dout);
    for (int64_t i = 0; i < block->count; i += COLUMNS)
        block->panel[i / COLUMNS] =
            row_extent_of(&s->mask_extent, i, hd_min(COLUMNS, block->count - i));
    memset(s->dq, 0, (size_t)(panels_for(block->count) * COLUMNS * t->width) * sizeof *s->dq);
}

static void pack_key_panels(const struct panel_backward *f, const struct task *t,
                            const struct panel_backward_tiles *s,
                            const struct panel_backward_keys *keys)
{
    const uint16_t *k = (const uint16_t *)t->k + key_at(t, keys->first, t->ldk);
    const uint16_t *v = (const uint16_t *)t->v + key_at(t, keys->first, t->ldv);
    const int64_t words = t->width / 2;

    prefetch_keys(t, k, t->ldk, keys->count);
    prefetch_keys(t, v, t->ldv, keys->count);
    copy_lines((uint32_t *)s->k, words, k, t->ldk, keys->count, t->D, words, keys->count);
    copy_lines((uint32_t *)s->v, words, v, t->ldv, keys->count, t->D, words, keys->count);
    pack_pairs_by_row((uint32_t *)s->k_t, f->layout.keys / 2, k, t->ldk, keys->count, t->D,
                      f->layout.keys / 2, t->width);
}

/* Says whether scores need masking or a cap; constant where softmax_backward is inlined. */
struct variant {
    bool mask, cap;
};

/* Computes p and ds of one key (a line of s^T), for VL rows of the block from `row` on. */
INLINE void softmax_backward(const struct task *t, const struct panel_backward_tiles *s,
                             const float *score, const float *dscore, int32_t key, int64_t row,
                             struct variant variant, vf *ret_p, vf *ret_ds)
{
    vf x = vf_load_f32(score, VL) * t->scale, u = {0};
    vf p;

    if (variant.cap) {
        u = vf_tanh(x * (1.0f / t->cap));
        x = u * t->cap;
    }
    if (variant.mask) {
        vi index, bound, hidden, distance;

        memcpy(&index, s->mask_extent.index + row, sizeof index);
        memcpy(&bound, s->mask_extent.bound + row, sizeof bound);
        distance = index - key;
        x -= vf_load_f32(s->mask_extent.slope + row, VL) * __builtin_convertvector(distance, vf);
        hidden = bound > key;
        if (t->causal)
            hidden |= distance < 0;
        if (t->window < INT32_MAX)
            hidden |= distance >= t->window;
        x = vf_select(hidden, vf_set(-INFINITY), x);
    }
    p = vf_exp(x - vf_load_f32(s->lse + row, VL));
    *ret_p = p;
    *ret_ds = p * (vf_load_f32(dscore, VL) - vf_load_f32(s->delta + row, VL));
    if (variant.cap)
        *ret_ds *= cap_slope(u);
}

INLINE vu widen_bits(vf x)
{
    return vu_widen(vf_to_bf16(x));
}

/* Computes p^T and ds^T (at their column `column`) and ds_words from one panel of scores: `count`
 * keys from `key` (of the tile) on, rows from `row` (of the block) on. If count is odd, the second
 * half of the last pair is zero. */
INLINE void softmax_backward_panel(const struct task *t, const struct panel_backward_tiles *s,
                                   int64_t key, int count, int64_t row, int64_t column,
                                   struct variant variant)
{
    for (int i = 0; i < count; i += 2) {
        const bool has_high = i + 1 < count;
        uint16_t *p = s->p + (key + i) * QUERIES + column;
        uint16_t *ds = s->ds + (key + i) * QUERIES + column;
        uint32_t *words = s->ds_words + (key + i) / 2 * COLUMNS;

        for (int j = 0; j < COLUMNS; j += VL) {
            const float *score = s->score + i * COLUMNS + j, *dscore = s->dscore + i * COLUMNS + j;
            vf p_low, ds_low, p_high = {0}, ds_high = {0};
            vu bits;
            vf word;

            softmax_backward(t, s, score, dscore, s->key_index[key + i], row + j, variant, &p_low,
                             &ds_low);
            if (has_high)
                softmax_backward(t, s, score + COLUMNS, dscore + COLUMNS, s->key_index[key + i + 1],
                                 row + j, variant, &p_high, &ds_high);
            vf_store_bf16(p + j, VL, p_low);
            vf_store_bf16(ds + j, VL, ds_low);
            if (has_high) {
                vf_store_bf16(p + QUERIES + j, VL, p_high);
                vf_store_bf16(ds + QUERIES + j, VL, ds_high);
            }
            bits = widen_bits(ds_low) | widen_bits(ds_high) << 16;
            memcpy(&word, &bits, sizeof word);
            vf_store_f32((float *)words + j, VL, word);
        }
    }
}

/* Computes what softmax_backward_panel computes, with a cap and with masking, needed or not. */
static __attribute__((noinline)) void
softmax_backward_capped_panel(const struct task *t, const struct panel_backward_tiles *s,
                              int64_t key, int count, int64_t row, int64_t column)
{
    softmax_backward_panel(t, s, key, count, row, column, (struct variant){true, true});
}

/* Computes what softmax_backward_panel computes, with dropout: ds from all attention weights, dv
 * from the kept ones; store_key_panels() scales dv. */
static __attribute__((noinline)) void
softmax_backward_dropped_panel(const struct task *t, const struct panel_backward_tiles *s,
                               const struct block *block, int64_t key, int count, int64_t row,
                               int64_t column)
{
    uint8_t dropped[COLUMNS][DROP_ROWS];
    struct drop_places places = {{0}, {0}, {0}};

    for (int64_t i = 0; i < hd_min(COLUMNS, block->count - row); i++) {
        const struct drop_place place = place_of(t, block->first + row + i);

        places.index[i] = place.index;
        places.head[i] = place.head;
        places.sample[i] = place.sample;
    }
    drop_panel(&t->drop->drop, &places, dropped, s->key_index + key, count);
    for (int i = 0; i < count; i++)
        drop_floats(s->dscore + i * COLUMNS, dropped[i], COLUMNS, t->drop->drop.scale);
    if (t->cap > 0)
        softmax_backward_capped_panel(t, s, key, count, row, column);
    else
        softmax_backward_panel(t, s, key, count, row, column, (struct variant){.mask = true});
    for (int i = 0; i < count; i++)
        drop_halves(s->p + (key + i) * QUERIES + column, dropped[i], COLUMNS);
}

static void clear_panel(const struct panel_backward_tiles *s, int64_t key, int count,
                        int64_t column)
{
    for (int i = 0; i < count; i++) {
        memset(s->p + (key + i) * QUERIES + column, 0, COLUMNS * sizeof *s->p);
        memset(s->ds + (key + i) * QUERIES + column, 0, COLUMNS * sizeof *s->ds);
    }
    memset(s->ds_words + key / 2 * COLUMNS, 0,
           (size_t)((count + 1) / 2 * COLUMNS) * sizeof *s->ds_words);
}

/* Range [begin, end) of the panels of a list that are not zero. */
struct panel_span {
    int64_t begin, end;
};

static void add_to_span(struct panel_span *span, int64_t i)
{
    if (span->begin >= span->end)
        span->begin = i;
    span->end = i + 1;
}

/* Differentiates one panel of the block's rows against a tile of keys: computes p^T and ds^T at
 * `column`, and dq^T. spans: for each panel of keys, the panels of rows that see it; this panel is
 * added to them. */
static void differentiate_panel(const struct panel_backward *f, const struct task *t,
                                struct panel_backward_tiles *s, const struct block *block,
                                const struct panel_backward_keys *keys, int64_t row, int64_t column,
                                struct panel_span *spans)
{
    const int64_t width = t->width, words = width / 2, panel_rows = f->panels->rows;
    const int64_t depth_step = f->panels->by_row ? panel_rows : 2;
    const uint32_t *q_t = s->q_t + row * words, *dout_t = s->dout_t + row * words;
    struct panel_span depth = {0, 0};
    float *dq = s->dq + row * width;

    for (int64_t i = 0; i < keys->count; i += panel_rows) {
        const int count = (int)hd_min(panel_rows, keys->count - i);
        const enum cover cover =
            cover_of(t, &block->panel[row / COLUMNS], &keys->panel[i / panel_rows]);
        const bool mask = cover != ALL || t->slopes;

        if (cover == NOTHING) {
            clear_panel(s, i, count, column);
            continue;
        }
        prefetch_later(&s->later, ROWS_AT_ONCE);
        multiply_panel(f->panels, s->score, COLUMNS, s->k + i * width, width, q_t, words, count,
                       false);
        multiply_panel(f->panels, s->dscore, COLUMNS, s->v + i * width, width, dout_t, words, count,
                       false);
        if (t->drop)
            softmax_backward_dropped_panel(t, s, block, i, count, row, column);
        else if (t->cap > 0)
            softmax_backward_capped_panel(t, s, i, count, row, column);
        else if (mask)
            softmax_backward_panel(t, s, i, count, row, column, (struct variant){.mask = true});
        else
            softmax_backward_panel(t, s, i, count, row, column, (struct variant){.mask = false});
        add_to_span(&spans[i / panel_rows], column / COLUMNS);
        add_to_span(&depth, i / panel_rows);
    }
    if (depth.begin >= depth.end)
        return;
    /* rows of ds up to a whole step of the product's depth (16 words for AMX tiles) are set to
     * zero */
    depth.begin *= panel_rows;
    depth.end = hd_min(depth.end * panel_rows, keys->count);
    for (; depth.end % depth_step; depth.end++)
        if (depth.end % 2 == 0)
            memset(s->ds_words + depth.end / 2 * COLUMNS, 0, COLUMNS * sizeof *s->ds_words);
    for (int64_t d = 0; d < width; d += panel_rows)
        multiply_panel(f->panels, dq + d * COLUMNS, COLUMNS,
                       s->k_t + d * f->layout.keys + depth.begin, f->layout.keys,
                       s->ds_words + depth.begin / 2 * COLUMNS, (depth.end - depth.begin) / 2,
                       (int)hd_min(panel_rows, width - d), true);
}

/* Computes dv += p^T dout and dk += ds^T q for a tile of keys, for each panel of keys over those
 * panels of rows that see it. */
static void add_key_products(const struct panel_backward *f, const struct task *t,
                             const struct panel_backward_tiles *s,
                             const struct panel_backward_keys *keys, int64_t row,
                             const struct panel_span *spans)
{
    const int64_t panel_rows = f->panels->rows, width = t->width;

    for (int64_t i = 0; i < keys->count; i += panel_rows) {
        const struct panel_span span = spans[i / panel_rows];
        const int64_t column = span.begin * COLUMNS, words = (span.end - span.begin) * COLUMNS / 2;
        const int count = (int)hd_min(panel_rows, keys->count - i);

        for (int64_t d = 0; d < width && span.begin < span.end; d += COLUMNS) {
            const int64_t at = (keys->first + i) * width + d;
            const int64_t from = d * f->layout.block_rows / 2 + (row + column) / 2 * COLUMNS;

            multiply_panel(f->panels, s->dv + at, width, s->p + i * QUERIES + column, QUERIES,
                           s->dout_words + from, words, count, true);
            multiply_panel(f->panels, s->dk + at, width, s->ds + i * QUERIES + column, QUERIES,
                           s->q_words + from, words, count, true);
        }
    }
}

static void differentiate_tile_by_panels(const struct panel_backward *f, const struct task *t,
                                         struct panel_backward_tiles *s, const struct block *block,
                                         const struct panel_backward_keys *keys)
{
    pack_key_panels(f, t, s, keys);
    for (int64_t row = 0; row < block->count; row += QUERIES) {
        struct panel_span spans[KEY_PANELS_MAX] = {{0, 0}};

        for (int64_t i = row; i < hd_min(row + QUERIES, block->count); i += COLUMNS)
            differentiate_panel(f, t, s, block, keys, i, i - row, spans);
        add_key_products(f, t, s, keys, row, spans);
    }
}

/* Stores the gradients of the queries of a block to the tensor dq, from dq^T in panels of 32
 * rows. */
INLINE void store_query_panels(const struct panel_backward *f, const struct task *t,
                               const struct panel_backward_tiles *s, const struct block *block,
                               enum hd_dtype dtype)
{
    const struct hd_attention_backward_args *a = f->args;
    _Alignas(64) float rows[COLUMNS * HD_COSTS_ATTENTION_D_MAX];

    for (int64_t row = 0; row < block->count; row += COLUMNS) {
        pack_transposed(rows, t->width, s->dq, row * t->width, COLUMNS, t->width, COLUMNS, t->width,
                        HD_F32);
        for (int64_t i = row; i < hd_min(row + COLUMNS, block->count); i++)
            store_row(a->dq,
                      task_query(t, block->first + i) * a->lddq +
                          task_head(t, block->first + i) * a->D,
                      rows + (i - row) * t->width, a->D, a->scale, a->accumulate, dtype);
    }
}

INLINE void store_key_panels(const struct hd_attention_backward_args *a, const struct task *t,
                             const struct panel_backward_tiles *s, enum hd_dtype dtype)
{
    const float dropout_scale = t->drop ? t->drop->drop.scale : 1.0f;

    for (int64_t j = 0; j < a->kv_len; j++) {
        store_row(a->dk, key_at(t, j, a->lddk), s->dk + j * t->width, a->D, a->scale, a->accumulate,
                  dtype);
        store_row(a->dv, key_at(t, j, a->lddv), s->dv + j * t->width, a->D, dropout_scale,
                  a->accumulate, dtype);
    }
}

static void differentiate_block_by_panels(const struct panel_backward *f, const struct task *t,
                                          struct panel_backward_tiles *s, struct block *block)
{
    const int64_t panel_rows = f->panels->rows;
    struct mask_extent mask_extent = s->mask_extent;
    struct row_extent extent;

    load_mask_extent(t, block->first, block->count, &mask_extent);
    extent = row_extent_of(&mask_extent, 0, block->count);
    if (f->args->accumulate && !sees_a_key(t, &extent, f->tile_keys))
        return; /* no row of the block sees a key, so no gradient is added */
    load_block_panels(f, t, s, block);
    for (int64_t key = 0; key < t->kv_len; key += f->tile_keys) {
        struct panel_backward_keys keys = {.first = key,
                                           .count = hd_min(f->tile_keys, t->kv_len - key)};
        struct attention_extent keys_extent;

        memcpy(s->key_index, t->kv_index + t->slot * t->kv_stride + key,
               (size_t)keys.count * sizeof *s->key_index);
        keys_extent = extent_of(s->key_index, keys.count);
        if (cover_of(t, &extent, &keys_extent) == NOTHING)
            continue;
        for (int64_t i = 0; i < keys.count; i += panel_rows)
            keys.panel[i / panel_rows] =
                extent_of(s->key_index + i, hd_min(panel_rows, keys.count - i));
        differentiate_tile_by_panels(f, t, s, block, &keys);
    }
    if (f->args->grad_dtype == HD_BF16)
        store_query_panels(f, t, s, block, HD_BF16);
    else
        store_query_panels(f, t, s, block, HD_F32);
}

/* The keys' gradients are stored behind the last block. */
static struct later panels_later(const struct panel_backward *f, const struct task *t,
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
        const struct task n =
            TASK_OF(a, f->drop, next / a->G, next % a->G, a->kv_len, f->layout.width);

        add_run(&later, run_of_queries(&n, n.q, n.ldq, from, rows, n.dtype));
        add_run(&later, run_of_queries(&n, a->dout, a->lddo, from, rows, n.dtype));
        add_run(&later, run_of_queries(&n, a->out, a->ldo, from, rows, n.dtype));
        add_run(&later, run_of_keys(&n, n.k, n.ldk, 0, f->tile_keys, n.dtype));
        add_run(&later, run_of_keys(&n, n.v, n.ldv, 0, f->tile_keys, n.dtype));
    }
    return later;
}

static void differentiate_groups_by_panels(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct panel_backward *f = args;
    const struct hd_attention_backward_args *a = f->args;
    struct panel_backward_tiles s = panel_backward_tiles_of(f, thread);

    if (f->panels->begin)
        f->panels->begin();
    for (int64_t group = begin; group < end; group++) {
        const struct task t =
            TASK_OF(a, f->drop, group / a->G, group % a->G, a->kv_len, f->layout.width);
        const int64_t rows = t.heads * t.q_len;
        const size_t bytes = (size_t)(a->kv_len * t.width) * sizeof(float);
        struct block block;

        memset(s.dk, 0, bytes);
        memset(s.dv, 0, bytes);
        for (block.first = 0; block.first < rows; block.first += f->layout.block_rows) {
            block.count = hd_min(f->layout.block_rows, rows - block.first);
            s.later = panels_later(f, &t, group, block.first);
            differentiate_block_by_panels(f, &t, &s, &block);
        }
        if (a->grad_dtype == HD_BF16)
            store_key_panels(a, &t, &s, HD_BF16);
        else
            store_key_panels(a, &t, &s, HD_F32);
    }
    if (f->panels->end)
        f->panels->end();
}

void KERNEL(attention_backward_panels)(struct hd_backend *cpu,
                                       const struct hd_attention_backward_args *args,
                                       const struct weight_drop *drop)
{
    const struct panel_backward f = {.args = args,
                                     .drop = drop,
                                     .panels = cpu->panels,
                                     .layout = hd_costs_attention_backward_panels(args),
                                     .tile_keys = KEYS_MAX / cpu->panels->rows * cpu->panels->rows,
                                     .threads = cpu->traits.threads};

    hd_cpu_parallel(cpu, args->B * args->G, 1, differentiate_groups_by_panels, &f);
}

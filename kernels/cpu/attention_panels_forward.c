/* attention_panels_forward: bf16 forward on panels. For each panel of rows and tile of keys:
 * scores, the online softmax (attention.c), and the product of the weights, rounded to bf16, with
 * v. The sum of the weights is taken before rounding, for a precise log-sum-exp. */
#include "kernels/cpu/attention_panels.h"

enum { KEY_PANELS = HD_COSTS_ATTENTION_KEYS_FORWARD / COLUMNS };

_Static_assert((int)HD_COSTS_ATTENTION_KEYS_FORWARD <= (int)DROP_NUMBERS_MAX, "keys of a tile");

struct panel_forward {
    const struct hd_attention_forward_args *args;
    const struct hd_cpu_panels *panels;
    struct hd_costs_attention_panels layout;
    const struct weight_drop *drop;
    int64_t blocks;
    int64_t threads; /* of the launch: the next piece of a thread is probably as many later */
};

/* One thread's slice of the scratch of attention forward on panels. */
struct panel_forward_tiles {
    uint16_t *copies, *p;
    struct block_rows q;
    uint32_t *k_t, *v_words;
    float *out, *max, *sum, *score;
    int32_t *key_index;
    struct mask_extent mask_extent;
    struct later later;
    struct row_run next_k, next_v; /* the first keys and values of the next block */
};

/* Number of keys of a tile, and the minimum and maximum index of each of its panels. */
struct panel_forward_keys {
    int64_t count;
    struct attention_extent extent, panel[KEY_PANELS];
};

static struct panel_forward_tiles panel_forward_tiles_of(const struct panel_forward *f, int thread)
{
    const struct hd_costs_attention_panels *l = &f->layout;
    char *base = (char *)f->args->scratch + thread * l->thread_bytes;

    return (struct panel_forward_tiles){.copies = (uint16_t *)(base + l->q),
                                        .p = (uint16_t *)(base + l->p),
                                        .k_t = (uint32_t *)(base + l->k_t),
                                        .v_words = (uint32_t *)(base + l->v_words),
                                        .out = (float *)(base + l->out),
                                        .max = (float *)(base + l->max),
                                        .sum = (float *)(base + l->sum),
                                        .score = (float *)(base + l->score),
                                        .key_index = (int32_t *)(base + l->key_index),
                                        .mask_extent = {.index = (int32_t *)(base + l->index),
                                                        .bound = (int32_t *)(base + l->bound),
                                                        .slope = (float *)(base + l->slope)}};
}

static void pack_tile(const struct panel_forward *f, const struct task *t,
                      const struct panel_forward_tiles *s, int64_t key, int64_t count)
{
    const uint16_t *k = (const uint16_t *)t->k + key_at(t, key, t->ldk);
    const uint16_t *v = (const uint16_t *)t->v + key_at(t, key, t->ldv);
    const int64_t words = t->width / 2, v_words = panels_for(count) * COLUMNS / 2;

    prefetch_keys(t, k, t->ldk, count);
    prefetch_keys(t, v, t->ldv, count);
    for (int64_t j = 0; j < count; j += COLUMNS)
        pack_pairs_transposed(s->k_t + j * words, COLUMNS, k + j * t->ldk, t->ldk,
                              hd_min(COLUMNS, count - j), t->D, words, COLUMNS);
    for (int64_t d = 0; d < t->D; d += COLUMNS)
        pack_pairs(s->v_words + d * f->layout.keys / 2, COLUMNS, v + d, t->ldv, count,
                   hd_min(COLUMNS, t->D - d), v_words, COLUMNS);
}

/* Scales and caps scores of `rows` rows, in columns `begin` to `end` - 1 of their tile. */
static __attribute__((noinline)) void cap_rows(const struct task *t, float *score, int64_t ld,
                                               int rows, int64_t begin, int64_t end)
{
    const float factor = t->scale / t->cap;

    for (int r = 0; r < rows; r++)
        for (int64_t j = begin; j < end; j += VL) {
            float *at = score + r * ld + j;

            vf_store_f32(at, VL, t->cap * vf_tanh(vf_load_f32(at, VL) * factor));
        }
}

/* Multiplies a row's scores against one panel of keys by `scale`, subtracts the ALiBi term, and
 * sets scores of keys that the row does not see to -inf; `count` keys are valid. Returns the
 * maximum per lane. */
INLINE vf mask_panel_row(const struct task *t, float *score, const struct mask_extent *mask_extent,
                         int64_t row, const int32_t *keys, int64_t count, float scale)
{
#define LANE(i) (i)
    const vi number = {LANES(LANE)};
#undef LANE
    const int32_t index = mask_extent->index[row], bound = mask_extent->bound[row];
    const int32_t last = t->causal ? index : INT32_MAX;
    const float slope = mask_extent->slope[row];
    vf max = vf_set(-INFINITY);

    for (int j = 0; j < COLUMNS; j += VL) {
        vi key, hidden, distance;
        vf s = vf_load_f32(score + j, VL) * scale;

        memcpy(&key, keys + j, sizeof key);
        distance = index - key;
        s -= slope * __builtin_convertvector(distance, vf);
        hidden = (key > last) | (key < bound) | (number + j >= (int32_t)count);
        if (t->window < INT32_MAX)
            hidden |= distance >= t->window;
        s = vf_select(hidden, vf_set(-INFINITY), s);
        max = vf_max(max, s);
        vf_store_f32(score + j, VL, s);
    }
    return max;
}

INLINE vf scale_scores(float *score, float scale)
{
    vf max = vf_set(-INFINITY);

    for (int j = 0; j < COLUMNS; j += VL) {
        const vf s = vf_load_f32(score + j, VL) * scale;

        max = vf_max(max, s);
        vf_store_f32(score + j, VL, s);
    }
    return max;
}

/* Computes p[:] = exp(score[:] - the row's new maximum) for one row's n scores of a tile of keys,
 * whose maximum is `max`, and rescales the row's sums over earlier tiles (*row_sum, out). */
INLINE void softmax_panel_row(const float *score, uint16_t *p, int64_t n, float max, float *row_max,
                              float *row_sum, float *out, int64_t width)
{
    vf sum = {0};

    max = *row_max > max ? *row_max : max;
    if (max == -INFINITY) { /* the row has seen no visible key yet */
        memset(p, 0, (size_t)n * sizeof *p);
        return;
    }
    for (int64_t j = 0; j < n; j += VL) {
        const vf e = vf_exp(vf_load_f32(score + j, VL) - max);

        sum += e;
        vf_store_bf16(p + j, VL, e);
    }
    if (max != *row_max && *row_max != -INFINITY) {
        const float factor = vf_exp(vf_set(*row_max - max))[0];

        *row_sum *= factor;
        for (int64_t d = 0; d < width; d += VL)
            vf_store_f32(out + d, VL, vf_load_f32(out + d, VL) * factor);
    }
    *row_max = max;
    *row_sum += vf_sum(sum);
}

/* Applies dropout to one row's attention weights for a tile of keys: sets dropped ones to zero;
 * store_panel_output() scales the kept ones. */
static __attribute__((noinline)) void drop_half_weights(const struct task *t, int64_t row,
                                                        const int32_t *keys, int64_t count,
                                                        uint16_t *weight)
{
    uint8_t bytes[HD_COSTS_ATTENTION_KEYS_FORWARD + DROP_LINE_PAD];

    drop_halves(weight, drop_numbers(&t->drop->drop, place_of(t, row), bytes, keys, count), count);
}

/* Computes attention from one panel of rows, beginning with row `first + row` of the task, to a
 * tile of keys, and adds it to the rows' sums. */
static void attend_panel(const struct panel_forward *f, const struct task *t,
                         struct panel_forward_tiles *s, int64_t first, int64_t row, int rows,
                         const struct panel_forward_keys *keys)
{
    const int64_t ld = f->layout.keys, words = t->width / 2, count = panels_for(keys->count);
    const struct row_extent extent = row_extent_of(&s->mask_extent, row, rows);
    const float scale = t->cap > 0 ? 1.0f : t->scale; /* capped scores are scaled before */
    enum cover cover[KEY_PANELS];
    int64_t begin = count, end = 0;

    for (int64_t j = 0; j < count; j++) {
        cover[j] = cover_of(t, &extent, &keys->panel[j]);
        if (cover[j] == NOTHING)
            continue;
        begin = begin < j ? begin : j;
        end = j + 1;
        if (t->slopes || keys->count - j * COLUMNS < COLUMNS)
            cover[j] = SOME;
    }
    for (int64_t j = begin; j < end; j++)
        multiply_panel(f->panels, s->score + j * COLUMNS, ld, s->q.at + row * s->q.ld, s->q.ld,
                       s->k_t + j * COLUMNS * words, words, rows, false);
    if (t->cap > 0)
        cap_rows(t, s->score, ld, rows, begin * COLUMNS, end * COLUMNS);
    for (int r = 0; r < rows && begin < end; r++) {
        vf max = vf_set(-INFINITY);

        prefetch_later(&s->later, 1);
        for (int64_t j = begin; j < end; j++) {
            float *score = s->score + r * ld + j * COLUMNS;

            max = vf_max(max, cover[j] == ALL ? scale_scores(score, scale)
                                              : mask_panel_row(t, score, &s->mask_extent, row + r,
                                                               s->key_index + j * COLUMNS,
                                                               keys->count - j * COLUMNS, scale));
        }
        softmax_panel_row(s->score + r * ld + begin * COLUMNS, s->p + r * ld + begin * COLUMNS,
                          (end - begin) * COLUMNS, vf_max_lane(max), s->max + row + r,
                          s->sum + row + r, s->out + (row + r) * t->width, t->width);
        if (t->drop)
            drop_half_weights(t, first + row + r, s->key_index + begin * COLUMNS,
                              hd_min(keys->count, end * COLUMNS) - begin * COLUMNS,
                              s->p + r * ld + begin * COLUMNS);
    }
    for (int64_t d = 0; d < t->width && begin < end; d += COLUMNS)
        multiply_panel(f->panels, s->out + row * t->width + d, t->width, s->p + begin * COLUMNS, ld,
                       s->v_words + d * ld / 2 + begin * COLUMNS / 2 * COLUMNS,
                       (end - begin) * COLUMNS / 2, rows, true);
}

static void store_panel_output(const struct hd_attention_forward_args *a, const struct task *t,
                               const struct panel_forward_tiles *s, int64_t first, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        const int64_t head = task_head(t, first + i), query = task_query(t, first + i);
        const float dropout_scale = t->drop ? t->drop->drop.scale : 1.0f;
        const float factor =
            s->sum[i] > 0 || s->sum[i] != s->sum[i] ? dropout_scale / s->sum[i] : 0.0f;
        uint16_t *out = (uint16_t *)a->out + query * a->ldo + head * a->D;

        FOR_VECTORS (d, n, 0, a->D)
            vf_store_bf16(out + d, n, vf_load_f32(s->out + i * t->width + d, n) * factor);
        a->lse[head * a->B * a->q_len + query] = s->max[i] + logf(s->sum[i]);
        if (a->top_score)
            raise_top_score(a->top_score + head, s->max[i]);
    }
}

enum { BLOCK_RUNS = 2 }; /* of its output and of the next block's queries; those of keys follow */

static void set_later(const struct panel_forward *f, const struct task *t,
                      struct panel_forward_tiles *s, int64_t block, int64_t first)
{
    const struct hd_attention_forward_args *a = f->args;
    const int64_t next = block + f->threads, group = next / f->blocks, rows = f->layout.block_rows;
    struct row_run queries = {0};

    s->later = (struct later){.count = 0};
    s->next_k = s->next_v = (struct row_run){0};
    add_run(&s->later, run_of_queries(t, a->out, a->ldo, first, rows, HD_BF16));
    if (next < a->B * a->G * f->blocks) {
        struct task n = TASK_OF(a, f->drop, group / a->G, group % a->G, a->kv_len, f->layout.width);

        task_take_slot(&n, a);
        queries = run_of_queries(&n, n.q, n.ldq, next % f->blocks * rows, rows, HD_BF16);
        s->next_k = run_of_keys(&n, n.k, n.ldk, 0, f->layout.keys, HD_BF16);
        s->next_v = run_of_keys(&n, n.v, n.ldv, 0, f->layout.keys, HD_BF16);
    }
    add_run(&s->later, queries);
}

/* Sets the keys and values that are prefetched while a tile is computed: those from `key` on. */
static void look_at_next_keys(const struct task *t, struct panel_forward_tiles *s, int64_t key,
                              int64_t count)
{
    const bool is_last = key >= t->kv_len;
    struct later *l = &s->later;

    l->count = BLOCK_RUNS;
    add_run(l, is_last ? s->next_k : run_of_keys(t, t->k, t->ldk, key, count, HD_BF16));
    add_run(l, is_last ? s->next_v : run_of_keys(t, t->v, t->ldv, key, count, HD_BF16));
}

static void attend_block_by_panels(const struct panel_forward *f, const struct task *t,
                                   struct panel_forward_tiles *s, int64_t first, int64_t rows)
{
    const int panel_rows = f->panels->rows;
    /* a tile is loaded whole, with rows behind the last one */
    const bool copy = f->panels->by_row || rows_collide(t->ldq, t->width, panel_rows);
    struct mask_extent mask_extent = s->mask_extent;
    struct row_extent extent;

    load_mask_extent(t, first, rows, &mask_extent);
    s->q = panel_rows_of(t, s->copies, t->q, t->ldq, first, rows, copy);
    memset(s->out, 0, (size_t)(rows * t->width) * sizeof *s->out);
    for (int64_t i = 0; i < rows; i++) {
        s->max[i] = -INFINITY;
        s->sum[i] = 0;
    }
    extent = row_extent_of(&s->mask_extent, 0, rows);
    for (int64_t key = 0; key < t->kv_len; key += f->layout.keys) {
        struct panel_forward_keys keys = {.count = hd_min(f->layout.keys, t->kv_len - key)};

        memcpy(s->key_index, t->kv_index + t->slot * t->kv_stride + key,
               (size_t)keys.count * sizeof *s->key_index);
        memset(s->key_index + keys.count, 0,
               (size_t)(f->layout.keys - keys.count) * sizeof *s->key_index);
        keys.extent = extent_of(s->key_index, keys.count);
        if (cover_of(t, &extent, &keys.extent) == NOTHING)
            continue;
        key_extents(keys.panel, s->key_index, keys.count);
        look_at_next_keys(t, s, key + keys.count, f->layout.keys);
        pack_tile(f, t, s, key, keys.count);
        for (int64_t i = 0; i < rows; i += panel_rows)
            attend_panel(f, t, s, first, i, (int)hd_min(panel_rows, rows - i), &keys);
    }
    store_panel_output(f->args, t, s, first, rows);
}

static void attend_blocks_by_panels(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct panel_forward *f = args;
    const struct hd_attention_forward_args *a = f->args;
    struct panel_forward_tiles tiles = panel_forward_tiles_of(f, thread);

    if (f->panels->begin)
        f->panels->begin();
    for (int64_t i = begin; i < end; i++) {
        const int64_t group = i / f->blocks, first = i % f->blocks * f->layout.block_rows;
        struct task t = TASK_OF(a, f->drop, group / a->G, group % a->G, a->kv_len, f->layout.width);

        task_take_slot(&t, a);
        set_later(f, &t, &tiles, i, first);
        attend_block_by_panels(f, &t, &tiles, first,
                               hd_min(f->layout.block_rows, t.heads * t.q_len - first));
    }
    if (f->panels->end)
        f->panels->end();
}

void KERNEL(attention_forward_panels)(struct hd_backend *cpu,
                                      const struct hd_attention_forward_args *args,
                                      const struct weight_drop *drop)
{
    struct panel_forward f = {.args = args,
                              .drop = drop,
                              .panels = cpu->panels,
                              .layout = hd_costs_attention_forward_panels(args),
                              .threads = cpu->traits.threads};

    f.blocks = (args->H / args->G * args->q_len + f.layout.block_rows - 1) / f.layout.block_rows;
    hd_cpu_parallel(cpu, args->B * args->G * f.blocks, 1, attend_blocks_by_panels, &f);
}

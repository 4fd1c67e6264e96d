/* attention: tasks, rows, and the visibility of keys; shared by forward and backward, with fp32
 * vectors and with bf16 panels.
 *
 * A task is one group g (the query heads that share a key/value head) of one sequence b. Its rows
 * are the pairs (head of the group, query), head by head. Rows are processed in blocks, keys in
 * tiles. A tile of keys is packed once per block of rows, and skipped if no row of the block sees
 * any of its keys.
 *
 * Used by: attention*.c.   Uses: cpu, drop, costs, vec. */
#ifndef HD_KERNELS_CPU_ATTENTION_H
#define HD_KERNELS_CPU_ATTENTION_H

#include "base/math.h"
#include "kernels/costs/costs.h"
#include "kernels/cpu/drop.h"

/* Dropout of the attention weights of one launch. */
struct weight_drop {
    bool on;
    struct drop drop;
    const int32_t *sample;
    int64_t first_head;
};

/* Arguments that forward and backward attention have in common, for one task. */
struct task {
    const void *q, *k, *v;
    const int32_t *q_index, *kv_index, *q_bound;
    const float *slopes;
    const struct weight_drop *drop; /* dropout of attention weights; NULL: none */
    int64_t b, slot, g, heads, q_len, kv_len, kv_stride, D, width, ldq, ldk, ldv;
    int64_t chunk;    /* in rows; 0: no chunks */
    int32_t window;   /* in rows; INT32_MAX: no window */
    float scale, cap; /* cap: bound of the scores; 0: none */
    bool causal;
    enum hd_dtype dtype;
};

/* Makes task (b_, g_) from the arguments of forward or backward, whose members have equal names. */
#define TASK_OF(a, drop_, b_, g_, kv_len_, width_)                                                 \
    (struct task)                                                                                  \
    {                                                                                              \
        .q = (a)->q, .k = (a)->k, .v = (a)->v, .q_index = (a)->q_index, .kv_index = (a)->kv_index, \
        .q_bound = (a)->q_bound, .slopes = (a)->slopes, .drop = (drop_)->on ? (drop_) : NULL,      \
        .b = (b_), .slot = (b_), .g = (g_), .heads = (a)->H / (a)->G, .q_len = (a)->q_len,         \
        .kv_len = (kv_len_), .kv_stride = (a)->kv_stride, .D = (a)->D, .width = (width_),          \
        .ldq = (a)->ldq, .ldk = (a)->ldk, .ldv = (a)->ldv, .chunk = (a)->chunk,                    \
        .window = (a)->window > 0 ? (int32_t)hd_min((a)->window, INT32_MAX) : INT32_MAX,           \
        .scale = (a)->scale, .cap = (a)->cap, .causal = (a)->causal, .dtype = (a)->dtype           \
    }

/* Sets the cache slot of a forward task, and limits kv_len to the rows of the slot that are
 * filled. */
INLINE void task_take_slot(struct task *t, const struct hd_attention_forward_args *a)
{
    if (a->kv_slot)
        t->slot = a->kv_slot[t->b];
    if (a->kv_filled && a->kv_filled[t->b] < t->kv_len)
        t->kv_len = a->kv_filled[t->b];
}

/* q_index, q_bound and the ALiBi slope for each row of a block. */
struct mask_extent {
    int32_t *index, *bound;
    float *slope;
};
struct attention_extent { /* Minimum and maximum index, in the sample, of a run of rows or keys. */
    int32_t min, max;
};
struct row_extent {
    struct attention_extent index, bound;
};

enum cover { NOTHING, SOME, ALL }; /* number of (row, key) pairs of a tile that are visible */

INLINE int64_t task_head(const struct task *t, int64_t row)
{
    return t->g * t->heads + row / t->q_len;
}

INLINE int64_t task_query(const struct task *t, int64_t row) /* returns the index of a row's query
                                                                among the queries of all
                                                                sequences */
{
    return t->b * t->q_len + row % t->q_len;
}

/* Returns the least index of a key that the query sees, by its document and chunk; INT32_MIN: it
 * has neither. */
INLINE int32_t task_bound(const struct task *t, int64_t query)
{
    const int64_t start = t->q_bound ? t->q_bound[query] : 0, index = t->q_index[query];

    if (t->chunk > 0)
        return (int32_t)(start + (index - start) / t->chunk * t->chunk);
    return t->q_bound ? t->q_bound[query] : INT32_MIN;
}

static void load_mask_extent(const struct task *t, int64_t first, int64_t count,
                             struct mask_extent *mask_extent)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t query = task_query(t, first + i);

        mask_extent->index[i] = t->q_index[query];
        mask_extent->bound[i] = task_bound(t, query);
        mask_extent->slope[i] = t->slopes ? t->slopes[task_head(t, first + i)] : 0.0f;
    }
}

static struct attention_extent extent_of(const int32_t *values, int64_t count)
{
    struct attention_extent e = {INT32_MAX, INT32_MIN};

    for (int64_t i = 0; i < count; i++) {
        e.min = values[i] < e.min ? values[i] : e.min;
        e.max = values[i] > e.max ? values[i] : e.max;
    }
    return e;
}

static struct row_extent row_extent_of(const struct mask_extent *mask_extent, int64_t first,
                                       int64_t count)
{
    return (struct row_extent){extent_of(mask_extent->index + first, count),
                               extent_of(mask_extent->bound + first, count)};
}

/* Returns whether none, some or all pairs of these rows and keys are visible. The answer is from
 * extents only: SOME may also be returned for none or all. */
static enum cover cover_of(const struct task *t, const struct row_extent *rows,
                           const struct attention_extent *keys)
{
    const int64_t window = t->window;

    if ((t->causal && keys->min > rows->index.max) || keys->max < rows->bound.min ||
        (window < INT32_MAX && (int64_t)rows->index.min - keys->max >= window))
        return NOTHING;
    if ((t->causal && keys->max > rows->index.min) || keys->min < rows->bound.max ||
        (window < INT32_MAX && (int64_t)rows->index.max - keys->min >= window))
        return SOME;
    return ALL;
}

/* Returns true if one of these rows may see one of the keys of a tile. (kv_index need not be
 * ascending.) */
static __attribute__((unused)) bool sees_a_key(const struct task *t, const struct row_extent *rows,
                                               int64_t tile_keys)
{
    const int32_t *index = t->kv_index + t->slot * t->kv_stride;

    for (int64_t key = 0; key < t->kv_len; key += tile_keys) {
        const struct attention_extent keys =
            extent_of(index + key, hd_min(tile_keys, t->kv_len - key));

        if (cover_of(t, rows, &keys) != NOTHING)
            return true;
    }
    return false;
}

INLINE int64_t key_at(const struct task *t, int64_t key, int64_t ld) /* returns the index, in k or
                                                                        v, of a key's first
                                                                        element */
{
    return (t->slot * t->kv_stride + key) * ld + t->g * t->D;
}

/* Rows of a tensor that are read or written later. */
struct row_run {
    const char *next;
    int64_t step_bytes, row_bytes, left;
};

/* Rows that are prefetched one by one while others are computed, because the hardware does not prefetch
 * distant rows: of the block's output, and what the block reads first that this thread probably computes
 * next. */
enum { RUNS_MAX = 8 };
struct later {
    struct row_run runs[RUNS_MAX];
    int count;
    bool is_done;
};

INLINE void add_run(struct later *l, struct row_run run)
{
    l->runs[l->count++] = run;
    l->is_done = false;
}

INLINE struct row_run run_of(const void *tensor, int64_t at, int64_t ld, int64_t D, int64_t count,
                             enum hd_dtype dtype)
{
    const int64_t e = vf_element_bytes(dtype);

    return (struct row_run){(const char *)tensor + at * e, ld * e, D * e, count};
}

/* Returns the rows of a block that are of its first head. */
INLINE struct row_run run_of_queries(const struct task *t, const void *tensor, int64_t ld,
                                     int64_t first, int64_t rows, enum hd_dtype dtype)
{
    return run_of(tensor, task_query(t, first) * ld + task_head(t, first) * t->D, ld, t->D,
                  hd_min(rows, t->q_len - first % t->q_len), dtype);
}

/* Returns the rows of at most `count` keys, or of their values. */
INLINE struct row_run run_of_keys(const struct task *t, const void *tensor, int64_t ld, int64_t key,
                                  int64_t count, enum hd_dtype dtype)
{
    return run_of(tensor, key_at(t, key, ld), ld, t->D, hd_min(count, t->kv_len - key), dtype);
}

/* Prefetches the next `rows` rows of each run, into the second cache: the first one holds tiles. */
INLINE void prefetch_later(struct later *l, int64_t rows)
{
    if (l->is_done)
        return;
    l->is_done = true;
    for (struct row_run *run = l->runs; run < l->runs + l->count; run++) {
        for (int64_t i = 0; i < rows && run->left > 0; i++, run->left--) {
            for (int64_t byte = 0; byte < run->row_bytes; byte += 64)
                __builtin_prefetch(run->next + byte, 0, 2);
            run->next += run->step_bytes;
        }
        l->is_done &= run->left <= 0;
    }
}

/* Returns the derivative of a capped score with respect to the uncapped one, from u = score / cap,
 * the tanh: 1 - u^2; 0 for a score of -inf. */
INLINE vf cap_slope(vf u)
{
    return 1.0f - vf_min(vf_set(1.0f), u * u); /* NaN for NaN */
}

INLINE struct drop_place place_of(const struct task *t, int64_t row)
{
    const int64_t query = task_query(t, row);

    return (struct drop_place){(uint32_t)t->q_index[query],
                               (uint32_t)(t->drop->first_head + task_head(t, row)),
                               (uint32_t)t->drop->sample[query]};
}

/* Sets ret_drop to the dropout of attention weights that the arguments of forward or backward ask
 * for. */
#define WEIGHT_DROP_OF(kernel, a, ret_drop)                                         \
    weight_drop_of(kernel, (a)->dropout, (a)->dropout_key, (a)->block, (a)->sample, \
                   (a)->first_head, ret_drop)
INLINE enum hd_status weight_drop_of(const char *kernel, float p, uint64_t key,
                                     const struct hd_step_state *block, const int32_t *sample,
                                     int64_t first_head, struct weight_drop *ret_drop)
{
    *ret_drop = (struct weight_drop){.on = p != 0, .sample = sample, .first_head = first_head};
    if (!ret_drop->on)
        return HD_OK;
    if (!block || !sample)
        return hd_err(HD_INVALID, "%s: dropout needs the samples of the rows and the step block",
                      kernel);
    return drop_of(kernel, key, block, p, &ret_drop->drop);
}

/* Compute bf16 attention on panels (attention_panels_*.c), if hd_costs_attention_is_on_panels(). */
void KERNEL(attention_forward_panels)(struct hd_backend *cpu,
                                      const struct hd_attention_forward_args *args,
                                      const struct weight_drop *drop);
void KERNEL(attention_backward_panels)(struct hd_backend *cpu,
                                       const struct hd_attention_backward_args *args,
                                       const struct weight_drop *drop);

/* Refuses a cap together with slopes, and chunks without a causal mask. */
#define CHECK_SCORES(kernel, a) \
    check_scores(kernel, (a)->cap, (a)->slopes != NULL, (a)->chunk, (a)->causal)
INLINE enum hd_status check_scores(const char *kernel, float cap, bool slopes, int64_t chunk,
                                   bool causal)
{
    if (!(cap >= 0) || (cap > 0 && slopes))
        return hd_err(HD_INVALID,
                      "%s: a cap of %g on scores; it must be positive, and not be used "
                      "together with ALiBi slopes",
                      kernel, (double)cap);
    if (chunk < 0 || (chunk > 0 && !causal))
        return hd_err(HD_INVALID, "%s: chunks of %lld rows need a causal mask", kernel,
                      (long long)chunk);
    return HD_OK;
}

INLINE enum hd_status check_heads(const char *kernel, int64_t H, int64_t G, int64_t D)
{
    if (D < 8 || D % 8 || D > HD_COSTS_ATTENTION_D_MAX)
        return hd_err(HD_UNSUPPORTED,
                      "%s: the head width is %lld; the cpu backend takes multiples of 8 up to %d",
                      kernel, (long long)D, HD_COSTS_ATTENTION_D_MAX);
    if (G < 1 || H % G)
        return hd_err(HD_INVALID, "%s: %lld key/value heads do not divide %lld query heads", kernel,
                      (long long)G, (long long)H);
    return HD_OK;
}

/* Raises *top to a row's largest score; tasks of one head run at the same time. */
INLINE void raise_top_score(float *top, float score)
{
    float old;

    __atomic_load(top, &old, __ATOMIC_RELAXED);
    while (score > old &&
           !__atomic_compare_exchange(top, &old, &score, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Stores one row of a gradient: to[at + d] (+)= scale * row[d] for d < D. */
INLINE void store_row(void *to, int64_t at, const float *row, int64_t D, float scale,
                      bool accumulate, enum hd_dtype dtype)
{
    FOR_VECTORS (d, n, 0, D) {
        vf x = vf_load_f32(row + d, n) * scale;

        if (accumulate)
            x += vf_load(to, at + d, n, dtype);
        vf_store(to, at + d, n, x, dtype);
    }
}

#endif

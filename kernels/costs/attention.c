#include "base/math.h"
#include "kernels/costs/attention_by.h"
#include "kernels/costs/costs.h"

static int64_t take(struct hd_costs_attention_layout *layout, int64_t floats)
{
    const int64_t offset = layout->thread_floats;

    layout->thread_floats += hd_round_up(floats, HD_TENSOR_ALIGN / (int64_t)sizeof(float));
    return offset;
}

/* Returns the layout of the scratch areas that attention forward and backward both need. */
static struct hd_costs_attention_layout rows_layout(int64_t rows, int64_t D)
{
    struct hd_costs_attention_layout layout = {.width =
                                                   hd_round_up(D, 16) | HD_COSTS_ATTENTION_ODD};

    layout.block_rows = hd_round_up(rows, HD_COSTS_ATTENTION_TILE);
    if (layout.block_rows > HD_COSTS_ATTENTION_ROWS)
        layout.block_rows = HD_COSTS_ATTENTION_ROWS;
    layout.q = take(&layout, layout.block_rows * layout.width);
    layout.index = take(&layout, layout.block_rows);
    layout.bound = take(&layout, layout.block_rows);
    layout.slope = take(&layout, layout.block_rows);
    layout.k_t = take(&layout, D * HD_COSTS_ATTENTION_KEYS_LD);
    layout.key_index = take(&layout, HD_COSTS_ATTENTION_TILE);
    layout.score = take(&layout, HD_COSTS_ATTENTION_TILE * HD_COSTS_ATTENTION_TILE);
    return layout;
}

struct hd_costs_attention_layout
hd_costs_attention_forward_layout(const struct hd_attention_forward_args *a)
{
    struct hd_costs_attention_layout layout = rows_layout(a->H / a->G * a->q_len, a->D);

    layout.out = take(&layout, layout.block_rows * layout.width);
    layout.max = take(&layout, layout.block_rows);
    layout.sum = take(&layout, layout.block_rows);
    layout.v = take(&layout, HD_COSTS_ATTENTION_TILE * layout.width);
    return layout;
}

struct hd_costs_attention_layout
hd_costs_attention_backward_layout(const struct hd_attention_backward_args *a)
{
    struct hd_costs_attention_layout layout = rows_layout(a->H / a->G * a->q_len, a->D);
    const int64_t keys = hd_round_up(a->kv_len, HD_COSTS_ATTENTION_TILE);

    layout.dout = take(&layout, layout.block_rows * layout.width);
    layout.dq = take(&layout, layout.block_rows * layout.width);
    layout.lse = take(&layout, layout.block_rows);
    layout.delta = take(&layout, layout.block_rows);
    layout.k = take(&layout, HD_COSTS_ATTENTION_TILE * layout.width);
    layout.v_t = take(&layout, a->D * HD_COSTS_ATTENTION_KEYS_LD);
    layout.dscore = take(&layout, HD_COSTS_ATTENTION_TILE * HD_COSTS_ATTENTION_TILE);
    layout.dk = take(&layout, keys * layout.width);
    layout.dv = take(&layout, keys * layout.width);
    return layout;
}

/* ---- on panels ---- */

enum { PANEL = HD_COSTS_ATTENTION_PANEL, WORD_BYTES = 4, BF16_BYTES = 2 };

static int64_t take_bytes(struct hd_costs_attention_panels *layout, int64_t bytes)
{
    const int64_t offset = layout->thread_bytes;

    layout->thread_bytes += hd_round_up(bytes, HD_TENSOR_ALIGN);
    return offset;
}

static struct hd_costs_attention_panels panels_layout(int64_t rows, int64_t D, int64_t keys)
{
    struct hd_costs_attention_panels l = {.width = hd_round_up(D, PANEL), .keys = keys};

    l.block_rows = hd_round_up(rows, PANEL);
    if (l.block_rows > HD_COSTS_ATTENTION_ROWS)
        l.block_rows = HD_COSTS_ATTENTION_ROWS;
    l.index = take_bytes(&l, l.block_rows * (int64_t)sizeof(int32_t));
    l.bound = take_bytes(&l, l.block_rows * (int64_t)sizeof(int32_t));
    l.slope = take_bytes(&l, l.block_rows * (int64_t)sizeof(float));
    l.key_index = take_bytes(&l, keys * (int64_t)sizeof(int32_t));
    l.k_t = take_bytes(&l, keys * l.width * BF16_BYTES);
    return l;
}

struct hd_costs_attention_panels
hd_costs_attention_forward_panels(const struct hd_attention_forward_args *a)
{
    const int64_t kv_len = hd_round_up(a->kv_len, PANEL);
    const int64_t keys =
        kv_len < HD_COSTS_ATTENTION_KEYS_FORWARD ? kv_len : HD_COSTS_ATTENTION_KEYS_FORWARD;
    struct hd_costs_attention_panels l = panels_layout(a->H / a->G * a->q_len, a->D, keys);

    l.q = take_bytes(&l, l.block_rows * l.width * BF16_BYTES);
    l.out = take_bytes(&l, l.block_rows * l.width * (int64_t)sizeof(float));
    l.max = take_bytes(&l, l.block_rows * (int64_t)sizeof(float));
    l.sum = take_bytes(&l, l.block_rows * (int64_t)sizeof(float));
    l.v_words = take_bytes(&l, keys * l.width * BF16_BYTES);
    l.score = take_bytes(&l, PANEL * keys * (int64_t)sizeof(float));
    l.p = take_bytes(&l, PANEL * keys * BF16_BYTES);
    return l;
}

struct hd_costs_attention_panels
hd_costs_attention_backward_panels(const struct hd_attention_backward_args *a)
{
    const int64_t keys = HD_COSTS_ATTENTION_KEYS_BACKWARD, queries = HD_COSTS_ATTENTION_QUERIES;
    struct hd_costs_attention_panels l = panels_layout(a->H / a->G * a->q_len, a->D, keys);
    const int64_t rows_bytes = l.block_rows * l.width * BF16_BYTES;
    const int64_t keys_bytes = hd_round_up(a->kv_len, keys) * l.width * (int64_t)sizeof(float);

    l.q_t = take_bytes(&l, rows_bytes);
    l.dout_t = take_bytes(&l, rows_bytes);
    l.q_words = take_bytes(&l, rows_bytes);
    l.dout_words = take_bytes(&l, rows_bytes);
    l.dq = take_bytes(&l, l.block_rows * l.width * (int64_t)sizeof(float));
    l.lse = take_bytes(&l, l.block_rows * (int64_t)sizeof(float));
    l.delta = take_bytes(&l, l.block_rows * (int64_t)sizeof(float));
    l.k = take_bytes(&l, keys * l.width * BF16_BYTES);
    l.v = take_bytes(&l, keys * l.width * BF16_BYTES);
    l.score = take_bytes(&l, PANEL * PANEL * (int64_t)sizeof(float));
    l.dscore = take_bytes(&l, PANEL * PANEL * (int64_t)sizeof(float));
    l.p = take_bytes(&l, keys * queries * BF16_BYTES);
    l.ds = take_bytes(&l, keys * queries * BF16_BYTES);
    l.ds_words = take_bytes(&l, keys / 2 * PANEL * WORD_BYTES);
    l.dk = take_bytes(&l, keys_bytes);
    l.dv = take_bytes(&l, keys_bytes);
    return l;
}

/* ---- on a GPU ---- */

static int64_t take_mask_extents(struct hd_costs_attention_mask_extents *mask_extents,
                                 int64_t bytes)
{
    const int64_t offset = mask_extents->bytes;

    mask_extents->bytes += hd_round_up(bytes, HD_TENSOR_ALIGN);
    return offset;
}

static struct hd_costs_attention_mask_extents mask_extents_of(int64_t B, int64_t q_len,
                                                              int64_t kv_len)
{
    const int64_t granule = HD_COSTS_ATTENTION_GRANULE, word = (int64_t)sizeof(int32_t);
    struct hd_costs_attention_mask_extents s = {.q_pad = hd_round_up(q_len, HD_COSTS_ATTENTION_PAD),
                                                .kv_pad =
                                                    hd_round_up(kv_len, HD_COSTS_ATTENTION_PAD)};

    s.keys = take_mask_extents(&s, B * s.kv_pad * word);
    s.key_extents = take_mask_extents(&s, B * s.kv_pad / granule * 2 * word);
    s.queries = take_mask_extents(&s, B * s.q_pad * 2 * word);
    s.query_extents = take_mask_extents(&s, B * s.q_pad / granule * 4 * word);
    return s;
}

struct hd_costs_attention_mask_extents
hd_costs_attention_forward_mask_extents(const struct hd_attention_forward_args *a)
{
    return mask_extents_of(a->B, a->q_len, a->kv_len);
}

bool hd_costs_attention_is_tiled(enum hd_dtype dtype, int64_t D)
{
    return (dtype == HD_BF16 || dtype == HD_F16) && (D == 64 || D == 96 || D == 128);
}

/* Returns the smallest number of thread blocks among which a GPU kernel should divide dk and dv:
 * twice the multiprocessors of an H100, times the blocks that run on one at a time
 * (attention_backward_tiled.cuh). With a causal mask the longest block takes twice the mean time;
 * with that many blocks it does not determine the total time. */
static int64_t key_blocks_min(int64_t D)
{
    return D == 64 ? 512 : 256;
}

/* Sets s->parts to the smallest number of parts of the heads that gives key_blocks_min thread
 * blocks: each part costs a write and a read of its fp32 sums. */
static void split_heads(struct hd_costs_attention_mask_extents *s,
                        const struct hd_attention_backward_args *a)
{
    const int64_t tiles = hd_round_up(a->kv_len, HD_COSTS_ATTENTION_KEYS) / HD_COSTS_ATTENTION_KEYS;
    const int64_t shared = a->G > 0 ? a->H / a->G : 1, blocks = tiles * a->B * a->G;
    int64_t heads = shared;

    if (hd_costs_attention_is_tiled(a->dtype, a->D))
        while (heads > 1 && blocks * ((shared + heads - 1) / heads) < key_blocks_min(a->D))
            heads--;
    s->parts = heads > 0 ? (shared + heads - 1) / heads : 1;
    s->part_heads = (shared + s->parts - 1) / s->parts; /* all parts have about the same number of
                                                           heads */
}

struct hd_costs_attention_mask_extents
hd_costs_attention_backward_mask_extents(const struct hd_attention_backward_args *a)
{
    struct hd_costs_attention_mask_extents s = mask_extents_of(a->B, a->q_len, a->kv_len);
    int64_t part_bytes;

    s.stats = take_mask_extents(&s, a->B * a->H * s.q_pad * 2 * (int64_t)sizeof(float));
    split_heads(&s, a);
    part_bytes = s.parts > 1 ? a->B * a->G * a->kv_len * a->D * (int64_t)sizeof(float) : 0;
    s.parts_dk = take_mask_extents(&s, s.parts * part_bytes);
    s.parts_dv = take_mask_extents(&s, s.parts * part_bytes);
    return s;
}

bool hd_costs_attention_is_on_panels(enum hd_dtype dtype, int64_t group_rows,
                                     const struct hd_traits *traits)
{
    return dtype == HD_BF16 && traits->bf16_products != HD_BF16_WIDENED &&
           group_rows >= HD_COSTS_ATTENTION_ROWS_MIN;
}

int64_t hd_scratch_attention_forward(const struct hd_attention_forward_args *args,
                                     const struct hd_traits *traits)
{
    bool ordered;

    if (hd_traits_is_cuda(traits)) {
        const int64_t own = hd_costs_attention_forward_mask_extents(args).bytes;

        return hd_costs_attention_is_by_cudnn(traits, &ordered) && hd_costs_cudnn_has_forward(args)
                   ? hd_max(own, hd_costs_cudnn_lay_out(false, ordered, args->B, args->q_len,
                                                        args->H, args->G, args->D)
                                     .bytes)
                   : own;
    }
    if (hd_costs_attention_is_on_panels(args->dtype, args->H / args->G * args->q_len, traits))
        return hd_costs_attention_forward_panels(args).thread_bytes * traits->threads;
    return hd_costs_attention_forward_layout(args).thread_floats * traits->threads *
           (int64_t)sizeof(float);
}

int64_t hd_scratch_attention_backward(const struct hd_attention_backward_args *args,
                                      const struct hd_traits *traits)
{
    if (hd_traits_is_cuda(traits)) {
        const struct hd_costs_attention_mask_extents m =
            hd_costs_attention_backward_mask_extents(args);
        bool ordered;

        if (hd_costs_attention_is_by_cudnn(traits, &ordered) && hd_costs_cudnn_has_backward(args))
            return hd_max(m.bytes, hd_costs_cudnn_lay_out(true, ordered, args->B, args->q_len,
                                                          args->H, args->G, args->D)
                                       .bytes);
        return hd_costs_attention_is_by_wgmma(traits) && args->dtype == HD_BF16
                   ? hd_costs_attention_lay_in_order(args, &m).bytes
                   : m.bytes;
    }
    if (hd_costs_attention_is_on_panels(args->dtype, args->H / args->G * args->q_len, traits))
        return hd_costs_attention_backward_panels(args).thread_bytes * traits->threads;
    return hd_costs_attention_backward_layout(args).thread_floats * traits->threads *
           (int64_t)sizeof(float);
}

/* Returns the sum of the numbers from 1 to n; 0 for n <= 0. */
static double sum_to(int64_t n)
{
    return n > 0 ? (double)n * (double)(n + 1) / 2 : 0;
}

/* Returns the keys that the first n positions of a chunk see together: each its own and earlier
 * ones, `window` at most. */
static double seen_in_chunk(int64_t n, int64_t window)
{
    return sum_to(n) - (window > 0 ? sum_to(n - window) : 0);
}

/* Returns the keys that the first n positions of a sequence see together, if each sees only its
 * chunk; 0 for n <= 0. */
static double seen_in_chunks(int64_t n, int64_t chunk, int64_t window)
{
    if (n <= 0)
        return 0;
    return (double)(n / chunk) * seen_in_chunk(chunk, window) + seen_in_chunk(n % chunk, window);
}

/* Returns the visible (query, key) pairs of one head and sequence. Indices are tensor contents,
 * unknown at planning time: if the caller does not pass the number (known_pairs 0), the queries are
 * assumed to be the last q_len of kv_len positions. Document bounds and a partly filled cache would
 * only make the number smaller. */
static double visible_pairs(int64_t known_pairs, int64_t q_len, int64_t kv_len, int64_t window,
                            int64_t chunk, bool causal)
{
    const int64_t before = kv_len - q_len; /* index of the first query among the kv_len positions */
    /* the query at position p sees p + 1 keys, or all, minus p + 1 - window that are too old */
    const double seen = causal ? sum_to(kv_len) - sum_to(before) : (double)q_len * (double)kv_len;
    const double old = window > 0 ? sum_to(kv_len - window) - sum_to(before - window) : 0;

    if (known_pairs > 0)
        return (double)known_pairs;
    if (chunk > 0)
        return seen_in_chunks(kv_len, chunk, window) - seen_in_chunks(before, chunk, window);
    return seen - old;
}

/* Counts two products of D multiply-adds per visible pair of query and key; the few operations of
 * softmax and cap are not counted. */
double hd_costs_attention_forward_flops(const struct hd_attention_forward_args *a)
{
    return 4.0 * (double)(a->B * a->H * a->D) *
           visible_pairs(a->pairs, a->q_len, a->kv_len, a->window, a->chunk, a->causal);
}

/* Counts five products of D multiply-adds per visible pair of query and key: the recomputed scores,
 * dout v^T, dq, dk and dv; with sums an add per gradient. */
double hd_costs_attention_backward_flops(const struct hd_attention_backward_args *a)
{
    const int64_t rows = a->B * (a->q_len * a->H + 2 * a->kv_len * a->G);

    return 10.0 * (double)(a->B * a->H * a->D) *
               visible_pairs(a->pairs, a->q_len, a->kv_len, a->window, a->chunk, a->causal) +
           (a->sums ? (double)(rows * a->D) : 0);
}

/* Returns whether the gradients are rows of one tensor that pieces of HD_ATTENTION_SUM_ROWS divide;
 * addresses are not looked at. */
static bool has_whole_pieces(const struct hd_attention_backward_args *a)
{
    const int64_t columns = (a->H + 2 * a->G) * a->D;

    return a->q_len % HD_ATTENTION_SUM_ROWS == 0 && a->kv_len == a->q_len &&
           a->kv_stride == a->q_len && a->lddq == columns && a->lddk == columns &&
           a->lddv == columns && a->grad_dtype == a->dtype && !a->accumulate;
}

enum hd_status hd_costs_attention_check_sums(const struct hd_attention_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);
    const char *dq = a->dq, *dk = a->dk;

    if (!a->sums ||
        (has_whole_pieces(a) && dk == dq + a->H * a->D * e && a->dv == dk + a->G * a->D * e))
        return HD_OK;
    return hd_err(HD_INVALID,
                  "attention_backward: sums need dq, dk and dv in rows of one tensor, of their "
                  "dtype, and sequences of whole pieces of %d rows",
                  HD_ATTENTION_SUM_ROWS);
}

bool hd_attention_takes_sums(const struct hd_traits *traits,
                             const struct hd_attention_backward_args *a)
{
    return hd_traits_is_cuda(traits) && has_whole_pieces(a) &&
           hd_costs_attention_is_tiled(a->dtype, a->D) &&
           hd_costs_attention_backward_mask_extents(a).parts == 1;
}

/* attention: declarations shared by the attention kernels: arguments, visible key ranges, and the
 * iteration over visible tiles.
 *
 * The keys that a query sees (causal mask, window, document bounds) are a range of key indices,
 * [least, most]. A separate kernel, mask_extents_kernel, writes to scratch, once for all heads:
 * these ranges; a copy of the keys' indices, in which invalid keys (past kv_len or kv_filled) have
 * an index outside every range; and the extremes of both over granules of 32. The attention
 * kernels use only these: by comparing extremes they skip a tile, compute it without masking, or
 * mask it. So indices need not be contiguous (documents, zig-zag pieces of context parallelism).
 *
 * Used by: attention*.cu.   Uses: device, random, costs (the layout of scratch).
 */
#ifndef HD_KERNELS_CUDA_ATTENTION_CUH
#define HD_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/random.cuh"

extern "C" {
#include "kernels/costs/attention_by.h"
#include "kernels/costs/costs.h"
}

enum {
    ATTENTION_GRANULE = HD_COSTS_ATTENTION_GRANULE,
    ATTENTION_PAD = HD_COSTS_ATTENTION_PAD,
    ATTENTION_NO_KEY = INT32_MAX,       /* index of an invalid key */
    ATTENTION_ALL_KEYS = INT32_MAX - 1, /* `most` of a query that sees every key */
    ATTENTION_WARP = 32
};

static const float ATTENTION_LOG2E = 1.4426950408889634f, ATTENTION_LN2 = 0.6931471805599453f;

/* The masks of an attention call, in the part of the launch's scratch that mask_extents_kernel
 * fills. */
struct attention_mask_extents {
    int32_t *keys; /* [B, kv_pad]: index of each key, ATTENTION_NO_KEY if invalid */
    /* [B, kv_pad/GRANULE]: least and largest index of the keys in a granule (32 keys) */
    int2 *key_extents;
    int2 *queries; /* [B, q_pad]: range of the key indices that each query sees */
    /* [B, q_pad/GRANULE]: over a granule of 32 queries, the extremes of the least visible indices
     * and of the largest */
    int4 *query_extents;
    int32_t q_pad, kv_pad;
};

/* Arguments of forward and backward kernels, passed by value. */
struct attention {
    const void *q, *k, *v;
    /* index of each query; number of each query's sample for dropout, NULL: no dropout */
    const int32_t *q_index, *sample;
    const float *slopes; /* ALiBi slope per head; NULL: none */
    /* number of valid rows in each cache slot, rows beyond are never read; NULL: all kv_len rows */
    const int32_t *kv_filled;
    const int32_t *kv_slot; /* cache slot of each sequence; NULL: sequence b uses slot b */
    struct attention_mask_extents mask_extents;
    struct cuda_drop drop;
    int64_t ldq, ldk, ldv, kv_stride;
    int32_t B, q_len, kv_len, H, G, D, first_head;
    int32_t l2_group; /* number of heads per L2 group of the launch's blocks (attention_block_of) */
    float scale, cap; /* factor on scores; their bound, 0: none */
    enum hd_dtype dtype;
};

struct attention_forward {
    struct attention a;
    void *out;
    float *lse;       /* log-sum-exp of each query's scores, [H, B*q_len] */
    float *top_score; /* [H], or NULL */
    int64_t ldo;
};

struct attention_backward {
    struct attention a;
    void *dq, *dk, *dv;
    float *sums; /* partial sums of the rows [dq | dk | dv], or NULL; only if parts is 1 */
    const void *dout;
    /* log-sum-exp of each query's scores (base 2 for tiled kernels, base e for plain ones), and
     * delta, [B, H, q_pad] */
    const float2 *stats;
    /* sums of the parts of dk and dv in fp32, [B, G, parts, kv_len, D], if parts > 1 */
    float *parts_dk, *parts_dv;
    int64_t lddo, lddq, lddk, lddv;
    /* number of parts of dk and dv, and query heads per part (hd_costs_attention_mask_extents) */
    int32_t parts, part_heads;
    enum hd_dtype grad_dtype;
    bool accumulate;
};

/* ---- Host: checks and the launch of mask_extents_kernel ---- */

/* Returns HD_OK if the attention kernels support the arguments, else HD_UNSUPPORTED or HD_INVALID.
 * blocks: number of thread blocks of the launch's largest grid. */
enum hd_status attention_check(const char *kernel, enum hd_dtype dtype, int64_t H, int64_t G,
                               int64_t D, int64_t blocks);
/* Returns HD_INVALID for a cap together with slopes, and for chunks without a causal mask. */
enum hd_status attention_check_scores(const char *kernel, float cap, bool slopes, int64_t chunk,
                                      bool causal);
enum hd_status attention_launch_mask_extents(struct hd_cuda_stream *stream,
                                             const struct attention_mask_extents *mask_extents,
                                             const int32_t *q_index, const int32_t *kv_index,
                                             const int32_t *q_bound, const int32_t *kv_filled,
                                             const int32_t *kv_slot, int64_t B, int64_t q_len,
                                             int64_t kv_len, int64_t kv_stride, int64_t window,
                                             int64_t chunk, bool causal);

/* Returns whether all rows are aligned to 16 bytes. Tensor cores are used if so, for bf16 and fp16
 * with head widths 64, 96 and 128 (hd_costs_attention_is_tiled); everything else is computed by
 * plain code in fp32, and so are capped scores with dropout. */
static inline bool attention_rows_are_aligned(const void *base, int64_t ld, int64_t element_bytes)
{
    return ((uintptr_t)base | (uintptr_t)(ld * element_bytes)) % 16 == 0;
}

static inline int64_t attention_tiles(int64_t length, int64_t tile)
{
    return (length + tile - 1) / tile;
}

/* Returns the heads per L2 group (see attention_block_of), `units` at most: as many as together
 * read, with `rows` rows of a head's width each, a third of the device's L2 cache. */
static inline int32_t attention_l2_group(const struct hd_cuda_stream *stream,
                                         const struct attention *a, int64_t units, int64_t rows)
{
    const int64_t unit_bytes = rows * a->D * (int64_t)hd_dtype_size(a->dtype);
    const int64_t most = unit_bytes > 0 ? stream->cuda->l2_bytes / 3 / unit_bytes : units;

    return (int32_t)(most < 1 ? 1 : most < units ? most : units);
}

/* Returns the heads per L2 group of a launch whose blocks are tiles of queries, which read keys and
 * values. */
static inline int32_t attention_l2_group_of_queries(const struct hd_cuda_stream *stream,
                                                    const struct attention *a)
{
    return attention_l2_group(stream, a, (int64_t)a->B * a->H,
                              2 * (int64_t)a->kv_len * a->G / a->H);
}

/* Returns the heads per L2 group of a launch whose blocks are tiles of keys, which read q and dout
 * of `heads` heads. */
static inline int32_t attention_l2_group_of_keys(const struct hd_cuda_stream *stream,
                                                 const struct attention *a, int64_t units,
                                                 int64_t heads)
{
    return attention_l2_group(stream, a, units, 2 * (int64_t)a->q_len * heads);
}

/* Declares the launchers of one dtype; each is compiled in its own file, so that builds run in
 * parallel. */
#define ATTENTION_TILED(encoding)                                                         \
    enum hd_status attention_forward_tiled_##encoding(struct hd_cuda_stream *stream,      \
                                                      const struct attention_forward *f); \
    enum hd_status attention_backward_tiled_##encoding(struct hd_cuda_stream *stream,     \
                                                       const struct attention_backward *f);
ATTENTION_TILED(bf16)
ATTENTION_TILED(f16)
#undef ATTENTION_TILED
enum hd_status attention_forward_plain(struct hd_cuda_stream *stream,
                                       const struct attention_forward *f);
enum hd_status attention_backward_plain(struct hd_cuda_stream *stream,
                                        const struct attention_backward *f);

/* Whether the kernels for Hopper GPUs were compiled: nvcc knows sm_90a (CMakeLists.txt). */
#if defined(HD_HOPPER) || defined(HD_CUDASIM)
/* Returns whether attention_forward_hopper computes this launch, whose rows are aligned. */
bool attention_forward_hopper_takes(const struct attention *a);
enum hd_status attention_forward_hopper(struct hd_cuda_stream *stream,
                                        const struct attention_forward *f);
bool attention_backward_hopper_takes(const struct attention *a);
enum hd_status attention_backward_hopper(struct hd_cuda_stream *stream,
                                         const struct attention_backward *f, void *scratch,
                                         struct hd_costs_attention_in_order in_order);
#endif

/* Sets the members of `struct attention` that forward and backward have in common, except dropout.
 */
template <typename ARGS>
static inline void attention_set(struct attention *a, const ARGS *args,
                                 const struct hd_costs_attention_mask_extents *mask_extents)
{
    char *base = (char *)args->scratch;

    a->q = args->q;
    a->k = args->k;
    a->v = args->v;
    a->q_index = args->q_index;
    a->slopes = args->slopes;
    a->mask_extents.keys = (int32_t *)(base + mask_extents->keys);
    a->mask_extents.key_extents = (int2 *)(base + mask_extents->key_extents);
    a->mask_extents.queries = (int2 *)(base + mask_extents->queries);
    a->mask_extents.query_extents = (int4 *)(base + mask_extents->query_extents);
    a->mask_extents.q_pad = (int32_t)mask_extents->q_pad;
    a->mask_extents.kv_pad = (int32_t)mask_extents->kv_pad;
    a->ldq = args->ldq;
    a->ldk = args->ldk;
    a->ldv = args->ldv;
    a->kv_stride = args->kv_stride;
    a->B = (int32_t)args->B;
    a->q_len = (int32_t)args->q_len;
    a->kv_len = (int32_t)args->kv_len;
    a->H = (int32_t)args->H;
    a->G = (int32_t)args->G;
    a->D = (int32_t)args->D;
    a->scale = args->scale;
    a->cap = args->cap;
    a->dtype = args->dtype;
}

/* Sets the dropout members of the kernel's arguments. HD_INVALID: no samples or no step state, or p
 * outside [0, 1). */
static inline enum hd_status attention_dropout(const char *kernel, float p, uint64_t key,
                                               const struct hd_step_state *block,
                                               const int32_t *sample, int64_t first_head,
                                               struct attention *a)
{
    if (!block || !sample)
        return hd_err(HD_INVALID, "%s: dropout needs the samples of the rows and the step block",
                      kernel);
    a->sample = sample;
    a->first_head = (int32_t)first_head;
    return drop_of(kernel, key, block, p, &a->drop);
}

/* Returns the number of valid keys of sequence b. */
static __device__ __forceinline__ int attention_key_count(const struct attention *a, int b)
{
    if (!a->kv_filled || a->kv_filled[b] >= a->kv_len)
        return a->kv_len;
    return a->kv_filled[b] > 0 ? a->kv_filled[b] : 0;
}

/* Returns the slot of the key/value cache that has the keys of sequence b. */
static __device__ __forceinline__ int64_t attention_slot(const struct attention *a, int b)
{
    return a->kv_slot ? a->kv_slot[b] : b;
}

/* Returns whether the GENERAL variant of a kernel is needed: slopes, dropout, or a scale that is not
 * positive (which would reverse the order of scores). */
static inline bool attention_has_extras(const struct attention *a)
{
    return a->slopes || a->sample || !(a->scale > 0);
}

/* Returns whether the tiled kernels compute these scores: capped ones only without dropout and with
 * a positive scale, so that the variant for a cap needs no registers for the others' extras. */
template <typename ARGS>
static inline bool attention_scores_are_tiled(const ARGS *args)
{
    return !(args->cap > 0) || (args->dropout == 0 && args->scale > 0);
}

/* ---- Device: the largest score ---- */

/* Raises a head's top score to the largest one of a warp, whose lanes all call it. What is not
 * negative is ordered as its bits are. */
static __device__ __forceinline__ void attention_raise_top_score(const struct attention_forward *f,
                                                                 int head, float most)
{
    if (!f->top_score)
        return;
    for (int distance = ATTENTION_WARP / 2; distance > 0; distance /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
    if (threadIdx.x % ATTENTION_WARP == 0 && most > 0)
        (void)atomicMax((unsigned *)(f->top_score + head), __float_as_uint(most));
}

/* ---- Device: extremes and the iteration over tiles ---- */

/* How many of a tile's (query, key) pairs are visible. */
enum attention_cover { ATTENTION_NOTHING, ATTENTION_SOME, ATTENTION_ALL };

/* The extents of a tile smaller than a granule (32 rows) are those of its granule. */

static __device__ __forceinline__ enum attention_cover attention_cover_of(int4 queries, int2 keys)
{
    if (keys.x > queries.w || keys.y < queries.x)
        return ATTENTION_NOTHING;
    return keys.y <= queries.z && keys.x >= queries.y ? ATTENTION_ALL : ATTENTION_SOME;
}

template <int TILE>
static __device__ __forceinline__ int2 attention_key_extent(const int2 *extents, int tile)
{
    int2 e = extents[tile * TILE / ATTENTION_GRANULE];

#pragma unroll
    for (int i = 1; i < TILE / ATTENTION_GRANULE; i++) {
        const int2 next = extents[tile * TILE / ATTENTION_GRANULE + i];

        e.x = next.x < e.x ? next.x : e.x;
        e.y = next.y > e.y ? next.y : e.y;
    }
    return e;
}

template <int TILE>
static __device__ __forceinline__ int4 attention_query_extent(const int4 *extents, int tile)
{
    int4 e = extents[tile * TILE / ATTENTION_GRANULE];

#pragma unroll
    for (int i = 1; i < TILE / ATTENTION_GRANULE; i++) {
        const int4 next = extents[tile * TILE / ATTENTION_GRANULE + i];

        e.x = next.x < e.x ? next.x : e.x;
        e.y = next.y > e.y ? next.y : e.y;
        e.z = next.z < e.z ? next.z : e.z;
        e.w = next.w > e.w ? next.w : e.w;
    }
    return e;
}

/* Yields, in order, the tiles (of keys or of queries) that have a visible pair with the block's
 * own rows. 32 tiles are tested at a time, one per lane; every warp of a block gets the same
 * result. The extremes of the block's own rows are in shared memory, to save registers.
 */
struct attention_tile_iterator {
    int base;
    /* bit masks of 32 tiles, the first of them `base`: seen: still to visit; whole: need no masking
     */
    uint32_t seen, whole;
};

static __device__ __forceinline__ struct attention_tile_iterator attention_tile_begin(void)
{
    struct attention_tile_iterator iterator;

    iterator.base = -ATTENTION_WARP;
    iterator.seen = iterator.whole = 0;
    return iterator;
}

static __device__ __forceinline__ void attention_tile_peek(struct attention_tile_iterator *iterator,
                                                           enum attention_cover cover)
{
    iterator->seen = __ballot_sync(0xffffffffu, cover != ATTENTION_NOTHING);
    iterator->whole = __ballot_sync(0xffffffffu, cover == ATTENTION_ALL);
}

/* Returns the next step of the iteration over visible tiles, encoded as 2 * tile, plus 1 if no pair of
 * the tile needs masking. */
static __device__ __forceinline__ int attention_tile_take(struct attention_tile_iterator *iterator)
{
    const int bit = __ffs((int)iterator->seen) - 1;

    iterator->seen &= iterator->seen - 1;
    return (iterator->base + bit) * 2 + (int)(iterator->whole >> bit & 1);
}

static __device__ __forceinline__ int attention_step_tile(int step)
{
    return step / 2;
}

static __device__ __forceinline__ bool attention_step_is_whole(int step)
{
    return step % 2;
}

/* Returns the step to the next tile of sequence b's keys that the queries with these extremes see;
 * -1: none. */
template <int TILE>
static __device__ __forceinline__ int attention_next_keys(struct attention_tile_iterator *iterator,
                                                          const struct attention *a, int b,
                                                          const int4 *queries)
{
    const int tiles = (a->kv_len + TILE - 1) / TILE;

    while (!iterator->seen) {
        enum attention_cover cover = ATTENTION_NOTHING;
        int mine;

        iterator->base += ATTENTION_WARP;
        if (iterator->base >= tiles)
            return -1;
        mine = iterator->base + (int)(threadIdx.x % ATTENTION_WARP);
        if (mine < tiles)
            cover = attention_cover_of(
                *queries, attention_key_extent<TILE>(
                              a->mask_extents.key_extents +
                                  (int64_t)b * (a->mask_extents.kv_pad / ATTENTION_GRANULE),
                              mine));
        attention_tile_peek(iterator, cover);
    }
    return attention_tile_take(iterator);
}

/* Returns the step to the next tile of sequence b's queries that see the keys with these extremes;
 * the iteration is repeated for each head up to `last_head`. -1: none. */
template <int TILE>
static __device__ __forceinline__ int
attention_next_queries(struct attention_tile_iterator *iterator, const struct attention *a, int b,
                       const int2 *keys, int *head, int last_head)
{
    const int tiles = (a->q_len + TILE - 1) / TILE;

    while (!iterator->seen) {
        enum attention_cover cover = ATTENTION_NOTHING;
        int mine;

        iterator->base += ATTENTION_WARP;
        if (iterator->base >= tiles) {
            if (*head == last_head)
                return -1;
            (*head)++;
            iterator->base = 0;
        }
        mine = iterator->base + (int)(threadIdx.x % ATTENTION_WARP);
        if (mine < tiles)
            cover =
                attention_cover_of(attention_query_extent<TILE>(
                                       a->mask_extents.query_extents +
                                           (int64_t)b * (a->mask_extents.q_pad / ATTENTION_GRANULE),
                                       mine),
                                   *keys);
        attention_tile_peek(iterator, cover);
    }
    return attention_tile_take(iterator);
}

/* Tile, sequence and head of a thread block. Blocks start in the order of their numbers. The last
 * queries, which see most keys with a causal mask, come first for all heads, so that short blocks
 * fill the gaps at the end. Only the heads of one L2 group run at the same time, so that the rows
 * that their blocks share stay in L2. Calculated by list scheduling on the 264 block slots of an
 * H100 (12 heads of 64 channels, 16 sequences of 1024): multiprocessors are busy 97% of the time;
 * with one head after the other, longest block first, 84%. */
struct attention_block {
    int tile, head, b;
};
static __device__ __forceinline__ struct attention_block
attention_block_of(const struct attention *a, int tiles, int heads, unsigned number)
{
    const unsigned units = (unsigned)(heads * a->B), l2_group = (unsigned)a->l2_group;
    const unsigned first = number / (l2_group * (unsigned)tiles) * l2_group;
    const unsigned count = units - first < l2_group ? units - first : l2_group;
    const unsigned in = number % (l2_group * (unsigned)tiles), unit = first + in % count;
    struct attention_block block;

    block.tile = tiles - 1 - (int)(in / count);
    block.head = (int)(unit % (unsigned)heads);
    block.b = (int)(unit / (unsigned)heads);
    return block;
}

/* Returns the distance between a query and a key by which ALiBi multiplies the head's slope. */
static __device__ __forceinline__ float attention_distance(int32_t query, int32_t key)
{
    return (float)(query - key);
}

static __device__ __forceinline__ bool attention_sees(int2 query, int32_t key)
{
    return key >= query.x && key <= query.y;
}

/* Returns the dropout factor of one attention weight: 0 or 1 / (1 - p). */
static __device__ __forceinline__ float attention_stays(const struct cuda_drop &drop,
                                                        uint64_t step_key, int32_t key,
                                                        int32_t index, int head, int32_t sample)
{
    const uint4 words =
        drop_words(step_key, (uint32_t)key / 4, (uint32_t)index, (uint32_t)head, (uint32_t)sample);

    return drop_factor(drop, philox_word(words, (uint32_t)key % 4));
}

#endif

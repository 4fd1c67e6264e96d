/* attention: forward, and the kernel that computes which keys each query sees. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cudnn.h"

enum hd_status attention_check(const char *kernel, enum hd_dtype dtype, int64_t H, int64_t G,
                               int64_t D, int64_t blocks)
{
    if (dtype != HD_F32 && dtype != HD_BF16 && dtype != HD_F16)
        return hd_err(HD_UNSUPPORTED, "%s: the cuda backend has no kernel for %s", kernel,
                      hd_dtype_name(dtype));
    if (D < 8 || D % 8 || D > HD_COSTS_ATTENTION_D_MAX)
        return hd_err(HD_UNSUPPORTED,
                      "%s: the head width is %lld; the cuda backend takes multiples of 8 up to %d",
                      kernel, (long long)D, HD_COSTS_ATTENTION_D_MAX);
    if (G < 1 || H % G)
        return hd_err(HD_INVALID, "%s: %lld key/value heads do not divide %lld query heads", kernel,
                      (long long)G, (long long)H);
    if (blocks > INT32_MAX)
        return hd_err(
            HD_UNSUPPORTED,
            "%s: %lld blocks of rows exceed the size of a grid; use a smaller micro-batch", kernel,
            (long long)blocks);
    return HD_OK;
}

enum hd_status attention_check_scores(const char *kernel, float cap, bool slopes, int64_t chunk,
                                      bool causal)
{
    if (!(cap >= 0) || (cap > 0 && slopes))
        return hd_err(
            HD_INVALID,
            "%s: a cap of %g on scores; it must be positive, and not be used together with "
            "ALiBi slopes",
            kernel, (double)cap);
    if (chunk < 0 || (chunk > 0 && !causal))
        return hd_err(HD_INVALID, "%s: chunks of %lld rows need a causal mask", kernel,
                      (long long)chunk);
    return HD_OK;
}

/* ---- Visible keys: reads the indices and bounds once, writes 8 bytes per query and 4 per key;
 * takes some microseconds, mostly for the launch ---- */

enum { MASK_EXTENTS_WARPS = 4 };

struct mask_extents_task {
    struct attention_mask_extents mask_extents;
    const int32_t *q_index, *kv_index, *q_bound, *kv_filled, *kv_slot;
    int64_t kv_stride;
    int32_t B, q_len, kv_len, window; /* window: number of keys that a query sees; 0: no window */
    int32_t chunk;                    /* length of a chunk; 0: no chunks */
    bool causal;
};

static __device__ __forceinline__ int32_t warp_least(int32_t x)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        const int32_t other = __shfl_xor_sync(0xffffffffu, x, distance);

        x = other < x ? other : x;
    }
    return x;
}

static __device__ __forceinline__ int32_t warp_most(int32_t x)
{
    return ~warp_least(~x);
}

static __device__ void write_keys(const struct mask_extents_task *t, int b, int granule, int lane)
{
    const struct attention_mask_extents *s = &t->mask_extents;
    const int key = granule * ATTENTION_GRANULE + lane;
    int32_t count = t->kv_len, index = ATTENTION_NO_KEY;
    int2 extent;

    if (t->kv_filled && t->kv_filled[b] < count)
        count = t->kv_filled[b];
    if (key < count)
        index = t->kv_index[(t->kv_slot ? t->kv_slot[b] : b) * t->kv_stride + key];
    s->keys[(int64_t)b * s->kv_pad + key] = index;
    extent.x = warp_least(index);
    extent.y = warp_most(index);
    if (lane == 0)
        s->key_extents[(int64_t)b * (s->kv_pad / ATTENTION_GRANULE) + granule] = extent;
}

static __device__ void write_queries(const struct mask_extents_task *t, int b, int granule,
                                     int lane)
{
    const struct attention_mask_extents *s = &t->mask_extents;
    const int query = granule * ATTENTION_GRANULE + lane;
    const bool is_there = query < t->q_len;
    int2 sees = make_int2(INT32_MAX, INT32_MIN); /* empty range: sees no key */
    int4 extent;

    if (is_there) {
        const int64_t row = (int64_t)b * t->q_len + query;
        const int32_t index = t->q_index[row];

        sees.x = t->q_bound ? t->q_bound[row] : INT32_MIN;
        if (t->chunk > 0) {
            const int32_t start = t->q_bound ? t->q_bound[row] : 0;

            sees.x = start + (index - start) / t->chunk * t->chunk;
        }
        if (t->window > 0 && index - t->window + 1 > sees.x)
            sees.x = index - t->window + 1;
        sees.y = t->causal ? index : ATTENTION_ALL_KEYS;
    }
    s->queries[(int64_t)b * s->q_pad + query] = sees;
    /* padding does not widen the extremes of its granule */
    extent.x = warp_least(is_there ? sees.x : INT32_MAX);
    extent.y = warp_most(is_there ? sees.x : INT32_MIN);
    extent.z = warp_least(is_there ? sees.y : INT32_MAX);
    extent.w = warp_most(is_there ? sees.y : INT32_MIN);
    if (lane == 0)
        s->query_extents[(int64_t)b * (s->q_pad / ATTENTION_GRANULE) + granule] = extent;
}

/* Computes the mask extents of one granule (32 rows) per warp: first the granules of a sequence's
 * keys, then those of its queries. */
static __global__ void mask_extents_kernel(struct mask_extents_task t)
{
    const int key_granules = t.mask_extents.kv_pad / ATTENTION_GRANULE;
    const int granules = key_granules + t.mask_extents.q_pad / ATTENTION_GRANULE;
    const int64_t mine = (int64_t)blockIdx.x * MASK_EXTENTS_WARPS + threadIdx.x / ATTENTION_WARP;
    const int b = (int)(mine / granules), granule = (int)(mine % granules);
    const int lane = (int)threadIdx.x % ATTENTION_WARP;

    if (b >= t.B)
        return;
    if (granule < key_granules)
        write_keys(&t, b, granule, lane);
    else
        write_queries(&t, b, granule - key_granules, lane);
}

enum hd_status attention_launch_mask_extents(struct hd_cuda_stream *stream,
                                             const struct attention_mask_extents *mask_extents,
                                             const int32_t *q_index, const int32_t *kv_index,
                                             const int32_t *q_bound, const int32_t *kv_filled,
                                             const int32_t *kv_slot, int64_t B, int64_t q_len,
                                             int64_t kv_len, int64_t kv_stride, int64_t window,
                                             int64_t chunk, bool causal)
{
    const int64_t granules = B * ((mask_extents->q_pad + mask_extents->kv_pad) / ATTENTION_GRANULE);
    struct mask_extents_task t = {};

    t.mask_extents = *mask_extents;
    t.q_index = q_index;
    t.kv_index = kv_index;
    t.q_bound = q_bound;
    t.kv_filled = kv_filled;
    t.kv_slot = kv_slot;
    t.kv_stride = kv_stride;
    t.B = (int32_t)B;
    t.q_len = (int32_t)q_len;
    t.kv_len = (int32_t)kv_len;
    t.window = window <= 0 ? 0 : window < INT32_MAX ? (int32_t)window : INT32_MAX;
    t.chunk = chunk < INT32_MAX ? (int32_t)chunk : INT32_MAX;
    t.causal = causal;
    return HD_LAUNCH(stream, mask_extents_kernel,
                     dim3((unsigned)((granules + MASK_EXTENTS_WARPS - 1) / MASK_EXTENTS_WARPS)),
                     dim3(MASK_EXTENTS_WARPS * ATTENTION_WARP), 0, t);
}

/* ---- Forward ---- */

static bool forward_is_tiled(const struct hd_attention_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    return hd_costs_attention_is_tiled(a->dtype, a->D) && attention_scores_are_tiled(a) &&
           attention_rows_are_aligned(a->out, a->ldo, e) &&
           attention_rows_are_aligned(a->q, a->ldq, e) &&
           attention_rows_are_aligned(a->k, a->ldk, e) &&
           attention_rows_are_aligned(a->v, a->ldv, e);
}

extern "C" enum hd_status hd_cuda_attention_forward(struct hd_cuda_stream *cuda,
                                                    const struct hd_attention_forward_args *args)
{
    const struct hd_costs_attention_mask_extents mask_extents =
        hd_costs_attention_forward_mask_extents(args);
    struct attention_forward f = {};
    bool done;
    enum hd_status st =
        attention_check("attention_forward", args->dtype, args->H, args->G, args->D,
                        args->B * args->H * ((args->q_len + args->kv_len) / ATTENTION_GRANULE + 8));

    if (!st)
        st = attention_check_scores("attention_forward", args->cap, args->slopes != NULL,
                                    args->chunk, args->causal);
    if (!st && args->dropout != 0)
        st = attention_dropout("attention_forward", args->dropout, args->dropout_key, args->block,
                               args->sample, args->first_head, &f.a);
    if (st || args->B * args->H * args->q_len == 0)
        return st;
    st = hd_cuda_cudnn_forward(cuda, args, &done);
    if (st || done)
        return st;
    attention_set(&f.a, args, &mask_extents);
    f.out = args->out;
    f.lse = args->lse;
    f.top_score = args->top_score;
    f.ldo = args->ldo;
    f.a.kv_filled = args->kv_filled;
    f.a.kv_slot = args->kv_slot;
    st = attention_launch_mask_extents(cuda, &f.a.mask_extents, args->q_index, args->kv_index,
                                       args->q_bound, args->kv_filled, args->kv_slot, args->B,
                                       args->q_len, args->kv_len, args->kv_stride, args->window,
                                       args->chunk, args->causal);
    if (st)
        return st;
    if (!forward_is_tiled(args))
        return attention_forward_plain(cuda, &f);
#if defined(HD_HOPPER) || defined(HD_CUDASIM)
    if (hd_costs_attention_is_by_wgmma(&cuda->cuda->traits) && attention_forward_hopper_takes(&f.a))
        return attention_forward_hopper(cuda, &f);
#endif
    return args->dtype == HD_BF16 ? attention_forward_tiled_bf16(cuda, &f)
                                  : attention_forward_tiled_f16(cuda, &f);
}

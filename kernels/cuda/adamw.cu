/* adamw: the AdamW update of a flat shard, with moments in fp32 or in blocks of 8-bit codes.
 *
 * Bytes: 28 N, and 2 N or 4 N for the copy: weight, m and v are read and written once, the gradient
 * is read. Each thread has two packs of 16 bytes of each of the four inputs in flight: 128 bytes
 * times 768 threads per multiprocessor, five times what 3.3 TB/s at 700 ns latency need. Some 40
 * instructions per element take a fifth of the time of the bytes. On an H100 94% of a copy's rate,
 * with moments of 8 bits 50%.
 *
 * Each block computes the factors of the step once; each thread searches its first range and walks
 * on from there. Every element is computed by the same operations, without compiler-made fused
 * multiply-adds, so no result depends on sharding or alignment.
 *
 * With moments in blocks a thread has 8 neighbouring elements, and the lanes that have a block find
 * its largest elements by a butterfly. All lanes take part in every shuffle, because neighbours may
 * have blocks of other sizes. */
#include "kernels/cuda/moments.cuh"

enum { ADAMW_THREADS = 256, ADAMW_RESIDENT = 3, ADAMW_UNROLL = 2 };

/* returns base^t, by squaring */
static __device__ double power(double base, int64_t t)
{
    double result = 1;

    for (; t > 0; t /= 2) {
        result *= t % 2 ? base : 1;
        base *= base;
    }
    return result;
}

/* Factors of one optimizer step, computed once per block. */
struct cuda_update {
    float b1, b2, rest1, rest2, correction1, correction2, eps, grad_factor, lr, weight_decay;
};

static __device__ __forceinline__ struct cuda_update update_of(const struct hd_step_state *block)
{
    struct cuda_update u;

    u.b1 = block->beta1;
    u.b2 = block->beta2;
    u.rest1 = 1.0f - u.b1;
    u.rest2 = 1.0f - u.b2;
    u.correction1 = (float)(1.0 / (1.0 - power((double)u.b1, block->update)));
    u.correction2 = (float)(1.0 / (1.0 - power((double)u.b2, block->update)));
    u.eps = block->adam_eps;
    u.grad_factor = block->grad_factor;
    u.lr = block->lr;
    u.weight_decay = block->weight_decay;
    return u;
}

/* Update range (hd_update_range) of a thread's current element, with its learning rate and weight
 * decay. */
struct adamw_place {
    int64_t range, end;
    float lr, decay;
};

static __device__ __forceinline__ void
place_take(struct adamw_place *p, const struct cuda_update &u, const struct hd_update_range *ranges)
{
    const struct hd_update_range *range = &ranges[p->range];

    p->end = range->end;
    p->lr = __fmul_rn(u.lr, range->lr_scale);
    p->decay = __fmul_rn(u.weight_decay, range->decay);
}

/* Advances p to the first update range, from p->range on, that ends after the element. */
static __device__ __forceinline__ void place_seek(struct adamw_place *p,
                                                  const struct cuda_update &u,
                                                  const struct hd_update_range *ranges,
                                                  int64_t range_count, int64_t element)
{
    int64_t high = range_count - 1;

    while (p->range < high) {
        const int64_t middle = p->range + (high - p->range) / 2;

        if (ranges[middle].end <= element)
            p->range = middle + 1;
        else
            high = middle;
    }
    place_take(p, u, ranges);
}

/* Updates one weight with its moments. The approximate root and quotient have an error of a few
 * units in the last place of the step, which is small relative to the weight. The exact versions
 * have slow paths that cost registers. */
static __device__ __forceinline__ void update_one(const struct cuda_update &u,
                                                  const struct adamw_place &p, float &weight,
                                                  float &m, float &v, float grad)
{
    const float g = __fmul_rn(grad, u.grad_factor);
    float mean_square, root, step;

    m = __fmaf_rn(m, u.b1, __fmul_rn(g, u.rest1));
    v = __fmaf_rn(v, u.b2, __fmul_rn(__fmul_rn(g, g), u.rest2));
    mean_square = __fmul_rn(v, u.correction2);
    /* avoids 0 * inf: the root of 0 is 0 */
    root = __fmul_rn(mean_square, rsqrtf(fmaxf(mean_square, 0x1p-126f)));
    step = __fdividef(__fmul_rn(m, u.correction1), __fadd_rn(root, u.eps));
    weight = __fmaf_rn(-p.lr, __fmaf_rn(p.decay, weight, step), weight);
}

/* Arguments of the AdamW kernel with fp32 moments; its functions update a pack that begins at
 * element `at`. */
template <typename Copy>
struct adamw {
    float *weight, *m, *v;
    Copy *copy; /* low-precision copy of the weights; NULL: none */
    const float *grad;
    const struct hd_step_state *block;
    const struct hd_update_range *ranges;
    int64_t N, range_count;

    /* Updates a pack of weights that lies within the update range p. */
    template <int V>
    __device__ __forceinline__ void finish(const struct cuda_update &u, const struct adamw_place &p,
                                           int64_t at, pack<float, V> w_, pack<float, V> m_,
                                           pack<float, V> v_, pack<float, V> g_) const
    {
        pack<Copy, V> rounded;

#pragma unroll
        for (int j = 0; j < V; j++) {
            update_one(u, p, w_.at[j], m_.at[j], v_.at[j], g_.at[j]);
            rounded.at[j] = from_float<Copy>(w_.at[j]);
        }
        pack_store(m + at, m_);
        pack_store(v + at, v_);
        pack_store(weight + at, w_);
        if (copy)
            pack_store(copy + at, rounded);
    }

    /* Updates the weights [at, end) one by one: packs that cross the end of an update range, and
     * the remainder. */
    __device__ __forceinline__ void finish_each(const struct cuda_update &u, struct adamw_place *p,
                                                int64_t at, int64_t end) const
    {
#pragma unroll 1
        for (; at < end; at++) {
            if (at >= p->end)
                place_seek(p, u, ranges, range_count, at);
            finish<1>(u, *p, at, pack_load<1>(weight + at), pack_load<1>(m + at),
                      pack_load<1>(v + at), pack_load<1>(grad + at));
        }
    }
};

template <typename Copy, int V>
static __global__ void __launch_bounds__(ADAMW_THREADS, ADAMW_RESIDENT)
    adamw_flat(struct adamw<Copy> a)
{
    HD_SHARED(struct cuda_update, shared, 1);
    const struct cuda_update &u = shared[0];
    const int64_t threads = (int64_t)gridDim.x * ADAMW_THREADS, packs = a.N / V;
    const int64_t first = (int64_t)blockIdx.x * ADAMW_THREADS + threadIdx.x;
    struct adamw_place p = {0, 0, 0, 0};

    if (a.block->skip_update)
        return;
    if (threadIdx.x == 0)
        shared[0] = update_of(a.block);
    __syncthreads();

    for (int64_t i = first; i < packs; i += ADAMW_UNROLL * threads) {
        pack<float, V> w_[ADAMW_UNROLL], m_[ADAMW_UNROLL], v_[ADAMW_UNROLL], g_[ADAMW_UNROLL];

#pragma unroll
        for (int k = 0; k < ADAMW_UNROLL; k++)
            if (i + k * threads < packs) {
                g_[k] = pack_load<V>(a.grad + (i + k * threads) * V);
                m_[k] = pack_load<V>(a.m + (i + k * threads) * V);
                v_[k] = pack_load<V>(a.v + (i + k * threads) * V);
                w_[k] = pack_load<V>(a.weight + (i + k * threads) * V);
            }
#pragma unroll
        for (int k = 0; k < ADAMW_UNROLL; k++)
            if (i + k * threads < packs) {
                const int64_t at = (i + k * threads) * V;

                if (at >= p.end)
                    place_seek(&p, u, a.ranges, a.range_count, at);
                if (at + V <= p.end)
                    a.template finish<V>(u, p, at, w_[k], m_[k], v_[k], g_[k]);
                else
                    a.finish_each(u, &p, at, at + V);
            }
    }
    if (first == 0) {
        p.range = 0;
        p.end = 0;
        a.finish_each(u, &p, packs * V, a.N);
    }
}

/* ---- 8-bit moments in blocks ---- */

/* Updates a thread's weights from element `at` on. */
template <typename Copy>
static __device__ __forceinline__ void
update_own(const struct adamw<Copy> &a, const struct cuda_update &u, const struct adamw_place &p,
           int64_t at, struct own_moment *m, struct own_moment *v)
{
#pragma unroll
    for (int h = 0; h < MOMENTS_OWN; h += MOMENTS_HALF) {
        pack<float, MOMENTS_HALF> w = pack_load<MOMENTS_HALF>(a.weight + at + h);
        const pack<float, MOMENTS_HALF> g = pack_load<MOMENTS_HALF>(a.grad + at + h);
        pack<Copy, MOMENTS_HALF> rounded;

#pragma unroll
        for (int j = 0; j < MOMENTS_HALF; j++) {
            update_one(u, p, w.at[j], m->at[h + j], v->at[h + j], g.at[j]);
            rounded.at[j] = from_float<Copy>(w.at[j]);
        }
        pack_store(a.weight + at + h, w);
        if (a.copy)
            pack_store(a.copy + at + h, rounded);
    }
}

template <typename Copy>
static __global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_blocks(struct adamw<Copy> a, char *m, char *v)
{
    HD_SHARED(struct cuda_update, shared, 1);
    HD_SHARED(float, values_of_m, 256);
    HD_SHARED(float, values_of_v, 256);
    const struct cuda_update &u = shared[0];
    const int64_t threads = (int64_t)gridDim.x * ADAMW_THREADS, lane = threadIdx.x % 32;
    struct adamw_place p = {0, 0, 0, 0};

    if (a.block->skip_update)
        return;
    if (threadIdx.x == 0)
        shared[0] = update_of(a.block);
    values_of_m[threadIdx.x] = hd_encoding_value((uint8_t)threadIdx.x, HD_MAP_SIGNED);
    values_of_v[threadIdx.x] = hd_encoding_value((uint8_t)threadIdx.x, HD_MAP_UNSIGNED);
    __syncthreads();

    /* `at` minus the lane's offset is equal for all lanes of a warp, so all lanes leave the loop
     * together. */
    for (int64_t at = ((int64_t)blockIdx.x * ADAMW_THREADS + threadIdx.x) * MOMENTS_OWN;
         at - lane * MOMENTS_OWN < a.N; at += threads * MOMENTS_OWN) {
        const bool used = at < a.N;
        const struct hd_update_range *range = a.ranges;
        struct own_moment own_m, own_v;
        float largest = 0, smallest = 0, largest_v = 0, smallest_v = 0;
        int64_t lanes = 0;

        if (used) {
            if (at >= p.end)
                place_seek(&p, u, a.ranges, a.range_count, at);
            range = &a.ranges[p.range];
            lanes = range->block / MOMENTS_OWN;
            own_m.load(m + range->moments, range, at - range->begin, values_of_m);
            own_v.load(v + range->moments, range, at - range->begin, values_of_v);
            update_own(a, u, p, at, &own_m, &own_v);
            own_m.extremes(&largest, &smallest);
            own_v.extremes(&largest_v, &smallest_v);
        }
        largest = lanes_max(largest, lanes);
        smallest = -lanes_max(-smallest, lanes);
        largest_v = lanes_max(largest_v, lanes);
        if (used) {
            own_m.store(m + range->moments, range, at - range->begin, HD_MAP_SIGNED, largest,
                        smallest);
            own_v.store(v + range->moments, range, at - range->begin, HD_MAP_UNSIGNED, largest_v,
                        0);
        }
    }
}

template <typename Copy>
static enum hd_status adamw_launch(struct hd_cuda_stream *s, const struct hd_adamw_args *args)
{
    constexpr int V = 4;
    const struct adamw<Copy> a = {
        args->weight, (float *)args->m, (float *)args->v,
            (Copy *)args->copy, args->grad, args->block, args->ranges, args->N, args->range_count
    };
    const bool wide = pack_fits<float, V>(a.weight, 0) && pack_fits<float, V>(a.m, 0) &&
                      pack_fits<float, V>(a.v, 0) && pack_fits<float, V>(a.grad, 0) &&
                      pack_fits<Copy, V>(a.copy, 0);
    const int64_t packs = divide_up(a.N, wide ? V : 1);
    const dim3 grid(grid_of(s, divide_up(packs, ADAMW_THREADS * ADAMW_UNROLL), ADAMW_RESIDENT));
    const dim3 grid_in_blocks(
        grid_of(s, divide_up(a.N, ADAMW_THREADS * MOMENTS_OWN), ADAMW_RESIDENT));

    if (args->moment_bytes && !wide)
        return hd_err(HD_INVALID, "adamw: moments in blocks need tensors aligned to 16 bytes");
    if (args->moment_bytes)
        return HD_LAUNCH(s, (adamw_blocks<Copy>), grid_in_blocks, dim3(ADAMW_THREADS), 0, a,
                         (char *)args->m, (char *)args->v);
    if (wide)
        return HD_LAUNCH(s, (adamw_flat<Copy, V>), grid, dim3(ADAMW_THREADS), 0, a);
    return HD_LAUNCH(s, (adamw_flat<Copy, 1>), grid, dim3(ADAMW_THREADS), 0, a);
}

extern "C" enum hd_status hd_cuda_adamw(struct hd_cuda_stream *s, const struct hd_adamw_args *a)
{
    if (a->N == 0 || a->range_count == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->copy ? a->copy_dtype : HD_F32, T, return adamw_launch<T>(s, a));
}

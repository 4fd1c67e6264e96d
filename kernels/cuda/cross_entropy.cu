/* cross_entropy: softmax cross-entropy of rows of logits and its gradient, which may be in place;
 * also for a vocabulary that is sharded over ranks.
 *
 * One block per row. The first pass reads the row, keeps a running maximum and a sum of
 * exponentials per thread, and stores the row in shared memory; the second pass computes the
 * gradient from there. So R V e bytes are read and R Vp e written, which is the minimum. The part
 * of a row that does not fit into shared memory (with two blocks per multiprocessor: 112 KB on
 * compute capability 9.0, 57k bf16 logits) is read again, from L2: of 152k bf16 logits that is 63%
 * of the row, 50 MB for all rows on the device at a time. Two exponentials per logit use some 40%
 * of the special function units in the time of the bytes (bf16). Packs of 16 bytes are aligned in
 * memory, not relative to the row, so 50257 columns are as fast as 50304; the row's ends are
 * processed element by element.
 *
 * Order of additions: a thread adds its packs in ascending order, threads as in block.cuh; losses
 * are added in double, those of rows t, t + 1024, ... per thread, then over threads. The same shape
 * gives the same bits. The row kernels read the step state; only add_losses writes it.
 *
 * On an H100 76% of a copy's rate with 50k columns, 68% with 151k. */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/logits.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/pack.cuh"

enum { ROW_THREADS = 512, ROW_RESIDENT = 2, ROW_UNROLL = 3, LOSS_THREADS = 1024 };

template <enum cuda_map_kind M, typename T>
struct map_logits {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
    };
    T *logits;
    int64_t N;
    struct cuda_map m;

    __device__ int64_t rows() const
    {
        return N;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t, int64_t i) const
    {
        x.x = pack_load<V>(logits + i);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t i) const
    {
        pack<T, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(mapped<M, T>(to_float(x.x.at[j]), m));
        pack_store(logits + i, y);
    }
};

template <enum cuda_map_kind M>
static enum hd_status map_logits_launch(struct hd_cuda_stream *s,
                                        const struct hd_map_logits_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct map_logits<M, T> op = {
            (T *)a->logits, a->N, map_of(a->map)
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->logits)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

extern "C" enum hd_status hd_cuda_map_logits(struct hd_cuda_stream *s,
                                             const struct hd_map_logits_args *a)
{
    HD_WITH_MAP(a->map, M, return map_logits_launch<M>(s, a));
}

/* ---- Rows ---- */

/* A row of logits in aligned packs of V elements: column 0 is element `shift` of the first pack. */
template <typename T, int V>
struct row {
    T *at;       /* address of column -shift, aligned to a pack */
    int shift;   /* elements before column 0 in the first pack, < V */
    int64_t end; /* one past the row's last element, relative to `at` */

    __device__ row(T *first, int64_t columns)
        : shift((int)(reinterpret_cast<uintptr_t>(first) / sizeof(T) % V))
    {
        at = first - shift;
        end = columns + shift;
    }
    __device__ bool is_whole(int64_t i) const
    {
        return i >= shift && i + V <= end;
    }
    __device__ bool has(int64_t i) const
    {
        return i >= shift && i < end;
    }
    __device__ int64_t packs() const
    {
        return (end + V - 1) / V;
    }
};

/* Loads the pack at element i of the row of logits (i is a multiple of V); -infinity for elements
 * outside the row. */
template <typename T, int V>
static __device__ __forceinline__ pack<T, V> row_load(const struct row<const T, V> &row, int64_t i)
{
    pack<T, V> x;

    if (row.is_whole(i))
        return pack_load<V>(row.at + i);
#pragma unroll
    for (int j = 0; j < V; j++)
        x.at[j] = row.has(i + j) ? row.at[i + j] : from_float<T>(-INFINITY);
    return x;
}

template <typename T, int V>
static __device__ __forceinline__ void row_store(const struct row<T, V> &row, int64_t i,
                                                 const pack<T, V> &x)
{
    if (row.is_whole(i)) {
        pack_store(row.at + i, x);
        return;
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        if (row.has(i + j))
            row.at[i + j] = x.at[j];
}

/* Running maximum and sum of exp(x - max) of a row; initially -infinity and 0. */
struct softmax {
    float max, sum;
};

/* replaces -inf, because -inf - -inf is NaN */
static __device__ __forceinline__ float finite_max(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

template <enum cuda_map_kind M, typename T, int V>
static __device__ __forceinline__ void softmax_add(struct softmax *s, const pack<T, V> &x,
                                                   const struct cuda_map &m)
{
    float max = s->max, base, sum = 0, y[V];

#pragma unroll
    for (int j = 0; j < V; j++) {
        y[j] = mapped<M, T>(to_float(x.at[j]), m);
        max = fmaxf(max, y[j]);
    }
    base = finite_max(max);
#pragma unroll
    for (int j = 0; j < V; j++)
        sum += exp_of<T>(y[j] - base);
    s->sum = s->sum * exp_of<T>(s->max - base) + sum;
    s->max = max;
}

/* Merges the running maxima and sums of all threads of the block. */
template <typename T>
static __device__ __forceinline__ struct softmax softmax_join(struct softmax s, float *shared)
{
    const float max = block_max(s.max, shared);

    s.sum = block_add(s.sum * exp_of<T>(s.max - finite_max(max)), shared);
    s.max = max;
    return s;
}

/* A pack as one word: unpacked only when it is needed, so that several loads can be in flight
 * (row_load waits for each load). */
template <typename T, int W>
struct raw_pack {
    using word = typename pack_word<sizeof(pack<T, W>)>::type;
    word w;

    __device__ __forceinline__ void load(const pack<T, W> *from)
    {
        w = *reinterpret_cast<const word *>(from);
    }
    __device__ __forceinline__ pack<T, W> get() const
    {
        pack<T, W> x;

        memcpy(&x, &w, sizeof x);
        return x;
    }
};

/* Computes maximum and sum of exponentials over the row's columns; packs below `kept` are stored in
 * `cache`. */
template <enum cuda_map_kind M, typename T, int W>
static __device__ __forceinline__ struct softmax
softmax_row(const struct row<const T, W> &row, const struct cuda_map &m, pack<T, W> *cache,
            int64_t kept, float *shared)
{
    const int64_t packs = row.packs(), threads = blockDim.x;
    struct softmax s = {-INFINITY, 0};

    for (int64_t i = threadIdx.x; i < packs; i += ROW_UNROLL * threads) {
        struct raw_pack<T, W> x[ROW_UNROLL];

#pragma unroll
        for (int u = 0; u < ROW_UNROLL; u++)
            if (row.is_whole((i + u * threads) * W))
                x[u].load(reinterpret_cast<const pack<T, W> *>(row.at + (i + u * threads) * W));
#pragma unroll
        for (int u = 0; u < ROW_UNROLL; u++)
            if (i + u * threads < packs) {
                const int64_t at = (i + u * threads) * W;
                const pack<T, W> y = row.is_whole(at) ? x[u].get() : row_load<T, W>(row, at);

                if (i + u * threads < kept)
                    cache[i + u * threads] = y;
                softmax_add<M>(&s, y, m);
            }
    }
    return softmax_join<T>(s, shared);
}

/* Values from which the gradient of a row of logits is computed, for mapped logits y: factor *
 * exp(y - max), minus `target_less` at the target, with a cap times its slope; 0 from column V
 * on. */
struct gradient {
    float max, factor, target_less;
    int64_t target; /* column of the target; negative: none */
    int64_t V;
    struct cuda_map m;
};

/* Returns the gradient of one logit, with `less` subtracted before the slope. */
template <enum cuda_map_kind M, typename T>
static __device__ __forceinline__ float gradient_at(const struct gradient &g, T logit, float less)
{
    const float y = mapped<M, T>(to_float(logit), g.m);
    const float d = exp_of<T>(y - g.max) * g.factor - less;

    return M == MAP_CAP ? d * cap_slope(y, g.m) : d;
}

template <enum cuda_map_kind M, typename T, int W>
static __device__ __forceinline__ pack<T, W> gradient_of(const struct gradient &g, pack<T, W> x,
                                                         int64_t column)
{
    pack<T, W> d;

    if (column + W <= g.V && (g.target < column || g.target >= column + W)) {
#pragma unroll
        for (int j = 0; j < W; j++)
            d.at[j] = from_float<T>(gradient_at<M>(g, x.at[j], 0.0f));
        return d;
    }
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float less = column + j == g.target ? g.target_less : 0.0f;

        d.at[j] = from_float<T>(column + j >= g.V ? 0.0f : gradient_at<M>(g, x.at[j], less));
    }
    return d;
}

/* Writes the gradient of a row of logits. A thread writes only packs that it has read, so out may
 * be inp. Both have the same `shift`. */
template <enum cuda_map_kind M, typename T, int W>
static __device__ __forceinline__ void
gradient_row(const struct row<T, W> &out, const struct row<const T, W> &inp,
             const pack<T, W> *cache, int64_t kept, const struct gradient &g)
{
    const int64_t packs = out.packs(), threads = blockDim.x;

    kept = kept < inp.packs() ? kept : inp.packs();
    for (int64_t i = threadIdx.x; i < packs; i += ROW_UNROLL * threads) {
        struct raw_pack<T, W> x[ROW_UNROLL];

#pragma unroll
        for (int u = 0; u < ROW_UNROLL; u++) {
            const int64_t at = (i + u * threads) * W;

            if (i + u * threads < kept)
                x[u].load(&cache[i + u * threads]);
            else if (inp.is_whole(at))
                x[u].load(reinterpret_cast<const pack<T, W> *>(inp.at + at));
        }
#pragma unroll
        for (int u = 0; u < ROW_UNROLL; u++)
            if (i + u * threads < packs) {
                const int64_t at = (i + u * threads) * W;
                const pack<T, W> y = i + u * threads < kept || inp.is_whole(at)
                                         ? x[u].get()
                                         : row_load<T, W>(inp, at);

                row_store(out, at, gradient_of<M, T, W>(g, y, at - out.shift));
            }
    }
}

template <typename T, int W>
static __device__ __forceinline__ void zero_row(const struct row<T, W> &out)
{
    pack<T, W> zero;

#pragma unroll
    for (int j = 0; j < W; j++)
        zero.at[j] = from_float<T>(0);
    for (int64_t i = threadIdx.x; i < out.packs(); i += blockDim.x)
        row_store(out, i * W, zero);
}

/* ---- Losses of rows that are not masked; -infinity marks a target outside the vocabulary ---- */

/* Returns the factor of the gradients of a loss with this record; null: the model's own loss. */
static __device__ __forceinline__ float record_factor(const double *record)
{
    return record ? (float)record[HD_FURTHER_FACTOR] : 1.0f;
}

/* Returns the loss of a row as the scratch has it: with a record its sign, which may be that of a
 * zero, marks a target with the largest logit; a loss is not below 0. */
static __device__ __forceinline__ double marked(double loss, bool hit)
{
    return hit ? -fabs(loss) : loss;
}

/* Returns the factor by which a z-loss multiplies the softmax in a row's gradient. */
static __device__ __forceinline__ float z_factor(float z, double log_z)
{
    return z > 0 ? (float)(1 + 2 * (double)z * log_z) : 1.0f;
}

/* Adds the losses to the record, if there is one, else to the block if `adds`. log_z: of each row,
 * with a z-loss; null: none. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    add_losses(struct hd_step_state *block, double *record, const double *losses,
               const double *log_z, const int32_t *target, int64_t R, bool adds)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    HD_SHARED(int64_t, shared_count, BLOCK_WARPS);
    double sum = 0, z_sum = 0;
    int64_t count = 0, hits = 0;
    int outside = 0;

#pragma unroll 4
    for (int64_t r = threadIdx.x; r < R; r += LOSS_THREADS)
        if (target[r] >= 0) {
            const double loss = losses[r];

            if (loss == -INFINITY) {
                outside = 1;
            } else {
                hits += signbit(loss) != 0;
                sum += record ? fabs(loss) : loss;
                z_sum += log_z ? log_z[r] * log_z[r] : 0;
                count++;
            }
        }
    sum = block_add(sum, shared);
    count = block_add(count, shared_count);
    hits = block_add(hits, shared_count);
    if (log_z)
        z_sum = block_add(z_sum, shared);
    outside = __syncthreads_or(outside);
    if (threadIdx.x > 0)
        return;
    if (record) {
        record[HD_FURTHER_LOSS] += sum;
        record[HD_FURTHER_TARGETS] += (double)count;
        record[HD_FURTHER_HITS] += (double)hits;
    } else if (adds) {
        block->loss_sum += sum;
        block->target_count += count;
        block->z_sum += z_sum;
    }
    if (outside)
        block->overflow = 1;
}

static enum hd_status add_losses_launch(struct hd_cuda_stream *s, struct hd_step_state *block,
                                        double *record, const void *scratch, bool has_z,
                                        const int32_t *target, int64_t R, bool adds)
{
    const double *losses = (const double *)scratch;

    return HD_LAUNCH(s, add_losses, dim3(1), dim3(LOSS_THREADS), 0, block, record, losses,
                     has_z ? losses + R : (const double *)nullptr, target, R, adds);
}

/* ---- Launching ---- */

/* Returns the block size for a row of `packs` packs of logits. */
static dim3 row_threads(int64_t packs)
{
    const int64_t threads = divide_up(divide_up(packs, ROW_UNROLL), 32) * 32;

    return dim3((unsigned)(threads < ROW_THREADS ? threads : (int64_t)ROW_THREADS));
}

/* Returns how much shared memory a block may use for its row of logits, bytes, if ROW_RESIDENT
 * blocks run on a multiprocessor: 112 KB on an H100, 80 on an A100, 48 on an L4. The system takes 1
 * KB per block, static arrays some more. */
static int64_t cache_bytes_max(const struct hd_backend *cuda)
{
    const int64_t bytes = cuda->shared_bytes_all / ROW_RESIDENT - 2 * 1024;

    return bytes < cuda->shared_bytes - 1024 ? bytes : cuda->shared_bytes - 1024;
}

/* Returns whether rows of a and b have the same `shift`, so that aligned packs fit both. */
template <typename T>
static bool rows_are_packs(const void *a, const void *b)
{
    return (uintptr_t)a % sizeof(T) == 0 && (!b || ((uintptr_t)a - (uintptr_t)b) % 16 == 0);
}

/* Returns the factor of a row's gradient, `unit`, times the scale of the map. */
template <enum cuda_map_kind M>
static __device__ __forceinline__ float unit_of(float unit, const struct hd_logit_map &map)
{
    return M == MAP_NONE || map.scale == 0 ? unit : unit * map.scale;
}

/* ---- One rank has all logits ---- */

template <enum cuda_map_kind M, typename T, int W>
static __global__ void __launch_bounds__(ROW_THREADS, ROW_RESIDENT)
    cross_entropy_rows(struct hd_cross_entropy_args a, struct cuda_map m, int64_t kept)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    HD_SHARED_DYNAMIC(unsigned char, dynamic);
    typedef pack<T, W> packed;
    packed *cache = reinterpret_cast<packed *>(dynamic);
    const int64_t r = blockIdx.x;
    const int32_t target = a.target[r];
    const T *logits = (const T *)a.logits + r * a.Vp;
    double *losses = (double *)a.scratch;
    struct gradient g;
    struct softmax s;
    const float unit = unit_of<M>(
        a.block->loss_scale * (a.weight ? a.weight[r] : 1.0f) * record_factor(a.record), a.map);
    float target_logit;
    double log_z;

    if (target < 0 || target >= a.V) {
        if (threadIdx.x == 0)
            losses[r] = -INFINITY; /* the loss of a masked row is never read */
        if (threadIdx.x == 0 && a.logp)
            a.logp[r] = 0;
        if (a.dlogits)
            zero_row<T, W>(row<T, W>((T *)a.dlogits + r * a.Vp, a.Vp));
        return;
    }
    target_logit = mapped<M, T>(to_float(logits[target]), m);
    s = softmax_row<M, T, W>(row<const T, W>(logits, a.V), m, cache, kept, shared);
    if (threadIdx.x == 0)
        losses[r] = marked(log((double)s.sum) + ((double)s.max - (double)target_logit),
                           a.record && target_logit >= s.max);
    if (threadIdx.x == 0 && a.logp)
        a.logp[r] = (float)-losses[r];
    log_z = a.z > 0 ? log((double)s.sum) + (double)s.max : 0;
    if (threadIdx.x == 0 && a.z > 0)
        losses[a.R + r] = log_z;
    if (!a.dlogits)
        return;
    g.max = s.max;
    g.factor = unit / s.sum * z_factor(a.z, log_z);
    g.target_less = unit;
    g.target = target;
    g.V = a.V;
    g.m = m;
    gradient_row<M, T, W>(row<T, W>((T *)a.dlogits + r * a.Vp, a.Vp), row<const T, W>(logits, a.V),
                          cache, kept, g);
}

template <enum cuda_map_kind M, typename T, int W>
static enum hd_status cross_entropy_launch(struct hd_cuda_stream *s,
                                           const struct hd_cross_entropy_args *a)
{
    /* largest number of packs in a row of logits, for any `shift` */
    const int64_t packs = divide_up(a->V, W) + 1;
    const int64_t capacity = cache_bytes_max(s->cuda) / (int64_t)sizeof(pack<T, W>);
    const int64_t kept = !a->dlogits ? 0 : packs < capacity ? packs : capacity;

    return HD_LAUNCH(s, (cross_entropy_rows<M, T, W>), dim3((unsigned)a->R), row_threads(packs),
                     (size_t)kept * sizeof(pack<T, W>), *a, map_of(a->map), kept);
}

template <enum cuda_map_kind M>
static enum hd_status cross_entropy_typed(struct hd_cuda_stream *s,
                                          const struct hd_cross_entropy_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T,
                   HD_PACK_WIDTH((rows_are_packs<T>(a->logits, a->dlogits)), T, W,
                                 return (cross_entropy_launch<M, T, W>(s, a))));
}

extern "C" enum hd_status hd_cuda_cross_entropy(struct hd_cuda_stream *s,
                                                const struct hd_cross_entropy_args *a)
{
    enum hd_status st;

    if (a->R == 0)
        return HD_OK;
    HD_WITH_MAP(a->map, M, st = cross_entropy_typed<M>(s, a));
    if (!st)
        st = add_losses_launch(s, a->block, a->record, a->scratch, a->z > 0, a->target, a->R,
                               !a->logp && !a->weight);
    return st;
}

/* ---- Several ranks share the logits ---- */

template <enum cuda_map_kind M, typename T, int W>
static __global__ void __launch_bounds__(ROW_THREADS, ROW_RESIDENT)
    stats_rows(struct hd_cross_entropy_stats_args a, struct cuda_map m)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    const int64_t r = blockIdx.x, target = a.target[r] - a.first;
    const T *logits = (const T *)a.logits + r * a.Vp;
    const struct softmax s =
        softmax_row<M, T, W>(row<const T, W>(logits, a.V), m, (pack<T, W> *)nullptr, 0, shared);
    float *stats = a.stats + r * HD_CROSS_ENTROPY_STATS;

    if (threadIdx.x > 0)
        return;
    stats[0] = s.max;
    stats[1] = s.sum;
    stats[2] = target >= 0 && target < a.V ? mapped<M, T>(to_float(logits[target]), m) : 0;
    stats[3] = target >= 0 && target < a.V ? 1 : 0;
}

template <enum cuda_map_kind M>
static enum hd_status stats_typed(struct hd_cuda_stream *s,
                                  const struct hd_cross_entropy_stats_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        constexpr int W = pack_wide<T>;

        return HD_LAUNCH(s, (stats_rows<M, T, W>), dim3((unsigned)a->R),
                         row_threads(divide_up(a->V, W) + 1), 0, *a, map_of(a->map));
    });
}

extern "C" enum hd_status hd_cuda_cross_entropy_stats(struct hd_cuda_stream *s,
                                                      const struct hd_cross_entropy_stats_args *a)
{
    if (a->R == 0)
        return HD_OK;
    HD_WITH_MAP(a->map, M, return stats_typed<M>(s, a));
}

/* Computes the gradients of this rank's logits; every thread combines the stats of all ranks
 * itself. */
template <enum cuda_map_kind M, typename T, int W>
static __global__ void __launch_bounds__(ROW_THREADS, ROW_RESIDENT)
    shared_rows(struct hd_cross_entropy_shared_args a, struct cuda_map m)
{
    const int64_t r = blockIdx.x, target = a.target[r] - a.first;
    const T *logits = (const T *)a.logits + r * a.Vp;
    const float unit = unit_of<M>(
        a.block->loss_scale * (a.weight ? a.weight[r] : 1.0f) * record_factor(a.record), a.map);
    double *losses = (double *)a.scratch, sum = 0, target_logit = 0, log_z;
    float max = -INFINITY, owners = 0;
    struct gradient g;

    for (int64_t p = 0; p < a.P && a.target[r] >= 0; p++) {
        const float *stats = a.stats + (p * a.R + r) * HD_CROSS_ENTROPY_STATS;

        max = fmaxf(max, stats[0]);
        owners += stats[3];
    }
    if (owners == 0) {
        if (threadIdx.x == 0)
            losses[r] = -INFINITY;
        if (threadIdx.x == 0 && a.logp)
            a.logp[r] = 0;
        if (a.dlogits)
            zero_row<T, W>(row<T, W>((T *)a.dlogits + r * a.Vp, a.Vp));
        return;
    }
    for (int64_t p = 0; p < a.P; p++) {
        const float *stats = a.stats + (p * a.R + r) * HD_CROSS_ENTROPY_STATS;

        sum += (double)stats[1] * exp((double)stats[0] - (double)max);
        target_logit += (double)stats[2];
    }
    if (threadIdx.x == 0)
        losses[r] = marked(log(sum) + ((double)max - target_logit),
                           a.record && target_logit >= (double)max);
    if (threadIdx.x == 0 && a.logp)
        a.logp[r] = (float)-losses[r];
    log_z = a.z > 0 ? log(sum) + (double)max : 0;
    if (threadIdx.x == 0 && a.z > 0)
        losses[a.R + r] = log_z;
    if (!a.dlogits)
        return;
    g.max = max;
    g.factor = (float)((double)unit / sum) * z_factor(a.z, log_z);
    g.target_less = unit;
    g.target = target;
    g.V = a.V;
    g.m = m;
    gradient_row<M, T, W>(row<T, W>((T *)a.dlogits + r * a.Vp, a.Vp), row<const T, W>(logits, a.V),
                          (const pack<T, W> *)nullptr, 0, g);
}

template <enum cuda_map_kind M>
static enum hd_status shared_typed(struct hd_cuda_stream *s,
                                   const struct hd_cross_entropy_shared_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T,
                   HD_PACK_WIDTH((rows_are_packs<T>(a->logits, a->dlogits)), T, W,
                                 return HD_LAUNCH(s, (shared_rows<M, T, W>), dim3((unsigned)a->R),
                                                  row_threads(divide_up(a->Vp, W) + 1), 0, *a,
                                                  map_of(a->map))));
}

extern "C" enum hd_status hd_cuda_cross_entropy_shared(struct hd_cuda_stream *s,
                                                       const struct hd_cross_entropy_shared_args *a)
{
    enum hd_status st;

    if (a->R == 0)
        return HD_OK;
    HD_WITH_MAP(a->map, M, st = shared_typed<M>(s, a));
    if (!st)
        st = add_losses_launch(s, a->block, a->record, a->scratch, a->z > 0, a->target, a->R,
                               !a->logp && !a->weight);
    return st;
}

/* ---- Entropy ---- */

/* Reads the row twice: first its maximum, then the sums, from L2. */
template <enum cuda_map_kind M, typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    entropy_rows(struct hd_entropy_args a, struct cuda_map m)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    const int64_t r = blockIdx.x;
    const T *logits = (const T *)a.logits + r * a.Vp;
    float *spread = a.spread + r * HD_ENTROPY_WORDS;
    float max = -INFINITY, sum = 0, moment = 0;

    if (a.target[r] < 0) {
        if (threadIdx.x < HD_ENTROPY_WORDS)
            spread[threadIdx.x] = 0;
        return;
    }
    for (int64_t v = threadIdx.x; v < a.V; v += blockDim.x)
        max = fmaxf(max, mapped<M, T>(to_float(logits[v]), m));
    max = block_max(max, shared);
    for (int64_t v = threadIdx.x; v < a.V; v += blockDim.x) {
        const float y = mapped<M, T>(to_float(logits[v]), m) - max, e = exp_of<T>(y);

        sum += e;
        moment += e * y;
    }
    sum = block_add(sum, shared);
    moment = block_add(moment, shared);
    if (threadIdx.x > 0)
        return;
    spread[0] = max;
    spread[1] = sum;
    spread[2] = moment;
}

template <enum cuda_map_kind M>
static enum hd_status entropy_typed(struct hd_cuda_stream *s, const struct hd_entropy_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        return HD_LAUNCH(s, (entropy_rows<M, T>), dim3((unsigned)a->R), row_threads(a->V), 0, *a,
                         map_of(a->map));
    });
}

extern "C" enum hd_status hd_cuda_entropy(struct hd_cuda_stream *s, const struct hd_entropy_args *a)
{
    if (a->R == 0)
        return HD_OK;
    HD_WITH_MAP(a->map, M, return entropy_typed<M>(s, a));
}

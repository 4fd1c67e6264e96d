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
#include "kernels/cuda/logit_rows.cuh"

enum { LOSS_THREADS = 1024 };

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

/* entropy: maps of logits in place, and the spread of the softmax of each row, from which its entropy follows.
 *
 * The map reads and writes each logit once. The spread reads a row twice, the second time from L2. */
#include "kernels/cuda/logit_rows.cuh"
#include "kernels/cuda/map.cuh"

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

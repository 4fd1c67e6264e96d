/* gate: rows times the sigmoid of one number per row, and elements times another or its sigmoid.
 *
 * Bytes: forward 2 R C e; backward reads dout and y and writes dy, 3 R C e. Memory-bound. Backward
 * has one warp per row, with GATE_UNROLL packs of 16 bytes of each input in flight; its order of
 * additions is that of a lane's packs, then a butterfly over the lanes. Not yet measured on a GPU.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/map.cuh"

template <typename T>
struct gate_forward {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> y;
        float gate;
    };
    T *out;
    const T *y, *g;
    int64_t R, C;

    __device__ int64_t rows() const
    {
        return R;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.y = pack_load<V>(y + r * C + c);
        x.gate = to_float(g[r]);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t c) const
    {
        const float gate = sigmoid<T>(x.gate);
        pack<T, V> z;

#pragma unroll
        for (int j = 0; j < V; j++)
            z.at[j] = from_float<T>(to_float(x.y.at[j]) * gate);
        pack_store(out + r * C + c, z);
    }
};

extern "C" enum hd_status hd_cuda_row_gate_forward(struct hd_cuda_stream *s,
                                                   const struct hd_row_gate_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct gate_forward<T> op = {
            (T *)a->out, (const T *)a->y, (const T *)a->g, a->R, a->C
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->out, a->y)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->C));
    });
}

enum { GATE_THREADS = 256, GATE_WARPS = GATE_THREADS / 32, GATE_RESIDENT = 3, GATE_UNROLL = 2 };

/* Computes the gradients of rows, one warp per row. A lane reads a pack of dout before it writes
 * that of dy: they may alias. */
template <typename T, int V>
static __global__ void __launch_bounds__(GATE_THREADS, GATE_RESIDENT)
    gate_gradients(struct hd_row_gate_backward_args a)
{
    const int64_t warps = (int64_t)gridDim.x * GATE_WARPS;

    for (int64_t r = (int64_t)blockIdx.x * GATE_WARPS + threadIdx.x / 32; r < a.R; r += warps) {
        const T *dout = (const T *)a.dout + r * a.C, *y = (const T *)a.y + r * a.C;
        const float gate = sigmoid<T>(to_float(((const T *)a.g)[r]));
        T *dy = (T *)a.dy + r * a.C;
        float dot = 0;

        for (int64_t c = threadIdx.x % 32 * V; c < a.C; c += GATE_UNROLL * 32 * V) {
            pack<T, V> d[GATE_UNROLL], x[GATE_UNROLL];

#pragma unroll
            for (int u = 0; u < GATE_UNROLL; u++)
                if (c + u * 32 * V < a.C) {
                    d[u] = pack_load<V>(dout + c + u * 32 * V);
                    x[u] = pack_load<V>(y + c + u * 32 * V);
                }
#pragma unroll
            for (int u = 0; u < GATE_UNROLL; u++)
                if (c + u * 32 * V < a.C) {
                    pack<T, V> z;

#pragma unroll
                    for (int j = 0; j < V; j++) {
                        dot += to_float(d[u].at[j]) * to_float(x[u].at[j]);
                        z.at[j] = from_float<T>(to_float(d[u].at[j]) * gate);
                    }
                    pack_store(dy + c + u * 32 * V, z);
                }
        }
        dot = warp_add(dot);
        if (threadIdx.x % 32 == 0)
            ((T *)a.dg)[r] = from_float<T>(dot * gate * (1.0f - gate));
    }
}

extern "C" enum hd_status hd_cuda_row_gate_backward(struct hd_cuda_stream *s,
                                                    const struct hd_row_gate_backward_args *a)
{
    if (a->R == 0)
        return HD_OK;
    HD_CUDA_FLOATS(
        a->dtype, T,
        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->dy, a->dout, a->y)), T, V,
                      return HD_LAUNCH(s, (gate_gradients<T, V>),
                                       dim3(grid_of(s, divide_up(a->R, GATE_WARPS), GATE_RESIDENT)),
                                       dim3(GATE_THREADS), 0, *a)));
}

/* PLAIN: elements are multiplied by g itself. */
template <typename T, bool PLAIN>
struct cuda_sigmoid_gate {
    static constexpr int UNROLL = 2;
    template <int V>
    struct in {
        pack<T, V> y, g;
    };
    T *out;
    const T *y, *g;
    int64_t N;

    __device__ int64_t rows() const
    {
        return N;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t, int64_t c) const
    {
        x.y = pack_load<V>(y + c);
        x.g = pack_load<V>(g + c);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t c) const
    {
        pack<T, V> z;

#pragma unroll
        for (int j = 0; j < V; j++) {
            const float g = to_float(x.g.at[j]);

            z.at[j] = from_float<T>(to_float(x.y.at[j]) * (PLAIN ? g : sigmoid<T>(g)));
        }
        pack_store(out + c, z);
    }
};

template <bool PLAIN>
static enum hd_status sigmoid_gate_launch(struct hd_cuda_stream *s,
                                          const struct hd_sigmoid_gate_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_sigmoid_gate<T, PLAIN> op = {
            (T *)a->out, (const T *)a->y, (const T *)a->g, a->N
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->out, a->y, a->g)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

extern "C" enum hd_status hd_cuda_sigmoid_gate_forward(struct hd_cuda_stream *s,
                                                       const struct hd_sigmoid_gate_forward_args *a)
{
    return a->plain ? sigmoid_gate_launch<true>(s, a) : sigmoid_gate_launch<false>(s, a);
}

template <typename T, bool PLAIN>
struct cuda_sigmoid_gate_gradients {
    static constexpr int UNROLL = 2;
    template <int V>
    struct in {
        pack<T, V> dout, y, g;
    };
    T *dy, *dg;
    const T *dout, *y, *g;
    int64_t N;

    __device__ int64_t rows() const
    {
        return N;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t, int64_t c) const
    {
        x.dout = pack_load<V>(dout + c);
        x.y = pack_load<V>(y + c);
        x.g = pack_load<V>(g + c);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t c) const
    {
        pack<T, V> of_y, of_g;

#pragma unroll
        for (int j = 0; j < V; j++) {
            const float g = to_float(x.g.at[j]), s = PLAIN ? g : sigmoid<T>(g);
            const float d = to_float(x.dout.at[j]), product = d * to_float(x.y.at[j]);

            of_y.at[j] = from_float<T>(d * s);
            of_g.at[j] = from_float<T>(PLAIN ? product : product * s * (1.0f - s));
        }
        pack_store(dy + c, of_y);
        pack_store(dg + c, of_g);
    }
};

template <bool PLAIN>
static enum hd_status sigmoid_gate_gradients_launch(struct hd_cuda_stream *s,
                                                    const struct hd_sigmoid_gate_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_sigmoid_gate_gradients<T, PLAIN> op = {
            (T *)a->dy, (T *)a->dg, (const T *)a->dout, (const T *)a->y, (const T *)a->g, a->N
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->dy, a->dg, a->dout, a->y, a->g)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

extern "C" enum hd_status
hd_cuda_sigmoid_gate_backward(struct hd_cuda_stream *s,
                              const struct hd_sigmoid_gate_backward_args *a)
{
    return a->plain ? sigmoid_gate_gradients_launch<true>(s, a)
                    : sigmoid_gate_gradients_launch<false>(s, a);
}

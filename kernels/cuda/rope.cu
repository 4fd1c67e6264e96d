/* rope: rotates pairs of channels by the angle of their row's position.
 *
 * Bytes: 2 R H W e, in place, for W channels of a head that rotate; a row of the table, W fp32, is read once per eight heads, mostly from
 * L2: a thread keeps its part in registers for eight heads, and has four pairs of loads of 16 bytes
 * in flight. On an H100 90% of a copy's rate. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/pack.cuh"

extern "C" {
#include "kernels/costs/costs.h"
}

enum { ROPE_THREADS = 256, ROPE_RESIDENT = 2, ROPE_HEADS = 8, ROPE_UNROLL = 4 };

template <typename T>
struct rope {
    T *x; /* the first channel that rotates in the first head */
    const int32_t *position;
    const float *table;
    int64_t R, H, D, half, ldx; /* half: pairs of a head */
    float sign;                 /* sign of the angle: 1 forward, -1 backward */
};

/* Returns element e of two packs that are neighbours. */
template <typename T, int V>
static __device__ __forceinline__ T &element_of(pack<T, V> &low, pack<T, V> &high, int e)
{
    return e < V ? low.at[e] : high.at[e - V];
}

/* Rotates V pairs of channels in up to ROPE_HEADS heads of a row, per thread. The pairs are two
 * packs: their first and their second members, or, INTERLEAVED, two packs of neighbours. */
template <typename T, int V, bool INTERLEAVED>
static __global__ void __launch_bounds__(ROPE_THREADS, ROPE_RESIDENT) turn(struct rope<T> a)
{
    const int64_t half = a.half, packs = half / V, parts = (a.H + ROPE_HEADS - 1) / ROPE_HEADS;
    const int64_t apart = INTERLEAVED ? V : half; /* distance of the two packs */
    constexpr int W = V == 1 ? 1 : 4; /* floats of the table per load; a pair needs two */
    const int64_t count = a.R * parts * packs;

    for (int64_t n = (int64_t)blockIdx.x * ROPE_THREADS + threadIdx.x; n < count;
         n += (int64_t)gridDim.x * ROPE_THREADS) {
        const int64_t i = n % packs * V, first = n / packs % parts * ROPE_HEADS;
        const int64_t r = n / packs / parts;
        const int64_t last = first + ROPE_HEADS < a.H ? first + ROPE_HEADS : a.H;
        const float *table = a.table + (a.position[r] * half + i) * 2;
        T *head = a.x + r * a.ldx + first * a.D + (INTERLEAVED ? 2 * i : i);
        float cosine[V], sine[V];

#pragma unroll
        for (int j = 0; j < 2 * V; j += W) {
            const pack<float, W> angles = pack_load<W>(table + j);

#pragma unroll
            for (int k = 0; k < W; k++)
                if ((j + k) % 2)
                    sine[(j + k) / 2] = angles.at[k] * a.sign;
                else
                    cosine[(j + k) / 2] = angles.at[k];
        }
        for (int64_t h = first; h < last; h += ROPE_UNROLL, head += ROPE_UNROLL * a.D) {
            pack<T, V> x[ROPE_UNROLL], y[ROPE_UNROLL];

#pragma unroll
            for (int u = 0; u < ROPE_UNROLL; u++)
                if (h + u < last) {
                    x[u] = pack_load<V>(head + u * a.D);
                    y[u] = pack_load<V>(head + u * a.D + apart);
                }
#pragma unroll
            for (int u = 0; u < ROPE_UNROLL; u++)
                if (h + u < last) {
                    pack<T, V> p, q;

#pragma unroll
                    for (int j = 0; j < V; j++) {
                        const int f = INTERLEAVED ? 2 * j : j, g = INTERLEAVED ? f + 1 : f + V;
                        const float v = to_float(element_of(x[u], y[u], f));
                        const float w = to_float(element_of(x[u], y[u], g));

                        element_of(p, q, f) = from_float<T>(v * cosine[j] - w * sine[j]);
                        element_of(p, q, g) = from_float<T>(v * sine[j] + w * cosine[j]);
                    }
                    pack_store(head + u * a.D, p);
                    pack_store(head + u * a.D + apart, q);
                }
        }
    }
}

template <int V, typename T>
static enum hd_status rope_launch(struct hd_cuda_stream *s, const struct rope<T> &a,
                                  bool interleaved)
{
    const int64_t parts = divide_up(a.H, ROPE_HEADS);
    const dim3 grid(grid_of(s, divide_up(a.R * parts * (a.half / V), ROPE_THREADS), ROPE_RESIDENT));

    if (interleaved)
        return HD_LAUNCH(s, (turn<T, V, true>), grid, dim3(ROPE_THREADS), 0, a);
    return HD_LAUNCH(s, (turn<T, V, false>), grid, dim3(ROPE_THREADS), 0, a);
}

extern "C" enum hd_status hd_cuda_rope(struct hd_cuda_stream *s, const struct hd_rope_args *a)
{
    const int64_t half = hd_rope_args_width(a) / 2;
    const enum hd_status st = hd_costs_check_rope(a);

    if (st || a->R * a->H * half == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct rope<T> op = {
            (T *)a->x + a->first, a->position, a->table, a->R, a->H, a->D, half, a->ldx,
                a->inverse ? -1.0f : 1.0f
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(half, op.x) && pack_fits_wide<T>(a->D, NULL) &&
                       pack_fits_wide<T>(a->ldx, NULL) && pack_fits<float, 4>(a->table, 0)),
                      T, V, return rope_launch<V>(s, op, a->interleaved));
    });
}

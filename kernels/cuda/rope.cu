/* rope: rotates pairs of channels by the angle of their row's position.
 *
 * Bytes: 2 R H D e, in place; a row of the table, D fp32, is read once per eight heads, mostly from
 * L2: a thread keeps its part in registers for eight heads, and has four pairs of loads of 16 bytes
 * in flight. On an H100 90% of a copy's rate. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/pack.cuh"

enum { ROPE_THREADS = 256, ROPE_RESIDENT = 2, ROPE_HEADS = 8, ROPE_UNROLL = 4 };

template <typename T>
struct rope {
    T *x;
    const int32_t *position;
    const float *table;
    int64_t R, H, D, ldx;
    float sign; /* sign of the angle: 1 forward, -1 backward */
};

/* Rotates V pairs of channels in up to ROPE_HEADS heads of a row, per thread. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROPE_THREADS, ROPE_RESIDENT) turn(struct rope<T> a)
{
    const int64_t half = a.D / 2, packs = half / V, parts = (a.H + ROPE_HEADS - 1) / ROPE_HEADS;
    constexpr int W = V == 1 ? 1 : 4; /* floats of the table per load; a pair needs two */
    const int64_t count = a.R * parts * packs;

    for (int64_t n = (int64_t)blockIdx.x * ROPE_THREADS + threadIdx.x; n < count;
         n += (int64_t)gridDim.x * ROPE_THREADS) {
        const int64_t i = n % packs * V, first = n / packs % parts * ROPE_HEADS;
        const int64_t r = n / packs / parts;
        const int64_t last = first + ROPE_HEADS < a.H ? first + ROPE_HEADS : a.H;
        const float *table = a.table + (a.position[r] * half + i) * 2;
        T *head = a.x + r * a.ldx + first * a.D + i;
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
                    y[u] = pack_load<V>(head + u * a.D + half);
                }
#pragma unroll
            for (int u = 0; u < ROPE_UNROLL; u++)
                if (h + u < last) {
                    pack<T, V> p, q;

#pragma unroll
                    for (int j = 0; j < V; j++) {
                        const float v = to_float(x[u].at[j]), w = to_float(y[u].at[j]);

                        p.at[j] = from_float<T>(v * cosine[j] - w * sine[j]);
                        q.at[j] = from_float<T>(v * sine[j] + w * cosine[j]);
                    }
                    pack_store(head + u * a.D, p);
                    pack_store(head + u * a.D + half, q);
                }
        }
    }
}

extern "C" enum hd_status hd_cuda_rope(struct hd_cuda_stream *s, const struct hd_rope_args *a)
{
    const int64_t pairs = a->R * a->H * (a->D / 2), parts = divide_up(a->H, ROPE_HEADS);

    if (a->D % 2)
        return hd_err(HD_UNSUPPORTED, "rope: the head width %lld is odd; it must be even",
                      (long long)a->D);
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct rope<T> op = {
            (T *)a->x, a->position, a->table, a->R, a->H, a->D, a->ldx, a->inverse ? -1.0f : 1.0f
        };

        if (pairs == 0)
            return HD_OK;
        HD_PACK_WIDTH(
            (pack_fits_wide<T>(a->D / 2, a->x) && pack_fits_wide<T>(a->ldx, NULL) &&
             pack_fits<float, 4>(a->table, 0)),
            T, V,
            return HD_LAUNCH(s, (turn<T, V>),
                             dim3(grid_of(s, divide_up(a->R * parts * (a->D / 2 / V), ROPE_THREADS),
                                          ROPE_RESIDENT)),
                             dim3(ROPE_THREADS), 0, op));
    });
}

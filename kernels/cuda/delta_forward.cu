/* delta_forward: the gated delta rule, chunk after chunk, a thread block per value head of a
 * sequence. Not yet measured on a GPU. */
#include "kernels/cuda/delta.cuh"

/* Computes the results of the chunk, and the state after it, in place. */
template <typename T>
static __device__ void forward_chunk(const struct cuda_delta<T> &d, T *results, float *m)
{
    const int64_t value = d.l.value;
    float *out = d.area(d.l.wide);

    delta_load_keys(d);
    delta_load_gates(d);
    delta_new_values(d, m);
    delta_multiply(out, value, d.area(d.l.q), d.l.key, 1, m, value, d.count, value, d.Dk, false);
    DELTA_FOR(n, d.count * value)
    out[n] *= d.vector(DELTA_E)[n / value];
    __syncthreads();
    delta_multiply(out, value, d.area(d.l.a), DELTA_ROWS, 1, d.area(d.l.u), value, d.count, value,
                   d.count, true);
    DELTA_FOR(n, d.count * d.Dv)
    {
        const int64_t i = n / d.Dv, c = n % d.Dv;

        results[((d.row + d.first + i) * d.H + d.head) * d.Dv + c] =
            from_float<T>(out[i * value + c]);
    }
    __syncthreads();
    delta_advance(d, m, m);
}

template <typename T>
static __global__ void __launch_bounds__(DELTA_THREADS)
    delta_forward_kernel(struct hd_gated_delta_forward_args a, struct hd_costs_delta_layout l)
{
    HD_SHARED(float, vectors, DELTA_VECTORS *DELTA_ROWS);
    HD_SHARED(int, document, DELTA_ROWS);
    struct cuda_delta<T> d = delta_of<T>(a, l, vectors, document);
    const int64_t b = blockIdx.x / a.H, rows = a.state ? a.after[b] - a.before[b] : a.S;
    const int64_t at = ((a.state ? a.slot[b] : b) * a.H + d.head) * a.Dk * a.Dv;
    const float *before = a.initial ? a.initial + at : NULL;
    float *m = d.area(l.state);

    if (rows <= 0)
        return;
    if (a.state && a.before[b] > 0) {
        d.follows = true;
        before = a.state + at;
    }
    DELTA_FOR(n, l.key * l.value)
    m[n] = 0;
    __syncthreads();
    if (before)
        delta_take_state(m, l.value, before, a.Dk, a.Dv);
    for (int64_t first = 0; first < rows; first += DELTA_ROWS) {
        delta_begin_chunk(d, first, rows);
        forward_chunk(d, (T *)a.out, m);
    }
    if (a.state)
        delta_put_state(a.state + at, m, l.value, a.Dk, a.Dv);
}

extern "C" enum hd_status hd_cuda_gated_delta_forward(struct hd_cuda_stream *s,
                                                      const struct hd_gated_delta_forward_args *a)
{
    const enum hd_status st = hd_costs_check_delta(a->G, a->H, a->Dk, a->Dv);

    if (st || a->B * a->S == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (delta_forward_kernel<T>), dim3((unsigned)(a->B * a->H)),
                                    dim3(DELTA_THREADS), 0, *a,
                                    hd_costs_delta_forward_layout(a, &s->cuda->traits)));
    return HD_OK;
}

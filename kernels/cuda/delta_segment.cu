/* delta_segment: what ranks that share a sequence exchange in the gated delta rule, by the formulas
 * of kernels/cpu/delta_segment.c. A thread block computes one matrix of one value head of a
 * segment; in delta_prefix some columns of a value head's state. Not yet measured on a GPU. */
#include "kernels/cuda/delta.cuh"

/* ---- the matrices of a segment ---- */

/* Computes K T and U of rows without values, areas km and u as wide as keys (d.l.value). t: the
 * transition before the chunk. Synchronizes. */
template <typename T>
static __device__ void new_transitions(const struct cuda_delta<T> &d, const float *t)
{
    const int64_t width = d.l.value;
    float *u = d.area(d.l.u), *kt = d.area(d.l.km);

    delta_multiply(kt, width, d.area(d.l.k), d.l.key, 1, t, width, d.count, width, d.Dk, false);
    DELTA_FOR(n, d.count * width)
    u[n] = -d.vector(DELTA_BETA)[n / width] * d.vector(DELTA_E)[n / width] * kt[n];
    __syncthreads();
    delta_solve(u, width, d.area(d.l.l), d.count, false);
}

/* blockIdx.y 0: M_own, 1: T. */
template <typename T>
static __global__ void __launch_bounds__(DELTA_THREADS, 1)
    delta_summary_kernel(struct hd_delta_summary_args a, struct hd_costs_delta_layout l)
{
    HD_SHARED(float, vectors, DELTA_VECTORS *DELTA_ROWS);
    HD_SHARED(int, document, DELTA_ROWS);
    struct cuda_delta<T> d = delta_of<T>(a, l, vectors, document);
    const bool transition = blockIdx.y == 1;
    const int64_t transitions = a.B * a.H * a.Dk * a.Dk;
    float *m;

    d.scratch += transition ? a.B * a.H * l.floats : 0;
    m = d.area(transition ? l.transition : l.state);
    if (transition)
        d.l.value = l.key;
    DELTA_FOR(n, l.key * d.l.value)
    m[n] = transition && n / l.key == n % l.key && n / l.key < a.Dk ? 1.0f : 0.0f;
    __syncthreads();
    for (int64_t first = 0; first < a.S; first += DELTA_ROWS) {
        delta_begin_chunk(d, first, a.S);
        delta_load_keys(d, false);
        delta_load_gates(d, false);
        if (transition)
            new_transitions(d, m);
        else
            delta_new_values(d, m);
        delta_advance(d, m, m);
    }
    if (transition)
        delta_put_state(a.summary + (int64_t)blockIdx.x * a.Dk * a.Dk, m, l.key, a.Dk, a.Dk);
    else
        delta_put_state(a.summary + transitions + (int64_t)blockIdx.x * a.Dk * a.Dv, m, l.value,
                        a.Dk, a.Dv);
}

extern "C" enum hd_status hd_cuda_delta_summary(struct hd_cuda_stream *s,
                                                const struct hd_delta_summary_args *a)
{
    const enum hd_status st = hd_costs_check_delta(a->G, a->H, a->Dk, a->Dv);

    if (st || a->B * a->S == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (delta_summary_kernel<T>), dim3((unsigned)(a->B * a->H), 2),
                                    dim3(DELTA_THREADS), 0, *a,
                                    hd_costs_delta_summary_layout(a, &s->cuda->traits)));
    return HD_OK;
}

/* ---- the gradient of the state before a segment ---- */

/* Computes dm, the gradient of the state after the chunk, to that of the state before it.
 * Synchronizes. */
template <typename T>
static __device__ void retreat(const struct cuda_delta<T> &d, float *dm)
{
    const int64_t value = d.l.value, key = d.l.key, count = d.count;
    const float *beta = d.vector(DELTA_BETA), *e = d.vector(DELTA_E);
    const float *q = d.area(d.l.q), *k = d.area(d.l.k);
    float *fk = d.area(d.l.wide), *du = d.area(d.l.du), *dout = d.area(d.l.dout);

    DELTA_FOR(n, count * key)
    fk[n] = d.vector(DELTA_F)[n / key] * k[n];
    __syncthreads();
    delta_multiply(du, value, d.area(d.l.a), 1, DELTA_ROWS, dout, value, count, value, count,
                   false);
    delta_multiply(du, value, fk, key, 1, dm, value, count, value, d.Dk, true);
    delta_solve(du, value, d.area(d.l.l), d.count, true);
    DELTA_FOR(n, count * value)
    {
        du[n] *= -(beta[n / value] * e[n / value]);
        dout[n] *= e[n / value];
    }
    DELTA_FOR(n, key * value)
    dm[n] *= e[count - 1];
    __syncthreads();
    delta_multiply(dm, value, q, 1, key, dout, value, key, value, count, true);
    delta_multiply(dm, value, k, 1, key, du, value, key, value, count, true);
}

template <typename T>
static __global__ void __launch_bounds__(DELTA_THREADS)
    delta_state_gradient_kernel(struct hd_delta_state_gradient_args a,
                                struct hd_costs_delta_layout l)
{
    HD_SHARED(float, vectors, DELTA_VECTORS *DELTA_ROWS);
    HD_SHARED(int, document, DELTA_ROWS);
    struct cuda_delta<T> d = delta_of<T>(a, l, vectors, document);
    float *dm = d.area(l.dstate);

    DELTA_FOR(n, l.key * l.value)
    dm[n] = 0;
    __syncthreads();
    for (int64_t chunk = l.chunks - 1; chunk >= 0; chunk--) {
        delta_begin_chunk(d, chunk * DELTA_ROWS, a.S);
        delta_load_keys(d);
        delta_load_gates(d);
        delta_load_dout(d, (const T *)a.dout);
        retreat(d, dm);
    }
    delta_put_state(a.dstate + (int64_t)blockIdx.x * a.Dk * a.Dv, dm, l.value, a.Dk, a.Dv);
}

extern "C" enum hd_status hd_cuda_delta_state_gradient(struct hd_cuda_stream *s,
                                                       const struct hd_delta_state_gradient_args *a)
{
    const enum hd_status st = hd_costs_check_delta(a->G, a->H, a->Dk, a->Dv);

    if (st || a->B * a->S == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (delta_state_gradient_kernel<T>),
                                    dim3((unsigned)(a->B * a->H)), dim3(DELTA_THREADS), 0, *a,
                                    hd_costs_delta_state_gradient_layout(a, &s->cuda->traits)));
    return HD_OK;
}

/* ---- the states between the segments of all ranks ---- */

enum { PREFIX_COLUMNS = 8 }; /* columns of a thread block: a row of them is one sector */

/* A thread computes the rows threadIdx.x / 8 + 32 n of one column. The state is in shared memory,
 * twice. */
static __global__ void __launch_bounds__(DELTA_THREADS, 1)
    delta_prefix_kernel(struct hd_delta_prefix_args a, int64_t steps)
{
    HD_SHARED(float, m, 2 * HD_DELTA_WIDTH_MAX * PREFIX_COLUMNS);
    const int64_t b = blockIdx.x / a.H, h = blockIdx.x % a.H;
    const int64_t column = (int64_t)blockIdx.y * PREFIX_COLUMNS + threadIdx.x % PREFIX_COLUMNS;
    const int64_t heads = a.B * 2 * a.H, own = a.Dk * a.Dk;
    const int64_t by_row = a.reverse ? 1 : a.Dk, by_column = a.reverse ? a.Dk : 1;
    const int lane = (int)threadIdx.x % PREFIX_COLUMNS;
    float *from = m, *to = m + HD_DELTA_WIDTH_MAX * PREFIX_COLUMNS;

    for (int64_t i = threadIdx.x; i < a.Dk * PREFIX_COLUMNS; i += DELTA_THREADS)
        from[i] = 0;
    __syncthreads();
    for (int64_t step = 0; step <= steps; step++) {
        const int64_t s = a.reverse ? 2 * a.P - 1 - step : step;
        const int64_t rank = s < a.P ? s : 2 * a.P - 1 - s, half = s < a.P ? 0 : 1;
        const int64_t head = (b * 2 + half) * a.H + h;
        const float *t = a.summaries + rank * heads * a.Dk * (a.Dk + a.Dv) + head * own;
        const float *x =
            a.summaries + rank * heads * a.Dk * (a.Dk + a.Dv) + heads * own + head * a.Dk * a.Dv;
        float *swap;

        for (int64_t i = threadIdx.x / PREFIX_COLUMNS; i < a.Dk;
             i += DELTA_THREADS / PREFIX_COLUMNS) {
            float sum = x[i * a.Dv + column];

            if (rank == a.rank)
                a.state[(head * a.Dk + i) * a.Dv + column] = from[i * PREFIX_COLUMNS + lane];
            if (step == steps)
                continue;
            for (int64_t j = 0; j < a.Dk; j++)
                sum += t[i * by_row + j * by_column] * from[j * PREFIX_COLUMNS + lane];
            to[i * PREFIX_COLUMNS + lane] = sum;
        }
        __syncthreads();
        swap = from;
        from = to;
        to = swap;
    }
}

extern "C" enum hd_status hd_cuda_delta_prefix(struct hd_cuda_stream *s,
                                               const struct hd_delta_prefix_args *a)
{
    const enum hd_status st = hd_costs_check_delta(a->H, a->H, a->Dk, a->Dv);

    if (st || a->B * a->H == 0)
        return st;
    return HD_LAUNCH(s, delta_prefix_kernel,
                     dim3((unsigned)(a->B * a->H), (unsigned)(a->Dv / PREFIX_COLUMNS)),
                     dim3(DELTA_THREADS), 0, *a, hd_costs_delta_prefix_steps(a));
}

/* delta_backward: the gradients of the gated delta rule, by the formulas of
 * kernels/cpu/delta_backward.c. A thread block per value head of a sequence computes the states
 * before each chunk, then goes through the chunks in reverse; it leaves the gradients of normalised
 * q and k in scratch, and a second kernel adds those of the value heads that share a key head, in
 * order. Not yet measured on a GPU. */
#include "kernels/cuda/delta.cuh"

/* Sets a state in padded scratch to that of this block in from [B, H, Dk, Dv]; NULL: to zeros.
 * Synchronizes. */
template <typename T>
static __device__ void begin_state(const struct cuda_delta<T> &d, float *m, const float *from)
{
    DELTA_FOR(n, d.l.key * d.l.value)
    m[n] = 0;
    __syncthreads();
    if (from)
        delta_take_state(m, d.l.value, from + (int64_t)blockIdx.x * d.Dk * d.Dv, d.Dk, d.Dv);
}

/* Computes the states before each chunk. */
template <typename T>
static __device__ void compute_states(struct cuda_delta<T> &d, int64_t S, const float *initial)
{
    const int64_t size = d.l.key * d.l.value;
    float *states = d.area(d.l.state);

    begin_state(d, states, initial);
    for (int64_t first = 0; first + DELTA_ROWS < S; first += DELTA_ROWS) {
        float *m = states + first / DELTA_ROWS * size;

        delta_begin_chunk(d, first, S);
        delta_load_keys(d);
        delta_load_gates(d);
        delta_new_values(d, m);
        delta_advance(d, m + size, m);
    }
}

/* Returns the sum of x y over n numbers, for the lanes of a warp. */
static __device__ __forceinline__ float warp_dot(const float *x, const float *y, int64_t n)
{
    float sum = 0;

    for (int64_t c = threadIdx.x % 32; c < n; c += 32)
        sum += x[c] * y[c];
    return warp_add(sum);
}

/* Loops over the rows of the chunk that the thread's warp has. */
#define WARP_ROWS(i, count) \
    for (int i = (int)threadIdx.x / 32; i < (count); i += DELTA_THREADS / 32)

/* Computes da D and (dl beta D) + its transposed from dA and -dL, and the gradients of beta and c;
 * a warp per row, then per column. */
template <typename T>
static __device__ void differentiate_products(const struct cuda_delta<T> &d)
{
    const float *beta = d.vector(DELTA_BETA), *sum = d.vector(DELTA_C);
    const float *a = d.area(d.l.a), *kk = d.area(d.l.kk);
    float *dbeta = d.vector(DELTA_DBETA), *dc = d.vector(DELTA_DC);
    float *da = d.area(d.l.da), *dl = d.area(d.l.dl), *both = d.area(d.l.wide);
    const int lane = (int)threadIdx.x % 32;

    WARP_ROWS(i, d.count)
    {
        float of_beta = 0, of_row = 0;

        for (int j = lane; j < DELTA_ROWS; j += 32) {
            const int at = i * DELTA_ROWS + j;
            const bool sees = j < i && d.document[j] == d.document[i];
            const float decay = sees ? expf(sum[i] - sum[j]) : 0;
            const float from_l = sees ? -dl[at] * kk[at] * decay : 0;
            const float x = sees ? da[at] * a[at] + beta[i] * from_l : 0;

            of_beta += from_l;
            of_row += x;
            both[at] = x;
            da[at] = sees ? da[at] * decay : j == i ? da[at] : 0;
            dl[at] = sees ? -dl[at] * beta[i] * decay : 0;
        }
        of_beta = warp_add(of_beta);
        of_row = warp_add(of_row);
        if (lane == 0) {
            dbeta[i] = of_beta;
            dc[i] = of_row;
        }
    }
    __syncthreads();
    DELTA_FOR(j, d.count)
    {
        float of_column = 0;

        for (int i = (int)j + 1; i < d.count; i++)
            of_column += both[i * DELTA_ROWS + j];
        dc[j] -= of_column;
    }
    DELTA_FOR(n, (int64_t)d.count * d.count)
    {
        const int64_t i = n / d.count, j = n % d.count;

        if (j < i)
            dl[j * DELTA_ROWS + i] = dl[i * DELTA_ROWS + j];
    }
    __syncthreads();
}

/* Computes dR (area du), and the gradients through A and L. */
template <typename T>
static __device__ void differentiate_inside(const struct cuda_delta<T> &d, const float *dm)
{
    const int64_t value = d.l.value, key = d.l.key, count = d.count;
    const float *q = d.area(d.l.q), *k = d.area(d.l.k), *dout = d.area(d.l.dout);
    float *u_t = d.area(d.l.transposed), *du = d.area(d.l.du), *fk = d.area(d.l.wide);
    float *da = d.area(d.l.da), *dl = d.area(d.l.dl), *dq = d.area(d.l.dq), *dk = d.area(d.l.dk);

    DELTA_FOR(n, count * key)
    fk[n] = d.vector(DELTA_F)[n / key] * k[n];
    __syncthreads();
    delta_multiply(du, value, d.area(d.l.a), 1, DELTA_ROWS, dout, value, count, value, count,
                   false);
    delta_multiply(du, value, fk, key, 1, dm, value, count, value, d.Dk, true);
    delta_solve(du, value, d.area(d.l.l), d.count, true);
    delta_transpose(u_t, DELTA_ROWS, d.area(d.l.u), value, count, d.Dv, DELTA_ROWS);
    delta_multiply(da, DELTA_ROWS, dout, value, 1, u_t, DELTA_ROWS, count, DELTA_ROWS, d.Dv, false);
    delta_multiply(dl, DELTA_ROWS, du, value, 1, u_t, DELTA_ROWS, count, DELTA_ROWS, d.Dv, false);
    differentiate_products(d);
    delta_multiply(dq, key, da, DELTA_ROWS, 1, k, key, count, key, count, false);
    delta_multiply(dk, key, da, 1, DELTA_ROWS, q, key, count, key, count, false);
    delta_multiply(dk, key, dl, DELTA_ROWS, 1, k, key, count, key, count, true);
}

/* Stores dv and adds to the gradient of beta; a warp per row. */
template <typename T>
static __device__ void store_dv(const struct cuda_delta<T> &d, T *dqkv)
{
    const int64_t value = d.l.value;
    const float *du = d.area(d.l.du), *km = d.area(d.l.km);
    const int lane = (int)threadIdx.x % 32;

    WARP_ROWS(i, d.count)
    {
        const int64_t at = (d.row + d.first + i) * d.ld + 2 * d.G * d.Dk + d.head * d.Dv;
        const float beta = d.vector(DELTA_BETA)[i], e = d.vector(DELTA_E)[i];
        float sum = 0;

        for (int64_t c = lane; c < d.Dv; c += 32) {
            const float dr = du[i * value + c];

            sum += dr * (to_float(d.qkv[at + c]) - e * km[i * value + c]);
            dqkv[at + c] = from_float<T>(beta * dr);
        }
        sum = warp_add(sum);
        if (lane == 0)
            d.vector(DELTA_DBETA)[i] += sum;
    }
    __syncthreads();
}

/* Adds the gradients that pass through the states before (m) and after the chunk (dm, which becomes
 * the gradient of m). */
template <typename T>
static __device__ void differentiate_states(const struct cuda_delta<T> &d, const float *m,
                                            float *dm, float *shared)
{
    const int64_t value = d.l.value, key = d.l.key, count = d.count;
    const float *beta = d.vector(DELTA_BETA), *e = d.vector(DELTA_E), *f = d.vector(DELTA_F);
    const float *q = d.area(d.l.q), *k = d.area(d.l.k), *km = d.area(d.l.km);
    float *t = d.area(d.l.transposed), *wide = d.area(d.l.wide), *qm = d.area(d.l.qm);
    float *dout = d.area(d.l.dout), *du = d.area(d.l.du);
    float *dq = d.area(d.l.dq), *dk = d.area(d.l.dk);
    float along = 0;

    delta_transpose(t, key, dm, value, d.Dk, d.Dv, key);
    delta_multiply(wide, key, d.area(d.l.u), value, 1, t, key, count, key, d.Dv, false);
    delta_multiply(qm, value, q, key, 1, m, value, count, value, d.Dk, false);
    WARP_ROWS(i, d.count)
    {
        const float df = warp_dot(wide + i * key, k + i * key, d.Dk);
        const float de = warp_dot(dout + i * value, qm + i * value, d.Dv) -
                         beta[i] * warp_dot(du + i * value, km + i * value, d.Dv);

        if (threadIdx.x % 32 == 0) {
            d.vector(DELTA_DF)[i] = df;
            d.vector(DELTA_DE)[i] = de;
        }
    }
    __syncthreads();
    DELTA_FOR(n, count * key)
    dk[n] += f[n / key] * wide[n];
    DELTA_FOR(n, count * value)
    {
        du[n] *= -(beta[n / value] * e[n / value]);
        dout[n] *= e[n / value];
    }
    DELTA_FOR(n, key * value)
    along += dm[n] * m[n];
    along = block_add(along, shared);
    if (threadIdx.x == 0)
        d.vector(DELTA_DE)[count - 1] += along;
    delta_transpose(t, key, m, value, d.Dk, d.Dv, key);
    delta_multiply(dq, key, dout, value, 1, t, key, count, key, d.Dv, true);
    delta_multiply(dk, key, du, value, 1, t, key, count, key, d.Dv, true);
    DELTA_FOR(n, key * value)
    dm[n] *= e[count - 1];
    __syncthreads();
    delta_multiply(dm, value, q, 1, key, dout, value, key, value, count, true);
    delta_multiply(dm, value, k, 1, key, du, value, key, value, count, true);
}

/* Adds the gradients of e and f to those of c, and stores those of beta and g. */
template <typename T>
static __device__ void store_dgates(const struct cuda_delta<T> &d, float *dgates)
{
    const float *e = d.vector(DELTA_E), *de = d.vector(DELTA_DE);
    const float *f = d.vector(DELTA_F), *df = d.vector(DELTA_DF), *dc = d.vector(DELTA_DC);

    DELTA_FOR(i, d.count)
    {
        float *row = dgates + (d.row + d.first + i) * 2 * d.H;
        float sum = 0;

        for (int j = 0; j < d.count; j++)
            sum += df[j] * f[j];
        for (int j = d.count - 1; j >= i; j--)
            sum += dc[j] + de[j] * e[j] - df[j] * f[j];
        row[d.head] = d.vector(DELTA_DBETA)[i];
        row[d.H + d.head] = sum;
    }
}

template <typename T>
static __global__ void __launch_bounds__(DELTA_THREADS, 1)
    delta_backward_kernel(struct hd_gated_delta_backward_args a, struct hd_costs_delta_layout l)
{
    HD_SHARED(float, vectors, DELTA_VECTORS *DELTA_ROWS);
    HD_SHARED(int, document, DELTA_ROWS);
    HD_SHARED(float, sums, BLOCK_WARPS);
    struct cuda_delta<T> d = delta_of<T>(a, l, vectors, document);
    float *dm = d.area(l.dstate);

    compute_states(d, a.S, a.initial);
    begin_state(d, dm, a.dfinal);
    for (int64_t chunk = l.chunks - 1; chunk >= 0; chunk--) {
        const float *m = d.area(l.state) + chunk * l.key * l.value;

        delta_begin_chunk(d, chunk * DELTA_ROWS, a.S);
        delta_load_keys(d);
        delta_load_gates(d);
        delta_new_values(d, m);
        delta_load_dout(d, (const T *)a.dout);
        differentiate_inside(d, dm);
        store_dv(d, (T *)a.dqkv);
        differentiate_states(d, m, dm, sums);
        store_dgates(d, a.dgates);
        DELTA_FOR(n, d.count * d.Dk)
        {
            const int64_t i = n / d.Dk, c = n % d.Dk;
            const int64_t at = ((d.row + d.first + i) * d.H + d.head) * d.Dk + c;

            ((float *)a.scratch)[l.dq_of + at] = d.area(l.dq)[i * l.key + c];
            ((float *)a.scratch)[l.dk_of + at] = d.area(l.dk)[i * l.key + c];
        }
        __syncthreads();
    }
}

/* Adds the gradients of normalised q (blockIdx.y 0) or k of the value heads that share a key head,
 * and computes those of q or k; a warp per row and key head. */
template <typename T>
static __global__ void __launch_bounds__(DELTA_THREADS)
    delta_keys_kernel(struct hd_gated_delta_backward_args a, struct hd_costs_delta_layout l)
{
    const int64_t i = (int64_t)blockIdx.x * (DELTA_THREADS / 32) + threadIdx.x / 32;
    const int64_t r = i / a.G, key_head = i % a.G, group = a.H / a.G;
    const int64_t at = r * (2 * a.G * a.Dk + a.H * a.Dv) + (blockIdx.y * a.G + key_head) * a.Dk;
    const float scale = blockIdx.y ? 1 : 1.0f / sqrtf((float)a.Dk);
    const T *x = (const T *)a.qkv + at;
    const float *grads = (const float *)a.scratch + (blockIdx.y ? l.dk_of : l.dq_of) +
                         (r * a.H + key_head * group) * a.Dk;
    const int lane = (int)threadIdx.x % 32;
    float grad[HD_DELTA_WIDTH_MAX / 32], squares = 0, along = 0, rstd;

    if (r >= a.B * a.S)
        return;
#pragma unroll
    for (int k = 0; k < HD_DELTA_WIDTH_MAX / 32; k++) {
        const int64_t c = lane + 32 * k;

        grad[k] = 0;
        if (c < a.Dk) {
            for (int64_t h = 0; h < group; h++)
                grad[k] += grads[h * a.Dk + c];
            grad[k] *= scale;
            squares += to_float(x[c]) * to_float(x[c]);
            along += grad[k] * to_float(x[c]);
        }
    }
    rstd = 1.0f / sqrtf(warp_add(squares) + a.eps);
    along = warp_add(along) * rstd;
#pragma unroll
    for (int k = 0; k < HD_DELTA_WIDTH_MAX / 32; k++) {
        const int64_t c = lane + 32 * k;

        if (c < a.Dk)
            ((T *)a.dqkv)[at + c] = from_float<T>(rstd * (grad[k] - to_float(x[c]) * rstd * along));
    }
}

template <typename T>
static enum hd_status backward_launch(struct hd_cuda_stream *s,
                                      const struct hd_gated_delta_backward_args *a)
{
    const struct hd_costs_delta_layout l = hd_costs_delta_backward_layout(a, &s->cuda->traits);
    const int64_t warps = DELTA_THREADS / 32;
    enum hd_status st = HD_LAUNCH(s, (delta_backward_kernel<T>), dim3((unsigned)(a->B * a->H)),
                                  dim3(DELTA_THREADS), 0, *a, l);

    if (!st)
        st = HD_LAUNCH(s, (delta_keys_kernel<T>),
                       dim3((unsigned)((a->B * a->S * a->G + warps - 1) / warps), 2),
                       dim3(DELTA_THREADS), 0, *a, l);
    return st;
}

extern "C" enum hd_status hd_cuda_gated_delta_backward(struct hd_cuda_stream *s,
                                                       const struct hd_gated_delta_backward_args *a)
{
    const enum hd_status st = hd_costs_check_delta(a->G, a->H, a->Dk, a->Dv);

    if (st || a->B * a->S == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T, return backward_launch<T>(s, a));
    return HD_OK;
}

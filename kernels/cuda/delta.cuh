/* delta: a chunk of the gated delta rule, shared by forward and backward (ops_delta.h has the
 * formulas and their letters).
 *
 * A thread block computes one value head of one sequence, chunk after chunk. Its matrices are in
 * scratch, which stays in L1 and L2: some 300 KB forward at heads of 128 channels. Products are
 * plain fp32, in tiles of 8 rows and 64 columns per warp; each block computes the products of keys,
 * which the value heads of a key head could share. Not yet measured on a GPU.
 *
 * Used by: delta_forward.cu, delta_backward.cu, delta_segment.cu.   Uses: block, device, costs.
 * Threads: all threads of a block call each function; between functions the caller synchronizes,
 * and a function that synchronizes at its end says so.
 */
#ifndef HD_KERNELS_CUDA_DELTA_CUH
#define HD_KERNELS_CUDA_DELTA_CUH

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/costs/costs.h"
}

enum { DELTA_THREADS = 256, DELTA_ROWS = HD_DELTA_CHUNK, DELTA_M = 8, DELTA_SOLVE = 16 };

/* Vectors of a chunk in shared memory, DELTA_ROWS floats each. */
enum {
    DELTA_BETA,
    DELTA_G,
    DELTA_C, /* sums of g from the chunk's first row on */
    DELTA_E, /* factors of the state before the chunk */
    DELTA_F, /* factors of the rows in the state after the chunk */
    DELTA_DBETA,
    DELTA_DC,
    DELTA_DE,
    DELTA_DF,
    DELTA_VECTORS
};

template <typename T>
struct cuda_delta {
    struct hd_costs_delta_layout l;
    float *scratch; /* scratch of this block */
    float *vectors; /* shared, [DELTA_VECTORS, DELTA_ROWS] */
    int *document;  /* shared, [DELTA_ROWS]: number of the row's document in the chunk */
    const T *qkv;
    const float *gates;
    const int32_t *bound; /* [rows of the sequence], or NULL */
    int64_t origin;       /* index of the first row, as bounds count; 0: whole sequences */
    bool follows;         /* without bounds: the first row's document has rows before it */
    int64_t row;          /* first row of the sequence in qkv */
    int64_t head, key_head, G, H, Dk, Dv, ld;
    float eps;
    int64_t first;  /* first row of the chunk in the sequence */
    int count;      /* rows of the chunk */
    bool continues; /* document 0 began before the chunk */

    __device__ float *area(int64_t offset) const
    {
        return scratch + offset;
    }
    __device__ float *vector(int which) const
    {
        return vectors + which * DELTA_ROWS;
    }
};

/* Loops over the numbers below `end` that the thread has. */
#define DELTA_FOR(i, end) for (int64_t i = threadIdx.x; i < (end); i += DELTA_THREADS)

/* c[M, N] (+)= a b, with a[i, k] at a[i * am + k * ak]. Synchronizes at its end. */
static __device__ void delta_multiply(float *c, int64_t ldc, const float *a, int64_t am, int64_t ak,
                                      const float *b, int64_t ldb, int64_t M, int64_t N, int64_t K,
                                      bool add)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t across = (N + 63) / 64, tiles = (M + DELTA_M - 1) / DELTA_M * across;

    for (int64_t t = warp; t < tiles; t += DELTA_THREADS / 32) {
        const int64_t i0 = t / across * DELTA_M, j0 = t % across * 64 + lane;
        const bool has[2] = {j0 < N, j0 + 32 < N};
        float sums[DELTA_M][2];

#pragma unroll
        for (int i = 0; i < DELTA_M; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                sums[i][j] = add && has[j] && i0 + i < M ? c[(i0 + i) * ldc + j0 + 32 * j] : 0;
#pragma unroll 2 /* more would need more registers than a thread has */
        for (int64_t k = 0; k < K; k++) {
            float y[2];

#pragma unroll
            for (int j = 0; j < 2; j++)
                y[j] = has[j] ? b[k * ldb + j0 + 32 * j] : 0;
#pragma unroll
            for (int i = 0; i < DELTA_M; i++) {
                const float x = a[(i0 + i < M ? i0 + i : i0) * am + k * ak];

#pragma unroll
                for (int j = 0; j < 2; j++)
                    sums[i][j] += x * y[j];
            }
        }
#pragma unroll
        for (int i = 0; i < DELTA_M; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (has[j] && i0 + i < M)
                    c[(i0 + i) * ldc + j0 + 32 * j] = sums[i][j];
    }
    __syncthreads();
}

/* Transposes to[j, i] = from[i, j] for i < rows, j < columns; zero for rows <= i < width.
 * Synchronizes at its end. */
static __device__ void delta_transpose(float *to, int64_t ld_to, const float *from, int64_t ld,
                                       int64_t rows, int64_t columns, int64_t width)
{
    DELTA_FOR(n, columns * width)
    {
        const int64_t j = n / width, i = n % width;

        to[j * ld_to + i] = i < rows ? from[i * ld + j] : 0;
    }
    __syncthreads();
}

/* Sets rows and documents of the chunk that begins with row `first` of `S`. Synchronizes. */
template <typename T>
static __device__ void delta_begin_chunk(struct cuda_delta<T> &d, int64_t first, int64_t S)
{
    d.first = first;
    d.count = S - first < DELTA_ROWS ? (int)(S - first) : (int)DELTA_ROWS;
    d.continues = d.bound ? first > d.bound[first] - d.origin : first > 0 || d.follows;
    DELTA_FOR(i, d.count)
    {
        int documents = 0;

        for (int64_t j = 1; d.bound && j <= i; j++)
            documents += d.bound[first + j] - d.origin == first + j;
        d.document[i] = documents;
    }
    __syncthreads();
}

/* Loads rows of q or k of the chunk, divided by their length and times `scale`; a warp per row. */
template <typename T>
static __device__ void delta_load_normed(const struct cuda_delta<T> &d, float *to, int64_t column,
                                         float scale)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;

    for (int64_t i = warp; i < d.count; i += DELTA_THREADS / 32) {
        const T *from = d.qkv + (d.row + d.first + i) * d.ld + column;
        float squares = 0, factor;

        for (int64_t c = lane; c < d.Dk; c += 32)
            squares += to_float(from[c]) * to_float(from[c]);
        factor = scale / sqrtf(warp_add(squares) + d.eps);
        for (int64_t c = lane; c < d.l.key; c += 32)
            to[i * d.l.key + c] = c < d.Dk ? to_float(from[c]) * factor : 0;
    }
}

/* Loads k of the chunk, and with `queries` q, and multiplies them: areas q, k, qk and kk.
 * Synchronizes. */
template <typename T>
static __device__ void delta_load_keys(const struct cuda_delta<T> &d, bool queries = true)
{
    float *q = d.area(d.l.q), *k = d.area(d.l.k), *k_t = d.area(d.l.transposed);

    if (queries)
        delta_load_normed(d, q, d.key_head * d.Dk, 1.0f / sqrtf((float)d.Dk));
    delta_load_normed(d, k, (d.G + d.key_head) * d.Dk, 1.0f);
    __syncthreads();
    delta_transpose(k_t, DELTA_ROWS, k, d.l.key, d.count, d.Dk, DELTA_ROWS);
    if (queries)
        delta_multiply(d.area(d.l.qk), DELTA_ROWS, q, d.l.key, 1, k_t, DELTA_ROWS, d.count,
                       DELTA_ROWS, d.Dk, false);
    delta_multiply(d.area(d.l.kk), DELTA_ROWS, k, d.l.key, 1, k_t, DELTA_ROWS, d.count, DELTA_ROWS,
                   d.Dk, false);
}

/* Sets beta, c, e and f, and -L and with `queries` A: areas l and a. Synchronizes. */
template <typename T>
static __device__ void delta_load_gates(const struct cuda_delta<T> &d, bool queries = true)
{
    float *beta = d.vector(DELTA_BETA), *g = d.vector(DELTA_G), *c = d.vector(DELTA_C);
    float *a = d.area(d.l.a), *l = d.area(d.l.l);
    const float *qk = d.area(d.l.qk), *kk = d.area(d.l.kk);

    DELTA_FOR(i, d.count)
    {
        const float *gates = d.gates + (d.row + d.first + i) * 2 * d.H;

        beta[i] = gates[d.head];
        g[i] = gates[d.H + d.head];
    }
    __syncthreads();
    DELTA_FOR(i, d.count)
    {
        float sum = 0;

        for (int64_t j = 0; j <= i; j++)
            sum += g[j];
        c[i] = sum;
    }
    __syncthreads();
    DELTA_FOR(i, d.count)
    {
        const int last = d.document[d.count - 1];

        d.vector(DELTA_E)[i] = d.continues && d.document[i] == 0 ? expf(c[i]) : 0;
        d.vector(DELTA_F)[i] = d.document[i] == last ? expf(c[d.count - 1] - c[i]) : 0;
    }
    DELTA_FOR(n, (int64_t)d.count * DELTA_ROWS)
    {
        const int64_t i = n / DELTA_ROWS, j = n % DELTA_ROWS;
        const bool sees = j <= i && d.document[j] == d.document[i];
        const float decay = sees ? expf(c[i] - c[j]) : 0;

        if (queries)
            a[n] = sees ? qk[n] * decay : 0;
        l[n] = sees && j < i ? -beta[i] * kk[n] * decay : 0;
    }
    __syncthreads();
}

/* Solves (I + L) x = x, or with `transposed` (I + L)^T x = x, for rows [0, count) of x [., width],
 * given l = -L, by blocks of rows: one product with the rows that are done, then a thread per
 * column. Synchronizes. */
static __device__ void delta_solve(float *x, int64_t width, const float *l, int count,
                                   bool transposed)
{
    const int blocks = (count + DELTA_SOLVE - 1) / DELTA_SOLVE;

    for (int n = 0; n < blocks; n++) {
        const int begin = (transposed ? blocks - 1 - n : n) * DELTA_SOLVE;
        const int end = begin + DELTA_SOLVE < count ? begin + DELTA_SOLVE : count;

        if (!transposed && begin > 0)
            delta_multiply(x + begin * width, width, l + begin * DELTA_ROWS, DELTA_ROWS, 1, x,
                           width, end - begin, width, begin, true);
        if (transposed && end < count)
            delta_multiply(x + begin * width, width, l + end * DELTA_ROWS + begin, 1, DELTA_ROWS,
                           x + end * width, width, end - begin, width, count - end, true);
        DELTA_FOR(c, width)
        for (int step = 1; step < end - begin; step++) {
            const int r = transposed ? end - 1 - step : begin + step;
            float sum = x[r * width + c];

            for (int j = transposed ? r + 1 : begin; j < (transposed ? end : r); j++)
                sum +=
                    (transposed ? l[j * DELTA_ROWS + r] : l[r * DELTA_ROWS + j]) * x[j * width + c];
            x[r * width + c] = sum;
        }
        __syncthreads();
    }
}

/* Computes the matrices K M and U of the chunk (ops_delta.h) into the scratch areas km and u. m: the
 * state M before the chunk. Synchronizes. */
template <typename T>
static __device__ void delta_new_values(const struct cuda_delta<T> &d, const float *m)
{
    const int64_t value = d.l.value;
    float *u = d.area(d.l.u), *km = d.area(d.l.km);

    delta_multiply(km, value, d.area(d.l.k), d.l.key, 1, m, value, d.count, value, d.Dk, false);
    DELTA_FOR(n, d.count * value)
    {
        const int64_t i = n / value, c = n % value;
        const T *v = d.qkv + (d.row + d.first + i) * d.ld + 2 * d.G * d.Dk + d.head * d.Dv;

        u[n] = c < d.Dv ? d.vector(DELTA_BETA)[i] * (to_float(v[c]) - d.vector(DELTA_E)[i] * km[n])
                        : 0;
    }
    __syncthreads();
    delta_solve(u, value, d.area(d.l.l), d.count, false);
}

/* Copies a matrix of `columns` columns between memory and padded scratch m, `width` floats a row.
 * Synchronizes. */
static __device__ __forceinline__ void delta_take_state(float *m, int64_t width, const float *state,
                                                        int64_t rows, int64_t columns)
{
    DELTA_FOR(n, rows * columns)
    m[n / columns * width + n % columns] = state[n];
    __syncthreads();
}

static __device__ __forceinline__ void delta_put_state(float *state, const float *m, int64_t width,
                                                       int64_t rows, int64_t columns)
{
    DELTA_FOR(n, rows * columns)
    state[n] = m[n / columns * width + n % columns];
    __syncthreads();
}

/* Loads the gradients of the results of the chunk: area dout. Synchronizes. */
template <typename T>
static __device__ void delta_load_dout(const struct cuda_delta<T> &d, const T *results)
{
    float *dout = d.area(d.l.dout);

    DELTA_FOR(n, d.count * d.l.value)
    {
        const int64_t i = n / d.l.value, c = n % d.l.value;
        const int64_t at = ((d.row + d.first + i) * d.H + d.head) * d.Dv + c;

        dout[n] = c < d.Dv ? to_float(results[at]) : 0;
    }
    __syncthreads();
}

/* Computes the state after the chunk, out = e_last m + (f K)^T U; out may be m. Synchronizes. */
template <typename T>
static __device__ void delta_advance(const struct cuda_delta<T> &d, float *out, const float *m)
{
    const float decay = d.vector(DELTA_E)[d.count - 1];
    const float *k = d.area(d.l.k);
    float *fk = d.area(d.l.wide);

    DELTA_FOR(n, d.count * d.l.key)
    fk[n] = d.vector(DELTA_F)[n / d.l.key] * k[n];
    DELTA_FOR(n, d.l.key * d.l.value)
    out[n] = decay * m[n];
    __syncthreads();
    delta_multiply(out, d.l.value, fk, 1, d.l.key, d.area(d.l.u), d.l.value, d.l.key, d.l.value,
                   d.count, true);
}

/* Returns the value head of a block, with the members that the arguments give. */
template <typename T, typename Args>
static __device__ struct cuda_delta<T>
delta_of(const Args &a, const struct hd_costs_delta_layout &l, float *vectors, int *document) {
    const int64_t b = blockIdx.x / a.H;
    struct cuda_delta<T> d;

    d.l = l;
    d.scratch = (float *)a.scratch + blockIdx.x * l.floats;
    d.vectors = vectors;
    d.document = document;
    d.qkv = (const T *)a.qkv;
    d.gates = a.gates;
    d.bound = a.bound ? a.bound + b * a.S : NULL;
    d.origin = a.position ? a.position[b * a.S] : 0;
    d.follows = a.position != NULL;
    d.row = b * a.S;
    d.head = blockIdx.x % a.H;
    d.key_head = d.head / (a.H / a.G);
    d.G = a.G;
    d.H = a.H;
    d.Dk = a.Dk;
    d.Dv = a.Dv;
    d.ld = 2 * a.G * a.Dk + a.H * a.Dv;
    d.eps = a.eps;
    d.first = 0;
    d.count = 0;
    d.continues = false;
    return d;
}

#endif

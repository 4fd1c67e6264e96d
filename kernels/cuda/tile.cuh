/* tile: the tile of a GEMM that one thread block computes, c [rows, columns] = a [rows, depth]
 * b [depth, columns], for own GEMM and grouped GEMM.
 *
 * mma_tile uses tensor cores, for bf16 and f16 factors whose rows are aligned to 16 bytes. Slices
 * of 32 of the depth are copied asynchronously to shared memory, three slices in flight; chunks of
 * 16 bytes are swizzled so that ldmatrix has no bank conflicts. plain_tile uses multiply-adds, for
 * every dtype, leading dimension and address. Each element of c is one sum over the depth in order,
 * so it depends neither on its position in a tile nor on other rows.
 *
 * Used by: gemm_own.cu, moe_gemm.cu.   Uses: gelu.cuh, ptx.cuh.
 * Threads: device code; all threads of the block together.
 */
#ifndef HD_KERNELS_CUDA_TILE_CUH
#define HD_KERNELS_CUDA_TILE_CUH

#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/ptx.cuh"

/* A factor of a product: element (i, k), i < outer (a row of a, a column of b), k < depth, is
 * data[i * ld + k] if the depth is `inner`, else data[k * ld + i]. */
template <typename T>
struct factor {
    const T *data;
    int64_t ld, outer, depth;
};

/* The result c of a product: a matrix [rows, columns] of type dtype. */
struct target {
    void *data;
    int64_t ld, rows, columns;
    enum hd_dtype dtype;
    bool accumulate;
};

/* A result with bias, residual and epilogue. Grouped products have only a `target`, because their
 * tiles have no registers left. */
struct gemm_target : target {
    const void *bias; /* [columns] of bias_dtype; NULL: none */
    enum hd_dtype bias_dtype;
    enum hd_gemm_epilogue epilogue;
    /* input of GELU, written by forward, with size and type of `data`; NULL: none */
    void *pre;
    /* input of GELU, read by backward, with size and type of `data`; NULL: none */
    const void *gelu_inp;
    const void *add; /* residual, with size and type of `data`; NULL: none */
};

static __device__ __forceinline__ float load_any(const void *data, int64_t i, enum hd_dtype dtype)
{
    return dtype == HD_F32    ? static_cast<const float *>(data)[i]
           : dtype == HD_BF16 ? to_float(static_cast<const bf16 *>(data)[i])
                              : to_float(static_cast<const f16 *>(data)[i]);
}

static __device__ __forceinline__ void store_any(void *data, int64_t i, enum hd_dtype dtype,
                                                 float x)
{
    if (dtype == HD_F32)
        static_cast<float *>(data)[i] = x;
    else if (dtype == HD_BF16)
        static_cast<bf16 *>(data)[i] = from_float<bf16>(x);
    else
        static_cast<f16 *>(data)[i] = from_float<f16>(x);
}

/* Returns whether sums are stored unchanged: no accumulation, epilogue, bias or residual. */
static __device__ __forceinline__ bool is_plain(const struct target &c)
{
    return !c.accumulate;
}

static __device__ __forceinline__ bool is_plain(const struct gemm_target &c)
{
    return !(c.accumulate || c.bias || c.add || c.epilogue);
}

/* Stores c[row, column] (+)= sum */
static __device__ __forceinline__ void store_one(const struct target &c, int64_t row,
                                                 int64_t column, float sum)
{
    const int64_t i = row * c.ld + column;

    if (c.accumulate)
        sum += load_any(c.data, i, c.dtype);
    store_any(c.data, i, c.dtype, sum);
}

/* Stores c[row, column] (+)= sum (+ bias[column]) (+ add[row, column]), with the epilogue */
static __device__ __forceinline__ void store_one(const struct gemm_target &c, int64_t row,
                                                 int64_t column, float sum)
{
    const int64_t i = row * c.ld + column;

    if (c.accumulate || c.add)
        sum += load_any(c.accumulate ? c.data : c.add, i, c.dtype);
    if (c.bias)
        sum += load_any(c.bias, column, c.bias_dtype);
    if (c.pre)
        store_any(c.pre, i, c.dtype, sum);
    if (c.epilogue == HD_EPILOGUE_GELU)
        sum = gelu<float>(sum);
    else if (c.epilogue == HD_EPILOGUE_GELU_BACKWARD)
        sum *= gelu_slope<float>(load_any(c.gelu_inp, i, c.dtype));
    store_any(c.data, i, c.dtype, sum);
}

/* Stores the sums of two neighbouring columns, in one access if `paired` (every row is aligned to
 * two elements; column is even). */
template <typename C>
static __device__ __forceinline__ void store_two(const C &c, bool paired, int64_t row,
                                                 int64_t column, float low, float high)
{
    const int64_t i = row * c.ld + column;

    if (!paired || !is_plain(c) || column + 1 >= c.columns) {
        store_one(c, row, column, low);
        if (column + 1 < c.columns)
            store_one(c, row, column + 1, high);
    } else if (c.dtype == HD_F32) {
        *reinterpret_cast<float2 *>(static_cast<float *>(c.data) + i) = make_float2(low, high);
    } else {
        *reinterpret_cast<uint32_t *>(static_cast<char *>(c.data) + 2 * i) =
            c.dtype == HD_BF16 ? pack_two<bf16>(low, high) : pack_two<f16>(low, high);
    }
}

static __device__ __forceinline__ bool is_paired(const struct target &c)
{
    const uintptr_t two = c.dtype == HD_F32 ? 8 : 4;

    return reinterpret_cast<uintptr_t>(c.data) % two == 0 && c.ld % 2 == 0;
}

/* Stores sums [ROWS, COLUMNS] from shared memory (LINE floats per row) to c[row.., column..];
 * neighbouring threads store neighbouring columns. */
template <int ROWS, int COLUMNS, int LINE, int THREADS, typename C>
static __device__ __forceinline__ void store_sums(const float *sums, const C &c, int64_t row,
                                                  int64_t column)
{
    const bool paired = is_paired(c);

#pragma unroll 1
    for (int n = static_cast<int>(threadIdx.x); n < ROWS * COLUMNS / 2; n += THREADS) {
        const int i = n / (COLUMNS / 2), j = n % (COLUMNS / 2) * 2;
        const float2 two = *reinterpret_cast<const float2 *>(sums + i * LINE + j);

        if (row + i < c.rows && column + j < c.columns)
            store_two(c, paired, row + i, column + j, two.x, two.y);
    }
}

/* ---- On the tensor cores ---- */

enum { TILE_DEPTH = 32, TILE_STAGES = 3 };

/* Returns the position in shared memory of a chunk of 8 elements of a slice: OUTER lines of 4
 * chunks if INNER, else 32 lines of OUTER / 8. */
template <int OUTER, bool INNER>
static __device__ __forceinline__ int chunk_at(int line, int chunk)
{
    constexpr int CHUNKS = INNER ? TILE_DEPTH / 8 : OUTER / 8;

    return (line * CHUNKS + (chunk ^ (INNER ? line / 2 % 4 : line % 8))) * 8;
}

/* Starts copying a slice of a factor to shared memory: OUTER rows (columns) from `first` on; zeros
 * outside the matrix. */
template <typename T, int OUTER, int THREADS, bool INNER>
static __device__ __forceinline__ void fetch(T *to, const factor<T> &f, int64_t first,
                                             int64_t slice)
{
    constexpr int CHUNKS = INNER ? TILE_DEPTH / 8 : OUTER / 8, LINES = INNER ? OUTER : TILE_DEPTH;

#pragma unroll
    for (int n = 0; n < LINES * CHUNKS / THREADS; n++) {
        const int number = n * THREADS + static_cast<int>(threadIdx.x);
        const int line = number / CHUNKS, chunk = number % CHUNKS;
        const int64_t i = first + (INNER ? line : chunk * 8),
                      k = slice + (INNER ? chunk * 8 : line);
        const int64_t capacity =
            INNER ? (i < f.outer ? f.depth - k : 0) : (k < f.depth ? f.outer - i : 0);
        const T *from = f.data + (INNER ? i * f.ld + k : k * f.ld + i);
        T *at = to + chunk_at<OUTER, INNER>(line, chunk);

        if (capacity <= 0 || capacity >= 8) {
            cp_async_16(at, capacity > 0 ? from : f.data, capacity > 0);
        } else { /* the last chunk of a line: do not read past the row */
#pragma unroll
            for (int j = 0; j < 8; j++)
                at[j] = j < capacity ? from[j] : from_float<T>(0);
        }
    }
}

/* Loads fragment a of mma from a slice: 16 rows from `first`, 16 elements of the depth from k. */
template <typename T, int OUTER, bool INNER>
static __device__ __forceinline__ void load_a(uint32_t r[4], const T *tile, int first, int k)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, in = lane % 8;

    if (INNER)
        ldmatrix_x4(r,
                    tile + chunk_at<OUTER, INNER>(first + matrix % 2 * 8 + in, k / 8 + matrix / 2));
    else
        ldmatrix_x4_trans(
            r, tile + chunk_at<OUTER, INNER>(k + matrix / 2 * 8 + in, first / 8 + matrix % 2));
}

/* Loads two fragments b of mma from a slice: r[0..1] 8 columns from `first`, r[2..3] the next 8; 16
 * elements of the depth from k. */
template <typename T, int OUTER, bool INNER>
static __device__ __forceinline__ void load_b(uint32_t r[4], const T *tile, int first, int k)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, in = lane % 8;

    if (INNER)
        ldmatrix_x4(r,
                    tile + chunk_at<OUTER, INNER>(first + matrix / 2 * 8 + in, k / 8 + matrix % 2));
    else
        ldmatrix_x4_trans(
            r, tile + chunk_at<OUTER, INNER>(k + matrix % 2 * 8 + in, first / 8 + matrix / 2));
}

/* Dimensions of a tile of SIZE rows and columns, computed by WARPS warps in two rows; a warp has
 * [SIZE / 2, COLUMNS]. */
template <int SIZE>
struct mma_shape {
    static constexpr int WARPS = SIZE / 16, THREADS = 32 * WARPS;
    static constexpr int ROWS = SIZE / 2, COLUMNS = SIZE / (WARPS / 2);
    static constexpr int SHARED_BYTES = TILE_STAGES * 2 * SIZE * TILE_DEPTH * 2;
    static constexpr int LINE =
        SIZE + 8; /* floats per row of sums, padded against bank conflicts */
    static_assert(ROWS * LINE * 4 <= SHARED_BYTES, "half of the sums fit");
};

/* Computes and stores the tile whose first element is c[row, column]. `shared` has SHARED_BYTES,
 * aligned to 128; it may be reused when this returns. */
template <typename T, int SIZE, bool A_INNER, bool B_INNER, typename C>
static __device__ void mma_tile(T *shared, const factor<T> &a, const factor<T> &b, const C &c,
                                int64_t row, int64_t column)
{
    using shape = mma_shape<SIZE>;
    constexpr int M = shape::ROWS / 16, N = shape::COLUMNS / 8, SLICE = SIZE * TILE_DEPTH;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int first_row = warp % 2 * shape::ROWS, first_column = warp / 2 * shape::COLUMNS;
    const bool busy = row + first_row < c.rows && column + first_column < c.columns;
    const int64_t slices = (a.depth + TILE_DEPTH - 1) / TILE_DEPTH;
    float sum[M][N][4] = {};

#pragma unroll
    for (int s = 0; s < TILE_STAGES - 1; s++) {
        if (s < slices) {
            T *to = shared + s * 2 * SLICE;

            fetch<T, SIZE, shape::THREADS, A_INNER>(to, a, row, s * TILE_DEPTH);
            fetch<T, SIZE, shape::THREADS, B_INNER>(to + SLICE, b, column, s * TILE_DEPTH);
        }
        cp_async_commit();
    }
    for (int64_t slice = 0; slice < slices; slice++) {
        const T *tile_a = shared + slice % TILE_STAGES * 2 * SLICE, *tile_b = tile_a + SLICE;
        const int64_t next = slice + TILE_STAGES - 1;

        cp_async_wait<TILE_STAGES - 2>();
        /* this slice of the factors is complete; the one before it may be overwritten */
        __syncthreads();
        if (next < slices) {
            T *to = shared + next % TILE_STAGES * 2 * SLICE;

            fetch<T, SIZE, shape::THREADS, A_INNER>(to, a, row, next * TILE_DEPTH);
            fetch<T, SIZE, shape::THREADS, B_INNER>(to + SLICE, b, column, next * TILE_DEPTH);
        }
        cp_async_commit();
        if (!busy)
            continue;
#pragma unroll
        for (int k = 0; k < TILE_DEPTH; k += 16) {
            uint32_t in_a[M][4], in_b[N / 2][4];

#pragma unroll
            for (int m = 0; m < M; m++)
                load_a<T, SIZE, A_INNER>(in_a[m], tile_a, first_row + 16 * m, k);
#pragma unroll
            for (int n = 0; n < N / 2; n++)
                load_b<T, SIZE, B_INNER>(in_b[n], tile_b, first_column + 16 * n, k);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    mma_m16n8k16<T>(sum[m][n], in_a[m], in_b[n / 2] + n % 2 * 2);
        }
    }
    /* Store through shared memory: first the upper half of the warps, then the lower. */
    for (int half = 0; half < 2; half++) {
        float *sums = reinterpret_cast<float *>(shared);

        __syncthreads();
        if (warp % 2 == half) {
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    float *to = sums + (16 * m + lane / 4) * shape::LINE + first_column + 8 * n +
                                lane % 4 * 2;

                    *reinterpret_cast<float2 *>(to) = make_float2(sum[m][n][0], sum[m][n][1]);
                    *reinterpret_cast<float2 *>(to + 8 * shape::LINE) =
                        make_float2(sum[m][n][2], sum[m][n][3]);
                }
        }
        __syncthreads();
        store_sums<shape::ROWS, SIZE, shape::LINE, shape::THREADS>(
            sums, c, row + half * shape::ROWS, column);
    }
    __syncthreads(); /* `shared` may now be reused */
}

/* Returns whether tensor cores support the factor: elements of two bytes, rows aligned to 16. */
static inline bool is_mma_factor(const void *data, int64_t ld, enum hd_dtype dtype)
{
    return dtype != HD_F32 && reinterpret_cast<uintptr_t>(data) % 16 == 0 && ld % 8 == 0;
}

/* ---- Multiply-adds, without tensor cores ---- */

enum {
    PLAIN_SIZE = 64,
    PLAIN_DEPTH = 16,
    PLAIN_THREADS = 256,
    PLAIN_LINE = PLAIN_SIZE + 4,
    PLAIN_FLOATS = PLAIN_SIZE * PLAIN_LINE
};

/* Loads one slice of a factor as to[k][i]; neighbouring threads read neighbouring elements. */
template <typename T>
static __device__ __forceinline__ void fetch_plain(float *to, const factor<T> &f, bool inner,
                                                   int64_t first, int64_t slice)
{
#pragma unroll
    for (int n = 0; n < PLAIN_SIZE * PLAIN_DEPTH / PLAIN_THREADS; n++) {
        const int number = n * PLAIN_THREADS + static_cast<int>(threadIdx.x);
        const int i = inner ? number / PLAIN_DEPTH : number % PLAIN_SIZE;
        const int k = inner ? number % PLAIN_DEPTH : number / PLAIN_SIZE;
        const bool there = first + i < f.outer && slice + k < f.depth;
        const int64_t at = inner ? (first + i) * f.ld + slice + k : (slice + k) * f.ld + first + i;

        to[k * PLAIN_LINE + i] = there ? to_float(f.data[at]) : 0;
    }
}

/* Computes and stores a tile like mma_tile, with PLAIN_THREADS threads; `shared` has PLAIN_FLOATS
 * floats. A thread computes 4 x 4 elements, 16 rows and columns apart. */
template <typename T, typename C>
static __device__ void plain_tile(float *shared, const factor<T> &a, bool a_inner,
                                  const factor<T> &b, bool b_inner, const C &c, int64_t row,
                                  int64_t column)
{
    float *tile_a = shared, *tile_b = shared + PLAIN_DEPTH * PLAIN_LINE;
    const int i = static_cast<int>(threadIdx.x) / 16, j = static_cast<int>(threadIdx.x) % 16;
    float sum[4][4] = {};

    for (int64_t slice = 0; slice < a.depth; slice += PLAIN_DEPTH) {
        fetch_plain(tile_a, a, a_inner, row, slice);
        fetch_plain(tile_b, b, b_inner, column, slice);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < PLAIN_DEPTH; k++) {
            float x[4], y[4];

#pragma unroll
            for (int n = 0; n < 4; n++) {
                x[n] = tile_a[k * PLAIN_LINE + i + 16 * n];
                y[n] = tile_b[k * PLAIN_LINE + j + 16 * n];
            }
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    sum[m][n] = fmaf(x[m], y[n], sum[m][n]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            shared[(i + 16 * m) * PLAIN_LINE + j + 16 * n] = sum[m][n];
    __syncthreads();
    store_sums<PLAIN_SIZE, PLAIN_SIZE, PLAIN_LINE, PLAIN_THREADS>(shared, c, row, column);
    __syncthreads(); /* `shared` may now be reused */
}

#endif

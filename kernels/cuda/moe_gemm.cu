/* moe_gemm: grouped GEMMs of experts. The rows of all experts are in one buffer; the counts are in
 * device memory, which the host does not read. So the host launches blocks for T rows, and each
 * block computes the tiles of all experts from the counts and processes every n-th tile.
 *
 * Bytes: per tile its rows and its expert's columns. With few rows per expert these GEMMs are bound
 * by reading the experts' matrices; so tiles of one expert and one range of columns are
 * consecutive, and share these columns in L2.
 */
#include "kernels/cuda/device.cuh"

#include "base/math.h"
#include "kernels/cuda/tile.cuh"

extern "C" {
#include "kernels/costs/costs.h"
}

enum { BIG = 128, SMALL = 64, BLOCKS_PER_MULTIPROCESSOR = 4 };

/* Number of blocks per multiprocessor: one computes while the other waits for the copies of its
 * next tiles. Without this bound a kernel with the BIG tile takes more than 128 registers, and only
 * one block fits. */
template <int WAY>
constexpr int grouped_resident = WAY == BIG ? 2 : 1;

/* Computes begins [E + 1]: each expert's first row, T at most. All threads call; ends with a
 * barrier. */
__device__ __forceinline__ void count_rows(int32_t *begins, const int32_t *counts, int64_t E,
                                           int64_t T)
{
    for (int64_t e = threadIdx.x; e < E; e += blockDim.x)
        begins[e + 1] = counts[e];
    __syncthreads();
    if (threadIdx.x == 0) {
        int64_t end = 0;

        begins[0] = 0;
        for (int64_t e = 0; e < E; e++) {
            end += begins[e + 1] > 0 ? begins[e + 1] : 0;
            end = end < T ? end : T;
            begins[e + 1] = static_cast<int32_t>(end);
        }
    }
    __syncthreads();
}

/* Finds the expert *e to which tile number `tile` belongs, starting from the previous *e, whose
 * first tile is *first. Returns false if there are no more tiles. */
__device__ __forceinline__ bool find_expert(const int32_t *begins, int64_t E, int64_t per_rows,
                                            int size, int64_t tile, int64_t *e, int64_t *first)
{
    for (; *e < E; ++*e) {
        const int64_t rows = begins[*e + 1] - begins[*e];
        const int64_t tiles = (rows + size - 1) / size * per_rows;

        if (tile < *first + tiles)
            return true;
        *first += tiles;
    }
    return false;
}

struct cuda_grouped {
    struct target c; /* result of the grouped product; c.rows is T */
    const int32_t *counts;
    int64_t E, T, stride; /* experts, rows of all experts, distance between the experts' matrices */
    int64_t first, end;   /* range of experts whose matrices are at b; 0, E: all experts */
};

/* Computes every n-th tile of the products of experts [first, end). WAY: tile size on tensor cores,
 * 64 or 128; 0: without tensor cores (plain_tile). */
template <typename T, int WAY, bool B_INNER>
__device__ __forceinline__ void grouped_tiles(T *shared, int32_t *begins, const factor<T> &a,
                                              const factor<T> &b, const struct cuda_grouped &g)
{
    constexpr int SIZE = WAY ? WAY : static_cast<int>(PLAIN_SIZE);
    const int64_t columns = (g.c.columns + SIZE - 1) / SIZE;
    const int64_t element = g.c.dtype == HD_F32 ? 4 : 2;
    int64_t e = g.first, first = 0;

    count_rows(begins, g.counts, g.E, g.T);
    for (int64_t tile = blockIdx.x; find_expert(begins, g.end, columns, SIZE, tile, &e, &first);
         tile += gridDim.x) {
        const int64_t begin = begins[e], rows = begins[e + 1] - begin;
        const int64_t lines = (rows + SIZE - 1) / SIZE, number = tile - first;
        const factor<T> mine = {a.data + begin * a.ld, a.ld, rows, a.depth};
        const factor<T> expert = {b.data + (e - g.first) * g.stride, b.ld, b.outer, b.depth};
        struct target c = g.c;

        c.data = static_cast<char *>(g.c.data) + begin * g.c.ld * element;
        c.rows = rows;
        if constexpr (WAY != 0)
            mma_tile<T, SIZE, true, B_INNER>(shared, mine, expert, c, number % lines * SIZE,
                                             number / lines * SIZE);
        else
            plain_tile(reinterpret_cast<float *>(shared), mine, true, expert, B_INNER, c,
                       number % lines * SIZE, number / lines * SIZE);
    }
}

template <typename T, int WAY, bool B_INNER>
__global__ void __launch_bounds__(WAY ? 2 * WAY : static_cast<int>(PLAIN_THREADS),
                                  grouped_resident<WAY>)
    grouped_gemm_kernel(factor<T> a, factor<T> b, struct cuda_grouped g, size_t begins_at)
{
    HD_SHARED_DYNAMIC(char, shared);

    grouped_tiles<T, WAY, B_INNER>(reinterpret_cast<T *>(shared),
                                   reinterpret_cast<int32_t *>(shared + begins_at), a, b, g);
}

/* Computes the gradients of the experts' matrices: c.rows and c.columns are the size of one
 * gradient; the depth is the rows of an expert. */
template <typename T, int WAY>
__global__ void __launch_bounds__(WAY ? 2 * WAY : static_cast<int>(PLAIN_THREADS),
                                  grouped_resident<WAY>)
    grouped_gemm_weight_kernel(factor<T> a, factor<T> b, struct cuda_grouped g, size_t begins_at)
{
    HD_SHARED_DYNAMIC(char, shared);
    constexpr int SIZE = WAY ? WAY : static_cast<int>(PLAIN_SIZE);
    int32_t *begins = reinterpret_cast<int32_t *>(shared + begins_at);
    const int64_t columns = (g.c.columns + SIZE - 1) / SIZE;
    const int64_t lines = (g.c.rows + SIZE - 1) / SIZE;

    count_rows(begins, g.counts, g.E, g.T);
    for (int64_t tile = blockIdx.x; tile < g.E * lines * columns; tile += gridDim.x) {
        const int64_t e = tile / (lines * columns), number = tile % (lines * columns);
        const int64_t begin = begins[e], rows = begins[e + 1] - begin;
        const factor<T> mine_a = {a.data + begin * a.ld, a.ld, a.outer, rows};
        const factor<T> mine_b = {b.data + begin * b.ld, b.ld, b.outer, rows};
        struct target c = g.c;

        if (rows == 0 && c.accumulate)
            continue; /* an expert without rows adds nothing to its gradient */
        c.data = static_cast<float *>(g.c.data) + e * g.stride;
        if constexpr (WAY != 0)
            mma_tile<T, SIZE, false, false>(reinterpret_cast<T *>(shared), mine_a, mine_b, c,
                                            number / columns * SIZE, number % columns * SIZE);
        else
            plain_tile(reinterpret_cast<float *>(shared), mine_a, false, mine_b, false, c,
                       number / columns * SIZE, number % columns * SIZE);
    }
}

/* Returns the bytes of shared memory that tiles of size WAY need, without `begins`, which follow
 * them. */
static size_t shared_of(int way)
{
    return way == BIG     ? mma_shape<BIG>::SHARED_BYTES
           : way == SMALL ? mma_shape<SMALL>::SHARED_BYTES
                          : PLAIN_FLOATS * sizeof(float);
}

static size_t begins_bytes(int64_t E)
{
    return static_cast<size_t>(E + 1) * sizeof(int32_t);
}

static dim3 grouped_grid_of(const struct hd_cuda_stream *stream, int64_t tiles)
{
    const int64_t most =
        static_cast<int64_t>(stream->cuda->traits.multiprocessors) * BLOCKS_PER_MULTIPROCESSOR;

    return dim3(static_cast<unsigned>(tiles < most ? tiles : most));
}

/* Chooses the tile size WAY. It depends on shapes only, not on the counts, so that results do not
 * depend on the counts either. */
static int choose_tile_size(const struct hd_cuda_stream *stream, bool takes_mma, bool many)
{
    return stream->cuda->options.force_plain || !takes_mma ? 0 : many ? BIG : SMALL;
}

template <typename T>
static enum hd_status launch_grouped(struct hd_cuda_stream *stream,
                                     const struct hd_grouped_gemm_args *args, int64_t first,
                                     int64_t end, int way)
{
    const factor<T> a = {static_cast<const T *>(args->a), args->lda, args->T, args->K};
    const factor<T> b = {static_cast<const T *>(args->b), args->ldb, args->N, args->K};
    const struct target c = {args->c, args->ldc, args->T, args->N, args->c_dtype, args->accumulate};
    const struct cuda_grouped g = {c, args->counts, args->E, args->T, args->stride_b, first, end};
    const int size = way ? way : static_cast<int>(PLAIN_SIZE);
    const int64_t lines = args->T / size + (args->E < args->T ? args->E : args->T);
    const dim3 grid = grouped_grid_of(stream, lines * hd_divide_up(args->N, size));
    const dim3 block(way ? 2 * way : static_cast<int>(PLAIN_THREADS));
    const size_t at = shared_of(way), bytes = at + begins_bytes(args->E);

#define WAY(way, inner) \
    HD_LAUNCH(stream, (grouped_gemm_kernel<T, way, inner>), grid, block, bytes, a, b, g, at)
    if constexpr (sizeof(T) == 2) {
        if (way == BIG)
            return args->trans_b ? WAY(BIG, true) : WAY(BIG, false);
        if (way == SMALL)
            return args->trans_b ? WAY(SMALL, true) : WAY(SMALL, false);
    }
    return args->trans_b ? WAY(0, true) : WAY(0, false);
#undef WAY
}

/* Multiplies the rows of experts [first, end), whose decoded (plain) matrices are at args->b. */
static enum hd_status multiply_experts(struct hd_cuda_stream *stream,
                                       const struct hd_grouped_gemm_args *args, int64_t first,
                                       int64_t end)
{
    const int64_t element = static_cast<int64_t>(hd_dtype_size(args->ab_dtype));
    const bool takes_mma = is_mma_factor(args->a, args->lda, args->ab_dtype) &&
                           is_mma_factor(args->b, args->ldb, args->ab_dtype) &&
                           args->stride_b * element % 16 == 0;

    HD_CUDA_FLOATS(
        args->ab_dtype, T,
        return launch_grouped<T>(stream, args, first, end,
                                 choose_tile_size(stream, takes_mma, args->T >= args->E * BIG)));
    return HD_OK;
}

/* Decodes, for each of the experts [first, end), the part of its matrix for one slab of columns of
 * c; consecutively into scratch. */
static enum hd_status decode_experts(struct hd_cuda_stream *stream,
                                     const struct hd_grouped_gemm_args *args, int64_t first,
                                     int64_t end, int64_t column, int64_t columns)
{
    const int64_t element = static_cast<int64_t>(hd_dtype_size(args->ab_dtype));
    enum hd_status st = HD_OK;

    for (int64_t e = first; !st && e < end; e++)
        st = hd_cuda_decode(
            stream, &args->b_codes, static_cast<const char *>(args->b) + e * args->stride_b,
            args->trans_b ? column : 0, args->trans_b ? columns : args->K,
            args->trans_b ? 0 : column, args->trans_b ? args->K : columns,
            static_cast<char *>(args->scratch) + (e - first) * columns * args->K * element,
            args->ab_dtype);
    return st;
}

static enum hd_status multiply_expert_codes(struct hd_cuda_stream *stream,
                                            const struct hd_grouped_gemm_args *args)
{
    const struct hd_gemm_args one = hd_costs_grouped_product(args, 1);
    const int64_t columns = hd_costs_gemm_slabs(&one).columns;
    const int64_t experts = hd_costs_grouped_slab_experts(args);
    enum hd_status st = HD_OK;

    for (int64_t e = 0; !st && e < args->E; e += experts)
        for (int64_t at = 0; !st && at < args->N; at += columns) {
            const int64_t end = args->E - e < experts ? args->E : e + experts;
            struct hd_grouped_gemm_args part = *args;

            part.N = args->N - at < columns ? args->N - at : columns;
            part.b = args->scratch;
            part.ldb = args->trans_b ? args->K : part.N;
            part.stride_b = part.N * args->K;
            part.c = static_cast<char *>(args->c) +
                     at * static_cast<int64_t>(hd_dtype_size(args->c_dtype));
            st = decode_experts(stream, args, e, end, at, part.N);
            if (!st)
                st = multiply_experts(stream, &part, e, end);
        }
    return st;
}

extern "C" enum hd_status hd_cuda_grouped_gemm(struct hd_cuda_stream *stream,
                                               const struct hd_grouped_gemm_args *args)
{
    if (args->T <= 0 || args->N <= 0 || args->E <= 0)
        return HD_OK;
    return args->b_codes.quant ? multiply_expert_codes(stream, args)
                               : multiply_experts(stream, args, 0, args->E);
}

template <typename T>
static enum hd_status launch_weight(struct hd_cuda_stream *stream,
                                    const struct hd_grouped_gemm_weight_args *args, int way)
{
    const factor<T> a = {static_cast<const T *>(args->a), args->lda, args->M, args->T};
    const factor<T> b = {static_cast<const T *>(args->b), args->ldb, args->N, args->T};
    const struct target c = {args->c, args->ldc, args->M, args->N, HD_F32, args->accumulate};
    const struct cuda_grouped g = {c, args->counts, args->E, args->T, args->stride_c, 0, args->E};
    const int size = way ? way : static_cast<int>(PLAIN_SIZE);
    const dim3 grid = grouped_grid_of(stream, args->E * hd_divide_up(args->M, size) *
                                                  hd_divide_up(args->N, size));
    const dim3 block(way ? 2 * way : static_cast<int>(PLAIN_THREADS));
    const size_t at = shared_of(way), bytes = at + begins_bytes(args->E);

#define WAY(way) \
    HD_LAUNCH(stream, (grouped_gemm_weight_kernel<T, way>), grid, block, bytes, a, b, g, at)
    if constexpr (sizeof(T) == 2) {
        if (way == BIG)
            return WAY(BIG);
        if (way == SMALL)
            return WAY(SMALL);
    }
    return WAY(0);
#undef WAY
}

extern "C" enum hd_status
hd_cuda_grouped_gemm_weight(struct hd_cuda_stream *stream,
                            const struct hd_grouped_gemm_weight_args *args)
{
    const bool takes_mma = is_mma_factor(args->a, args->lda, args->ab_dtype) &&
                           is_mma_factor(args->b, args->ldb, args->ab_dtype);

    if (args->M <= 0 || args->N <= 0 || args->E <= 0)
        return HD_OK;
    HD_CUDA_FLOATS(
        args->ab_dtype, T,
        return launch_weight<T>(
            stream, args,
            choose_tile_size(stream, takes_mma, args->M >= 2 * BIG && args->N >= 2 * BIG)));
    return HD_OK;
}

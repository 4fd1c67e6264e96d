/* decode: a box of an encoded factor (base/quant.h) as plain numbers, in the scratch of a product,
 * which cuBLASLt or own code then multiplies.
 *
 * Bytes of R x C elements: 0.52 R C (nf4) or R C read, R C e written. A thread decodes RUN
 * neighbours of a row, which have one scale where rows are whole blocks. Product and sum of a scale
 * of nf4 are rounded apart, as on the host.
 *
 * Not measured on a GPU yet. */
#include "kernels/cuda/device.cuh"

enum { DECODE_THREADS = 256, DECODE_RUN = 8 };

/* 16 values of nf4, by code. */
struct decode_values {
    float at[HD_NF4_VALUES];
};

static __device__ __forceinline__ float decode_scale(const struct hd_quant_matrix &m,
                                                     const char *memory, int64_t block)
{
    const float *second = reinterpret_cast<const float *>(memory + m.second);
    const uint8_t code = reinterpret_cast<const uint8_t *>(memory + m.scales)[block];
    const int64_t group = hd_nf4_block_of(&m, block) / HD_NF4_BLOCKS;

    return __fadd_rn(
        __fmul_rn(second[HD_NF4_SECOND_MAP + code], second[HD_NF4_SECOND_SCALES + group]),
        second[0]);
}

/* Elements [first, first + count) of a matrix, within one row. */
template <typename T>
static __device__ __forceinline__ void
decode_run(const struct hd_quant_factor &f, const struct hd_quant_matrix &m, const char *memory,
           const struct decode_values &values, int64_t row, int64_t column, int count, T *to)
{
    const uint8_t *codes = reinterpret_cast<const uint8_t *>(memory + m.at);
    const int64_t first = row * f.columns + column;
    float scale = 0;

    if (f.quant != HD_QUANT_NF4)
        scale = reinterpret_cast<const float *>(memory + m.scales)[row];
    for (int i = 0; i < count; i++) {
        const int64_t at = first + i;

        if (f.quant == HD_QUANT_NF4) {
            const int code = at % 2 ? codes[at / 2] & 15 : codes[at / 2] >> 4;

            if (i == 0 || at % HD_NF4_BLOCK == 0)
                scale = decode_scale(m, memory, at / HD_NF4_BLOCK);
            to[i] = from_float<T>(values.at[code] * scale);
        } else if (f.quant == HD_QUANT_INT8) {
            to[i] = from_float<T>(hd_int8_value(static_cast<int8_t>(codes[at]), scale));
        } else {
            to[i] = from_float<T>(hd_fp8_value(codes[at], HD_E4M3) * scale);
        }
    }
}

/* to [rows, columns] without gaps = the box of the factor that begins at `row`, `column`. */
template <typename T>
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_kernel(struct hd_quant_factor f, const char *memory, struct decode_values values,
                  int64_t row, int64_t rows, int64_t column, int64_t columns, T *to)
{
    const int64_t runs = (columns + DECODE_RUN - 1) / DECODE_RUN;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * DECODE_THREADS;

    for (int64_t i = static_cast<int64_t>(blockIdx.x) * DECODE_THREADS + threadIdx.x;
         i < rows * runs; i += threads) {
        const int64_t line = i / runs, begin = i % runs * DECODE_RUN;
        const int64_t left = columns - begin;
        int64_t r = row + line;
        int k = 0;

        while (r >= f.matrix[k].rows)
            r -= f.matrix[k++].rows;
        decode_run<T>(f, f.matrix[k], memory, values, r, column + begin,
                      left < DECODE_RUN ? static_cast<int>(left) : static_cast<int>(DECODE_RUN),
                      to + line * columns + begin);
    }
}

extern "C" enum hd_status hd_cuda_decode(struct hd_cuda_stream *stream,
                                         const struct hd_quant_factor *factor, const void *memory,
                                         int64_t row, int64_t rows, int64_t column, int64_t columns,
                                         void *to, enum hd_dtype dtype)
{
    const int64_t runs = rows * ((columns + DECODE_RUN - 1) / DECODE_RUN);
    const int64_t most = static_cast<int64_t>(stream->cuda->traits.multiprocessors) * 32;
    const int64_t blocks = (runs + DECODE_THREADS - 1) / DECODE_THREADS;
    struct decode_values values;

    memcpy(values.at, hd_nf4_values(), sizeof values.at);
    HD_CUDA_FLOATS(dtype, T,
                   return HD_LAUNCH(stream, decode_kernel<T>,
                                    dim3(static_cast<unsigned>(blocks < most ? blocks : most)),
                                    dim3(DECODE_THREADS), 0, *factor,
                                    static_cast<const char *>(memory), values, row, rows, column,
                                    columns, static_cast<T *>(to)));
    return HD_OK;
}

/* decode: decodes a box of an encoded factor (base/quant.h) into the scratch of a product, which
 * cuBLASLt or own code then multiplies.
 *
 * Bytes of R x C elements: 0.52 R C (nf4) or R C read, R C e written. A thread decodes RUN
 * neighbours of a row, which share one scale if rows are whole blocks (decode.cuh).
 *
 * Not yet measured on a GPU.
 */
#include "kernels/cuda/decode.cuh"

enum { DECODE_THREADS = 256, DECODE_RUN = 8 };

/* Decodes a part of the encoded factor, which begins at `row`, `column`, to the matrix `to`, [rows,
 * columns] without gaps. */
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
    const struct decode_values values = decode_nf4_values();

    HD_CUDA_FLOATS(dtype, T,
                   return HD_LAUNCH(stream, decode_kernel<T>,
                                    dim3(static_cast<unsigned>(blocks < most ? blocks : most)),
                                    dim3(DECODE_THREADS), 0, *factor,
                                    static_cast<const char *>(memory), values, row, rows, column,
                                    columns, static_cast<T *>(to)));
    return HD_OK;
}

/* decode: decodes values of an encoded factor (base/quant.h) in one thread. The scale of nf4 is a
 * product plus a sum, each rounded separately, as on the host.
 *
 * Used by: decode, dora.   Uses: device.
 */
#ifndef HD_KERNELS_CUDA_DECODE_CUH
#define HD_KERNELS_CUDA_DECODE_CUH

#include "kernels/cuda/device.cuh"

/* The 16 values of nf4, by code. */
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

/* Decodes elements [column, column + count) of one row of an encoded matrix. */
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

/* Returns the table of the 16 values of nf4, to be passed by value to a kernel. */
static inline struct decode_values decode_nf4_values()
{
    struct decode_values values;

    memcpy(values.at, hd_nf4_values(), sizeof values.at);
    return values;
}

#endif

/* micro: the register-blocked inner loop of own fp32 GEMM and attention.
 *
 * c[M, N] (+)= a[M, K] b[K, N] in fp32. b is read in vectors along its rows; values of a are
 * broadcast one by one. A block of MICRO_M rows and MICRO_N columns of c stays in registers for the
 * whole depth K.
 *
 * Used by: gemm_blocked, attention, delta.   Uses: vec.   Threads: any.
 */
#ifndef HD_KERNELS_CPU_MICRO_H
#define HD_KERNELS_CPU_MICRO_H

#include "kernels/cpu/vec.h"

/* Number of rows of a block of c that stays in registers. 32 registers hold 14 x 2 sums, two
 * vectors of b and a broadcast; 16 registers hold 6 x 2 sums. */
#if VEC_BYTES == 64
enum { MICRO_M = 14 };
#else
enum { MICRO_M = 6 };
#endif
enum { MICRO_N = 2 * VL };

/* Pragma that unrolls the loop along K. With only 12 multiply-adds per step, loop overhead matters:
 * on Zen 3 with AVX2 unrolling raised the rate from 74 to 88 GFLOP/s. With 28 multiply-adds it is
 * not needed. */
#if VEC_BYTES == 64
#define MICRO_DEPTH
#elif defined(__clang__)
#define MICRO_DEPTH _Pragma("clang loop unroll_count(4)")
#else
#define MICRO_DEPTH _Pragma("GCC unroll 4")
#endif

/* Computes one block of c[M, N] (+)= a b: m <= MICRO_M rows, nv <= 2 vectors of columns. a[i, k] is
 * a[i * am + k * ak]; m, nv, am and ak are constants where this is inlined. */
INLINE void micro_block(const int m, const int nv, float *c, int64_t ldc, const float *a,
                        const int64_t am, const int64_t ak, const float *b, int64_t ldb, int64_t K,
                        bool add)
{
    vf sums[MICRO_M][2];

    UNROLL
    for (int i = 0; i < m; i++) {
        UNROLL
        for (int j = 0; j < nv; j++)
            sums[i][j] = add ? vf_load_f32(c + i * ldc + j * VL, VL) : (vf){0};
    }
    MICRO_DEPTH
    for (int64_t k = 0; k < K; k++) {
        vf row[2];

        UNROLL
        for (int j = 0; j < nv; j++)
            row[j] = vf_load_f32(b + k * ldb + j * VL, VL);
        UNROLL
        for (int i = 0; i < m; i++) {
            const float x = a[i * am + k * ak];

            UNROLL
            for (int j = 0; j < nv; j++)
                sums[i][j] += x * row[j];
        }
    }
    UNROLL
    for (int i = 0; i < m; i++) {
        UNROLL
        for (int j = 0; j < nv; j++)
            vf_store_f32(c + i * ldc + j * VL, VL, sums[i][j]);
    }
}

/* Computes m <= MICRO_M rows of c (+)= a b, for example the last rows of a matrix. */
INLINE void micro_rows(int m, const int nv, float *c, int64_t ldc, const float *a, const int64_t am,
                       const int64_t ak, const float *b, int64_t ldb, int64_t K, bool add)
{
    switch (m) {
#define ROWS(count)                                                \
    case count:                                                    \
        micro_block(count, nv, c, ldc, a, am, ak, b, ldb, K, add); \
        break
        ROWS(1);
        ROWS(2);
        ROWS(3);
        ROWS(4);
        ROWS(5);
        ROWS(6);
#if VEC_BYTES == 64
        ROWS(7);
        ROWS(8);
        ROWS(9);
        ROWS(10);
        ROWS(11);
        ROWS(12);
        ROWS(13);
        ROWS(14);
#endif
#undef ROWS
    default:
        break;
    }
}

/* Computes the whole product c[M, N] (+)= a[M, K] b[K, N], block by block. N is a multiple of VL;
 * am and ak are constants where this is inlined. */
INLINE void micro_multiply(float *c, int64_t ldc, const float *a, const int64_t am,
                           const int64_t ak, const float *b, int64_t ldb, int64_t M, int64_t N,
                           int64_t K, bool add)
{
    for (int64_t i = 0; i < M; i += MICRO_M) {
        const int m = M - i < MICRO_M ? (int)(M - i) : MICRO_M;
        int64_t j = 0;

        for (; j + MICRO_N <= N; j += MICRO_N)
            micro_rows(m, 2, c + i * ldc + j, ldc, a + i * am, am, ak, b + j, ldb, K, add);
        if (j < N)
            micro_rows(m, 1, c + i * ldc + j, ldc, a + i * am, am, ak, b + j, ldb, K, add);
    }
}

#endif

/* ptx: instructions without a CUDA C++ function: matrix loads, asynchronous copies, mma,
 * approximate exp2, vector stores.
 *
 * Fragments as in the PTX ISA: with g = lane / 4 and t = lane % 4 * 2,
 *     a[0] a[1] a[2] a[3]   rows g, g + 8, g, g + 8; columns t, t + 1 (a[0], a[1]), t + 8, t + 9
 *     b[0] b[1]             rows t, t + 1 and t + 8, t + 9; column g
 *     d[0..1] d[2..3]       rows g and g + 8; columns t, t + 1
 * ldmatrix gives a, if each lane passes the row address tile + (lane % 16) * ld + lane / 16 * 8 of
 * a row-major 16 x 16 tile. All 32 lanes must call ldmatrix and mma together.
 *
 * Used by: the files *.cu of kernels/cuda.   Uses: device.cuh; sm_80 or later.
 * Threads: device code.
 */
#ifndef HD_KERNELS_CUDA_PTX_CUH
#define HD_KERNELS_CUDA_PTX_CUH

#include "kernels/cuda/device.cuh"

#ifdef HD_CUDASIM

using shared_at = uintptr_t; /* address in shared memory, for address arithmetic */

static inline void ldmatrix_x1(uint32_t r[1], const void *smem, HD_CUDASIM_HERE)
{
    hd_cudasim_ldmatrix(r, 1, false, smem, HD_CUDASIM_SITE);
}
static inline void ldmatrix_x2(uint32_t r[2], const void *smem, HD_CUDASIM_HERE)
{
    hd_cudasim_ldmatrix(r, 2, false, smem, HD_CUDASIM_SITE);
}
static inline void ldmatrix_x4(uint32_t r[4], const void *smem, HD_CUDASIM_HERE)
{
    hd_cudasim_ldmatrix(r, 4, false, smem, HD_CUDASIM_SITE);
}
static inline void ldmatrix_x2_trans(uint32_t r[2], const void *smem, HD_CUDASIM_HERE)
{
    hd_cudasim_ldmatrix(r, 2, true, smem, HD_CUDASIM_SITE);
}
static inline void ldmatrix_x4_trans(uint32_t r[4], const void *smem, HD_CUDASIM_HERE)
{
    hd_cudasim_ldmatrix(r, 4, true, smem, HD_CUDASIM_SITE);
}
static inline shared_at hd_shared_address(const void *smem)
{
    return reinterpret_cast<shared_at>(smem);
}
static inline unsigned hd_remade(unsigned x)
{
    return x;
}
static inline void ldmatrix_x4_at(uint32_t r[4], shared_at smem, HD_CUDASIM_HERE)
{
    hd_cudasim_ldmatrix(r, 4, false, reinterpret_cast<const void *>(smem), HD_CUDASIM_SITE);
}
static inline void ldmatrix_x4_trans_at(uint32_t r[4], shared_at smem, HD_CUDASIM_HERE)
{
    hd_cudasim_ldmatrix(r, 4, true, reinterpret_cast<const void *>(smem), HD_CUDASIM_SITE);
}
static inline void cp_async_16(void *smem, const void *global, bool valid, HD_CUDASIM_HERE)
{
    hd_cudasim_copy(smem, global, valid, HD_CUDASIM_SITE);
}
static inline void store_8(uint2 *to, uint2 w, HD_CUDASIM_HERE)
{
    hd_cudasim_store(to, w, file, line);
}
static inline void store_16(uint4 *to, uint4 w, HD_CUDASIM_HERE)
{
    hd_cudasim_store(to, w, file, line);
}
static inline void cp_async_commit(void)
{
    hd_cudasim_copy_commit();
}
template <int N>
static inline void cp_async_wait(void)
{
    hd_cudasim_copy_wait(N);
}
template <typename T>
static inline void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                HD_CUDASIM_HERE);
template <>
inline void mma_m16n8k16<bf16>(float d[4], const uint32_t a[4], const uint32_t b[2],
                               const char *file, int line)
{
    hd_cudasim_mma(d, a, b, true, HD_CUDASIM_SITE);
}
template <>
inline void mma_m16n8k16<f16>(float d[4], const uint32_t a[4], const uint32_t b[2],
                              const char *file, int line)
{
    hd_cudasim_mma(d, a, b, false, HD_CUDASIM_SITE);
}

static inline float exp2_approx(float x)
{
    return exp2f(x);
}

#else

/* Stores 8 or 16 aligned bytes to global memory in one instruction. */
static __device__ __forceinline__ void store_8(uint2 *to, uint2 w)
{
    asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(w.x), "r"(w.y)
                 : "memory");
}

static __device__ __forceinline__ void store_16(uint4 *to, uint4 w)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
                 : "memory");
}

/* Returns 2^x with an error of 2 units in the last place, in one instruction; subnormal results are
 * 0. */
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

using shared_at = uint32_t; /* address in shared memory, for address arithmetic */

__device__ __forceinline__ shared_at hd_shared_address(const void *smem)
{
    return static_cast<shared_at>(__cvta_generic_to_shared(smem));
}

/* Returns x, but hides from the compiler that it is loop-invariant: values derived from it are
 * recomputed in each iteration, instead of kept in registers. */
__device__ __forceinline__ unsigned hd_remade(unsigned x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Loads matrices of 8 x 8 elements of 2 bytes: r[m] is this lane's part of matrix m, row lane / 4,
 * columns lane % 4 * 2 and the next; `_trans`: of its transpose. Lanes 8m .. 8m + 7 pass the
 * addresses of the rows of matrix m, 16 aligned bytes each; addresses of lanes beyond the last
 * matrix are ignored. */
__device__ __forceinline__ void ldmatrix_x1(uint32_t r[1], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(hd_shared_address(smem))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t r[2], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(hd_shared_address(smem))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_at(uint32_t r[4], shared_at smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *smem)
{
    ldmatrix_x4_at(r, hd_shared_address(smem));
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t r[2], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(hd_shared_address(smem))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans_at(uint32_t r[4], shared_at smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], const void *smem)
{
    ldmatrix_x4_trans_at(r, hd_shared_address(smem));
}

/* Starts an asynchronous copy of 16 bytes to shared memory; if not valid, writes zeros and reads
 * nothing. Both addresses are aligned to 16. This thread may use the bytes after cp_async_wait,
 * other threads after a barrier that follows it. */
__device__ __forceinline__ void cp_async_16(void *smem, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(hd_shared_address(smem)), "l"(__cvta_generic_to_global(global)),
                   "r"(valid ? 16 : 0)
                 : "memory");
}

/* Makes all asynchronous copies since the last commit one group. */
__device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Waits until all groups of asynchronous copies except the N newest are complete. */
template <int N>
__device__ __forceinline__ void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

/* Computes d += a b by a warp: 16 x 8 += 16 x 16 times 16 x 8; factors of type T, sums in fp32. */
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2]);

template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float d[4], const uint32_t a[4],
                                                   const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<f16>(float d[4], const uint32_t a[4],
                                                  const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

#endif

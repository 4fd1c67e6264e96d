/* hopper: instructions of GPUs of compute capability 9.0 (sm_90a): barriers that count arrivals and
 * bytes (mbarrier), boxes copied by TMA, products of warp groups (wgmma), and registers that warps pass
 * to each other. Each is written for nvcc, and beside it, for the emulator, what it means (PTX ISA 8.0:
 * 9.7.8.24 cp.async.bulk.tensor, 9.7.12.15 mbarrier, 9.7.14 wgmma.mma_async, 9.7.18.5 setmaxnreg).
 *
 * An mbarrier counts phases, the first is number 0. A phase ends when all arrivals that the barrier was
 * initialised for have come and all bytes that they expect were copied. mbarrier_wait(b, parity)
 * returns when the phase of that parity has ended, and at once if the phase before the current one has
 * it: so a wait with parity 1 at a new barrier does not wait. Who waits for phase after phase passes 0,
 * 1, 0, ...
 *
 * wgmma computes d[64, N] (+)= a[64, 16] b[16, N] by a warp group, N = 8 NT. Warp w of the group has rows
 * 16 w ..; d[n] is the fragment of columns 8 n .. as mma has it (ptx.cuh), and so is a left factor in
 * registers, a[4]: sums d[2 k] and d[2 k + 1], packed, are the left factor of depths 16 k ... Factors in
 * shared memory are tiles of rows of 128 bytes, 64 elements, at a bound of 1024 bytes, as boxes are
 * copied; wider ones are several such tiles. `transposed` says that the rows of the tile run along K:
 *     k = 0, 16, .. of a tile whose rows are M or N:  wgmma_tile(tile) + wgmma_along_rows(k), k < 64
 *     k = 0, 16, .. of a tile whose rows are K:       wgmma_tile(tile) + wgmma_along_tile(k)
 * wgmma_wait<G> waits for all groups but the G newest. Before: nothing may touch the sums, or write the
 * factors in shared memory. wgmma_fence begins each group; wgmma_pin keeps the compiler from moving
 * accesses of sums over a fence or a wait.
 *
 * Used by: attention_hopper.cuh and the tests of the emulator.   Uses: device, ptx, the driver's cuda.h (CUtensorMap).
 * Threads: device code.
 */
#ifndef HD_KERNELS_CUDA_HOPPER_CUH
#define HD_KERNELS_CUDA_HOPPER_CUH

#include <cuda.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ptx.cuh"
#ifdef HD_CUDASIM
#include <cudasim_hopper.h>
#endif

enum { WARP_GROUP = 128 }; /* threads that wgmma and setmaxnreg take together: 4 warps */

#ifdef HD_CUDASIM

static inline void mbarrier_init(uint64_t *barrier, unsigned arrivals, HD_CUDASIM_HERE)
{
    hd_cudasim_mbarrier_init(barrier, arrivals, HD_CUDASIM_SITE);
}
static inline void mbarrier_init_fence(void)
{
    hd_cudasim_mbarrier_fence();
}
static inline void mbarrier_arrive(uint64_t *barrier, HD_CUDASIM_HERE)
{
    hd_cudasim_mbarrier_arrive(barrier, -1, HD_CUDASIM_SITE);
}
static inline void mbarrier_arrive_expect(uint64_t *barrier, unsigned bytes, HD_CUDASIM_HERE)
{
    hd_cudasim_mbarrier_arrive(barrier, bytes, HD_CUDASIM_SITE);
}
static inline void mbarrier_wait(uint64_t *barrier, unsigned parity, HD_CUDASIM_HERE)
{
    hd_cudasim_mbarrier_wait(barrier, parity, HD_CUDASIM_SITE);
}
static inline void copy_box(void *smem, const CUtensorMap *map, uint64_t *barrier, int x, int y,
                            HD_CUDASIM_HERE)
{
    const int at[] = {x, y};

    hd_cudasim_copy_box(smem, map, barrier, at, 2, HD_CUDASIM_SITE);
}
static inline void copy_box(void *smem, const CUtensorMap *map, uint64_t *barrier, int x, int y,
                            int z, HD_CUDASIM_HERE)
{
    const int at[] = {x, y, z};

    hd_cudasim_copy_box(smem, map, barrier, at, 3, HD_CUDASIM_SITE);
}
static inline void copy_box(void *smem, const CUtensorMap *map, uint64_t *barrier, int x, int y,
                            int z, int w, HD_CUDASIM_HERE)
{
    const int at[] = {x, y, z, w};

    hd_cudasim_copy_box(smem, map, barrier, at, 4, HD_CUDASIM_SITE);
}
static inline void proxy_store_4(shared_at smem, uint32_t value, HD_CUDASIM_HERE)
{
    hd_cudasim_proxy_store(reinterpret_cast<void *>(smem), value, HD_CUDASIM_SITE);
}
static inline void proxy_fence(void)
{
    hd_cudasim_proxy_fence();
}
static inline void group_barrier(unsigned number, unsigned threads, HD_CUDASIM_HERE)
{
    hd_cudasim_group_barrier(number, threads, HD_CUDASIM_SITE);
}
static inline void turn_wait(const unsigned *turn, unsigned value, HD_CUDASIM_HERE)
{
    hd_cudasim_turn_wait(turn, value, HD_CUDASIM_SITE);
}
static inline void turn_pass(unsigned *turn, unsigned value, HD_CUDASIM_HERE)
{
    hd_cudasim_turn_pass(turn, value, HD_CUDASIM_SITE);
}
static inline void copy_bulk(void *smem, const void *global, unsigned bytes, uint64_t *barrier,
                             HD_CUDASIM_HERE)
{
    hd_cudasim_copy_bulk(smem, global, bytes, barrier, HD_CUDASIM_SITE);
}
template <int COUNT>
static inline void registers_take(HD_CUDASIM_HERE)
{
    hd_cudasim_set_registers(COUNT, true, HD_CUDASIM_SITE);
}
template <int COUNT>
static inline void registers_give(HD_CUDASIM_HERE)
{
    hd_cudasim_set_registers(COUNT, false, HD_CUDASIM_SITE);
}
static inline void wgmma_fence(HD_CUDASIM_HERE)
{
    hd_cudasim_wgmma_fence(HD_CUDASIM_SITE);
}
static inline void wgmma_commit(HD_CUDASIM_HERE)
{
    hd_cudasim_wgmma_commit(HD_CUDASIM_SITE);
}
template <int GROUPS>
static inline void wgmma_wait(HD_CUDASIM_HERE)
{
    hd_cudasim_wgmma_wait(GROUPS, HD_CUDASIM_SITE);
}
template <int NT>
static inline void wgmma_pin(float (&)[NT][4])
{
}
template <bool TRANSPOSED_A, bool TRANSPOSED_B, int NT>
static inline void wgmma(float (&d)[NT][4], uint64_t a, uint64_t b, bool adds, HD_CUDASIM_HERE)
{
    const struct hd_cudasim_wgmma p = {d[0],         nullptr,      a,    b,   8 * NT,
                                       TRANSPOSED_A, TRANSPOSED_B, adds, true};

    hd_cudasim_wgmma(&p, HD_CUDASIM_SITE);
}
template <bool TRANSPOSED_B, int NT>
static inline void wgmma(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b, bool adds,
                         HD_CUDASIM_HERE)
{
    const struct hd_cudasim_wgmma p = {d[0], a, 0, b, 8 * NT, false, TRANSPOSED_B, adds, true};

    hd_cudasim_wgmma(&p, HD_CUDASIM_SITE);
}
static inline uint32_t hopper_window(shared_at smem, HD_CUDASIM_HERE)
{
    return hd_cudasim_shared_window(reinterpret_cast<const void *>(smem), HD_CUDASIM_SITE);
}

#else

/* Initialises a barrier, 8 aligned bytes of shared memory, for this many arrivals per phase. One
 * thread calls it; then mbarrier_init_fence, so that copies of boxes see it, and a __syncthreads. */
static __device__ __forceinline__ void mbarrier_init(uint64_t *barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(hd_shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

static __device__ __forceinline__ void mbarrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* Arrives: what this thread did before is visible to those that wait. */
static __device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :
                 : "r"(hd_shared_address(barrier))
                 : "memory");
}

/* Arrives, and adds bytes to what the phase expects of copies of boxes. */
static __device__ __forceinline__ void mbarrier_arrive_expect(uint64_t *barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(hd_shared_address(barrier)), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, unsigned parity)
{
    const uint32_t at = hd_shared_address(barrier);
    uint32_t ended;

    do
        asm volatile("{\n\t.reg .pred ended;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, ended;\n\t}"
                     : "=r"(ended)
                     : "r"(at), "r"(parity)
                     : "memory");
    while (!ended);
}

/* Starts the copy of the box of a tensor whose first element has these coordinates, the contiguous
 * dimension first, to shared memory at a bound of 1024 bytes; the barrier counts its bytes. The map is
 * a parameter of the kernel, __grid_constant__. One thread calls it. */
#define HOPPER_BOX(dimensions, coordinates, ...)                                                 \
    asm volatile("cp.async.bulk.tensor." dimensions                                              \
                 ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" coordinates \
                 "}], [%2];"                                                                     \
                 :                                                                               \
                 : "r"(hd_shared_address(smem)), "l"(map), "r"(hd_shared_address(barrier)),      \
                   __VA_ARGS__                                                                   \
                 : "memory")
static __device__ __forceinline__ void copy_box(void *smem, const CUtensorMap *map,
                                                uint64_t *barrier, int x, int y)
{
    HOPPER_BOX("2d", "%3, %4", "r"(x), "r"(y));
}
static __device__ __forceinline__ void copy_box(void *smem, const CUtensorMap *map,
                                                uint64_t *barrier, int x, int y, int z)
{
    HOPPER_BOX("3d", "%3, %4, %5", "r"(x), "r"(y), "r"(z));
}
static __device__ __forceinline__ void copy_box(void *smem, const CUtensorMap *map,
                                                uint64_t *barrier, int x, int y, int z, int w)
{
    HOPPER_BOX("4d", "%3, %4, %5, %6", "r"(x), "r"(y), "r"(z), "r"(w));
}
#undef HOPPER_BOX

/* Starts the copy of bytes that lie together; both addresses and the number are multiples of 16. */
static __device__ __forceinline__ void copy_bulk(void *smem, const void *global, unsigned bytes,
                                                 uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :
                 : "r"(hd_shared_address(smem)), "l"(__cvta_generic_to_global(global)), "r"(bytes),
                   "r"(hd_shared_address(barrier))
                 : "memory");
}

/* Stores 4 bytes to shared memory that wgmma is to read: then proxy_fence, then a barrier. */
static __device__ __forceinline__ void proxy_store_4(shared_at smem, uint32_t value)
{
    asm volatile("st.shared.b32 [%0], %1;" : : "r"(smem), "r"(value) : "memory");
}
static __device__ __forceinline__ void proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* A barrier of some warps of the block, by number, 1 to 15; __syncthreads is number 0. */
static __device__ __forceinline__ void group_barrier(unsigned number, unsigned threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(number), "r"(threads) : "memory");
}

/* turn_wait waits until a counter in global memory is `value`; what other blocks wrote before their
 * turn_pass is then visible to this thread, and to others of its block after a barrier. turn_pass sets
 * the counter to `value`. */
static __device__ __forceinline__ void turn_wait(const unsigned *turn, unsigned value)
{
    unsigned now;

    do
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(now)
                     : "l"(__cvta_generic_to_global(turn))
                     : "memory");
    while (now != value);
}
static __device__ __forceinline__ void turn_pass(unsigned *turn, unsigned value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;"
                 :
                 : "l"(__cvta_generic_to_global(turn)), "r"(value)
                 : "memory");
}

/* Raises the registers of each thread of a warp group to COUNT, as soon as other warp groups of the
 * block gave back enough; lowers them. All 4 warps call it. */
template <int COUNT>
static __device__ __forceinline__ void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(COUNT));
}
template <int COUNT>
static __device__ __forceinline__ void registers_give(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(COUNT));
}

static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
template <int GROUPS>
static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(GROUPS) : "memory");
}

template <int NT>
static __device__ __forceinline__ void wgmma_pin(float (&d)[NT][4])
{
#pragma unroll
    for (int n = 0; n < NT; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3]) : : "memory");
}

/* Operands of asm: the sums by number, and as a list. */
#define HOPPER_SUMS_4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define HOPPER_SUMS_16(d, n) \
    HOPPER_SUMS_4(d, n), HOPPER_SUMS_4(d, n + 1), HOPPER_SUMS_4(d, n + 2), HOPPER_SUMS_4(d, n + 3)
#define HOPPER_SUMS_32(d) HOPPER_SUMS_16(d, 0), HOPPER_SUMS_16(d, 4)
#define HOPPER_SUMS_64(d) HOPPER_SUMS_32(d), HOPPER_SUMS_16(d, 8), HOPPER_SUMS_16(d, 12)
#define HOPPER_LIST_32                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define HOPPER_LIST_64                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "  \
    "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "  \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
/* d (+)= a b with both factors in shared memory, and with a in registers. The names of operands behind
 * the sums: their numbers. */
#define HOPPER_WGMMA_SS(columns, sums, list, a_, b_, adds_, ta_, tb_)                          \
    asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, " adds_ ", 0;\n\t"                \
                 "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 " list ", " a_ \
                 ", " b_ ", adds, 1, 1, " ta_ ", " tb_ ";\n\t}"                                \
                 : sums                                                                        \
                 : "l"(a), "l"(b), "r"((int)adds), "n"((int)TRANSPOSED_A), "n"((int)TRANSPOSED_B))
#define HOPPER_WGMMA_RS(columns, sums, list, a_, b_, adds_, tb_)                                \
    asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, " adds_ ", 0;\n\t"                 \
                 "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 " list ", {" a_ \
                 "}, " b_ ", adds, 1, 1, " tb_ ";\n\t}"                                         \
                 : sums                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds),          \
                   "n"((int)TRANSPOSED_B))

template <bool TRANSPOSED_A, bool TRANSPOSED_B, int NT>
static __device__ __forceinline__ void wgmma(float (&d)[NT][4], uint64_t a, uint64_t b, bool adds)
{
    static_assert(NT == 8 || NT == 16, "64 or 128 columns");
    if constexpr (NT == 8)
        HOPPER_WGMMA_SS("64", HOPPER_SUMS_32(d), HOPPER_LIST_32, "%32", "%33", "%34", "%35", "%36");
    else
        HOPPER_WGMMA_SS("128", HOPPER_SUMS_64(d), HOPPER_LIST_64, "%64", "%65", "%66", "%67",
                        "%68");
}
template <bool TRANSPOSED_B, int NT>
static __device__ __forceinline__ void wgmma(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b,
                                             bool adds)
{
    static_assert(NT == 8 || NT == 16, "64 or 128 columns");
    if constexpr (NT == 8)
        HOPPER_WGMMA_RS("64", HOPPER_SUMS_32(d), HOPPER_LIST_32, "%32, %33, %34, %35", "%36", "%37",
                        "%38");
    else
        HOPPER_WGMMA_RS("128", HOPPER_SUMS_64(d), HOPPER_LIST_64, "%64, %65, %66, %67", "%68",
                        "%69", "%70");
}
#undef HOPPER_WGMMA_RS
#undef HOPPER_WGMMA_SS
#undef HOPPER_LIST_64
#undef HOPPER_LIST_32
#undef HOPPER_SUMS_64
#undef HOPPER_SUMS_32
#undef HOPPER_SUMS_16
#undef HOPPER_SUMS_4

static __device__ __forceinline__ uint32_t hopper_window(shared_at smem)
{
    return smem;
}

#endif

/* Returns the descriptor of a tile: its address in units of 16 bytes in bits 0 to 13; bits 16 to 29:
 * the distance of its next 64 columns, `wide_bytes` (of a transposed factor with more than 64
 * columns); bits 32 to 45: the distance of its next 8 rows, 1024 bytes; bits 62 and 63: 1, the 128-byte
 * swizzle. */
static __device__ __forceinline__ uint64_t wgmma_tile(shared_at tile, unsigned wide_bytes)
{
    enum : unsigned { UNIT = 16, EIGHT_ROWS = 1024, ADDRESS_BITS = 0x3ffff };

    return (hopper_window(tile) & ADDRESS_BITS) / UNIT | (uint64_t)(wide_bytes / UNIT) << 16 |
           (uint64_t)(EIGHT_ROWS / UNIT) << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ uint64_t wgmma_tile(const void *tile, unsigned wide_bytes)
{
    return wgmma_tile(hd_shared_address(tile), wide_bytes);
}

/* Returns what to add to the descriptor to go to column k of the rows, or to row k, a multiple of 8. */
static __device__ __forceinline__ uint64_t wgmma_along_rows(unsigned k)
{
    return k * 2 / 16;
}
static __device__ __forceinline__ uint64_t wgmma_along_tile(unsigned k)
{
    return k * 128 / 16;
}

/* Returns the first bound of 1024 bytes in dynamic shared memory, whose own bound is 128 bytes. */
template <typename T>
static __device__ __forceinline__ T *hopper_tiles(T *shared)
{
    enum : unsigned { BOUND = 1024 };

    return reinterpret_cast<T *>(reinterpret_cast<unsigned char *>(shared) +
                                 (BOUND - hd_shared_address(shared) % BOUND) % BOUND);
}
enum { HOPPER_TILES_SLACK = 1024 }; /* bytes of shared memory to ask for beside the tiles */

#endif

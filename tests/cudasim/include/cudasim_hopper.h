/* cudasim_hopper: the functions of the emulator that kernels for Hopper GPUs call, through hopper.cuh
 * only; async.c has mbarriers, boxes and registers, wgmma.c the products.
 *
 * Used by: kernels/cuda/hopper.cuh under HD_CUDASIM, and the emulator.   Uses: cudasim_engine.h.
 * Threads: the calls between a launch's begin and end come from its fibers.
 */
#ifndef HD_CUDASIM_HOPPER_H
#define HD_CUDASIM_HOPPER_H

#include <cudasim_engine.h>

#define __grid_constant__

#ifdef __cplusplus
extern "C" {
#endif

/* Barriers in shared memory that count arrivals and bytes (mbarrier). bytes: what this arrival
 * expects, negative: an arrival without. A wait returns when the newest phase of this parity has
 * ended. */
void hd_cudasim_mbarrier_init(uint64_t *barrier, unsigned arrivals, struct hd_cudasim_site site);
void hd_cudasim_mbarrier_fence(void);
void hd_cudasim_mbarrier_arrive(uint64_t *barrier, int64_t bytes, struct hd_cudasim_site site);
void hd_cudasim_mbarrier_wait(uint64_t *barrier, unsigned parity, struct hd_cudasim_site site);

/* Starts the copy of a box (CUtensorMap) to shared memory; the barrier counts its bytes. */
void hd_cudasim_copy_box(void *shared, const void *map, uint64_t *barrier, const int *at, int rank,
                         struct hd_cudasim_site site);

/* Starts the copy of bytes that lie together, a multiple of 16. */
void hd_cudasim_copy_bulk(void *shared, const void *global, size_t bytes, uint64_t *barrier,
                          struct hd_cudasim_site site);

/* A store of 4 bytes for wgmma to read: shared memory has poison until the thread's fence. */
void hd_cudasim_proxy_store(void *shared, uint32_t value, struct hd_cudasim_site site);
void hd_cudasim_proxy_fence(void);

/* bar.sync: a barrier with a number, for this many threads of the block. */
void hd_cudasim_group_barrier(unsigned number, unsigned threads, struct hd_cudasim_site site);

/* Waits until a counter in global memory is `value`. Blocks run one after the other here: a block that
 * waits for one that has not begun is a deadlock. */
void hd_cudasim_turn_wait(const unsigned *turn, unsigned value, struct hd_cudasim_site site);
/* Sets the counter; fails unless this thread waited for the value before. */
void hd_cudasim_turn_pass(unsigned *turn, unsigned value, struct hd_cudasim_site site);

/* setmaxnreg: a warp takes registers of the block's pool, or gives them back. */
void hd_cudasim_set_registers(unsigned count, bool more, struct hd_cudasim_site site);

/* Address of shared memory as a descriptor of wgmma has it: below 256 KB. */
uint32_t hd_cudasim_shared_window(const void *shared, struct hd_cudasim_site site);

/* A product of a warp group, 64 x N += 64 x 16 times 16 x N; d: the N / 2 sums of this thread. */
struct hd_cudasim_wgmma {
    float *d;
    const uint32_t *a; /* 4 registers; NULL: a_descriptor */
    uint64_t a_descriptor, b_descriptor;
    int columns;                     /* N */
    bool transposed_a, transposed_b; /* M, or N, is contiguous in shared memory, not K */
    bool adds;                       /* false: d = product */
    bool is_bf16;
};
void hd_cudasim_wgmma(const struct hd_cudasim_wgmma *product, struct hd_cudasim_site site);
void hd_cudasim_wgmma_fence(struct hd_cudasim_site site);
void hd_cudasim_wgmma_commit(struct hd_cudasim_site site);
void hd_cudasim_wgmma_wait(int groups, struct hd_cudasim_site site);

#ifdef __cplusplus
}
#endif

#endif

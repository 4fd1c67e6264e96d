/* cudasim: an emulator of a CUDA device, which runs every kernel without a GPU.
 *
 * kernels/cuda compiled with HD_CUDASIM uses it instead of a device: each thread of a block is a
 * fiber, blocks run one after the other, device memory is host memory. So kernels can run with
 * AddressSanitizer and a debugger, and with their threads in several orders. README.md tells how to
 * write kernels for it and what it detects.
 *
 * This header has the settings for tests. They are global, and apply to launches that begin later.
 *
 * Used by: tests.   Uses: libc.
 * Threads: any; several OS threads may launch at the same time.
 */
#ifndef HD_CUDASIM_H
#define HD_CUDASIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hd_cudasim_order {
    HD_CUDASIM_FORWARD, /* thread 0 runs until it must wait, then thread 1, ..; a warp runs as far
                           as it can before the next warp; blocks in ascending order */
    HD_CUDASIM_REVERSE, /* the last thread, warp, block first */
    HD_CUDASIM_RANDOM   /* a random order in every round, by seed; atomics may switch threads */
};

/* Order of threads and blocks; HD_CUDASIM_ORDER=forward|reverse|random[:SEED], else forward. */
void hd_cudasim_order(enum hd_cudasim_order order, uint64_t seed);

/* Lazy streams are queues: nothing runs until something waits for it (a synchronize, a query, a
 * synchronous copy), and streams interleave in random order as far as events allow, so that a
 * missing event gives wrong results. Not lazy: work runs when it is enqueued. Default:
 * HD_CUDASIM_LAZY=0|1|SEED, or 0. Call it only while no stream has work. */
void hd_cudasim_lazy(bool lazy, uint64_t seed);

/* Number of emulated devices. Default: HD_CUDASIM_DEVICES, or 1. */
void hd_cudasim_devices(int count);

/* Memory of each device. Default: 8 GiB. */
void hd_cudasim_memory(size_t total_bytes);

/* Properties of the devices. Default: 2 multiprocessors of capability 9.0, so that kernels loop
 * over the grid even for small tensors. */
void hd_cudasim_kind(int multiprocessors, int capability);

/* Maximum shared memory of a block, to emulate devices with less. Default, and for 0: the 227 KB of
 * an H100. A multiprocessor has 1 KB more. */
void hd_cudasim_shared_bytes(size_t block_bytes);

/* Bytes of device memory that are allocated now, on all devices. */
size_t hd_cudasim_allocated(void);

/* Number of allocations so far: of device and pinned memory. */
uint64_t hd_cudasim_allocations(void);

/* Number of kernel launches and of GEMMs of the emulated cuBLASLt so far. */
uint64_t hd_cudasim_launches(void);
uint64_t hd_cudasim_products(void);

/* known: the emulated cuBLASLt offers epilogues other than a bias (default: true). Which ones the
 * real library has for a shape depends on its version. */
void hd_cudasim_epilogues(bool known);
/* run: it computes the epilogues that it has offered, instead of failing (default: true). */
void hd_cudasim_epilogues_run(bool run);

/* The next `count` launches of GEMMs by the emulated cuBLASLt are refused with this status (a
 * cublasStatus_t), although its heuristic offered the algorithm. */
void hd_cudasim_refuse_products(int count, int status);

/* Time that a GEMM of the emulated cuBLASLt pretends to take, by its place in the list that the
 * heuristic offered; event times include it. Default: nothing, so all are as fast. */
enum { HD_CUDASIM_OFFERS = 3 };
void hd_cudasim_offer_ms(const double ms[HD_CUDASIM_OFFERS]);

/* Launches of GEMMs so far of the offer with this place. */
uint64_t hd_cudasim_products_of(int offer);

/* Version code of the emulated cuDNN (default: 92800), and its launches so far by the plan that it offered:
 * one with too much workspace, one that is not deterministic, one that is. */
enum { HD_CUDASIM_CUDNN_PLANS = 3 };
void hd_cudasim_cudnn_version(int code);
/* Version of CUDA for which it says that it was built; 0: that of the runtime (default). */
void hd_cudasim_cudnn_cuda(int code);
uint64_t hd_cudasim_cudnn_launches(int plan);
/* It has no plan for any graph from now on, as for a shape that it does not know; false: it has. */
void hd_cudasim_cudnn_refuse(bool refuses);

/* Version of the driver, as the CUDA runtime tells it; 0: that of the runtime (default). */
void hd_cudasim_driver(int version);

/* Makes every query of the current device fail with `error`, as all calls do after a kernel failed;
 * 0 ends it. */
void hd_cudasim_fault(int error);

/* Number of operations of streams that wait to run now. */
size_t hd_cudasim_pending(void);

/* Returns how many captured operations graphs have run so far. */
size_t hd_cudasim_replays(void);

/* Prints a line per allocation, stream, event and graph that still exists; returns their number. */
size_t hd_cudasim_leaks(void);

#ifdef __cplusplus
}
#endif

#endif

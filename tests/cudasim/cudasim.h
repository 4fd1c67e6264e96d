/* cudasim: an emulator of a CUDA device, so that every kernel runs where no GPU is.
 *
 * kernels/cuda compiled with HD_CUDASIM calls this instead of a device: each thread of a block is a
 * fiber, blocks run in turn, device memory is host memory. So a kernel's arithmetic, indexing,
 * barriers and masks run under AddressSanitizer and a debugger, with its threads in several orders.
 * README.md says how to write for it and how to read its reports.
 *
 * Here is what tests set. Settings hold for the whole process, for launches that begin later.
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
    HD_CUDASIM_FORWARD, /* thread 0 runs until it must wait, then thread 1, ..; a warp goes as far
                           as it can before the next; blocks upward */
    HD_CUDASIM_REVERSE, /* the last thread, warp, block first */
    HD_CUDASIM_RANDOM   /* another order in every round, by seed; atomics may hand over */
};

/* Order of threads and blocks. At first: HD_CUDASIM_ORDER=forward|reverse|random[:SEED], forward.
 */
void hd_cudasim_order(enum hd_cudasim_order order, uint64_t seed);

/* Whether streams are queues: then nothing runs until something waits for it (a synchronize, a
 * query, a synchronous copy), and streams interleave in random order as far as events allow, so
 * that a missing edge gives wrong numbers. Otherwise work runs where it is enqueued. At first:
 * HD_CUDASIM_LAZY=0|1|SEED, 0. Call it only while no stream has work. */
void hd_cudasim_lazy(bool lazy, uint64_t seed);

/* Emulated devices; at first HD_CUDASIM_DEVICES, 1. */
void hd_cudasim_devices(int count);

/* Bytes of each device that cudaMalloc may hand out; at first 8 GiB. */
void hd_cudasim_memory(size_t total_bytes);

/* What kind of GPU the devices say they are; at first 2 multiprocessors of capability 9.0, so that
 * loops over a grid go round at small sizes. */
void hd_cudasim_kind(int multiprocessors, int capability);

/* Shared memory that a block may have, as on devices with less; at first, and for 0, the 227 KB of
 * an H100. A multiprocessor has 1 KB more. */
void hd_cudasim_shared_bytes(size_t block_bytes);

/* Bytes of device memory (managed memory included) that are allocated now, on all devices. */
size_t hd_cudasim_allocated(void);

/* How often memory was asked for so far: of a device, managed, or pinned. */
uint64_t hd_cudasim_allocations(void);

/* Launches of kernels and products of the emulated library so far, and operations of streams that
 * wait to run now. */
uint64_t hd_cudasim_launches(void);
uint64_t hd_cudasim_products(void);

/* Whether the emulated library has more behind a product than a bias; at first it has. What the
 * real one has for a shape depends on its version. */
void hd_cudasim_epilogues(bool known);
/* Whether it then computes what it has said to have; at first it does. */
void hd_cudasim_epilogues_run(bool run);

/* Every question for the current device answers `error`, as all calls do once a kernel has failed;
 * 0 ends it. */
void hd_cudasim_fault(int error);
size_t hd_cudasim_pending(void);

/* Prints a line per allocation, stream and event that still exists; returns how many. */
size_t hd_cudasim_leaks(void);

#ifdef __cplusplus
}
#endif

#endif

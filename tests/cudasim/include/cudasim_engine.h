/* cudasim_engine: the functions of the emulator that compiled kernels call.
 *
 * Kernels do not call them directly, but through device.cuh, ptx.cuh, vec.cuh and the intrinsics.
 * `site` is the calling source line, for reports and to distinguish barriers.
 *
 * Used by: cudasim_device.h, device.cuh and the emulator.   Uses: libc.
 * Threads: the calls between a launch's begin and end come from its fibers.
 */
#ifndef HD_CUDASIM_ENGINE_H
#define HD_CUDASIM_ENGINE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HD_CUDASIM_WARP = 32 };

struct hd_cudasim_site {
    const char *file;
    int line;
};

/* The running thread: the values of its built-in variables. */
struct hd_cudasim_thread {
    struct uint3 thread, block;
    struct dim3 block_dim, grid_dim;
};
extern __thread struct hd_cudasim_thread *hd_cudasim_self
    __attribute__((tls_model("initial-exec")));

/* Runs or enqueues `run(context)` for every thread; then calls done(context) once, even if the
 * launch is refused. `name` must stay valid; `kernel` is the pointer for cudaFuncSetAttribute. */
cudaError_t hd_cudasim_launch(cudaStream_t stream, const void *kernel, const char *name,
                              struct dim3 grid, struct dim3 block, size_t shared_bytes,
                              void (*run)(void *), void (*done)(void *), void *context);

/* A shared array: one per site and block. */
struct hd_cudasim_shared_site {
    const char *name, *file;
    int line;
};
void *hd_cudasim_shared(struct hd_cudasim_shared_site *site, size_t size_bytes);
void *hd_cudasim_shared_dynamic(void);

enum hd_cudasim_barrier {
    HD_CUDASIM_BARRIER,
    HD_CUDASIM_BARRIER_OR,
    HD_CUDASIM_BARRIER_AND,
    HD_CUDASIM_BARRIER_COUNT
};
int hd_cudasim_barrier(enum hd_cudasim_barrier kind, int predicate, struct hd_cudasim_site site);

enum hd_cudasim_shuffle {
    HD_CUDASIM_SHUFFLE_LANE,
    HD_CUDASIM_SHUFFLE_UP,
    HD_CUDASIM_SHUFFLE_DOWN,
    HD_CUDASIM_SHUFFLE_XOR
};
uint64_t hd_cudasim_shuffle(enum hd_cudasim_shuffle kind, unsigned mask, uint64_t value,
                            unsigned operand, unsigned width, struct hd_cudasim_site site);
unsigned hd_cudasim_ballot(unsigned mask, int predicate, struct hd_cudasim_site site);
void hd_cudasim_syncwarp(unsigned mask, struct hd_cudasim_site site);
unsigned hd_cudasim_lane(void);

/* Called before an atomic operation: in random order another thread may run first. */
void hd_cudasim_preempt(void);

void hd_cudasim_ldmatrix(uint32_t *ret_rows, int count, bool transposed, const void *row,
                         struct hd_cudasim_site site);
void hd_cudasim_mma(float d[4], const uint32_t a[4], const uint32_t b[2], bool is_bf16,
                    struct hd_cudasim_site site);
void hd_cudasim_copy(void *shared, const void *global, bool valid, struct hd_cudasim_site site);
void hd_cudasim_copy_commit(void);
void hd_cudasim_copy_wait(int groups);

/* Records these bytes, 16 at most; fails if they have changed when the launch ends. */
void hd_cudasim_is_constant(const void *address, size_t size_bytes, struct hd_cudasim_site site);
void hd_cudasim_check_aligned(const void *address, size_t align, struct hd_cudasim_site site);

/* Prints the message with kernel, block and thread, and aborts. */
void hd_cudasim_fail(struct hd_cudasim_site site, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));

#ifdef __cplusplus
}
#endif

#endif

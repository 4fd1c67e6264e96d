/* internal: the emulator's own state, shared by its files.
 *
 * Each OS thread that runs kernels has an engine: the fibers of one block and what they wait for.
 *
 * Used by: engine.c, warp.c, tensor.c, async.c, wgmma.c, memory.c, stream.c, graph.c.   Uses: fiber, cudasim_engine.
 * Threads: an engine belongs to its OS thread; settings are atomics.
 */
#ifndef HD_CUDASIM_INTERNAL_H
#define HD_CUDASIM_INTERNAL_H

#include <cudasim_engine.h>

#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/fiber.h"

enum {
    HD_SIM_THREADS_MAX = 1024,
    HD_SIM_WARPS_MAX = HD_SIM_THREADS_MAX / HD_CUDASIM_WARP,
    HD_SIM_SHARED_DEFAULT = 48 * 1024,
    HD_SIM_SHARED_MAX = 227 * 1024,
    HD_SIM_SHARED_SITES_MAX = 64,
    HD_SIM_CONSTANTS = 4096,
    HD_SIM_POISON = 0xff /* as bf16, f16 and fp32 it is a NaN, as an integer -1 */
};

/* Operations of several lanes of a warp. A lane posts its part and waits; the last lane that
 * arrives performs the operation for all of them. */
enum hd_sim_op {
    HD_SIM_SYNCWARP,
    HD_SIM_BALLOT,
    HD_SIM_SHUFFLE,
    HD_SIM_LDMATRIX,
    HD_SIM_MMA,
    HD_SIM_SETMAXNREG,
    HD_SIM_WGMMA,
    HD_SIM_WGMMA_FENCE,
    HD_SIM_WGMMA_COMMIT,
    HD_SIM_WGMMA_WAIT
};

struct hd_sim_thread;
typedef void hd_sim_perform(struct hd_sim_thread **lanes, unsigned mask);

enum hd_sim_state {
    HD_SIM_READY,
    HD_SIM_AT_BARRIER,
    HD_SIM_AT_WARP,
    HD_SIM_AT_MBARRIER,
    HD_SIM_AT_REGISTERS,
    HD_SIM_AT_GROUP_BARRIER,
    HD_SIM_AT_TURN,
    HD_SIM_ENDED
};

/* A barrier in shared memory (mbarrier). Its word there holds HD_SIM_MBARRIER_TAG and its index, so
 * that a word that was overwritten, or never initialised, is detected. */
enum { HD_SIM_MBARRIERS_MAX = 64 };
#define HD_SIM_MBARRIER_TAG UINT64_C(0x6d62617272696500)
struct hd_sim_mbarrier {
    uint64_t *word;
    unsigned arrivals, pending; /* per phase; still missing in this one */
    int64_t bytes;              /* that this phase still expects */
    uint64_t phase;
    bool is_fenced; /* the copies of boxes see it */
};

/* A barrier with a number: how many threads it is for, and how many wait. */
enum { HD_SIM_GROUP_BARRIERS = 16 };
struct hd_sim_group_barrier {
    unsigned threads, waiting;
};

/* A box that was not copied yet. */
enum { HD_SIM_BOXES_MAX = 64, HD_SIM_RANK_MAX = 5 };
struct hd_sim_box {
    unsigned char *shared;
    unsigned char map[128]; /* CUtensorMap */
    const void *global;     /* NULL: a box of the map; else `bytes` bytes from there */
    size_t bytes;
    struct hd_sim_mbarrier *barrier;
    int at[HD_SIM_RANK_MAX];
    struct hd_cudasim_site site;
};

struct hd_sim_copy {
    void *shared;
    unsigned char bytes[16];
    unsigned group;
};

/* Sums of a thread in registers, which products of wgmma will have written. */
enum { HD_SIM_SUMS_MAX = 8 };
struct hd_sim_sums {
    float *d;
    int count;
    unsigned group; /* of the newest product */
    float values[128];
};

struct hd_sim_store {
    void *shared;
    uint32_t value;
};

struct hd_sim_thread {
    struct hd_cudasim_thread built_in; /* first: hd_cudasim_self points to it */
    struct hd_fiber fiber;
    enum hd_sim_state state;
    unsigned index, lane, warp;
    struct hd_cudasim_site site; /* source line where it waits */
    /* while it waits at a barrier */
    enum hd_cudasim_barrier barrier;
    int predicate, result;
    /* while it waits for lanes of its warp */
    enum hd_sim_op op;
    unsigned mask;
    /* while it waits at an mbarrier */
    const struct hd_sim_mbarrier *mbarrier;
    unsigned parity;
    /* while it waits at a barrier with a number, or for a turn */
    unsigned number, turn_value;
    const unsigned *turn;
    void *part; /* this lane's part of the op, on the fiber's stack */
    hd_sim_perform *perform;
    /* cp.async */
    struct hd_sim_copy *copies;
    size_t copy_count, copy_room;
    unsigned group; /* the group of copies that are issued now */
    struct hd_sim_sums sums[HD_SIM_SUMS_MAX];
    unsigned sums_count;
    /* stores that no fence has made visible to wgmma */
    struct hd_sim_store *stores;
    size_t store_count, store_room;
};

struct hd_sim_warp {
    unsigned live, waiting; /* bits by lane */
    unsigned registers;     /* of a thread: setmaxnreg */
    unsigned wanted;        /* for how many it waits; 0: for none */
    /* wgmma: products under way; how many were issued; the group that is issued now */
    struct hd_sim_product *products;
    size_t product_room;
    unsigned product_count, issued, group;
    bool is_fenced;
};

/* The products of a warp group (4 warps), which each of its warps must issue. */
struct hd_sim_issued {
    uint64_t a, b;
    int line, columns;
};
struct hd_sim_warp_group {
    struct hd_sim_issued *issued;
    size_t room;
    unsigned count;
};

struct hd_sim_shared {
    const struct hd_cudasim_shared_site *site; /* NULL: the dynamic one */
    unsigned char *map, *base;
    size_t size_bytes;
};

/* Bytes that were read by __ldg. */
struct hd_sim_constant {
    const void *address;
    size_t size_bytes;
    unsigned char bytes[16];
    struct hd_cudasim_site site;
};

struct hd_sim_engine {
    struct hd_fiber home;
    struct hd_sim_thread *threads; /* [HD_SIM_THREADS_MAX], allocated at first use */
    unsigned ready_count;          /* threads that have a stack */
    struct hd_sim_thread *running;
    struct hd_sim_warp warps[HD_SIM_WARPS_MAX];
    struct hd_sim_warp_group warp_groups[HD_SIM_WARPS_MAX / 4];
    struct hd_sim_wgmma_room *wgmma_room; /* of wgmma.c, allocated at its first product */
    /* the launch */
    const char *kernel;
    void (*run)(void *);
    void *context;
    unsigned thread_count, live, at_barrier;
    enum hd_cudasim_order schedule;
    uint64_t random;
    struct hd_sim_shared shared[HD_SIM_SHARED_SITES_MAX];
    unsigned shared_count;
    size_t shared_limit;                                /* of static and dynamic arrays together */
    struct hd_sim_constant constants[HD_SIM_CONSTANTS]; /* hash table by address; size 0: empty */
    bool has_constants;
    /* the block */
    struct hd_sim_mbarrier mbarriers[HD_SIM_MBARRIERS_MAX];
    struct hd_sim_box boxes[HD_SIM_BOXES_MAX]; /* in the order of their instructions */
    unsigned mbarrier_count, box_count;
    struct hd_sim_group_barrier group_barriers[HD_SIM_GROUP_BARRIERS];
    unsigned registers_free; /* of the multiprocessor's, which setmaxnreg gave back */
};

struct hd_sim_engine *hd_sim_engine(void); /* of the launch that runs on this OS thread */

/* Limits of a kernel's shared memory a block: 48 KB in all, or, after cudaFuncSetAttribute, as much
 * dynamic memory as that set and in all what the device has. */
struct hd_sim_shared_limits {
    size_t all_bytes, dynamic_bytes;
    size_t static_bytes; /* of the kernel's arrays, as far as it has run */
};
struct hd_sim_shared_limits hd_sim_shared_limits(const void *kernel);
void hd_sim_note_static_shared(const void *kernel, size_t size_bytes);

/* ran.c: records that a kernel ran with blocks of that many threads. */
void hd_sim_note_run(const void *kernel, unsigned threads);

/* Runs one whole grid; returns the bytes of the kernel's static shared arrays when it has ended. */
size_t hd_sim_run_grid(const char *kernel, struct dim3 grid, struct dim3 block, size_t shared_bytes,
                       size_t shared_limit, void (*run)(void *), void *context);

uint64_t hd_sim_random(uint64_t *state);

/* Switches to the scheduler; returns when the thread is ready and scheduled again. */
void hd_sim_wait(struct hd_sim_engine *e, struct hd_sim_thread *t);

/* Waits for the lanes of `mask`; returns when all that have not ended have arrived and `perform`
 * has been called once. */
void hd_sim_collect(enum hd_sim_op op, unsigned mask, void *part, hd_sim_perform *perform,
                    struct hd_cudasim_site site);
/* Called when a lane has ended: other lanes of its warp may have waited only for it. */
void hd_sim_lane_ended(struct hd_sim_engine *e, struct hd_sim_thread *t);
const char *hd_sim_op_name(enum hd_sim_op op);

/* async.c: a block begins and ends; copies of boxes that may end now, at least one if no thread is
 * ready; returns whether one did. */
void hd_sim_async_begin(struct hd_sim_engine *e);
bool hd_sim_async_advance(struct hd_sim_engine *e, bool is_idle);
void hd_sim_async_end(const struct hd_sim_engine *e);
void hd_sim_async_free(struct hd_sim_engine *e);
/* Whether a thread waits for what this file does; reports that it waits for ever. */
bool hd_sim_async_waits(const struct hd_sim_thread *t);
void hd_sim_async_report(struct hd_sim_engine *e, const struct hd_sim_thread *t)
    __attribute__((noreturn));
/* wgmma.c: likewise; the last one frees what the engine has of products. */
void hd_sim_wgmma_begin(struct hd_sim_engine *e);
void hd_sim_wgmma_end(const struct hd_sim_engine *e);
void hd_sim_wgmma_free(struct hd_sim_engine *e);
/* Fails unless this is a whole warp. */
void hd_sim_whole_warp(unsigned mask, struct hd_sim_thread **lanes);
enum { HD_SIM_ALL_LANES = -1 };

/* c + sum of a[i] b[i], as one operation of a tensor core computes it (tensor.c); factors are bf16,
 * f16 or tf32 numbers. count <= HD_SIM_TENSOR_TERMS for bf16 and f16, half of it for tf32. */
enum { HD_SIM_TENSOR_TERMS = 8 };
float hd_sim_tensor_add(float c, const float *a, const float *b, int64_t count);

/* True if [address, address + size) is within one shared array of the running block. */
bool hd_sim_is_shared(struct hd_sim_engine *e, const void *address, size_t size_bytes);

/* ---- Runtime ---- */

int hd_sim_capability(void);                     /* of the devices: 90 */
cudaError_t hd_sim_set_error(cudaError_t error); /* remembers it for cudaGetLastError, returns it */

enum hd_sim_memory {
    HD_SIM_PAGEABLE, /* not allocated by the emulator */
    HD_SIM_DEVICE,
    HD_SIM_PINNED
};
/* Kind of memory at address; *ret_room: bytes from there to the end of its allocation. */
enum hd_sim_memory hd_sim_memory_of(const void *address, size_t *ret_room);
size_t hd_sim_memory_leaks(void);
/* Counts `bytes` of a device as used, or as free again (negative), without allocating them; returns
 * false if the device has less left. */
bool hd_sim_charge(int device, int64_t bytes);
size_t hd_sim_stream_leaks(void);
size_t hd_sim_graph_leaks(void);

int hd_sim_device(void); /* current device of this OS thread */
int hd_sim_device_count(void);

/* Runs the pending work of all streams of all devices, except work behind a closed gate: so freeing
 * memory never blocks on another rank, which would be another process in reality. */
void hd_sim_drain_all(void);
/* Drains the streams that the legacy default stream waits for. */
void hd_sim_drain_blocking(void);

/* Enqueues run(context), then done(context); runs them at once unless streams are lazy. */
cudaError_t hd_sim_enqueue(cudaStream_t stream, void (*run)(void *), void (*done)(void *),
                           void *context);

/* graph.c: what a stream captures. hd_sim_captured_by: the place of it in the stream, NULL for the legacy
 * stream; it holds NULL while nothing is captured. hd_sim_capture: adds an operation, in place of running
 * it. hd_sim_refuse_in_capture: loses the capture, that of the calling thread if NULL, and returns the
 * error of a call that none allows; cudaSuccess: nothing is captured. */
struct hd_sim_captured;
struct hd_sim_captured **hd_sim_captured_by(cudaStream_t stream, const char *call);
cudaError_t hd_sim_capture(struct hd_sim_captured *captured, void (*run)(void *),
                           void (*done)(void *), void *context);
cudaError_t hd_sim_refuse_in_capture(struct hd_sim_captured *of_stream);

/* An operation that runs on `stream` pretends to take so long: events behind it say so. */
void hd_sim_pass(cudaStream_t stream, double ms);

bool hd_sim_is_lazy(void);

/* Gates: a lazy stream waits at a gate until other code opens it. Operations run, and gates are
 * used, under the lock of the streams. A gate that is closed again before its operation has run
 * blocks the operation again. */
struct hd_sim_record;
void hd_sim_streams_lock(void);
void hd_sim_streams_unlock(void);
struct hd_sim_record *hd_sim_gate_new(void); /* closed; NULL: no memory */
void hd_sim_gate_set(struct hd_sim_record *gate, bool open);
void hd_sim_gate_release(struct hd_sim_record *gate);
/* gate: NULL for none. Under the lock. */
cudaError_t hd_sim_enqueue_behind(cudaStream_t stream, struct hd_sim_record *gate,
                                  void (*run)(void *), void (*done)(void *), void *context);

#endif

/* internal: the emulator's own state, shared by its files.
 *
 * Each OS thread that runs kernels has an engine: the fibers of one block and what they wait for.
 *
 * Used by: engine.c, warp.c, tensor.c, memory.c, stream.c.   Uses: fiber, cudasim_engine.
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
    HD_SIM_POISON = 0xff /* every short float and fp32 of it is a NaN, every integer -1 */
};

/* What lanes of a warp do together. A lane posts its part and waits; the last lane that comes
 * performs it for all of them. */
enum hd_sim_op { HD_SIM_SYNCWARP, HD_SIM_BALLOT, HD_SIM_SHUFFLE, HD_SIM_LDMATRIX, HD_SIM_MMA };

struct hd_sim_thread;
typedef void hd_sim_perform(struct hd_sim_thread **lanes, unsigned mask);

enum hd_sim_state { HD_SIM_READY, HD_SIM_AT_BARRIER, HD_SIM_AT_WARP, HD_SIM_ENDED };

struct hd_sim_copy {
    void *shared;
    unsigned char bytes[16];
    unsigned group;
};

struct hd_sim_thread {
    struct hd_cudasim_thread built_in; /* first: hd_cudasim_self points to it */
    struct hd_fiber fiber;
    enum hd_sim_state state;
    unsigned index, lane, warp;
    struct hd_cudasim_site site; /* where it waits */
    /* at a barrier */
    enum hd_cudasim_barrier barrier;
    int predicate, result;
    /* in its warp */
    enum hd_sim_op op;
    unsigned mask;
    void *part; /* of the op, on the waiting fiber's stack */
    hd_sim_perform *perform;
    /* cp.async */
    struct hd_sim_copy *copies;
    size_t copy_count, copy_room;
    unsigned group; /* that copies issued now will belong to */
};

struct hd_sim_warp {
    unsigned live, waiting; /* bits by lane */
};

struct hd_sim_shared {
    const struct hd_cudasim_shared_site *site; /* NULL: the dynamic one */
    unsigned char *map, *base;
    size_t size_bytes;
};

/* What was read by __ldg. */
struct hd_sim_constant {
    const void *address;
    size_t size_bytes;
    unsigned char bytes[16];
    struct hd_cudasim_site site;
};

struct hd_sim_engine {
    struct hd_fiber home;
    struct hd_sim_thread *threads; /* [HD_SIM_THREADS_MAX], made when first needed */
    unsigned ready_count;          /* threads that have a stack */
    struct hd_sim_thread *running;
    struct hd_sim_warp warps[HD_SIM_WARPS_MAX];
    /* the launch */
    const char *kernel;
    void (*run)(void *);
    void *context;
    unsigned thread_count, live, at_barrier;
    enum hd_cudasim_order schedule;
    uint64_t random;
    struct hd_sim_shared shared[HD_SIM_SHARED_SITES_MAX];
    unsigned shared_count;
    size_t shared_limit;
    struct hd_sim_constant constants[HD_SIM_CONSTANTS]; /* by address; size_bytes 0: none */
    bool has_constants;
};

struct hd_sim_engine *hd_sim_engine(void); /* of a launch that runs on this OS thread */

/* Shared memory of a block, static and dynamic: the default, or what cudaFuncSetAttribute gave this
 * kernel leave for. */
size_t hd_sim_shared_limit(const void *kernel);

/* Runs one whole grid here and now. */
/* ran.c: that a kernel runs, on blocks of so many threads. */
void hd_sim_note_run(const void *kernel, unsigned threads);

void hd_sim_run_grid(const char *kernel, struct dim3 grid, struct dim3 block, size_t shared_bytes,
                     size_t shared_limit, void (*run)(void *), void *context);

uint64_t hd_sim_random(uint64_t *state);

/* Back to the scheduler until somebody makes this thread ready. */
void hd_sim_wait(struct hd_sim_engine *e, struct hd_sim_thread *t);

/* Rendezvous of the lanes of `mask`; returns when all that live have come and `perform` has been
 * called once. */
void hd_sim_collect(enum hd_sim_op op, unsigned mask, void *part, hd_sim_perform *perform,
                    struct hd_cudasim_site site);
/* A lane has ended: the others of its warp may have waited only for it. */
void hd_sim_lane_ended(struct hd_sim_engine *e, struct hd_sim_thread *t);
const char *hd_sim_op_name(enum hd_sim_op op);

/* Whether [address, address + size) lies in one shared array of the running block. */
bool hd_sim_is_shared(struct hd_sim_engine *e, const void *address, size_t size_bytes);

/* ---- Runtime ---- */

cudaError_t hd_sim_set_error(cudaError_t error); /* remembers it for cudaGetLastError, returns it */

enum hd_sim_memory {
    HD_SIM_PAGEABLE, /* not ours */
    HD_SIM_DEVICE,
    HD_SIM_MANAGED,
    HD_SIM_PINNED
};
/* Kind of memory at address; *ret_room: bytes from there to the end of its allocation. */
enum hd_sim_memory hd_sim_memory_of(const void *address, size_t *ret_room);
size_t hd_sim_memory_leaks(void);
size_t hd_sim_stream_leaks(void);

int hd_sim_device(void); /* current device of this OS thread */
int hd_sim_device_count(void);

/* Runs what is pending on all streams of all devices, as far as no gate is in the way: another
 * rank's work, which would be another process's, never keeps a rank from its memory. */
void hd_sim_drain_all(void);
/* ... on streams that the legacy stream waits for. */
void hd_sim_drain_blocking(void);

/* Enqueues run(context), then done(context); at once unless streams are lazy. */
cudaError_t hd_sim_enqueue(cudaStream_t stream, void (*run)(void *), void (*done)(void *),
                           void *context);

bool hd_sim_is_lazy(void);

/* Gates: what lazy streams wait for until somebody outside opens it. Operations run under the lock
 * of the streams; gates are used under it, too. A gate that is closed again before its operation
 * has run holds it anew. */
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

/* run: binds programs to memory and runs them.
 *
 * *Bases* are the addresses of the private and the registered half of each region, for one slot of
 * the regions that have slots (enum hd_region). Binding computes every pointer of a program once. A
 * step is then a loop of launches with ready arguments; it allocates nothing.
 *
 * Compute runs on the backend's compute stream, collectives on the streams of the rank's endpoint.
 * The runner polls communication between two launches, so that it overlaps with compute. The first
 * failure is kept: the runner aborts the peers (hd_comm_abort), and every later call returns it.
 *
 * On a device a launch returns before the kernel has run (kernels.h, hd_device_table). Two rules
 * order the launches; the host does not wait:
 *
 *  1. A collective starts after everything that was launched on the compute stream before it.
 *  2. A compute launch starts after the collectives that its node, or the end of an earlier
 *     program, waits for.
 *
 * They make it safe that stores share memory (place.c) and that the next program, or a copy on the
 * compute stream, overwrites it. Accesses of compute launches are ordered by the compute stream.
 * The memory of a collective is not reused before compute has waited for the collective: within the
 * program place.c reserves it until that wait, and the end of the program waits for all remaining
 * collectives (bind_end). Two collectives on different streams are ordered through the compute
 * stream. Only the sums of gradients may still run after their program. They access only gradients,
 * which only the update reads, after hd_runner_order. Transfers between stages are not part of a
 * program: they use slots of the region HD_REGION_STAGE_IO, whose next user waits for them
 * (hd_runner_await).
 *
 * Used by: train, generation, tests.   Uses: program, comm, kernels.
 * Threads: a runner belongs to the thread of its rank.
 */
#ifndef HD_PROGRAM_RUN_H
#define HD_PROGRAM_RUN_H

#include "program/program.h"

/* Base addresses of the regions. Those of HD_REGION_SAVED, DEFERRED and STAGE_IO differ from slot
 * to slot, the others do not. */
struct hd_bases {
    char *base[HD_REGION_COUNT][2];    /* [region][registered] */
    char *stage_io[HD_STAGE_IO_COUNT]; /* addresses of the slots of hidden rows and of their
                                          gradients; NULL: the chunk does not have it */
    char *chunk_state;                 /* address of the memory of the chunk's constants and
                                          caches */
};

struct hd_runner;
struct hd_bound; /* a program bound to memory, for one position of the micro-batch in the step */

/* Opens a runner. comm: NULL for one rank without collectives. The runner borrows backend, comm and
 * mesh. */
enum hd_status hd_runner_new(const struct hd_backend_table *table, struct hd_backend *backend,
                             struct hd_comm *comm, const struct hd_mesh *mesh,
                             struct hd_runner **ret_runner);
void hd_runner_free(struct hd_runner *runner);

/* Binds one program of the chunk and sets *ret_bound, in memory of `arena`. first, last: true if
 * the program will run in the first, in the last micro-batch of a step. Calls the backend's
 * `prepare` for every kernel and shape; if that times products (options.choices_dir), it overwrites what
 * the program reads, so weights are written after all programs are bound. */
enum hd_status hd_bind(struct hd_runner *runner, const struct hd_chunk *chunk, enum hd_call call,
                       bool first, bool last, const struct hd_bases *bases, struct hd_arena *arena,
                       struct hd_bound **ret_bound);

/* Launches the program, which may still run on the device when this returns; hd_runner_order and
 * hd_runner_synchronize wait for it. If the backend takes graphs, the second run captures the kernels
 * between collectives as graphs, and later ones replay these. */
enum hd_status hd_run(struct hd_runner *runner, struct hd_bound *bound);

/* The newest transfer of hidden rows, or of their gradient, that uses a slot of
 * HD_REGION_STAGE_IO. */
struct hd_transfer {
    struct hd_comm_stream *stream; /* communication stream of the transfer; NULL: no transfer is in
                                      flight */
    uint64_t ticket;
};
struct hd_transfer_args {
    bool sends;
    struct hd_comm_group *group;   /* group of the two ranks */
    struct hd_comm_stream *stream; /* communication stream that is used in this direction only */
    void *buffer;                  /* [count], registered */
    int64_t count;
    enum hd_dtype dtype;
};

/* Starts a transfer that begins after all earlier launches on the compute stream, and returns
 * before it ends. *slot on entry: the previous transfer that used the buffer, for which the new one
 * waits; on return: the new transfer. */
enum hd_status hd_runner_transfer(struct hd_runner *runner, const struct hd_transfer_args *args,
                                  struct hd_transfer *slot);

/* Makes later launches on the compute stream run after the transfer in `slot`, if one is in
 * flight. */
enum hd_status hd_runner_await(struct hd_runner *runner, struct hd_transfer *slot);

/* Makes later launches on the compute stream run after everything that was launched on any stream
 * before. The host waits only if tensors are in host memory. */
enum hd_status hd_runner_order(struct hd_runner *runner);

/* Waits, on the host, for everything that was launched on any stream. */
enum hd_status hd_runner_synchronize(struct hd_runner *runner);

/* Returns the compute stream, for copies that must be ordered with launches. The runner owns it. */
struct hd_stream *hd_runner_stream(struct hd_runner *runner);

/* Returns the address of a store of a chunk, given the base addresses of the regions. */
void *hd_store_address(const struct hd_bases *bases, const struct hd_store *store);

/* Writes the values of a constant store (RoPE table, ALiBi slopes, positions), constant->size_bytes
 * bytes, to ret_values in host memory. */
void hd_constant_fill(const struct hd_store *constant, void *ret_values);

/* Makes one later launch fail with HD_INTERNAL: `launch` launches come before it (0: the next one
 * fails; -1: none fails). For tests. */
void hd_runner_fail_at(struct hd_runner *runner, int64_t launch);

/* Sets a function that is called before each launch; NULL: none. For tests of the order of
 * launches. */
struct hd_launch_event {
    enum hd_call call;
    const struct hd_node *node;
};
void hd_runner_observe(struct hd_runner *runner,
                       void (*observer)(void *context, const struct hd_launch_event *event),
                       void *context);

/* Kinds of spans in a profile of the host's time while programs run. */
enum hd_span_kind {
    HD_SPAN_LAUNCH,     /* launch of a collective or a kernel; on the CPU the kernel's run */
    HD_SPAN_WAIT,       /* wait for the collective `node`; on a device: enqueueing this wait */
    HD_SPAN_POLL,       /* hd_comm_poll between two launches; node is NULL */
    HD_SPAN_SYNCHRONIZE /* hd_runner_order, hd_runner_synchronize or hd_runner_await; node is
                              NULL */
};
struct hd_span {
    enum hd_span_kind kind;
    const struct hd_node *node;
    int64_t begin_ns, end_ns;            /* begin and end of the span by hd_clock_now_ns */
    const struct hd_comm_stream *stream; /* communication stream of the collective; NULL: the span
                                            is not about a collective */
    uint64_t ticket;                     /* ticket on `stream` at which the collective is
                                            complete */
};
/* Callbacks of a profile: `span` is called after each span, `begin` (may be NULL) before it, for
 * example to record an event on the compute stream. hd_runner_profile copies the struct; NULL ends
 * profiling, and the clock is no longer read. */
struct hd_profiler {
    void (*begin)(void *context, enum hd_span_kind kind, const struct hd_node *node);
    void (*span)(void *context, const struct hd_span *span);
    void *context;
};
void hd_runner_profile(struct hd_runner *runner, const struct hd_profiler *profiler);

#endif

/* run: binds programs to memory and runs them.
 *
 * *Bases* are addresses: where each half of each region lies for one slot. Binding a program to
 * them resolves every pointer once; a step then is a loop of launches over ready arguments, and
 * allocates nothing.
 *
 * Compute runs on the backend's compute stream, collectives on the streams of the rank's endpoint.
 * Between two launches communication is polled, so that it progresses beside compute. The first
 * failure sticks to the runner, aborts the peers by hd_comm_abort, and is returned by every later
 * call.
 *
 * A launch may return before it has run (kernels.h, hd_device_table); the order is kept by two
 * rules, and by no wait of the host:
 *
 *  1. A collective starts behind everything that was launched on the compute stream before it.
 *  2. A compute launch starts behind the collectives that its node, or the end of an earlier
 *     program, waits for.
 *
 * So whatever place.c lets share memory, and whatever the next program or a write in the compute
 * stream's order puts where another was, comes behind the last that touched it: a compute launch by
 * the order of its stream, a collective since compute has waited for it (place.c keeps its memory
 * until then, bind_end waits for the rest), and a collective behind another on another stream by
 * way of the compute stream. Sums of gradients alone outlive their program, and touch nothing but
 * the gradients, which no program but the update's, behind hd_runner_order, looks at again.
 *
 * Used by: train, generation, tests.   Uses: program, comm, kernels.
 * Threads: a runner belongs to the thread of its rank.
 */
#ifndef HD_PROGRAM_RUN_H
#define HD_PROGRAM_RUN_H

#include "program/program.h"

/* Base addresses. Kept and deferred change from slot to slot, the rest is the same for all
 * of a rank. `chunk_state`: where the chunk's own constants and caches lie. */
struct hd_bases {
    char *base[HD_REGION_COUNT][2]; /* [region][visible] */
    char *chunk_state;
};

struct hd_runner;
struct hd_bound; /* a program bound to memory, in one variant */

/* comm may be NULL for a world of one without collectives. The runner borrows all three. */
enum hd_status hd_runner_new(const struct hd_backend_table *table, struct hd_backend *backend,
                             struct hd_comm *comm, const struct hd_mesh *mesh,
                             struct hd_runner **ret_runner);
void hd_runner_free(struct hd_runner *runner);

/* first, last: the variant of the micro-batch's place in the step. Prepares the backend for every
 * shape. The result lives in `arena`. */
enum hd_status hd_bind(struct hd_runner *runner, const struct hd_chunk *chunk, enum hd_call call,
                       bool first, bool last, const struct hd_bases *bases, struct hd_arena *arena,
                       struct hd_bound **ret_bound);

/* Launches it. It may still be under way afterwards: hd_runner_order, hd_runner_join. */
enum hd_status hd_run(struct hd_runner *runner, struct hd_bound *bound);

/* What is launched on the compute stream from now on runs behind everything that was launched on
 * any stream before. Only where memory is the host's does the host wait for that. */
enum hd_status hd_runner_order(struct hd_runner *runner);

/* The host waits for everything that was launched on any stream. */
enum hd_status hd_runner_join(struct hd_runner *runner);

/* The compute stream, for bytes that move in its order. */
struct hd_stream *hd_runner_stream(struct hd_runner *runner);

/* The address of a store. */
void *hd_store_address(const struct hd_bases *bases, const struct hd_store *store);

/* The values of a constant, a table of angles, of slopes or of indices: size_bytes of the store. */
void hd_constant_fill(const struct hd_store *constant, void *ret_values);

/* Tests: the `launch`-th launch from now (0: the next) fails as a device would. -1: never. */
void hd_runner_fail_at(struct hd_runner *runner, int64_t launch);

/* Called before each launch when set, for traces and for tests of order. */
struct hd_launch_event {
    enum hd_call call;
    const struct hd_node *node;
};
void hd_runner_observe(struct hd_runner *runner,
                       void (*observer)(void *context, const struct hd_launch_event *event),
                       void *context);

/* Where a rank's time went while programs ran, told after the fact. */
enum hd_span_kind {
    HD_SPAN_LAUNCH, /* of a kernel, which on the CPU is its run, or of a collective */
    HD_SPAN_WAIT,   /* before a launch, for the collective `node`; on a device: making it wait */
    HD_SPAN_POLL,   /* communication that moved between two launches; node is NULL */
    HD_SPAN_JOIN    /* in hd_runner_order and hd_runner_join; node is NULL */
};
struct hd_span {
    enum hd_span_kind kind;
    const struct hd_node *node;
    int64_t begin_ns, end_ns;            /* hd_clock_now_ns */
    const struct hd_comm_stream *stream; /* of a launched collective, */
    uint64_t ticket;                     /* complete when this is */
};
/* Told of each span from now on; NULL: no more, and nothing looks at the clock. `begin` comes
 * before what the span will be of, in the order of the compute stream; it may be NULL. */
struct hd_profiler {
    void (*begin)(void *context, enum hd_span_kind kind, const struct hd_node *node);
    void (*span)(void *context, const struct hd_span *span);
    void *context;
};
void hd_runner_profile(struct hd_runner *runner, const struct hd_profiler *profiler);

#endif

/* The engine local: ranks that are threads of one process on one device. They use the control block
 * and the state machines of shm (shm_collective.c, shm_pair.c). This file has the steps that differ
 * on device memory:
 *
 *   enter    records ready_event on the rank's stream: its inputs are written, its outputs are free
 *   move     makes the stream wait for all ready_events, launches kernels and copies, records
 *            done_event
 *   finish   makes the stream wait for all done_events: no peer uses this rank's buffers any more
 *
 * Each step only enqueues, and a stream waits only for work that is already enqueued. So the device
 * cannot deadlock, in whatever order it runs the streams.
 *
 * The hub owns the events, because a slow peer may enqueue a wait for a done_event after the rank
 * that recorded it has closed. The endpoint owns its memory: after a clean close no peer uses it;
 * after a failure the close waits for peers that are enqueuing. */
#include "comm/local.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device_streams.h"
#include "comm/shm_internal.h"

_Static_assert((int)HD_COMM_LOCAL_RANKS_MAX <= (int)HD_COMBINE_MAX, "one input per rank");

struct local_event {
    struct hd_event *event;
    void (*free_event)(struct hd_event *event);
    struct local_event *next; /* next event in the hub's list of all events */
};

struct hd_comm_hub {
    struct hd_shm_control *ctl; /* the hub's own control block; NULL: `fds` belong to a parent
                                   process */
    struct hd_shm_fds fds;
    pthread_mutex_t lock;
    struct local_event *events; /* all events that its endpoints created; freed with the hub */
};

struct comm_local {
    struct hd_comm_hub *hub;
    struct hd_event *ready[HD_COMM_GROUPS_MAX][SHM_RING], *done[HD_COMM_GROUPS_MAX][SHM_RING];
    /* ready_event of each slot of this rank's outbox, by receiver */
    struct hd_event *sent[HD_COMM_LOCAL_RANKS_MAX][SHM_OUTBOX];
    /* done_event of each slot of the outboxes in which peers send to this rank, by sender */
    struct hd_event *taken[HD_COMM_LOCAL_RANKS_MAX][SHM_OUTBOX];
};

/* ---- the hub ---- */

enum hd_status hd_comm_hub_on(const struct hd_shm_fds *fds, struct hd_comm_hub **ret_hub)
{
    struct hd_comm_hub *hub = calloc(1, sizeof *hub);

    if (!hub)
        return hd_err(HD_NO_MEMORY, "comm: no memory for a hub of %d ranks", fds->world);
    hub->fds = *fds;
    (void)pthread_mutex_init(&hub->lock, NULL);
    *ret_hub = hub;
    return HD_OK;
}

enum hd_status hd_comm_hub_new(int world, struct hd_comm_hub **ret_hub)
{
    struct hd_shm_control *ctl;
    struct hd_shm_fds fds = {.world = world};
    enum hd_status st = hd_comm_check_world(HD_COMM_BY_LOCAL, 0, world);

    if (!st)
        st = hd_shm_control_new(world, &ctl);
    if (st)
        return st;
    fds.control_fd = hd_shm_control_fd(ctl);
    memcpy(fds.rank_fds, hd_shm_control_rank_fds(ctl), (size_t)world * sizeof fds.rank_fds[0]);
    st = hd_comm_hub_on(&fds, ret_hub);
    if (st)
        hd_shm_control_free(ctl);
    else
        (*ret_hub)->ctl = ctl;
    return st;
}

void hd_comm_hub_free(struct hd_comm_hub *hub)
{
    if (!hub)
        return;
    while (hub->events) {
        struct local_event *event = hub->events;

        hub->events = event->next;
        event->free_event(event->event);
        free(event);
    }
    hd_shm_control_free(hub->ctl);
    (void)pthread_mutex_destroy(&hub->lock);
    free(hub);
}

struct hd_shm_control *hd_comm_hub_control(struct hd_comm_hub *hub)
{
    return hub->ctl;
}

/* ---- events ---- */

/* Tell the thread sanitizer that recording an event happens before its use by another rank. The
 * atomic entry of the ring orders them, but each rank maps the ring at its own address, so the
 * sanitizer does not see it. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define SAY_GIVEN(event) __tsan_release(event)
#define SAY_TAKEN(event) __tsan_acquire(event)
#else
#define SAY_GIVEN(event) ((void)(event))
#define SAY_TAKEN(event) ((void)(event))
#endif

static const struct hd_device_table *calls_of(const struct hd_comm *comm)
{
    return hd_comm_streams_calls(comm->device_streams);
}

/* Creates an event in `*place` if that is NULL; the hub owns the event. */
static enum hd_status need_event(const struct hd_comm *comm, struct hd_event **place)
{
    struct hd_comm_hub *hub = shm_of(comm)->local->hub;
    struct local_event *made;
    enum hd_status st;

    if (*place)
        return HD_OK;
    made = calloc(1, sizeof *made);
    if (!made)
        return hd_err(HD_NO_MEMORY, "local: no memory for an event");
    st = calls_of(comm)->event_new(comm->device_streams->device.backend, false, &made->event);
    if (st) {
        free(made);
        return st;
    }
    made->free_event = calls_of(comm)->event_free;
    (void)pthread_mutex_lock(&hub->lock);
    made->next = hub->events;
    hub->events = made;
    (void)pthread_mutex_unlock(&hub->lock);
    *place = made->event;
    return HD_OK;
}

static enum hd_status record(const struct hd_comm_op *op, struct hd_event **place,
                             uint64_t *ret_event)
{
    const struct hd_comm *comm = op->stream->comm;
    enum hd_status st = need_event(comm, place);

    if (!st)
        st = calls_of(comm)->event_record(*place, hd_comm_device_stream(op));
    if (!st) {
        SAY_GIVEN(*place);
        *ret_event = (uint64_t)(uintptr_t)*place;
    }
    return st;
}

static enum hd_status wait_for(const struct hd_comm_op *op, uint64_t event)
{
    struct hd_event *of_other = (struct hd_event *)(uintptr_t)event;

    SAY_TAKEN(of_other);
    return calls_of(op->stream->comm)->event_wait(hd_comm_device_stream(op), of_other);
}

/* ---- enqueuing: begin fails after a failure of any rank ---- */

static enum hd_status begin(const struct hd_comm_op *op)
{
    struct hd_comm *comm = op->stream->comm;
    enum hd_status st;

    atomic_store(&shm_of(comm)->area->enqueuing, 1);
    st = shm_check_failure(comm);
    if (st)
        atomic_store(&shm_of(comm)->area->enqueuing, 0);
    return st;
}

static enum hd_status end(const struct hd_comm_op *op, enum hd_status st)
{
    struct hd_comm *comm = op->stream->comm;

    atomic_store(&shm_of(comm)->area->enqueuing, 0);
    return st ? hd_comm_fail(comm, st, "%s #%" PRIu64 " of group %s: %s", hd_comm_op_name(op),
                             op->seq, op->group->name, hd_err_message())
              : HD_OK;
}

/* ---- a collective ---- */

static int channel_of(const struct hd_comm_op *op)
{
    const struct shm_channel *channel = op->group->channels[op->group->index];

    return (int)(channel - shm_of(op->group->comm)->area->channels);
}

enum hd_status local_enter(const struct hd_comm_op *op, struct shm_entry *entry)
{
    struct comm_local *local = shm_of(op->group->comm)->local;
    enum hd_status st = begin(op);

    if (st)
        return st;
    entry->send_offset = (uint64_t)(uintptr_t)op->send;
    entry->recv_offset = (uint64_t)(uintptr_t)op->recv;
    entry->send_counts = (uint64_t)(uintptr_t)op->send_counts;
    return end(op,
               record(op, &local->ready[channel_of(op)][op->seq % SHM_RING], &entry->ready_event));
}

static char *send_of(const struct hd_comm_op *op, int member)
{
    return (char *)(uintptr_t)shm_entry_of(op, member)->send_offset;
}

static char *recv_of(const struct hd_comm_op *op, int member)
{
    return (char *)(uintptr_t)shm_entry_of(op, member)->recv_offset;
}

static enum hd_status copy_on_device(const struct hd_comm_op *op, char *to, const char *from,
                                     int64_t bytes)
{
    if (bytes == 0 || to == from)
        return HD_OK;
    return calls_of(op->group->comm)->copy(hd_comm_device_stream(op), to, from, bytes);
}

/* Enqueues the copies of this member's data from every member's send; for a broadcast, from the
 * root only. */
static enum hd_status pull(struct hd_comm_op *op)
{
    struct hd_comm_group *group = op->group;
    const int64_t unit = hd_comm_unit_bytes(op);
    const int me = group->index;
    enum hd_status st = HD_OK;

    for (int n = 1; n <= group->size && !st; n++) { /* each member starts at another peer */
        const int m = (me + n) % group->size;

        if (op->kind == HD_COMM_BROADCAST && (m != op->peer || m == me))
            continue;
        if (op->kind == HD_COMM_BROADCAST)
            st = copy_on_device(op, op->recv, recv_of(op, m), unit);
        else if (op->kind == HD_COMM_ALL_GATHER)
            st = copy_on_device(op, op->recv + m * unit, send_of(op, m), unit);
        else
            st = copy_on_device(op, op->recv + m * unit, send_of(op, m) + me * unit, unit);
        if (m != me)
            group->counts[op->kind].moved_bytes += (uint64_t)unit;
    }
    return st;
}

/* Enqueues the sum of this member's slice of all inputs, in group order, into every recv
 * (all_reduce) or to its own recv (reduce_scatter). Only one member reads and writes each element,
 * so an all-reduce may be in place. */
static enum hd_status reduce(struct hd_comm_op *op)
{
    struct hd_comm_group *group = op->group;
    const int64_t size = (int64_t)hd_dtype_size(op->dtype);
    const bool everywhere = op->kind == HD_COMM_ALL_REDUCE;
    struct hd_combine_args args = {.outs = everywhere ? group->size : 1,
                                   .ins = group->size,
                                   .dtype = op->dtype,
                                   .max = op->reduce == HD_COMM_MAX,
                                   .keep_fp32 = op->keep_fp32};
    int64_t begin = 0, end = op->count;

    if (everywhere)
        hd_comm_slice(op->count, op->dtype, group->size, group->index, &begin, &end);
    args.count = end - begin;
    if (args.count == 0)
        return HD_OK;
    for (int m = 0; m < group->size; m++) {
        const int64_t shift = everywhere ? begin : group->index * op->count;

        args.in[m] = send_of(op, m) + shift * size;
        if (everywhere)
            args.out[m] = recv_of(op, m) + begin * size;
    }
    if (!everywhere)
        args.out[0] = op->recv;
    group->counts[op->kind].moved_bytes +=
        (uint64_t)((group->size - 1) * args.count * size * (everywhere ? 2 : 1));
    return calls_of(group->comm)->combine(hd_comm_device_stream(op), &args);
}

static enum hd_status exchange_rows_by_kernel(struct hd_comm_op *op)
{
    struct hd_comm_group *group = op->group;
    struct hd_exchange_rows_args args = {.out = op->recv,
                                         .recv_counts = op->recv_counts,
                                         .overflow = op->overflow,
                                         .members = group->size,
                                         .index = group->index,
                                         .row_bytes = hd_comm_unit_bytes(op)};

    for (int m = 0; m < group->size; m++) {
        const struct shm_entry *entry = shm_entry_of(op, m);

        args.send[m] = send_of(op, m);
        args.send_counts[m] = (const int32_t *)(uintptr_t)entry->send_counts;
        args.send_rows_max[m] = entry->signature.send_rows_max;
        args.recv_rows_max[m] = entry->signature.recv_rows_max;
    }
    return calls_of(group->comm)->exchange_rows(hd_comm_device_stream(op), &args);
}

enum hd_status local_move(struct hd_comm_op *op)
{
    struct hd_comm_group *group = op->group;
    struct comm_local *local = shm_of(group->comm)->local;
    struct shm_entry *own = shm_entry_of(op, group->index);
    enum hd_status st = begin(op);

    if (st)
        return st;
    for (int m = 0; m < group->size && !st; m++)
        st = m == group->index ? HD_OK : wait_for(op, shm_entry_of(op, m)->ready_event);
    if (!st && hd_comm_reduces(op->kind))
        st = reduce(op);
    else if (!st && op->kind == HD_COMM_ALL_TO_ALL_V)
        st = exchange_rows_by_kernel(op);
    else if (!st)
        st = pull(op);
    if (!st)
        st = record(op, &local->done[channel_of(op)][op->seq % SHM_RING], &own->done_event);
    return end(op, st);
}

/* Makes this rank's device stream wait for the done_events of all members; a barrier has none, so
 * the stream waits for their ready_events. */
enum hd_status local_finish(struct hd_comm_op *op)
{
    struct hd_comm_group *group = op->group;
    enum hd_status st = begin(op);

    if (st)
        return st;
    for (int m = 0; m < group->size && !st; m++) {
        const struct shm_entry *entry = shm_entry_of(op, m);

        if (m != group->index)
            st = wait_for(op, op->kind == HD_COMM_BARRIER ? entry->ready_event : entry->done_event);
    }
    return end(op, st);
}

/* ---- a send and its receive ---- */

enum hd_status local_post(const struct hd_comm_op *op, struct shm_slot *slot)
{
    struct hd_comm *comm = op->group->comm;
    const int to = op->group->members[op->peer];
    enum hd_status st = begin(op);

    if (st)
        return st;
    slot->offset = (uint64_t)(uintptr_t)op->send;
    st = record(op, &shm_of(comm)->local->sent[to][slot - shm_outbox(shm_of(comm)->area, to)],
                &slot->ready_event);
    return end(op, st);
}

enum hd_status local_take(struct hd_comm_op *op, struct shm_slot *slot)
{
    struct hd_comm *comm = op->group->comm;
    const int from = op->group->members[op->peer];
    const struct shm_slot *first = shm_outbox(shm_area_of(comm, from), comm->rank);
    enum hd_status st = begin(op);

    if (st)
        return st;
    st = wait_for(op, slot->ready_event);
    if (!st)
        st = copy_on_device(op, op->recv, (const char *)(uintptr_t)slot->offset,
                            hd_comm_unit_bytes(op));
    if (!st)
        st = record(op, &shm_of(comm)->local->taken[from][slot - first], &slot->done_event);
    return end(op, st);
}

enum hd_status local_taken(const struct hd_comm_op *op, const struct shm_slot *slot)
{
    const enum hd_status st = begin(op);

    return st ? st : end(op, wait_for(op, slot->done_event));
}

/* ---- opening and closing ---- */

static enum hd_status local_registered(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    const struct hd_comm_device *device = &comm->device_streams->device;

    return calls_of(comm)->reserve(device->backend, (int64_t)size_bytes, device->host_reachable,
                                   ret_base);
}

static void local_close(struct hd_comm *comm, bool clean)
{
    const struct hd_comm_device device = comm->device_streams->device;

    if (!clean) {
        shm_abort(comm, HD_ABORTED, "it closed its endpoint with operations in flight");
        for (int r = 0; r < comm->world; r++) { /* a peer that begins to enqueue after this point
                                                   sees the failure */
            while (r != comm->rank && atomic_load(&shm_area_of(comm, r)->enqueuing))
                (void)sched_yield();
        }
    }
    hd_comm_streams_close(comm->device_streams);
    if (comm->registered)
        device.table->device->release(device.backend, comm->registered);
    comm->registered = NULL;
    comm->device_streams = NULL;
    free(shm_of(comm)->local);
    shm_close(comm, clean);
}

static const struct hd_comm_engine local_engine = {
    .kind = HD_COMM_BY_LOCAL,
    .registered = local_registered,
    SHM_ENGINE_CALLS,
    .close = local_close,
};

enum hd_status hd_comm_open_local(struct hd_comm_hub *hub, int rank,
                                  const struct hd_comm_device *device, int64_t deadline_ms,
                                  struct hd_comm **ret_comm)
{
    struct hd_comm_device_streams *device_streams = NULL;
    struct comm_local *local = calloc(1, sizeof *local);
    struct hd_comm *comm;
    enum hd_status st = local ? hd_comm_streams_open(device, &device_streams)
                              : hd_err(HD_NO_MEMORY, "local: no memory for an endpoint");

    if (!st)
        st = shm_join(&local_engine, hub->fds.control_fd, hub->fds.rank_fds, rank, hub->fds.world,
                      deadline_ms, &comm);
    if (st) {
        hd_comm_streams_close(device_streams);
        free(local);
        return st;
    }
    local->hub = hub;
    shm_of(comm)->local = local;
    comm->device_streams = device_streams;
    *ret_comm = comm;
    return HD_OK;
}

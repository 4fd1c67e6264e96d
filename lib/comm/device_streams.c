#include "comm/device_streams.h"

#include <stdlib.h>

enum hd_status hd_comm_streams_open(const struct hd_comm_device *device,
                                    struct hd_comm_device_streams **ret_device_streams)
{
    const struct hd_device_table *calls = device->table->device;
    struct hd_comm_device_streams *device_streams;
    enum hd_status st = HD_OK;

    if (!calls)
        return hd_err(HD_INVALID, "comm: backend %s has no memory of its own; use the engine shm",
                      device->table->name);
    device_streams = calloc(1, sizeof *device_streams);
    if (!device_streams)
        return hd_err(HD_NO_MEMORY, "comm: no memory for an endpoint");
    device_streams->device = *device;
    for (int s = 0; s < HD_COMM_STREAM_COUNT && !st; s++) {
        for (int e = 0; e < FOLLOW_RING && !st; e++)
            st = calls->event_new(device->backend, false, &device_streams->followed[s][e]);
        for (int e = 0; e < EVENT_RING && !st; e++)
            st = calls->event_new(device->backend, false, &device_streams->ended[s][e]);
    }
    if (st) {
        hd_comm_streams_close(device_streams);
        return st;
    }
    *ret_device_streams = device_streams;
    return HD_OK;
}

void hd_comm_streams_close(struct hd_comm_device_streams *device_streams)
{
    if (!device_streams)
        return;
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        if (device_streams->streams[s])
            (void)device_streams->device.table->synchronize(
                device_streams->streams[s]); /* no return value: closing continues after an error */
    }
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        for (int e = 0; e < EVENT_RING; e++) {
            if (device_streams->ended[s][e])
                hd_comm_streams_calls(device_streams)->event_free(device_streams->ended[s][e]);
        }
        for (int e = 0; e < FOLLOW_RING; e++) {
            if (device_streams->followed[s][e])
                hd_comm_streams_calls(device_streams)->event_free(device_streams->followed[s][e]);
        }
        if (device_streams->streams[s])
            device_streams->device.table->stream_close(device_streams->streams[s]);
    }
    free(device_streams);
}

enum hd_status hd_comm_streams_need(const struct hd_comm_stream *stream)
{
    struct hd_comm_device_streams *device_streams = stream->comm->device_streams;

    return device_streams->streams[stream->name]
               ? HD_OK
               : device_streams->device.table->stream_open(device_streams->device.backend,
                                                           HD_STREAM_FOR_COMM,
                                                           &device_streams->streams[stream->name]);
}

static struct hd_event *ended(const struct hd_comm_stream *stream, uint64_t ticket)
{
    return stream->comm->device_streams->ended[stream->name][ticket % EVENT_RING];
}

/* Makes the next launch wait for `compute`, by an event of the ring. Recording an event again does
 * not change earlier waits for it. */
enum hd_status hd_comm_streams_follow(struct hd_comm_stream *stream, struct hd_stream *compute)
{
    struct hd_comm_device_streams *device_streams = stream->comm->device_streams;
    const uint64_t ticket = stream->launched + 1; /* ticket of the next launch */
    struct hd_event *event = device_streams->followed[stream->name][ticket % FOLLOW_RING];
    enum hd_status st = hd_comm_streams_need(stream);

    if (!st)
        st = hd_comm_streams_calls(device_streams)->event_record(event, compute);
    if (!st)
        atomic_store(&device_streams->followed_by[stream->name][ticket % FOLLOW_RING], ticket);
    return st ? st
              : hd_comm_streams_calls(device_streams)
                    ->event_wait(device_streams->streams[stream->name], event);
}

enum hd_status hd_comm_streams_wait_on(const struct hd_comm_stream *stream, uint64_t ticket,
                                       struct hd_stream *compute)
{
    return hd_comm_streams_calls(stream->comm->device_streams)
        ->event_wait(compute, ended(stream, ticket));
}

enum hd_status hd_comm_streams_done(const struct hd_comm_stream *stream, uint64_t ticket,
                                    bool *ret_done)
{
    return hd_comm_streams_calls(stream->comm->device_streams)
        ->event_done(ended(stream, ticket), ret_done);
}

enum hd_status hd_comm_streams_note_end(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm_device_streams *device_streams = stream->comm->device_streams;
    const struct hd_comm_op *op = hd_comm_op_at(stream, ticket - 1);
    const enum hd_status st =
        hd_comm_streams_calls(device_streams)
            ->event_record(ended(stream, ticket), device_streams->streams[stream->name]);

    atomic_store(&device_streams->groups[stream->name][ticket % EVENT_RING], op->group);
    atomic_store(&device_streams->launches[stream->name][ticket % EVENT_RING], op->launch);
    atomic_store(&device_streams->after[stream->name][ticket % EVENT_RING],
                 op->kind == HD_COMM_AFTER ? (uint8_t)(op->other->name + 1) : 0);
    atomic_store(&device_streams->newest[stream->name], ticket);
    return st;
}

/* ---- what has run ---- */

/* Sets *ret_ticket to the first ticket of a stream after `run` that the device has not run; to
 * `newest` + 1 if it has run all. Tickets whose events were overwritten count as run once the
 * oldest remaining event is complete. A stream runs its tickets in order, so a binary search finds
 * the ticket. */
static enum hd_status find_next(const struct hd_comm_device_streams *device_streams,
                                enum hd_comm_stream_name stream, uint64_t run, uint64_t newest,
                                uint64_t *ret_ticket)
{
    uint64_t first =
        newest > EVENT_RING && run < newest - EVENT_RING ? newest - EVENT_RING + 1 : run + 1;
    uint64_t end = newest + 1, probe = first;
    enum hd_status st = HD_OK;

    while (!st && first < end) {
        bool done = false;

        st = hd_comm_streams_calls(device_streams)
                 ->event_done(device_streams->ended[stream][probe % EVENT_RING], &done);
        if (done)
            first = probe + 1;
        else
            end = probe;
        probe = first + (end - first) / 2;
    }
    *ret_ticket = first;
    return st;
}

/* Returns the operation number of a ticket that has run; 0: an HD_COMM_AFTER, or the slot was
 * overwritten. The owner writes a new ticket's number before it advances `newest`, so the oldest
 * slot may already hold the number of the ticket after `newest`. */
static uint64_t launch_of(const struct hd_comm_device_streams *device_streams,
                          enum hd_comm_stream_name stream, uint64_t ticket)
{
    const uint64_t launch = atomic_load(&device_streams->launches[stream][ticket % EVENT_RING]);

    return atomic_load(&device_streams->newest[stream]) + 1 < ticket + EVENT_RING ? launch : 0;
}

static void note_seen(struct hd_comm_device_streams *device_streams,
                      enum hd_comm_stream_name stream, uint64_t ticket)
{
    uint64_t seen = atomic_load(&device_streams->seen[stream]);

    while (seen < ticket &&
           !atomic_compare_exchange_weak(&device_streams->seen[stream], &seen, ticket))
        ;
}

/* Returns whether a ticket is an HD_COMM_AFTER; if so, sets *ret_other to the stream that the
 * ticket waits for. */
static bool find_other(const struct hd_comm_device_streams *device_streams,
                       enum hd_comm_stream_name stream, uint64_t ticket,
                       enum hd_comm_stream_name *ret_other)
{
    const uint8_t after = ticket <= atomic_load(&device_streams->newest[stream])
                              ? atomic_load(&device_streams->after[stream][ticket % EVENT_RING])
                              : 0;

    if (after)
        *ret_other = (enum hd_comm_stream_name)(after - 1);
    return after;
}

/* Follows the chain of streams on which ticket `next` of a stream waits by HD_COMM_AFTER. Sets
 * *ret_followed to false if a ticket of the chain still waits for a compute stream
 * (hd_comm_follow). Sets *ret_others to a number that changes when one of those streams makes
 * progress. */
static enum hd_status follow_waits(struct hd_comm_device_streams *device_streams,
                                   enum hd_comm_stream_name stream, uint64_t next,
                                   bool *ret_followed, uint64_t *ret_others)
{
    enum hd_status st = HD_OK;

    *ret_followed = true;
    *ret_others = 0;
    for (int n = 0; n < HD_COMM_STREAM_COUNT; n++) {
        const uint64_t place = next % FOLLOW_RING;
        uint64_t seen, newest;

        if (atomic_load(&device_streams->followed_by[stream][place]) == next)
            st = hd_comm_streams_calls(device_streams)
                     ->event_done(device_streams->followed[stream][place], ret_followed);
        if (st || !*ret_followed || !find_other(device_streams, stream, next, &stream))
            return st;
        seen = atomic_load(&device_streams->seen[stream]);
        newest = atomic_load(&device_streams->newest[stream]);
        st = find_next(device_streams, stream, seen, newest, &next);
        if (st)
            return st;
        if (newest - seen <= EVENT_RING) /* otherwise the event of `seen` + 1 was overwritten */
            note_seen(device_streams, stream, next - 1);
        *ret_others += next;
    }
    return HD_OK;
}

enum hd_status hd_comm_streams_query(struct hd_comm *comm, enum hd_comm_stream_name stream,
                                     struct hd_comm_stream_clock *clock, int64_t now_ms)
{
    struct hd_comm_device_streams *device_streams = comm->device_streams;
    const uint64_t newest = atomic_load(&device_streams->newest[stream]);
    uint64_t next, others;
    bool followed;
    enum hd_status st = find_next(device_streams, stream, clock->run, newest, &next);

    if (newest > EVENT_RING && clock->run < newest - EVENT_RING) {
        clock->run = newest - EVENT_RING; /* this ticket may not have run, so is_guess is set */
        clock->is_guess = true;
        clock->still_since_ms = now_ms;
    }
    for (; clock->run + 1 < next; clock->run++) {
        hd_comm_flight_ended(comm->flight, launch_of(device_streams, stream, clock->run + 1));
        clock->is_guess = false;
        clock->still_since_ms = now_ms;
    }
    if (!clock->is_guess)
        note_seen(device_streams, stream, clock->run);
    /* While `run` is a guess, the waits of `next` prove nothing: an older ticket may be the one
     * that hangs. */
    if (st || clock->is_guess)
        return st;
    st = follow_waits(device_streams, stream, next, &followed, &others);
    if (!followed || others != clock->others)
        clock->still_since_ms = now_ms;
    clock->others = others;
    return st;
}

uint64_t hd_comm_streams_launch(const struct hd_comm_device_streams *device_streams,
                                enum hd_comm_stream_name stream, uint64_t ticket)
{
    for (int n = 0; n < HD_COMM_STREAM_COUNT && find_other(device_streams, stream, ticket, &stream);
         n++)
        ticket = atomic_load(&device_streams->seen[stream]) + 1;
    return ticket <= atomic_load(&device_streams->newest[stream])
               ? atomic_load(&device_streams->launches[stream][ticket % EVENT_RING])
               : 0;
}

/* Returns the next ticket that the device has to run; 0: none. Ignores errors of the device and
 * keeps this thread's error message. */
static uint64_t next_now(const struct hd_comm_device_streams *device_streams,
                         enum hd_comm_stream_name stream)
{
    const uint64_t newest = atomic_load(&device_streams->newest[stream]);
    struct hd_error error;
    uint64_t next;

    hd_err_save(HD_OK, &error);
    if (find_next(device_streams, stream, 0, newest, &next))
        (void)hd_err_restore(&error);
    return next > newest ? 0 : next;
}

void hd_comm_streams_begin_abort(struct hd_comm *comm)
{
    struct hd_comm_device_streams *device_streams = comm->device_streams;

    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        const uint64_t seen = atomic_load(&device_streams->seen[s]);

        device_streams->abort_ticket[s] =
            seen < atomic_load(&device_streams->newest[s]) ? seen + 1 : 0;
    }
    atomic_store(&device_streams->abort_begun, true);
}

uint64_t hd_comm_streams_next_ticket(struct hd_comm *comm, enum hd_comm_stream_name stream)
{
    return atomic_load(&comm->device_streams->abort_begun)
               ? comm->device_streams->abort_ticket[stream]
               : next_now(comm->device_streams, stream);
}

void hd_comm_streams_mark_run(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm_device_streams *device_streams = stream->comm->device_streams;
    uint64_t *marked_run = &device_streams->marked_run[stream->name];

    note_seen(device_streams, stream->name, ticket);
    if (ticket > EVENT_RING && *marked_run < ticket - EVENT_RING)
        *marked_run = ticket - EVENT_RING;
    for (; *marked_run < ticket; (*marked_run)++)
        hd_comm_flight_ended(
            stream->comm->flight,
            device_streams->launches[stream->name][(*marked_run + 1) % EVENT_RING]);
}

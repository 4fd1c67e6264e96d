#include "comm/side.h"

#include <stdlib.h>

enum hd_status hd_comm_side_open(const struct hd_comm_device *device,
                                 struct hd_comm_side **ret_side)
{
    const struct hd_device_table *calls = device->table->device;
    struct hd_comm_side *side;
    enum hd_status st = HD_OK;

    if (!calls)
        return hd_err(HD_INVALID, "comm: backend %s has no memory of its own; use the engine shm",
                      device->table->name);
    side = calloc(1, sizeof *side);
    if (!side)
        return hd_err(HD_NO_MEMORY, "comm: no memory for an endpoint");
    side->device = *device;
    for (int s = 0; s < HD_COMM_STREAM_COUNT && !st; s++) {
        for (int e = 0; e < SIDE_FOLLOW_RING && !st; e++)
            st = calls->event_new(device->backend, false, &side->followed[s][e]);
        for (int e = 0; e < SIDE_EVENT_RING && !st; e++)
            st = calls->event_new(device->backend, false, &side->ended[s][e]);
    }
    if (st) {
        hd_comm_side_close(side);
        return st;
    }
    *ret_side = side;
    return HD_OK;
}

void hd_comm_side_close(struct hd_comm_side *side)
{
    if (!side)
        return;
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        if (side->streams[s])
            (void)side->device.table->synchronize(side->streams[s]); /* close even on an error */
    }
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        for (int e = 0; e < SIDE_EVENT_RING; e++) {
            if (side->ended[s][e])
                hd_comm_side_calls(side)->event_free(side->ended[s][e]);
        }
        for (int e = 0; e < SIDE_FOLLOW_RING; e++) {
            if (side->followed[s][e])
                hd_comm_side_calls(side)->event_free(side->followed[s][e]);
        }
        if (side->streams[s])
            side->device.table->stream_close(side->streams[s]);
    }
    free(side);
}

enum hd_status hd_comm_side_need(const struct hd_comm_stream *stream)
{
    struct hd_comm_side *side = stream->comm->side;

    return side->streams[stream->name]
               ? HD_OK
               : side->device.table->stream_open(side->device.backend, HD_STREAM_FOR_COMM,
                                                 &side->streams[stream->name]);
}

static struct hd_event *ended(const struct hd_comm_stream *stream, uint64_t ticket)
{
    return stream->comm->side->ended[stream->name][ticket % SIDE_EVENT_RING];
}

/* Recording an event anew does not affect earlier waits on it. */
enum hd_status hd_comm_side_follow(struct hd_comm_stream *stream, struct hd_stream *compute)
{
    struct hd_comm_side *side = stream->comm->side;
    const uint64_t ticket = stream->launched + 1; /* of the next launch */
    struct hd_event *event = side->followed[stream->name][ticket % SIDE_FOLLOW_RING];
    enum hd_status st = hd_comm_side_need(stream);

    if (!st)
        st = hd_comm_side_calls(side)->event_record(event, compute);
    if (!st)
        atomic_store(&side->followed_by[stream->name][ticket % SIDE_FOLLOW_RING], ticket);
    return st ? st : hd_comm_side_calls(side)->event_wait(side->streams[stream->name], event);
}

enum hd_status hd_comm_side_wait_on(const struct hd_comm_stream *stream, uint64_t ticket,
                                    struct hd_stream *compute)
{
    return hd_comm_side_calls(stream->comm->side)->event_wait(compute, ended(stream, ticket));
}

enum hd_status hd_comm_side_done(const struct hd_comm_stream *stream, uint64_t ticket,
                                 bool *ret_done)
{
    return hd_comm_side_calls(stream->comm->side)->event_done(ended(stream, ticket), ret_done);
}

enum hd_status hd_comm_side_note_end(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm_side *side = stream->comm->side;
    const struct hd_comm_op *op = hd_comm_op_at(stream, ticket - 1);
    const enum hd_status st =
        hd_comm_side_calls(side)->event_record(ended(stream, ticket), side->streams[stream->name]);

    atomic_store(&side->groups[stream->name][ticket % SIDE_EVENT_RING], op->group);
    atomic_store(&side->launches[stream->name][ticket % SIDE_EVENT_RING], op->launch);
    atomic_store(&side->after[stream->name][ticket % SIDE_EVENT_RING],
                 op->kind == HD_COMM_AFTER ? (uint8_t)(op->other->name + 1) : 0);
    atomic_store(&side->newest[stream->name], ticket);
    return st;
}

/* ---- what has run ---- */

/* The first ticket after `run` that the device has not run; `newest` + 1: none. Tickets whose
 * events were overwritten are taken as run when the oldest event left is. A stream runs its tickets
 * in order, so this is a binary search. */
static enum hd_status find_next(const struct hd_comm_side *side, enum hd_comm_stream_name stream,
                                uint64_t run, uint64_t newest, uint64_t *ret_ticket)
{
    uint64_t first = newest > SIDE_EVENT_RING && run < newest - SIDE_EVENT_RING
                         ? newest - SIDE_EVENT_RING + 1
                         : run + 1;
    uint64_t end = newest + 1, probe = first;
    enum hd_status st = HD_OK;

    while (!st && first < end) {
        bool done = false;

        st = hd_comm_side_calls(side)->event_done(side->ended[stream][probe % SIDE_EVENT_RING],
                                                  &done);
        if (done)
            first = probe + 1;
        else
            end = probe;
        probe = first + (end - first) / 2;
    }
    *ret_ticket = first;
    return st;
}

/* The operation number of a ticket that has run; 0: HD_COMM_AFTER, or overwritten. The owner writes
 * a new ticket's number before `newest`, so the oldest slot may already be the new ticket's. */
static uint64_t launch_of(const struct hd_comm_side *side, enum hd_comm_stream_name stream,
                          uint64_t ticket)
{
    const uint64_t launch = atomic_load(&side->launches[stream][ticket % SIDE_EVENT_RING]);

    return atomic_load(&side->newest[stream]) + 1 < ticket + SIDE_EVENT_RING ? launch : 0;
}

static void note_seen(struct hd_comm_side *side, enum hd_comm_stream_name stream, uint64_t ticket)
{
    uint64_t seen = atomic_load(&side->seen[stream]);

    while (seen < ticket && !atomic_compare_exchange_weak(&side->seen[stream], &seen, ticket))
        ;
}

/* Whether a ticket is an HD_COMM_AFTER, and which stream it waits for. */
static bool find_other(const struct hd_comm_side *side, enum hd_comm_stream_name stream,
                       uint64_t ticket, enum hd_comm_stream_name *ret_other)
{
    const uint8_t after = ticket <= atomic_load(&side->newest[stream])
                              ? atomic_load(&side->after[stream][ticket % SIDE_EVENT_RING])
                              : 0;

    if (after)
        *ret_other = (enum hd_comm_stream_name)(after - 1);
    return after;
}

/* Follows the chain of streams that `next` waits for. *ret_followed: no compute is pending that the
 * tickets of the chain follow. *ret_others: changes when one of those streams makes progress. */
static enum hd_status follow_waits(struct hd_comm_side *side, enum hd_comm_stream_name stream,
                                   uint64_t next, bool *ret_followed, uint64_t *ret_others)
{
    enum hd_status st = HD_OK;

    *ret_followed = true;
    *ret_others = 0;
    for (int n = 0; n < HD_COMM_STREAM_COUNT; n++) {
        const uint64_t place = next % SIDE_FOLLOW_RING;
        uint64_t seen, newest;

        if (atomic_load(&side->followed_by[stream][place]) == next)
            st = hd_comm_side_calls(side)->event_done(side->followed[stream][place], ret_followed);
        if (st || !*ret_followed || !find_other(side, stream, next, &stream))
            return st;
        seen = atomic_load(&side->seen[stream]);
        newest = atomic_load(&side->newest[stream]);
        st = find_next(side, stream, seen, newest, &next);
        if (st)
            return st;
        if (newest - seen <= SIDE_EVENT_RING) /* else the event of `seen` + 1 was overwritten */
            note_seen(side, stream, next - 1);
        *ret_others += next;
    }
    return HD_OK;
}

enum hd_status hd_comm_side_look(struct hd_comm *comm, enum hd_comm_stream_name stream,
                                 struct hd_comm_side_clock *clock, int64_t now_ms)
{
    struct hd_comm_side *side = comm->side;
    const uint64_t newest = atomic_load(&side->newest[stream]);
    uint64_t next, others;
    bool followed;
    enum hd_status st = find_next(side, stream, clock->run, newest, &next);

    if (newest > SIDE_EVENT_RING && clock->run < newest - SIDE_EVENT_RING) {
        clock->run = newest - SIDE_EVENT_RING; /* may be wrong: is_guess */
        clock->is_guess = true;
        clock->still_since_ms = now_ms;
    }
    for (; clock->run + 1 < next; clock->run++) {
        hd_comm_flight_ended(comm->flight, launch_of(side, stream, clock->run + 1));
        clock->is_guess = false;
        clock->still_since_ms = now_ms;
    }
    if (!clock->is_guess)
        note_seen(side, stream, clock->run);
    /* After a guess the waits of `next` say nothing: an older ticket may be the one that hangs. */
    if (st || clock->is_guess)
        return st;
    st = follow_waits(side, stream, next, &followed, &others);
    if (!followed || others != clock->others)
        clock->still_since_ms = now_ms;
    clock->others = others;
    return st;
}

uint64_t hd_comm_side_launch(const struct hd_comm_side *side, enum hd_comm_stream_name stream,
                             uint64_t ticket)
{
    for (int n = 0; n < HD_COMM_STREAM_COUNT && find_other(side, stream, ticket, &stream); n++)
        ticket = atomic_load(&side->seen[stream]) + 1;
    return ticket <= atomic_load(&side->newest[stream])
               ? atomic_load(&side->launches[stream][ticket % SIDE_EVENT_RING])
               : 0;
}

/* The next ticket to run; 0: none. Ignores errors of the device and keeps this thread's message. */
static uint64_t next_now(const struct hd_comm_side *side, enum hd_comm_stream_name stream)
{
    const uint64_t newest = atomic_load(&side->newest[stream]);
    struct hd_error error;
    uint64_t next;

    hd_err_save(HD_OK, &error);
    if (find_next(side, stream, 0, newest, &next))
        (void)hd_err_restore(&error);
    return next > newest ? 0 : next;
}

void hd_comm_side_begin_abort(struct hd_comm *comm)
{
    struct hd_comm_side *side = comm->side;

    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        const uint64_t seen = atomic_load(&side->seen[s]);

        side->abort_ticket[s] = seen < atomic_load(&side->newest[s]) ? seen + 1 : 0;
    }
    atomic_store(&side->abort_begun, true);
}

uint64_t hd_comm_side_next_ticket(struct hd_comm *comm, enum hd_comm_stream_name stream)
{
    return atomic_load(&comm->side->abort_begun) ? comm->side->abort_ticket[stream]
                                                 : next_now(comm->side, stream);
}

void hd_comm_side_mark_run(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm_side *side = stream->comm->side;
    uint64_t *marked_run = &side->marked_run[stream->name];

    note_seen(side, stream->name, ticket);
    if (ticket > SIDE_EVENT_RING && *marked_run < ticket - SIDE_EVENT_RING)
        *marked_run = ticket - SIDE_EVENT_RING;
    for (; *marked_run < ticket; (*marked_run)++)
        hd_comm_flight_ended(stream->comm->flight,
                             side->launches[stream->name][(*marked_run + 1) % SIDE_EVENT_RING]);
}

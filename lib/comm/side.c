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
        st = calls->event_new(device->backend, false, &side->followed[s]);
        for (int e = 0; e < SIDE_EVENTS && !st; e++)
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
            (void)side->device.table->synchronize(side->streams[s]); /* it ends in any case */
    }
    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        for (int e = 0; e < SIDE_EVENTS; e++) {
            if (side->ended[s][e])
                hd_comm_side_calls(side)->event_free(side->ended[s][e]);
        }
        if (side->followed[s])
            hd_comm_side_calls(side)->event_free(side->followed[s]);
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
    return stream->comm->side->ended[stream->name][ticket % SIDE_EVENTS];
}

/* An event that is recorded again keeps those waiting that waited for its last record. */
enum hd_status hd_comm_side_follow(struct hd_comm_stream *stream, struct hd_stream *compute)
{
    const struct hd_comm_side *side = stream->comm->side;
    struct hd_event *event = side->followed[stream->name];
    enum hd_status st = hd_comm_side_need(stream);

    if (!st)
        st = hd_comm_side_calls(side)->event_record(event, compute);
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
    const enum hd_status st =
        hd_comm_side_calls(side)->event_record(ended(stream, ticket), side->streams[stream->name]);

    atomic_store(&side->launches[stream->name][ticket % SIDE_EVENTS],
                 hd_comm_op_at(stream, ticket - 1)->launch);
    atomic_store(&side->newest[stream->name], ticket);
    return st;
}

void hd_comm_side_tell(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm_side *side = stream->comm->side;
    uint64_t *told = &side->told[stream->name];

    if (ticket > SIDE_EVENTS && *told < ticket - SIDE_EVENTS)
        *told = ticket - SIDE_EVENTS;
    for (; *told < ticket; (*told)++)
        hd_comm_flight_ended(stream->comm->flight,
                             side->launches[stream->name][(*told + 1) % SIDE_EVENTS]);
}
